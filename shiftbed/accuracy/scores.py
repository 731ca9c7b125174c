"""What every method says of every classifier on every domain: all that the studies read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shiftbed.accuracy.fitting import ROUNDING, left_out_errors
from shiftbed.accuracy.methods import METHODS

POINTS = 100.0


@dataclass(frozen=True)
class Scores:
    """What methods say of classifiers on domains.

    Attributes:
        classifiers: Names.
        domains: Names.
        groups: The group of each domain: what is left out together.
        images: How many images each domain has.
        accuracies: Classifiers × domains.
        values: By method, classifiers × domains.
    """

    classifiers: tuple[str, ...]
    domains: tuple[str, ...]
    groups: np.ndarray
    images: np.ndarray
    accuracies: np.ndarray
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def varying(self) -> "Scores":
        """The same without methods whose score is equal on all domains of a classifier, or all but those of two groups.

        No line goes through them: errors leave out one group, and the intervals of what is left out another. A
        collapsed classifier, for which no score varies, would take every method with it, and is left out itself;
        maybe none is left then, and no method.
        """
        varies = {name: [_varies(row, self.groups) for row in rows] for name, rows in self.values.items()}
        # Agreement with others varies for a collapsed classifier too, as the others do.
        own = [rows for name, rows in varies.items() if not _of_a_pool(name)] or list(varies.values())
        left = self.of([name for place, name in enumerate(self.classifiers) if any(row[place] for row in own)])
        kept = {
            name: rows
            for name, rows in left.values.items()
            if left.classifiers and all(_varies(row, self.groups) for row in rows)
        }
        return replace(left, values=kept)

    def of(self, classifiers: Sequence[str]) -> "Scores":
        """The same of some of the classifiers."""
        places = [self.classifiers.index(name) for name in classifiers]
        values = {name: rows[places] for name, rows in self.values.items()}
        return replace(self, classifiers=tuple(classifiers), accuracies=self.accuracies[places], values=values)

    def as_json(self) -> dict[str, Any]:
        """What `json.dumps` takes and `from_json` reads."""
        return {
            "classifiers": list(self.classifiers),
            "domains": list(self.domains),
            "groups": self.groups.tolist(),
            "images": self.images.tolist(),
            "accuracies": self.accuracies.tolist(),
            "values": {name: values.tolist() for name, values in self.values.items()},
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "Scores":
        """The scores that `as_json` wrote."""
        groups, images, accuracies = (np.array(read[name]) for name in ("groups", "images", "accuracies"))
        values = {name: np.array(one) for name, one in read["values"].items()}
        return cls(tuple(read["classifiers"]), tuple(read["domains"]), groups, images, accuracies, values)

    def errors(self, method: str, by_group: bool) -> np.ndarray:
        """Accuracy less prediction in points, classifiers × domains, each left out alone or with its group."""
        groups = self.groups if by_group else None
        pairs = zip(self.values[method], self.accuracies, strict=True)
        return POINTS * np.stack([left_out_errors(scores, accuracies, groups) for scores, accuracies in pairs])


def _varies(row: np.ndarray, groups: np.ndarray) -> bool:
    row = np.round(row / (ROUNDING * max(1.0, float(np.abs(row).max()))))
    values, counts = np.unique(row, return_counts=True)
    return all(len(set(groups[row != value])) > 2 for value in values[counts > 1])


def _of_a_pool(method: str) -> bool:
    return method in METHODS and "pool" in METHODS[method].needs
