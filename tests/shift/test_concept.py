"""Covariate and concept shift against total variations and label swaps that are known, and the bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from shiftbed.errors import DataError
from shiftbed.shift import bounds, fitting
from shiftbed.shift.bounds import Bounds, bounds_of, deviation, finite_sample_terms
from shiftbed.shift.concept import FAILED, UNTAUGHT, Discrepancy, disagreements, discrepancy, labelling_function
from shiftbed.shift.measures import Settings, take
from shiftbed.shift.samples import sample

QUICK = Settings(steps=200)


def normal(n: int, d: int = 1, mean: float = 0.0, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=(n, d)) + mean


def uniform(n: int, low: float, seed: int = 0) -> np.ndarray:
    return low + np.random.default_rng(seed).random((n, 1))


def prototypes(name: str, masses: list[float], labels: list[int], n: int = 1200, seed: int = 0):
    """Points near the corners of a simplex, each corner with its label."""
    random = np.random.default_rng(seed)
    corner = random.choice(len(masses), size=n, p=np.array(masses) / sum(masses))
    inputs = np.eye(len(masses))[corner] + 0.02 * random.normal(size=(n, len(masses)))
    return sample(name, inputs, np.array(labels)[corner])


@pytest.mark.parametrize(
    ("p", "q", "exact"),
    [
        (normal(4000), normal(4000, seed=1), 0.0),
        (normal(4000), normal(4000, mean=2, seed=1), 0.6827),
        (normal(4000), normal(4000, scale=3, seed=1), 0.4843),
        (uniform(4000, 0.0), uniform(4000, 0.5, 1), 0.5),
        (uniform(200, 0.0), uniform(200, 2.0, 1), 1.0),
        ((uniform(3000, 0) < 0.2).astype(float), (uniform(3000, 0, 1) < 0.7).astype(float), 0.5),
    ],
)
def test_covariate_shift_is_the_total_variation(p, q, exact):
    (found,) = take("covariate", sample("p", p), sample("q", q), QUICK)
    assert found.value == pytest.approx(exact, abs=0.045)
    assert found.details["soft"] == pytest.approx(exact, abs=0.06)


def test_a_value_read_on_training_examples_measures_memory():
    found = [
        discrepancy(sample("p", normal(200, 20, seed=i)), sample("q", normal(200, 20, seed=50 + i)), QUICK)
        for i in range(3)
    ]
    assert min(one.on_training for one in found) > 0.8
    assert abs(np.mean([one.value for one in found])) < 0.1


def test_networks_that_learned_nothing_say_so_instead_of_no_shift():
    apart = sample("p", uniform(200, 0.0), np.arange(200) % 2), sample("q", uniform(200, 2.0, 1), np.arange(200) % 2)
    too_fast = Settings(steps=20, optimizer="sgd", rate=math.inf)
    (found,) = take("covariate", *apart, too_fast)
    assert found.interval is None and found.standard_error is None
    assert found.notes == (FAILED,)
    for one in take("concept", *apart, too_fast):
        assert one.interval is None and one.standard_error is None and UNTAUGHT in one.notes
    bounds = bounds_of(lambda x: np.zeros(len(x), int), *apart, too_fast)
    assert (bounds.covariate, bounds.lower, bounds.upper) == (1.0, 0.0, 1.0)
    (alike,) = take("covariate", sample("p", normal(2000)), sample("q", normal(2000, seed=1)), QUICK)
    assert alike.interval is not None and FAILED not in alike.notes


def test_covariate_shift_is_symmetric_and_needs_no_labels():
    p, q = sample("p", normal(300, 2)), sample("q", normal(300, 2, 1.0, seed=1), np.arange(300) % 2)
    (found,), (swapped,) = take("covariate", p, q, QUICK), take("covariate", q, p, QUICK)
    assert swapped.value == pytest.approx(found.value, abs=0.02)
    order = np.random.default_rng(1).permutation(300)
    assert take("covariate", sample("p", p.inputs[order]), q, QUICK) == [found]


def test_labels_say_nothing_of_covariate_shift():
    p, q = prototypes("p", [1] * 10, TEN, 600), prototypes("q", UNEVEN, TEN, 600, 1)
    unlabelled = (replace(one, labels=None) for one in (p, q))
    assert take("covariate", p, q, QUICK) == take("covariate", *unlabelled, QUICK)


def test_images_are_measured_by_the_network_that_is_named():
    light = np.random.default_rng(0).random((60, 1, 8, 8))
    p, q = sample("p", light), sample("q", light / 2)
    (found,) = take("covariate", p, q, Settings(steps=30, network="small", batch_size=16))
    assert found.value > 0.8


def test_measuring_leaves_torch_s_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    discrepancy(sample("p", normal(40)), sample("q", normal(40)), Settings(steps=2))
    assert (torch.rand(3) == expected).all()


# --- concept shift


def test_labels_permuted_without_a_fixed_point_disagree_everywhere():
    p = prototypes("p", [1] * 4, [0, 1, 2, 3])
    q = prototypes("q", [1] * 4, [1, 2, 3, 0], seed=1)
    assert [one.value for one in take("concept", p, q, QUICK)] == [1.0, 1.0]


def test_the_same_labels_do_not_disagree():
    p, q = prototypes("p", [1] * 4, [0, 1, 2, 3]), prototypes("q", [1, 2, 3, 4], [0, 1, 2, 3], seed=1)
    assert [one.value for one in take("concept", p, q, QUICK)] == [0.0, 0.0]


TEN, SWAPPED = list(range(10)), [1, 0, *range(2, 10)]
UNEVEN = [0.25, 0.25, *[0.0625] * 8]  # the two whose labels are swapped have half of the mass


def test_two_of_ten_labels_swapped_and_the_bounds_of_what_was_learned():
    p, q = prototypes("p", [1] * 10, TEN, 3000), prototypes("q", UNEVEN, SWAPPED, 3000, 1)
    smallest, largest = take("concept", p, q, QUICK)
    assert smallest.value == pytest.approx(0.2, abs=0.05) and largest.value == pytest.approx(0.5, abs=0.06)
    assert smallest.details["by_labels"] == pytest.approx(0.2, abs=0.05)
    found = bounds_of(lambda x: x.argmax(1), p, q, QUICK)
    assert found.train_error == 0 and found.test_error == pytest.approx(0.5, abs=0.03)
    assert found.covariate == pytest.approx(0.3, abs=0.05)
    assert found.upper == pytest.approx(0.5, abs=0.07) and found.lower == pytest.approx(0.2, abs=0.07)


def test_disagreement_is_read_on_examples_that_no_labelling_function_saw():
    labels = np.random.default_rng(0).integers(0, 2, 400)
    p, q = sample("p", normal(400, 20), labels), sample("q", normal(400, 20, seed=1), labels)
    first, second = disagreements(p, q, QUICK)
    # Noise was learned by heart: twins of one domain disagree as often as the two domains do, and all guess.
    for one in (first, second):
        assert one.floor == pytest.approx(0.5, abs=0.2) and one.labels == pytest.approx(0.5, abs=0.2)
        assert one.count == 80


def test_labels_that_are_not_learned_at_a_high_rate_are_learned_at_a_lower_one():
    p, q = prototypes("p", [1] * 4, [0, 1, 2, 3]), prototypes("q", [1] * 4, [1, 2, 3, 0], seed=1)
    too_fast = Settings(steps=200, optimizer="sgd", rate=10.0)
    assert fitting.learn_labels(p, too_fast, 0).gain == pytest.approx(0.75, abs=0.02)
    found = take("concept", p, q, too_fast)
    assert [one.value for one in found] == [1.0, 1.0] and all(one.interval is not None for one in found)


def test_concept_shift_is_symmetric_and_a_labelling_function_is_learned_once():
    p, q = prototypes("p", [1] * 3, [0, 1, 2], 300), prototypes("q", [1, 2, 3], [0, 2, 1], 300, 1)
    found = take("concept", p, q, QUICK)
    assert take("concept", q, p, QUICK) == found
    assert labelling_function(p, QUICK) is labelling_function(p, QUICK)
    assert labelling_function(p, QUICK) is not labelling_function(p, Settings(steps=2))


def test_renaming_classes_changes_nothing():
    p, q = prototypes("p", [1] * 3, [0, 1, 2], 300), prototypes("q", [1, 2, 3], [0, 2, 1], 300, 1)
    names = np.array([30, 10, 20])
    renamed = [sample(one.name, one.inputs, names[one.labels]) for one in (p, q)]
    values = [[one.value for one in take("concept", *pair, QUICK)] for pair in ((p, q), renamed)]
    assert values[0] == pytest.approx(values[1], abs=0.02)


def test_a_domain_of_one_class_is_refused():
    p = prototypes("p", [1, 1], [0, 1], 60)
    one = sample("q", normal(60, 2), np.zeros(60, int))
    with pytest.raises(DataError, match="at least two classes must be in both"):
        take("concept", p, one, QUICK)
    with pytest.raises(DataError, match="All examples of 'q' are of one class, so that its labels teach nothing"):
        labelling_function(one, QUICK)


# --- bounds


def test_both_bounds_hold_for_a_thousand_random_models_on_a_finite_space():
    random = np.random.default_rng(0)
    tight = 0
    for _ in range(1000):
        points, classes = random.integers(2, 8), random.integers(2, 4)
        p, q = random.dirichlet(np.ones(points), size=2)
        f_p, f_q, h = random.integers(0, classes, size=(3, points))
        found = Bounds(
            train_error=p @ (h != f_p),
            test_error=q @ (h != f_q),
            covariate=np.abs(p - q).sum() / 2,
            concept_min=min(p @ (f_p != f_q), q @ (f_p != f_q)),
            concept_max=max(p @ (f_p != f_q), q @ (f_p != f_q)),
        )
        assert min(found.slack) > -1e-12
        tight += min(found.slack) < 1e-9
    assert tight > 10  # neither bound is wide of the mark


def test_the_bounds_of_the_paper_s_example():
    found = Bounds(train_error=0.0, test_error=0.5, covariate=0.3, concept_min=0.2, concept_max=0.5)
    assert (found.lower, found.upper) == (pytest.approx(0.2), pytest.approx(0.5))
    assert found.slack == (pytest.approx(0.3), pytest.approx(0.0)) and found.unavoidable == pytest.approx(0.2)
    assert not Bounds(0.0, 0.6, 0.3, 0.2, 0.5).holds


def test_labels_that_are_hard_to_learn_are_no_loss_that_every_model_has(monkeypatch):
    """Two labelling functions of one distribution disagree in a third of it; the true one never errs."""
    monkeypatch.setattr(bounds, "discrepancy", lambda p, q, settings: Discrepancy(0, 0, 0, 0, 0.1, 100, None))
    random = np.random.default_rng(0)

    def side(name):
        x = random.normal(size=(400, 10))
        return sample(name, x, (x[:, 0] * x[:, 1] > 0).astype(int))

    truth = bounds_of(lambda x: (x[:, 0] * x[:, 1] > 0).astype(int), side("p"), side("q"), Settings(steps=150))
    assert truth.concept_max > 0.2 and truth.floor > 0.2 and truth.test_error == 0
    assert truth.unavoidable < 0.1


def test_a_model_that_gives_probabilities_is_refused():
    p = prototypes("p", [1, 1], [0, 1], 60)
    with pytest.raises(DataError, match=r"shape \(60, 2\) for the 60 examples of 'p'; it must give one class number"):
        bounds_of(lambda x: x, p, p, QUICK)


class Fixed:
    """A model that says the second of its classes."""

    classes = ("cat", "dog")

    def predict(self, images):
        return np.tile([0.1, 0.9], (len(images), 1))


def test_a_trained_model_predicts_in_the_dataset_s_order_of_classes(monkeypatch):
    monkeypatch.setattr(bounds, "load", lambda run, device: Fixed())
    assert bounds.predictor("run", ["dog", "bird", "cat"])(np.zeros((3, 2))).tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="The model in run knows the class 'dog', which the dataset has not"):
        bounds.predictor("run", ["cat", "bird"])


def test_the_deviation_terms_by_hand():
    # 3 √(ln(120)/2000), three times; ln(120) = 4.78749
    assert deviation(1000, 1000) == pytest.approx(9 * math.sqrt(4.78749 / 2000), rel=1e-5)
    assert deviation(100, 10**12) == pytest.approx(6 * math.sqrt(4.78749 / 200), rel=1e-4)


def test_networks_that_learn_noise_by_heart_have_complexity_one():
    apart = sample("p", normal(40, 60), np.arange(40) % 2)
    alike = sample("q", np.zeros((40, 60)), np.arange(40) % 2)
    terms = finite_sample_terms(apart, alike, QUICK)
    assert terms.pairs_train == pytest.approx(1.0, abs=0.35) and terms.losses_train == pytest.approx(1.0, abs=0.35)
    signs = np.where(np.random.default_rng(0).random(40) < 0.5, 1, -1)
    assert terms.pairs_test <= 2 * abs(signs.sum()) / 40 + 1e-6  # on equal inputs a network has one value
    assert terms.total == pytest.approx(deviation(40, 40) + terms.pairs_train + terms.pairs_test + terms.losses_train)


def test_a_backbone_learns_in_half_precision_what_it_learns_in_single(monkeypatch):
    # Autocast remembers weights in half precision until it ends: around all steps it would hand out the first ones.
    images = np.random.default_rng(0).random((64, 3, 16, 16), dtype=np.float32)
    labelled = sample("made", images, (images[:, 0].mean((1, 2)) > images[:, 1].mean((1, 2))).astype(int))
    settings = Settings(network="small", optimizer="sgd", rate=0.1, steps=12, batch_size=16)
    learned = {}
    for precision in ("float32", "bf16"):
        monkeypatch.setattr(fitting, "default_precision", lambda runtime, precision=precision: precision)
        network = fitting.learn_labels(labelled, settings, 0).network
        with torch.no_grad():
            learned[precision] = network(torch.from_numpy(images))
    difference = (learned["bf16"] - learned["float32"]).norm() / learned["float32"].norm()
    assert difference < 0.25
