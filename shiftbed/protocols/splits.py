"""Splits and tasks, and the ways to divide a domain's examples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from shiftbed.hashing import digest

Role = Literal["train", "validation", "test", "unlabelled"]
Part = Literal["in", "out", "all", "rest"]


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one domain that play one role.

    Attributes:
        domain: The domain they come from.
        part: `in`, the larger part that is trained on or reported; `out`, the part held out; `all` of the domain; or
            the `rest`, where a domain is divided in three.
        role: What the task uses them for.
        indices: Their positions in the domain.
    """

    domain: str
    part: Part
    role: Role
    indices: np.ndarray

    @property
    def name(self) -> str:
        """The name that records and selections use."""
        return f"{self.domain}/{self.part}"


@dataclass(frozen=True, eq=False)
class Task:
    """The splits of one experiment."""

    splits: tuple[Split, ...]

    def of_role(self, role: Role) -> list[Split]:
        """The splits that play a role, in the order of the dataset's domains."""
        return [split for split in self.splits if split.role == role]

    @property
    def train_domains(self) -> tuple[str, ...]:
        """The domains that are trained on."""
        return tuple(split.domain for split in self.of_role("train"))

    @property
    def test_domains(self) -> tuple[str, ...]:
        """The domains that are tested."""
        return tuple(dict.fromkeys(split.domain for split in self.of_role("test")))

    @cached_property
    def fingerprint(self) -> str:
        """What a job's id says of the task: a hash of every split with its examples."""
        return digest(
            [
                [s.domain, s.part, s.role, hashlib.sha256(s.indices.astype("<i8").tobytes()).hexdigest()]
                for s in self.splits
            ]
        )


@lru_cache(maxsize=512)
def holdout(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """DomainBed's in/out split: shuffle, the first `int(fraction · count)` are out, the rest in.

    All tasks of a trial share a domain's: kept once for each, 180 tasks of 180 domains would have 180 times the images.
    """
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    order.setflags(write=False)
    size = int(count * fraction)
    return order[size:], order[:size]


def groups_inside(groups: Sequence[np.ndarray], fraction: float, seed: int) -> np.ndarray:
    """The same over groups: those that are in. The share holds of the groups of several domains, and of each's own.

    Args:
        groups: Of every domain, the group of every example.
        fraction: The share of groups that are out.
        seed: Decides which.
    """
    each = [np.unique(some) for some in groups]
    names, domains = np.unique(np.concatenate(each), return_counts=True)
    shared = names[domains > 1]
    pools = [shared, *(np.setdiff1d(own, shared) for own in each)]
    return np.concatenate([pool[holdout(len(pool), fraction, seed)[0]] for pool in pools])


def dealt(indices: np.ndarray, groups: np.ndarray, some: int, every: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples in two parts: of groups in the order in which they come, `some` in `every` go to the second."""
    here = groups[indices]
    _, first, number = np.unique(here, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[number]
    second = place * some % every < some  # spread evenly, since groups often come class by class
    return indices[~second], indices[second]


def capped(labels: np.ndarray, most: int, seed: int) -> np.ndarray:
    """At most so many examples of each class, chosen at random."""
    order = np.random.RandomState(seed).permutation(len(labels))
    kept = [order[labels[order] == label][:most] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))
