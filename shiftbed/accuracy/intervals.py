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
        errors: Of the labelled domains, each left out with its group.
    """

    line: Line
    width: float
    level: float
    images: float
    errors: np.ndarray

    @classmethod
    def fit(
        cls, scores: np.ndarray, accuracies: np.ndarray, groups: np.ndarray, images: np.ndarray, level: float = 0.9
    ) -> "AccuracyPredictor":
        """Fits a line, and the interval to its errors on left-out groups.

        Args:
            scores: Of the labelled domains.
            accuracies: Their accuracies, in [0, 1].
            groups: What is left out together.
            images: How many images each has.
            level: The probability with which intervals are meant to hold.
        """
        line = Line.fit(scores, accuracies)
        errors = left_out_errors(scores, accuracies, groups)
        # Where a line reaches far it errs more: errors are compared in units of that.
        sizes = np.abs(errors) / np.sqrt(1 + line.leverage(scores))
        return cls(line, conformal_quantile(sizes, groups, level), level, float(np.median(images)), errors)

    def predict(self, score: float, images: int) -> tuple[float, float, float]:
        """The estimate and the ends of its interval, all within [0, 1].

        The interval widens with the score's distance from those that were fitted on, and where there are fewer images
        than the labelled domains had, by the chance that this adds.
        """
        estimate = float(self.line(score))
        inside = min(max(estimate, 0.0), 1.0)
        reach = self.width * np.sqrt(1 + float(self.line.leverage(np.asarray(score))))
        fewer = max(0.0, 1 / images - 1 / self.images)
        half = np.hypot(reach, norm.ppf(0.5 + self.level / 2) * np.sqrt(inside * (1 - inside) * fewer))
        return inside, max(0.0, float(estimate - half)), min(1.0, float(estimate + half))
