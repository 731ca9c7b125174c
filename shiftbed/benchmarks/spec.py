"""Benchmarks as data: a paper's whole experiment in one versioned file, read into checked objects."""

from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from shiftbed import published
from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import card
from shiftbed.errors import ShiftbedError, UnknownNameError, what_is_wrong
from shiftbed.hparams import Value
from shiftbed.protocols import PROTOCOLS
from shiftbed.registry import did_you_mean
from shiftbed.selection import SELECTIONS
from shiftbed.training.recipes import recipe, recipe_names
from shiftbed.yaml_files import names_in, parse_yaml, read_yaml

Kind = Literal["sweep", "shift", "accuracy"]
View = Literal["domains", "spread", "groups", "overall", "variance", "leakage"]
FOLDER = files("shiftbed.benchmarks") / "files"
ALL = "all"


class Checked(BaseModel):
    """What a benchmark file may hold: nothing that is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Search(Checked):
    """How hyperparameters are searched.

    Attributes:
        design: redraw: every trial has draws of its own (DomainBed); search-once: the first trial searches, the others
            repeat its choice (DomainBed-v2); fixed: the default values; groups: stated sets of values.
        draws: Draws of a trial that searches.
        trials: Repetitions.
        groups: The stated sets of values.
    """

    design: Literal["redraw", "search-once", "fixed", "groups"] = "redraw"
    draws: int = Field(default=1, ge=1)
    trials: int = Field(default=1, ge=1)
    groups: tuple[dict[str, Value], ...] = ()


class Reference(Checked):
    """Where the paper's numbers of a part stand.

    Attributes:
        tables: Names of published tables; of a cell that several have, the first counts.
        labels: Labels that its cells have and that the part does not say, or says otherwise (an algorithm's other name,
            a selection that the paper does not state).
        differs: Why no cell compares, if the paper itself took these numbers from elsewhere.
    """

    tables: tuple[str, ...]
    labels: dict[str, str] = {}
    differs: str = ""

    def cell(self, **labels: str) -> published.Cell | None:
        """The paper's number with these labels, where its own labels do not say otherwise; None if it has none."""
        wanted = labels | self.labels
        for name in self.tables:
            for cell in published.table(name):
                if all(getattr(cell, label) == value for label, value in wanted.items()):
                    return cell
        return None

    @model_validator(mode="after")
    def _there_are_such_tables(self) -> "Reference":
        for name in self.tables:
            published.table(name)
        for label in self.labels:
            if label not in published.LABELS:
                raise UnknownNameError(f"Published cells have no label '{label}'.")
        return self


class Part(Checked):
    """One dataset's share of a benchmark.

    Attributes:
        name: What tells it from other parts; the dataset's name by default.
        dataset: The dataset's name.
        version: The version that the paper's numbers are about.
        published: The paper's numbers, if it has any.
        unstated: What the paper does not say of its experiment: then ours is not known to be the same.
        trends: Columns that the paper defines too loosely for their values to be compared: no difference is shown.
    """

    name: str
    dataset: str
    version: int | str = 1
    published: Reference | None = None
    unstated: tuple[Literal["algorithm", "backbone", "weights", "steps", "draws", "trials", "selection"], ...] = ()
    trends: tuple[str, ...] = ()


def _algorithms(names: Any) -> Any:
    """`all` stands for every registered algorithm."""
    return tuple(ALGORITHMS) if names == ALL else names


class SweepPart(Part):
    """A sweep: algorithms on a dataset under one recipe, protocol, search and selection.

    Attributes:
        algorithms: Names of algorithms, or `all`.
        recipe: How each model is trained.
        fields: Fields of the recipe that differ from it.
        overrides: Hyperparameters set by hand.
        protocol: Who trains and who is tested.
        test: The domains to test, where not all that the protocol lists.
        search: How hyperparameters are searched.
        selections: The rules that choose.
        view: What its table shows: accuracy by domain; these with NICO++'s spread; by group of domains; over all
            images; the deviations over epochs and trials; what an oracle leaks that sees some of the test domains.
    """

    algorithms: Annotated[tuple[str, ...], BeforeValidator(_algorithms)]
    recipe: str
    fields: dict[str, Any] = {}
    overrides: dict[str, Value] = {}
    protocol: str = "leave-one-domain-out"
    test: tuple[str, ...] = ()
    search: Search = Search()
    selections: tuple[str, ...] = ("training-domain-validation",)
    view: View = "domains"

    @model_validator(mode="after")
    def _all_names_are_known(self) -> "SweepPart":
        for name in self.algorithms:
            ALGORITHMS[name]
        for name in self.selections:
            SELECTIONS[name]
        if self.recipe not in recipe_names():
            raise UnknownNameError(f"There is no recipe '{self.recipe}'.{did_you_mean(self.recipe, recipe_names())}")
        recipe(self.recipe, card(self.dataset).name, **self.fields)
        PROTOCOLS[self.protocol]
        return self


class ShiftPart(Part):
    """Measurements of shift between domains.

    Attributes:
        measures: Names of measures.
        settings: By the paper's name of a setting, what its data are made or taken with.
        grid: In place of settings, values of each option: all combinations are measured.
        runs: Repetitions of every measurement.
        any_dataset: Whether the same can be measured of datasets that the paper has not.
    """

    measures: tuple[str, ...]
    settings: dict[str, dict[str, Any]] = {}
    grid: dict[str, tuple[float, ...]] = {}
    runs: int = Field(default=1, ge=1)
    any_dataset: bool = False

    def options(self) -> dict[str, dict[str, Any]]:
        """What the data of each setting are made or taken with, by its name."""
        if not self.grid:
            return self.settings or {"": {}}
        combined = [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        return {", ".join(f"{name} {value:g}" for name, value in one.items()): one for one in combined}


class AccuracyPart(Part):
    """Predictions of accuracy without labels.

    Attributes:
        predictors: Names of accuracy predictors.
        classifiers: Names of classifiers, or what many of them are called together.
        averaged: How many classifiers such a name stands for.
        trained_on: The dataset that the classifiers learned from.
        source: A labelled dataset, or DATASET/DOMAIN, that they did not learn from; by default what they held out.
        domains_of: Datasets whose domains are taken together, where the part's own name stands for several.
        columns: By name, groups of domains (or domains) that have a column together.
    """

    predictors: tuple[str, ...]
    classifiers: tuple[str, ...]
    averaged: int = Field(default=1, ge=1)
    trained_on: str
    source: str = ""
    domains_of: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = {}


PARTS: dict[str, type[Part]] = {"sweep": SweepPart, "shift": ShiftPart, "accuracy": AccuracyPart}


class Benchmark(Checked):
    """A paper's whole experiment.

    Attributes:
        name: Its name.
        version: Raised whenever the experiment changes.
        kind: Which room runs it.
        summary: What it is.
        paper: Whose experiment it is.
        notes: What the paper does not say and what was taken instead, and what differs from it anyway.
        parts: The experiment, dataset by dataset.
    """

    name: str
    version: int = Field(ge=1)
    kind: Kind
    summary: str
    paper: str = ""
    notes: tuple[str, ...] = ()
    parts: tuple[SweepPart, ...] | tuple[ShiftPart, ...] | tuple[AccuracyPart, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _part_names_differ(self) -> "Benchmark":
        names = [part.name for part in self.parts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ShiftbedError(f"Two parts of benchmark '{self.name}' are called {twice[0]}; name them apart.")
        return self

    @property
    def datasets(self) -> list[str]:
        """The datasets of its parts, each once."""
        return list(dict.fromkeys(part.dataset for part in self.parts))

    @property
    def algorithms(self) -> list[str]:
        """The algorithms of its parts, each once."""
        return list(dict.fromkeys(name for part in self.parts for name in getattr(part, "algorithms", ())))

    @property
    def selections(self) -> list[str]:
        """The rules of its parts, each once."""
        return list(dict.fromkeys(name for part in self.parts for name in getattr(part, "selections", ())))


def benchmark_names() -> list[str]:
    """The benchmarks there are."""
    return names_in(FOLDER)


@cache
def find(name: str) -> Benchmark:
    """A benchmark by its name.

    Raises:
        UnknownNameError: There is no such benchmark.
    """
    if name not in benchmark_names():
        hint = did_you_mean(name, benchmark_names())
        raise UnknownNameError(f"There is no benchmark '{name}'.{hint} --file runs one of your own.")
    return parse((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), name)


def read(path: str | Path) -> Benchmark:
    """A benchmark from anyone's file.

    Raises:
        ShiftbedError: The file is not there, or is no benchmark.
    """
    if not Path(path).is_file():
        raise ShiftbedError(f"There is no file {path}; `shiftbed benchmarks` lists those that come with shiftbed.")
    return _benchmark(read_yaml(Path(path), str(path)), str(path))


def parse(text: str, where: str) -> Benchmark:
    """A benchmark from YAML: each of its `parts` over what `every` part has; `datasets` stands for a part each.

    Raises:
        ShiftbedError: It is not YAML, or a field is missing, unknown or impossible; the sentence says which.
    """
    return _benchmark(parse_yaml(text, where), where)


def _benchmark(fields: Any, where: str) -> Benchmark:
    if not isinstance(fields, dict) or not isinstance(fields.get("parts"), list):
        raise ShiftbedError(f"{where} is no benchmark: it needs a list called parts; see `shiftbed benchmarks --help`.")
    every = fields.pop("every", None) or {}
    entries = fields.pop("parts")
    if not all(isinstance(entry, dict) for entry in (every, *entries)):
        raise ShiftbedError(f"{where} is no benchmark: every and each of its parts must be names with values.")
    expanded = [part for entry in entries for part in _of_datasets({**every, **entry}, where)]
    if fields.get("kind") not in [*PARTS]:
        raise ShiftbedError(f"{where} has no kind; it must be one of {', '.join(PARTS)}.")
    try:
        parts: Any = tuple(PARTS[fields["kind"]](**entry) for entry in expanded)
        return Benchmark(**fields, parts=parts)
    except ValidationError as error:
        raise ShiftbedError(f"{where} {what_is_wrong(error.errors()[0])}.") from error
    except ShiftbedError as error:
        raise ShiftbedError(f"{where}: {error}") from error


def _of_datasets(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """An entry as parts of one dataset each, whose name stands in place of `{dataset}`."""
    fields = {key: value for key, value in entry.items() if key != "datasets"}
    datasets = entry.get("datasets", [entry.get("dataset")])
    if not isinstance(datasets, list):
        raise ShiftbedError(f"{where} has a wrong 'datasets': it must be a list, as in [{datasets}].")
    name = str(fields.get("name", "{dataset}"))
    return [{**fields, "dataset": one, "name": name.replace("{dataset}", str(one))} for one in datasets]
