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
from shiftbed.protocols import Flexible
from shiftbed.selection import SELECTIONS, JobRecords, Selection
from shiftbed.sweeps.plan import planned
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.store import LocalStore

WIDTH = 80
LONGEST_WORD = 16
MISSING = "–"
ORACLE_MARK = "†"
Tested = tuple[str, ...]  # the domains that are tested together
Column = tuple[Tested, str]  # one of them, or OVERALL
OVERALL = ""  # in place of a domain, where accuracy by domain is not defined
AVERAGE: Column = ((), "")  # the column that averages all others


@dataclass(frozen=True)
class Estimate:
    """A number with its doubt: the mean over trials, its standard error, and how many trials.

    The standard error is the sample estimate (divisor n − 1); DomainBed prints the population's, which is smaller.
    """

    mean: float
    standard_error: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """The estimate from some values, or None if there are none."""
        if not values:
            return None
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, len(values))


@dataclass(frozen=True)
class Chosen:
    """The job and step that a selection picked for one cell."""

    job: JobRecords
    step: int

    def accuracy(self, domain: str) -> float:
        """What is reported, in percent: the accuracy on a test domain, or over all of them."""
        row = next(row for row in self.job.rows if row["step"] == self.step)
        splits = [split for split in self.job.description["splits"] if is_reported(split)]
        results = [row["splits"][split["name"]] for split in splits if domain in (split["domain"], OVERALL)]
        right = sum(result["accuracy"] * result["count"] for result in results)
        return 100 * right / sum(result["count"] for result in results)


def is_reported(split: dict[str, Any]) -> bool:
    """Whether a split's accuracy is a result: tested, and not the part held out for the oracle."""
    return split["role"] == "test" and split["part"] != "out"


def reported_columns(about: dict[str, Any]) -> list[Column]:
    """The columns a job fills: one for each domain it tests, or one overall."""
    tested = tuple(about["test_domains"])
    if about["task"]["kind"] == Flexible.kind:
        return [(tested, OVERALL)]
    return [(tested, domain) for domain in tested]


@dataclass(frozen=True)
class Table:
    """One setting (dataset, recipe, hyperparameters set by hand) under one selection.

    Attributes:
        columns: The test domains, each with those it is tested together with.
        chosen: Per algorithm, tested domains and trial, what the selection picked.
        draws: Per algorithm, the numbers of draws its cells chose from, smallest and largest.
        intervals: The evaluation intervals of its jobs.
        missing: How many planned jobs have not finished.
    """

    dataset: str
    version: int | str
    recipe: dict[str, Any]
    overrides: dict[str, Any]
    selection: Selection
    columns: tuple[Column, ...]
    chosen: dict[str, dict[Tested, dict[int, Chosen]]]
    draws: dict[str, tuple[int, int]]
    intervals: tuple[int, ...]
    missing: int

    @property
    def algorithms(self) -> list[str]:
        """ERM first, the others by name."""
        return sorted(self.chosen, key=lambda name: (name.split(" ")[0] != "ERM", name.lower()))

    def estimate(self, algorithm: str, column: Column) -> Estimate | None:
        """A cell; the column `AVERAGE` averages the domains within each trial that has all of them."""
        cells = self.chosen[algorithm]
        if column != AVERAGE:
            tested, domain = column
            return Estimate.of([one.accuracy(domain) for one in cells.get(tested, {}).values()])
        trials = sorted(set.intersection(*(set(cells.get(tested, {})) for tested, _ in self.columns)))
        return Estimate.of(
            [
                statistics.fmean(cells[tested][trial].accuracy(domain) for tested, domain in self.columns)
                for trial in trials
            ]
        )

    def heading(self, column: Column) -> str:
        """A column's name: its domain, with its companions where it is tested in several companies."""
        tested, domain = column
        if column == AVERAGE:
            return "Avg"
        if domain == OVERALL:
            return "overall"
        several = sum(other == domain for _, other in self.columns) > 1
        return f"{domain} (with {', '.join(name for name in tested if name != domain)})" if several else domain

    def notes(self) -> list[str]:
        """What a reader must know before comparing rows."""
        mark = f"{ORACLE_MARK} Oracle: chosen with the test domain's labels. " if self.selection.oracle else ""
        notes = [f"{mark}{self.selection.summary}"]
        if len(set(self.draws.values())) > 1 or any(low != high for low, high in self.draws.values()):
            each = ", ".join(
                f"{name} {low}" + (f" to {high}" if low != high else "") for name, (low, high) in self.draws.items()
            )
            notes.append(f"Not yet fair: the cells were chosen from unequal numbers of draws ({each}).")
        if len(self.intervals) > 1:
            every = " and ".join(str(interval) for interval in self.intervals)
            notes.append(f"Not quite fair: jobs were evaluated every {every} steps, so some had more chances.")
        if self.missing:
            jobs = "1 planned job has" if self.missing == 1 else f"{self.missing} planned jobs have"
            notes.append(f"{jobs} not finished: run the same command again to finish.")
        return notes


def read_tables(folder: str | Path, selections: Sequence[str] = ()) -> list[Table]:
    """The tables of a sweep's folder, from its finished jobs.

    Args:
        folder: The sweep's folder.
        selections: Names of selection rules; all of them by default.

    Raises:
        StoreError: No job is finished there.
    """
    rules = [SELECTIONS[name] for name in (selections or reversed(list(SELECTIONS)))]
    store = LocalStore(Path(folder))
    jobs = list(finished_jobs(store))
    if not jobs:
        raise StoreError(f"There is no finished job in {folder}; `shiftbed sweep ... --out {folder}` makes some.")
    return make_tables(jobs, rules, planned(store).values())


def make_tables(
    jobs: Iterable[JobRecords], selections: Sequence[Selection], plan: Iterable[dict[str, Any]] = ()
) -> list[Table]:
    """All tables of some finished jobs: one for each setting and selection.

    Args:
        jobs: The finished jobs.
        selections: The rules.
        plan: What was asked for: a domain or an algorithm with no finished job is then shown as missing.
    """
    settings: dict[str, list[JobRecords]] = defaultdict(list)
    for job in jobs:
        settings[job.description["setting"]].append(job)
    asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in plan:
        asked[row["setting"]].append(row)

    def order(setting: str) -> tuple[str, ...]:
        about = settings[setting][0].description
        return about["dataset"], str(about["version"]), about["recipe"]["name"], setting

    return [
        _make_table(settings[setting], asked[setting], selection)
        for setting in sorted(settings, key=order)
        for selection in selections
    ]


def _make_table(jobs: list[JobRecords], asked: list[dict[str, Any]], selection: Selection) -> Table:
    about = jobs[0].description
    by_id = {job.id: job for job in jobs}
    labels = _algorithm_labels(jobs)
    cells: dict[tuple[str, Tested, int], list[JobRecords]] = defaultdict(list)
    for job in jobs:
        cells[labels[job.id], tuple(job.description["test_domains"]), job.description["trial"]].append(job)
    unfinished = [row for row in asked if row["id"] not in by_id]
    known = {job.description["algorithm"] for job in jobs}
    rows = sorted({*labels.values(), *(row["algorithm"] for row in unfinished if row["algorithm"] not in known)})
    chosen: dict[str, dict[Tested, dict[int, Chosen]]] = {label: {} for label in rows}
    for (label, tested, trial), members in sorted(cells.items()):
        choice = selection.choose(members)
        if choice is not None:
            chosen[label].setdefault(tested, {})[trial] = Chosen(by_id[choice.job_id], choice.step)
    order = {split["domain"]: position for position, split in enumerate(about["splits"])}

    def place(domain: str) -> int:
        return order.get(domain, -1)

    columns = {column for job in jobs for column in reported_columns(job.description)}
    columns |= {column for row in unfinished for column in reported_columns({**about, **row})}
    sizes = {label: [len(members) for (name, _, _), members in cells.items() if name == label] for label in rows}
    return Table(
        dataset=about["dataset"],
        version=about["version"],
        recipe=about["recipe"],
        overrides=about["overrides"],
        selection=selection,
        columns=tuple(sorted(columns, key=lambda column: (place(column[1]), [place(name) for name in column[0]]))),
        chosen=chosen,
        draws={label: (min(counts), max(counts)) for label, counts in sizes.items() if counts},
        intervals=tuple(sorted({job.description["recipe"]["evaluate_every"] for job in jobs})),
        missing=len(unfinished),
    )


def _algorithm_labels(jobs: list[JobRecords]) -> dict[str, str]:
    """The row each job belongs to: its algorithm, with what was set by hand, and the revision where several are."""
    revisions = defaultdict(set)
    for job in jobs:
        revisions[job.description["algorithm"]].add(job.description["revision"])

    def label(about: dict[str, Any]) -> str:
        marks = [f"{name} = {value}" for name, value in about["own_overrides"].items()]
        if len(revisions[about["algorithm"]]) > 1:
            marks.append(str(about["revision"]))
        return about["algorithm"] + (f" ({', '.join(marks)})" if marks else "")

    return {job.id: label(job.description) for job in jobs}


def as_text(table: Table) -> str:
    """The table as text of at most 80 columns; many domains continue below."""
    columns = [*table.columns, AVERAGE]
    estimates = {(row, column): table.estimate(row, column) for row in table.algorithms for column in columns}
    counts = Counter(estimate.n for estimate in estimates.values() if estimate)
    usual = counts.most_common(1)[0][0] if counts else 0
    cells = {place: _cell_text(estimate, table.selection.oracle, usual) for place, estimate in estimates.items()}
    first = max(len("algorithm"), *(len(name) for name in table.algorithms))
    headings = [table.heading(column) for column in columns]
    words = [word for heading in headings for word in heading.replace("-", "- ").split()]
    width = 2 + max(*(len(text) for text in cells.values()), *(min(len(word), LONGEST_WORD) for word in words))
    blocks = math.ceil(len(columns) * width / (WIDTH - first))
    even = math.ceil(len(columns) / blocks)
    lines = [*_title(table), f"{table.selection.name}: accuracy in %, mean ± standard error, n = {usual}"]
    for start in range(0, len(columns), even):
        block = columns[start : start + even]
        lines += ["", *_header(headings[start : start + even], first, width), "─" * (first + width * len(block))]
        for algorithm in table.algorithms:
            lines.append(algorithm.ljust(first) + "".join(cells[algorithm, column].rjust(width) for column in block))
    lines.append("")
    for note in table.notes():
        lines += textwrap.wrap(note, WIDTH)
    return "\n".join(lines)


def _title(table: Table) -> list[str]:
    by_hand = "".join(f", {name} = {value}" for name, value in table.overrides.items())
    how = f"recipe {table.recipe['name']}, {table.recipe['steps']} steps{by_hand}"
    return textwrap.wrap(f"{table.dataset} (version {table.version}), {how}", WIDTH)


def _header(headings: list[str], first: int, width: int) -> list[str]:
    """Column names, broken at hyphens into as many lines as they need, aligned at the bottom."""
    wrapped = [textwrap.wrap(heading, width - 2) for heading in headings]
    height = max(len(lines) for lines in wrapped)
    lines = []
    for level in range(height):
        words = [(column[level - height + len(column)] if level >= height - len(column) else "") for column in wrapped]
        label = "algorithm" if level == height - 1 else ""
        lines.append((label.ljust(first) + "".join(word.rjust(width) for word in words)).rstrip())
    return lines


def _cell_text(estimate: Estimate | None, oracle: bool, usual: int) -> str:
    if estimate is None:
        return MISSING
    mark = ORACLE_MARK if oracle else ""
    error = "" if estimate.standard_error is None else f" ±{estimate.standard_error:.1f}"
    count = "" if estimate.n == usual else f" ({estimate.n})"
    return f"{estimate.mean:.1f}{mark}{error}{count}"


def as_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """All cells of some tables with what they rest on, for machines."""
    return [
        _row(table, algorithm, column)
        for table in tables
        for algorithm in table.algorithms
        for column in (*table.columns, AVERAGE)
    ]


def _row(table: Table, algorithm: str, column: Column) -> dict[str, Any]:
    estimate = table.estimate(algorithm, column)
    least, most = table.draws.get(algorithm, (0, 0))
    return {
        "dataset": table.dataset,
        "version": table.version,
        "recipe": table.recipe["name"],
        "steps": table.recipe["steps"],
        "overrides": table.overrides,
        "selection": table.selection.name,
        "oracle": table.selection.oracle,
        "algorithm": algorithm,
        "test": column[1] if column != AVERAGE else "average",
        "tested_together": len(column[0]),
        "accuracy": None if estimate is None else estimate.mean,
        "standard_error": None if estimate is None else estimate.standard_error,
        "n": 0 if estimate is None else estimate.n,
        "least_draws": least,
        "most_draws": most,
        "chosen": [
            {
                "trial": trial,
                "job": one.job.id,
                "draw": one.job.description["draw"],
                "step": one.step,
                "accuracy": one.accuracy(column[1]),
                "hparams": one.job.description["hparams"],
            }
            for trial, one in sorted(table.chosen[algorithm].get(column[0], {}).items())
        ],
    }


def as_csv(tables: Sequence[Table]) -> str:
    """All cells of some tables as CSV; jobs, draws and steps of the choices are joined by spaces.

    `least_draws` and `most_draws` say from how many draws an algorithm's cells were chosen.
    """
    buffer = io.StringIO()
    rows = as_rows(tables)
    plain = [name for name in rows[0] if name not in ("overrides", "chosen")]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*plain, "overrides", "jobs", "draws", "chosen_steps"])
    for row in rows:
        by_hand = " ".join(f"{name}={value}" for name, value in row["overrides"].items())
        joined = [" ".join(str(one[key]) for one in row["chosen"]) for key in ("job", "draw", "step")]
        writer.writerow([*(row[name] for name in plain), by_hand, *joined])
    return buffer.getvalue()
