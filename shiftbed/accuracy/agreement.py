"""Agreement of a pool of models, and agreement-on-the-line (Baek et al., 2022)."""

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from shiftbed.errors import DataError

LOWEST, HIGHEST = 0.05, 0.98  # pairs that agree less or more, on either set, say nothing of the line


def agreement_matrix(predictions: np.ndarray) -> np.ndarray:
    """The share of images on which each two models of a pool predict the same class.

    Args:
        predictions: M×N, the predicted classes.
    """
    if len(predictions) < 2:
        raise DataError(f"A pool of {len(predictions)} model has no agreement; give two models or more.")
    return np.stack([(predictions == one).mean(axis=1) for one in predictions])


def mean_agreement(predictions: np.ndarray, pool: np.ndarray) -> float:
    """The mean share of images on which a model agrees with each model of a pool."""
    return float((pool == predictions).mean())


class OnTheLine(NamedTuple):
    """Accuracies that agreement-on-the-line predicts for every model of a pool.

    Attributes:
        simple: By the line of agreements applied to accuracies (ALine-S).
        paired: By least squares over pairs, each two models' mean accuracy as far from the line as their agreement
            (ALine-D).
    """

    simple: np.ndarray
    paired: np.ndarray


def on_the_line(source: np.ndarray, labels: np.ndarray, target: np.ndarray) -> OnTheLine:
    """Predicts every model's accuracy on a target from how much models agree on it and on the source.

    On a probit scale agreement on the target is a line in agreement on the source, and accuracy follows the same line.

    Args:
        source: M×N, predicted classes on the source.
        labels: N, the source's labels.
        target: M×N', predicted classes on the target.

    Raises:
        DataError: Fewer than three models, or too few pairs that neither always nor hardly ever agree.
    """
    from threadpoolctl import threadpool_limits

    if len(source) < 3:
        raise DataError(f"Agreement-on-the-line needs a pool of three models or more, not {len(source)}.")
    first, second = np.triu_indices(len(source), 1)
    there, here = (agreement_matrix(some)[first, second] for some in (source, target))
    usable = (np.minimum(there, here) >= LOWEST) & (np.maximum(there, here) <= HIGHEST)
    if usable.sum() < 2 or np.ptp(there[usable]) == 0:
        raise DataError(
            f"{usable.sum()} of {len(there)} pairs of models agree on between 5 % and 98 % of both sets; a line needs "
            "two that differ."
        )
    first, second = first[usable], second[usable]
    x, y = probit(there[usable], source.shape[1]), probit(here[usable], target.shape[1])
    with threadpool_limits(1):  # on shared cores the threads of such small problems mostly wait for each other
        slope, offset = np.polyfit(x, y, 1)
        accuracies = probit((source == labels).mean(axis=1), source.shape[1])
        simple = slope * accuracies + offset
        pairs = np.zeros((len(x), len(source)))
        pairs[np.arange(len(x)), first] = pairs[np.arange(len(x)), second] = 0.5
        wanted = y + slope * (pairs @ accuracies - x)
        # The least change to the line's answers: models in no usable pair are left where it puts them.
        paired = simple + np.linalg.lstsq(pairs, wanted - pairs @ simple, rcond=None)[0]
    return OnTheLine(norm.cdf(simple), norm.cdf(paired))


def probit(shares: np.ndarray, count: int) -> np.ndarray:
    """The normal quantile of shares of `count` images, which stay half an image away from 0 and 1."""
    return norm.ppf(np.clip(shares, 0.5 / count, 1 - 0.5 / count))
