"""Oracles on a budget: selections that look at the test domain through noise, or as rarely as they can.

The plain rule `oracle` is on a budget, too: it counts its questions.

A question is a job and its last step. Noise is drawn from the job's id, so the same question always has the same
answer, and asking again costs nothing. That guards against chance, not against a person who subtracts the noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import harmonic_mean
from typing import NamedTuple

import numpy as np

from shiftbed.errors import ShiftbedError
from shiftbed.hashing import seed_hash
from shiftbed.selection.evidence import Companions, Evidence
from shiftbed.selection.records import Cell, Column, TaskRecords
from shiftbed.selection.rules import ORACLE_BUDGET, SELECTIONS, TEST_HELD_OUT, Choice, Selection

SCALE = 0.01  # of the Laplace noise, in accuracy
WIDTH = 3.0  # of Thresholdout's threshold, in standard deviations of its noise
HELD_OUT_COUNT = TEST_HELD_OUT._replace(metric="count")
HALF = TEST_HELD_OUT._replace(metric="half_accuracy")


class Held(NamedTuple):
    """What is known of one question: how a job does on held-out images of its test domains, in the mean over these.

    Attributes:
        job: The job's id.
        accuracy: On all of them.
        free: On every other one; not a number if it was not recorded.
        guarded: On the rest.
        counts: Images of each domain.
    """

    job: str
    accuracy: float
    free: float
    guarded: float
    counts: tuple[int, ...]


class Answer(NamedTuple):
    """What an oracle says, and whether that cost a query of the budget; None is no answer."""

    value: float | None
    spent: bool


Answers = Callable[[Sequence[Held]], list[Answer]]


@dataclass(frozen=True)
class BudgetedOracle(Selection):
    """An oracle that answers the questions of a cell, draw by draw, through a mechanism.

    Attributes:
        answers: The mechanism.
    """

    answers: Answers = lambda asked: []

    def choices(self, task: TaskRecords, companions: Companions | None = None) -> dict[Cell, Choice]:
        """What it picks for every cell: the draw with the best answer."""
        scores = np.full(task.steps.shape, np.nan)
        for rows, answers in self._answered(task):
            for row, answer in zip(rows, answers, strict=True):
                if answer.value is not None:
                    scores[row, task.is_last[row]] = answer.value
        plain = Selection(self.name, lambda evidence: scores, self.columns, True, (), self.summary)
        return plain.choices(task, companions)

    def spent(self, task: TaskRecords) -> list[int]:
        """The rows of a task whose answers cost a query."""
        pairs = [pair for rows, answers in self._answered(task) for pair in zip(rows, answers, strict=True)]
        return [row for row, answer in pairs if answer.spent]

    def _answered(self, task: TaskRecords) -> list[tuple[list[int], list[Answer]]]:
        """Per cell, the rows that came to their end, and what the mechanism says of them."""
        if not task.has(TEST_HELD_OUT):
            return []
        held, found = _held(task), []
        for where in task.cells.values():
            rows = [row for row in range(where.start, where.stop) if row in held]
            found.append((rows, self.answers([held[row] for row in rows])))
        return found


def _held(task: TaskRecords) -> dict[int, Held]:
    """What is known of the last record of every job that came to its end and recorded it, by its row."""
    rows, last = np.nonzero(task.ends_with(TEST_HELD_OUT))
    accuracy, half, counts = (task.read(column)[rows, last] for column in (TEST_HELD_OUT, HALF, HELD_OUT_COUNT))
    halves = (counts + 1) // 2  # the free half has the odd image
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = (counts * accuracy - halves * half) / (counts - halves)
    means = [part.mean(axis=1).tolist() for part in (accuracy, half, rest)]
    sizes = [tuple(size) for size in np.nan_to_num(counts).astype(int).tolist()]
    places = rows.tolist()
    ids = [task.abouts[row]["id"] for row in places]
    return dict(zip(places, map(Held, ids, *means, sizes), strict=True))


def _random(*identity: str) -> np.random.Generator:
    return np.random.default_rng(seed_hash(*identity))


def through_noise(asked: Sequence[Held]) -> list[Answer]:
    """The accuracy with Laplace noise to the first questions of a budget, nothing to the others."""
    noise = [float(_random(one.job, "laplace").laplace(0, SCALE)) for one in asked]
    answers = [Answer(one.accuracy + some, True) for one, some in zip(asked, noise, strict=True)]
    return [*answers[:ORACLE_BUDGET], *[Answer(None, False)] * len(answers[ORACLE_BUDGET:])]


def privacy(counts: Sequence[int]) -> float:
    """The epsilon of one noisy answer: one image more or less moves a mean over domains by at most so many scales."""
    return max(1 / (len(counts) * count * SCALE) for count in counts)


class Thresholdout:
    """Dwork et al.'s reusable holdout, with Gaussian noise: it answers from a free sample while a guarded one agrees.

    Only where the two differ by more than a noisy threshold does the guarded sample answer, through noise, and the
    budget shrinks. Both samples must come from one distribution.

    Args:
        threshold: How far apart the two may be.
        deviation: Of the noise.
        budget: How many answers the guarded sample gives.
        random: Draws the thresholds.
    """

    def __init__(self, threshold: float, deviation: float, budget: int, random: np.random.Generator) -> None:
        self.threshold, self.deviation, self.budget = threshold, deviation, budget
        self._bound = threshold + random.normal(0, deviation)

    def __call__(self, free: float, guarded: float, random: np.random.Generator) -> Answer:
        """The answer to one question, given what both samples say of it."""
        if self.budget < 1:
            return Answer(None, False)
        comparison, noise, moved = random.normal(0, self.deviation, size=3)
        if abs(guarded - free) <= self._bound + comparison:
            return Answer(free, False)
        self.budget -= 1
        self._bound = self.threshold + moved
        return Answer(guarded + noise, True)


def between_halves(asked: Sequence[Held]) -> list[Answer]:
    """Thresholdout between the two halves of the test domain's held-out images; without halves, no answers."""
    if not asked or not all(math.isfinite(one.free + one.guarded) for one in asked):
        return [Answer(None, False) for _ in asked]
    guarded = [count // 2 for count in asked[0].counts]
    images = len(guarded) * harmonic_mean(guarded)  # that vary as much as a mean in which each domain weighs the same
    deviation = 1 / math.sqrt(images)
    mechanism = Thresholdout(WIDTH * deviation, deviation, ORACLE_BUDGET, _random(asked[0].job, "threshold"))
    return [mechanism(one.free, one.guarded, _random(one.job, "thresholdout")) for one in asked]


def _plain(evidence: Evidence) -> np.ndarray:
    """What it would score without its mechanism, which sees more than evidence: whose records they are."""
    return evidence.mean(TEST_HELD_OUT)


def thresholdout_oracle(name: str, reference: Column) -> BudgetedOracle:
    """An oracle through Thresholdout, whose free sample is a column of the records.

    Raises:
        ShiftbedError: The free sample is not of the test domain.
    """
    if reference.role != "test":
        raise ShiftbedError(
            f"Thresholdout cannot compare {reference} with the test domain: it expects two samples of one "
            "distribution, and under domain shift every question would cross its threshold and spend the budget; use "
            "oracle-thresholdout, which compares two halves of the test domain."
        )
    columns = frozenset({TEST_HELD_OUT, HELD_OUT_COUNT, reference})
    summary = (
        "The draw whose last step is best on half of the test domain's held-out images; the other half answers, "
        f"through noise, only where they disagree, at most {ORACLE_BUDGET} times a cell (Thresholdout)."
    )
    return BudgetedOracle(name, _plain, columns, True, (), summary, at_end=True, answers=between_halves)


def laplace_oracle(name: str) -> BudgetedOracle:
    """An oracle through Laplace noise."""
    columns = frozenset({TEST_HELD_OUT, HELD_OUT_COUNT})
    summary = (
        f"The draw whose last step is best on held-out images of the test domain, among {ORACLE_BUDGET} at most, with "
        f"Laplace noise of scale {SCALE:g} on every accuracy; `shiftbed audit` prints its epsilon."
    )
    return BudgetedOracle(name, _plain, columns, True, (), summary, at_end=True, answers=through_noise)


for _rule in (laplace_oracle("oracle-laplace"), thresholdout_oracle("oracle-thresholdout", HALF)):
    SELECTIONS.add(_rule.name, _rule)
