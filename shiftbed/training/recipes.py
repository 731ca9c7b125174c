"""Recipes: how one model is trained, as data files beside this module, or a file of one's own."""

import math
from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shiftbed.data import card
from shiftbed.errors import ShiftbedError, StoreError, UnknownNameError, what_is_wrong
from shiftbed.hashing import canonical
from shiftbed.hparams import DEFAULT_SPACE, Value
from shiftbed.networks import NETWORKS, weights_digest
from shiftbed.registry import did_you_mean
from shiftbed.training.augment import Augmentation
from shiftbed.training.device import Precision
from shiftbed.training.streams import Sampling
from shiftbed.yaml_files import names_in, parse_yaml, read_yaml

FOLDER = files("shiftbed.training") / "recipes"
ARITHMETIC = {
    *("network", "steps", "sampling", "image_size", "batch_norm", "optimizer", "schedule", "drop_at"),
    *("warm_up", "augmentation", "augment_validation"),
}


class Recipe(BaseModel):
    """How one model is trained, resolved for one dataset.

    Attributes:
        name: The recipe's name.
        summary: What it is for.
        paper: Whose recipe it is.
        network: The featurizer's name.
        steps: Updates in all.
        evaluate_every: Updates between two evaluations; the last step is always evaluated.
        evaluate_first: Evaluate after the first update too, as DomainBed does; algorithms learn nothing from that.
        holdout: The share of every domain that is held out.
        sampling: How a domain's stream draws its examples.
        image_size: The side to which larger images are reduced, or None.
        initial_weights: The name or file of the featurizer's initial weights; None is random ones.
        batch_norm: Whether batch norm's statistics, and its scale and shift, are trained.
        optimizer: Of the main network; algorithms with several keep the kind their authors say.
        schedule: Of the learning rate: constant, cosine to 0, or a tenth from `drop_at` of the steps on.
        drop_at: The share of the steps after which the rate drops.
        warm_up: The share of the steps in which the rate first rises to its initial value, evenly.
        augmentation: How training images are changed: a scheme's name, or its fields.
        augment_validation: Change validation images too, as DomainBed's repository does.
        precision: The arithmetic.
        space: The named search space that draws come from.
        fixed: Hyperparameters that the recipe states instead of drawing them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    paper: str = ""
    network: str
    steps: int = Field(gt=0)
    evaluate_every: int = Field(gt=0)
    evaluate_first: bool = False
    holdout: float = Field(gt=0, lt=1)
    sampling: Sampling = "with-replacement"
    image_size: int | None = Field(default=None, gt=0)
    initial_weights: str | None = None
    batch_norm: Literal["trained", "frozen-statistics", "frozen"] = "trained"
    optimizer: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "cosine", "drop"] = "constant"
    drop_at: float = Field(default=0.5, gt=0, lt=1)
    warm_up: float = Field(default=0.0, ge=0, lt=1)
    augmentation: Augmentation = Augmentation()
    augment_validation: bool = False
    precision: Precision = "float32"
    space: str = DEFAULT_SPACE
    fixed: dict[str, Value] = {}

    def is_due(self, step: int) -> bool:
        """Whether the model is evaluated after so many updates, be it only because they are the first."""
        return self.is_regular(step) or (self.evaluate_first and step == 1)

    def is_regular(self, step: int) -> bool:
        """Whether an algorithm may learn from the evaluation after so many updates."""
        return step % self.evaluate_every == 0 or step == self.steps

    @property
    def evaluations(self) -> int:
        """How often a model is evaluated."""
        extra = self.evaluate_first and not self.is_regular(1)
        return math.ceil(self.steps / self.evaluate_every) + extra

    def arithmetic(self) -> dict[str, Any]:
        """The fields that touch arithmetic and are not in a job's splits or hyperparameters already.

        Fields at their default are left out, so that a field added later renames no job.
        """
        return self.model_dump(include=ARITHMETIC, exclude_defaults=True)

    @cached_property
    def identity(self) -> bytes:
        """What a job's id says of the recipe: its arithmetic, its network and initial weights, its precision."""
        revision = NETWORKS[self.network].revision
        weights = weights_digest(self.initial_weights, self.network)  # None for random ones
        return canonical([self.arithmetic(), revision, weights, self.precision])[1:-1]

    @cached_property
    def setting(self) -> bytes:
        """What jobs must share of the recipe to stand in one table, as canonical JSON."""
        how = [self.name, self.arithmetic(), self.holdout, self.fixed]
        # Left out at their defaults, so that tables of before stay whole.
        how += [value for value in (self.initial_weights, self.precision) if value not in (None, "float32")]
        how += [{"space": self.space}] if self.space != _own_space(self.name) else []
        return canonical(how)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A recipe with other fields; pydantic's own copy would keep the identity that was computed of the old ones."""
        return type(self)(**{**self.model_dump(), **(update or {})})

    def for_networks(self) -> dict[str, Any]:
        """What a network and its optimizer must know, as it is added to the hyperparameters."""
        return self.model_dump(include={"network", "initial_weights", "batch_norm", "optimizer"})


def domainbed_names(network: str, augmentation: Augmentation) -> dict[str, bool]:
    """What a recipe says, by the names of DomainBed's constants: a class that reads one runs as it was published.

    They are no hyperparameters here. A class that has one of this name of its own is given its own.
    """
    return {
        "resnet18": network == "resnet18",
        "class_balanced": False,
        "data_augmentation": augmentation.is_random,
    }


def recipe_names() -> list[str]:
    """The recipes there are."""
    return names_in(FOLDER)


@lru_cache
def _recipe_file(name: str) -> dict[str, Any]:
    if name not in recipe_names():
        raise UnknownNameError(f"There is no recipe '{name}'.{did_you_mean(name, recipe_names())}")
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    fields = parse_yaml(text, f"The recipe {name}")
    included = fields.pop("include", None)
    return _merged(_recipe_file(included), fields) if included else fields


class _Layers(BaseModel):
    """What of a recipe's file is no field of the recipe; the other fields are checked when all are put together."""

    model_config = ConfigDict(extra="allow")

    include: str | None = None
    small: dict[str, Any] = {}
    large: dict[str, Any] = {}
    datasets: dict[str, dict[str, Any]] = {}


def _own_file(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The recipe that a file of one's own includes, and the fields in which it differs; it is named as its file."""
    fields = read_yaml(path, f"The recipe {path}")
    if not isinstance(fields, dict):
        raise ShiftbedError(f"The recipe {path} is not a table of fields such as `include: domainbed`.")
    if path.stem in recipe_names():
        raise ShiftbedError(f"There is a recipe '{path.stem}' already; give {path} another name.")
    try:
        included = _Layers.model_validate(fields).include
    except ValidationError as error:
        raise ShiftbedError(f"The recipe {path} {what_is_wrong(error.errors()[0])}.") from error
    if included is not None and included not in recipe_names():
        near = did_you_mean(included, recipe_names())
        raise UnknownNameError(f"The recipe {path} includes '{included}', which is no recipe of shiftbed's.{near}")
    own = {field: value for field, value in fields.items() if field != "include"}
    return included, {"summary": "your own", "paper": "", **own, "name": path.stem}


def _for_dataset(fields: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """The fields of a recipe with those it has for the dataset and its size of images."""
    rest = {field: value for field, value in fields.items() if field not in ("small", "large", "datasets")}
    sized = fields.get(card(dataset).size_class if dataset else "large", {})
    return _merged(_merged(rest, sized), fields.get("datasets", {}).get(dataset, {}))


def _own_space(name: str) -> str:
    """The search space of a recipe as its file has it."""
    return _recipe_file(name).get("space", DEFAULT_SPACE) if name in recipe_names() else DEFAULT_SPACE


def _merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Fields of a recipe over those of another; what is a table in both is merged likewise."""
    tables = [key for key in top if isinstance(base.get(key), dict) and isinstance(top[key], dict) and top[key]]
    return {**base, **top, **{key: _merged(base[key], top[key]) for key in tables}}


def recipe(name: str, dataset: str, **overrides: Any) -> Recipe:
    """A recipe with its settings for a dataset, and fields set by hand on top.

    Args:
        name: The recipe's name, or a YAML file of one's own.
        dataset: The dataset's name; without one the fields for large images are shown.
        **overrides: Fields to set; those that are None are left as they are.

    Raises:
        UnknownNameError: No recipe has this name, or there is no such file.
        ShiftbedError: A field has an impossible value.
    """
    included, own = _own_file(Path(name)) if Path(name).suffix in (".yaml", ".yml") else (name, {})
    fields = _for_dataset(_recipe_file(included), dataset) if included else {}
    given = {field: value for field, value in overrides.items() if value is not None}
    try:
        return Recipe(**_merged(_merged(fields, _for_dataset(own, dataset)), given))
    except ValidationError as error:
        where, first = f" for {dataset}" if dataset else "", error.errors()[0]
        unknown = first["type"] == "extra_forbidden" and len(first["loc"]) == 1
        near = did_you_mean(str(first["loc"][0]), list(Recipe.model_fields)) if unknown else ""
        raise ShiftbedError(f"Recipe '{name}'{where} {what_is_wrong(first)}.{near}") from error


def recipe_of(description: Mapping[str, Any]) -> Recipe:
    """The recipe in what `job.json` says of a job.

    Raises:
        StoreError: It has fields or values that are not known here.
    """
    try:
        return Recipe(**description["recipe"])
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise StoreError(
            f"The recipe of job {description['id']} has a '{where}' that is not known here; it was written by a newer "
            "shiftbed: update shiftbed to read it."
        ) from error
