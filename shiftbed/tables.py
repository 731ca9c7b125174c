"""Tables: results by algorithm and test domain, with standard errors and what they rest on."""

import csv
import io
import math
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiftbed.errors import StoreError
from shiftbed.hashing import digest
from shiftbed.selection import SELECTIONS, Choice, JobRecords, Selection
from shiftbed.selection.rules import REPORTED
from shiftbed.sweeps.plan import planned
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.store import LocalStore

WIDTH = 80
LONGEST_WORD = 16
AVERAGE = ("Avg",)
MISSING = "–"
ORACLE_MARK = "†"


Column = tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A number with its doubt: the mean over trials, its standard error (sample estimate), and how many trials."""

    mean: float
    standard_error: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure | None":
        """The figure of some values, or None if there are none."""
        if not values:
            return None
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, len(values))


@dataclass(frozen=True)
class Table:
    """One dataset under one recipe and one selection.

    Attributes:
        columns: The test domains; several that are tested together make one column.
        choices: Per algorithm, column and trial, what the selection picked.
        draws: Per algorithm, the numbers of draws its cells chose from, smallest and largest.
    """

    dataset: str
    version: int
    recipe: dict[str, Any]
    selection: Selection
    columns: tuple[Column, ...]
    choices: dict[str, dict[Column, dict[int, Choice]]]
    draws: dict[str, tuple[int, int]]

    @property
    def algorithms(self) -> list[str]:
        """ERM first, the others by name."""
        return sorted(self.choices, key=lambda name: (name != "ERM", name.lower()))

    def figure(self, algorithm: str, column: Column) -> Figure | None:
        """A cell; the column `Avg` averages the domains within each trial that has all of them."""
        by_column = self.choices[algorithm]
        if column != AVERAGE:
            return Figure.of([accuracy(choice) for choice in by_column.get(column, {}).values()])
        trials = sorted(set.intersection(*(set(by_column.get(name, {})) for name in self.columns)))
        means = [statistics.fmean(accuracy(by_column[name][trial]) for name in self.columns) for trial in trials]
        return Figure.of(means)

    def notes(self) -> list[str]:
        """What a reader must know before comparing rows."""
        mark = f"{ORACLE_MARK} Oracle: chosen with the test domain's labels. " if self.selection.oracle else ""
        notes = [f"{mark}{self.selection.summary}"]
        ranges = set(self.draws.values())
        if len(ranges) > 1 or any(low != high for low, high in ranges):
            each = ", ".join(
                f"{name} {low}" + (f" to {high}" if low != high else "") for name, (low, high) in self.draws.items()
            )
            notes.append(f"Not yet fair: the cells were chosen from unequal numbers of draws ({each}).")
        return notes


def accuracy(choice: Choice) -> float:
    """What is reported of a choice: the accuracy on the larger part of the test domain, in percent."""
    row = next(row for row in choice.job.rows if row["step"] == choice.step)
    return 100 * statistics.fmean(choice.job.read(row, REPORTED))


def read_tables(folder: str | Path, selections: Sequence[str] = ()) -> list[Table]:
    """The tables of a sweep's folder, from its finished jobs.

    Args:
        folder: The sweep's folder.
        selections: Names of selection rules; all of them by default.

    Raises:
        StoreError: No job is finished there.
    """
    rules = [SELECTIONS[name] for name in (selections or reversed(list(SELECTIONS)))]
    jobs = list(finished_jobs(LocalStore(Path(folder))))
    if not jobs:
        raise StoreError(f"There is no finished job in {folder}; `shiftbed sweep ... --out {folder}` makes some.")
    return make_tables(jobs, rules)


def missing_jobs(folder: str | Path) -> int:
    """How many planned jobs of a sweep have not finished."""
    store = LocalStore(Path(folder))
    return len(planned(store).keys() - {job.id for job in finished_jobs(store)})


def make_tables(jobs: Iterable[JobRecords], selections: Sequence[Selection]) -> list[Table]:
    """All tables of some finished jobs: one for each dataset, recipe and selection."""
    settings: dict[tuple[str, int, str], list[JobRecords]] = defaultdict(list)
    for job in jobs:
        about = job.description
        settings[about["dataset"], about["version"], digest(about["recipe"])].append(job)
    return [_make_table(settings[setting], selection) for setting in sorted(settings) for selection in selections]


def _make_table(jobs: list[JobRecords], selection: Selection) -> Table:
    about = jobs[0].description
    labels = _algorithm_labels(jobs)
    cells: dict[tuple[str, Column, int], list[JobRecords]] = defaultdict(list)
    for job in jobs:
        cells[labels[job.id], tuple(job.description["test_domains"]), job.description["trial"]].append(job)
    choices: dict[str, dict[Column, dict[int, Choice]]] = {label: {} for label in sorted(set(labels.values()))}
    for (label, column, trial), members in sorted(cells.items()):
        choice = selection.choose(members)
        if choice is not None:
            choices[label].setdefault(column, {})[trial] = choice
    order = list(dict.fromkeys(split["domain"] for split in about["splits"]))
    columns = sorted({column for _, column, _ in cells}, key=lambda tested: [order.index(d) for d in tested])
    sizes = {label: [len(members) for (name, _, _), members in cells.items() if name == label] for label in choices}
    draws = {label: (min(counts), max(counts)) for label, counts in sizes.items()}
    return Table(about["dataset"], about["version"], about["recipe"], selection, tuple(columns), choices, draws)


def _algorithm_labels(jobs: list[JobRecords]) -> dict[str, str]:
    """The row each job belongs to: its algorithm, with the revision where several are present."""
    revisions = defaultdict(set)
    for job in jobs:
        revisions[job.description["algorithm"]].add(job.description["revision"])
    return {
        job.id: job.description["algorithm"]
        + (f" ({job.description['revision']})" if len(revisions[job.description["algorithm"]]) > 1 else "")
        for job in jobs
    }


def as_text(table: Table) -> str:
    """The table as text of at most 80 columns; many domains continue below."""
    columns = [*table.columns, AVERAGE]
    figures = {(row, column): table.figure(row, column) for row in table.algorithms for column in columns}
    usual = Counter(figure.n for figure in figures.values() if figure).most_common(1)[0][0]
    cells = {place: _cell_text(figure, table.selection.oracle, usual) for place, figure in figures.items()}
    first = max(len("algorithm"), *(len(name) for name in table.algorithms))
    words = [word for column in columns for name in column for word in name.replace("-", "- ").split()]
    width = 2 + max(*(len(text) for text in cells.values()), *(min(len(word), LONGEST_WORD) for word in words))
    blocks = math.ceil(len(columns) * width / (WIDTH - first))
    even = math.ceil(len(columns) / blocks)
    lines = [
        f"{table.dataset} (version {table.version}), recipe {table.recipe['name']}, {table.recipe['steps']} steps",
        f"{table.selection.name}: accuracy in %, mean ± standard error, n = {usual}",
    ]
    for start in range(0, len(columns), even):
        block = columns[start : start + even]
        lines += ["", *_header(block, first, width), "─" * (first + width * len(block))]
        for algorithm in table.algorithms:
            lines.append(algorithm.ljust(first) + "".join(cells[algorithm, column].rjust(width) for column in block))
    lines.append("")
    for note in table.notes():
        lines += textwrap.wrap(note, WIDTH)
    return "\n".join(lines)


def _header(columns: list[Column], first: int, width: int) -> list[str]:
    """Column names, broken at hyphens into as many lines as they need, aligned at the bottom."""
    wrapped = [textwrap.wrap(" ".join(column), width - 2) for column in columns]
    height = max(len(lines) for lines in wrapped)
    lines = []
    for level in range(height):
        words = [(column[level - height + len(column)] if level >= height - len(column) else "") for column in wrapped]
        label = "algorithm" if level == height - 1 else ""
        lines.append((label.ljust(first) + "".join(word.rjust(width) for word in words)).rstrip())
    return lines


def _cell_text(figure: Figure | None, oracle: bool, usual: int) -> str:
    if figure is None:
        return MISSING
    mark = ORACLE_MARK if oracle else ""
    error = "" if figure.standard_error is None else f" ±{figure.standard_error:.1f}"
    count = "" if figure.n == usual else f" ({figure.n})"
    return f"{figure.mean:.1f}{mark}{error}{count}"


def as_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """All cells of some tables with what they rest on, for machines."""
    rows = []
    for table in tables:
        for algorithm in table.algorithms:
            for column in (*table.columns, AVERAGE):
                figure = table.figure(algorithm, column)
                choices = table.choices[algorithm].get(column, {})
                rows.append(
                    {
                        "dataset": table.dataset,
                        "version": table.version,
                        "recipe": table.recipe["name"],
                        "steps": table.recipe["steps"],
                        "selection": table.selection.name,
                        "oracle": table.selection.oracle,
                        "algorithm": algorithm,
                        "test": " ".join(column),
                        "accuracy": None if figure is None else figure.mean,
                        "standard_error": None if figure is None else figure.standard_error,
                        "n": 0 if figure is None else figure.n,
                        "choices": [
                            {
                                "trial": trial,
                                "job": choice.job.id,
                                "draw": choice.job.description["draw"],
                                "step": choice.step,
                                "accuracy": accuracy(choice),
                                "hparams": choice.job.description["hparams"],
                            }
                            for trial, choice in sorted(choices.items())
                        ],
                    }
                )
    return rows


def as_csv(tables: Sequence[Table]) -> str:
    """All cells of some tables as CSV; jobs, draws and steps of the choices are joined by spaces."""
    buffer = io.StringIO()
    plain = ("dataset", "version", "recipe", "steps", "selection", "oracle", "algorithm", "test", "accuracy")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*plain, "standard_error", "n", "jobs", "draws", "chosen_steps"])
    for row in as_rows(tables):
        joined = [" ".join(str(choice[key]) for choice in row["choices"]) for key in ("job", "draw", "step")]
        writer.writerow([*(row[name] for name in plain), row["standard_error"], row["n"], *joined])
    return buffer.getvalue()
