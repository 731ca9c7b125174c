"""Search spaces: the default and the random draw of every hyperparameter, as DomainBed draws them.

Every hyperparameter has a generator of its own, seeded by its name: adding one changes no other's values, and a
published sweep and ours are the same points.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from shiftbed.errors import HparamError
from shiftbed.hashing import seed_hash
from shiftbed.registry import did_you_mean

Value = float | int | bool | str


@dataclass(frozen=True)
class Prior:
    """One hyperparameter: its default value, its random draw, and the draw in words."""

    default: Value
    sample: Callable[[np.random.RandomState], Value]
    text: str


def constant(value: Value) -> Prior:
    """The same value in every draw."""
    return Prior(value, lambda random: value, "fixed")


def choice(*values: Value, default: Value) -> Prior:
    """One of the values, each as likely as the others."""
    return Prior(default, lambda random: random.choice(np.array(values)).item(), f"one of {list(values)}")


def log_uniform(low: float, high: float, default: float, base: int = 10, integer: bool = False) -> Prior:
    """`base` to the power of a uniform exponent; an integer is cut, not rounded, as DomainBed does."""
    # Exponents are rounded so that 10^-4.5, given as a float, draws from exactly -4.5.
    lowest, highest = (round(math.log(bound, base), 9) for bound in (low, high))

    def sample(random: np.random.RandomState) -> Value:
        value = base ** random.uniform(lowest, highest)
        return int(value) if integer else value

    return Prior(default, sample, f"{base}^U({lowest:g}, {highest:g}){', integer' if integer else ''}")


class Space(Mapping[str, Prior]):
    """The hyperparameters of an algorithm; spaces are joined with `|`.

    Example:
        >>> Space(groupdro_eta=log_uniform(1e-3, 1e-1, default=1e-2)).draw(0, trial=0)
        {'groupdro_eta': 0.01}
    """

    def __init__(self, **priors: Prior) -> None:
        self._priors = priors

    def __getitem__(self, name: str) -> Prior:
        return self._priors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._priors)

    def __len__(self) -> int:
        return len(self._priors)

    def __or__(self, other: "Space") -> "Space":
        return Space(**{**self._priors, **other._priors})

    def draw(self, draw: int, trial: int) -> dict[str, Value]:
        """The values of one draw; draw 0 is the default values, whatever the trial."""
        if draw == 0:
            return {name: prior.default for name, prior in self.items()}
        seed = seed_hash(draw, trial)
        return {name: prior.sample(np.random.RandomState(seed_hash(seed, name))) for name, prior in self.items()}

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuses names the space does not have.

        Raises:
            HparamError: With the nearest names.
        """
        for name in values:
            if name not in self:
                raise HparamError(f"There is no hyperparameter '{name}' here.{did_you_mean(name, list(self))}")


@lru_cache(maxsize=2)
def shared_space(size_class: Literal["small", "large"]) -> Space:
    """What every algorithm has, by the dataset's size class; names and values are DomainBed's."""
    common = Space(nonlinear_classifier=constant(False), resnet_dropout=choice(0.0, 0.1, 0.5, default=0.0))
    if size_class == "small":
        return common | Space(
            lr=log_uniform(10**-4.5, 10**-2.5, default=1e-3),
            weight_decay=constant(0.0),
            batch_size=log_uniform(2**3, 2**9, default=64, base=2, integer=True),
        )
    return common | Space(
        lr=log_uniform(10**-5, 10**-3.5, default=5e-5),
        weight_decay=log_uniform(1e-6, 1e-2, default=0.0),
        batch_size=log_uniform(2**3, 2**5.5, default=32, base=2, integer=True),
    )
