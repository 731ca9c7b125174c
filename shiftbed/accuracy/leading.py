"""Which method leads: what errs least on labelled domains that it has not seen, if clearly less than their mean."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shiftbed.accuracy.fitting import Line, left_out_errors, mean_errors
from shiftbed.accuracy.intervals import AccuracyPredictor, conformal_quantile
from shiftbed.errors import DataError

MEAN = "mean"  # of the labelled domains' accuracies: it looks at no image


def of_the_mean(
    accuracies: np.ndarray, groups: np.ndarray, images: np.ndarray, level: float, shared: bool
) -> AccuracyPredictor:
    """A predictor that says the mean of the labelled domains whatever the score, judged as any other."""
    count = len(accuracies)
    line = Line(0.0, float(accuracies.mean()), 0.0, np.inf, count, -np.inf, np.inf)
    errors = mean_errors(accuracies, groups)
    width = conformal_quantile(np.abs(errors) / np.sqrt(1 + 1 / count), groups, level)
    return AccuracyPredictor(line, width, level, float(np.median(images)), shared, errors)


def choose(scores: Mapping[str, np.ndarray], accuracies: np.ndarray, groups: np.ndarray) -> str:
    """The method with the least mean absolute error on left-out groups, or their mean where it is not clearly less.

    Of a dozen methods that know nothing, one errs less than the mean by chance: the gain must be more than its standard
    error over groups.
    """
    names, members, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return MEAN
    usual = np.abs(mean_errors(accuracies, groups))
    least, best = usual, MEAN
    for name, column in scores.items():
        try:
            errors = left_out_errors(column, accuracies, groups)
        except DataError:  # of these groups no line can be left out
            continue
        shown = np.abs(accuracies - (accuracies - errors).clip(0, 1))
        if shown.mean() < least.mean():
            least, best = shown, name
    gains = np.bincount(members, usual - least) / counts
    return best if gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains)) else MEAN


def leading(
    predictors: Mapping[str, AccuracyPredictor],
    scores: Mapping[str, np.ndarray],
    accuracies: np.ndarray,
    groups: np.ndarray,
    images: np.ndarray,
    level: float,
    shared: bool,
) -> tuple[str, AccuracyPredictor]:
    """The method that leads, and its predictor with an interval for having been chosen.

    The least of several errors is too small for what comes next. So the interval is made of errors that choosing makes:
    for every group the choice is made anew without it, and what the method so chosen errs there counts.

    Args:
        predictors: The methods that could be fitted.
        scores: Of each of them, on the labelled domains.
        accuracies: Those of the labelled domains.
        groups: What is left out together.
        images: How many images each has.
        level: The probability with which the interval is meant to hold.
        shared: Whether the labelled domains show the same images.
    """
    mean = of_the_mean(accuracies, groups, images, level, shared)
    all_predictors = {MEAN: mean, **predictors}
    units = {MEAN: np.abs(mean.errors) / np.sqrt(1 + 1 / len(accuracies))}
    for name, column in scores.items():
        reach = np.sqrt(1 + predictors[name].line.leverage(column))
        units[name] = np.abs(left_out_errors(column, accuracies, groups)) / reach
    sizes = np.empty(len(accuracies))
    for group in np.unique(groups):
        others = groups != group
        chosen = choose({name: column[others] for name, column in scores.items()}, accuracies[others], groups[others])
        sizes[~others] = units[chosen][~others]
    name = choose(scores, accuracies, groups)
    return name, replace(all_predictors[name], width=conformal_quantile(sizes, groups, level))
