"""What a selection rule is shown: the records of one cell, restricted to the columns the rule declared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shiftbed.errors import ShiftbedError


class Column(NamedTuple):
    """A kind of number in the records: a metric of the splits with a role, and a part if one is named."""

    role: str
    part: str | None
    metric: str

    def covers(self, split: dict[str, Any]) -> bool:
        """Whether a split of a job's description belongs to the column."""
        return split["role"] == self.role and self.part in (None, split["part"])


@dataclass(frozen=True)
class JobRecords:
    """A finished job: its description (`job.json`), how it ended, and the rows of its records."""

    description: dict[str, Any]
    status: str
    rows: list[dict[str, Any]]

    @property
    def id(self) -> str:
        """The job's id."""
        return self.description["id"]

    def has(self, column: Column) -> bool:
        """Whether the job's task has splits of the column."""
        return any(column.covers(split) for split in self.description["splits"])

    def read(self, row: dict[str, Any], column: Column) -> list[float]:
        """The column's values in a row, one per split, in the order of the dataset's domains."""
        return [
            row["splits"][split["name"]][column.metric] for split in self.description["splits"] if column.covers(split)
        ]


class Choice(NamedTuple):
    """What a rule picked: a job by its id, the step of one of its records, and the score it won with."""

    job_id: str
    step: int
    score: float


class Reading:
    """One record, of which a rule sees the columns it declared."""

    def __init__(self, values: dict[Column, list[float]]) -> None:
        self._values = values

    def mean(self, column: Column) -> float:
        """The mean of a column over its splits.

        Raises:
            ShiftbedError: The rule did not declare the column.
        """
        if column not in self._values:
            named = "/".join(str(word) for word in column)
            raise ShiftbedError(f"A selection rule read {named}, which it does not declare.")
        return sum(self._values[column]) / len(self._values[column])


class Evidence:
    """The records of one cell (all draws of an algorithm for one test), of which a rule sees what it declared.

    Args:
        jobs: The cell's finished jobs.
        columns: The columns the rule may read.
    """

    def __init__(self, jobs: Sequence[JobRecords], columns: frozenset[Column]) -> None:
        # Ordered by draw whatever the order of arrival: a tie between draws goes to the last, as in DomainBed.
        able = [job for job in jobs if all(map(job.has, columns))]
        ordered = sorted(able, key=lambda job: (job.description["draw"], job.id))
        self._readings = {
            job.id: {row["step"]: Reading({name: job.read(row, name) for name in columns}) for row in job.rows}
            for job in ordered
        }
        self._last = {job.id: job.description["recipe"]["steps"] for job in ordered}

    def best(self, score: Callable[[Reading], float], last_only: bool = False) -> Choice | None:
        """The record with the highest score: the earliest of a job's equals, the last of equal jobs.

        Args:
            score: Scores one record.
            last_only: Look at the last step only; a job that did not get there does not compete.

        Returns:
            The choice, or None if no job competes.
        """
        winner: Choice | None = None
        for job_id, readings in self._readings.items():
            steps = [step for step in readings if not last_only or step == self._last[job_id]]
            scored = [Choice(job_id, step, score(readings[step])) for step in steps]
            if not scored:
                continue
            best = max(scored, key=lambda choice: choice.score)  # the first of equals
            if winner is None or best.score >= winner.score:
                winner = best
        return winner
