"""The source: a labelled set that the model was not trained on, and what the methods learn from it, once."""

import warnings
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.optimize

from shiftbed.accuracy.outputs import Outputs
from shiftbed.errors import DataError
from shiftbed.shift.comparison import Moments, moments

PROTOTYPES = 80  # the Bag-of-Prototypes paper's number for CIFAR-10
ROUNDS = 100
SEED = 2022
WIDEST = 5.0  # temperatures lie between exp(−5) and exp(5)


class Threshold(NamedTuple):
    """ATC's threshold on a score.

    Attributes:
        value: The threshold.
        kept: The share that counts as above it of images with just this score.
    """

    value: float
    kept: float = 1.0

    def share_above(self, scores: np.ndarray) -> float:
        """The share of images above the threshold."""
        return float(((scores > self.value).sum() + self.kept * (scores == self.value).sum()) / len(scores))


class Reference:
    """The model's outputs on the source's validation images.

    Args:
        outputs: Outputs with labels.

    Raises:
        DataError: There are no labels.
    """

    def __init__(self, outputs: Outputs) -> None:
        if outputs.labels is None:
            raise DataError(
                "The source set has no labels: ATC, DoC and COT compare with the accuracy there; give labelled images."
            )
        self.outputs = outputs
        self.accuracy = outputs.accuracy

    @property
    def flawless(self) -> bool:
        """Whether all predictions are right: what an error looks like cannot be learned then."""
        return self.accuracy == 1

    @cached_property
    def shares(self) -> np.ndarray:
        """The share of each class among the labels."""
        assert self.outputs.labels is not None
        return np.bincount(self.outputs.labels, minlength=self.outputs.classes) / len(self.outputs)

    @cached_property
    def confidence_threshold(self) -> Threshold:
        """ATC's threshold on the maximum confidence."""
        return threshold(self.outputs.confidence, self.outputs.right)

    @cached_property
    def negentropy_threshold(self) -> Threshold:
        """ATC's threshold on the negative entropy."""
        return threshold(-self.outputs.entropy, self.outputs.right)

    @cached_property
    def temperature(self) -> float:
        """What logits are divided by to be least surprised by the labels (Guo et al., 2017).

        It is 1 where all predictions are right: the surer the model were made then, the better, without an end.
        """
        if self.flawless:
            return 1.0
        logits, labels = self.outputs.logits.astype(np.float64), self.outputs.labels
        rows = np.arange(len(logits))

        def surprise(log_temperature: float) -> float:
            scaled = Outputs(logits / np.exp(log_temperature))
            return -float(scaled.log_probabilities[rows, labels].mean())

        found = scipy.optimize.minimize_scalar(surprise, bounds=(-WIDEST, WIDEST), method="bounded")
        return float(np.exp(found.x))

    def calibrated(self) -> "Reference":
        """The reference of the model whose logits are divided by the temperature."""
        return Reference(self.outputs.scaled(self.temperature))

    @property
    def features(self) -> np.ndarray:
        """The source's features.

        Raises:
            DataError: The model gave none.
        """
        return required_features(self.outputs)

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance of the source's features."""
        return moments(self.features)

    @cached_property
    def prototypes(self) -> np.ndarray:
        """Centres of K-means on the source's features: 80, or one for two images where there are few."""
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits

        count = max(2, min(PROTOTYPES, len(self.features) // 2))
        with threadpool_limits(1), warnings.catch_warnings():  # one thread: sums in one order everywhere
            # A collapsed model has fewer different features than prototypes; equal prototypes do no harm.
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = KMeans(count, max_iter=ROUNDS, random_state=SEED, n_init=1).fit(self.features.astype(np.float64))
        return found.cluster_centers_

    def bag(self, features: np.ndarray) -> np.ndarray:
        """The share of images that are nearest to each prototype."""
        squares = (self.prototypes**2).sum(axis=1)
        nearest = (squares - 2 * features.astype(np.float64) @ self.prototypes.T).argmin(axis=1)
        return np.bincount(nearest, minlength=len(self.prototypes)) / len(features)

    @cached_property
    def own_bag(self) -> np.ndarray:
        """The source's own shares."""
        return self.bag(self.features)


def required_features(outputs: Outputs) -> np.ndarray:
    """The features of a domain.

    Raises:
        DataError: The model gave none.
    """
    if outputs.features is None:
        raise DataError(
            f"The model gave no features of {outputs.name}, which the Fréchet distance and Bag-of-Prototypes compare; "
            "choose a method that reads logits only, such as atc-mc."
        )
    return outputs.features


def threshold(scores: np.ndarray, right: np.ndarray) -> Threshold:
    """ATC's threshold: as many source images lie below it as are predicted wrongly.

    It is below all scores if everything is right, above all if nothing is. Where several images share the score at the
    threshold (a network that is very sure of most has a confidence of 1 for them) no value separates as many; a share
    of them then counts as above it, so that the source is always given its own accuracy.
    """
    wrong = int((~right).sum())
    if wrong == 0:
        return Threshold(-np.inf)
    if wrong == len(scores):
        return Threshold(np.inf)
    value = np.sort(scores)[wrong]
    above, tied = (scores > value).sum(), (scores == value).sum()
    return Threshold(float(value), float((right.sum() - above) / tied))
