"""Why two jobs, recipes or tables differ."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shiftbed.audit.ledger import read_tables
from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.records import no_finished_job
from shiftbed.tables import Table, as_rows
from shiftbed.tables.grids import own_key
from shiftbed.tables.table import ORACLE_MARK
from shiftbed.training.recipes import recipe, recipe_names

CELL = ("dataset", "selection", "algorithm", "test")  # what names a cell
NUMBERS = ("accuracy", "standard_error", "n", "why_empty", "chosen")  # what is found in it; the rest is how it was made


class Comparison(NamedTuple):
    """Two things of one kind.

    Attributes:
        kind: What they are: a recipe, a job or a sweep.
        left: The fields of the first; of a sweep, its cells by name.
        right: Those of the second.
    """

    kind: str
    left: Mapping[str, Any]
    right: Mapping[str, Any]

    def fields(self) -> list[tuple[str, Any, Any]]:
        """Every field in which they differ, with both values, for machines."""
        left, right = self.left, self.right
        if self.kind == "sweep":  # a cell that one of them lacks is one difference, not one in each of its fields
            left, right = (
                {cell: row if cell in lacking else row["accuracy"] for cell, row in having.items()}
                for having, lacking in ((left, right), (right, left))
            )
        left, right = _flat(left), _flat(right)
        keys = [*left, *(key for key in right if key not in left)]
        return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]

    def rows(self) -> list[tuple[str, str, str]]:
        """What differs, for people: of sweeps how they were made, and one row for each cell whose numbers differ."""
        if self.kind != "sweep":
            return [(key, _word(left), _word(right)) for key, left, right in self.fields()]
        cells = [*self.left, *(cell for cell in self.right if cell not in self.left)]
        numbers = [(cell, _number(self.left.get(cell)), _number(self.right.get(cell))) for cell in cells]
        return [*self._making(), *(row for row in numbers if row[1] != row[2])]

    @property
    def has_oracle(self) -> bool:
        """Whether some of the numbers are an oracle's."""
        return self.kind == "sweep" and any(row["oracle"] for row in (*self.left.values(), *self.right.values()))

    def _making(self) -> list[tuple[str, str, str]]:
        """How the cells that both have were made, where that differs: draws, steps, versions."""
        both = [(self.left[cell], self.right[cell]) for cell in self.left if cell in self.right]
        names = [name for name in (both[0][0] if both else {}) if name not in (*CELL, *NUMBERS)]
        differing = {name: [pair for pair in both if pair[0][name] != pair[1][name]] for name in names}
        return [
            (name.replace("_", " "), *(_several([pair[side][name] for pair in pairs]) for side in (0, 1)))
            for name, pairs in differing.items()
            if pairs
        ]


def compare(one: str | Path, two: str | Path) -> Comparison:
    """Two things of one kind, to see in what they differ.

    Args:
        one: A job's folder, a sweep's folder, or a recipe (its name, or a file of one's own).
        two: The same kind of thing.

    Raises:
        ShiftbedError: One of them is none of these, or they are of different kinds.
    """
    one, two = str(one), str(two)
    as_sweeps = any(len(_jobs(Path(name))) > 1 or (Path(name) / "parts").is_dir() for name in (one, two))
    (kind, left), (other, right) = (_read(name, as_sweeps) for name in (one, two))
    if kind != other:
        raise ShiftbedError(f"{one} is a {kind} and {two} is a {other}; compare two of a kind.")
    return Comparison(kind, *_cells(left, right)) if kind == "sweep" else Comparison(kind, left, right)


def _cells(*sweeps: Sequence[Table]) -> Iterator[dict[str, dict[str, Any]]]:
    """The cells of sweeps by their names, which are as long in both as it takes for each to be another cell.

    A folder may have several settings of a dataset, and a domain may be tested in several companies.
    """
    settings = [Counter((table.dataset, table.selection.name) for table in tables) for tables in sweeps]
    several = {setting for counts in settings for setting, count in counts.items() if count > 1}
    companies: dict[tuple[str, ...], set[str]] = defaultdict(set)
    found: list[list[tuple[tuple[str, ...], str, dict[str, Any]]]] = []
    for tables in sweeps:
        found.append([])
        for table in tables:
            told = (table.dataset, table.selection.name) in several
            for row in as_rows([table]):
                key = (table.title if told else table.dataset, *(str(row[name]) for name in CELL[1:-1]), _test(row))
                company = ", ".join(row["tested_with"])
                companies[key].add(company)
                found[-1].append((key, company, row))
    for rows in found:
        yield {
            " / ".join(key) + (f" (with {company})" if company and len(companies[key]) > 1 else ""): row
            for key, company, row in rows
        }


def _test(row: Mapping[str, Any]) -> str:
    """What a cell tests; a domain may have the name of the average over them."""
    return own_key("domain", row["test"], {"average"} if row["tested_together"] else ())


def _jobs(sweep: Path) -> list[Path]:
    """The descriptions of a sweep's jobs that have files of their own; one that was merged or imported has parts."""
    return sorted(sweep.glob("jobs/*/job.json"))


def _read(name: str, as_sweep: bool) -> tuple[str, Any]:
    """What a name stands for; a folder of one job is a sweep beside one."""
    path = Path(name)
    if name in recipe_names() or path.suffix in (".yaml", ".yml"):
        return "recipe", recipe(name, "").model_dump()
    if (path / "job.json").is_file():
        return "job", json.loads((path / "job.json").read_text())
    jobs = _jobs(path)
    if len(jobs) == 1 and not as_sweep:
        return "job", json.loads(jobs[0].read_text())
    if jobs or any((path / name).is_dir() for name in ("plans", "parts")):
        return "sweep", read_tables(path)
    if path.is_file():
        raise no_finished_job(name)
    raise ShiftbedError(f"{name} is no recipe, and no folder of a job or a sweep.")


def _number(row: Mapping[str, Any] | None) -> str:
    """The number of a cell with its doubt and count; marked, if an oracle chose."""
    if row is None or row["accuracy"] is None:
        return "–"
    mark = ORACLE_MARK if row["oracle"] else ""
    error = row["standard_error"]
    return f"{row['accuracy']:.1f}{mark}{'' if error is None else f' ±{error:.1f}'} ({row['n']})"


def _several(values: list[Any]) -> str:
    """The different ones of some values."""
    return ", ".join(dict.fromkeys(map(_word, values)))


def _word(value: Any) -> str:
    return "–" if value is None else str(value)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by dots; splits and the like by their names, choices by trial."""
    for name, words in (("name", "{}"), ("trial", "trial {}")):
        if isinstance(value, list) and all(isinstance(item, dict) and name in item for item in value):
            value = {words.format(item[name]): item for item in value}
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return flat
