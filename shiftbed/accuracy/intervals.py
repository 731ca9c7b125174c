"""Intervals by conformal prediction over domains: what was wrong on domains left out is expected on the next."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from shiftbed.accuracy.fitting import Line, left_out_errors


def conformal_quantile(sizes: np.ndarray, groups: np.ndarray, level: float) -> float:
    """The size that errors on the next group's domains stay below with the given probability; maybe infinite.

    Groups, not domains, are exchangeable (five severities of one corruption are not five corruptions), so each group
    weighs the same, and the next one is a group whose errors are infinite (Dunn, Wasserman and Ramdas, 2023). With
    groups of one domain it is the usual ⌈(n + 1) · level⌉-th smallest error.

    Args:
        sizes: Of the errors, one a domain.
        groups: The group of each domain.
        level: The wanted probability, such as 0.9.
    """
    _, members, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(sizes)
    weights = np.cumsum(1 / counts[members[order]]) / (len(counts) + 1)
    place = np.searchsorted(weights, level - 1e-12)
    return float(sizes[order][place]) if place < len(sizes) else float("inf")


@dataclass(frozen=True)
class AccuracyPredictor:
    """An accuracy estimate for an unlabelled domain, from one score, with an interval.

    Attributes:
        line: Accuracy against score on the labelled domains.
        width: Half the interval's width at a domain without leverage.
        level: The probability with which intervals are meant to hold.
        images: How many images a labelled domain has (their median).
        shared: Whether the labelled domains show the same images, as corruptions of one source do.
        errors: Of the labelled domains, each left out with its group: accuracy less the prediction within [0, 1].
    """

    line: Line
    width: float
    level: float
    images: float
    shared: bool
    errors: np.ndarray

    @classmethod
    def fit(
        cls,
        scores: np.ndarray,
        accuracies: np.ndarray,
        groups: np.ndarray,
        images: np.ndarray,
        level: float = 0.9,
        shared: bool = False,
    ) -> "AccuracyPredictor":
        """Fits a line, and the interval to its errors on left-out groups.

        Args:
            scores: Of the labelled domains.
            accuracies: Their accuracies, in [0, 1].
            groups: What is left out together.
            images: How many images each has.
            level: The probability with which intervals are meant to hold.
            shared: Whether all domains show the same images and are asked about others.
        """
        line = Line.fit(scores, accuracies)
        errors = left_out_errors(scores, accuracies, groups)
        # Where a line reaches far it errs more: errors are compared in units of that.
        sizes = np.abs(errors) / np.sqrt(1 + line.leverage(scores))
        shown = accuracies - (accuracies - errors).clip(0, 1)
        width = conformal_quantile(sizes, groups, level)
        return cls(line, width, level, float(np.median(images)), shared, shown)

    def predict(self, score: float, images: int) -> tuple[float, float, float]:
        """The estimate and the ends of its interval, all within [0, 1].

        The interval widens with the score's distance from those that were fitted on, and by the chance in which images
        there are. Its middle is the estimate within [0, 1], which is never farther from an accuracy than the line is.
        """
        inside = min(max(float(self.line(score)), 0.0), 1.0)
        share = min(max(inside, 0.5 / images), 1 - 0.5 / images)  # at 0 or 1 there is chance too
        reach = self.width * np.sqrt(1 + float(self.line.leverage(np.asarray(score))))
        half = np.hypot(reach, norm.ppf(0.5 + self.level / 2) * np.sqrt(share * (1 - share) * self._chance(images)))
        return inside, max(0.0, float(inside - half)), min(1.0, float(inside + half))

    def _chance(self, images: int) -> float:
        """The variance that the choice of images adds to left-out errors, in units of that of one image.

        Errors on left-out domains with images of their own have the chance of so many images in them. Where all show
        the same, it moves the line as a whole, which no left-out error shows: it counts then, and that of new images.
        """
        return 1 / images + 1 / self.images if self.shared else max(0.0, 1 / images - 1 / self.images)
