"""Lines against refits and values by hand; intervals against their promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from shiftbed.accuracy.fitting import Line, evaluate, left_out_errors, mean_errors, rank_correlation
from shiftbed.accuracy.intervals import AccuracyPredictor, conformal_quantile
from shiftbed.accuracy.scores import Scores
from shiftbed.errors import DataError


def test_left_out_errors_by_hand():
    errors = left_out_errors(np.array([0.0, 1, 2, 3]), np.array([0.0, 1, 1, 2]))
    assert errors == pytest.approx([-1 / 3, 3 / 7, -3 / 7, 1 / 3])
    assert np.abs(errors).mean() == pytest.approx(0.38095, abs=1e-5)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_left_out_errors_are_those_of_refits(seed):
    random = np.random.default_rng(seed)
    scores, accuracies = random.normal(size=(2, 12))
    groups = np.repeat(list("abcd"), [1, 2, 4, 5])
    errors = left_out_errors(scores, accuracies, groups)
    for group in "abcd":
        out = groups == group
        slope, offset = np.polyfit(scores[~out], accuracies[~out], 1)
        assert errors[out] == pytest.approx(accuracies[out] - slope * scores[out] - offset)


def test_an_affine_change_of_the_score_changes_no_error():
    random = np.random.default_rng(0)
    scores, accuracies = random.normal(size=(2, 20))
    one, other = evaluate(scores, accuracies), evaluate(5 - 3 * scores, accuracies)
    assert other.mae == pytest.approx(one.mae)
    assert other.spearman == pytest.approx(-one.spearman)
    assert other.kendall == pytest.approx(-one.kendall)


def test_the_mean_of_the_other_groups_by_hand():
    errors = mean_errors(np.array([1.0, 2, 6]), np.array(["a", "a", "b"]))
    assert errors == pytest.approx([1 - 6, 2 - 6, 6 - 1.5])
    assert mean_errors(np.array([1.0, 2, 6])) == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])


def test_a_constant_has_no_rank_correlation():
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5.0)))


@pytest.mark.parametrize(
    ("scores", "words"), [([1.0, 2.0], "needs 3 labelled domains, not 2"), ([1.0, 1.0, 1.0], "have the same score 1")]
)
def test_what_no_line_goes_through_is_refused(scores, words):
    with pytest.raises(DataError, match=words):
        Line.fit(np.array(scores), np.arange(len(scores)))


def test_one_group_cannot_be_left_out():
    with pytest.raises(DataError, match="fewer than two different scores"):
        left_out_errors(np.arange(4.0), np.arange(4.0), np.array(["a"] * 4))


def test_scores_that_differ_by_rounding_alone_are_the_same():
    """Without c nothing tells the others apart: a line through rounding errors would be anything."""
    scores = np.array([0.5, 0.5 + 2e-16, 0.5 - 1e-16, 0.9])
    with pytest.raises(DataError, match="fewer than two different scores"):
        left_out_errors(scores, np.array([0.5, 0.6, 0.7, 0.9]), np.array(list("abbc")))
    names, accuracies = tuple("0123"), np.full((1, 4), 0.5)
    assert (
        not Scores(("m",), names, np.array(list("abcd")), np.full(4, 9), accuracies, {"s": scores[None]})
        .varying()
        .values
    )


def test_the_quantile_of_single_domains_is_the_usual_one():
    sizes, groups = np.arange(1.0, 10), np.arange(9)
    assert conformal_quantile(sizes, groups, 0.9) == 9  # ⌈10 · 0.9⌉ = 9th of 9
    assert conformal_quantile(sizes, groups, 0.5) == 5
    assert conformal_quantile(sizes[:8], groups[:8], 0.9) == np.inf  # ⌈9 · 0.9⌉ = 9th of 8


def test_groups_weigh_the_same_however_many_domains_they_have():
    # Group a has one domain, b two, c three; each weighs a quarter, the next group too.
    sizes, groups = np.array([5.0, 1, 2, 3, 4, 6]), np.array(list("abbccc"))
    assert conformal_quantile(sizes, groups, 0.25) == 2  # 1/8 + 1/8
    assert conformal_quantile(sizes, groups, 0.6) == 5  # 1/8 + 1/8 + 1/12 + 1/12 = 0.417, then 0.667
    assert conformal_quantile(sizes, groups, 0.45) == 5  # were all domains alike, four of them would be half
    assert conformal_quantile(sizes, groups, 0.75) == 6


def test_intervals_hold_as_often_as_promised():
    hits = []
    for seed in range(400):
        random = np.random.default_rng(seed)
        shared = random.normal(size=20)[:, None]  # what the domains of a group have in common
        scores = random.normal(size=(20, 3)) + shared
        accuracies = 0.5 + 0.05 * scores + 0.02 * (random.normal(size=(20, 1)) + 0.5 * random.normal(size=(20, 3)))
        groups = np.repeat(np.arange(19), 3)
        fitted = AccuracyPredictor.fit(scores[:-1].ravel(), accuracies[:-1].ravel(), groups, np.full(57, 500))
        _, low, high = fitted.predict(scores[-1, 0], 500)
        hits.append(low <= accuracies[-1, 0] <= high)
    assert 0.9 - 3 * np.sqrt(0.09 / 400) <= np.mean(hits) <= 0.98


def test_intervals_widen_away_from_what_was_fitted_and_with_fewer_images():
    random = np.random.default_rng(0)
    scores = np.linspace(0.4, 0.6, 30)
    accuracies = scores + 0.01 * random.normal(size=30)
    fitted = AccuracyPredictor.fit(scores, accuracies, np.arange(30), np.full(30, 1000))

    def width(score, images):
        _, low, high = fitted.predict(score, images)
        return high - low

    assert width(0.5, 1000) < width(0.7, 1000) < width(0.8, 1000)
    assert width(0.5, 1000) == width(0.5, 5000)
    expected = 2 * np.hypot(width(0.5, 1000) / 2, 1.6449 * np.sqrt(0.25 * (1 / 50 - 1 / 1000)))
    assert width(0.5, 50) == pytest.approx(expected, rel=1e-2)
    assert fitted.predict(2.0, 1000)[0] == 1


def covered(shared, repeats=200, images=200):
    """How often intervals hold on a left-out corruption of new images, fitted on corruptions of others."""
    groups = np.repeat(np.arange(20), 2)
    fitted_on, hits = groups < 19, []
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        easy = random.uniform(0.35, 0.95, 40)
        beside_the_line = 0.02 * random.normal(size=20)[groups]

        def domains(random=random, easy=easy, beside_the_line=beside_the_line):
            # The same images in all domains: what is hard in one is hard in the others, and less sure.
            hard, else_ = random.normal(size=(2, images, 1))
            sure = norm.cdf(0.7 * hard + np.sqrt(1 - 0.7**2) * else_) < easy
            return sure.mean(axis=0), (norm.cdf(hard) < easy + beside_the_line).mean(axis=0)

        (scores, accuracies), (new_scores, new_accuracies) = domains(), domains()
        counts = np.full(fitted_on.sum(), images)
        fitted = AccuracyPredictor.fit(
            scores[fitted_on], accuracies[fitted_on], groups[fitted_on], counts, shared=shared
        )
        for place in np.flatnonzero(~fitted_on):
            _, low, high = fitted.predict(new_scores[place], images)
            hits.append(low <= new_accuracies[place] <= high)
    return np.mean(hits)


def test_intervals_from_corruptions_of_one_source_hold_on_new_images():
    assert 0.87 <= covered(shared=True) <= 0.98
    assert covered(shared=False) < 0.8, "left-out errors do not show the chance in which images all domains share"


def test_chance_of_shared_images_and_of_new_ones_is_added():
    scores, images = np.linspace(0.4, 0.6, 30), np.full(30, 1000)
    accuracies = scores + 0.01 * np.random.default_rng(0).normal(size=30)
    own, shared = (AccuracyPredictor.fit(scores, accuracies, np.arange(30), images, shared=it) for it in (False, True))

    def half(fitted, images):
        estimate, low, high = fitted.predict(0.5, images)
        assert (estimate, low) == pytest.approx((own.predict(0.5, images)[0], 2 * estimate - high))
        return (high - low) / 2

    for count in (50, 1000, 5000):
        chance = 1.6449 * np.sqrt(0.25 * (1 / count + 1 / 1000))
        assert half(shared, count) == pytest.approx(np.hypot(half(own, 5000), chance), rel=1e-2)


@pytest.mark.parametrize("score", [-1.0, -0.4, 0.3, 1.0, 1.2, 1.5, 5.0])
@pytest.mark.parametrize("images", [2, 500])
def test_an_interval_never_turns_inside_out_nor_is_a_point(score, images):
    scores = np.linspace(0.3, 0.9, 20)
    accuracies = 0.2 + 0.8 * scores + 0.01 * np.random.default_rng(0).normal(size=20)
    for shared in (False, True):
        fitted = AccuracyPredictor.fit(scores, accuracies, np.arange(20), np.full(20, 500), shared=shared)
        estimate, low, high = fitted.predict(score, images)
        assert 0 <= low <= estimate <= high <= 1
        assert high - low > 0.005


def test_errors_are_those_of_what_is_shown():
    scores, accuracies = np.array([0.0, 1, 2, 3, 10]), np.array([0.1, 0.4, 0.6, 0.9, 1.0])
    fitted = AccuracyPredictor.fit(scores, accuracies, np.arange(5), np.full(5, 100))
    assert left_out_errors(scores, accuracies)[-1] < -1, "the line goes far beyond 1 there"
    assert fitted.errors[-1] == 0
    assert np.abs(fitted.errors).max() <= 1
