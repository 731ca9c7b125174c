"""Domains, datasets, and the cards that describe a dataset without loading it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from shiftbed.errors import DataError
from shiftbed.registry import Registry


@dataclass(frozen=True)
class Domain:
    """A named set of labelled examples.

    Attributes:
        name: The domain's name.
        inputs: Images as uint8 N×H×W×C, or any other array whose first axis is the examples.
        labels: int64, positions in the dataset's class list.
        groups: What a split may keep together (an emoji, a patient), one integer an example, or None.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)


class Card(BaseModel):
    """What is known of a dataset without loading it.

    Attributes:
        domains: The domains in order, with the number of examples of each.
        input_shape: Channels, height, width.
        size_class: Which of DomainBed's two shared search spaces applies: `small` images or `large` ones.
        superseded_by: The name of the dataset (or version) to use instead, if any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: int
    summary: str
    domains: dict[str, int]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    size_class: Literal["small", "large"]
    licence: str
    source: str
    citation: str
    superseded_by: str | None = None


@dataclass(frozen=True)
class MultiDomainDataset:
    """A dataset in memory (or memory-mapped): its card and its domains, in the card's order."""

    card: Card
    domains: tuple[Domain, ...]

    def __getitem__(self, name: str) -> Domain:
        return next(domain for domain in self.domains if domain.name == name)


class DatasetEntry(NamedTuple):
    """A registered dataset: its card and the function that builds its domains."""

    card: Card
    build: Callable[[], list[Domain]]


DATASETS: Registry[DatasetEntry] = Registry("dataset", "shiftbed.data")


def register(card: Card) -> Callable[[Callable[[], list[Domain]]], Callable[[], list[Domain]]]:
    """Registers the function that builds a dataset's domains, under its card."""

    def wrap(build: Callable[[], list[Domain]]) -> Callable[[], list[Domain]]:
        DATASETS.add(card.name, DatasetEntry(card, build))
        return build

    return wrap


def card(name: str) -> Card:
    """The card of a dataset.

    Raises:
        UnknownNameError: No dataset has this name.
    """
    return DATASETS[name].card


@lru_cache(maxsize=4)
def load(name: str) -> MultiDomainDataset:
    """Loads a dataset; what it contains depends on its name and version alone.

    Raises:
        UnknownNameError: No dataset has this name.
        DataError: The domains are not what the card says.
    """
    entry = DATASETS[name]
    domains = tuple(entry.build())
    counts = {domain.name: len(domain) for domain in domains}
    if list(counts.items()) != list(entry.card.domains.items()):
        raise DataError(
            f"{entry.card.name} version {entry.card.version} should have the domains {entry.card.domains} "
            f"but {counts} were found; reinstall shiftbed or prepare the dataset again."
        )
    return MultiDomainDataset(entry.card, domains)
