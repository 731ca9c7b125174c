"""Where the authors of OoD-Bench place datasets on the plane of diversity and correlation shift.

The paper prints its plane as a figure only. These are the numbers in the tables of the authors' repository, which they
say differ somewhat from the figure.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Formula = Literal["paper", "later"]


@dataclass(frozen=True)
class Place:
    """Where a dataset lies.

    Attributes:
        dataset: Its name, that of a card if there is one.
        diversity: Diversity shift.
        diversity_spread: Standard deviation over trials.
        correlation: Correlation shift.
        correlation_spread: Standard deviation over trials.
        setting: Which domains were compared.
    """

    dataset: str
    diversity: float
    diversity_spread: float
    correlation: float
    correlation_spread: float
    setting: str


def plane(formula: Formula = "paper") -> list[Place]:
    """The published places, by the formula of the paper or by the authors' later one."""
    with (Path(__file__).parent / "shift-plane.csv").open(encoding="utf-8", newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if row["formula"] == formula]
    return [
        Place(
            row["dataset"],
            float(row["diversity"]),
            float(row["diversity_spread"]),
            float(row["correlation"]),
            float(row["correlation_spread"]),
            row["setting"],
        )
        for row in rows
    ]
