"""What a selection rule is shown: the records of one cell, restricted to the columns the rule declared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shiftbed.errors import ShiftbedError


class Column(NamedTuple):
    """A kind of number in the records: a metric of the splits with a role and a part."""

    role: str
    part: str
    metric: str


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

    def read(self, row: dict[str, Any], column: Column) -> list[float]:
        """The column's values in a row, one per split, in the order of the dataset's domains."""
        return [
            row["splits"][split["name"]][column.metric]
            for split in self.description["splits"]
            if (split["role"], split["part"]) == (column.role, column.part)
        ]


class Choice(NamedTuple):
    """What a rule picked: a job, the step of one of its records, and the score it won with."""

    job: JobRecords
    step: int
    score: float


class Evidence:
    """The records of one cell (all draws of an algorithm for one test), of which a rule sees what it declared.

    Args:
        jobs: The cell's finished jobs.
        columns: The columns the rule may read.
    """

    def __init__(self, jobs: Sequence[JobRecords], columns: frozenset[Column]) -> None:
        # Ordered by draw whatever the order of arrival: a tie between draws goes to the last, as in DomainBed.
        self._jobs = sorted(jobs, key=lambda job: (job.description["draw"], job.id))
        self._columns = columns

    def mean(self, job: JobRecords, row: dict[str, Any], column: Column) -> float:
        """The mean of a column over its splits.

        Raises:
            ShiftbedError: The rule did not declare the column.
        """
        if column not in self._columns:
            raise ShiftbedError(f"A selection rule read {'/'.join(column)}, which it does not declare.")
        values = job.read(row, column)
        return sum(values) / len(values)

    def best(self, score: Callable[[JobRecords, dict[str, Any]], float], last_only: bool = False) -> Choice | None:
        """The record with the highest score: the earliest of a job's equals, the last of equal jobs.

        Args:
            score: Scores one row of one job.
            last_only: Look at the last step only; a job that did not get there does not compete.

        Returns:
            The choice, or None if no job competes.
        """
        winner: Choice | None = None
        for job in self._jobs:
            rows = [row for row in job.rows if not last_only or row["step"] == job.description["recipe"]["steps"]]
            scored = [Choice(job, row["step"], score(job, row)) for row in rows]
            if not scored:
                continue
            best = max(scored, key=lambda choice: choice.score)  # the first of equals
            if winner is None or best.score >= winner.score:
                winner = best
        return winner
