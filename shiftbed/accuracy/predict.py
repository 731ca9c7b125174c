"""The verb `predict_accuracy`: how well a model will do on images that nobody has labelled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.accuracy.domains import (
    Seen,
    corrupted,
    domain_of,
    held_out,
    labelled_source,
    of_one_size,
    sampled,
    target,
    trained_on,
    unseen,
)
from shiftbed.accuracy.extraction import AnyModel, DomainImages, Extractor, Images
from shiftbed.accuracy.fitting import mean_errors
from shiftbed.accuracy.intervals import AccuracyPredictor
from shiftbed.accuracy.methods import METHODS, Method
from shiftbed.accuracy.nearness import Surroundings
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.reference import Reference
from shiftbed.errors import DataError
from shiftbed.training.model import Model, load, weights_file
from shiftbed.training.store import LocalStore

DEFAULT = "atc-mc"  # named before any data were seen: choosing the best on the labelled domains would flatter it
DIRECT = ("average-confidence", "atc-mc", "atc-ne", "doc", "cot")


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
        estimates: What every method says that could be fitted.
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
    """

    def __init__(self, source: Outputs, domains: Iterable[tuple[Outputs, str]], level: float = 0.9) -> None:
        self.reference = Reference(source)
        self.surroundings = Surroundings(source)
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
                    column, self.accuracies, self.groups, self.images, level
                )
            except DataError as error:  # a constant score says nothing; others may
                self.unusable[method.name] = error

    def _scores(self, domain: Outputs) -> list[float]:
        return [method.score(domain, self.reference) for method in self.methods]

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
    return {name: METHODS[name].score(scaled, calibrated) for name in DIRECT}


def predict_accuracy(
    model: AnyModel | str | Path,
    images: Images | str | Path,
    *,
    source: tuple[Images, np.ndarray] | str | None = None,
    domains: Mapping[str, tuple[Images, np.ndarray]] | str | None = None,
    method: str = DEFAULT,
    level: float = 0.9,
    device: str = "cpu",
    on_progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> AccuracyPrediction:
    """Predicts a model's accuracy on images without labels.

    Methods are fitted on labelled domains: those given, or else the source's images under corruptions. What the model
    says of images is kept in its run's folder, so that a second prediction computes only what is new.

    Args:
        model: The folder of a run, a loaded model, or a function from images to logits, or to logits and features.
        images: A folder of image files, DATASET/DOMAIN, an array N×H×W×C, or a list of files or arrays.
        source: Labelled images that the model was not trained on, or a dataset of such; a run knows its own.
        domains: By name, labelled images to fit on, or the name of a dataset of such.
        method: The method whose estimate is reported first; all are in the result.
        level: The probability with which the interval is meant to hold.
        device: Where a run's model predicts.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        DataError: There are fewer than two images, no labelled source, other classes, or outputs that are not finite.
    """
    chosen = METHODS[method]
    if not 0 < level < 1:
        raise DataError(f"An interval holds with a probability between 0 and 1, not {level:g}.")
    run = Path(model) if isinstance(model, str | Path) else None
    predictor: AnyModel = load(model, device) if isinstance(model, str | Path) else model
    folder = weights_file(run).parent if run is not None else None
    extract = Extractor(predictor, LocalStore(folder) if folder else None)
    classes = predictor.classes if isinstance(predictor, Model) else ()
    unlabelled = target(str(images), classes) if isinstance(images, str | Path) else DomainImages.of("images", images)
    outputs = extract(unlabelled)
    seen = {*trained_on([folder] if folder is not None else [])}
    if isinstance(images, str | Path) and not Path(images).is_dir():
        seen.add(domain_of(str(images)))
    known = _source(source, folder, classes, seen)
    reference_outputs = extract(known)
    _same_classes(outputs, reference_outputs, classes)
    if chosen.missing(reference_outputs):
        raise cannot(chosen, reference_outputs)
    why = ""
    try:
        found = _labelled(domains, of_one_size(known, predictor), classes, seen)
        to_fit = [domain for domain in found if domain.id != unlabelled.id]
    except DataError as error:
        if domains is not None:
            raise
        to_fit, why = [], f" ({str(error).rstrip('.')})"

    def all_outputs() -> Iterable[tuple[Outputs, str]]:
        for place, domain in enumerate(to_fit):
            on_progress("labelled domains", place, len(to_fit))
            yield extract(domain), domain.group
        on_progress("labelled domains", len(to_fit), len(to_fit))

    fitted = FittedPredictor(reference_outputs, all_outputs(), level)
    return summarise(outputs, fitted, chosen, level, why)


def summarise(
    outputs: Outputs, fitted: FittedPredictor, method: Method, level: float, why: str = ""
) -> AccuracyPrediction:
    """The prediction for a domain by fitted methods; without labelled domains (and why), by the direct ones."""
    reference = fitted.reference
    direct = direct_estimates(outputs, reference)
    shared = {
        "images": len(outputs),
        "domains": len(fitted.accuracies),
        "groups": len(set(fitted.groups.tolist())),
        "source_accuracy": reference.accuracy,
        "direct": direct,
    }
    if len(fitted.accuracies) == 0:
        name = method.name if method.name in direct else DEFAULT
        instead = f" {name} stands for {method.name}, which needs them." if name != method.name else ""
        return AccuracyPrediction(
            direct[name],
            min(direct.values()),
            max(direct.values()),
            level=None,
            method=name,
            baseline=None,
            estimates=(),
            trust=f"There were no labelled domains to fit on{why}: these are estimates of calibrated models, and their "
            f"spread is no interval; give labelled domains of other sites to get one.{instead}",
            **shared,  # type: ignore[arg-type]
        )
    if method.name in fitted.unusable:
        others = [name for name in fitted.predictors if name not in fitted.unusable]
        instead = f"name another --method ({', '.join(others)})" if others else "fit on other domains"
        raise DataError(f"{method.name} cannot be used. {fitted.unusable[method.name]} To go on, {instead}.")
    estimates = fitted.estimates(outputs)
    first = estimates[method.name]
    trust = fitted.surroundings.locate(outputs).words
    if first.extrapolated:
        trust += (
            f" Its {method.name} score lies outside those of the labelled domains: the line is extended beyond them."
        )
    if not np.isfinite(fitted.predictors[method.name].width):
        trust += f" {shared['groups']} groups of labelled domains are too few for an interval at {level:.0%}."
    return AccuracyPrediction(
        first.accuracy,
        first.low,
        first.high,
        level=level,
        method=method.name,
        baseline=float(np.abs(mean_errors(fitted.accuracies, fitted.groups)).mean()),
        estimates=tuple(estimates.values()),
        trust=trust,
        **shared,  # type: ignore[arg-type]
    )


def _source(
    source: tuple[Images, np.ndarray] | str | None, folder: Path | None, classes: Sequence[str], seen: Seen
) -> DomainImages:
    if isinstance(source, str):
        return labelled_source(source, classes, seen)
    if source is not None:
        images, labels = source
        if labels is None or len(labels) != len(images):
            have = "no labels" if labels is None else f"{len(labels)} labels for {len(images)} images"
            raise DataError(f"The source set has {have}; the accuracy there must be known: give one label an image.")
        return DomainImages.of("the source", images, np.asarray(labels))
    if folder is None:
        raise DataError("A source of labelled images is needed that the model was not trained on; give source=….")
    return held_out(folder)


def _labelled(
    domains: Mapping[str, tuple[Images, np.ndarray]] | str | None,
    source: DomainImages,
    classes: Sequence[str],
    seen: Seen,
) -> list[DomainImages]:
    if isinstance(domains, str):
        return unseen(domains, classes, seen)
    if domains is not None:
        return [DomainImages.of(name, some, np.asarray(labels)) for name, (some, labels) in domains.items()]
    return corrupted(sampled(source))


def _same_classes(outputs: Outputs, source: Outputs, classes: Sequence[str]) -> None:
    for some in (outputs, source):
        if classes and some.classes != len(classes):
            raise DataError(f"The model has {len(classes)} classes but gave {some.classes} logits an image.")


def cannot(method: Method, outputs: Outputs) -> DataError:
    """Says what a model lacks for a method, and which ones it can do."""
    lacking = " and ".join(method.missing(outputs))
    able = ", ".join(name for name in METHODS if not METHODS[name].missing(outputs))
    return DataError(f"The method {method.name} needs {lacking}, which this model does not have; choose one of {able}.")
