"""SD, VNE and SelfReg against golden values, self-checks and slow, independent versions of themselves."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import Batches
from shiftbed.algorithms.regularizers import shuffled_within_classes, von_neumann_entropy
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import SHAPE, assert_same_as_erm, build, largest_difference, make_batches, train
from tests.algorithms.test_golden import LOGITS, MEAN_RISK, S1, Y1, Z1, Z2, on_logits

ROWS = st.integers(0, 999).map(lambda seed: torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 4))))


def differs_from_erm(name: str, **hparams) -> bool:
    erm, other = build("ERM"), build(name, **hparams)
    train(erm, 5)
    train(other, 5)
    return largest_difference(erm, other) > 1e-6


# SD


def test_sd_s_loss_is_the_golden_one():
    loss, metrics = on_logits("SD", sd_reg=0.5).objective(LOGITS, 0)
    assert metrics["penalty"].item() == pytest.approx(1.03375, abs=1e-12)
    assert loss.item() == pytest.approx(MEAN_RISK + 0.5 * 1.03375, abs=1e-9)


def test_sd_s_gradient_is_proportional_to_the_logits():
    logits = S1.clone().requires_grad_()
    _, metrics = on_logits("SD").objective(Batches.of([(logits, Y1)]), 0)
    metrics["penalty"].backward()
    assert torch.allclose(logits.grad, 2 * S1 / 12, atol=1e-15)
    assert on_logits("SD").objective(Batches.of([(0 * S1, Y1)]), 0)[1]["penalty"].item() == 0


def test_sd_squares_in_full_precision_under_autocast():
    batches = Batches.of([(torch.full((2, 3), 300.0).half(), torch.tensor([0, 1]))])
    with torch.autocast("cpu", torch.bfloat16):
        _, metrics = on_logits("SD").float().objective(batches, 0)
    assert metrics["penalty"].item() == 90000, "the square of 300 is no number of float16"


def test_sd_without_its_weight_is_erm_to_the_bit_and_with_it_is_not():
    assert_same_as_erm(build("SD", sd_reg=0.0), atol=1e-15)
    assert differs_from_erm("SD")


# VNE


def test_vne_s_entropy_is_the_golden_one():
    assert von_neumann_entropy(torch.cat([Z1, Z2])).item() == pytest.approx(0.50277445, abs=1e-8)


def test_vne_s_entropy_of_identical_and_of_orthogonal_rows():
    assert von_neumann_entropy(torch.ones(5, 3, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-12)
    rows = 7 * torch.eye(4, 6, dtype=torch.float64)
    assert von_neumann_entropy(rows).item() == pytest.approx(math.log(4), abs=1e-12)


@settings(max_examples=30)
@given(ROWS, st.permutations(range(6)))
def test_vne_s_entropy_is_bounded_and_blind_to_lengths_rotations_and_order(rows, order):
    entropy = von_neumann_entropy(rows).item()
    assert 0 <= entropy <= math.log(4)
    rotation, _ = torch.linalg.qr(rows[:4])
    lengths = torch.arange(1.0, 7, dtype=torch.float64)[:, None]
    for changed in (rows * lengths, rows @ rotation, rows[list(order)]):
        assert von_neumann_entropy(changed).item() == pytest.approx(entropy, abs=1e-10)


@settings(max_examples=10)
@given(ROWS)
def test_vne_s_gradient_is_that_of_the_eigenvalues(rows):
    def by_density_matrix(z):
        z = z / z.norm(dim=1, keepdim=True)
        spectrum = torch.linalg.eigvalsh(z.T @ z / len(z))
        return -(spectrum * spectrum.log()).sum()

    rows = rows.clone().requires_grad_()
    found, expected = (torch.autograd.grad(f(rows), rows)[0] for f in (von_neumann_entropy, by_density_matrix))
    assert torch.allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_vne_has_a_gradient_where_the_spectrum_has_zeros(dtype):
    for rows in (torch.ones(5, 3), torch.eye(3, 8).repeat(2, 1), torch.zeros(4, 3), torch.ones(1, 3)):
        rows = rows.to(dtype).requires_grad_()
        von_neumann_entropy(rows).backward()
        assert torch.isfinite(rows.grad).all()


@pytest.mark.parametrize(("coefficient", "direction"), [(-0.1, -1), (0.1, 1)])
def test_vne_s_coefficient_lowers_or_raises_the_entropy(coefficient, direction):
    erm, vne = build("ERM"), build("VNE", vne_coefficient=coefficient)
    train(erm, 20)
    train(vne, 20)
    x = make_batches(3).x
    change = von_neumann_entropy(vne.featurizer(x)) - von_neumann_entropy(erm.featurizer(x))
    assert direction * change.item() > 0


def test_vne_without_its_coefficient_is_erm_and_with_it_is_not():
    assert_same_as_erm(build("VNE", vne_coefficient=0.0))
    assert differs_from_erm("VNE")


# SelfReg


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 999))
def test_selfreg_s_shuffles_stay_within_classes(labels, seed):
    y = torch.tensor(labels)
    places = shuffled_within_classes(y, torch.from_numpy(np.random.default_rng(seed).permutation(len(y))))
    assert sorted(places.tolist()) == list(range(len(y)))
    assert torch.equal(y[places], y)


def test_selfreg_s_shuffles_are_equally_likely():
    y = torch.tensor([1, 0, 1, 0, 1])
    random = np.random.default_rng(0)
    seen = [tuple(shuffled_within_classes(y, torch.from_numpy(random.permutation(5))).tolist()) for _ in range(1200)]
    counts = [seen.count(one) for one in set(seen)]
    assert len(counts) == 12, "3! orders of one class, 2! of the other"
    assert min(counts) > 60 and max(counts) < 145  # four standard deviations around 100


def test_selfreg_s_loss_is_that_of_a_loop_over_examples():
    algorithm = build("SelfReg").train()
    batches = make_batches(0)
    loss, metrics = algorithm.objective(batches, 0)
    random = np.random.default_rng(0)
    share = random.beta(0.5, 0.5)
    one, two = (shuffled_within_classes(batches.y, torch.from_numpy(random.permutation(18))) for _ in range(2))
    z = algorithm.featurizer(batches.x)
    h, s = algorithm.cdpl(z), algorithm.classifier(z)
    terms = []
    for i, (j, k) in enumerate(zip(one.tolist(), two.tolist(), strict=True)):
        near = (s[i] - s[j]).square().sum() / 3 + 0.3 * (z[i] - h[j]).square().sum() / 128
        mixed_s, mixed_h = share * s[j] + (1 - share) * s[k], share * h[j] + (1 - share) * h[k]
        mixed = (s[i] - mixed_s).square().sum() / 3 + 0.3 * (z[i] - mixed_h).square().sum() / 128
        terms.append(share * near + (1 - share) * mixed)
    penalty = torch.stack(terms).mean()
    error = F.cross_entropy(s, batches.y)
    assert error > 1, "the penalty's factor is cut at 1 here"
    assert metrics["penalty"].item() == pytest.approx(penalty.item(), rel=1e-12)
    assert loss.item() == pytest.approx((error + penalty).item(), rel=1e-12)
    found, expected = (
        torch.autograd.grad(value, algorithm.featurizer.features[0].weight, retain_graph=True)[0]
        for value in (loss, error + penalty)
    )
    assert torch.allclose(found, expected, atol=1e-12)


def test_selfreg_s_penalty_counts_less_as_the_error_falls_and_its_factor_is_a_constant():
    algorithm = build("SelfReg")
    with torch.no_grad():
        algorithm.classifier.weight.zero_()
        algorithm.classifier.bias.copy_(torch.tensor([2.0, 0.0, 0.0]))
    batches = make_batches(0)
    batches = Batches(batches.x, torch.zeros_like(batches.y), batches.sizes)
    error = math.log(math.e**2 + 2) - 2
    loss, metrics = algorithm.objective(batches, 0)
    assert loss.item() == pytest.approx(error + error * metrics["penalty"].item(), rel=1e-9)
    (found,) = torch.autograd.grad(loss, algorithm.classifier.bias)
    first = math.e**2 / (math.e**2 + 2) - 1
    assert found.tolist() == pytest.approx([first, -first / 2, -first / 2], abs=1e-9)


def test_selfreg_of_equal_examples_in_every_class_is_erm():
    """The idea is off where all examples of a class are equal and the projection is the identity."""
    erm, selfreg = build("ERM"), build("SelfReg")
    selfreg.cdpl = nn.Identity()
    selfreg.optimizer = selfreg.make_optimizer()
    y = torch.arange(12) % 3
    for step in range(5):
        images = torch.rand(3, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        batches = Batches(images[y], y, (4, 4, 4))
        erm.update(batches)
        assert selfreg.update(batches)["penalty"].item() < 1e-25
    assert largest_difference(erm, selfreg) < 1e-9
    assert differs_from_erm("SelfReg")


def test_selfreg_trains_its_projection():
    algorithm = build("SelfReg")
    before = algorithm.cdpl[3].weight.clone()
    train(algorithm, 1)
    assert (algorithm.cdpl[3].weight - before).abs().mean() > 1e-4


def test_selfreg_refuses_a_step_on_one_example_and_takes_one_example_a_domain():
    with pytest.raises(AlgorithmError, match="SelfReg needs at least 2 examples a step"):
        build("SelfReg", 1).update(make_batches(0, (1,)))
    assert math.isfinite(build("SelfReg").update(make_batches(0, (1, 1, 1)))["loss"])
