"""Which method leads, and how wide its interval is for having been chosen."""

from dataclasses import replace

import numpy as np

from shiftbed.accuracy.intervals import AccuracyPredictor
from shiftbed.accuracy.leading import MEAN, choose, leading
from shiftbed.accuracy.methods import METHODS
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.summary import FittedPredictor, summarise

GROUPS = np.repeat(np.arange(20), 3).astype(str)


def accuracies(random, count=20):
    return (0.6 + np.repeat(random.normal(0, 0.05, count), 3) + random.normal(0, 0.02, 3 * count)).clip(0, 1)


def fitted(scores, right, level=0.9):
    images = np.full(len(right), 10**9)
    predictors = {name: AccuracyPredictor.fit(one, right, GROUPS, images, level) for name, one in scores.items()}
    return predictors, leading(predictors, scores, right, GROUPS, images, level, False)


def test_the_method_with_the_least_error_leads_and_the_mean_where_none_knows_anything():
    random = np.random.default_rng(0)
    right = accuracies(random)
    noise = {f"noise {place}": random.normal(size=60) for place in range(5)}
    assert choose(noise, right, GROUPS) == MEAN
    assert choose({**noise, "good": right + random.normal(0, 0.02, 60)}, right, GROUPS) == "good"
    _, (name, mean) = fitted(noise, right)
    estimate, low, high = mean.predict(0.0, 10**9)
    assert name == MEAN and estimate == right.mean()
    assert np.mean((low <= right) & (right <= high)) >= 0.9


def test_the_interval_of_what_was_chosen_is_as_wide_as_choosing_makes_it():
    """Of many methods alike one looks better than it is: its own errors would promise too much."""
    held = {"chosen": 0, "own": 0}
    for seed in range(120):
        random = np.random.default_rng(seed)
        right, known = accuracies(random, 21), np.arange(63) < 60
        common = np.repeat(random.normal(0, 0.02, 21), 3)
        scores = {f"m{place}": right + common + np.repeat(random.normal(0, 0.03, 21), 3) for place in range(12)}
        predictors, (name, lead) = fitted({one: values[known] for one, values in scores.items()}, right[known])
        for kind, predictor in (("chosen", lead), ("own", predictors.get(name, lead))):
            score = scores[name][60] if name != MEAN else 0.0
            _, low, high = predictor.predict(float(score), 10**9)
            held[kind] += low <= right[60] <= high
    assert held["chosen"] >= 0.9 * 120
    assert held["chosen"] > held["own"]


def test_where_no_method_beats_the_mean_of_the_labelled_domains_it_leads_and_says_so():
    random = np.random.default_rng(0)

    def domain(right, name):  # how sure the model is says nothing of how often it is right
        logits = np.stack([random.normal(random.normal(1, 0.2), 0.5, 300), np.zeros(300)], axis=1)
        predictions = logits.argmax(axis=1)
        wrong = random.random(300) > right
        return Outputs(logits, None, np.where(wrong, 1 - predictions, predictions), name=name)

    shares = random.uniform(0.4, 0.8, 15)
    given = FittedPredictor(domain(0.6, "source"), [(domain(share, str(n)), str(n)) for n, share in enumerate(shares)])
    here = replace(domain(0.5, "here"), labels=None)
    made = summarise(here, given, None, 0.9)
    assert made.method == MEAN and made.accuracy == given.accuracies.mean()
    assert made.low < made.accuracy < made.high and made.level == 0.9
    assert "no method errs clearly less than always predicting their mean" in made.trust
    assert "rely on it" not in made.trust
    (row,) = [one for one in made.estimates if one.method == MEAN]
    assert row.error == made.baseline and not row.extrapolated
    worse = max(made.estimates, key=lambda one: one.error)
    named = summarise(here, given, METHODS[worse.method], 0.9)
    assert named.method == worse.method
    assert "its score tells nothing of the accuracy here" in named.trust and "rely on it" not in named.trust
