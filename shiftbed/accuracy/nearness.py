"""How far a prediction can be trusted: whether the domain is as near to the fitted ones as they are to each other."""

from typing import NamedTuple

import numpy as np

from shiftbed.accuracy.outputs import Outputs
from shiftbed.shift.comparison import Moments, frechet_distances, moments

DIRECTIONS = 16
NEAR, FAR = 0.2, 0.05
FEW = 20  # labelled domains, of which one in twenty can be told
HALVINGS = 4  # of shared images: one alone is far or near for all domains together, by chance
FEWEST_IN_HALF = 2  # images that a covariance is of
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

    def words(self, in_doubt: bool = False) -> str:
        """What follows for the prediction.

        Args:
            in_doubt: Whether something else speaks against it: nobody is then told to rely on it, however near it is.
        """
        where = f"nearest to {self.nearest}; {self.share:.0%} of the labelled domains lie as far from their nearest"
        if self.share >= NEAR:
            near = f"This domain is as near to the labelled ones as they are to each other ({where})"
            return near + ("." if in_doubt else ": rely on it.")
        too_few = self.domains < FEW and self.distance <= BEYOND * self.farthest
        if self.share >= FAR or too_few:
            edge = f"This domain is at the edge of the labelled ones ({where})"
            return edge + ("." if in_doubt else ": rely on it with care.")
        return (
            f"This domain is unlike the labelled ones ({where}): do not rely on the interval; label some of its "
            "images, or fit on domains more like it."
        )


class Surroundings:
    """The labelled domains as points: the means and covariances of their features in the source's leading directions.

    A model without features is compared by its log-probabilities.

    Args:
        source: Gives the directions, those of the largest variance.
        shared: Whether the labelled domains show the same images in the same order, as corruptions of one source do.
    """

    def __init__(self, source: Outputs, shared: bool = False) -> None:
        values = _values(source)
        self._middle = values.mean(axis=0)
        _, _, directions = np.linalg.svd(values - self._middle, full_matrices=False)
        self._directions = directions[:DIRECTIONS].T
        self._shared = shared
        self._values: list[np.ndarray] = []
        self._names: list[str] = []
        self._groups: list[str] = []

    @property
    def directions(self) -> int:
        """In how many directions domains are compared."""
        return self._directions.shape[1]

    def add(self, domain: Outputs, group: str) -> None:
        """Notes a labelled domain."""
        self._values.append(self._projected(domain))
        self._names.append(domain.name)
        self._groups.append(group)

    def locate(self, domain: Outputs) -> Nearness:
        """Where an unlabelled domain lies: labelled ones are compared with those of other groups.

        Few images lie farther from anything than many do. So each labelled domain is compared by as many of its images
        as the unlabelled domain has, and that by no more than they have. Other images lie farther than the same ones:
        where labelled domains share theirs, one half of them is compared with the other, for several halvings.
        """
        groups, here = np.array(self._groups), self._projected(domain)
        shares, distances, farthest = [], [], 0.0
        for seed in range(HALVINGS if self._shared else 1):
            compared, others = zip(*(self._parts(values, seed) for values in self._values), strict=True)
            points = [moments(values) for values in others]
            images = min(len(domain), max(map(len, compared)))
            apart = np.array([frechet_distances(_some(values, images, seed), points) for values in compared])
            apart[groups[:, None] == groups] = np.inf
            nearest = apart.min(axis=1)
            distances.append(frechet_distances(_some(here, images, seed), points))
            shares.append(np.mean(nearest >= min(distances[-1])))
            farthest = float(nearest[np.isfinite(nearest)].max(initial=farthest))
        own = np.mean(distances, axis=0)
        name, distance = self._names[int(own.argmin())], float(own.min())
        return Nearness(float(np.mean(shares)), name, distance, farthest, len(own))

    def _parts(self, values: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """What of a labelled domain is compared, and what others are compared with; of shared images two halves."""
        if not self._shared or len(values) < 2 * FEWEST_IN_HALF:
            return values, values
        order = np.random.default_rng(seed).permutation(len(values))
        return values[order[::2]], values[order[1::2]]

    def _projected(self, domain: Outputs) -> np.ndarray:
        return (_values(domain) - self._middle) @ self._directions


def _some(values: np.ndarray, count: int, seed: int) -> Moments:
    """The moments of so many of these, chosen at random but always the same."""
    if count >= len(values):
        return moments(values)
    return moments(values[np.random.default_rng(seed).permutation(len(values))[:count]])


def _values(domain: Outputs) -> np.ndarray:
    return (domain.log_probabilities if domain.features is None else domain.features).astype(np.float64)
