"""Records as columns: all finished jobs of one task in a few arrays, so that a rule scores them at once."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from shiftbed.hashing import canonical

NO_STEP = -1


class Cadence(NamedTuple):
    """When a job is evaluated: fields of its recipe that are in no id, since looking changes no result."""

    evaluate_every: int
    evaluate_first: bool = False

    @classmethod
    def of(cls, about: dict[str, Any]) -> "Cadence":
        """That of a job by its description, in which older jobs have not all of it."""
        return cls(**{name: value for name, value in about["recipe"].items() if name in cls._fields})

    def __str__(self) -> str:
        return f"every {self.evaluate_every} steps{' and after the first' if self.evaluate_first else ''}"


class Column(NamedTuple):
    """A kind of number in the records: a metric of the splits with a role, and a part if one is named.

    Beside the roles of splits there are `PAIR` and `ELSEWHERE`, which are read from other jobs.
    """

    role: str
    part: str | None
    metric: str

    def covers(self, split: dict[str, Any]) -> bool:
        """Whether a split of a job's description belongs to the column."""
        return split["role"] == self.role and self.part in (None, split["part"])

    def __str__(self) -> str:
        return "/".join(word for word in self if word)


@dataclass(frozen=True)
class JobRecords:
    """A finished job: its description (`job.json`), how and at which step it ended, and the rows of its records."""

    description: dict[str, Any]
    status: str
    rows: list[dict[str, Any]]
    step: int | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.description["id"]

    def row(self, step: int) -> dict[str, Any]:
        """What was recorded at a step."""
        return next(row for row in self.rows if row["step"] == step)


class Variant(NamedTuple):
    """An algorithm as one row of a table knows it: its revision, and what of its own was set by hand (as JSON)."""

    algorithm: str
    revision: int | str
    by_hand: str

    @classmethod
    def of(cls, about: dict[str, Any]) -> "Variant":
        """The variant that a description belongs to."""
        by_hand = about.get("own_overrides")
        return cls(about["algorithm"], about["revision"], canonical(by_hand).decode() if by_hand else "")


class Cell(NamedTuple):
    """What a rule chooses for: a variant of an algorithm and a trial. Its draws compete."""

    variant: Variant
    trial: int


@dataclass(frozen=True)
class TaskRecords:
    """The finished jobs of one task: one row a job, one position a checkpoint.

    Rows are ordered by cell, draw and id and positions by step, whatever the order of arrival: that decides ties.

    Attributes:
        abouts: The jobs' descriptions.
        statuses: How they ended.
        splits: The task's splits, as in the descriptions.
        steps: Jobs × checkpoints; `NO_STEP` after the last record of a job that has fewer.
        values: Per metric jobs × checkpoints × splits; not a number where nothing was recorded.
    """

    abouts: Sequence[dict[str, Any]]
    statuses: Sequence[str]
    splits: Sequence[dict[str, Any]]
    steps: np.ndarray
    values: dict[str, np.ndarray]

    @classmethod
    def of(cls, jobs: Iterable[JobRecords], metrics: Iterable[str]) -> "TaskRecords":
        """The columns of jobs that share a task.

        Args:
            jobs: The jobs, in any order.
            metrics: The metrics to keep.
        """
        cells = Cells()
        ordered = sorted(jobs, key=lambda job: cells.order(job.description))
        splits = ordered[0].description["splits"]
        names = [split["name"] for split in splits]
        longest = max(len(job.rows) for job in ordered)
        steps = np.full((len(ordered), longest), NO_STEP)
        values = {metric: np.full((len(ordered), longest, len(names)), np.nan) for metric in metrics}
        for place, job in enumerate(ordered):
            rows = sorted(job.rows, key=lambda row: row["step"])
            if not rows:
                continue
            steps[place, : len(rows)] = [row["step"] for row in rows]
            for metric, array in values.items():
                array[place, : len(rows)] = [[_read(row["splits"], name, metric) for name in names] for row in rows]
        return cls([job.description for job in ordered], [job.status for job in ordered], splits, steps, values)

    def only(self, rows: Sequence[int]) -> "TaskRecords":
        """The same with some of its jobs, by their rows in order."""
        kept = list(rows)
        values = {metric: array[kept] for metric, array in self.values.items()}
        abouts, statuses = [self.abouts[row] for row in kept], [self.statuses[row] for row in kept]
        return TaskRecords(abouts, statuses, self.splits, self.steps[kept], values)

    def that(self, is_kept: Callable[[dict[str, Any]], bool]) -> "TaskRecords | None":
        """The same with the jobs of which something is true by their descriptions; None where it is of no job."""
        rows = [row for row, about in enumerate(self.abouts) if is_kept(about)]
        return self.only(rows) if rows else None

    @property
    def tested(self) -> tuple[str, ...]:
        """The domains that the task tests."""
        return tuple(self.abouts[0]["test_domains"])

    @cached_property
    def keys(self) -> list[tuple[Cell, int]]:
        """Per row its cell and draw."""
        with uncollected():
            return list(map(Cells(), self.abouts))

    @cached_property
    def rows(self) -> dict[tuple[Cell, int], int]:
        """The row of each cell's draw."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def cells(self) -> dict[Cell, slice]:
        """The rows of each cell."""
        found = {}
        start = 0
        for cell, members in groupby(cell for cell, _ in self.keys):
            stop = start + sum(1 for _ in members)
            found[cell] = slice(start, stop)
            start = stop
        return found

    @cached_property
    def is_last(self) -> np.ndarray:
        """Jobs × checkpoints: the last record of a job that came to its end; one that diverged has none."""
        counts = (self.steps != NO_STEP).sum(axis=1)
        ended = np.array([status == "done" for status in self.statuses])
        return ended[:, None] & (np.arange(self.steps.shape[1]) == counts[:, None] - 1)

    def ends_with(self, column: Column) -> np.ndarray:
        """Jobs × checkpoints: the last record of a job that came to its end, where it has the column.

        Lean jobs have only what the selections read that they were for.
        """
        return self.is_last & np.isfinite(self.mean(column))

    @cached_property
    def lean(self) -> list["TaskRecords"]:
        """The jobs that ended with lean records, by the selections that these are for."""
        found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, (about, status) in enumerate(zip(self.abouts, self.statuses, strict=True)):
            if status == "done" and about.get("lean"):
                found[tuple(about["lean"])].append(row)
        return [self.only(rows) for rows in found.values()]

    @cached_property
    def _reported(self) -> dict[str, list[int]]:
        """Per test domain, the places of the splits that are results: not those held out for the oracle."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, split in enumerate(self.splits):
            if split["role"] == "test" and split["part"] != "out":
                places[split["domain"]].append(place)
        return places

    def reported(self, domain: str = "") -> list[int]:
        """The places of the splits whose accuracy is the result of a test domain, or of all of them."""
        return self._reported[domain] if domain else [place for some in self._reported.values() for place in some]

    def has(self, column: Column) -> bool:
        """Whether the task has splits of the column."""
        return any(column.covers(split) for split in self.splits)

    def read(self, column: Column) -> np.ndarray:
        """A column: jobs × checkpoints × its splits, in the order of the dataset's domains."""
        places = [place for place, split in enumerate(self.splits) if column.covers(split)]
        if column.metric not in self.values:  # nobody recorded it
            return np.full((*self.steps.shape, len(places)), np.nan)
        return self.values[column.metric][:, :, places]

    def mean(self, column: Column) -> np.ndarray:
        """A column's mean over its splits: jobs × checkpoints; not a number where one is missing. Computed once."""
        if column not in self._means:
            self._means[column] = over_domains(self.read(column))
        return self._means[column]

    @cached_property
    def _means(self) -> dict[Column, np.ndarray]:
        return {}

    def split(self, name: str, metric: str) -> np.ndarray:
        """A metric of the split of that name: jobs × checkpoints."""
        return self.values[metric][:, :, [split["name"] for split in self.splits].index(name)]


class Cells:
    """Makes keys of descriptions; equal cells are one object, since there are few and descriptions are many."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Cell] = {}

    def __call__(self, about: dict[str, Any]) -> tuple[Cell, int]:
        """The cell and the draw of a job."""
        short = (about["algorithm"], about["revision"], about["trial"], str(about.get("own_overrides") or ""))
        if short not in self._known:
            self._known[short] = Cell(Variant.of(about), about["trial"])
        return self._known[short], about["draw"]

    def order(self, about: dict[str, Any]) -> tuple[Any, ...]:
        """Where a job stands among those of its task: by cell, draw and id."""
        (variant, trial), draw = self(about)
        return variant.algorithm, str(variant.revision), variant.by_hand, trial, draw, about["id"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Holds the garbage collector back, which would look through many new descriptions again and again for nothing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def over_domains(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis, to the bit as NumPy computes it of each row alone; of nothing, not a number."""
    count = values.shape[-1]
    if count == 0:
        return np.full(values.shape[:-1], np.nan)
    if count >= 8:  # from here on NumPy adds in another order
        return np.ascontiguousarray(values).mean(axis=-1)
    total = values[..., 0].copy()
    for place in range(1, count):  # much faster than a reduction over a short axis
        total += values[..., place]
    return total / count


def _read(splits: dict[str, dict[str, Any]], name: str, metric: str) -> float:
    numbers = splits.get(name)
    value = None if numbers is None else numbers.get(metric)
    return np.nan if value is None else value


def tasks_of(jobs: Iterable[JobRecords], metrics: Iterable[str]) -> list[TaskRecords]:
    """Finished jobs as columns, task by task.

    Args:
        jobs: The jobs, in any order.
        metrics: The metrics to keep.
    """
    found: dict[tuple[str, tuple[str, ...]], list[JobRecords]] = defaultdict(list)
    for job in jobs:
        found[job.description["setting"], tuple(job.description["test_domains"])].append(job)
    wanted = list(metrics)
    return [TaskRecords.of(found[key], wanted) for key in sorted(found)]
