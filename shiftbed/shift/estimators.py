"""The three estimators of diversity and correlation shift behind one verb, and the settings they share."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from shiftbed.errors import DataError, UnknownNameError
from shiftbed.registry import did_you_mean
from shiftbed.shift.estimates import ACCURACY, NEARLY_SURE, ShiftEstimate
from shiftbed.shift.features import standardised
from shiftbed.shift.integration import Evaluated, Formula, Thresholds, calibrate, integrate
from shiftbed.shift.intervals import NORMAL, groups_of, interval_from_zero, student
from shiftbed.shift.kde import evaluated, held_out_features
from shiftbed.shift.matching import FOLDS
from shiftbed.shift.measures import NO_SHIFT
from shiftbed.shift.ratio import (
    DELTA,
    TRAINING,
    LogRatios,
    accuracy_terms,
    correlation_terms,
    diversity_terms,
    half_sum,
    held_out_ratios,
)
from shiftbed.shift.samples import Sample
from shiftbed.training.device import one_thread

SMALL_SIDE = 64  # images up to this side are measured by a perceptron
PERCEPTRON_SIDE = 32  # to which larger ones of them are brought
DELTAS = (0.001, 0.003, 0.01, 0.03, 0.1)
UNSURE = 0.1  # more diversity shift than this hangs on how sure a network must be

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class How:
    """How diversity and correlation shift are estimated.

    Attributes:
        method: `ratio`, `kde` (the authors' later formula) or `kde-paper` (the CVPR formula).
        network: The network that learns to tell the sides apart; by default what suits the inputs.
        weights: Its initial weights; random ones if None.
        width: The units of a perceptron's layers, where the inputs are vectors.
        runs: Networks that are trained, each with another fifth of the examples held out.
        most: At most so many examples a side.
        delta: Where `ratio` calls an input certain: the other side's share is below this.
        calibrate: Choose the thresholds of `kde` and `kde-paper` so that a pair without shift shows next to none.
        thresholds: Those thresholds, where they are not calibrated.
        baseline: Measure a pair without shift too.
        seed: Decides everything that is drawn.
        device: Where networks are trained and densities computed.
    """

    method: str = "ratio"
    network: str | None = None
    weights: str | None = None
    width: int = 64
    runs: int = FOLDS
    most: int | None = None
    delta: float = DELTA
    calibrate: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    baseline: bool = True
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.method not in ESTIMATORS:
            raise UnknownNameError(f"There is no method '{self.method}'.{did_you_mean(self.method, list(ESTIMATORS))}")
        if self.runs < 1 or not 0 < self.delta < 0.5:
            raise DataError(f"Runs are at least 1 and delta is between 0 and 0.5, not {self.runs} and {self.delta}.")

    def featurizer(self, inputs: np.ndarray) -> dict[str, Any] | None:
        """What builds the network; None where the inputs are the features whose densities are estimated."""
        name, weights = self.network, self.weights
        if name is None and inputs.ndim == 2:
            if self.method != "ratio":
                return None
            name = "mlp"
        elif name is None:
            name = "mlp-390" if max(inputs.shape[2:]) <= SMALL_SIDE else "resnet18"
            weights = weights or ("imagenet" if name == "resnet18" else None)
        return {"network": name, "initial_weights": weights, "mlp_width": self.width}


@dataclass(frozen=True)
class Found:
    """What an estimator says of a pair.

    Attributes:
        diversity: Diversity shift.
        correlation: Correlation shift.
        accuracy: Of telling held-out examples apart, with their labels; None without a network.
        without_shift: Both shifts of the pair with sides exchanged at random.
        densities: What `kde` and `kde-paper` integrate: of the pair, and of that without shift.
    """

    diversity: ShiftEstimate
    correlation: ShiftEstimate
    accuracy: ShiftEstimate | None
    without_shift: tuple[ShiftEstimate, ShiftEstimate] | None
    densities: "tuple[Densities, Densities | None] | None" = None


Pair = tuple[Sample, Sample]


def by_ratio(pair: Pair, empty: Pair | None, how: How, show: Progress) -> Found:
    """From networks that tell the sides apart (see `shiftbed.shift.ratio`).

    Args:
        pair: The two sides, as many examples of each class.
        empty: The same examples with sides exchanged at random within classes, if that is wanted.
        how: The settings.
        show: Told how many runs of what are done.
    """
    read = _ratios(pair, how, _counter(show, "telling the sides apart", how.runs))
    diversity, correlation = _ratio_estimates(read, pair, how)
    curve = {f"at delta {delta:g}": half_sum(*diversity_terms(*read, delta))[0] for delta in DELTAS}
    groups = _groups(pair)
    accuracy = _estimate("accuracy", *half_sum(*accuracy_terms(*read), groups), diversity.count, groups)
    without_shift = None
    if empty is not None:
        shuffled = _ratios(empty, how, _counter(show, "the same without shift", how.runs))
        without_shift = _ratio_estimates(shuffled, empty, how)
    diversity = replace(
        diversity, details={**diversity.details, **curve}, notes=_unsure(curve, diversity.value, how.delta)
    )
    return Found(*_beside(diversity, correlation, accuracy, without_shift), accuracy, without_shift)


def _unsure(curve: dict[str, float], value: float, delta: float) -> tuple[str, ...]:
    """A note where diversity shift hangs on how sure the network must be: it has not learned all that differs."""
    lax = curve[NEARLY_SURE]
    if lax - value <= UNSURE:
        return ()
    return (
        f"diversity shift would be {lax:.2f} if the network had to be 90 % sure of a side instead of "
        f"{100 * (1 - delta):g} %: it has not learned all that tells the sides apart, and a part of that may count as "
        "correlation shift; measure more examples, or the features of a stronger network (--features)",
    )


def _ratios(pair: Pair, how: How, on_run: Callable[[], None]) -> tuple[LogRatios, LogRatios]:
    p, q = pair
    network = how.featurizer(p.inputs)
    assert network is not None
    if p.inputs.ndim == 2:
        scaled = standardised(p.vectors, q.vectors)
        p, q = replace(p, inputs=scaled[0]), replace(q, inputs=scaled[1])
    with _threads_for(network):
        return held_out_ratios(p, q, network, how.runs, how.seed, how.device, on_run)


def _threads_for(network: dict[str, Any] | None) -> AbstractContextManager[None]:
    """Small networks lose by a second thread, on a busy machine tenfold."""
    return one_thread() if network is not None and network["network"] in TRAINING else nullcontext()


def _ratio_estimates(read: tuple[LogRatios, LogRatios], pair: Pair, how: How) -> tuple[ShiftEstimate, ShiftEstimate]:
    count, groups = int(min(np.sum(~np.isnan(side.f).all(0)) for side in read)), _groups(pair)
    made = [
        _estimate(name, *half_sum(*terms(*read, how.delta), groups), count, groups)
        for name, terms in (("diversity", diversity_terms), ("correlation", correlation_terms))
    ]
    return made[0], made[1]


def _estimate(
    name: str, value: float, error: float, count: int, groups: tuple[np.ndarray, np.ndarray] | None = None
) -> ShiftEstimate:
    """An estimate within [0, 1]; where no example, or no group of them, disagreed, as many as three in n still may.

    Where a few do, the interval is no shorter towards the middle than where none does.
    """
    units = groups_of(groups) if groups else None
    low, high = interval_from_zero(value, error * student(units) / NORMAL)
    rest = 3 / (units or count)
    some = rest if error == 0 else 3 / count
    low, high = max(0.0, min(low, value - some, 1 - rest)), min(1.0, max(high, value + some, rest))
    return ShiftEstimate(name, min(1.0, max(0.0, value)), error, (low, high), count, details={"raw": value})


def _groups(pair: Pair) -> tuple[np.ndarray, np.ndarray] | None:
    p, q = pair
    return None if p.groups is None or q.groups is None else (p.groups, q.groups)


def by_density(pair: Pair, empty: Pair | None, how: How, show: Progress) -> Found:
    """From kernel densities (see `shiftbed.shift.kde`); arguments as of `by_ratio`."""
    seen = _densities(pair, how, _counter(show, "telling the sides apart", how.runs))
    none = _densities(empty, how, _counter(show, "the same without shift", how.runs)) if empty else None
    return integrated((seen, none), how)


def integrated(densities: "tuple[Densities, Densities | None]", how: How) -> Found:
    """Both shifts by the formula of the method; the densities are those of `kde` and of `kde-paper` alike."""
    formula: Formula = "paper" if how.method == "kde-paper" else "later"
    seen, none = densities
    thresholds = calibrate(none.at, how.thresholds) if none and how.calibrate else how.thresholds
    diversity, correlation = _integrals(seen, thresholds, formula)
    if seen.skipped:
        note = f"{seen.skipped} classes have too few held-out examples for a density and count for nothing"
        correlation = replace(correlation, notes=(*correlation.notes, note))
    accuracy = None if seen.correct is None else _estimate("accuracy", *half_sum(*seen.correct), diversity.count)
    without_shift = _integrals(none, thresholds, formula) if none else None
    return Found(*_beside(diversity, correlation, accuracy, without_shift), accuracy, without_shift, densities)


ESTIMATORS: dict[str, Callable[[Pair, Pair | None, How, Progress], Found]] = {
    "ratio": by_ratio,
    "kde": by_density,
    "kde-paper": by_density,
}


@dataclass(frozen=True)
class Densities:
    """Log densities of every run, and what they are of.

    Attributes:
        at: The log densities.
        correct: Which held-out examples were given to their side.
        skipped: Classes without a density.
        count: Examples a side.
        shared: Whether the densities of two runs share most of their examples: each then leaves a fifth out.
    """

    at: list[Evaluated]
    correct: tuple[np.ndarray, np.ndarray] | None
    skipped: int
    count: int
    shared: bool


def _densities(pair: Pair, how: How, on_run: Callable[[], None]) -> Densities:
    network = how.featurizer(pair[0].inputs)
    with _threads_for(network):
        features = held_out_features(*pair, network, how.runs, how.seed, how.device, on_run)
    made = [evaluated(one, 1000 * how.seed + run, how.device) for run, one in enumerate(features)]
    hits = [one.correct for one in features if one.correct is not None]
    correct = (np.concatenate([p for p, _ in hits]), np.concatenate([q for _, q in hits])) if hits else None
    skipped = max(skipped for _, skipped in made)
    return Densities([at for at, _ in made], correct, skipped, len(pair[0]), network is None)


def _integrals(densities: Densities, thresholds: Thresholds, formula: Formula) -> tuple[ShiftEstimate, ShiftEstimate]:
    values = np.array([integrate(at, thresholds, formula) for at in densities.at])
    diversity = _over_runs("diversity", values[:, 0], densities, thresholds.diversity)
    return diversity, _over_runs("correlation", values[:, 1], densities, thresholds.correlation)


def _over_runs(name: str, values: np.ndarray, densities: Densities, threshold: float) -> ShiftEstimate:
    """The mean of runs, within [0, 1], with Student's interval; of runs that share examples the jackknife's."""
    count = densities.count
    value = float(values.mean())
    shown, details = min(1.0, max(0.0, value)), {"raw": value, "threshold": threshold}
    if len(values) < 2:
        return ShiftEstimate(name, shown, count=count, notes=("one run: no interval",), details=details)
    few = (FOLDS - 1) / math.sqrt(FOLDS) if densities.shared else 1 / math.sqrt(len(values))
    error = few * float(values.std(ddof=1))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    low, high = (min(1.0, max(0.0, end)) for end in (value - half, value + half))
    return ShiftEstimate(name, shown, error, (low, high), count, details=details)


def _beside(
    diversity: ShiftEstimate,
    correlation: ShiftEstimate,
    accuracy: ShiftEstimate | None,
    null: tuple[ShiftEstimate, ShiftEstimate] | None,
) -> tuple[ShiftEstimate, ShiftEstimate]:
    """Both estimates with the accuracy of telling the sides apart, and with what a pair without shift gives."""
    told = {} if accuracy is None else {ACCURACY: accuracy.value}
    first, second = (
        replace(one, details={**one.details, **told, **({} if empty is None else {NO_SHIFT: empty.details["raw"]})})
        for one, empty in zip((diversity, correlation), null or (None, None), strict=True)
    )
    return first, second


def _counter(show: Progress, what: str, total: int) -> Callable[[], None]:
    done = 0
    show(what, 0, total)

    def one_more() -> None:
        nonlocal done
        done += 1
        show(what, done, total)

    return one_more
