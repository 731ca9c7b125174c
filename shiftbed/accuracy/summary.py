"""From outputs to a prediction: methods fitted on labelled domains, or where that cannot be, direct estimates."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shiftbed.accuracy.fitting import mean_errors
from shiftbed.accuracy.intervals import AccuracyPredictor
from shiftbed.accuracy.methods import METHODS, Method
from shiftbed.accuracy.nearness import Surroundings
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.reference import Reference
from shiftbed.errors import DataError

DEFAULT = "atc-mc"  # named before any data were seen: choosing the best on the labelled domains would flatter it
INSTEAD = (DEFAULT, "doc", "cot", "average-confidence")  # in this order, where a method's estimate is of no use
DIRECT = ("average-confidence", "atc-mc", "atc-ne", "doc", "cot")

SAME = 1e-6  # log-probabilities that differ by less are the same


@dataclass(frozen=True)
class Estimate:
    """What one method says.

    Attributes:
        method: The method's name.
        accuracy: The estimate.
        low: The lower end of its interval.
        high: The upper end.
        error: Its mean absolute error on labelled domains left out with their groups.
        extrapolated: Whether the score lies outside those of the labelled domains.
    """

    method: str
    accuracy: float
    low: float
    high: float
    error: float
    extrapolated: bool


@dataclass(frozen=True)
class AccuracyPrediction:
    """The predicted accuracy on unlabelled images.

    Attributes:
        accuracy: The estimate of the chosen method.
        low: The lower end of its interval.
        high: The upper end.
        level: The probability with which the interval is meant to hold; None if it is only the spread of the methods
            that need no labelled domains.
        method: The chosen method.
        images: How many images there are.
        domains: How many labelled domains the methods were fitted on, in how many `groups`.
        groups: How many groups these are.
        baseline: The mean absolute error of predicting the mean of the labelled domains.
        source_accuracy: The accuracy on the source.
        estimates: What every method says that could be fitted; nothing where the chosen one could not.
        direct: What methods say that need no labelled domains, after calibration on the source.
        trust: How far the prediction can be relied on, in a sentence.
    """

    accuracy: float
    low: float
    high: float
    level: float | None
    method: str
    images: int
    domains: int
    groups: int
    baseline: float | None
    source_accuracy: float
    estimates: tuple[Estimate, ...]
    direct: dict[str, float]
    trust: str

    def __str__(self) -> str:
        how = f"{self.level:.0%} interval" if self.level is not None else "spread of the direct methods"
        return f"{self.accuracy:.1%} ({self.low:.1%} to {self.high:.1%}, {how}, {self.images} images, {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words."""
        return asdict(self)


class FittedPredictor:
    """Methods fitted on labelled domains of one model, which are looked at one after the other and not kept.

    Args:
        source: The source's outputs.
        domains: Outputs of labelled domains, each with its group.
        level: The probability with which intervals are meant to hold.
        shared: Whether the labelled domains show the same images, as corruptions of one source do.
        why: Why there are no labelled domains, in brackets.
    """

    def __init__(
        self,
        source: Outputs,
        domains: Iterable[tuple[Outputs, str]],
        level: float = 0.9,
        shared: bool = False,
        why: str = "",
    ) -> None:
        self.why = why
        self.reference = Reference(source)
        self.surroundings = Surroundings(source, shared)
        self.methods = [METHODS[name] for name in METHODS if not METHODS[name].missing(source)]
        rows, accuracies, groups, images = [], [], [], []
        for domain, group in domains:
            rows.append(self._scores(domain))
            accuracies.append(domain.accuracy)
            groups.append(group)
            images.append(len(domain))
            self.surroundings.add(domain, group)
        self.accuracies, self.groups, self.images = np.array(accuracies), np.array(groups), np.array(images)
        scores = np.array(rows).reshape(len(rows), len(self.methods))
        self.predictors: dict[str, AccuracyPredictor] = {}
        self.unusable: dict[str, DataError] = {}
        for method, column in zip(self.methods, scores.T, strict=True):
            try:
                self.predictors[method.name] = AccuracyPredictor.fit(
                    column, self.accuracies, self.groups, self.images, level, shared
                )
            except DataError as error:  # a constant score says nothing; others may
                self.unusable[method.name] = error

    def _scores(self, domain: Outputs) -> list[float]:
        return [method.score(domain, self.reference) for method in self.methods]

    @property
    def baseline(self) -> float:
        """The mean absolute error of always predicting the mean of the labelled domains of other groups."""
        return float(np.abs(mean_errors(self.accuracies, self.groups)).mean())

    def estimates(self, domain: Outputs) -> dict[str, Estimate]:
        """What every fitted method says of an unlabelled domain."""
        found = {}
        for method, score in zip(self.methods, self._scores(domain), strict=True):
            predictor = self.predictors.get(method.name)
            if predictor is not None:
                error = float(np.abs(predictor.errors).mean())
                outside = not predictor.line.lowest <= score <= predictor.line.highest
                found[method.name] = Estimate(method.name, *predictor.predict(score, len(domain)), error, outside)
        return found


def direct_estimates(domain: Outputs, reference: Reference) -> dict[str, float]:
    """Accuracies by methods that need no labelled domains, after one temperature fitted on the source."""
    calibrated, scaled = reference.calibrated(), domain.scaled(reference.temperature)
    # A difference of confidences may leave [0, 1], where no accuracy lies.
    return {name: min(max(METHODS[name].score(scaled, calibrated), 0.0), 1.0) for name in DIRECT}


def summarise(
    outputs: Outputs, fitted: FittedPredictor, method: Method, level: float, strict: bool = False
) -> AccuracyPrediction:
    """The prediction for a domain by a fitted method; where it could not be fitted, by the direct ones, which says why.

    Args:
        outputs: The domain's.
        fitted: Methods fitted on labelled domains.
        method: The one whose estimate is reported.
        level: The probability with which its interval is meant to hold.
        strict: Whether a method that could not be fitted on them is refused.

    Raises:
        DataError: The method could not be fitted, and nothing may stand for it.
    """
    if strict and len(fitted.accuracies) > 0 and method.name in fitted.unusable:
        others = ", ".join(fitted.predictors)
        instead = f"name another --method ({others})" if others else "fit on other domains"
        raise DataError(f"{method.name} cannot be used. {fitted.unusable[method.name]} To go on, {instead}.")
    shared: dict[str, Any] = {
        "images": len(outputs),
        "domains": len(fitted.accuracies),
        "groups": len(set(fitted.groups.tolist())),
        "source_accuracy": fitted.reference.accuracy,
        "direct": direct_estimates(outputs, fitted.reference),
    }
    if method.name in fitted.unusable:
        return _direct(outputs, fitted, method, shared)
    estimates = fitted.estimates(outputs)
    first = estimates[method.name]
    return AccuracyPrediction(
        first.accuracy,
        first.low,
        first.high,
        level=level,
        method=method.name,
        baseline=fitted.baseline,
        estimates=tuple(estimates.values()),
        trust=_trust(outputs, fitted, first, level),
        **shared,
    )


def _direct(outputs: Outputs, fitted: FittedPredictor, method: Method, shared: dict[str, Any]) -> AccuracyPrediction:
    """The prediction by methods that need no labelled domains, and why it is theirs."""
    direct: dict[str, float] = shared["direct"]
    constant = _constant(fitted.reference.outputs) and _constant(outputs)
    able = [name for name in (method.name, *INSTEAD) if name in direct]
    if fitted.reference.accuracy in (0, 1):  # a threshold above or below everything is passed by none or by all
        able = [name for name in able if not name.startswith("atc-")]
    # A score that is the same on all labelled domains tells as little without a line.
    name = next((name for name in able if name in fitted.predictors), able[0])
    if constant:
        name = "doc"  # the source's accuracy: confidence is the same everywhere
        reason = (
            "The model answers the same for all images, so that nothing in its answers tells their accuracy: it is the "
            f"share of one class. On the source it is {fitted.reference.accuracy:.1%}, which is given here."
        )
    elif len(fitted.accuracies) == 0:
        reason = f"There were no labelled domains to fit on{fitted.why}."
    else:
        reason = f"{method.name} could not be fitted. {fitted.unusable[method.name]}"
    said = "These are direct estimates, and their spread is no interval"
    if fitted.predictors:
        said += f"; to get one, name another --method ({', '.join(fitted.predictors)})."
    else:
        said += "; give labelled domains of other sites to get one." if not constant else "."
    instead = f" {name} stands for {method.name}." if name != method.name and not constant else ""
    return AccuracyPrediction(
        direct[name],
        min(direct.values()),
        max(direct.values()),
        level=None,
        method=name,
        baseline=None,
        estimates=(),
        trust=f"{reason} {said}{instead}{_uncalibrated(fitted.reference)}",
        **shared,
    )


def _constant(outputs: Outputs) -> bool:
    """Whether a model says the same of all images, but for rounding."""
    return float(np.ptp(outputs.log_probabilities, axis=0).max()) < SAME


def _trust(outputs: Outputs, fitted: FittedPredictor, first: Estimate, level: float) -> str:
    """How far a fitted estimate can be relied on."""
    images, directions = min(len(outputs), int(fitted.images.min())), fitted.surroundings.directions
    doubts = []
    if first.error >= fitted.baseline:
        doubts.append(
            f"On labelled domains that it has not seen {first.method} errs by {first.error:.1%}, and always predicting "
            f"their mean by {fitted.baseline:.1%}: on them its score tells nothing."
        )
    if first.extrapolated:
        doubts.append(
            f"Its {first.method} score lies outside those of the labelled domains: the line is extended beyond them."
        )
    if not np.isfinite(fitted.predictors[first.method].width):
        groups = len(set(fitted.groups.tolist()))
        doubts.append(f"{groups} groups of labelled domains are too few for an interval at {level:.0%}.")
    elif first.low <= 0 and first.high >= 1:
        doubts.append("The interval goes from 0 to 100 %: it excludes nothing.")
    if images < directions:
        doubts.append(
            f"{images} images are fewer than the {directions} directions in which domains are compared: how near it is "
            "can hardly be told."
        )
    near = fitted.surroundings.locate(outputs).words(in_doubt=bool(doubts))
    return " ".join([near, *doubts]) + _uncalibrated(fitted.reference)


def _uncalibrated(reference: Reference) -> str:
    if not reference.flawless:
        return ""
    return (
        f" The model is right on all {len(reference.outputs)} source images, so that no temperature can be fitted: "
        "direct estimates take its confidence as it is."
    )
