"""What a cell of a table is: the record that was chosen, and the columns that a job fills."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shiftbed.protocols import Flexible
from shiftbed.selection import Choice, TaskRecords

Tested = tuple[str, ...]  # the domains that are tested together
Column = tuple[Tested, str]  # one of them, or OVERALL
OVERALL = ""  # in place of a domain, where accuracy by domain is not defined
AVERAGE: Column = ((), "")  # the column that averages all others


@dataclass(frozen=True)
class Chosen:
    """The record that a selection picked for one cell."""

    task: TaskRecords
    choice: Choice

    @property
    def about(self) -> dict[str, Any]:
        """The chosen job's description."""
        return self.task.abouts[self.choice.row]

    @property
    def is_reported(self) -> bool:
        """Whether the record has the accuracy of every test domain."""
        values = self.task.values["accuracy"][self.choice.row, self.choice.position, self.task.reported()]
        return not np.isnan(values).any()

    def accuracy(self, domain: str, position: int | None = None) -> float:
        """What is reported, in percent; the arguments are those of `share`."""
        return 100 * self.share(domain, position)

    def share(self, domain: str, position: int | None = None) -> float:
        """The share of right predictions on a test domain, or over the images of all of them.

        Args:
            domain: The domain, or `OVERALL`.
            position: Another record of the job than the chosen one.
        """
        position = self.choice.position if position is None else position
        places = self.task.reported(domain)
        accuracy = self.task.values["accuracy"][self.choice.row, position, places]
        if len(places) == 1:
            return float(accuracy[0])
        counts = self.task.values["count"][self.choice.row, position, places]
        return float(accuracy @ counts / counts.sum())

    def counts(self) -> dict[str, float]:
        """How many images of each test domain are reported."""
        counts = self.task.values["count"][self.choice.row, self.choice.position]
        return {name: float(counts[self.task.reported(name)].sum()) for name in self.task.tested}


def reported_columns(about: dict[str, Any]) -> list[Column]:
    """The columns a job fills: one for each domain it tests, or one overall."""
    tested = tuple(about["test_domains"])
    if about["task"]["kind"] == Flexible.kind:
        return [(tested, OVERALL)]
    return [(tested, domain) for domain in tested]
