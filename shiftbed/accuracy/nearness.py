"""How far a prediction can be trusted: whether the domain is as near to the fitted ones as they are to each other."""

from typing import NamedTuple

import numpy as np

from shiftbed.accuracy.outputs import Outputs
from shiftbed.shift.comparison import Moments, frechet_distances, moments

DIRECTIONS = 16
NEAR, FAR = 0.2, 0.05
FEW = 20  # labelled domains, of which one in twenty can be told
BEYOND = 2.0  # times farther than any labelled domain: unlike them, however few they are


class Nearness(NamedTuple):
    """Where a domain lies among the labelled ones.

    Attributes:
        share: Of the labelled domains, how many lie at least as far from their nearest as it does.
        nearest: The name of the labelled domain it is nearest to.
        distance: The Fréchet distance to it, in the source's leading directions.
        farthest: The largest distance of a labelled domain from its nearest.
        domains: How many labelled domains there are.
    """

    share: float
    nearest: str
    distance: float
    farthest: float
    domains: int

    @property
    def words(self) -> str:
        """What follows for the prediction."""
        where = f"nearest to {self.nearest}; {self.share:.0%} of the labelled domains lie as far from their nearest"
        if self.share >= NEAR:
            return f"This domain is as near to the labelled ones as they are to each other ({where}): rely on it."
        too_few = self.domains < FEW and self.distance <= BEYOND * self.farthest
        if self.share >= FAR or too_few:
            return f"This domain is at the edge of the labelled ones ({where}): rely on it with care."
        return (
            f"This domain is unlike the labelled ones ({where}): do not rely on the interval; label some of its "
            "images, or fit on domains more like it."
        )


class Surroundings:
    """The labelled domains as points: the means and covariances of their features in the source's leading directions.

    A model without features is compared by its log-probabilities.

    Args:
        source: Gives the directions, those of the largest variance.
    """

    def __init__(self, source: Outputs) -> None:
        values = _values(source)
        self._middle = values.mean(axis=0)
        _, _, directions = np.linalg.svd(values - self._middle, full_matrices=False)
        self._directions = directions[:DIRECTIONS].T
        self._values: list[np.ndarray] = []
        self._names: list[str] = []
        self._groups: list[str] = []

    def add(self, domain: Outputs, group: str) -> None:
        """Notes a labelled domain."""
        self._values.append(self._projected(domain))
        self._names.append(domain.name)
        self._groups.append(group)

    def locate(self, domain: Outputs) -> Nearness:
        """Where an unlabelled domain lies: labelled ones are compared with those of other groups.

        Few images lie farther from anything than many do. So each labelled domain is compared by as many of its images
        as the unlabelled domain has, and that by no more than they have.
        """
        groups, points = np.array(self._groups), [moments(values) for values in self._values]
        images = min(len(domain), max(map(len, self._values)))
        apart = np.array([frechet_distances(_some(values, images), points) for values in self._values])
        apart[groups[:, None] == groups] = np.inf
        nearest = apart.min(axis=1)
        own = np.array(frechet_distances(_some(self._projected(domain), images), points))
        found = self._names[int(own.argmin())], float(own.min()), float(nearest[np.isfinite(nearest)].max(initial=0.0))
        return Nearness(float(np.mean(nearest >= own.min())), *found, len(own))

    def _projected(self, domain: Outputs) -> np.ndarray:
        return (_values(domain) - self._middle) @ self._directions


def _some(values: np.ndarray, count: int) -> Moments:
    """The moments of so many of these, chosen at random but always the same."""
    if count >= len(values):
        return moments(values)
    return moments(values[np.random.default_rng(0).permutation(len(values))[:count]])


def _values(domain: Outputs) -> np.ndarray:
    return (domain.log_probabilities if domain.features is None else domain.features).astype(np.float64)
