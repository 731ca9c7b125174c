"""Measures of shift by name: what each is, what it needs, and how it comes by its doubt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from shiftbed.errors import DataError
from shiftbed.registry import Registry
from shiftbed.shift.estimates import WIDE, ShiftEstimate
from shiftbed.shift.intervals import few_groups, groups_of, student
from shiftbed.shift.samples import Sample, refuse_incomparable
from shiftbed.training.device import torch_defaults

GROUPS = 8
NO_SHIFT = "no shift"  # among the details: what the estimator gives where there is none
ONE_GROUP = "the examples of a side are of too few groups to tell how much this varies"
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
        needs: What it needs beyond two samples: `labels`, of both sides.
        highest: The largest possible value, None if there is none; the smallest is 0.
        compute: Takes the measure between two samples.
    """

    summary: str
    needs: tuple[str, ...]
    highest: float | None
    compute: Compute

    def missing(self, p: Sample, q: Sample) -> str | None:
        """What the samples lack for this measure, in words, or None."""
        unlabelled = [f"'{one.name}'" for one in (p, q) if one.labels is None]
        return f"needs the labels of {' and '.join(unlabelled)}" if "labels" in self.needs and unlabelled else None


MEASURES: Registry[Measure] = Registry("measure", "shiftbed.shift")


def measure(
    name: str, summary: str, needs: tuple[str, ...] = (), highest: float | None = None
) -> Callable[[Compute], Compute]:
    """Registers a function as a measure."""

    def register(compute: Compute) -> Compute:
        MEASURES.add(name, Measure(summary, needs, highest, compute))
        return compute

    return register


@torch_defaults()
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
    units: int | None = None,
    notes: tuple[str, ...] = (),
    **details: float,
) -> ShiftEstimate:
    """An estimate within its bounds; `raw` in its details is what came out, which noise can put beyond them.

    `units` is how many parts or groups the error is of, where they are few.
    """
    reach = student(units) * (error or 0)
    low, middle, high = np.clip([raw - reach, raw, raw + reach], 0, highest)
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


def error_of_means(terms: Sequence[np.ndarray], groups: Sequence[np.ndarray | None]) -> float:
    """The standard error of a sum of shares, each of the held-out examples of a side.

    What is in one group varies together, if all sides have groups. Where all examples of a side agree, one of them is
    still in doubt; if they have groups, one of these.

    Args:
        terms: Of each side, 1 where an example is counted; −1 of a share that is subtracted.
        groups: Of each side.
    """
    pulls = np.concatenate([(of_side - of_side.mean()) / len(of_side) for of_side in terms])
    units = [len(of_side) for of_side in terms]
    known = [of_side for of_side in groups if of_side is not None]
    if len(known) == len(groups):
        pulls *= np.repeat([few_groups(of_side) for of_side in known], units)
        pulls = np.bincount(np.unique(np.concatenate(known), return_inverse=True)[1], pulls)
        units = [len(np.unique(of_side)) for of_side in known]
    sides = zip(terms, units, strict=True)
    in_doubt = sum(1 / count**2 for of_side, count in sides if count == 1 or (of_side == of_side[0]).all())
    return float(np.sqrt(np.sum(pulls**2) + in_doubt))


# --- doubt by leaving out and by mixing ------------------------------------------------------------------------------


Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Numbers of two samples, one for each column of N×r: which rows of the pool are of the first, and which are kept."""


class Doubt(NamedTuple):
    """A statistic of two samples with its standard error, and what it gives where there is no shift.

    Attributes:
        value: The statistic.
        error: Its standard error; None where the groups of a side are too few to tell.
        units: How many parts were left out in turn, or of how many groups the smaller side is, where these are fewer.
        no_shift: The value at no shift.
    """

    value: float
    error: float | None
    units: int
    no_shift: float


def doubt(statistic: Statistic, p: Sample, q: Sample, seed: int, times: int = 4) -> Doubt:
    """A statistic of two samples with its standard error, and what it gives where there is no shift.

    The error is the jackknife's: how the value varies when one of a few parts of both samples is left out. No shift is
    the mean over samples that are drawn from the pool without regard to the side. What is in one group is left out
    together, and changes sides together: ten examples of one thing say no more of a domain than the thing does.

    Args:
        statistic: Computed of rows of the pool.
        p: The one side, the first rows of the pool.
        q: The other side, the rest.
        seed: Decides how the pool is mixed.
        times: How often.
    """
    first = np.arange(len(p) + len(q)) < len(p)
    groups = None
    if p.groups is not None and q.groups is not None:
        groups = np.unique(np.concatenate([p.groups, q.groups]), return_inverse=True)[1]
    error = None
    kept = _each_left_out(first, groups)
    parts = kept.shape[1]
    if all(np.sum(kept[of_side], 0).min() > 1 for of_side in (first, ~first)):
        left_out = statistic(np.repeat(first[:, None], parts, 1), kept)
        error = float(np.sqrt((parts - 1) * np.var(left_out)))
    else:
        groups = None
    random = np.random.default_rng(seed)
    mixed = np.stack([_mixed(first, groups, random) for _ in range(times)], 1)
    null = float(np.mean(statistic(mixed, np.ones_like(mixed))))
    value = float(statistic(first[:, None], np.ones_like(first[:, None]))[0])
    return Doubt(value, error, min(parts, groups_of([p.groups, q.groups]) or parts), null)


def one_by_one(statistic: Callable[[np.ndarray, np.ndarray], float]) -> Statistic:
    """What `doubt` takes, of a function of the rows of two samples in the pool."""

    def of_columns(first: np.ndarray, kept: np.ndarray) -> np.ndarray:
        return np.array(
            [
                statistic(np.flatnonzero(one & some), np.flatnonzero(~one & some))
                for one, some in zip(first.T, kept.T, strict=True)
            ]
        )

    return of_columns


def _each_left_out(first: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Which rows of the pool are kept when each of a few parts is left out in turn, rows × parts."""
    if groups is None:
        part = np.concatenate([np.arange(count) * GROUPS // count for count in (first.sum(), (~first).sum())])
    else:
        of_p, of_q = (np.bincount(groups, of_side) > 0 for of_side in (first, ~first))
        of_group = np.empty(len(of_p), int)
        of_group[np.lexsort((of_p, of_q))] = np.arange(len(of_p)) % GROUPS  # those of one side go to several parts
        part = of_group[groups]
    return part[:, None] != np.unique(part)


def _mixed(first: np.ndarray, groups: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Which rows are of the first sample, sides exchanged: within groups that both have, of others by whole groups."""
    if groups is None:
        made = np.zeros(len(first), bool)
        made[random.permutation(len(first))[: first.sum()]] = True
        return made
    made = np.empty(len(first), bool)
    made[np.lexsort((random.random(len(first)), groups))] = first[np.argsort(groups, kind="stable")]
    share = np.bincount(groups, first) / np.bincount(groups)
    whole = (share == 0) | (share == 1)
    share[whole] = random.permutation(share[whole])
    return np.where(whole[groups], share[groups] == 1, made)
