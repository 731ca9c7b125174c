"""Domains, datasets, and the cards that describe a dataset without loading it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from shiftbed.registry import Registry

if TYPE_CHECKING:
    from shiftbed.data.arrays import Pending
    from shiftbed.data.examples import Listing


@dataclass(frozen=True)
class Domain:
    """A named set of labelled examples.

    Attributes:
        name: The domain's name.
        inputs: Images as uint8 N×H×W×C (a sequence of H×W×C where they differ in size), or any other array whose first
            axis is the examples.
        labels: int64, positions in the dataset's class list.
        groups: What a split may keep together (an emoji, a patient), one integer an example, or None.
    """

    name: str
    inputs: np.ndarray | Sequence[np.ndarray]
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)


class Archive(BaseModel):
    """A file to download, from the first mirror that has it.

    Attributes:
        file: The name it is stored under.
        mirrors: Addresses: `https://...`, or `hf://datasets/OWNER/NAME/PATH@REVISION` on the Hugging Face hub.
        sha256: Its checksum, where known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    mirrors: tuple[str, ...]
    sha256: str | None = None


class FixedDomains(BaseModel):
    """Who trains, validates and is tested, where the authors of a dataset say so.

    Attributes:
        train: The domains that are trained on.
        validation: Whole domains to validate on; without them a part of every training domain is held out.
        test: The domains that are tested; all others where none is named.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


class Card(BaseModel):
    """What is known of a dataset without loading it.

    Attributes:
        version: Raised whenever the content changes; for own folders a fingerprint of the content.
        domains: The domains in order, with the number of examples of each; 0 where nobody has published it.
        input_shape: Channels, height, width, where all inputs have one shape.
        size_class: Which of DomainBed's two shared search spaces applies: `small` images or `large` ones.
        hierarchy: Groups of classes.
        clusters: Groups of domains.
        groupings: By name, ways to divide the domains into groups that are left out in turn; the first is the usual.
        splits: By name, the fixed training, validation and test domains that papers use.
        shift: The kind of shift that dominates, as OoD-Bench measured it, or by the way the domains are made.
        archives: What `prepare` downloads.
        ran_on: What the builder has been run on: files `built in`, the `real` files, `made` files of their layout.
        superseded_by: The name of the dataset to use instead, if any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: int | str
    summary: str
    domains: dict[str, int]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...] | None = None
    size_class: Literal["small", "large"]
    licence: str
    source: str
    citation: str
    hierarchy: dict[str, tuple[str, ...]] = {}
    clusters: dict[str, tuple[str, ...]] = {}
    groupings: dict[str, tuple[tuple[str, ...], ...]] = {}
    splits: dict[str, FixedDomains] = {}
    shift: Literal["diversity", "correlation"] | None = None
    archives: tuple[Archive, ...] = ()
    ran_on: Literal["built in", "real", "made", "own"] = "built in"
    superseded_by: str | None = None

    @property
    def images(self) -> str:
        """How many images there are, for tables."""
        known = all(self.domains.values())
        return f"{sum(self.domains.values()):,}" if known else "?"


@dataclass(frozen=True)
class MultiDomainDataset:
    """A dataset in memory (or memory-mapped): its card and its domains, in the card's order."""

    card: Card
    domains: tuple[Domain, ...]

    def __getitem__(self, name: str) -> Domain:
        return next(domain for domain in self.domains if domain.name == name)

    def class_counts(self) -> np.ndarray:
        """How many labelled examples of every class are in every domain, domains × classes."""
        labelled = [np.asarray(domain.labels)[np.asarray(domain.labels) >= 0] for domain in self.domains]
        return np.array([np.bincount(labels, minlength=len(self.card.classes)) for labels in labelled])


class DatasetEntry(NamedTuple):
    """A registered dataset: its card, and how its domains come about.

    Attributes:
        build: Makes the domains of a built-in dataset.
        read: Finds the examples of a dataset that must be prepared in the folder of its unpacked files: a listing of
            image files, domains of arrays (pending ones, where they take long), or a dataset under a card of its own.
    """

    card: Card
    build: "Callable[[], list[Domain]] | None" = None
    read: "Callable[[Path], Listing | Iterable[Domain | Pending] | MultiDomainDataset] | None" = None


DATASETS: Registry[DatasetEntry] = Registry("dataset", "shiftbed.data")


def register(card: Card) -> Callable[[Callable[[], list[Domain]]], Callable[[], list[Domain]]]:
    """Registers the function that builds a built-in dataset's domains, under its card."""

    def wrap(build: Callable[[], list[Domain]]) -> Callable[[], list[Domain]]:
        DATASETS.add(card.name, DatasetEntry(card, build=build))
        return build

    return wrap
