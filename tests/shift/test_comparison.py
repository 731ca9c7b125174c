"""Distances against closed forms and independent formulas."""

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shiftbed.errors import DataError, UnknownNameError
from shiftbed.shift.comparison import (
    earth_movers_distance,
    frechet_distance,
    frechet_distance_of_samples,
    frechet_distances,
    gaussian_kernel,
    moments,
    non_iid_index,
    squared_mmd,
    told_apart,
)
from shiftbed.shift.intervals import groups_of
from shiftbed.shift.measures import MEASURES, ONE_GROUP, Settings, doubt, error_of_means, estimate, is_seen, take
from shiftbed.shift.samples import Sample, sample

FEW = Settings(most=300)
COMPARISONS = ("emd", "mmd", "ni", "a-distance", "frechet")


def normal(n: int, d: int = 1, mean: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)) + mean


def pair(shift: float, n: int = 300, d: int = 5) -> tuple[Sample, Sample]:
    labels = np.arange(n) % 3
    return sample("p", normal(n, d, 0, 1), labels), sample("q", normal(n, d, shift, 2), labels)


# --- earth mover's distance


def test_in_one_dimension_emd_is_the_mean_difference_of_sorted_values():
    x, y = normal(200), normal(200, mean=0.7, seed=1)
    assert earth_movers_distance(x, y) == pytest.approx(np.abs(np.sort(x[:, 0]) - np.sort(y[:, 0])).mean(), abs=1e-12)


def test_a_translation_moves_every_example_by_its_length():
    x = normal(100, 3)
    assert earth_movers_distance(x, x + np.array([3.0, 0.0, 4.0])) == pytest.approx(5.0)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_emd_obeys_the_triangle_inequality_and_is_symmetric(seed):
    x, y, z = np.random.default_rng(seed).normal(size=(3, 12, 2)) * [[[1.0]], [[2.0]], [[3.0]]]
    assert earth_movers_distance(x, z) <= earth_movers_distance(x, y) + earth_movers_distance(y, z) + 1e-9
    assert earth_movers_distance(x, y) == pytest.approx(earth_movers_distance(y, x))


@pytest.mark.parametrize("name", ["emd", "mmd"])
def test_values_far_from_zero_are_as_far_apart_as_values_near_it(name):
    x, y = normal(100, 2), normal(100, 2, mean=3, seed=1)
    near, far = (take(name, sample("p", x + offset), sample("q", y + offset))[0] for offset in (0.0, 2.0**27))
    assert far.value == pytest.approx(near.value, rel=1e-6)


def test_emd_refuses_samples_of_different_sizes():
    with pytest.raises(DataError, match="12 examples to 10"):
        earth_movers_distance(normal(12, 2), normal(10, 2))


def test_the_earth_mover_s_null_level_is_that_of_two_halves_and_not_zero():
    (found,) = take("emd", *pair(0.0), FEW)
    assert found.details["no shift"] == pytest.approx(found.value, rel=0.05) and found.value > 0.5
    assert not is_seen(found)


# --- maximum mean discrepancy


def test_mmd_meets_the_closed_form_of_two_gaussians():
    # d = σ = γ = m = 1: 2 (1/3)^½ (1 − exp(−1/6)) = 0.17727; the mean of 20 unbiased values
    values = [squared_mmd(normal(400, seed=i), normal(400, mean=1, seed=100 + i), width=1.0) for i in range(20)]
    assert np.mean(values) == pytest.approx(0.17727, abs=3 * np.std(values) / np.sqrt(20))
    assert np.std(values) < 0.03


def test_mmd_of_two_points_by_hand():
    # k(0, 0) = 1, k(0, 2) = exp(−2), k(1, 2) = exp(−½): biased ¼(2 + 2e^−½) + ¼(2 + 2e^−½) − ½(e^−2 + 2e^−½ + e^−2)
    x, y = np.array([[0.0], [1.0]]), np.array([[2.0], [1.0]])
    e = np.exp([-0.5, -2.0])
    across = (e[1] + e[0] + e[0] + 1) / 4
    assert squared_mmd(x, y, width=1.0, biased=True) == pytest.approx((1 + e[0]) / 2 * 2 - 2 * across)
    assert squared_mmd(x, y, width=1.0) == pytest.approx(2 * e[0] - 2 * across)


def test_unbiased_mmd_is_zero_on_average_and_the_biased_one_is_not():
    samples = [(normal(30, 2, seed=i), normal(30, 2, seed=1000 + i)) for i in range(200)]
    unbiased = [squared_mmd(x, y, width=1.0) for x, y in samples]
    assert abs(np.mean(unbiased)) < 3 * np.std(unbiased) / np.sqrt(200)
    assert np.mean([squared_mmd(x, y, width=1.0, biased=True) for x, y in samples]) > 0.01


def test_the_kernel_matrix_is_positive_semidefinite_with_ones_on_the_diagonal():
    kernel = gaussian_kernel(normal(50, 4), normal(50, 4), 1.3)
    assert np.linalg.eigvalsh(kernel).min() > -1e-9
    assert np.diag(kernel) == pytest.approx(1.0)


def test_the_median_width_makes_mmd_free_of_scale():
    x, y = normal(100, 3), normal(100, 3, 0.5, 1)
    assert squared_mmd(1e6 * x, 1e6 * y) == pytest.approx(squared_mmd(x, y))


def test_the_measure_mmd_is_the_function_with_a_null_level_near_zero():
    p, q = pair(0.5)
    (found,) = take("mmd", p, q, FEW)
    assert found.value == pytest.approx(squared_mmd(p.vectors, q.vectors))
    assert abs(found.details["no shift"]) < 0.001 and is_seen(found)


def test_mmd_without_shift_is_seldom_called_a_shift():
    pairs = [(normal(80, 3, seed=seed), normal(80, 3, seed=1000 + seed)) for seed in range(40)]
    found = [take("mmd", sample("p", x), sample("q", y))[0] for x, y in pairs]
    assert any(one.details["no shift"] < 0 and one.interval[0] == 0 for one in found), "the case in question"
    assert sum(map(is_seen, found)) <= 4


# --- non-i.i.d. index


def test_ni_by_hand():
    # class 0: means 0 and 2, pooled deviation 1 → 2; class 1: (means 0 and 2, deviation 1) twice → √8; mean of both
    x, y = np.array([[0.0, 5], [0, 5], [0, 0], [0, 0]]), np.array([[2.0, 5], [2, 5], [2, 2], [2, 2]])
    labels = np.array([0, 0, 1, 1])
    assert non_iid_index(x, labels, y, labels) == pytest.approx((2 + np.sqrt(8)) / 2)


def test_ni_at_no_shift_is_what_the_formula_says():
    labels = np.zeros(500, int)
    values = [non_iid_index(normal(500, 50, seed=i), labels, normal(500, 50, seed=50 + i), labels) for i in range(10)]
    assert np.mean(np.square(values)) == pytest.approx(50 * (1 / 500 + 1 / 500), rel=0.1)
    corrected = non_iid_index(normal(500, 50), labels, normal(500, 50, seed=9), labels, corrected=True)
    assert corrected < 0.3 < np.mean(values)


def test_scaling_and_shifting_a_feature_leaves_ni_as_it_is():
    p, q = pair(0.3)
    stretch, move = np.array([1, 10, 0.1, 1e6, 1e-6]), np.array([5, 0, -3, 1, 2])
    assert non_iid_index(p.vectors * stretch + move, p.labels, q.vectors * stretch + move, q.labels) == pytest.approx(
        non_iid_index(p.vectors, p.labels, q.vectors, q.labels)
    )


def test_ni_leaves_out_classes_of_one_side_and_says_so():
    p, q = pair(0.3)
    p = sample("p", p.inputs, np.where(p.labels == 2, 7, p.labels))
    (found,) = take("ni", p, q, FEW)
    assert found.notes == (
        "left out the class 7, which 'p' has and 'q' has not",
        "left out the class 2, which 'q' has and 'p' has not",
    )


# --- proxy A-distance


def test_domains_that_do_not_overlap_have_the_largest_a_distance():
    (found,) = take("a-distance", *pair(20.0), FEW)
    assert found.value == 2.0 and found.interval[0] < 2.0 == found.interval[1]


def test_at_no_shift_a_held_out_classifier_guesses():
    found = [told_apart(*(Sample("", normal(200, 30, seed=2 * i + k)) for k in (0, 1))) for i in range(20)]
    accuracies = [right.mean() for both in found for right, _ in both]
    assert np.mean(accuracies) == pytest.approx(0.5, abs=3 * np.sqrt(0.25 / (20 * 200)))


def test_the_a_distance_of_two_gaussians_is_twice_their_total_variation():
    # N(0, 1) and N(2, 1): total variation 0.6827, which a linear classifier attains
    (found,) = take("a-distance", sample("p", normal(4000)), sample("q", normal(4000, mean=2.0, seed=1)), Settings())
    assert found.value == pytest.approx(2 * 0.6827, abs=3 * found.standard_error)


def test_the_larger_side_does_not_count_more():
    few, many = sample("few", normal(100, 3)), sample("many", normal(900, 3, seed=1))
    assert [len(right) for right, _ in told_apart(few, many)] == [50, 50]


# --- Fréchet distance


def test_in_one_dimension_frechet_is_the_difference_of_means_and_deviations():
    assert frechet_distance(np.array([1.0]), np.array([[4.0]]), np.array([3.5]), np.array([[9.0]])) == pytest.approx(
        2.5**2 + (2 - 3) ** 2
    )


def test_frechet_equals_the_form_with_the_root_of_the_product():
    x, y = normal(200, 6) * np.arange(1, 7), normal(200, 6, 0.4, 1) @ np.random.default_rng(2).normal(size=(6, 6))
    covariances = [np.cov(rows.T) for rows in (x, y)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    apart = np.square(x.mean(0) - y.mean(0)).sum()
    by_root = apart + np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * np.trace(root)
    assert frechet_distance(x.mean(0), covariances[0], y.mean(0), covariances[1]) == pytest.approx(by_root, rel=1e-9)
    assert frechet_distance_of_samples(x, y) == pytest.approx(by_root, rel=1e-9)


def test_with_fewer_examples_than_dimensions_frechet_is_the_same():
    x, y = normal(20, 30), normal(25, 30, 0.3, 1)
    expected = frechet_distances(moments(x), [moments(y)])[0]
    assert frechet_distance_of_samples(x, y) == pytest.approx(expected, rel=1e-7)


def test_frechet_is_invariant_to_rotation_and_translation_and_scales_with_the_square():
    x, y = normal(100, 4), 2 * normal(100, 4, 0.5, 1)
    turn = scipy.stats.ortho_group.rvs(4, random_state=0)
    value = frechet_distance_of_samples(x, y)
    assert frechet_distance_of_samples(x @ turn + 7, y @ turn + 7) == pytest.approx(value)
    assert frechet_distance_of_samples(3 * x, 3 * y) == pytest.approx(9 * value)
    assert frechet_distance_of_samples(y, x) == pytest.approx(value)
    assert frechet_distance_of_samples(x, x) == pytest.approx(0, abs=1e-9)


def test_a_singular_covariance_needs_no_ridge():
    flat = np.concatenate([normal(50, 2), np.zeros((50, 1))], axis=1)
    assert frechet_distance_of_samples(flat, flat + np.array([0, 0, 2.0])) == pytest.approx(4.0)


def test_many_distributions_are_compared_with_one_root():
    reference, others = moments(normal(60, 3)), [moments(normal(60, 3, mean, seed=5)) for mean in (0, 1, 2)]
    one_by_one = [frechet_distance(reference.mean, reference.covariance, one.mean, one.covariance) for one in others]
    assert frechet_distances(reference, others) == pytest.approx(one_by_one)


# --- all of them


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_measure_sees_a_shift_and_none_where_there_is_none(name):
    (far,), (near,) = take(name, *pair(1.0), FEW), take(name, *pair(0.0), FEW)
    assert is_seen(far) and not is_seen(near)
    assert far.value > near.value >= 0


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_measure_is_symmetric_and_does_not_care_for_the_order_of_examples(name):
    p, q = pair(0.5)
    (found,), (swapped,) = take(name, p, q, FEW), take(name, q, p, FEW)
    assert swapped.value == pytest.approx(found.value, rel=1e-9)
    assert swapped.standard_error == pytest.approx(found.standard_error, rel=1e-6)
    order = np.random.default_rng(3).permutation(len(p))
    (mixed,) = take(name, sample("p", p.inputs[order], p.labels[order]), q, FEW)
    assert mixed == found


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_measure_stays_within_its_bounds_on_extreme_scales(name):
    for scale in (1e-6, 1e6):
        p, q = pair(1.0)
        (found,) = take(name, sample("p", scale * p.inputs, p.labels), sample("q", scale * q.inputs, q.labels), FEW)
        assert np.isfinite([found.value, found.standard_error, *found.interval]).all()
        assert 0 <= found.value <= (MEASURES[name].highest or np.inf)


@pytest.mark.parametrize("name", [name for name in COMPARISONS if name != "ni"])
def test_without_labels_what_needs_none_still_runs(name):
    p, q = pair(1.0)
    assert take(name, p, sample("q", q.inputs), FEW)[0].value > 0


def test_without_labels_what_needs_them_says_so():
    p, q = pair(1.0)
    for name in ("ni", "concept", "diversity-correlation"):
        with pytest.raises(DataError, match=f"The measure {name} needs the labels of 'q'; give them"):
            take(name, p, sample("q", q.inputs), FEW)


def test_the_standard_error_is_the_spread_over_samples():
    for name, at_most in (("emd", 2.0), ("mmd", 2.0), ("frechet", 2.0)):
        found = [
            take(name, sample("p", normal(100, 2, seed=i)), sample("q", normal(100, 2, 1.0, 500 + i)), FEW)[0]
            for i in range(15)
        ]
        ratio = np.mean([one.standard_error for one in found]) / np.std([one.value for one in found])
        assert 1 / at_most < ratio < at_most, name


def test_an_interval_that_is_too_wide_to_conclude_from_says_so():
    few, many = (take("a-distance", *pair(0.5, n=n), FEW)[0] for n in (40, 1200))
    assert any(note.startswith("the interval is too wide to conclude") for note in few.notes)
    assert many.notes == ()


def test_an_unknown_measure_is_named_with_its_neighbours():
    with pytest.raises(UnknownNameError, match=r"no measure 'frechett'. Did you mean frechet"):
        take("frechett", *pair(0.0))


def test_examples_of_different_shapes_are_refused():
    with pytest.raises(DataError, match="'p' are 5 and those of 'q' 4; bring them to one size"):
        take("mmd", pair(0.0)[0], sample("q", normal(30, 4)))


# --- groups


def of_things(name: str, first: int, random: np.random.Generator, shift: float = 0.0) -> Sample:
    """Twenty examples of each of ten things, which differ from each other far more than their examples do."""
    things = np.repeat(np.arange(10), 20)
    centres = random.normal(size=(10, 3)) + shift
    return sample(name, centres[things] + 0.2 * random.normal(size=(200, 3)), np.arange(200) % 2, first + things)


@pytest.mark.parametrize("name", ["emd", "mmd", "ni", "frechet"])
def test_examples_of_one_thing_say_no_more_of_a_domain_than_the_thing_does(name):
    random = np.random.default_rng(0)
    found = [take(name, of_things("p", 0, random), of_things("q", 100, random), FEW)[0] for _ in range(12)]
    assert sum(map(is_seen, found)) <= 2, "other things of the same kind are no shift"
    by_things, by_draws = np.mean([one.standard_error for one in found]), np.std([one.details["raw"] for one in found])
    assert 0.5 < by_things / by_draws < 2.5
    assert np.mean([one.details["raw"] - one.details["no shift"] for one in found]) < by_draws
    (far,) = take(name, of_things("p", 0, random), of_things("q", 100, random, shift=4.0), FEW)
    assert is_seen(far)


@pytest.mark.parametrize("name", ["mmd", "ni", "frechet"])
def test_the_same_things_on_both_sides_show_a_shift_that_other_things_would_hide(name):
    random, labels = np.random.default_rng(0), np.arange(150) % 2
    found = {}
    for shift in (0.0, 0.3):
        for repeat in range(6):
            things = random.normal(size=(150, 3))
            p, q = (things + 0.1 * random.normal(size=(150, 3)) + moved for moved in (0.0, shift))
            sides = [sample(side, x, labels, np.arange(150)) for side, x in (("p", p), ("q", q))]
            found[shift, repeat] = take(name, *sides, FEW)[0]
    assert all(is_seen(one) for (shift, _), one in found.items() if shift)
    assert sum(is_seen(one) for (shift, _), one in found.items() if not shift) <= 1


@pytest.mark.parametrize("name", ["emd", "mmd", "ni", "frechet"])
def test_one_thing_a_side_leaves_a_value_without_doubt(name):
    random = np.random.default_rng(0)
    p, q = (sample(side, random.normal(size=(40, 2)), np.arange(40) % 2, np.full(40, side)) for side in "pq")
    (found,) = take(name, p, q, FEW)
    assert found.standard_error is None and ONE_GROUP in found.notes and not is_seen(found)
    assert found.value == take(name, *(sample(one.name, one.inputs, one.labels) for one in (p, q)), FEW)[0].value


def test_the_a_distance_at_no_shift_is_zero_though_groups_leave_more_of_one_side():
    random, values, errors = np.random.default_rng(0), [], []
    for repeat in range(30):
        # One thing has half of its side's examples, so that halves of things are no halves of examples.
        sides = [sample(name, random.normal(size=(120, 4)), None, np.minimum(np.arange(120) // 15, 4) + first)
                 for name, first in (("p", 0), ("q", 10))]  # fmt: skip
        (found,) = take("a-distance", *sides, Settings(seed=repeat + 1000))
        values.append(found.details["raw"])
        errors.append(found.standard_error)
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(30)


def test_the_classifier_of_domains_does_not_answer_with_the_side_it_saw_more_of():
    random, gaps = np.random.default_rng(0), []
    for seed in range(60):
        sides = [sample(name, random.normal(size=(120, 4)), None, np.minimum(np.arange(120) // 15, 4) + first)
                 for name, first in (("p", 0), ("q", 10))]  # fmt: skip
        (of_p, held_p), (of_q, held_q) = told_apart(*sides, seed)
        if len(held_p) != len(held_q):  # more of one side is held out: more of the other was learned from
            gaps.append((of_p.mean() - of_q.mean()) * np.sign(len(held_q) - len(held_p)))
    assert len(gaps) > 20 and abs(np.mean(gaps)) < 3 * np.std(gaps) / np.sqrt(len(gaps))


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_intervals_of_few_groups_hold_the_truth(count):
    """Groups of ten alike: an interval of ±1.96 errors would hold it in 72 of 100 times where there are two a side."""
    random, held = np.random.default_rng(0), []
    groups = [np.repeat(np.arange(count), 10) + first for first in (0, count)]
    for _ in range(500):
        sides = [np.repeat(random.normal(mean, 1, count), 10) for mean in (0.8, 0.3)]
        raw, error = sides[0].mean() - sides[1].mean(), error_of_means([sides[0], -sides[1]], groups)
        found = estimate("difference", raw + 100, error, 10 * count, units=groups_of(groups))  # far from 0
        held.append(found.interval[0] <= 100.5 <= found.interval[1])
    assert np.mean(held) >= 0.93


def test_the_interval_of_a_distance_holds_what_it_estimates():
    """Of eight parts that are left out in turn Student's interval has seven degrees of freedom."""
    random, found = np.random.default_rng(0), []
    for seed in range(100):
        sides = [Sample(name, random.normal(mean, 1, (60, 2))) for name, mean in (("p", 0.0), ("q", 1.5))]
        found += take("mmd", *sides, Settings(seed=seed))
    truth = np.mean([one.details["raw"] for one in found])
    assert np.mean([one.interval[0] <= truth <= one.interval[1] for one in found]) >= 0.92
    assert found[0].interval[1] == pytest.approx(found[0].value + stats.t.ppf(0.975, 7) * found[0].standard_error)


def test_an_interval_knows_how_few_groups_the_smaller_side_has():
    """Two of five examples beside a hundred: as eight parts that vary alike they held the truth in 83 of 100 cases."""
    random, held = np.random.default_rng(0), []
    for seed in range(300):
        of_groups = [np.repeat(random.normal(0, 1, count), 5) for count in (2, 100)]
        sides = [
            Sample(name, x[:, None], None, np.arange(len(x)) // 5 + first)
            for name, x, first in zip("pq", of_groups, (0, 2), strict=True)
        ]
        x = np.concatenate(of_groups)[:, None]

        def difference(first, kept, x=x):
            of_p, of_q = first & kept, ~first & kept
            return (x * of_p).sum(0) / of_p.sum(0) - (x * of_q).sum(0) / of_q.sum(0)

        value, error, units, _ = doubt(difference, *sides, seed, times=1)
        low, high = estimate("difference", value + 100, error, 10, units=units).interval  # far from 0
        held.append(low <= 100 <= high)
    assert np.mean(held) >= 0.93


def test_the_error_of_shares_by_hand():
    right, none = np.array([1.0, 1, 0, 0]), [None, None]
    assert error_of_means([right, -right], none) == pytest.approx(np.sqrt(2 * 0.25 / 4))
    # Four copies of everything as groups: the error of the four, whose deviation has the divisor 4 − 1.
    copies, groups = np.repeat(right, 4), np.repeat(np.arange(4), 4)
    assert error_of_means([copies], [groups]) == pytest.approx(stats.sem(right))
    # What varies together on both sides leaves their difference.
    assert error_of_means([right, -right], [np.arange(4), np.arange(4)]) == 0
    # All alike: one example of 4, or one group of 2, is in doubt; of one group, everything.
    assert error_of_means([np.ones(4)], [None]) == pytest.approx(0.25)
    assert error_of_means([np.ones(4)], [np.array([0, 0, 1, 1])]) == pytest.approx(0.5)
    assert error_of_means([right], [np.zeros(4)]) == pytest.approx(1.0)
