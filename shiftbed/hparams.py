"""Search spaces: the default and the random draw of every hyperparameter, as DomainBed draws them.

Every hyperparameter has a generator of its own, seeded by its name: adding one changes no other's values, and a
published sweep and ours are the same points.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Literal

import numpy as np

from shiftbed.errors import HparamError
from shiftbed.hashing import seed_hash
from shiftbed.registry import did_you_mean

_GENERATOR = np.random.RandomState(0)  # seeded again for every draw: making one takes 60 times as long
_LOCK = threading.Lock()
Value = float | int | bool | str
SizeClass = Literal["small", "large"]


@dataclass(frozen=True)
class Prior:
    """One hyperparameter: its default value, its random draw, and the draw in words."""

    default: Value
    sample: Callable[[np.random.RandomState], Value]
    text: str
    minimum: float = 0.0

    def checked(self, name: str, value: Any) -> Value:
        """A value set by hand, in the type of the default; few hyperparameters may be negative.

        Raises:
            HparamError: The value is of another kind.
        """
        value = value.item() if isinstance(value, np.generic) else value
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if isinstance(self.default, bool):
            right, kind = isinstance(value, bool), "true or false"
        elif isinstance(self.default, int):
            right, kind = number and value == int(value) and value >= 0, "a whole number from 0 on"
        elif isinstance(self.default, float):
            right, kind = number and value >= self.minimum, f"a number of at least {self.minimum:g}"
        else:  # a word may be written in digits, as the layers 12 of MixStyle
            right, kind = isinstance(value, (str, int)) and not isinstance(value, bool), "a word"
        if not right:
            raise HparamError(f"The hyperparameter {name} must be {kind}, not {value!r}.")
        return type(self.default)(value)


def constant(value: Value) -> Prior:
    """The same value in every draw."""
    return Prior(value, lambda random: value, "fixed")


def choice(*values: Value, default: Value) -> Prior:
    """One of the values, each as likely as the others."""
    return Prior(default, lambda random: random.choice(np.array(values)).item(), f"one of {list(values)}")


def uniform(low: float, high: float, default: float, integer: bool = False) -> Prior:
    """A number between two bounds; an integer is cut, not rounded, as DomainBed does."""

    def sample(random: np.random.RandomState) -> Value:
        value = random.uniform(low, high)
        return int(value) if integer else value

    return Prior(default, sample, f"U({low:g}, {high:g}){', integer' if integer else ''}", min(0.0, low))


def log_uniform(low: float, high: float, default: float, base: int = 10, integer: bool = False) -> Prior:
    """`base` to the power of a uniform exponent; an integer is cut, not rounded, as DomainBed does."""
    if not 0 < low <= high:
        raise HparamError(
            f"log_uniform({low:g}, {high:g}) must be given the bounds themselves, above 0: 1e-1 and 1e3, not -1 and 3."
        )
    # Exponents are rounded so that 10^-4.5, given as a float, draws from exactly -4.5.
    lowest, highest = (round(math.log(bound, base), 9) for bound in (low, high))

    def sample(random: np.random.RandomState) -> Value:
        value = base ** random.uniform(lowest, highest)
        return int(value) if integer else value

    return Prior(default, sample, f"{base}^U({lowest:g}, {highest:g}){', integer' if integer else ''}")


@lru_cache(maxsize=1 << 16)
def _draw(name: str, prior: Prior, seed: int) -> Value:
    """DomainBed's rule: a generator for this name, seeded by the draw and the trial."""
    with _LOCK:
        _GENERATOR.seed(seed_hash(seed, name))
        return prior.sample(_GENERATOR)


class Space(Mapping[str, Prior]):
    """The hyperparameters of an algorithm; spaces are joined with `|`.

    Example:
        >>> Space(groupdro_eta=log_uniform(1e-3, 1e-1, default=1e-2)).draw(0, trial=0)
        {'groupdro_eta': 0.01}
    """

    def __init__(self, **priors: Prior) -> None:
        for name, prior in priors.items():
            if not isinstance(prior, Prior):
                raise HparamError(
                    f"The hyperparameter {name} must be drawn by constant, choice, uniform or log_uniform, as in "
                    f"Space({name}=uniform(0, 1, default=0.5)), not by {prior!r}."
                )
        self._priors = priors

    def __getitem__(self, name: str) -> Prior:
        return self._priors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._priors)

    def __len__(self) -> int:
        return len(self._priors)

    def __or__(self, other: "Space") -> "Space":
        return Space(**{**self._priors, **other._priors})

    def union(self, spaces: "Iterable[Space]") -> "Space":
        """This space joined with others."""
        return reduce(or_, spaces, self)

    def draw(self, draw: int, trial: int) -> dict[str, Value]:
        """The values of one draw; draw 0 is the default values, whatever the trial."""
        if draw == 0:
            return {name: prior.default for name, prior in self.items()}
        seed = seed_hash(draw, trial)
        return {name: _draw(name, prior, seed) for name, prior in self._priors.items()}

    def checked(self, values: Mapping[str, Any]) -> dict[str, Value]:
        """Values set by hand, in the types of the defaults (so that 1 and 1.0 make one job).

        Raises:
            HparamError: A name is not in the space (with the nearest names), or a value is of another kind.
        """
        for name in values:
            if name not in self:
                raise HparamError(f"There is no hyperparameter '{name}' here.{did_you_mean(name, list(self))}")
        return {name: self[name].checked(name, value) for name, value in values.items()}


@lru_cache(maxsize=64)
def shared_space(size_class: SizeClass, dataset: str = "") -> Space:
    """What every algorithm has, by the dataset's size class; names and values are DomainBed's."""
    common = Space(nonlinear_classifier=constant(False), resnet_dropout=choice(0.0, 0.1, 0.5, default=0.0))
    if size_class == "small":
        return common | Space(
            lr=log_uniform(10**-4.5, 10**-2.5, default=1e-3),
            weight_decay=constant(0.0),
            batch_size=log_uniform(2**3, 2**9, default=64, base=2, integer=True),
        )
    largest = 2**5 if dataset == "DomainNet" else 2**5.5
    return common | Space(
        lr=log_uniform(10**-5, 10**-3.5, default=5e-5),
        weight_decay=log_uniform(1e-6, 1e-2, default=0.0),
        batch_size=log_uniform(2**3, largest, default=32, base=2, integer=True),
    )


DEFAULT_SPACE = "domainbed-head"


def _domainbed_paper(dataset: str, size_class: SizeClass) -> dict[str, Space]:
    """Table 8 of the DomainBed paper as printed, also where its text and its code say otherwise."""
    lr = Space(lr=log_uniform(10**-4.5, 10**-3.5, default=1e-3)) if size_class == "small" else Space()
    smallest, largest = (2**3, 2**9) if size_class == "small" else (2**3, 2**5.5)
    batch = log_uniform(smallest, largest, default=64 if size_class == "small" else 32, base=2, integer=True)
    return {
        "": lr | Space(batch_size=batch),
        "Mixup": Space(mixup_alpha=log_uniform(1, 1e4, default=0.2)),
        "GroupDRO": Space(groupdro_eta=log_uniform(1e-1, 1e1, default=1e-2)),
    }


def _ood_bench(dataset: str, size_class: SizeClass) -> dict[str, Space]:
    """OoD-Bench's ranges: no dropout, one share in all random draws of Mixup, and its own ranges on CelebA."""
    shared = Space(resnet_dropout=constant(0.0))
    own = {"Mixup": Space(mixup_alpha=choice(0.1, default=0.2))}
    if dataset == "CelebA":
        anneal = log_uniform(1, 10**3.5, default=500, integer=True)
        shared |= Space(batch_size=log_uniform(2**4.5, 2**6, default=48, base=2, integer=True))
        own |= {"IRM": Space(irm_penalty_anneal_iters=anneal), "VREx": Space(vrex_penalty_anneal_iters=anneal)}
        own |= {"ARM": Space(batch_size=constant(8))}  # as on all its datasets of large images
    return {"": shared, **own}


def _domainbed_v2(dataset: str, size_class: SizeClass) -> dict[str, Space]:
    """DomainBed-v2's ranges, without its clash of names (Fishr's `lambda` written over DANN's)."""
    return {
        "": Space(
            lr=log_uniform(1e-5, 3e-4, default=5e-5),
            weight_decay=log_uniform(1e-6, 1e-2, default=0.0),
            batch_size=constant(32),
            resnet_dropout=constant(0.0),
        ),
        "IRM": Space(
            irm_lambda=log_uniform(1e-5, 1e-1, default=1e2),
            irm_penalty_anneal_iters=uniform(1, 1e4, default=500, integer=True),
        ),
        "MMD": Space(mmd_gamma=log_uniform(1e-2, 1.0, default=1.0)),
    }


def _domainbed_v2_scratch(dataset: str, size_class: SizeClass) -> dict[str, Space]:
    """DomainBed-v2's ranges for random initial weights."""
    spaces = _domainbed_v2(dataset, size_class)
    return {**spaces, "": spaces[""] | Space(lr=log_uniform(10**-4.5, 1e-3, default=5e-5))}


# What each source changes of DomainBed's current ranges: for all algorithms under "", then by algorithm.
NAMED_SPACES: dict[str, Callable[[str, SizeClass], dict[str, Space]]] = {
    DEFAULT_SPACE: lambda dataset, size_class: {},
    "domainbed-paper": _domainbed_paper,
    "ood-bench": _ood_bench,
    "domainbed-v2": _domainbed_v2,
    "domainbed-v2-scratch": _domainbed_v2_scratch,
}


def with_named_space(space: Space, named: str, algorithm: str, dataset: str, size_class: SizeClass) -> Space:
    """A search space with the ranges of a named one in place of those of equal name.

    Raises:
        HparamError: There is no space of this name.
    """
    if named not in NAMED_SPACES:
        raise HparamError(f"There is no search space '{named}'.{did_you_mean(named, list(NAMED_SPACES))}")
    changes = NAMED_SPACES[named](dataset, size_class)
    parts = ["", *algorithm.replace(")", "").split("(")]  # a wrapper and what it wraps
    ours = Space().union(changes[part] for part in parts if part in changes)
    return space | Space(**{name: prior for name, prior in ours.items() if name in space})
