"""The numbers that five papers print, as data: one CSV file a table, one row a cell.

`tables.csv` says where each table stands in its paper and what its cells are; `aliases.csv` maps the papers' names of
algorithms to registry names. Numbers are as printed, errors included: `docs/errata.md` lists those that do not follow
from their parts.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shiftbed.errors import UnknownNameError
from shiftbed.registry import did_you_mean

HERE = Path(__file__).parent
RECONSTRUCTED = "reconstructed"


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed number and what it is about; an empty label is averaged over, or its table does not have it.

    Attributes:
        table: The table's name, such as "domainbed/table-4".
        algorithm: A registry name; the paper's own name where we have no such algorithm; or an accuracy predictor.
        selection: The selection rule.
        network: The backbone by its registry name, or the paper's name of a classifier whose accuracy is predicted.
        weights: What the network starts from: "imagenet" (supervised), "moco-v2", …, or "scratch".
        setting: What else sets the row apart: the split, the number of sources, linear probe or fine-tuning.
        dataset: The name on the dataset's card.
        domain: A domain's name on the card, or the name of a group of domains.
        measure: "accuracy" (percent) or what is printed instead.
        mean: The number; None if the copy of the paper cannot be read here, for the reason in the note.
        spread: What follows the ±, if anything; `Published.spread` says what it is.
        decimals: How many decimals are printed.
        note: A mark beside the number, how it was printed, or why it is missing or reconstructed.
    """

    table: str
    algorithm: str
    selection: str
    network: str
    weights: str
    setting: str
    dataset: str
    domain: str
    measure: str
    mean: float | None
    spread: float | None
    decimals: int
    note: str

    @property
    def reconstructed(self) -> bool:
        """Whether the number was not read but follows from others."""
        return self.note.startswith(RECONSTRUCTED)


LABELS = ("algorithm", "selection", "network", "weights", "setting", "dataset", "domain", "measure")


@dataclass(frozen=True)
class Published:
    """A table of a paper.

    Attributes:
        name: Such as "domainbed/table-4".
        paper: Authors, year, title.
        place: The table's number or section in the paper.
        lines: Where it stands in the plain-text copy of the paper that it was transcribed from.
        what: What its cells are.
        spread: What follows the ±.
        cells: All cells, in the order of the paper.
    """

    name: str
    paper: str
    place: str
    lines: str
    what: str
    spread: str
    cells: tuple[Cell, ...]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)


def tables() -> list[str]:
    """The names of all tables, paper by paper."""
    return list(_sources())


@cache
def table(name: str) -> Published:
    """A table by its name.

    Raises:
        UnknownNameError: There is no such table.
    """
    if name not in _sources():
        raise UnknownNameError(f"There is no published table '{name}'.{did_you_mean(name, tables())}")
    rows = _rows(f"{name}.csv")
    return Published(cells=tuple(_cell(name, row) for row in rows), **_sources()[name])


def cells(paper: str, **labels: str) -> list[Cell]:
    """The cells of a paper's tables that have all these labels.

    Args:
        paper: The first part of the tables' names ("domainbed"), or one table's name.
        labels: Labels of `Cell` by name; an algorithm may have the paper's name, and "" asks for averages.

    Raises:
        UnknownNameError: There is no such paper or no such label.
    """
    names = [name for name in tables() if paper in (name, name.split("/")[0])]
    if not names:
        known = sorted({name.split("/")[0] for name in tables()})
        raise UnknownNameError(f"No numbers of the paper '{paper}' are here.{did_you_mean(paper, known)}")
    for label in labels:
        if label not in LABELS:
            raise UnknownNameError(f"Published cells have no label '{label}'.{did_you_mean(label, list(LABELS))}")
    if "algorithm" in labels:
        labels["algorithm"] = canonical_name(labels["algorithm"])
    return [cell for name in names for cell in table(name) if all(getattr(cell, k) == v for k, v in labels.items())]


def canonical_name(printed: str) -> str:
    """The registry name of an algorithm that a paper calls otherwise ("DRO", "C-DANN", "Deepall")."""
    return aliases().get(printed, printed)


@cache
def aliases() -> dict[str, str]:
    """From names that papers print to ours."""
    return {row["printed"]: row["name"] for row in _rows("aliases.csv")}


def _cell(table: str, row: dict[str, str]) -> Cell:
    return Cell(
        table=table,
        algorithm=row["algorithm"],
        selection=row["selection"],
        network=row["network"],
        weights=row["weights"],
        setting=row["setting"],
        dataset=row["dataset"],
        domain=row["domain"],
        measure=row["measure"],
        mean=float(row["mean"]) if row["mean"] else None,
        spread=float(row["spread"]) if row["spread"] else None,
        decimals=len(row["mean"].partition(".")[2]),
        note=row["note"],
    )


@cache
def _sources() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in _rows("tables.csv")}


def _rows(file: str) -> list[dict[str, str]]:
    with (HERE / file).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))
