"""The verb `predict_accuracy`: how well a model will do on images that nobody has labelled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shiftbed.accuracy.domains import (
    Seen,
    asked_about,
    corrupted,
    held_out,
    labelled_source,
    of_one_size,
    others_than,
    sampled,
    share_images,
    target,
    trained_on,
    unseen,
)
from shiftbed.accuracy.extraction import AnyModel, DomainImages, Extractor, Images
from shiftbed.accuracy.methods import METHODS, Method
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.summary import DEFAULT, AccuracyPrediction, FittedPredictor, summarise
from shiftbed.errors import DataError, plural
from shiftbed.training.model import Model, load, weights_file
from shiftbed.training.store import LocalStore


def predict_accuracy(
    model: AnyModel | str | Path,
    images: Images | str | Path,
    *,
    source: tuple[Images, np.ndarray] | str | None = None,
    domains: Mapping[str, tuple[Images, np.ndarray]] | str | None = None,
    method: str | None = None,
    level: float = 0.9,
    device: str = "cpu",
    skip_corrupt: bool = False,
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
        method: The method whose estimate is reported first; all are in the result. By default it is `atc-mc`, and
            where that cannot be fitted (the model makes no error on the source) a direct estimate stands for it.
        level: The probability with which the interval is meant to hold.
        device: Where a run's model predicts.
        skip_corrupt: Leave out files of a folder that cannot be read.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        DataError: There are fewer than two images, no labelled source, other classes, outputs that are not finite, or
            the method that was named cannot be used.
    """
    chosen = METHODS[method or DEFAULT]
    if not 0 < level < 1:
        raise DataError(f"An interval holds with a probability between 0 and 1, not {level:g}.")
    run = Path(model) if isinstance(model, str | Path) else None
    predictor: AnyModel = load(model, device) if isinstance(model, str | Path) else model
    folder = weights_file(run).parent if run is not None else None
    extract = Extractor(predictor, LocalStore(folder) if folder else None)
    classes = predictor.classes if isinstance(predictor, Model) else ()
    if isinstance(images, str | Path):
        unlabelled = target(str(images), classes, skip_corrupt)
    else:
        unlabelled = DomainImages.of("images", images)
    outputs = extract(unlabelled)
    trained = trained_on([folder] if folder is not None else [])
    asked = asked_about(str(images)) if isinstance(images, str | Path) else set()
    seen = {*trained, *asked}
    known = _source(source, folder, classes, seen)
    reference_outputs = extract(known)
    _same_classes(outputs, reference_outputs, classes)
    if chosen.missing(reference_outputs):
        raise cannot(chosen, reference_outputs)
    why = ""
    try:
        labelled = _labelled(domains, of_one_size(known, predictor), classes, seen)
        to_fit = [domain for domain in labelled if domain.id != unlabelled.id]
        if domains is not None:  # corruptions, which are made only when they are needed, have no copies elsewhere
            to_fit = others_than(unlabelled, to_fit)
    except DataError as error:
        if domains is not None:
            raise
        to_fit, why = [], f" ({str(error).rstrip('.')})"

    def all_outputs() -> Iterable[tuple[Outputs, str]]:
        for place, domain in enumerate(to_fit):
            on_progress("labelled domains", place, len(to_fit))
            yield extract(domain), domain.group
        on_progress("labelled domains", len(to_fit), len(to_fit))

    fitted = FittedPredictor(reference_outputs, all_outputs(), level, share_images(to_fit), why)
    found = summarise(outputs, fitted, chosen, level, strict=method is not None)
    if learned := sorted("/".join(domain) for domain in asked & {*trained}):
        warning = f"The model was trained on images of {', '.join(learned)}: on new ones it may do worse."
        return replace(found, trust=f"{warning} {found.trust}")
    return found


def _source(
    source: tuple[Images, np.ndarray] | str | None, folder: Path | None, classes: Sequence[str], seen: Seen
) -> DomainImages:
    if isinstance(source, str):
        return labelled_source(source, classes, seen)
    if source is not None:
        images, labels = source
        if labels is None or len(labels) != len(images):
            count = plural(len(images), "image")
            have = "no labels" if labels is None else f"{plural(len(labels), 'label')} for {count}"
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
