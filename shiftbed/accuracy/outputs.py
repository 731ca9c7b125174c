"""What a model says of the images of one domain: all that accuracy prediction looks at."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import log_softmax

from shiftbed.errors import DataError


@dataclass(frozen=True)
class Outputs:
    """The logits of a model on the images of a domain, and what else of it is known.

    Attributes:
        logits: N×K.
        features: N×D, what the classifier's last layer sees, or None.
        labels: N classes, or None where nobody has labelled the images.
        pool: M×N, the classes that the other models of a pool predict for the same images, or None.
        name: The domain's name, for messages.
    """

    logits: np.ndarray
    features: np.ndarray | None = None
    labels: np.ndarray | None = None
    pool: np.ndarray | None = None
    name: str = "these images"

    def __post_init__(self) -> None:
        if self.logits.ndim != 2 or self.logits.shape[1] < 2:
            raise DataError(f"Logits are one row an image and one column a class, not of shape {self.logits.shape}.")
        if len(self) < 2:
            have = "There are no images" if len(self) == 0 else "There is one image"
            raise DataError(f"{have} in {self.name}; an accuracy is predicted from two images or more.")
        rows = {"features": self.features, "labels": self.labels, "pool": None if self.pool is None else self.pool.T}
        for what, values in rows.items():
            if values is not None and len(values) != len(self):
                raise DataError(f"{self.name} has {len(self)} images but {what} of {len(values)}.")
        for what, values in (("logits", self.logits), ("features", self.features)):
            bad = np.flatnonzero(~np.isfinite(self.logits if values is None else values).all(axis=1))
            if len(bad) > 0:
                raise DataError(
                    f"The model's {what} of {self.name} are not finite for {len(bad)} of {len(self)} images, the first "
                    f"at place {bad[0]}: no accuracy can be predicted from them."
                )
        if self.labels is not None and not 0 <= self.labels.min() <= self.labels.max() < self.classes:
            raise DataError(
                f"The labels of {self.name} go from {self.labels.min()} to {self.labels.max()}, and the model knows "
                f"0 to {self.classes - 1}; the classes must be the model's."
            )

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.logits.shape[1]

    @cached_property
    def log_probabilities(self) -> np.ndarray:
        """The logarithm of the softmax, float64."""
        return log_softmax(self.logits.astype(np.float64), axis=1)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The softmax, float64."""
        return np.exp(self.log_probabilities)

    @cached_property
    def predictions(self) -> np.ndarray:
        """The most probable class of each image."""
        return self.logits.argmax(axis=1)

    @cached_property
    def confidence(self) -> np.ndarray:
        """The probability of the most probable class of each image."""
        return self.probabilities.max(axis=1)

    @cached_property
    def entropy(self) -> np.ndarray:
        """The entropy of each image's probabilities, in nats."""
        return -(self.probabilities * self.log_probabilities).sum(axis=1)

    @cached_property
    def margin(self) -> np.ndarray:
        """How much more probable the first class of each image is than the second."""
        first, second = np.partition(self.probabilities, -2, axis=1)[:, :-3:-1].T
        return first - second

    @property
    def right(self) -> np.ndarray:
        """Whether each prediction is right.

        Raises:
            DataError: There are no labels.
        """
        if self.labels is None:
            raise DataError(f"{self.name} has no labels; a source set and domains to fit on need them.")
        return self.predictions == self.labels

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return float(self.right.mean())

    def take(self, places: np.ndarray) -> "Outputs":
        """The outputs of some of the images."""
        return replace(
            self,
            logits=self.logits[places],
            features=None if self.features is None else self.features[places],
            labels=None if self.labels is None else self.labels[places],
            pool=None if self.pool is None else self.pool[:, places],
        )

    def scaled(self, temperature: float) -> "Outputs":
        """The same with logits divided by a temperature."""
        return replace(self, logits=self.logits / temperature)
