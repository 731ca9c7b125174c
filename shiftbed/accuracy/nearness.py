"""How far a prediction can be trusted: whether the domain is as near to the fitted ones as they are to each other."""

from typing import NamedTuple

import numpy as np

from shiftbed.accuracy.outputs import Outputs
from shiftbed.shift.comparison import Moments, frechet_distances, moments

DIRECTIONS = 16
NEAR, FAR = 0.2, 0.05


class Nearness(NamedTuple):
    """Where a domain lies among the labelled ones.

    Attributes:
        share: Of the labelled domains, how many lie at least as far from their nearest as it does (it counts as one).
        nearest: The name of the labelled domain it is nearest to.
        distance: The Fréchet distance to it, in the source's leading directions.
    """

    share: float
    nearest: str
    distance: float

    @property
    def words(self) -> str:
        """What follows for the prediction."""
        where = f"nearest to {self.nearest}; {self.share:.0%} of the labelled domains lie as far from their nearest"
        if self.share >= NEAR:
            return f"This domain is as near to the labelled ones as they are to each other ({where}): rely on it."
        if self.share >= FAR:
            return f"This domain is at the edge of the labelled ones ({where}): rely on it with care."
        return (
            f"This domain is unlike the labelled ones ({where}): do not rely on the interval; label some of its "
            "images, or fit on domains more like it."
        )


class Surroundings:
    """The labelled domains as points: the means and covariances of their features in the source's leading directions.

    A model without features is compared by its log-probabilities. What is kept does not grow with the images.

    Args:
        source: Gives the directions, those of the largest variance.
    """

    def __init__(self, source: Outputs) -> None:
        values = _values(source)
        self._middle = values.mean(axis=0)
        _, _, directions = np.linalg.svd(values - self._middle, full_matrices=False)
        self._directions = directions[:DIRECTIONS].T
        self._points: list[Moments] = []
        self._names: list[str] = []
        self._groups: list[str] = []

    def add(self, domain: Outputs, group: str) -> None:
        """Notes a labelled domain."""
        self._points.append(self._point(domain))
        self._names.append(domain.name)
        self._groups.append(group)

    def locate(self, domain: Outputs) -> Nearness:
        """Where an unlabelled domain lies: labelled ones are compared with those of other groups."""
        groups = np.array(self._groups)
        apart = np.array([frechet_distances(point, self._points) for point in self._points])
        apart[groups[:, None] == groups] = np.inf
        own = np.array(frechet_distances(self._point(domain), self._points))
        as_far = (apart.min(axis=1) >= own.min()).sum()
        return Nearness(float((1 + as_far) / (1 + len(own))), self._names[int(own.argmin())], float(own.min()))

    def _point(self, domain: Outputs) -> Moments:
        return moments((_values(domain) - self._middle) @ self._directions)


def _values(domain: Outputs) -> np.ndarray:
    return (domain.log_probabilities if domain.features is None else domain.features).astype(np.float64)
