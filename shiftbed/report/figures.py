"""The figures of the papers, by name, drawn from a folder of results: `shiftbed figure NAME DIR --out figure.pdf`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from shiftbed.accuracy.kept import ACCURACY, predictions
from shiftbed.data import MultiDomainDataset, load
from shiftbed.errors import DataError, ShiftbedError, StoreError
from shiftbed.registry import Registry, did_you_mean
from shiftbed.report import figures_drawn as drawn
from shiftbed.shift.kept import MATRIX, SHIFT, points_in
from shiftbed.sweeps.records import no_finished_job
from shiftbed.tables import Table, improvements
from shiftbed.tables.table import BASELINE
from shiftbed.training.store import read_json

SELECTION = "training-domain-validation"
METHOD = "atc-mc"


@dataclass(frozen=True)
class Asked:
    """What a figure is asked to show.

    Attributes:
        folder: The folder of results.
        dataset: One dataset of several.
        selection: The rule that chose the models.
        method: The method that predicts accuracy.
        classifier: The classifier whose accuracy is predicted; the first by default.
        kind: The class whose images are shown.
        measure: The measure of shift.
    """

    folder: Path
    dataset: str | None = None
    selection: str = SELECTION
    method: str = METHOD
    classifier: str | None = None
    kind: str | None = None
    measure: str | None = None


@dataclass(frozen=True)
class FigureEntry:
    """A figure: what it shows, in which paper it stands, the options it reads, and how it is drawn."""

    name: str
    summary: str
    paper: str
    options: tuple[str, ...]
    draw: Callable[[Asked, Path], Path]

    @property
    def words(self) -> list[str]:
        """The options as the command line calls them."""
        return [_word(option) for option in self.options]


def _word(option: str) -> str:
    return "class" if option == "kind" else option  # `class` is a word of Python's own


TSNE_SIDE = 64  # to which images are brought whose sizes differ
FIGURES: Registry[FigureEntry] = Registry("figure", "shiftbed.report.figures")


def _figure(name: str, paper: str, *options: str) -> Callable[[Callable[[Asked, Path], Path]], Any]:
    def register(draw: Callable[[Asked, Path], Path]) -> Callable[[Asked, Path], Path]:
        FIGURES.add(name, FigureEntry(name, (draw.__doc__ or "").splitlines()[0], paper, options, draw))
        return draw

    return register


def figure(name: str, folder: str | Path, out: str | Path, **options: Any) -> Path:
    """Draws a figure from a folder of results.

    Args:
        name: The figure's name (see `shiftbed figures`).
        folder: A sweep's folder, with `shift`, `accuracy` and `audit` below it where the figure needs them, or one that
            `shiftbed shift` or `shiftbed accuracy` wrote; for figures of a dataset alone, any folder.
        out: A PDF, SVG or PNG file.
        options: Which of several things to show: the fields of `Asked` that the figure reads.

    Returns:
        The file.

    Raises:
        ShiftbedError: There is no such figure or option, or the folder has not what it shows.
    """
    entry = FIGURES[name]
    given = {key: value for key, value in options.items() if value is not None}
    for option in given:
        if option not in entry.options:
            raise ShiftbedError(
                f"The figure {entry.name} has no option '{_word(option)}'; it has {', '.join(entry.words) or 'none'}."
            )
    if Path(folder).is_file():
        raise no_finished_job(folder)
    return entry.draw(replace(Asked(Path(folder)), **given), Path(out))


# --- shift ------------------------------------------------------------------------------------------------------------


@_figure("shift-plane", "OoD-Bench, figure 3")
def _plane(asked: Asked, path: Path) -> Path:
    """Diversity and correlation shift of the measured datasets, among the published ones."""
    from shiftbed.shift.pictures import plane

    points = points_in(_place(asked, SHIFT))
    if not points:
        raise _lacking(
            asked, SHIFT, "shift was measured", f"shiftbed shift DATASET --out {quote(str(asked.folder / SHIFT))}"
        )
    return plane(points, path)


@_figure("shift-grid", "OoD-Bench, figure 4")
def _grid(asked: Asked, path: Path) -> Path:
    """Diversity and correlation shift as colours and their correlation with the label vary."""
    from shiftbed.shift.pictures import grids

    parts = [read_json(one) for one in sorted(asked.folder.glob("figure-4-*.json"))]
    if not parts:
        raise _lacking(
            asked,
            "",
            "the grid was measured",
            f"shiftbed benchmark ood-bench-figure-4 --out {quote(str(asked.folder))}",
        )
    panels = {part["title"]: drawn.matrix(part["values"]) for part in parts}
    labels = {part["title"]: tuple(part["labels"]) for part in parts}
    return grids(panels, labels, path)


@_figure("shift-matrix", "OoD-Bench, NICO++", "dataset", "measure")
def _shift_matrix(asked: Asked, path: Path) -> Path:
    """One measure of shift between all domains, similar ones beside each other."""
    from shiftbed.shift.matrix import ShiftMatrix
    from shiftbed.shift.pictures import heat_map

    files = sorted(_place(asked, SHIFT).glob(f"{asked.dataset or '*'}{MATRIX}"))
    if not files:
        name = asked.dataset or "DATASET"
        command = f"shiftbed shift {name} --matrix --out {quote(str(asked.folder / SHIFT))}"
        raise _lacking(
            asked, SHIFT, f"all pairs of domains{f' of {name}' if asked.dataset else ''} were measured", command
        )
    matrix = ShiftMatrix.from_json(read_json(files[0]))
    measure = asked.measure or matrix.names[0]
    if measure not in matrix.names:
        raise DataError(f"{files[0]} has no measure '{measure}'.{did_you_mean(measure, matrix.names)}")
    return heat_map(matrix, measure, path)


# --- data -------------------------------------------------------------------------------------------------------------


@_figure("class-counts", "NICO++, figure 1", "dataset")
def _class_counts(asked: Asked, path: Path) -> Path:
    """How many examples every domain has of every class."""
    return drawn.class_counts(_dataset(asked), path)


@_figure("tsne", "CIFAR-10-W, figure 8", "dataset", "kind")
def _tsne(asked: Asked, path: Path) -> Path:
    """A t-SNE of the images of one class, by domain."""
    from shiftbed.shift.features import samples_of
    from shiftbed.shift.pictures import embedding

    dataset = _dataset(asked)
    kind = asked.kind or dataset.card.classes[0]
    size = None if dataset.card.input_shape else TSNE_SIDE
    return embedding(samples_of(dataset, classes=[kind], size=size), [kind], path)


# --- sweeps -----------------------------------------------------------------------------------------------------------


@_figure("leaderboard", "DomainBed, OoD-Bench", "dataset", "selection")
def _leaderboard(asked: Asked, path: Path) -> Path:
    """Accuracy of every algorithm by dataset, with standard errors."""
    return drawn.leaderboard(_tables(asked), path)


@_figure("improvement", "CIFAR-10-W, figures 5, 13 and 14", "dataset", "selection")
def _improvement(asked: Asked, path: Path) -> Path:
    """Improvement over ERM against ERM's accuracy, one point a test domain, with densities on the margins."""
    rows = [row for table in _tables(asked) for row in improvements(table)]
    if not rows:
        raise DataError(f"An improvement over {BASELINE} needs {BASELINE} and another algorithm; sweep both.")
    return drawn.improvement(rows, BASELINE, path)


@_figure("frozen-stages", "Rethinking the evaluation protocol, figure 1", "dataset")
def _frozen(asked: Asked, path: Path) -> Path:
    """Accuracy on every test domain as more stages of the network stay frozen."""
    file = asked.folder / "audit" / "study.json"
    rows = [row for row in (read_json(file) if file.exists() else ()) if asked.dataset in (None, row["dataset"])]
    if not rows:
        raise _lacking(asked, "audit", "stages were frozen", f"shiftbed audit {quote(str(asked.folder))} --run")
    return drawn.frozen_stages(rows, path)


# --- accuracy prediction ----------------------------------------------------------------------------------------------


@_figure("prediction-scatter", "CIFAR-10-W, figures 2 and 9", "classifier")
def _scatter(asked: Asked, path: Path) -> Path:
    """Accuracy against the score of every method, one point a domain."""
    from shiftbed.accuracy.pictures import scatter

    scores = _scores(asked)
    return scatter(scores, path, _classifier(asked, scores))


@_figure("predictions", "CIFAR-10-W, task I")
def _predictions(asked: Asked, path: Path) -> Path:
    """Accuracy as predicted without labels against the truth, with intervals."""
    rows = predictions(asked.folder)
    if not rows:
        commands = f"shiftbed sweep ... --keep final`, then `shiftbed predict {quote(str(asked.folder))}"
        raise _lacking(asked, ACCURACY, "accuracies were predicted", commands)
    return drawn.predictions(rows, path)


@_figure("prediction-error", "CIFAR-10-W, figure 12", "method")
def _error(asked: Asked, path: Path) -> Path:
    """The error of a method against accuracy, one point a classifier and domain."""
    from shiftbed.accuracy.pictures import errors_by_accuracy

    scores = _scores(asked)
    if asked.method not in scores.values:
        raise DataError(f"The study has no method '{asked.method}'.{did_you_mean(asked.method, list(scores.values))}")
    return errors_by_accuracy(scores, path, asked.method)


@_figure("frechet-distance", "CIFAR-10-W, figure 7", "classifier")
def _distance(asked: Asked, path: Path) -> Path:
    """Accuracy against the Fréchet distance to the source, one point a domain."""
    from shiftbed.accuracy.pictures import accuracy_by_distance

    scores = _scores(asked)
    return accuracy_by_distance(scores, path, _classifier(asked, scores))


@_figure("classifier-difficulty", "CIFAR-10-W, figure 4 B")
def _difficulty(asked: Asked, path: Path) -> Path:
    """The error of all methods together on every classifier, the hardest first."""
    from shiftbed.accuracy.studies import difficulty_table

    return drawn.difficulty(difficulty_table(_scores(asked), by_group=True), path)


@_figure("classifier-spread", "CIFAR-10-W, figure 3 A")
def _spread(asked: Asked, path: Path) -> Path:
    """The error of every method, one point a classifier."""
    from shiftbed.accuracy.pictures import spread

    return spread(_scores(asked), path)


@_figure("class-removal", "CIFAR-10-W, figure 3 C")
def _removal(asked: Asked, path: Path) -> Path:
    """How the error of every method changes when classes are missing."""
    return _changes(asked, path, "without ")


@_figure("set-size", "CIFAR-10-W, figure 4 A")
def _sizes(asked: Asked, path: Path) -> Path:
    """How the error of every method changes when there are fewer images."""
    return _changes(asked, path, "images")


# --- what figures are drawn from --------------------------------------------------------------------------------------


def _changes(asked: Asked, path: Path, word: str) -> Path:
    from shiftbed.accuracy.pictures import changes

    file = _place(asked, ACCURACY) / "changes.json"
    if not file.exists():
        command = f"shiftbed accuracy RUNS --changes --out {quote(str(asked.folder / ACCURACY))}"
        raise _lacking(asked, ACCURACY, "sets were reduced", command)
    rows = [
        {key: value for key, value in row.items() if key in ("method", "mae") or word in key} for row in read_json(file)
    ]
    if not any(word in key for row in rows for key in row):
        raise DataError(f"{file} has no such sets: the domains of the study have too few images or classes.")
    return changes(rows, path)


def _scores(asked: Asked) -> Any:
    from shiftbed.accuracy.scores import Scores

    file = _place(asked, ACCURACY) / "scores.json"
    if not file.exists():
        command = f"shiftbed accuracy RUNS --out {quote(str(asked.folder / ACCURACY))}"
        raise _lacking(asked, ACCURACY, "methods were judged", command)
    return Scores.from_json(read_json(file))


def _classifier(asked: Asked, scores: Any) -> str:
    name = asked.classifier or scores.classifiers[0]
    if name not in scores.classifiers:
        raise DataError(f"The study has no classifier '{name}'.{did_you_mean(name, list(scores.classifiers))}")
    return name


def _tables(asked: Asked) -> list[Table]:
    """The tables of the selection; an oracle's looks are written down."""
    from shiftbed.audit.ledger import read_tables

    tables = read_tables(asked.folder, [asked.selection])
    found = [table for table in tables if asked.dataset in (None, table.dataset) and not table.is_empty]
    if not found:
        known = sorted({table.dataset for table in tables if not table.is_empty})
        has = f"it has {', '.join(known)}" if known else f"{asked.selection} chooses nothing there"
        raise DataError(f"{asked.folder} has no results{f' on {asked.dataset}' if asked.dataset else ''}; {has}.")
    return found


def _dataset(asked: Asked) -> MultiDomainDataset:
    """The dataset that is named, or the first of the sweep."""
    from shiftbed.sweeps.records import finished_jobs
    from shiftbed.training.store import LocalStore

    if asked.dataset is not None:
        return load(asked.dataset)
    first = next(iter(finished_jobs(LocalStore(asked.folder))), None)
    if first is None:
        raise StoreError(f"There is no finished job in {asked.folder}; name a dataset with --dataset.")
    return load(first.description["dataset"])


def _place(asked: Asked, below: str) -> Path:
    """Where results of a kind lie: below a sweep's folder, or in the folder that was named, as the verb's --out was."""
    return asked.folder / below if (asked.folder / below).is_dir() else asked.folder


def _lacking(asked: Asked, below: str, what: str, command: str) -> StoreError:
    return StoreError(f"There is nothing in {asked.folder / below} that says {what}; `{command}` makes it.")
