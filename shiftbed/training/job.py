"""Jobs: what defines one training run, and the id that follows from it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from shiftbed.algorithms import ALGORITHMS, has_hook
from shiftbed.data import card
from shiftbed.errors import HparamError, StoreError
from shiftbed.hashing import canonical
from shiftbed.hparams import DEFAULT_SPACE, SizeClass, Space, Value, shared_space, with_named_space
from shiftbed.protocols import Task, TaskSpec, make_task, spec_of
from shiftbed.registry import did_you_mean
from shiftbed.training.recipes import Recipe, recipe_of

ID_SCHEMA = 1
ID_DIGITS = 20  # 80 bits: among a million jobs two ids are equal with a chance of 4e-13


@dataclass(frozen=True)
class Job:
    """One training run.

    Its id is a hash of what defines its result and of nothing else: no path, machine, order or evaluation interval.

    Attributes:
        draw: The draw's number, for people; the id holds the values it stands for.
        hparams: The resolved hyperparameter values.
        overrides: Those of them that were set by hand.
        lean: The selections that its records must serve, and no others; none of them means all.
    """

    dataset: str
    algorithm: str
    spec: TaskSpec
    draw: int
    trial: int
    hparams: Mapping[str, Value]
    recipe: Recipe
    overrides: Mapping[str, Value] = field(default_factory=dict)
    lean: tuple[str, ...] = ()

    @cached_property
    def version(self) -> int | str:
        """The dataset's version."""
        return card(self.dataset).version

    @cached_property
    def task(self) -> Task:
        """The splits it trains, validates and tests on."""
        return make_task(self.spec, self.dataset, self.version, self.trial, self.recipe.holdout)

    @property
    def cell(self) -> list[Any]:
        """What it shares with the jobs of other algorithms and draws: they see the same streams and initial weights."""
        return [self.dataset, self.version, self.task.fingerprint, self.trial]

    @property
    def setting(self) -> str:
        """What jobs must share to stand in one table: dataset, recipe, hyperparameters set by hand, kind of task."""
        by_hand = self._set_by_hand(own=False)  # an algorithm's own ones make it another row, not another table
        about = _json(self.dataset, self.version)[1:-1], self.recipe.setting, canonical(by_hand) if by_hand else b"{}"
        return _setting(b",".join(about), self.spec)

    @property
    def own_overrides(self) -> dict[str, Value]:
        """The algorithm's own hyperparameters that were set by hand."""
        return self._set_by_hand(own=True)

    def _set_by_hand(self, own: bool) -> dict[str, Value]:
        """The overrides of the algorithm's own hyperparameters, or of those all algorithms share."""
        if not self.overrides:
            return {}
        space = ALGORITHMS[self.algorithm].space(self.dataset, card(self.dataset).size_class)
        return {name: value for name, value in self.overrides.items() if (name in space) == own}

    @property
    def values(self) -> bytes:
        """The hyperparameters as canonical JSON, written once for all jobs that share them."""
        return self.hparams.json if isinstance(self.hparams, Hparams) else canonical(dict(self.hparams))

    @cached_property
    def id(self) -> str:
        """The first 20 digits of the SHA-256 of the canonical JSON of what defines the result."""
        # A JSON list, constant parts first: what many jobs share is written once.
        entry = ALGORITHMS[self.algorithm]
        parts = [
            _cell_json(self.dataset, self.version, self.spec, self.trial, self.recipe.holdout),
            self.recipe.identity,
            _json(self.algorithm, entry.revision)[1:-1],
            self.values,
        ]
        if has_hook(entry.cls, "evaluated"):  # it learns from evaluations: when they are matters
            parts.append(_json(self.recipe.evaluate_every)[1:-1])
        return hashlib.sha256(b"[" + b",".join(parts) + b"]").hexdigest()[:ID_DIGITS]

    def describe(self) -> dict[str, Any]:
        """What `job.json` holds: everything constant about the job, enough to run it again and to read its records."""
        return {
            "id": self.id,
            "dataset": self.dataset,
            "version": self.version,
            "algorithm": self.algorithm,
            "revision": ALGORITHMS[self.algorithm].revision,
            "task": self.spec.describe(),
            "test_domains": list(self.task.test_domains),
            "draw": self.draw,
            "trial": self.trial,
            "hparams": dict(self.hparams),
            "overrides": self._set_by_hand(own=False),
            "own_overrides": self.own_overrides,
            "setting": self.setting,
            "recipe": self.recipe.model_dump(),
            "numerics": self.recipe.precision,
            "lean": list(self.lean),
            "splits": [
                {"name": s.name, "domain": s.domain, "part": s.part, "role": s.role, "count": len(s.indices)}
                for s in self.task.splits
            ],
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "Job":
        """The job a `job.json` describes.

        Raises:
            StoreError: Here the same description has another id: the dataset or the algorithm has changed since.
        """
        job = cls(
            dataset=description["dataset"],
            algorithm=description["algorithm"],
            spec=spec_of(description["task"]),
            draw=description["draw"],
            trial=description["trial"],
            hparams=description["hparams"],
            recipe=recipe_of(description),
            overrides={**description["overrides"], **description["own_overrides"]},
            lean=tuple(description.get("lean", ())),
        )
        if job.id != description["id"]:
            raise StoreError(
                f"Job {description['id']} ({job.algorithm} on {job.dataset}) is of another version of the dataset or "
                "the algorithm, which has changed since; train or sweep again, into another folder."
            )
        return job


@lru_cache(maxsize=1024)
def _search_space(algorithm: str, dataset: str, version: int | str, size_class: SizeClass, named: str) -> Space:
    space = shared_space(size_class, dataset) | ALGORITHMS[algorithm].space(dataset, size_class)
    return with_named_space(space, named, algorithm, dataset, size_class)


@lru_cache(maxsize=1 << 14)
def _json(*parts: Any) -> bytes:
    return canonical(parts)


@lru_cache(maxsize=1 << 14)
def _cell_json(dataset: str, version: int | str, spec: TaskSpec, trial: int, holdout: float) -> bytes:
    """What the ids of a cell's jobs begin with."""
    task = make_task(spec, dataset, version, trial, holdout)
    return canonical([ID_SCHEMA, dataset, version, task.fingerprint, trial])[1:-1]


@lru_cache(maxsize=1 << 14)
def _setting(about: bytes, spec: TaskSpec) -> str:
    text = b"[" + about + b"," + canonical(spec.family()) + b"]"
    return hashlib.sha256(text).hexdigest()[:ID_DIGITS]


class Hparams(dict[str, Value]):
    """The hyperparameters of many jobs, written as JSON once."""

    @cached_property
    def json(self) -> bytes:
        """As canonical JSON."""
        return canonical(dict(self))


def resolve_hparams(
    dataset: str, algorithm: str, recipe: Recipe, draw: int, trial: int, by_hand: Mapping[str, Value]
) -> Hparams:
    """The values of a job: the draw's, then what the recipe fixes, then what is set by hand."""
    space = search_space(algorithm, dataset, recipe.space)
    fixed = {name: value for name, value in recipe.fixed.items() if name in space}
    checked = space.checked(fixed)  # and kept as the recipe writes them: 100 and 100.0 are two jobs
    whole = {name: value for name, value in checked.items() if isinstance(value, int)}  # no class takes 2.0 layers
    return Hparams({**space.draw(draw, trial), **fixed, **whole, **by_hand})


def check_fixed(recipe: Recipe, dataset: str) -> None:
    """Refuses a recipe that fixes what no algorithm has: a misspelt name would change nothing, without a word.

    Raises:
        HparamError: It does.
    """
    for name in recipe.fixed:
        if not any(name in search_space(algorithm, dataset, recipe.space) for algorithm in ALGORITHMS):
            known = Space().union(search_space(algorithm, dataset, recipe.space) for algorithm in ALGORITHMS)
            near = did_you_mean(name, list(known))
            raise HparamError(
                f"Recipe '{recipe.name}' fixes '{name}', which is no hyperparameter of any algorithm.{near}"
            )


def search_space(algorithm: str, dataset: str, named: str = DEFAULT_SPACE) -> Space:
    """All hyperparameters of an algorithm on a dataset, with the ranges of a named space."""
    algorithm, known = ALGORITHMS.canonical_name(algorithm), card(dataset)
    # A user's class may be registered again with another space: its revision is part of the key.
    revision = f"{known.version}/{ALGORITHMS[algorithm].revision}"
    return _search_space(algorithm, known.name, revision, known.size_class, named)


def make_job(
    dataset: str,
    algorithm: str,
    spec: TaskSpec,
    recipe: Recipe,
    draw: int = 0,
    trial: int = 0,
    overrides: Mapping[str, Value] | None = None,
) -> Job:
    """A job from names: its hyperparameters are the draw's, then what the recipe fixes, then what is set by hand.

    Raises:
        UnknownNameError: The dataset or the algorithm is not registered.
        HparamError: A hyperparameter set by hand does not exist.
    """
    algorithm = ALGORITHMS.canonical_name(algorithm)
    by_hand = dict(overrides or {})
    by_hand = search_space(algorithm, dataset, recipe.space).checked(by_hand)
    hparams = resolve_hparams(dataset, algorithm, recipe, draw, trial, by_hand)
    return Job(card(dataset).name, algorithm, spec, draw, trial, hparams, recipe, by_hand)
