"""Who trains and who is tested: splits, tasks and the protocols that list them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from shiftbed.data import Card, card
from shiftbed.errors import DataError
from shiftbed.hashing import seed_hash
from shiftbed.registry import Registry, did_you_mean

Role = Literal["train", "validation", "test", "unlabelled"]
Part = Literal["in", "out"]


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one domain that play one role.

    Attributes:
        domain: The domain they come from.
        part: `in`, the larger part that is trained on or reported, or `out`, the part held out.
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

    test_domains: tuple[str, ...]
    splits: tuple[Split, ...]

    def of_role(self, role: Role) -> list[Split]:
        """The splits that play a role, in the order of the dataset's domains."""
        return [split for split in self.splits if split.role == role]

    @property
    def train_domains(self) -> tuple[str, ...]:
        """The domains that are trained on."""
        return tuple(split.domain for split in self.of_role("train"))

    @cached_property
    def fingerprint(self) -> list[list[str]]:
        """What a job's id says of the task: every split with the hash of its examples."""
        return [
            [s.domain, s.part, s.role, hashlib.sha256(s.indices.astype("<i8").tobytes()).hexdigest()]
            for s in self.splits
        ]


def holdout(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """DomainBed's in/out split: shuffle, the first `int(fraction · count)` are out, the rest in."""
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    size = int(count * fraction)
    return order[size:], order[:size]


def leave_out(dataset: str, test_domains: tuple[str, ...], trial: int, fraction: float) -> Task:
    """The task that tests some domains and trains on all others, each with its own in/out split.

    Args:
        dataset: The dataset's name.
        test_domains: The domains that are tested.
        trial: Seeds the splits, as DomainBed's trial seed does.
        fraction: The share of every domain that is held out.

    Raises:
        DataError: A test domain does not exist, none is left to train on, or one is too small to be split.
    """
    known = card(dataset)
    return _leave_out(known.name, tuple(known.domains.items()), test_domains, trial, fraction)


@lru_cache(maxsize=1024)
def _leave_out(
    dataset: str, domains: tuple[tuple[str, int], ...], test_domains: tuple[str, ...], trial: int, fraction: float
) -> Task:
    names = [name for name, _ in domains]
    for name in test_domains:
        if name not in names:
            raise DataError(f"{dataset} has no domain '{name}'.{did_you_mean(name, names)}")
    if len(set(test_domains)) >= len(names):
        raise DataError(f"Testing {', '.join(test_domains)} of {dataset} leaves no domain to train on.")
    splits = []
    for position, (domain, count) in enumerate(domains):
        inside, outside = holdout(count, fraction, seed_hash(trial, position))
        if len(outside) == 0 or len(inside) == 0:
            raise DataError(f"Domain '{domain}' of {dataset} has {count} examples, too few to hold out {fraction:g}.")
        tested = domain in test_domains
        splits.append(Split(domain, "in", "test" if tested else "train", inside))
        splits.append(Split(domain, "out", "test" if tested else "validation", outside))
    return Task(test_domains, tuple(splits))


PROTOCOLS: Registry[Callable[[Card], list[tuple[str, ...]]]] = Registry("protocol", "shiftbed.protocols")


@PROTOCOLS.named("leave-one-domain-out")
def leave_one_domain_out(dataset: Card) -> list[tuple[str, ...]]:
    """Each domain is tested in turn, by models trained on all the others."""
    return [(domain,) for domain in dataset.domains]
