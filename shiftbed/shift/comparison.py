"""Distances that papers put beside their own measures of shift: EMD, MMD, NI, the A-distance, Fréchet's.

Each is a function of arrays, one example a row, and a registered measure that adds its standard error and what it gives
where there is no shift.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from shiftbed.errors import DataError
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.intervals import groups_of
from shiftbed.shift.measures import ONE_GROUP, Doubt, Settings, doubt, error_of_means, estimate, measure, one_by_one
from shiftbed.shift.samples import Sample, comparable

PERMUTATIONS = 100
MEDIAN_OF = 500  # examples of a side whose distances give the kernel's width
NEGLIGIBLE = 1e-12  # a deviation this small beside the values is that of a constant


def distances(x: np.ndarray, y: np.ndarray, device: str = "cpu") -> np.ndarray:
    """The Euclidean distance of every row of the one to every row of the other."""
    one, other = (torch.as_tensor(rows, dtype=torch.float64, device=device) for rows in (x, y))
    centre = torch.cat([one, other]).mean(0)  # squares of values far from 0 would leave no digits for their differences
    return torch.cdist(one - centre, other - centre).cpu().numpy()


# --- earth mover's distance ------------------------------------------------------------------------------------------


def earth_movers_distance(x: np.ndarray, y: np.ndarray) -> float:
    """The Wasserstein-1 distance of two samples: the mean distance that examples move when the one becomes the other.

    Raises:
        DataError: The numbers of examples differ.
    """
    return _matched(distances(x, y))


def _matched(costs: np.ndarray) -> float:
    """The mean cost of the cheapest one-to-one matching."""
    if costs.shape[0] != costs.shape[1]:
        sizes = f"{costs.shape[0]} examples to {costs.shape[1]}"
        raise DataError(f"The earth mover's distance matches one to one, not {sizes}; draw equal numbers.")
    from scipy.optimize import linear_sum_assignment

    return float(costs[linear_sum_assignment(costs)].mean())


@measure("emd", "earth mover's distance: how far examples move from one domain to the other")
def _emd(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    count = min(len(p), len(q), settings.most)
    p, q = (one.at_most(count, settings.seed) for one in (p, q))
    pool = np.concatenate([p.vectors, q.vectors])
    costs = distances(pool, pool, settings.device)

    def distance(one: np.ndarray, other: np.ndarray) -> float:
        equal = min(len(one), len(other))  # whole groups are left out or change sides
        return _matched(costs[np.ix_(one[:equal], other[:equal])])

    return [_with_doubt("emd", doubt(one_by_one(distance), p, q, settings.seed), count)]


# --- maximum mean discrepancy ----------------------------------------------------------------------------------------


def median_distance(x: np.ndarray, y: np.ndarray) -> float:
    """The median distance of two examples of the pool, the usual width of a Gaussian kernel."""
    pool = np.concatenate([x[:MEDIAN_OF], y[:MEDIAN_OF]])
    among = distances(pool, pool)[np.triu_indices(len(pool), 1)]
    return float(np.median(among)) or float(among.mean()) or 1.0


def gaussian_kernel(x: np.ndarray, y: np.ndarray, width: float, device: str = "cpu") -> np.ndarray:
    """How alike every two rows are: exp(−distance² / 2 width²)."""
    return np.exp(-np.square(distances(x, y, device)) / (2 * width**2))


def squared_mmd(x: np.ndarray, y: np.ndarray, width: float | None = None, biased: bool = False) -> float:
    """The squared maximum mean discrepancy under a Gaussian kernel.

    Args:
        x: One sample.
        y: The other.
        width: Of the kernel; the median distance of the pool by default.
        biased: Count every example as alike itself. Without that, the mean over samples is exact, and may be negative.
    """
    pool = np.concatenate([x, y])
    kernel = gaussian_kernel(pool, pool, median_distance(x, y) if width is None else width)
    first = (np.arange(len(pool)) < len(x))[:, None]
    return float(_mmd_of_kernel(kernel, first, np.ones_like(first), biased)[0])


def _mmd_of_kernel(kernel: np.ndarray, first: np.ndarray, kept: np.ndarray, biased: bool = False) -> np.ndarray:
    """The squared discrepancy for each column of N×r: which examples are of the first sample, and which are kept."""
    one, other = (first & kept).astype(float), (~first & kept).astype(float)
    products = kernel @ np.concatenate([one, other], axis=1)
    of_one, of_other = products[:, : one.shape[1]], products[:, one.shape[1] :]
    n, m = one.sum(0), other.sum(0)
    across = (one * of_other).sum(0) / (n * m)
    within = [(side * product).sum(0) for side, product in ((one, of_one), (other, of_other))]
    if biased:
        return within[0] / n**2 + within[1] / m**2 - 2 * across
    return (within[0] - n) / (n * (n - 1)) + (within[1] - m) / (m * (m - 1)) - 2 * across


@measure("mmd", "squared maximum mean discrepancy, unbiased, Gaussian kernel of median width", highest=2.0)
def _mmd(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    p, q = (one.at_most(settings.most, settings.seed) for one in (p, q))
    pool = np.concatenate([p.vectors, q.vectors])
    kernel = gaussian_kernel(pool, pool, median_distance(p.vectors, q.vectors), settings.device)
    found = doubt(partial(_mmd_of_kernel, kernel), p, q, settings.seed, PERMUTATIONS)
    return [_with_doubt("mmd", found, min(len(p), len(q)), highest=2.0)]


# --- non-i.i.d. index ------------------------------------------------------------------------------------------------


def non_iid_index(
    x: np.ndarray, x_labels: np.ndarray, y: np.ndarray, y_labels: np.ndarray, corrected: bool = False
) -> float:
    """NI of He et al.: how far the class means lie apart, in deviations of the pooled class, over all features.

    Features that do not vary in a class are left out of it. The mean over the classes that both samples have.

    Args:
        x: One sample.
        x_labels: Its classes.
        y: The other.
        y_labels: Its classes.
        corrected: Subtract, within each class, what two samples of one distribution give: d (1/n + 1/m).
    """
    values = []
    for label in np.intersect1d(x_labels, y_labels):
        one, other = x[x_labels == label], y[y_labels == label]
        pool = np.concatenate([one, other])
        deviation = pool.std(axis=0)
        varies = deviation > NEGLIGIBLE * np.abs(pool).max(axis=0)
        difference = (one.mean(axis=0) - other.mean(axis=0))[varies] / deviation[varies]
        by_chance = varies.sum() * (1 / len(one) + 1 / len(other)) if corrected else 0.0
        values.append(np.sqrt(max(0.0, np.square(difference).sum() - by_chance)))
    return float(np.mean(values))


@measure("ni", "non-i.i.d. index: distance of class means in deviations, over all features", needs=("labels",))
def _ni(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    p, q, notes = comparable(p, q)
    assert p.labels is not None and q.labels is not None
    pool, labels = np.concatenate([p.vectors, q.vectors]), np.concatenate([p.labels, q.labels])

    def index(one: np.ndarray, other: np.ndarray) -> float:
        return non_iid_index(pool[one], labels[one], pool[other], labels[other])

    found = doubt(one_by_one(index), p, q, settings.seed)
    corrected = non_iid_index(p.vectors, p.labels, q.vectors, q.labels, corrected=True)
    return [_with_doubt("ni", found, min(len(p), len(q)), notes=notes, corrected=corrected)]


# --- proxy A-distance ------------------------------------------------------------------------------------------------


def told_apart(p: Sample, q: Sample, seed: int = 0) -> tuple[tuple[np.ndarray, Sample], tuple[np.ndarray, Sample]]:
    """Whether a linear classifier knows which side held-out examples are from; it learns from the other half.

    Both sides count alike: of the larger one, as many examples are drawn as the smaller one has, and where groups,
    which are held out whole, leave more of one side to learn from, the classifier is not told of that. There is one
    division and not several in turn, for under these the mistakes at no shift are more than half.

    Returns:
        Of either side, which of its held-out examples are given to it, and these.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    halves = [one.at_most(min(len(p), len(q)), seed).split(0.5, seed) for one in (p, q)]
    learned = np.concatenate([one.vectors for one, _ in halves])
    linear = LogisticRegression(C=0.1, max_iter=200, class_weight="balanced")
    classifier = make_pipeline(StandardScaler(), linear).fit(
        learned, np.repeat([0, 1], [len(one) for one, _ in halves])
    )
    of_p, of_q = ((classifier.predict(held.vectors) == side, held) for side, (_, held) in enumerate(halves))
    return of_p, of_q


@measure("a-distance", "proxy A-distance 2(1 − 2 error) of a linear domain classifier, held out", highest=2.0)
def _a_distance(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    p, q = (one.at_most(2 * settings.most, settings.seed) for one in (p, q))
    (right_p, held_p), (right_q, held_q) = told_apart(p, q, settings.seed)
    accuracy = float((right_p.mean() + right_q.mean()) / 2)
    groups, count = [held_p.groups, held_q.groups], min(len(held_p), len(held_q))
    error, units = 2 * error_of_means([right_p, right_q], groups), groups_of(groups)
    return [estimate("a-distance", 2 * (2 * accuracy - 1), error, count, highest=2.0, units=units, accuracy=accuracy)]


# --- Fréchet distance ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moments:
    """The mean and covariance of features, and the covariance's root, computed once however often it is compared."""

    mean: torch.Tensor
    covariance: torch.Tensor

    @cached_property
    def root(self) -> torch.Tensor:
        """The symmetric square root of the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def moments(features: np.ndarray | torch.Tensor) -> Moments:
    """Mean and covariance (with n − 1) of features, one example a row, in float64 on their device."""
    x = torch.as_tensor(features).double()
    centred = x - x.mean(0)
    return Moments(x.mean(0), centred.T @ centred / (len(x) - 1))


def frechet_distance(
    mean1: np.ndarray | torch.Tensor,
    cov1: np.ndarray | torch.Tensor,
    mean2: np.ndarray | torch.Tensor,
    cov2: np.ndarray | torch.Tensor,
) -> float:
    """The squared Wasserstein-2 distance of two Gaussians: |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½).

    The trace of the root of the product is the sum of the roots of the eigenvalues of Σ₁^½ Σ₂ Σ₁^½, which is symmetric:
    no complex numbers arise, and a singular covariance needs no ridge.
    """
    one, other = (
        Moments(torch.as_tensor(mean).double(), torch.as_tensor(covariance).double())
        for mean, covariance in ((mean1, cov1), (mean2, cov2))
    )
    return frechet_distances(one, [other])[0]


def frechet_distances(reference: Moments, others: list[Moments]) -> list[float]:
    """The Fréchet distance of each of many distributions to one, whose root is taken once."""
    values = []
    for other in others:
        product = reference.root @ other.covariance @ reference.root
        root_trace = torch.linalg.eigvalsh(product).clamp(min=0).sqrt().sum()
        apart = (reference.mean - other.mean).square().sum()
        traces = reference.covariance.trace() + other.covariance.trace()
        values.append(max(0.0, float(apart + traces - 2 * root_trace)))
    return values


def frechet_distance_of_samples(x: np.ndarray, y: np.ndarray, device: str = "cpu") -> float:
    """The Fréchet distance of two samples.

    With fewer examples than dimensions nothing of the size of a covariance is made: with rows X and Y, centred and
    divided by the root of n − 1, the trace of (Σ₁Σ₂)^½ is the sum of the singular values of X Yᵀ.
    """
    one, other = (torch.as_tensor(rows, dtype=torch.float64, device=device) for rows in (x, y))
    if min(len(x), len(y)) > x.shape[1]:
        return frechet_distances(moments(one), [moments(other)])[0]
    centred = [(rows - rows.mean(0)) / (len(rows) - 1) ** 0.5 for rows in (one, other)]
    apart = (one.mean(0) - other.mean(0)).square().sum()
    traces = centred[0].square().sum() + centred[1].square().sum()
    return max(0.0, float(apart + traces - 2 * torch.linalg.svdvals(centred[0] @ centred[1].T).sum()))


@measure("frechet", "Fréchet distance of the Gaussians with the same means and covariances")
def _frechet(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    if p.vectors.shape[1] >= min(len(p), len(q)):
        p, q = p.at_most(settings.most, settings.seed), q.at_most(settings.most, settings.seed)
    pool = np.concatenate([p.vectors, q.vectors])

    def distance(one: np.ndarray, other: np.ndarray) -> float:
        return frechet_distance_of_samples(pool[one], pool[other], settings.device)

    return [_with_doubt("frechet", doubt(one_by_one(distance), p, q, settings.seed), min(len(p), len(q)))]


def _with_doubt(
    name: str, found: Doubt, count: int, notes: tuple[str, ...] = (), highest: float | None = None, **more: float
) -> ShiftEstimate:
    value, error, units, no_shift = found
    notes = (*notes, ONE_GROUP) if error is None else notes
    return estimate(name, value, error, count, no_shift=no_shift, highest=highest, units=units, notes=notes, **more)
