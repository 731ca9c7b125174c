"""Measures of shift by name: what each is, what it needs, and how it comes by its doubt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shiftbed.errors import DataError
from shiftbed.registry import Registry
from shiftbed.shift.estimates import WIDE, ShiftEstimate
from shiftbed.shift.samples import Sample, refuse_incomparable

GROUPS = 8
NO_SHIFT = "no shift"  # among the details: what the estimator gives where there is none
WIDTH = 1.96  # standard errors on each side of a 95 % interval
TOO_WIDE = 0.2  # an interval from which nothing follows, as a share of what a measure can be


@dataclass(frozen=True)
class Settings:
    """How measures are taken.

    Attributes:
        seed: Decides which examples are drawn and held out, and the weights that networks start from.
        most: Examples drawn from each side where the work grows with their square.
        network: The network that learns from images, from random weights; by default, and for feature vectors, a
            perceptron.
        steps: Updates of every network that is trained.
        batch_size: Examples of each side in an update.
        optimizer: `adam`, or `sgd` with momentum 0.9; the rate falls along a cosine.
        rate: The learning rate.
        outputs: Between how many outputs the two networks of covariate shift choose. What they are to tell is a set and
            the rest, whatever the labels are: two reach the total variation, and more are learned less well.
        device: Where networks are trained and kernels computed.
        how: Of diversity and correlation shift, how they are estimated: names and values of fields of `How`.
    """

    seed: int = 0
    most: int = 1000
    network: str | None = None
    steps: int = 500
    batch_size: int = 64
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float = 2e-3
    outputs: int = 2
    device: str = "cpu"
    how: tuple[tuple[str, Any], ...] = ()


Compute = Callable[[Sample, Sample, Settings], list[ShiftEstimate]]


@dataclass(frozen=True)
class Measure:
    """A registered measure.

    Attributes:
        summary: What it is, in a few words.
        gives: The names of its estimates.
        needs: What it needs beyond two samples: `labels`, of both sides.
        highest: The largest possible value, None if there is none; the smallest is 0.
        compute: Takes the measure between two samples.
    """

    summary: str
    gives: tuple[str, ...]
    needs: tuple[str, ...]
    highest: float | None
    compute: Compute

    def missing(self, p: Sample, q: Sample) -> str | None:
        """What the samples lack for this measure, in words, or None."""
        unlabelled = [f"'{one.name}'" for one in (p, q) if one.labels is None]
        return f"needs the labels of {' and '.join(unlabelled)}" if "labels" in self.needs and unlabelled else None


MEASURES: Registry[Measure] = Registry("measure", "shiftbed.shift")


def measure(
    name: str, summary: str, gives: tuple[str, ...] = (), needs: tuple[str, ...] = (), highest: float | None = None
) -> Callable[[Compute], Compute]:
    """Registers a function as a measure; one that does not say what it gives gives one estimate, of its own name."""

    def register(compute: Compute) -> Compute:
        MEASURES.add(name, Measure(summary, gives or (name,), needs, highest, compute))
        return compute

    return register


def take(name: str, p: Sample, q: Sample, settings: Settings | None = None) -> list[ShiftEstimate]:
    """Takes one measure between two samples.

    Raises:
        UnknownNameError: There is no such measure.
        DataError: The samples differ in shape, or lack what the measure needs.
    """
    chosen = MEASURES[name]
    refuse_incomparable(p, q)
    missing = chosen.missing(p, q)
    if missing:
        raise DataError(f"The measure {name} {missing}; give them, or take a measure that needs none.")
    return chosen.compute(p, q, settings or Settings())


def estimate(
    name: str,
    raw: float,
    error: float | None,
    count: int,
    *,
    no_shift: float = 0.0,
    highest: float | None = None,
    notes: tuple[str, ...] = (),
    **details: float,
) -> ShiftEstimate:
    """An estimate within its bounds; `raw` in its details is what came out, which noise can put beyond them."""
    low, middle, high = np.clip([raw - WIDTH * (error or 0), raw, raw + WIDTH * (error or 0)], 0, highest)
    interval = None if error is None else (float(low), float(high))
    if highest is not None and high - low > TOO_WIDE * highest:
        notes = (*notes, f"the interval is {WIDE}")
    return ShiftEstimate(
        name, float(middle), error, interval, count, notes, {"raw": float(raw), NO_SHIFT: no_shift, **details}
    )


def is_seen(one: ShiftEstimate) -> bool:
    """Whether there is a shift beyond chance: the whole interval lies above what no shift gives.

    An estimator without bias gives less than 0 at no shift about half of the time. Intervals end at 0, which is
    above that and yet no sign of a shift.
    """
    return one.interval is not None and one.interval[0] > max(0.0, one.details.get(NO_SHIFT, 0.0))


def share_error(share: float, count: int) -> float:
    """The standard error of a share of n examples; all or none of them leave one in doubt."""
    return float(np.sqrt(max(share * (1 - share), 1 / count) / count))


Statistic = Callable[[np.ndarray, np.ndarray], float]
"""A number of two samples, given as their rows in the pool of both."""


def doubt(statistic: Statistic, n: int, m: int, seed: int, times: int = 4) -> tuple[float, float, float]:
    """A statistic of two samples with its standard error, and what it gives where there is no shift.

    The error is the jackknife's: how the value varies when one of a few groups of both samples is left out. No shift is
    the mean over samples of the same sizes that are drawn from the pool without regard to the side.

    Args:
        statistic: Computed of rows of the pool.
        n: The first so many rows of the pool are of the one side.
        m: The rest is of the other.
        seed: Decides how the pool is mixed.
        times: How often.

    Returns:
        The value, its standard error, the value at no shift.
    """
    first, second = np.arange(n), n + np.arange(m)
    groups = [np.arange(count) * GROUPS // count for count in (n, m)]
    left_out = [statistic(first[groups[0] != group], second[groups[1] != group]) for group in range(GROUPS)]
    random = np.random.default_rng(seed)
    mixed = [np.split(random.permutation(n + m), [n]) for _ in range(times)]
    null = np.mean([statistic(one, other) for one, other in mixed])
    return statistic(first, second), float(np.sqrt((GROUPS - 1) * np.var(left_out))), float(null)
