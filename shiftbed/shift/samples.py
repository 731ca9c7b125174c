"""Samples: the examples of one side of a comparison, in an order that does not depend on how they were stored."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from shiftbed.errors import DataError

FEWEST = 20  # examples of a side: with fewer, no shift of any size can be told from chance


@dataclass(frozen=True, eq=False)
class Sample:
    """Examples of one domain, or of several together, as raw inputs or as features.

    `sample` makes one, checked and in the order of a hash of the examples: whatever is drawn from it by position is
    the same however the examples were stored.

    Attributes:
        name: Of the domain, for messages and pictures.
        inputs: One example a row, of any shape: feature vectors, or images N×C×H×W in [0, 1].
        labels: The class of each, or None where they are not known.
        groups: What a split keeps together, or None.
        class_names: By number, for messages.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray | None = None
    groups: np.ndarray | None = None
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Any) -> "Sample":
        of_rows = [None if part is None else part[rows] for part in (self.labels, self.groups)]
        return replace(self, inputs=self.inputs[rows], labels=of_rows[0], groups=of_rows[1])

    @cached_property
    def vectors(self) -> np.ndarray:
        """The examples as vectors of float64."""
        return self.inputs.reshape(len(self), -1).astype(np.float64, copy=False)

    @property
    def classes(self) -> np.ndarray:
        """The classes there are.

        Raises:
            DataError: There are no labels.
        """
        if self.labels is None:
            raise DataError(f"The examples of '{self.name}' have no labels, which this measure needs.")
        return np.unique(self.labels)

    def called(self, classes: Sequence[int] | np.ndarray) -> str:
        """Classes in words, the first five of them: by their names, where these are known."""
        words = ", ".join(self.class_names[number] if self.class_names else str(number) for number in classes[:5])
        more = f" and {len(classes) - 5} more" if len(classes) > 5 else ""
        return f"the class{'' if len(classes) == 1 else 'es'} {words}{more}"

    def shuffled(self, seed: int | Sequence[int]) -> "Sample":
        """The same examples in an order that the seed decides."""
        return self[np.random.default_rng(seed).permutation(len(self))]

    def at_most(self, count: int, seed: int = 0) -> "Sample":
        """So many of the examples, drawn at random; all of them if there are no more."""
        return self if len(self) <= count else self.shuffled(seed)[:count]

    def split(self, share: float, seed: int = 0) -> tuple["Sample", "Sample"]:
        """Two parts, the first with this share of the examples; a group is whole in one of them.

        The same group falls into the same part of every sample, so that one of two domains which show the same things
        never tells what is held out of the other. Only where all groups of a sample would fall into one part, the one
        that is nearest to the other part goes there.

        Raises:
            DataError: There is but one group.
        """
        if self.groups is None:
            mixed = self.shuffled(seed)
            return mixed[: round(share * len(self))], mixed[round(share * len(self)) :]
        names, of = np.unique(self.groups, return_inverse=True)
        if len(names) < 2:
            raise self.too_few_groups()
        places = np.array([_digest(np.array([name, seed])) / 2**64 for name in names])
        first = places < share
        if first.all() or not first.any():
            first[np.abs(places - share).argmin()] ^= True
        return self[first[of]], self[~first[of]]

    def too_few_groups(self) -> DataError:
        """What to say where examples must be held out, and the groups that stay together leave none or take all."""
        count = 0 if self.groups is None else len(np.unique(self.groups))
        return DataError(
            f"The examples of '{self.name}' are of {count} group{'' if count == 1 else 's'}, too few to hold some out; "
            "take more, or drop the groups."
        )


def sample(
    name: str,
    inputs: np.ndarray | Sequence[Any],
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    class_names: Sequence[str] = (),
) -> Sample:
    """Examples of a domain, checked and put in the order of their hashes.

    Raises:
        DataError: They differ in shape, are not all finite, or do not fit their labels.
    """
    values = _as_array(name, inputs)
    if labels is not None and len(labels) != len(values):
        raise DataError(f"'{name}' has {len(values)} examples but {len(labels)} labels; give one label for each.")
    bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        raise DataError(
            f"{bad.sum()} of the {len(values)} examples of '{name}' are not finite (NaN or infinite), the first at "
            f"position {bad.argmax()}; remove them, or repair what computed them."
        )
    labels = None if labels is None else np.asarray(labels)
    digests = np.array([_digest(row) for row in values])
    order = np.lexsort((digests,) if labels is None else (labels, digests))
    return Sample(name, values, labels, None if groups is None else np.asarray(groups), tuple(class_names))[order]


def union(samples: Sequence[Sample], name: str) -> Sample:
    """Several domains as one, each in proportion to its size; without labels if one of them has none.

    Raises:
        DataError: Their examples differ in shape.
    """
    for one in samples[1:]:
        refuse_other_shapes(samples[0], one)
    labelled = [one.labels for one in samples if one.labels is not None]
    grouped = [one.groups for one in samples if one.groups is not None]
    return sample(
        name,
        np.concatenate([one.inputs for one in samples]),
        np.concatenate(labelled) if len(labelled) == len(samples) else None,
        np.concatenate(grouped) if len(grouped) == len(samples) else None,
        samples[0].class_names,
    )


def shared_classes(p: Sample, q: Sample) -> np.ndarray:
    """The classes that both sides have.

    Raises:
        DataError: A side has no labels, or the sides share fewer than two classes.
    """
    shared = np.intersect1d(p.classes, q.classes)
    if len(shared) < 2:
        raise DataError(
            f"'{p.name}' has {p.called(p.classes)} and '{q.name}' {q.called(q.classes)}; to compare what the labels "
            "mean, at least two classes must be in both."
        )
    return shared


def comparable(p: Sample, q: Sample) -> tuple[Sample, Sample, tuple[str, ...]]:
    """Both sides with the classes that both have, and a note on what was left out.

    Raises:
        DataError: A side has no labels, or the sides share fewer than two classes.
    """
    shared = shared_classes(p, q)
    notes = []
    for one, other in ((p, q), (q, p)):
        lone = np.setdiff1d(one.classes, shared)
        if len(lone):
            notes.append(f"left out {one.called(lone)}, which '{one.name}' has and '{other.name}' has not")
    kept = [one if len(one.classes) == len(shared) else one[np.isin(np.asarray(one.labels), shared)] for one in (p, q)]
    return kept[0], kept[1], tuple(notes)


def refuse_incomparable(p: Sample, q: Sample) -> None:
    """Refuses two sides that no measure can compare: examples that differ in shape, or too few of them."""
    for side in (p, q):
        if len(side) < FEWEST:
            raise DataError(
                f"'{side.name}' has {len(side)} examples, and with fewer than {FEWEST} a shift cannot be told from "
                "chance; add examples, or pool it with another domain."
            )
    refuse_other_shapes(p, q)


def refuse_other_shapes(p: Sample, q: Sample) -> None:
    """Refuses two sides whose examples differ in shape."""
    if p.inputs.shape[1:] != q.inputs.shape[1:]:
        shapes = ["×".join(map(str, one.inputs.shape[1:])) for one in (p, q)]
        raise DataError(
            f"The examples of '{p.name}' are {shapes[0]} and those of '{q.name}' {shapes[1]}; bring them to one size "
            "(images with --size), or measure the features of a network."
        )


def _as_array(name: str, inputs: np.ndarray | Sequence[Any]) -> np.ndarray:
    try:
        values = np.asarray(inputs)
    except ValueError:
        values = np.empty(0, object)
    if values.dtype == object:
        raise DataError(
            f"The examples of '{name}' differ in size; bring them to one with --size, such as 64, or "
            "prepare the images at one size."
        )
    if values.ndim == 1:
        values = values[:, None]
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def _digest(row: np.ndarray) -> np.uint64:
    content = hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8)
    return np.frombuffer(content.digest(), np.uint64)[0]
