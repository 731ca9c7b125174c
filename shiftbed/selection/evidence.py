"""What a selection rule is shown: the records of one task, restricted to the columns the rule declared."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from shiftbed.errors import ShiftbedError
from shiftbed.hashing import digest
from shiftbed.protocols import LeaveOut
from shiftbed.selection.records import NO_STEP, Cadence, Cell, Column, JobRecords, TaskRecords, over_domains, tasks_of

PAIR = "pair"  # a domain that is tested together with this one, by a job that is otherwise the same
ELSEWHERE = "elsewhere"  # a task of another dataset
VALIDATION = Column("validation", "out", "accuracy")


Key = tuple[Cell, int]  # a cell and a draw


class Companions:
    """The tasks of a sweep, found by what they share with a given one.

    Args:
        tasks: All tasks.
    """

    def __init__(self, tasks: Sequence[TaskRecords] = ()) -> None:
        self._pairs: dict[tuple[str, frozenset[str]], TaskRecords] = {}
        self._elsewhere: dict[str, dict[tuple[str, int, str], dict[Key, float]]] = {}
        self._singles: set[tuple[str, str]] = set()
        self._alike: dict[str, list[TaskRecords]] = defaultdict(list)
        for task in tasks:
            self._alike[_kind(task)].append(task)
            if not _leaves_out(task):
                continue
            if len(task.tested) == 1:
                self._singles.add((_question(task), task.tested[0]))
            if len(task.tested) == 2:
                self._pairs[_question(task), frozenset(task.tested)] = task

    def is_pair_of_singles(self, task: TaskRecords) -> bool:
        """Whether a task tests two domains one of which another task tests alone."""
        if len(task.tested) != 2 or not _leaves_out(task):
            return False
        return any((_question(task), domain) in self._singles for domain in task.tested)

    def pairs(self, task: TaskRecords) -> dict[str, TaskRecords | None]:
        """For each domain that a task trains on, the task that tests it beside this one's test domain."""
        if len(task.tested) != 1 or not _leaves_out(task):
            return {}
        domains = dict.fromkeys(split["domain"] for split in task.splits if split["domain"] not in task.tested)
        question = _question(task)
        return {domain: self._pairs.get((question, frozenset({*task.tested, domain}))) for domain in domains}

    def elsewhere(self, task: TaskRecords) -> dict[str, dict[Key, float]]:
        """Per other dataset with as many domains tested by the same recipe, how well each draw validates there.

        A recipe may take other steps on another dataset. Where a dataset was trained in several ways, the one with as
        many steps as here counts; if there is no one such, none does.
        """
        kind, here = _kind(task), task.abouts[0]["dataset"]
        if kind not in self._elsewhere:
            self._elsewhere[kind] = _validation_by_setting(self._alike[kind])
        found = self._elsewhere[kind]
        chosen = {}
        for dataset in sorted({name for name, _, _ in found} - {here}):
            ways = [way for way in found if way[0] == dataset]
            if len(ways) > 1:
                ways = [way for way in ways if way[1] == task.abouts[0]["recipe"]["steps"]]
            if len(ways) == 1:
                chosen[dataset] = found[ways[0]]
        return chosen


def _validation_by_setting(tasks: Sequence[TaskRecords]) -> dict[tuple[str, int, str], dict[Key, float]]:
    """Per dataset, number of steps and setting, how well each draw validates.

    That is the best training-domain validation, in the mean over the tasks; all must have the draw.
    """
    tables: dict[tuple[str, int, str], list[dict[Key, float]]] = defaultdict(list)
    for task in tasks:
        best = np.max(_valid(task.mean(VALIDATION)), axis=1, initial=-np.inf)
        about = task.abouts[0]
        way = about["dataset"], about["recipe"]["steps"], about["setting"]
        tables[way].append(dict(zip(task.keys, best.tolist(), strict=True)))
    means = {}
    for way, found in tables.items():
        every = set.intersection(*map(set, found))
        scores = {key: sum(table[key] for table in found) / len(found) for key in every}
        means[way] = {key: score for key, score in scores.items() if score > -np.inf}
    return means


def _leaves_out(task: TaskRecords) -> bool:
    return task.abouts[0]["task"]["kind"] == LeaveOut.kind


def cross_validating(jobs: Iterable[JobRecords]) -> set[str]:
    """The ids of jobs that test two domains which others test alone: they are there for domain cross-validation."""
    tasks = tasks_of(jobs, ())
    companions = Companions(tasks)
    return {about["id"] for task in tasks if companions.is_pair_of_singles(task) for about in task.abouts}


def _question(task: TaskRecords) -> str:
    """What tasks share that differ in their test domains alone."""
    about = task.abouts[0]
    recipe = {name: value for name, value in about["recipe"].items() if name not in ("summary", *Cadence._fields)}
    split_by = {name: value for name, value in about["task"].items() if name != "test"}
    return digest([about["dataset"], about["version"], recipe, about["overrides"], split_by])


def _kind(task: TaskRecords) -> str:
    """What tasks of several datasets must share for one to tell of another."""
    about = task.abouts[0]
    split_by = {name: value for name, value in about["task"].items() if name != "test"}
    return digest([about["recipe"]["name"], about["overrides"], split_by, len(task.tested)])


def is_own(column: Column) -> bool:
    """Whether a column is read from a task's own jobs, and not from others beside them."""
    return column.role not in (PAIR, ELSEWHERE)


class Evidence:
    """The records of one task, one row a job and one position a checkpoint, of which a rule sees what it declared.

    Args:
        task: The task's finished jobs.
        columns: The columns the rule may read.
        companions: Where the columns `PAIR` and `ELSEWHERE` are read.
    """

    def __init__(self, task: TaskRecords, columns: frozenset[Column], companions: Companions | None = None) -> None:
        self._task = task
        self._columns = columns
        self._companions = companions or Companions()

    @property
    def last(self) -> np.ndarray:
        """Jobs × checkpoints: the last record of each job that came to its end."""
        return self._task.is_last

    def looks(self, column: Column) -> np.ndarray:
        """Per job, how many of its cell came to their end with a column up to it, draw by draw, and with it."""
        ended = (self.last & np.isfinite(self.mean(column))).any(axis=1).astype(int)
        counts = np.cumsum(ended)
        for rows in self._task.cells.values():
            counts[rows] -= counts[rows.start] - ended[rows.start]
        return counts

    @property
    def algorithms(self) -> np.ndarray:
        """Per job the name of its algorithm."""
        return np.array([about["algorithm"] for about in self._task.abouts])

    def mean(self, column: Column) -> np.ndarray:
        """The mean of a column over its domains: jobs × checkpoints, not a number where one of them is missing."""
        if column in self._columns and is_own(column):
            return self._task.mean(column)
        return over_domains(self._read(column))

    def worst(self, column: Column) -> np.ndarray:
        """The least of a column's domains."""
        values = self._read(column)
        return values.min(axis=-1) if values.shape[-1] else over_domains(values)

    def pooled(self, column: Column) -> np.ndarray:
        """The mean over the images of all domains: each domain weighs what it has."""
        counts = self._read(column._replace(metric="count"))
        return np.sum(self._read(column) * counts, axis=-1) / np.sum(counts, axis=-1)

    def lacking(self) -> list[Column]:
        """The declared columns that these jobs, or those beside them, do not have at all."""
        return [column for column in sorted(self._columns, key=str) if np.isnan(self._read(column)).all()]

    def _read(self, column: Column) -> np.ndarray:
        """A declared column: jobs × checkpoints × domains.

        Raises:
            ShiftbedError: The rule did not declare the column.
        """
        if column not in self._columns:
            raise ShiftbedError(f"A selection rule read {column}, which it does not declare.")
        if column.role == PAIR:
            return self._paired
        if column.role == ELSEWHERE:
            return self._elsewhere
        return self._task.read(column)

    @cached_property
    def _paired(self) -> np.ndarray:
        """Per training domain, its accuracy at the same draw and step in the job that tests it too."""
        pairs = self._companions.pairs(self._task)
        columns = [_aligned(self._task, pair, f"{domain}/in") for domain, pair in pairs.items()]
        return np.stack(columns, axis=-1) if columns else np.full((*self._task.steps.shape, 0), np.nan)

    @cached_property
    def _elsewhere(self) -> np.ndarray:
        """Per other dataset, the same draw's best training-domain validation, in the mean over its tasks."""
        found = [
            [scores.get(key, np.nan) for key in self._task.keys]
            for scores in self._companions.elsewhere(self._task).values()
        ]
        scores = np.array(found).T if found else np.full((len(self._task.abouts), 0), np.nan)
        return np.repeat(scores[:, None], self._task.steps.shape[1], axis=1)

    def jobs_beside(self, row: int) -> tuple[str, ...]:
        """The ids of the other jobs whose records a declared column reads for a job, by its row."""
        if not any(column.role == PAIR for column in self._columns):
            return ()
        key = self._task.keys[row]
        pairs = self._companions.pairs(self._task).values()
        return tuple(pair.abouts[pair.rows[key]]["id"] for pair in pairs if pair is not None and key in pair.rows)


def _valid(scores: np.ndarray) -> np.ndarray:
    """Scores with those that are not a number below all others."""
    return np.where(np.isnan(scores), -np.inf, scores)


def _aligned(task: TaskRecords, pair: TaskRecords | None, split: str) -> np.ndarray:
    """The accuracy of a split of another task at the draw and step of each record of this one."""
    found = np.full(task.steps.shape, np.nan)
    rows = [None if pair is None else pair.rows.get(key) for key in task.keys]
    here = [place for place, row in enumerate(rows) if row is not None]
    there = [row for row in rows if row is not None]
    if pair is None or not here:
        return found
    steps, others = task.steps[here], pair.steps[there]
    accuracy = pair.split(split, "accuracy")[there]
    if steps.shape == others.shape and np.array_equal(steps, others):
        found[here] = accuracy
        return found
    same = (steps[:, :, None] == others[:, None, :]) & (steps != NO_STEP)[:, :, None]
    first = same.argmax(axis=-1)
    found[here] = np.where(same.any(axis=-1), np.take_along_axis(accuracy, first, axis=1), np.nan)
    return found
