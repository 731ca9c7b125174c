import copy
import json
import math
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import shiftbed
from shiftbed.data import Domain, MultiDomainDataset
from shiftbed.errors import DataError, UnknownNameError
from shiftbed.shift import estimators, features
from shiftbed.shift.closed_forms import CLOSED_FORMS, blue_shifts, coloured_correlation
from shiftbed.shift.estimates import ShiftEstimate, dominant
from shiftbed.shift.estimators import Found, How
from shiftbed.shift.intervals import NORMAL, groups_of, interval_from_zero, student
from shiftbed.shift.matching import folds, matched, permuted
from shiftbed.shift.measure import compare
from shiftbed.shift.measures import MEASURES, Settings, take
from shiftbed.shift.ratio import (
    LogRatios,
    accuracy_terms,
    calibrated,
    correlation_terms,
    diversity_terms,
    half_sum,
    held_out_ratios,
)
from shiftbed.shift.samples import Sample, sample
from shiftbed.shift.together import counted


def is_near(name: str, seed: int = 0, n: int = 2000, **how) -> None:
    case = CLOSED_FORMS[name]
    made = shiftbed.measure_shift(case.dataset(n, seed), seed=seed, baseline=False, device="cpu", **how)
    assert made.diversity.value == pytest.approx(case.diversity, abs=case.tolerance)
    assert made.correlation.value == pytest.approx(case.correlation, abs=case.tolerance)


@pytest.mark.parametrize("name", list(MEASURES))
@pytest.mark.parametrize("setting", ["dtype", "no gradients", "inference"])
def test_what_a_notebook_set_in_torch_changes_no_measure_and_stays_set(name, setting):
    """With float64 as default, or without gradients, they ended in torch's words."""
    random = np.random.default_rng(0)
    p, q = (sample(side, random.normal(size=(60, 4)), np.arange(60) % 2) for side in "pq")

    def found():
        return repr(take(name, p, q, Settings(steps=3)))

    first = found()
    try:
        torch.set_default_dtype(torch.float64 if setting == "dtype" else torch.float32)
        with {"no gradients": torch.no_grad, "inference": torch.inference_mode}.get(setting, nullcontext)():
            before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            assert found() == first
            assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["three tenths novel", "digit and colour, 0.5"])
def test_the_default_estimator_comes_near_the_closed_forms(name):
    is_near(name, n=1200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_the_default_estimator_comes_near_every_closed_form_with_every_seed(name, seed):
    is_near(name, seed)


def test_an_estimator_that_ignores_its_input_fails_the_closed_forms(monkeypatch):
    def planted(pair, empty, how, show):
        half = [ShiftEstimate(name, 0.5, 0.01, (0.4, 0.6), 2000) for name in ("diversity", "correlation")]
        return Found(*half, None, None)

    monkeypatch.setitem(estimators.ESTIMATORS, "ratio", planted)
    failed = 0
    for name in CLOSED_FORMS:
        try:
            is_near(name, n=100)
        except AssertionError:
            failed += 1
    assert failed == len(CLOSED_FORMS)


@pytest.mark.slow
def test_intervals_of_random_halves_of_one_domain_cover_zero_and_are_narrow():
    whole = CLOSED_FORMS["digit and colour, 0.9"].dataset(4000, seed=9).domains[0]
    card = CLOSED_FORMS["identical"].dataset(10).card
    covered, widths = 0, []
    for split in range(100):
        order = np.random.default_rng(split).permutation(4000)
        halves = [Domain(n, whole.inputs[o], whole.labels[o]) for n, o in (("p", order[:2000]), ("q", order[2000:]))]
        made = shiftbed.measure_shift(MultiDomainDataset(card, tuple(halves)), seed=split, baseline=False, device="cpu")
        covered += made.correlation.interval[0] <= 0
        widths += [made.correlation.interval[1] - made.correlation.interval[0]]
        assert made.diversity.interval[0] == 0
    assert 90 <= covered <= 99
    assert np.mean(widths) < 0.1


# --- the ratio estimator ---------------------------------------------------------------------------------------------


def exact_ratios(random, n, mean):
    """What perfect networks would say of label-flipped Gaussians: f = 0, r = ∓2 mean z."""
    of_sides = []
    for side in (1, -1):
        y = random.integers(0, 2, n) * 2 - 1
        z = random.standard_normal(n) + mean * y * side
        of_sides.append(LogRatios(np.zeros((1, n)), (-2 * mean * y * z)[None]))
    return of_sides


def test_exact_ratios_give_the_exact_correlation_shift():
    n = 40_000
    read = exact_ratios(np.random.default_rng(0), n, 1.0)
    value, error = half_sum(*correlation_terms(*read))
    assert value == pytest.approx(0.6827, abs=3 * error)
    # Of two means of ±1 with mean a each: ½ √(2 (1 − a²)/n).
    assert error == pytest.approx(0.5 * math.sqrt(2 * (1 - 0.6827**2) / n), rel=0.02)
    assert half_sum(*diversity_terms(*read)) == (0, 0)


def test_ratios_that_know_nothing_give_zero_on_average():
    random = np.random.default_rng(0)
    values = []
    for _ in range(200):
        read = [LogRatios(*random.standard_normal((2, 1, 100))) for _ in range(2)]
        values.append(half_sum(*correlation_terms(*read))[0])
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(200)


def test_exact_ratios_of_densities_that_differ_weigh_rare_inputs_less():
    # Colour and digit of ColoredMNIST, from the probabilities themselves.
    random, n, rho = np.random.default_rng(1), 100_000, 0.9
    read = []
    for side in (0.1, rho):
        digit = random.integers(0, 2, n)
        label = digit ^ (random.random(n) < 0.25)
        colour = label ^ (random.random(n) < side)
        agree = [0.75 * (1 - r) + 0.25 * r for r in (0.1, rho)]
        same = colour == digit
        f = np.where(same, math.log(agree[1] / agree[0]), math.log((1 - agree[1]) / (1 - agree[0])))
        joint = [np.where(colour == label, 1 - r, r) for r in (0.1, rho)]
        read.append(LogRatios(f[None], (np.log(joint[1] / joint[0]) - f)[None]))
    value, error = half_sum(*correlation_terms(*read))
    assert value == pytest.approx(coloured_correlation(rho), abs=4 * error)


def test_inputs_that_only_one_side_has_are_diversity_and_not_correlation():
    sure = LogRatios(np.full((1, 10), -6.0), np.ones((1, 10)))
    torn = LogRatios(np.array([[6.0] * 5 + [0.0] * 5]), np.ones((1, 10)))
    value, _ = half_sum(*diversity_terms(sure, torn))
    assert value == pytest.approx(0.75)
    p, q = correlation_terms(sure, torn)
    assert not p.any() and not q[:5].any() and q[5:].all()


def test_an_example_that_a_network_cannot_place_is_half_right():
    zero, one = np.zeros((1, 4)), np.ones((1, 4))
    terms = accuracy_terms(LogRatios(zero, zero), LogRatios(zero, np.array([[1.0, -1.0, 0.0, 2.0]])))
    assert terms[0].tolist() == [0.5] * 4 and terms[1].tolist() == [1, 0, 0.5, 1]
    assert half_sum(*accuracy_terms(LogRatios(one, -one), LogRatios(one, zero)))[0] == 0.75


def test_what_is_held_out_twice_counts_once_and_what_never_was_not_at_all():
    nan = math.nan
    p = LogRatios(np.array([[0.0, 0.0, nan], [0.0, nan, nan]]), np.array([[-1.0, -1.0, nan], [1.0, nan, nan]]))
    terms, _ = correlation_terms(p, p)
    np.testing.assert_array_equal(terms, [0.0, 1.0, nan])
    assert half_sum(terms, terms)[0] == 0.5


def test_what_is_in_one_group_varies_together():
    terms = np.array([1.0, 1.0, -1.0, -1.0])
    alone = half_sum(terms, terms)[1]
    groups = np.array([0, 0, 1, 1])
    # Each group moves as two examples do, and there are two groups with a mean of their own: √(2 / (2 − 1)).
    assert half_sum(terms, terms, (groups, groups))[1] == pytest.approx(2 * math.sqrt(2) * alone)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_shift_between_few_groups_is_rarely_seen_where_there_is_none(count):
    """By chance it would be seen in 18, 14 and 8 of 100 times, were few groups taken for many."""
    random, groups = np.random.default_rng(0), tuple(np.repeat(np.arange(count), 10) + first for first in (0, count))
    seen = []
    for _ in range(1000):
        terms = [np.repeat(random.normal(0, 0.5, count), 10) for _ in groups]
        value, error = half_sum(*terms, groups)
        seen.append(interval_from_zero(value, error * student(groups_of(groups)) / NORMAL)[0] > 0)
    assert np.mean(seen) <= 0.055
    whole = estimators._estimate("correlation", 1.0, 0.0, 10 * count, groups)
    assert whole.interval == (max(0.0, 1 - 3 / count), 1.0), "three of as many groups may still disagree"


@pytest.mark.parametrize(
    ("shape", "widest"), [((20, 20), 0.12), ((1, 1), 0.4), ((0.05, 0.95), 0.35), ((1, 19), 0.3), ((19, 1), 0.3)]
)
def test_an_interval_of_ten_groups_holds_the_truth_and_is_no_wider_than_groups_differ(shape, widest):
    """Three tenths on each side of every estimate, as where no group disagrees, would be a width of 0.6."""
    random, groups = np.random.default_rng(0), (np.repeat(np.arange(10), 50), np.repeat(np.arange(10, 20), 50))
    held, widths = [], []
    for _ in range(300):
        terms = [(random.random(500) < np.repeat(random.beta(*shape, 10), 50)).astype(float) for _ in groups]
        low, high = estimators._estimate("accuracy", *half_sum(*terms, groups), 500, groups).interval
        held.append(low <= shape[0] / sum(shape) <= high)
        widths.append(high - low)
    assert np.mean(held) >= 0.93 and np.mean(widths) < widest


def test_calibration_takes_back_certainty_that_is_not_deserved():
    random = np.random.default_rng(0)
    right = torch.from_numpy(random.standard_normal(4000))
    domain = torch.from_numpy(random.random(4000)) < torch.sigmoid(right)
    order = torch.argsort(domain.int(), stable=True)
    # Of three times the log odds a third is left; a ratio that says nothing of the domain vanishes.
    f, r = calibrated(3 * right[order], torch.from_numpy(random.standard_normal(4000)) * 5, int((~domain).sum()))
    np.testing.assert_allclose(np.median(f / right[order].numpy()), 1, atol=0.15)
    assert np.abs(r).mean() < 0.5


def test_networks_trained_side_by_side_are_those_trained_alone():
    from shiftbed.shift import ratio

    p, q = samples_of_closed_form("flipped, mean 1", 100)
    sides = [(torch.from_numpy(one.inputs).float(), torch.from_numpy(one.labels)) for one in (p, q)]
    rows = [np.arange(0, 80), np.arange(20, 100)]
    network = {"network": "mlp", "mlp_width": 8}
    together = list(ratio.train_ratios(sides, [[one, one] for one in rows], network, 0))
    x, y = sides[0]
    # Each network has its own weights and its own examples.
    apart = [model(x, y)[0] for model in together]
    assert not torch.allclose(apart[0], apart[1])
    torch.manual_seed(0)
    alone = [ratio.Ratios((1,), 2, network) for _ in rows]
    order = [torch.from_numpy(ratio._batches(rows, 5, 16, np.random.default_rng(side))) for side in (0, 1)]
    copies = [[copy.deepcopy(model)] for model in alone]
    ratio._train_together(alone, sides, order, 1e-2)
    for number, (model, lonely) in enumerate(zip(alone, copies, strict=True)):
        ratio._train_together(lonely, sides, [one[:, [number]] for one in order], 1e-2)
        torch.testing.assert_close(model(x, y), lonely[0](x, y), rtol=1e-4, atol=1e-5)


def test_projections_trained_side_by_side_are_those_trained_alone(monkeypatch):
    from shiftbed.shift import kde

    monkeypatch.setattr(kde, "EPOCHS", 2)
    monkeypatch.setattr(kde, "AVERAGED", 1)
    p, q = samples_of_closed_form("flipped, mean 1", 100)
    network = {"network": "mlp", "mlp_width": 8}
    together = kde.held_out_features(p, q, network, 3, 0, "cpu")
    trained = kde._trained
    monkeypatch.setattr(kde, "_trained", lambda courses, sides, _: (next(trained([one], sides)) for one in courses))
    alone = kde.held_out_features(p, q, network, 3, 0, "cpu")
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(np.concatenate(one.z), np.concatenate(other.z), rtol=1e-3, atol=1e-4)
    assert not np.allclose(together[0].z[0][:20], together[1].z[0][:20])


def test_networks_that_learn_together_are_counted_as_they_learn():
    seen = []
    for step in counted(range(10), 10, 3, lambda: seen.append("run")):
        seen.append(step)
    assert [place for place, one in enumerate(seen) if one == "run"] == [4, 8, 12]


# --- pairs -----------------------------------------------------------------------------------------------------------


def samples_of_closed_form(name, n=200, seed=0):
    made = CLOSED_FORMS[name].dataset(n, seed)
    return [sample(one.name, one.inputs, one.labels) for one in made.domains]


def test_matching_leaves_as_many_of_each_class():
    p = sample("p", np.arange(100.0), np.repeat([0, 1], [70, 30]))
    q = sample("q", np.arange(100.0, 160.0), np.repeat([0, 1], [20, 40]))
    one, other = matched(p, q, 0)
    assert [np.bincount(side.labels).tolist() for side in (one, other)] == [[20, 30], [20, 30]]
    small, _ = matched(p, q, 0, most=40)
    assert np.bincount(small.labels).tolist() == [16, 24]


def test_every_example_is_held_out_once_and_classes_are_in_every_fifth():
    p, q = samples_of_closed_form("flipped, mean 1")
    for side, numbers in zip((p, q), folds(p, q, 0), strict=True):
        assert np.bincount(numbers).min() >= 39
        assert all(len(np.unique(side.labels[numbers == fold])) == 2 for fold in range(5))


def test_a_group_is_held_out_on_both_sides_together():
    groups = np.arange(60) // 2
    p, q = (sample(name, np.arange(60.0) + shift, np.arange(60) % 2, groups) for name, shift in (("p", 0), ("q", 0.5)))
    of_p, of_q = folds(p, q, 0)
    fold_of = dict(zip(p.groups, of_p, strict=True))
    assert all(fold_of[group] == fold for group, fold in zip(q.groups, of_q, strict=True))


def grouped(groups_a_side: int) -> list[Sample]:
    """Two sides that share no group."""
    random, numbers = np.random.default_rng(0), np.arange(80) // 2 % groups_a_side
    return [
        sample(name, random.normal(size=(80, 2)), np.arange(80) % 2, numbers + first)
        for name, first in (("p", 0), ("q", groups_a_side))
    ]


@pytest.mark.parametrize("method", ["ratio", "kde", "kde-paper"])
def test_groups_too_few_to_hold_some_out_are_one_sentence(quick, method):
    with pytest.raises(DataError, match=r"'[pq]' are of 1 group, too few to hold some out; take more, or drop"):
        compare(*grouped(1), How(method=method, baseline=False))
    made = compare(*grouped(2), How(method=method, baseline=False))
    assert made.accuracy is not None and made.accuracy.count == 80, "with two, one is learned from"


def test_densities_of_learned_features_need_groups_in_every_fifth_and_without_a_network_one_run_needs_none():
    with pytest.raises(DataError, match=r"'[pq]' are of 2 groups, too few to hold some out"):
        compare(*grouped(2), How(method="kde", network="mlp", baseline=False))
    assert compare(*grouped(1), How(method="kde", runs=1, baseline=False)).accuracy is None


def test_a_pair_without_shift_is_the_same_examples_exchanged_within_classes():
    p, q = samples_of_closed_form("disjoint")
    p, q = matched(p, q, 0)
    one, other = permuted(p, q, 0)
    assert np.bincount(one.labels).tolist() == np.bincount(p.labels).tolist()
    before, after = (np.sort(np.concatenate([a.vectors, b.vectors])[:, 0]) for a, b in ((p, q), (one, other)))
    np.testing.assert_array_equal(before, after)
    assert 0.35 < np.mean(one.vectors > 1.5) < 0.65


# --- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Networks that learn for a moment only."""
    from shiftbed.shift import ratio

    moments = {"mlp": ratio.Training(1e-2, 32, 1, 20), "mlp-390": ratio.Training(1e-3, 32, 1, 5)}
    monkeypatch.setattr(ratio, "TRAINING", moments)


def test_order_of_examples_and_order_of_sides_change_nothing(quick):
    made = CLOSED_FORMS["flipped, mean 1"].dataset(200)
    p, q = made.domains
    order = np.random.default_rng(0).permutation(200)
    shuffled = replace(made, domains=(Domain("p", p.inputs[order], p.labels[order]), q))
    one, two = (shiftbed.measure_shift(each, device="cpu", baseline=False) for each in (made, shuffled))
    turned = shiftbed.measure_shift(made, ["q"], ["p"], device="cpu", baseline=False)
    assert one.correlation == two.correlation == turned.correlation
    assert one.diversity == two.diversity == turned.diversity


def test_relabelling_classes_changes_little(quick):
    p, q = samples_of_closed_form("flipped, mean 2", 400)
    turned = [replace(side, labels=1 - side.labels) for side in (p, q)]
    one, other = compare(p, q, How(baseline=False)), compare(*turned, How(baseline=False))
    low, high = one.correlation.interval
    assert low - 0.05 <= other.correlation.value <= high + 0.05


@pytest.mark.slow
def test_two_widths_of_the_network_agree_within_the_interval():
    made = CLOSED_FORMS["flipped, mean 1"].dataset(2000)
    one, other = (shiftbed.measure_shift(made, width=width, baseline=False, device="cpu") for width in (32, 128))
    assert one.correlation.interval[0] <= other.correlation.value <= one.correlation.interval[1]


@pytest.mark.parametrize("method", ["ratio", "kde", "kde-paper"])
def test_every_method_answers_with_its_companions(quick, monkeypatch, method):
    from shiftbed.shift import kde

    monkeypatch.setattr(kde, "EPOCHS", 2)
    monkeypatch.setattr(kde, "AVERAGED", 1)
    monkeypatch.setattr(kde.evaluated, "__defaults__", (500,))
    made = shiftbed.measure_shift("ColoredDigits", method=method, runs=2, device="cpu", most=200)
    assert made.test == "-90%" and made.train == "+90% + +80%"
    assert 0 <= made.diversity.value <= 1 and 0 <= made.correlation.value <= 1
    assert 0.4 < made.accuracy.value <= 1 and made.bound == pytest.approx(max(0, 2 * made.accuracy.value - 1))
    assert made.found.without_shift is not None and "no shift" in made.correlation.details
    assert made.diversity.details["accuracy"] == made.correlation.details["accuracy"] == made.accuracy.value
    assert any("kept 199 of 1,198" in note or "kept 200 of 1,198" in note for note in made.notes)
    read = json.loads(json.dumps(made.as_json()))
    assert ShiftEstimate.from_json(read["correlation"]) == made.correlation


def test_kernel_densities_of_vectors_need_no_network_and_give_what_the_reference_gives():
    # The reference constants on one-dimensional label-flipped Gaussians: 0.670 ± 0.02 for an exact 0.683.
    data = CLOSED_FORMS["flipped, mean 1"].dataset()
    made = shiftbed.measure_shift(data, method="kde-paper", runs=1, device="cpu", baseline=False)
    assert made.correlation.value == pytest.approx(0.67, abs=0.04)
    assert made.accuracy is None and made.bound is None, "with one run nothing is held out"


def test_the_error_of_kernel_densities_of_vectors_is_that_of_other_data():
    made = [
        shiftbed.measure_shift(
            CLOSED_FORMS["flipped, mean 1"].dataset(200, seed=seed),
            method="kde-paper", device="cpu", baseline=False, seed=seed,
        )
        for seed in range(12)
    ]  # fmt: skip
    spread = np.std([one.correlation.value for one in made], ddof=1)
    claimed = np.mean([one.correlation.standard_error for one in made])
    assert 0.5 < claimed / spread < 2, "of drawing other examples, not other points to integrate at"
    # Exact densities tell the sides of two unit normals at ±1, flipped by the label, apart with accuracy Φ(1) = 0.841.
    assert np.mean([one.accuracy.value for one in made]) == pytest.approx(0.841, abs=0.02)
    assert all(one.bound == pytest.approx(2 * one.accuracy.value - 1) for one in made)


def test_more_features_than_examples_have_no_density():
    random = np.random.default_rng(0)
    sides = [sample(name, random.standard_normal((30, 40)), np.arange(30) % 2) for name in "pq"]
    with pytest.raises(DataError, match=r"24 examples have 40; add examples, or measure by --method ratio\."):
        compare(*sides, How(method="kde", baseline=False))


def test_features_moved_and_stretched_have_the_same_densities():
    made = CLOSED_FORMS["half overlap"].dataset(300)
    moved = replace(made, domains=tuple(replace(one, inputs=1e5 * one.inputs - 7) for one in made.domains))
    how = {"method": "kde", "runs": 1, "device": "cpu", "baseline": False}
    one, other = (shiftbed.measure_shift(each, **how) for each in (made, moved))
    assert one.diversity.value == pytest.approx(other.diversity.value, abs=0.02)


def test_correlation_shift_dominates_only_where_a_surer_network_would_not_see_diversity():
    def pair(lax):
        diversity = ShiftEstimate("diversity", 0.08, 0.01, (0.06, 0.1), 600, details={"at delta 0.1": lax})
        return diversity, ShiftEstimate("correlation", 0.19, 0.02, (0.15, 0.23), 600)

    assert dominant(*pair(0.1)) == "correlation" and dominant(*pair(0.27)) is None
    assert estimators._unsure({"at delta 0.1": 0.15}, 0.08, 0.01) == ()
    assert (
        "would be 0.27 if the network had to be 90 % sure" in estimators._unsure({"at delta 0.1": 0.27}, 0.08, 0.01)[0]
    )


def test_estimates_say_where_no_shift_was_seen_and_where_nothing_can_be_concluded(quick):
    low = estimators._estimate("diversity", 0.0, 0.0, 1000)
    assert low.interval == (0.0, 0.003)
    made = compare(*samples_of_closed_form("flipped, mean 1", 60), How(baseline=False, runs=1))
    assert any("too wide to conclude" in note for note in made.correlation.notes)


def test_intervals_leave_zero_at_the_one_sided_point_and_are_the_usual_ones_far_from_it():
    assert interval_from_zero(0.1640, 0.1)[0] == 0 < interval_from_zero(0.1660, 0.1)[0]
    assert interval_from_zero(0.0, 0.1) == (0, pytest.approx(0.196, abs=1e-4))
    assert interval_from_zero(-0.25, 0.1)[1] > 0.03  # noise below zero leaves no empty interval
    assert interval_from_zero(0.5, 0.1) == (pytest.approx(0.304, abs=1e-4), pytest.approx(0.696, abs=1e-4))


@pytest.mark.parametrize("truth", [0.0, 0.3, 1.0, 2.5])
def test_intervals_from_zero_cover_the_truth_in_95_of_100(truth):
    drawn = np.random.default_rng(0).normal(truth, 1, 4000)
    ends = np.array([interval_from_zero(value, 1.0) for value in drawn])
    covered = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
    assert covered == pytest.approx(0.95, abs=0.012)
    assert (ends[:, 1] > ends[:, 0]).all()


def test_the_wrong_input_gets_one_sentence(quick):
    good = CLOSED_FORMS["flipped, mean 1"].dataset(100)
    p, q = good.domains
    cases = [
        (replace(good, domains=(p,)), "a shift is between two"),
        (
            replace(good, domains=(p, replace(q, labels=np.zeros(100, int)))),
            "the class no .*at least two classes must be in both",
        ),
        (
            replace(good, domains=tuple(replace(d, labels=np.zeros(100, int)) for d in (p, q))),
            "at least two classes must be in both",
        ),
        (replace(good, domains=(p, Domain("q", q.inputs[:12], q.labels[:12]))), "has 12 examples"),
        (replace(good, domains=(p, replace(q, inputs=q.inputs * np.nan))), "not finite"),
        (
            replace(good, domains=(p, replace(q, inputs=np.zeros((100, 2))))),
            r"bring them to one size \(images with --size\)",
        ),
        (replace(good, domains=(p, replace(q, labels=np.full(100, -1)))), "have no labels"),
    ]
    for dataset, words in cases:
        with pytest.raises(DataError, match=words):
            shiftbed.measure_shift(dataset, device="cpu")
    small = Domain("r", q.inputs[:12], q.labels[:12])
    three = replace(good, domains=(p, q, small))
    assert shiftbed.measure_shift(three, ["p"], ["q"], device="cpu", runs=1, baseline=False).test == "q"
    pooled = shiftbed.measure_shift(three, ["p"], ["q", "r"], device="cpu", runs=1, baseline=False)
    assert pooled.test == "q + r"
    with pytest.raises(DataError, match="'q' are 1 and those of 'r' 2; bring them to one size"):
        odd = replace(good, domains=(p, q, Domain("r", np.zeros((12, 2)), q.labels[:12])))
        shiftbed.measure_shift(odd, ["p"], ["q", "r"], device="cpu")
    with pytest.raises(DataError, match="'q' has 0 examples"):
        lone = replace(good, domains=(p, replace(q, labels=np.zeros(100, int))))
        shiftbed.measure_shift(lone, classes=["yes"], device="cpu")
    images = [np.zeros((8, 8, 3), np.uint8), np.zeros((9, 8, 3), np.uint8)] * 50
    with pytest.raises(DataError, match="differ in size"):
        shiftbed.measure_shift(replace(good, domains=(p, replace(q, inputs=images))), device="cpu")
    with pytest.raises(DataError, match="Did you mean p"):
        shiftbed.measure_shift(good, ["P"], device="cpu")
    with pytest.raises(DataError, match="both sides"):
        shiftbed.measure_shift(good, ["p"], ["p"], device="cpu")
    with pytest.raises(UnknownNameError, match="Did you mean ratio"):
        shiftbed.measure_shift(good, method="ratios", device="cpu")
    with pytest.raises(DataError, match="no option 'run'"):
        shiftbed.measure_shift(good, run=3, device="cpu")


def test_a_folder_of_images_is_measured_by_its_path_and_a_name_comes_before_a_folder(quick, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "root"))
    random = np.random.default_rng(0)
    for domain, brightness in (("day", 200), ("night", 20)):
        for label in ("cat", "dog"):
            folder = tmp_path / "mine" / domain / label
            folder.mkdir(parents=True)
            for i in range(15):
                pixels = random.integers(0, 50, (8, 8, 3)) + brightness
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    made = shiftbed.measure_shift(tmp_path / "mine", device="cpu", baseline=False, runs=2)
    assert made.dataset == "mine" and (made.train, made.test) == ("day", "night")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(features.open_dataset("mine")["day"]) == 30
    later = time.time() + 10
    os.utime(tmp_path / "mine" / "day" / "cat", (later, later))  # as a new image there does
    with pytest.warns(UserWarning, match="The folder mine has changed since it was prepared"):
        features.open_dataset("mine")
    (tmp_path / "ColoredDigits").mkdir()
    assert shiftbed.measure_shift("ColoredDigits", device="cpu", baseline=False, runs=1, most=60).test == "-90%"


def test_closed_forms_are_the_published_ones():
    exact = {0.9: 0.6547, 0.7: 0.4778, 0.5: 0.3204, 0.3: 0.1661, 0.1: 0}
    assert {rho: round(coloured_correlation(rho), 4) for rho in exact} == exact
    assert blue_shifts(0.9, (0, 0), 0.25) == (0, pytest.approx(0.6547, abs=1e-4))
    assert blue_shifts(0.1, (0, 1), 0.1)[0] == pytest.approx(1, abs=1e-4)
    assert CLOSED_FORMS["mean moved by 4"].diversity == pytest.approx(stats.norm.cdf(2 - math.log(99) / 4), abs=1e-3)


def test_fifths_that_no_run_held_out_are_not_counted(quick):
    p, q = samples_of_closed_form("flipped, mean 1")
    p, q = matched(p, q, 0)
    read = held_out_ratios(p, q, {"network": "mlp", "mlp_width": 8}, runs=2)
    expected = [int(np.isin(of_side, (0, 1)).sum()) for of_side in folds(p, q, 0)]
    assert [int(np.isfinite(side.f).sum()) for side in read] == expected
    assert 0 < min(expected) < len(p) / 2


def with_labels(change) -> MultiDomainDataset:
    known = CLOSED_FORMS["digit and colour, 0.9"].dataset(60, seed=0)
    return replace(known, domains=tuple(replace(one, labels=change(one.labels)) for one in known.domains))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float64])
def test_labels_of_own_arrays_may_be_any_numbers(kind):
    first, other = (
        shiftbed.measure_shift(with_labels(lambda labels, to=to: labels.astype(to)), runs=1, device="cpu")
        for to in (np.int64, kind)
    )
    assert (first.diversity, first.correlation) == (other.diversity, other.correlation)


@pytest.mark.parametrize("change", [lambda labels: labels.astype(str), lambda labels: labels + 0.5])
def test_labels_that_are_no_numbers_of_classes_are_one_sentence(change):
    with pytest.raises(
        DataError, match=r"are .* and no numbers of classes; give the place of each in the list of classes, from 0\."
    ):
        shiftbed.measure_shift(with_labels(change), runs=1, device="cpu")
