"""From scores to accuracies: a line fitted on labelled domains, judged on domains it has not seen."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import kendalltau, spearmanr

from shiftbed.errors import DataError

FEWEST = 3  # domains that a line is fitted on
ROUNDING = 1e-12  # scores that differ by less, or by less of their mean, are the same


@dataclass(frozen=True)
class Line:
    """Accuracy as a linear function of a score, by least squares.

    Attributes:
        slope: Its slope.
        intercept: Its value at 0.
        middle: The mean score it was fitted on.
        spread: The sum of squared differences from the mean score.
        count: How many domains it was fitted on.
        lowest: The least score it was fitted on.
        highest: The largest.
    """

    slope: float
    intercept: float
    middle: float
    spread: float
    count: int
    lowest: float
    highest: float

    @classmethod
    def fit(cls, scores: np.ndarray, accuracies: np.ndarray) -> "Line":
        """The line through labelled domains.

        Raises:
            DataError: There are fewer than three, or all have the same score.
        """
        if len(scores) < FEWEST:
            raise DataError(f"A line of accuracy against score needs {FEWEST} labelled domains, not {len(scores)}.")
        middle = float(scores.mean())
        spread = float(((scores - middle) ** 2).sum())
        if is_constant(scores):
            raise DataError(f"All {len(scores)} labelled domains have the same score {middle:.4g}: it tells nothing.")
        slope = float(((scores - middle) * (accuracies - accuracies.mean())).sum() / spread)
        intercept = float(accuracies.mean() - slope * middle)
        return cls(slope, intercept, middle, spread, len(scores), float(scores.min()), float(scores.max()))

    def __call__(self, scores: np.ndarray | float) -> np.ndarray | float:
        """The accuracies of scores; they may lie outside [0, 1]."""
        return self.intercept + self.slope * scores

    def leverage(self, scores: np.ndarray) -> np.ndarray:
        """How much more uncertain the line is at a score than a mean: 1/n and the squared distance from the middle."""
        return 1 / self.count + (scores - self.middle) ** 2 / self.spread


def is_constant(scores: np.ndarray) -> bool:
    """Whether scores are the same but for rounding."""
    return float(scores.std()) <= ROUNDING * max(1.0, abs(float(scores.mean())))


def left_out_errors(scores: np.ndarray, accuracies: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """For each domain its accuracy less what the line through the domains of all other groups predicts.

    No line is fitted twice: with r the residuals and H the hat matrix of the line through all, the errors of a group g
    are (1 − H_gg)⁻¹ r_g. Without groups each domain is left out alone.

    Raises:
        DataError: The domains of all but one group are too few, or share one score.
    """
    line = Line.fit(scores, accuracies)
    residuals = accuracies - line(scores)
    centred = scores - line.middle
    members = np.arange(len(scores)) if groups is None else np.unique(groups, return_inverse=True)[1]
    errors = np.empty(len(scores))
    for group in range(members.max() + 1):
        mine = np.flatnonzero(members == group)
        if len(scores) - len(mine) < FEWEST - 1 or is_constant(np.delete(scores, mine)):
            raise DataError(
                f"Leaving out a group of {len(mine)} of {len(scores)} labelled domains leaves fewer than two different "
                "scores; give labelled domains of more groups."
            )
        hat = 1 / len(scores) + np.outer(centred[mine], centred[mine]) / line.spread
        errors[mine] = np.linalg.solve(np.eye(len(mine)) - hat, residuals[mine])
    return errors


class Evaluation(NamedTuple):
    """How well a score predicts accuracies of domains that were left out.

    Attributes:
        errors: Of each domain, accuracy less prediction.
        mae: The mean absolute error.
        spearman: The rank correlation of score and accuracy.
        kendall: Kendall's.
        baseline: The mean absolute error of always predicting the mean of the others.
    """

    errors: np.ndarray
    mae: float
    spearman: float
    kendall: float
    baseline: float


def evaluate(scores: np.ndarray, accuracies: np.ndarray, groups: np.ndarray | None = None) -> Evaluation:
    """Judges a score by leave-one-domain-out, or with groups by leave-one-group-out, regression."""
    errors = left_out_errors(scores, accuracies, groups)
    return Evaluation(
        errors,
        float(np.abs(errors).mean()),
        rank_correlation(scores, accuracies),
        rank_correlation(scores, accuracies, "kendall"),
        float(np.abs(mean_errors(accuracies, groups)).mean()),
    )


def mean_errors(accuracies: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The errors of predicting for each domain the mean accuracy of the domains of other groups."""
    members = np.arange(len(accuracies)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sizes, sums = np.bincount(members), np.bincount(members, accuracies)
    return accuracies - (accuracies.sum() - sums[members]) / (len(accuracies) - sizes[members])


def rank_correlation(x: ArrayLike, y: ArrayLike, kind: str = "spearman") -> float:
    """Spearman's ρ or Kendall's τ, ties averaged; not a number where one side is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float((spearmanr if kind == "spearman" else kendalltau)(x, y).statistic)
