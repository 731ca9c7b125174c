"""Numbers with their doubt: estimates over trials, comparisons of pairs, rank correlations."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from scipy import stats

StandardError = Literal["sample", "population"]
EXACT_PAIRS = 14  # all 2^14 signs are tried; beyond, as many random ones
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A number with its doubt: the mean over trials, its standard error, and how many trials.

    Attributes:
        standard_error: None of a single value.
        deviation: The standard deviation of the values, by the same divisor.
    """

    mean: float
    standard_error: float | None
    n: int
    deviation: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], se: StandardError = "sample") -> "Estimate | None":
        """The estimate from some values, or None if there are none.

        Args:
            values: One value a trial.
            se: The divisor of the variance: "sample" is n − 1; "population" is n, as DomainBed's printed tables have
                it, which for three trials gives 0.82 of the estimate.
        """
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], None, 1)
        deviation = statistics.stdev(values) if se == "sample" else statistics.pstdev(values)
        return cls(statistics.fmean(values), deviation / math.sqrt(len(values)), len(values), deviation)


@dataclass(frozen=True)
class Comparison:
    """How much better one algorithm is than another on the same trials and domains.

    Attributes:
        difference: The mean difference, in points.
        p: How often a mean difference at least as large comes from flipping signs at random.
        n: How many pairs.
    """

    difference: float
    p: float
    n: int

    def __str__(self) -> str:
        return f"{self.difference:+.1f} (p = {self.p:.2g}, n = {self.n})"


def paired_permutation_test(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Comparison | None:
    """Compares two algorithms pair by pair, two-sided: under no difference each pair may be swapped.

    Args:
        ours: One number a pair.
        theirs: The other number of the same pairs, in the same order.
        seed: Draws the signs where there are too many pairs to try all.

    Returns:
        The comparison, or None without a pair.
    """
    differences = np.subtract(ours, theirs)
    n = len(differences)
    if n == 0:
        return None
    if n <= EXACT_PAIRS:
        signs = np.array(list(product((1, -1), repeat=n)))
    else:
        drawn = np.random.default_rng(seed).choice((1, -1), size=(2**EXACT_PAIRS - 1, n))
        signs = np.vstack([np.ones((1, n), dtype=drawn.dtype), drawn])  # what was seen is one of the possibilities
    means = np.abs(signs @ differences) / n
    seen = abs(differences.mean())
    return Comparison(float(differences.mean()), float(np.mean(means >= seen * (1 - 1e-9))), n)


def spearman(first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    """The rank correlation of the names that both have, equal ranks averaged; None where it is not defined."""
    names = [name for name in first if name in second]
    pair = np.array([[board[name] for name in names] for board in (first, second)])
    if len(names) < 2 or (pair == pair[:, :1]).all(axis=1).any():
        return None
    ranks = stats.rankdata(pair, axis=1)
    return float(np.corrcoef(ranks)[0, 1])


def spearman_interval(first: np.ndarray, second: np.ndarray, seed: int = 0) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of a rank correlation.

    Where both give several units (a unit is one trial on one domain), units are resampled: how firm the two orders are.
    Else algorithms are resampled: how firm the correlation is, were there other algorithms.

    Args:
        first: Algorithms × units.
        second: The same algorithms × units of its own.
        seed: Draws the resamples.

    Returns:
        The interval, or None where the correlation is not defined in enough resamples.
    """
    random = np.random.default_rng(seed)
    if min(first.shape[1], second.shape[1]) > 1:
        drawn = [
            board[:, random.integers(board.shape[1], size=(RESAMPLES, board.shape[1]))].mean(axis=-1).T
            for board in (first, second)
        ]
    else:
        picks = random.integers(len(first), size=(RESAMPLES, len(first)))
        drawn = [board.mean(axis=1)[picks] for board in (first, second)]
    ranks = [stats.rankdata(values, axis=1) for values in drawn]
    centred = [values - values.mean(axis=1, keepdims=True) for values in ranks]
    scale = np.sqrt((centred[0] ** 2).sum(axis=1) * (centred[1] ** 2).sum(axis=1))
    defined = scale > 0
    if defined.sum() < RESAMPLES / 2:
        return None
    found = (centred[0] * centred[1]).sum(axis=1)[defined] / scale[defined]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """The rank of each name, 1 for the largest value; equal values share the better rank."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}
