"""The command that measures shift."""

import json
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable

from shiftbed.cli.shared import STOPPED, AsJson, Device, app, console, names, next_command, only_with, say, word
from shiftbed.errors import DataError, ShiftbedError
from shiftbed.registry import one_of, whole_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from shiftbed.data import MultiDomainDataset
    from shiftbed.shift.estimates import ShiftEstimate
    from shiftbed.shift.matrix import ShiftMatrix
    from shiftbed.shift.measure import ShiftMeasurement
    from shiftbed.shift.measures import Settings
    from shiftbed.shift.samples import Sample

METHODS = ("ratio", "kde", "kde-paper")


@dataclass(frozen=True)
class Asked:
    """What is compared: the dataset, its sides, and as what its examples are taken."""

    dataset: "MultiDomainDataset"
    train: list[str]
    test: list[str]
    taken: dict[str, Any]
    features: str | None
    weights: str | None
    network: str | None
    seed: int
    device: str | None

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.dataset.card.name

    def samples(self, raw: bool = False, domains: "Sequence[str]" = ()) -> "dict[str, Sample]":
        """The examples of these domains, by default of all; or their features, if a network was named."""
        from shiftbed.shift.features import samples_of

        network, weights = (None, None) if raw else (self.features, self.weights)
        made_by: dict[str, Any] = {"network": network, "weights": weights, "device": self.settings().device}
        return samples_of(self.dataset, domains, **self.taken, **made_by)

    def sides(self, raw: bool = False) -> "tuple[Sample, Sample]":
        """The two sides."""
        from shiftbed.shift.features import named_sides, sides_of

        train, test = named_sides([one.name for one in self.dataset.domains], self.train, self.test)
        return sides_of(self.samples(raw, [*train, *test]), train, test)

    def settings(self) -> "Settings":
        """How measures are taken."""
        from shiftbed.shift.measures import Settings
        from shiftbed.training.device import find_runtime

        return Settings(seed=self.seed, network=self.network, device=find_runtime(self.device).device)


@app.command()
def shift(
    dataset: Annotated[str, typer.Argument(help="A dataset's name, a folder domain/class/image, or a manifest.")],
    train: Annotated[str, typer.Option(help="Training domains, separated by commas; by default all others.")] = "",
    test: Annotated[str, typer.Option(help="Test domains, separated by commas; by default the last.")] = "",
    method: Annotated[str, typer.Option(help="ratio, kde (the authors' later formula) or kde-paper.")] = "ratio",
    measures: Annotated[str, typer.Option(help="Other measures too: emd, mmd, …, or all, separated by commas.")] = "",
    matrix: Annotated[bool, typer.Option("--matrix", help="All pairs of domains, and each against the rest.")] = False,
    classes: Annotated[str, typer.Option(help="Only these classes, separated by commas.")] = "",
    size: Annotated[int | None, typer.Option(min=4, help="Bring images to this side first.")] = None,
    features: Annotated[str | None, typer.Option(help="Measure the features of this fixed network.")] = None,
    weights: Annotated[str | None, typer.Option(help="The weights of --features: a name or a file.")] = None,
    network: Annotated[
        str | None, typer.Option(help="The network that learns; by default what suits the inputs.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Networks trained, each with another fifth held out.")] = 5,
    most: Annotated[int | None, typer.Option(min=40, help="At most so many examples a side.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Of kde: fit thresholds to no shift.")] = False,
    baseline: Annotated[bool, typer.Option(help="Measure a pair without shift too.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything that is drawn.")] = 0,
    on: Annotated[Path | None, typer.Option(help="A folder of images without labels as the test side.")] = None,
    model: Annotated[Path | None, typer.Option(help="A trained model: bounds on its test error.")] = None,
    tsne: Annotated[bool, typer.Option("--tsne", help="Draw the examples by domain and by class too.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for numbers and pictures.")] = Path("shiftbed-shift"),
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measures how far apart domains are, and in what way.

    Diversity and correlation shift with intervals, other measures on request, and the pictures.
    """
    from shiftbed.report.live import work_bar
    from shiftbed.shift.duplicates import note_of_shared, shared_examples
    from shiftbed.shift.measures import MEASURES
    from shiftbed.training.store import write_json

    one_of(method, METHODS, "method")
    only_with("--features", features is not None, weights=weights)
    only_with("--method kde", method != "ratio", calibrate=calibrate)
    for name in names(measures) if measures != "all" else ():
        MEASURES[name]  # a wrong name is refused before anything is measured
    if on is not None and test:
        raise ShiftbedError("--on is the test side; leave --test out.")
    if on is not None and model is not None:
        raise ShiftbedError("--model needs the labels of both sides, and images of --on have none; leave one out.")
    given = {"--train": train, "--test": test, "--model": model, "--tsne": tsne}
    for option in (name for name, value in given.items() if value and matrix):
        raise ShiftbedError(f"{option} is about two sides, and --matrix compares all domains; leave one of them out.")
    opened = _opened(dataset, on, as_json)
    known = [domain.name for domain in opened.domains]
    tested = known[-1:] if on is not None else whole_names(names(test), known)
    if on is not None:
        measures = measures or "all"
    taken: dict[str, Any] = {"classes": whole_names(names(classes), opened.card.classes), "size": size}
    asked = Asked(opened, whole_names(names(train), known), tested, taken, features, weights, network, seed, device)
    if model is not None:
        _refuse_unusable(model, asked)  # before a measurement, which takes its time
    options: dict[str, Any] = {
        "method": method, "network": network, "runs": runs, "most": most, "calibrate": calibrate,
        "baseline": baseline, "seed": seed, "device": device,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)  # where it cannot be made, nobody should wait for a measurement first
    try:
        with work_bar(console) as bar:
            if matrix:
                _matrix(asked, options, names(measures), out, on, bar, as_json)
                return
            made, others, notes = _two_sides(asked, options, measures, bar)
            bounds = None if model is None else _bounds(model, asked)
            points = asked.samples() if tsne else {}
    except KeyboardInterrupt:
        console.print("\nStopped; a single measurement starts anew, a matrix goes on where it was.")
        raise typer.Exit(STOPPED) from None
    shared = shared_examples(opened)
    record = {**({} if made is None else made.as_json()), "others": [one.as_json() for one in others]}
    record["shared_examples"] = shared.tolist()
    if bounds is not None:
        record["bounds"] = bounds
    write_json(record, out / f"{asked.name}.json")
    pictures = _pictures(asked, made, points, shared, out)
    if as_json:
        print(json.dumps(record))
        return
    _print(made, others)
    if bounds is not None:
        _print_bounds(bounds)
    for line in notes + note_of_shared(opened, shared):
        say(line)
    say("Pictures: " + ", ".join(map(str, pictures)))
    again = f"shiftbed shift {word(dataset)}{_as_asked(classes, size)}"
    sides = "".join(
        f" --{name} {word(value)}" for name, value in (("train", train), ("test", test), ("on", on)) if value
    )
    beside = f" --on {word(on)}" if on else ""  # which is a domain of the matrix too, maybe its second
    next_command(f"{again}{beside} --matrix", *([] if measures else [f"{again}{sides} --measures all"]))


def _opened(dataset: str, on: Path | None, as_json: bool) -> "MultiDomainDataset":
    """The dataset, with images without labels as its last domain where a folder of them is given."""
    from shiftbed.report.live import work_bar
    from shiftbed.shift.features import open_dataset
    from shiftbed.shift.unlabelled import with_unlabelled

    with work_bar(console) as bar, warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        opened = open_dataset(dataset, bar)
    for note in noted if not as_json else ():
        say(str(note.message))
    return opened if on is None else with_unlabelled(opened, on)


def _two_sides(
    asked: Asked, options: dict[str, Any], measures: str, bar: Any
) -> "tuple[ShiftMeasurement | None, list[ShiftEstimate], list[str]]":
    """Diversity and correlation shift, unless only other measures can be had; these; and what could not be had."""
    from shiftbed.shift.measure import measure_shift

    made, notes = None, []
    try:
        made = measure_shift(
            asked.dataset, asked.train, asked.test, **asked.taken, features=asked.features,
            features_weights=asked.weights, on_progress=bar, **options,
        )  # fmt: skip
    except ShiftbedError as error:
        if not measures:
            raise
        notes.append(f"Diversity and correlation shift: {error}")
    others, why_not = _others(asked, measures)
    if made is None and not others:
        raise ShiftbedError(*notes)
    return made, others, notes + why_not


def _as_asked(classes: str, size: int | None) -> str:
    """The options that say as what examples are taken, for the next command."""
    return (f" --classes {word(classes)}" if classes else "") + (f" --size {size}" if size else "")


def _others(asked: Asked, measures: str) -> "tuple[list[ShiftEstimate], list[str]]":
    """Other measures between the two sides, and what those that cannot be taken need."""
    from shiftbed.shift.measures import MEASURES, take

    wanted = list(MEASURES) if measures == "all" else names(measures)
    if not wanted:
        return [], []
    p, q = asked.sides()
    found, why_not = [], []
    for name in wanted:
        if name == "diversity-correlation":
            continue
        missing = MEASURES[name].missing(p, q)
        if missing:
            why_not.append(f"{name} {missing}.")
            continue
        try:
            found += take(name, p, q, asked.settings())
        except DataError as error:
            why_not.append(f"{name}: {error}")
    return found, why_not


def _print(made: "ShiftMeasurement | None", others: "list[ShiftEstimate]") -> None:
    from shiftbed.shift.measures import NO_SHIFT

    title = "" if made is None else f"{made.dataset}: {made.train} against {made.test}, by {made.how.method}"
    table = RichTable("measure", "value", "95 %", "without shift", "examples", title=title, title_justify="left")
    for one in [*((made.diversity, made.correlation) if made else ()), *others]:
        interval = "" if one.interval is None else f"{one.interval[0]:.3f} to {one.interval[1]:.3f}"
        none = one.details.get(NO_SHIFT)
        shown = f"{one.value:.3f}" + ("" if one.standard_error is None else f" ± {one.standard_error:.3f}")
        table.add_row(one.name, shown, interval, "" if none is None else f"{none:.3f}", f"{one.count:,}")
    console.print(table)
    for one in others:
        for note in one.notes:
            say(f"{one.name}: {note}.")
    if made is None:
        return
    if made.accuracy is not None:
        say(bound_in_words(made.accuracy))
    for note in dict.fromkeys((*made.notes, *made.diversity.notes, *made.correlation.notes)):
        say(f"Note: {note}.")


def bound_in_words(accuracy: "ShiftEstimate") -> str:
    """What follows from how well held-out examples are told apart; of a share near one half that is nothing.

    The accuracy's interval tells it, and not its error: of examples that are all told apart that is 0.
    """
    assert accuracy.interval is not None
    low, high = accuracy.interval
    share = f"Held-out examples are told apart with accuracy {accuracy.value:.3f} (95 %: {low:.3f} to {high:.3f})"
    if low <= 0.5:
        return f"{share}, which chance gives too: nothing is known of their total variation."
    return f"{share}: their total variation is at least {2 * low - 1:.3f}."


def _refuse_unusable(run: Path, asked: Asked) -> None:
    """Refuses a folder without a model, and one of a sealed sweep, whose error on its test domain would be told."""
    from shiftbed.shift.features import named_sides
    from shiftbed.sweeps.blind import refuse_sealed_test
    from shiftbed.training.model import weights_file

    train, test = named_sides([one.name for one in asked.dataset.domains], asked.train, asked.test)
    refuse_sealed_test(weights_file(run).parent, [*train, *test])


def _bounds(run: Path, asked: Asked) -> dict[str, Any]:
    """NICO++'s bounds on a model's test error, and what of their finite-sample terms can be computed."""
    from shiftbed.shift.bounds import bounds_of, finite_sample_terms, predictor, unlearned

    settings = asked.settings()
    p, q = replace(asked, dataset=unlearned(asked.dataset, run)).sides(raw=True)
    found = bounds_of(predictor(run, asked.dataset.card.classes, settings.device), p, q, settings)
    terms = finite_sample_terms(p, q, settings)
    made = {
        "lower": found.lower, "upper": found.upper, "slack": found.slack, "holds": found.holds,
        "unavoidable": found.unavoidable,
    }  # fmt: skip
    return {**asdict(found), **made, "finite_sample": {**asdict(terms), "total": terms.total}}


def _print_bounds(bounds: dict[str, Any]) -> None:
    within = "between" if bounds["holds"] else "not between"
    terms = bounds["finite_sample"]
    lines = [
        f"The model errs in {bounds['train_error']:.3f} of the training side and {bounds['test_error']:.3f} of the "
        f"test side, {within} NICO++'s bounds {bounds['lower']:.3f} and {bounds['upper']:.3f} (covariate shift "
        f"{bounds['covariate']:.3f}, concept shift {bounds['concept_min']:.3f} to {bounds['concept_max']:.3f}; without "
        f"a shift it would be {bounds['floor']:.3f}, which the lower bound leaves out).",
        "As far as these estimates go, and if covariate shift is no more than that, a model without error on the "
        f"training side loses at least {bounds['unavoidable']:.3f} on the test side.",
        f"For samples of this size the bounds widen by at least {terms['total']:.2f}"
        + (", so that they promise nothing." if terms["total"] >= 1 else "."),
    ]
    for line in lines:
        say(line)


def _pictures(
    asked: Asked, made: "ShiftMeasurement | None", points: "dict[str, Sample]", shared: "np.ndarray", out: Path
) -> list[Path]:
    from shiftbed.shift import pictures

    opened, name = asked.dataset, asked.name
    drawn = [
        pictures.class_balance(opened, out / f"{name}-classes.png"),
        pictures.duplicates(opened, out / f"{name}-duplicates.png", shared),
    ]
    if points:
        drawn.append(pictures.embedding(points, opened.card.classes, out / f"{name}-tsne.png"))
    if made is not None:
        drawn.insert(0, pictures.plane({name: (made.diversity, made.correlation)}, out / f"{name}-plane.png"))
    return drawn


def _matrix(
    asked: Asked, options: dict[str, Any], measures: list[str], out: Path, on: Path | None, bar: Any, as_json: bool
) -> None:
    """Every pair of domains by every measure, with heat maps."""
    from shiftbed.shift import pictures
    from shiftbed.shift.estimates import WIDE
    from shiftbed.shift.matrix import matrix as every_pair
    from shiftbed.training.store import write_json

    name = asked.name
    wanted = [] if measures == ["all"] else measures or ["diversity-correlation"]
    saved = out / f"{name}-pairs.kept"
    how = tuple((name, options[name]) for name in ("method", "network", "runs", "most", "calibrate", "baseline"))
    settings = replace(asked.settings(), how=how)
    found = every_pair(asked.samples(), wanted, settings, saved=saved, on_progress=bar)
    if not found.names:
        raise DataError(f"No pair of domains can be measured. {found.missing[0]}")
    write_json(found.as_json(), out / f"{name}-matrix.json")  # for figures and the page
    if as_json:
        print(json.dumps(found.as_json()))
        return
    drawn = []
    for measure in found.names:
        _print_measure(found, measure)
        drawn.append(pictures.heat_map(found, measure, out / f"{name}-{measure}.png"))
    console.print("In brackets: no more than chance gives without shift.", highlight=False)
    if any(one.is_too_wide for cell in found.cells for one in cell.estimates):
        say(f"?: the interval is {WIDE}.")
    for line in found.missing:
        say(line)
    say("Pictures: " + ", ".join(map(str, drawn)))
    taken = _as_asked(",".join(asked.taken["classes"]), asked.taken["size"])
    measured = {side for cell in found.cells if cell.estimates for side in (cell.first, cell.second)}
    last = next((one for one in reversed(found.domains) if one in measured), found.domains[-1])
    side = f"--on {word(on)}" if on else f"--test {word(last)}"
    next_command(f"shiftbed shift {word(name)} {side}{taken}")


def _print_measure(found: "ShiftMatrix", measure: str) -> None:
    """One estimate between all domains, in as many tables as the terminal needs to show whole names and numbers."""
    from shiftbed.shift.matrix import REST

    domains = list(found.domains)
    columns = [*domains, *([REST] if len(domains) > 2 else [])]
    cells = [[_in_matrix(found.estimate(measure, one, other)) for other in columns] for one in domains]
    widest = max(len(line) for row in [columns, *cells] for text in row for line in text.split("\n"))
    count = max(1, (console.width - max(map(len, [measure, *domains])) - 4) // (widest + 3))
    for start in range(0, len(columns), count):
        part = slice(start, start + count)
        table = RichTable(measure, *columns[part])
        for domain, row in zip(domains, cells, strict=True):
            table.add_row(domain, *row[part])
        console.print(table)


def _in_matrix(one: "ShiftEstimate | None") -> str:
    """An estimate as a matrix prints it, marked where it says little; below it, its standard error."""
    from shiftbed.shift.measures import is_seen

    if one is None:
        return ""
    shown = f"{one.value:.3f}" + ("?" if one.is_too_wide else "")
    by_chance = one.interval is not None and not is_seen(one)
    error = "" if one.standard_error is None else f"\n±{one.standard_error:.3f}"
    return (f"({shown})" if by_chance else shown) + error
