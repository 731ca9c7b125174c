"""95 % intervals: of errors that few groups tell, and of numbers that cannot be negative (Feldman and Cousins').

Cutting a usual interval off at 0 makes it cover 0 too often, and empties it where noise made the estimate negative.
Accepting, for every true value, the estimates of the largest likelihood ratio covers the truth in 95 % of cases
wherever it lies (Feldman and Cousins, 1998).
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import stats

COVERAGE = 0.95
NORMAL = float(stats.norm.ppf((1 + COVERAGE) / 2))  # standard errors on each side of a usual interval
STEPS = 400


def student(units: int | None) -> float:
    """How many standard errors lie on each side of an interval, where the error is that of so few things.

    Args:
        units: Things that vary each by itself, of the smaller side; None where they are many.
    """
    return NORMAL if units is None else float(stats.t.ppf((1 + COVERAGE) / 2, max(1, units - 1)))


def groups_of(sides: Sequence[np.ndarray | None]) -> int | None:
    """Of how many groups the smaller side is, if all have groups: what is in one varies together."""
    known = [len(np.unique(of_side)) for of_side in sides if of_side is not None]
    return min(known) if len(known) == len(sides) else None


def few_groups(groups: np.ndarray) -> float:
    """By what the standard error of a mean over groups grows since the mean is their own: √(G / (G − 1))."""
    count = len(np.unique(groups))
    return float(np.sqrt(count / max(1, count - 1)))


def interval_from_zero(value: float, error: float) -> tuple[float, float]:
    """The 95 % interval of something that is at least 0.

    Args:
        value: Its estimate, which may be negative.
        error: The estimate's standard error.
    """
    if error == 0:
        return max(0.0, value), max(0.0, value)
    truth, lowest, highest = _accepted()
    scaled = value / error
    low = scaled - NORMAL if scaled >= highest[-1] else float(np.interp(scaled, highest, truth))
    high = scaled + NORMAL if scaled >= 0 else float(np.interp(scaled, lowest, truth))
    return error * low, error * high


@cache
def _accepted() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For true values up to where the boundary is felt no more: the lowest and highest accepted estimate.

    Both ends have the same likelihood ratio to the best allowed truth, and 95 % of estimates lie between them.
    """
    truth = np.linspace(0, NORMAL, STEPS + 1)[1:]
    below, above = truth, truth + 4.0
    for _ in range(60):
        highest = (below + above) / 2
        lowest = truth / 2 - (highest - truth) ** 2 / (2 * truth)
        enough = stats.norm.cdf(highest - truth) - stats.norm.cdf(lowest - truth) >= COVERAGE
        below, above = np.where(enough, below, highest), np.where(enough, highest, above)
    # Beside a truth of 0 every negative estimate is accepted.
    return np.r_[0, truth], np.r_[-np.inf, lowest], np.r_[stats.norm.ppf(COVERAGE), highest]
