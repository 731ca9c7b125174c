"""Numbers with their doubt: estimates over trials, comparisons of pairs, rank correlations."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy  # its parts load when they are first used

StandardError = Literal["sample", "population"]
EXACT_PAIRS = 12  # all 2^12 signs are tried
DRAWN_SIGNS = 10_000  # where there are more pairs
RESAMPLES = 2000
FEWEST = 4  # algorithms that are resampled for the interval of a rank correlation
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
        return f"{self.difference:+z.1f} (p = {self.p:.2g}, n = {self.n})"

    def in_short(self, usual: int, chance: float) -> str:
        """The same in few words: p where it is below chance, n where it is not the usual."""
        words = [f"p = {self.p:.2g}"] if self.p < chance else []
        words += [f"n = {self.n}"] if self.n != usual else []
        return f"{self.difference:+z.1f}" + (f" ({', '.join(words)})" if words else "")


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
    means = np.abs(_signs(n, seed) @ differences) / n
    seen = abs(differences.mean())
    return Comparison(float(differences.mean()), float(np.mean(means >= seen * (1 - 1e-9))), n)


def smallest_p(n: int, seed: int = 0) -> float:
    """The least that the test can give for n pairs: that of differences which are all the same.

    Only signs that are all alike give as large a mean then: two of all there are; of drawn ones those that happened to
    be drawn, and what was seen.
    """
    return float(np.mean(np.abs(_signs(n, seed).sum(axis=1)) == n))


@lru_cache(maxsize=16)
def _signs(n: int, seed: int) -> np.ndarray:
    """Signs of n pairs: all there are, or what was seen (no sign flipped) and many random ones."""
    if n <= EXACT_PAIRS:
        return 1.0 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    drawn = np.random.default_rng(seed).choice((1.0, -1.0), size=(DRAWN_SIGNS, n))
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


def spearman_interval(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], seed: int = 0
) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the rank correlation of two leaderboards, each a mean over datasets.

    Where both have several units (a unit is one trial on one domain), units are resampled within their dataset: how
    firm the two orders are. Else algorithms are resampled: how firm the correlation is, were there other algorithms.

    Args:
        first: Per dataset, algorithms × units.
        second: The same algorithms, on datasets and units of its own.
        seed: Draws the resamples.

    Returns:
        The interval, or None where the correlation is not defined in at least half of the resamples, or where fewer
        than four algorithms would be resampled: of two the correlation is always the same, and would seem certain.
    """
    random = np.random.default_rng(seed)
    if all(any(units.shape[1] > 1 for units in board) for board in (first, second)):
        drawn = [np.mean([_resampled(units, random) for units in board], axis=0) for board in (first, second)]
    elif len(first[0]) < FEWEST:
        return None
    else:
        picks = random.integers(len(first[0]), size=(RESAMPLES, len(first[0])))
        drawn = [np.mean([units.mean(axis=1) for units in board], axis=0)[picks] for board in (first, second)]
    ranked = [scipy.stats.rankdata(values, axis=1) for values in drawn]
    one, other = (values - values.mean(axis=1, keepdims=True) for values in ranked)
    scale = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    defined = scale > 0
    if defined.mean() < 0.5:
        return None
    found = (one * other).sum(axis=1)[defined] / scale[defined]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _resampled(units: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Means over units drawn with replacement, the same for all algorithms: resamples × algorithms."""
    count = units.shape[1]
    weights = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    return weights @ units.T


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """The rank of each name, 1 for the largest value; equal values share the better rank."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}
