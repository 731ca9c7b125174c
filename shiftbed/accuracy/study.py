"""The whole study for trained models and a dataset of many domains: scores, tables, pictures."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.accuracy import pictures, studies
from shiftbed.accuracy.domains import corrupted, held_out, of_dataset
from shiftbed.accuracy.extraction import DomainImages, Extractor
from shiftbed.accuracy.outputs import Outputs
from shiftbed.errors import DataError
from shiftbed.training.model import Model, load
from shiftbed.training.store import LocalStore

WEIGHTS = "weights.safetensors"
MOST_REMOVED = 12  # ways to remove classes
Progress = Callable[[str, int, int], None]
Change = Callable[[Outputs], Outputs]


def study(
    runs: str | Path,
    out: str | Path,
    *,
    on: str | None = None,
    source: str | None = None,
    changes: bool = False,
    device: str = "cpu",
    on_progress: Progress = lambda part, done, total: None,
) -> dict[str, Any]:
    """Judges every method on every model, and writes tables and pictures.

    What models say of images is kept beside their weights: run again, nothing is computed twice.

    Args:
        runs: A folder with the weights of several jobs of the same classes.
        out: Where `study.json` and the pictures go.
        on: A dataset of labelled domains; by default the source's images under corruptions.
        source: A labelled dataset (or DATASET/DOMAIN) that no model was trained on; by default what the first run held
            out.
        changes: Judge the methods also on fewer images and without some classes; takes as long for each.
        device: Where models predict.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        DataError: There are no weights, or classes differ.
    """
    folders = sorted(path.parent for path in Path(runs).rglob(WEIGHTS))
    if not folders:
        raise DataError(f"There are no weights in {runs}; `shiftbed train` keeps them.")
    models = [load(folder / WEIGHTS, device) for folder in folders]
    classes = models[0].classes
    different = next((model for model in models if model.classes != classes), None)
    if different is not None:
        raise DataError(
            f"The models in {runs} have other classes: {', '.join(classes)}; {', '.join(different.classes)}."
        )
    labelled_source = next(of_dataset(source, classes)) if source else held_out(folders[0])
    domains = list(of_dataset(on, classes)) if on else corrupted(labelled_source)
    extract = [Extractor(model, LocalStore(folder)) for model, folder in zip(models, folders, strict=True)]
    names = _names(models)
    predicted = _predictions(extract, [labelled_source, *domains], on_progress)

    def of_model(place: int, change: Change) -> Callable[[], tuple[Outputs, Iterator[Outputs]]]:
        def outputs(number: int, domain: DomainImages) -> Outputs:
            others = np.delete(predicted[number], place, axis=0)
            return replace(extract[place](domain), pool=others if len(others) else None)

        return lambda: (
            outputs(0, labelled_source),
            (change(outputs(number, domain)) for number, domain in enumerate(domains, 1)),
        )

    groups = {domain.name: domain.group for domain in domains}

    def scored(change: Change = lambda domain: domain) -> studies.Scores:
        models_of = {name: of_model(place, change) for place, name in enumerate(names)}
        return studies.score_classifiers(models_of, groups, on_progress=on_progress)

    found = scored()
    made = write_study(found, Path(out))
    if changes:
        after = {what: scored(change) for what, change in reductions(int(found.images.min()), classes).items()}
        made["changes"] = studies.change_table(found, after, by_group=True)
        (Path(out) / "changes.json").write_text(json.dumps(made["changes"], indent=1), encoding="utf-8")
    return made


def reductions(images: int, classes: Sequence[str]) -> dict[str, Change]:
    """By name, how domains are reduced: to fewer images, and by one class or two neighbouring ones.

    Args:
        images: How many the smallest domain has.
        classes: Their names; at least two of them stay.
    """
    made: dict[str, Change] = {
        f"{size} images": partial(studies.of_size, count=size) for size in studies.SIZES if size < images
    }
    numbers = range(len(classes))
    for gone in [*combinations(numbers, 1), *pairwise(numbers)][:MOST_REMOVED]:
        if len(classes) - len(gone) >= 2:
            made[f"without {' and '.join(classes[one] for one in gone)}"] = partial(studies.of_classes, removed=gone)
    return made


def write_study(scores: studies.Scores, out: Path) -> dict[str, Any]:
    """Writes the tables as JSON and the pictures beside it; a method whose score is constant is left out."""
    spread = {name: all(np.ptp(row) > 0 for row in values) for name, values in scores.values.items()}
    scores = replace(scores, values={name: values for name, values in scores.values.items() if spread[name]})
    columns = {name: [name] for name in dict.fromkeys(scores.groups.tolist())}
    made = {
        "constant scores": [name for name, varies in spread.items() if not varies],
        "mae": studies.mae_table(scores, columns),
        "mae, groups left out": studies.mae_table(scores, by_group=True),
        "correlation": studies.correlation_table(scores),
        "direct": studies.direct_table(scores),
        "coverage": studies.coverage_table(scores),
        "spread": studies.spread_table(scores, by_group=True),
        "difficulty": studies.difficulty_table(scores, by_group=True),
        "groups": studies.group_agreement(scores),
        "images per group against error": studies.size_effect(scores),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "study.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
    (out / "scores.json").write_text(json.dumps(scores.as_json()), encoding="utf-8")
    pictures.scatter(scores, out / "scatter.png", scores.classifiers[0])
    pictures.spread(scores, out / "spread.png")
    for name in [name for name in ("ms-aol", "atc-mc") if name in scores.values][:1]:
        pictures.errors_by_accuracy(scores, out / "errors.png", name)
    if "frechet-distance" in scores.values:
        pictures.accuracy_by_distance(scores, out / "distance.png", scores.classifiers[0])
    return made


def _names(models: list[Model]) -> list[str]:
    """Networks' names; where these do not tell models apart, with the algorithm and a number."""
    names = [str(model.about["network"]["network"]) for model in models]
    twice = Counter(names)
    return [
        name if twice[name] == 1 else f"{name} {model.about['algorithm']} {place}"
        for place, (name, model) in enumerate(zip(names, models, strict=True))
    ]


def _predictions(extract: list[Extractor], domains: list[DomainImages], on_progress: Progress) -> list[np.ndarray]:
    """Of every domain the classes that every model predicts, as small as they can be kept."""
    found = []
    for number, domain in enumerate(domains):
        on_progress("domains", number, len(domains))
        found.append(np.stack([one(domain).predictions for one in extract]).astype(np.uint16))
    on_progress("domains", len(domains), len(domains))
    return found
