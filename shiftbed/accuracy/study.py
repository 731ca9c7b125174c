"""The whole study for trained models and a dataset of many domains: scores, tables, pictures."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, pairwise
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from shiftbed.accuracy import pictures, studies
from shiftbed.accuracy.domains import Seen, corrupted, held_out, labelled_source, of_one_size, trained_on, unseen
from shiftbed.accuracy.extraction import DomainImages, Extractor
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.summary import DIRECT
from shiftbed.data.corruptions import SEVERITIES
from shiftbed.errors import DataError
from shiftbed.registry import listed
from shiftbed.sweeps.blind import refuse_sealed_test
from shiftbed.training.model import Model, job_of, load
from shiftbed.training.store import LocalStore, read_json, write_json

WEIGHTS = "weights.safetensors"
SCORES = "scores.json"
FEWEST_GROUPS = 4
FEWEST_IMAGES = 2  # that an accuracy is predicted from
MOST_REMOVED = 12  # ways to remove a class, and as many to remove two
Progress = Callable[[str, int, int], None]
Change = Callable[[Outputs], Outputs]


def judge_methods(
    runs: str | Path,
    out: str | Path,
    *,
    on: str | None = None,
    source: str | None = None,
    severities: Sequence[int] = SEVERITIES,
    changes: bool = False,
    beside: Sequence[str | Path] = (),
    device: str = "cpu",
    on_progress: Progress = lambda part, done, total: None,
) -> dict[str, Any]:
    """Judges every method on every model, and writes tables and pictures.

    What models say of images is kept beside their weights: run again, nothing is computed twice.

    Args:
        runs: A folder with the weights of several jobs of the same classes.
        out: Where `study.json` and the pictures go.
        on: A dataset of labelled domains; by default the source's images under corruptions.
        source: A labelled dataset (or DATASET/DOMAIN) that no model was trained on; by default what all runs, of one
            dataset and trial, held out.
        severities: Of the corruptions.
        changes: Judge the methods also on fewer images and without some classes; takes as long for each.
        beside: Folders of other studies to compare with: another testbed, training set or image size, other models.
        device: Where models predict.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        DataError: There are no weights, classes differ, or there is no study to compare with.
        StoreError: They are of a sealed sweep, and a domain that it tests is among those of `on`.
    """
    others = {str(folder): read_scores(Path(folder)) for folder in listed(beside)}
    folders = weight_folders(runs)
    if not folders:
        raise DataError(f"There are no weights in {runs}; `shiftbed train` keeps them.")
    datasets = () if on is None else (on,)
    pool = Pool(folders, datasets, source, device, on_progress, severities, trained_on(folders))
    found = pool.scores()
    made = write_study(found, Path(out), pool.scores(methods=DIRECT, calibrated=True))
    judged = found.varying()
    if changes:
        reduced = reductions(int(found.images.min()), pool.classes, pool.labels)
        places = [pool.names.index(name) for name in judged.classifiers]
        after = {what: pool.scores(change, places).varying() for what, change in reduced.items()}
        made["changes"] = write_changes(judged, after, Path(out))
    if others:
        made["beside"] = _finite(studies.beside_table(judged, others))
        write_json(made["beside"], Path(out) / "beside.json")
        made["differences"] = write_changes(judged, others, Path(out), "differences")
    return made


def read_scores(folder: Path) -> studies.Scores:
    """The scores that a study left in its folder.

    Raises:
        DataError: There is no study.
    """
    file = folder / SCORES
    if not file.exists():
        raise DataError(
            f"There is no study in {folder}; `shiftbed accuracy RUNS --out {quote(str(folder))}` makes one."
        )
    return studies.Scores.from_json(read_json(file)).varying()


def weight_folders(runs: str | Path) -> list[Path]:
    """The folders below this one in which a job left its weights."""
    return sorted(path.parent for path in Path(runs).rglob(WEIGHTS))


class Pool:
    """Models of the same classes, and the labelled images they are judged on.

    What models say of images is kept beside their weights.

    Args:
        folders: Where the weights of each are.
        on: Datasets whose domains are taken together; without any, the source's images under corruptions.
        source: A labelled dataset, or DATASET/DOMAIN, that no model was trained on; None is what the first held out.
        device: Where models predict.
        on_progress: Called with what is being done, how much is done, and how much there is.
        severities: Of the corruptions.
        seen: Datasets and domains that models were trained on, which nothing is judged by.

    Attributes:
        classes: The names of the classes.
        names: The models' names.

    Raises:
        DataError: Classes differ.
        StoreError: A domain is tested in a sealed sweep.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        on: Sequence[str],
        source: str | None,
        device: str,
        on_progress: Progress,
        severities: Sequence[int] = SEVERITIES,
        seen: Seen = (),
    ) -> None:
        models = [load(folder / WEIGHTS, device) for folder in folders]
        self.classes, self.names = models[0].classes, _names(models)
        for folder, model in zip(folders, models, strict=True):
            if model.classes != self.classes:
                both = f"{', '.join(self.classes)}; {', '.join(model.classes)}"
                raise DataError(f"The models in {folders[0]} and {folder} have other classes: {both}.")
        self._source = labelled_source(source, self.classes, seen) if source else _held_out_by_all(folders)
        if on:
            self._domains = self._labelled(on, seen)
            for folder in folders:
                refuse_sealed_test(folder, [domain.name for domain in self._domains])
        else:  # what differs in size is corrupted at the size of the network that sees most of it
            finest = max(models, key=lambda model: model.about["input_shape"][1:])
            self._domains = corrupted(of_one_size(self._source, finest), severities=severities)
        self._extract = [Extractor(model, LocalStore(folder)) for model, folder in zip(models, folders, strict=True)]
        self._predicted = _predictions(self._extract, [self._source, *self._domains], on_progress)
        self._on_progress = on_progress

    @property
    def labels(self) -> list[np.ndarray]:
        """Of every domain the classes of its images."""
        return [domain.labels for domain in self._domains if domain.labels is not None]

    def _labelled(self, datasets: Sequence[str], seen: Seen) -> list[DomainImages]:
        """The domains of several datasets, whose names may be the same, say which they are from."""
        found = [(name, domain) for name in datasets for domain in unseen(name, self.classes, seen)]
        if len(datasets) == 1:
            return [domain for _, domain in found]
        return [replace(domain, name=f"{name}/{domain.name}") for name, domain in found]

    def scores(
        self,
        change: Change = lambda domain: domain,
        of: Sequence[int] | None = None,
        methods: Sequence[str] = (),
        calibrated: bool = False,
    ) -> studies.Scores:
        """What methods say of the models, each with all others for its pool.

        Args:
            change: What is done to every domain first.
            of: The places of the models; all by default.
            methods: Names; all that can be computed by default.
            calibrated: Divide every model's logits by one temperature, fitted on the source.
        """
        places = range(len(self.names)) if of is None else of
        outputs = {self.names[place]: partial(self._outputs, place, change) for place in places}
        groups = {domain.name: domain.group for domain in self._domains}
        return studies.score_classifiers(outputs, groups, methods, calibrated, self._on_progress)

    def _outputs(self, place: int, change: Change) -> tuple[Outputs, Iterator[Outputs]]:
        """A model's outputs on the source and, one after the other, on the domains."""

        def of(number: int, domain: DomainImages) -> Outputs:
            others = np.delete(self._predicted[number], place, axis=0)
            return replace(self._extract[place](domain), pool=others if len(others) else None)

        return of(0, self._source), (change(of(number, domain)) for number, domain in enumerate(self._domains, 1))


def _held_out_by_all(folders: Sequence[Path]) -> DomainImages:
    """What the first run held out.

    Raises:
        DataError: Another run may have been trained on it.
    """
    splits: dict[tuple[Any, ...], Path] = {}
    for folder in folders:
        about = job_of(folder)
        if about is not None:
            splits.setdefault((about["dataset"], about["version"], about["trial"], about["recipe"]["holdout"]), folder)
    if len(splits) > 1:
        one, other = list(splits.values())[:2]
        raise DataError(
            f"The models in {one} and {other} held out different images (another dataset or trial), so that some were "
            "trained on what others are judged by; name labelled images that none was trained on with --source."
        )
    return held_out(folders[0])


def reductions(images: int, classes: Sequence[str], labels: Sequence[np.ndarray] = ()) -> dict[str, Change]:
    """By name, how domains are reduced: to fewer images, and by one class or two neighbouring ones.

    Args:
        images: How many the smallest domain has.
        classes: Their names; at least two of them stay.
        labels: Of every domain, its images' classes; at least two of its images stay.
    """
    made: dict[str, Change] = {
        f"{size} images": partial(studies.of_size, count=size) for size in studies.SIZES if size < images
    }
    numbers = range(len(classes))
    for gone in (*islice(combinations(numbers, 1), MOST_REMOVED), *islice(pairwise(numbers), MOST_REMOVED)):
        stay = [int((~np.isin(some, gone)).sum()) for some in labels]
        if len(classes) - len(gone) >= 2 and min(stay, default=FEWEST_IMAGES) >= FEWEST_IMAGES:
            made[f"without {' and '.join(classes[one] for one in gone)}"] = partial(studies.of_classes, removed=gone)
    return made


def write_changes(
    before: studies.Scores, after: Mapping[str, studies.Scores], out: Path, name: str = "changes"
) -> list[studies.Row]:
    """Writes how errors change from a study to others, corruptions left out whole, as a table and a picture."""
    table = studies.change_table(before, after, by_group=True)
    write_json(table, out / f"{name}.json")
    pictures.changes(table, out / f"{name}.png")
    return table


def write_study(scores: studies.Scores, out: Path, calibrated: studies.Scores) -> dict[str, Any]:
    """Writes the tables as JSON and the pictures beside it, without methods whose score is constant.

    Classifiers for which all are, which answer the same everywhere, are left out by name.

    Args:
        scores: What methods say.
        out: The folder.
        calibrated: What methods that are estimates themselves say of calibrated models.

    Raises:
        DataError: There are too few groups of domains, or no score varies.
    """
    groups = len(set(scores.groups.tolist()))
    if groups < FEWEST_GROUPS:
        raise DataError(
            f"There are labelled domains of {groups} groups; a study needs {FEWEST_GROUPS}, of which two are left out "
            "together."
        )
    judged = scores.varying()
    if not judged.values:
        raise DataError(
            f"No method says different things of the domains for {_listed(scores.classifiers)}: such models answer "
            "nearly the same everywhere; train them anew, or judge others."
        )
    left_out = [name for name in scores.classifiers if name not in judged.classifiers]
    constant = [name for name in scores.values if name not in judged.values]
    scores, calibrated = judged, calibrated.of(judged.classifiers)
    columns = {name: [name] for name in dict.fromkeys(scores.groups.tolist())}
    made: dict[str, Any] = {
        "classifiers left out": left_out,
        "constant scores": constant,
        "mae": studies.mae_table(scores, columns),
        "mae, groups left out": studies.mae_table(scores, by_group=True),
        "correlation": studies.correlation_table(scores),
        "direct": studies.direct_table(scores),
        "direct, calibrated": studies.direct_table(calibrated),
        "coverage": studies.coverage_table(scores),
        "spread": studies.spread_table(scores, by_group=True),
        "difficulty": studies.difficulty_table(scores, by_group=True),
        "groups": studies.group_agreement(scores),
        "images per group": studies.size_table(scores),
        "images per group against error": studies.size_effect(scores),
    }
    made = _finite(made)
    write_json(made, out / "study.json")
    write_json(scores.as_json(), out / SCORES)
    write_points(scores, out / "points.csv")
    write_cells(scores, out / "mae.csv")
    pictures.scatter(scores, out / "scatter.png", scores.classifiers[0])
    pictures.spread(scores, out / "spread.png")
    if made["groups"]:
        pictures.group_agreement(made["groups"], out / "groups.png")
    if len({row["images"] for row in made["images per group"]}) > 2:  # corruptions have equally many
        pictures.errors_by_images(made["images per group"], out / "images.png")
    for name in [name for name in ("ms-aol", "atc-mc") if name in scores.values][:1]:
        pictures.errors_by_accuracy(scores, out / "errors.png", name)
    if "frechet-distance" in scores.values:
        pictures.accuracy_by_distance(scores, out / "distance.png", scores.classifiers[0])
    return made


def _listed(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _finite(value: Any) -> Any:
    """What JSON can hold: a correlation that is not defined is nothing."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def write_points(scores: studies.Scores, path: Path) -> None:
    """Writes every classifier on every domain as a row: its accuracy, and each method's score and prediction."""
    points = {name: studies.points_table(scores, name, by_group=True) for name in scores.values}
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        heads = [head for name in points for head in (name, f"{name} predicted")]
        writer.writerow(["classifier", "domain", "group", "accuracy", *heads])
        for rows in zip(*points.values(), strict=True):
            who = [rows[0][key] for key in ("classifier", "domain", "group")]
            said = [row[key] for row in rows for key in ("score", "predicted")]
            writer.writerow([*who, *(f"{value:.5g}" for value in (rows[0]["accuracy"], *said))])


def write_cells(scores: studies.Scores, path: Path) -> None:
    """Writes the errors of every method for every classifier, one column a group, each domain left out alone."""
    rows = studies.cell_table(scores)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(rows[0])
        writer.writerows(
            [f"{value:.3f}" if isinstance(value, float) else value for value in row.values()] for row in rows
        )


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
