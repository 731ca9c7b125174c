"""Numbers with their doubt: estimates over trials, comparisons of pairs, rank correlations."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
import scipy  # its parts load when they are first used

StandardError = Literal["sample", "population"]
EXACT_PAIRS = 12  # all 2^12 signs are tried
DRAWN_SIGNS = 10_000  # where there are more pairs
FEWEST = 4  # algorithms that a rank correlation with an interval is of
TOO_FEW = "too few for an interval"  # what is said of fewer
DIVISORS: dict[StandardError, str] = {"sample": "", "population": " (population's, as DomainBed prints it)"}


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
        lost = 1 if se == "sample" else 0
        error = np.std(np.array(values) / np.sqrt(len(values)), ddof=lost)
        return cls(float(np.mean(values)), float(error), len(values), float(np.std(values, ddof=lost)))

    def times(self, factor: float) -> "Estimate":
        """The estimate in another unit."""
        error, deviation = (None if one is None else factor * one for one in (self.standard_error, self.deviation))
        return Estimate(factor * self.mean, error, self.n, deviation)


def usual_count(counts: Iterable[int]) -> int:
    """The n that most numbers have, the larger of equally many; 0 of none."""
    found = Counter(counts)
    return max(found, key=lambda n: (found[n], n)) if found else 0


@dataclass(frozen=True)
class Comparison:
    """How much better one algorithm is than another, in pairs of models of the same trial that are tested on the same.

    Attributes:
        difference: The mean difference, in points.
        p: How often a mean difference at least as large comes from flipping signs at random.
        n: How many pairs.
    """

    difference: float
    p: float
    n: int

    def __str__(self) -> str:
        return f"{self.difference:+z.1f} (p = {self.p:.2g}, n = {self.n})"

    def in_short(self, usual: int, chance: float) -> str:
        """The same in few words: p where it is below chance, n where it is not the usual."""
        words = [f"p = {self.p:.2g}"] if self.p < chance else []
        words += [f"n = {self.n}"] if self.n != usual else []
        return f"{self.difference:+z.1f}" + (f" ({', '.join(words)})" if words else "")


def paired_permutation_test(ours: Sequence[float], theirs: Sequence[float]) -> Comparison | None:
    """Compares two algorithms pair by pair, two-sided: under no difference each pair may be swapped.

    Args:
        ours: One number a pair.
        theirs: The other number of the same pairs, in the same order.

    Returns:
        The comparison, or None without a pair.
    """
    differences = np.subtract(ours, theirs)
    n = len(differences)
    if n == 0:
        return None
    means = np.abs(_signs(n) @ differences) / n
    seen = abs(differences.mean())
    rounding = 1e-9 * np.abs(differences).max()  # not of the mean: of differences that cancel out rounding is all of it
    return Comparison(float(differences.mean()), float(np.mean(means >= seen - rounding)), n)


def smallest_p(n: int) -> float:
    """The least that the test can give for n pairs: that of differences which are all the same.

    Only signs that are all alike give as large a mean then: two of all there are; of drawn ones those that happened to
    be drawn, and what was seen.
    """
    return float(np.mean(np.abs(_signs(n).sum(axis=1)) == n))


@lru_cache(maxsize=16)
def _signs(n: int) -> np.ndarray:
    """Signs of n pairs: all there are, or what was seen (no sign flipped) and many random ones."""
    if n <= EXACT_PAIRS:
        return 1.0 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    drawn = np.random.default_rng(0).choice((1.0, -1.0), size=(DRAWN_SIGNS, n))
    drawn[0] = 1
    return drawn


def spearman(first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    """The rank correlation of the names that both have, equal ranks averaged; None where it is not defined."""
    names = [name for name in first if name in second]
    pair = np.array([[board[name] for name in names] for board in (first, second)])
    if len(names) < 2 or (pair == pair[:, :1]).all(axis=1).any():
        return None
    ranks = scipy.stats.rankdata(pair, axis=1)
    return float(np.corrcoef(ranks)[0, 1])


def spearman_interval(correlation: float, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a rank correlation: how firm it is, were there other algorithms.

    Fisher's transformation with the standard error of Bonett and Wright (2000), √((1 + ρ²/2) / (n − 3)). Few algorithms
    are easily in the same order, and of that the transformation is infinite: it is taken half of the smallest step
    before 1. Algorithms are what is resampled in thought, and not their trials: noise in trials makes orders differ, so
    that correlations of resampled trials lie below the one that was found.

    Args:
        correlation: Spearman's.
        n: Of how many algorithms.

    Returns:
        The interval, which holds the correlation; None of fewer than four algorithms.
    """
    if n < FEWEST:
        return None
    nearest = 1 - 6 / (n**3 - n)
    half = NormalDist().inv_cdf(0.975) * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    middle = math.atanh(min(max(correlation, -nearest), nearest))
    return min(correlation, math.tanh(middle - half)), max(correlation, math.tanh(middle + half))


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """The rank of each name, 1 for the largest value; equal values share the better rank."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}
