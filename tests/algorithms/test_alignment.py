"""CORAL, MMD and RCS against golden values, independent formulas and invariances, in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Batches
from shiftbed.algorithms.alignment import mean_distance, relative_chi_square, squared_distances
from shiftbed.algorithms.numerics import ramp
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import (
    CLASSES,
    PLAN,
    SHAPE,
    assert_same_as_erm,
    build,
    default_hparams,
    largest_difference,
    make_batches,
    train,
)

Z1 = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 1]], dtype=torch.float64)
Z2 = torch.tensor([[1, 0], [2, 1], [0, 3], [2, 2]], dtype=torch.float64)
Y1, Y2 = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 1])
GOLDEN = {"CORAL": 23.34201389, "MMD": 2.31280617, "RCS": 0.22157374}


def on_features(name, dtype=torch.float64, **hparams):
    """An algorithm whose inputs are the features themselves and whose risk is log 3."""
    algorithm = build(name, dtype=dtype, **hparams)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 3, dtype=dtype)
    nn.init.zeros_(algorithm.classifier.weight)
    nn.init.zeros_(algorithm.classifier.bias)
    return algorithm


def batches_of(*domains, unlabeled=()):
    pairs = [(z, torch.arange(len(z)) % 3) for z in domains]
    return Batches.of(pairs, unlabeled)


def penalty(name, *domains, dtype=torch.float64):
    _, metrics = on_features(name, dtype).objective(batches_of(*domains), 0)
    return metrics["penalty"].item()


def features(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 2, dtype=torch.float64, generator=generator) for size in sizes]


def mmd_of_a_pair(one, two):
    def mean_kernel(a, b):
        distances = ((a[:, None].numpy() - b[None].numpy()) ** 2).sum(-1)
        return sum(np.exp(-(10.0**power) * distances).mean() for power in range(-3, 4))

    return mean_kernel(one, one) + mean_kernel(two, two) - 2 * mean_kernel(one, two)


def coral_of_a_pair(one, two):
    means = one.numpy().mean(0) - two.numpy().mean(0)
    covariances = np.cov(one.numpy().T) - np.cov(two.numpy().T)
    return (means**2).sum() / 2 + (covariances**2).sum() / 4


PAIRS = {"CORAL": coral_of_a_pair, "MMD": mmd_of_a_pair}


@pytest.mark.parametrize("name", PAIRS)
def test_the_penalty_is_the_golden_one(name):
    assert penalty(name, Z1, Z2) == pytest.approx(GOLDEN[name], abs=1e-8)


@pytest.mark.parametrize("name", PAIRS)
def test_the_loss_is_the_mean_risk_plus_gamma_times_the_penalty(name):
    loss, _ = on_features(name, mmd_gamma=3.0).objective(batches_of(Z1, Z2), 0)
    assert loss.item() == pytest.approx(math.log(3) + 3 * GOLDEN[name], abs=1e-7)


@pytest.mark.parametrize("name", PAIRS)
def test_domains_of_different_sizes_weigh_the_same(name):
    algorithm = build(name, mmd_gamma=0.0)
    batches = make_batches(0, (2, 7, 4))
    loss, _ = algorithm.objective(batches, 0)
    risks = [nn.functional.cross_entropy(algorithm.network(x), y).item() for x, y in batches]
    assert loss.item() == pytest.approx(sum(risks) / 3, rel=1e-12)


@pytest.mark.parametrize("sizes", [(4, 4), (3, 3, 3, 3), (5, 2, 3)])
@pytest.mark.parametrize("name", PAIRS)
def test_the_penalty_is_the_mean_over_all_pairs_of_domains(name, sizes):
    domains = features(1, *sizes)
    pairs = [PAIRS[name](domains[i], domains[j]) for i in range(len(sizes)) for j in range(i)]
    assert penalty(name, *domains) == pytest.approx(sum(pairs) / len(pairs), rel=1e-10)


@pytest.mark.parametrize("name", PAIRS)
def test_the_penalty_of_one_domain_and_of_equal_domains_is_0(name):
    assert penalty(name, Z1) == 0
    assert penalty(name, Z1, Z1[[2, 0, 3, 1]]) == pytest.approx(0, abs=1e-14)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), shift=st.floats(-50, 50), name=st.sampled_from(sorted(PAIRS)))
def test_order_and_a_common_shift_change_nothing(seed, shift, name):
    one, two, three = features(seed, 4, 4, 4)
    value = penalty(name, one, two, three)
    assert value >= 0 and (value <= 14 or name == "CORAL")
    assert penalty(name, three, one.flip(0), two) == pytest.approx(value, rel=1e-9)
    assert penalty(name, *(z + shift for z in (one, two, three))) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_the_gradient_reaches_every_domain(name):
    algorithm, batches = on_features(name), batches_of(*features(2, 2, 2, 2))
    z = batches.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: algorithm.distance(values, batches), (z,))
    (gradient,) = torch.autograd.grad(algorithm.distance(z, batches), z)
    assert all(part.abs().sum() > 0 for part in batches.split(gradient))


@pytest.mark.parametrize("name", PAIRS)
def test_in_float32_a_large_common_offset_costs_no_digits(name):
    shifted = [(z + 4096).float() for z in (Z1, Z2)]
    assert penalty(name, *shifted, dtype=torch.float32) == pytest.approx(GOLDEN[name], rel=1e-4)


def test_an_example_is_at_no_distance_from_itself():
    rows = 100 * torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    distances = squared_distances(rows)
    assert not distances.diagonal().any() and (distances >= 0).all()
    exact = torch.cdist(rows.double(), rows.double()).square()
    assert torch.allclose(distances.double(), exact, rtol=1e-4)


@pytest.mark.parametrize("name", [*PAIRS, "RCS"])
def test_under_autocast_the_penalty_keeps_float32(name):
    batches = batches_of(*(z.float() for z in features(3, 6, 6)))
    algorithm = on_features(name, torch.float32)
    _, plain = algorithm.objective(batches, 0)
    with torch.autocast("cpu", torch.bfloat16):
        _, mixed = algorithm.objective(batches, 0)
        half = Batches(batches.x.bfloat16(), batches.y, batches.sizes)
        _, from_half = algorithm.objective(half, 0)
    assert mixed["penalty"].item() == pytest.approx(plain["penalty"].item(), rel=1e-6)
    assert from_half["penalty"].dtype == (torch.float64 if name == "RCS" else torch.float32)


@pytest.mark.parametrize("name", PAIRS)
def test_unlabelled_inputs_are_one_more_domain_of_the_penalty_and_not_of_the_risk(name):
    algorithm = on_features(name)
    (z3,) = features(4, 3)
    loss, metrics = algorithm.objective(batches_of(Z1, Z2, unlabeled=[z3]), 0)
    _, labelled = algorithm.objective(batches_of(Z1, Z2, z3), 0)
    assert metrics["penalty"].item() == pytest.approx(labelled["penalty"].item(), rel=1e-12)
    assert metrics["penalty"].item() != pytest.approx(GOLDEN[name], rel=1e-2)
    assert (loss - metrics["penalty"]).item() == pytest.approx(math.log(3), abs=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_an_update_takes_unlabelled_inputs(name):
    with_them, without = build(name), build(name)
    without.update(make_batches(0))
    metrics = with_them.update(make_batches(0), [make_batches(7).x[:5]])
    assert torch.isfinite(metrics["loss"]) and largest_difference(with_them, without) > 1e-6


def test_coral_refuses_one_unlabelled_example():
    with pytest.raises(AlgorithmError, match="CORAL needs at least 2 examples"):
        on_features("CORAL").objective(batches_of(Z1, Z2, unlabeled=[Z1[:1]]), 0)


@pytest.mark.parametrize("name", ["MMD", "RCS"])
def test_one_example_a_domain_is_enough(name):
    assert math.isfinite(penalty(name, Z1[:1], Z2[:1]))


def test_the_mean_distance_from_inner_products():
    rows = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = [(rows[i] - rows[j]).square().sum().item() for i in range(4) for j in range(i)]
    assert mean_distance(rows @ rows.T).item() == pytest.approx(sum(pairs) / 6, rel=1e-12)


@pytest.mark.parametrize("off", [("CORAL", "mmd_gamma"), ("MMD", "mmd_gamma"), ("RCS", "rcs_lambda")])
def test_switched_off_it_is_erm_and_switched_on_it_is_not(off):
    name, weight = off
    assert_same_as_erm(build(name, **{weight: 0.0}))
    on, erm = build(name), build("ERM")
    train(on, 5)
    train(erm, 5)
    assert largest_difference(on, erm) > 1e-5


def rcs(sigma=10.0, **hparams):
    algorithm = on_features("RCS", **hparams)
    algorithm.sigma.fill_(sigma)
    return algorithm


def divergence(z, y, sizes, epsilon=0.01):
    _, metrics = rcs(rcs_epsilon=epsilon).objective(Batches(z, y, sizes), 0)
    return metrics["penalty"].item()


def test_rcs_is_the_golden_one():
    value = divergence(torch.cat([Z1, Z2]), torch.cat([Y1, Y2]), (4, 4))
    assert value == pytest.approx(GOLDEN["RCS"], abs=1e-8)


def test_rcs_of_one_domain_of_equal_domains_and_of_shifted_ones():
    z, y = torch.cat([Z1, Z2]), torch.cat([Y1, Y2])
    assert -0.02 < divergence(z, y, (8,)) < divergence(z, y, (8,), epsilon=1e-6) < 0
    assert divergence(z, y, (8,), epsilon=1e-6) == pytest.approx(0, abs=1e-5)
    twice, labels = torch.cat([z, z]), torch.cat([y, y])
    assert divergence(twice, labels, (8, 8), epsilon=1e-6) == pytest.approx(0, abs=1e-5)
    twice[8:] += 5
    assert 0.2 < divergence(twice, labels, (8, 8)) < 1


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_rcs_does_not_depend_on_the_order_of_examples_and_domains(seed):
    one, two = features(seed, 5, 4)
    y1, y2 = torch.arange(5) % 3, torch.arange(4) % 2
    value = divergence(torch.cat([one, two]), torch.cat([y1, y2]), (5, 4))
    other = divergence(torch.cat([two.flip(0), one]), torch.cat([y2.flip(0), y1]), (4, 5))
    assert other == pytest.approx(value, abs=1e-9)


def test_the_relative_chi_square_lets_the_gradient_through():
    z, y = torch.cat([Z1, Z2]).requires_grad_(), torch.cat([Y1, Y2])
    domains = torch.arange(8) // 4
    same = (domains[:, None] == domains).double()

    def value(features):
        kernel = torch.exp(-squared_distances(features) / 10) * (y[:, None] == y)
        return relative_chi_square(kernel, same, 0.5, 0.01)

    assert torch.autograd.gradcheck(value, (z,))


def test_the_ramp_is_the_golden_one():
    assert [ramp(p) for p in (0, 0.1, 0.5, 1)] == pytest.approx([0, 0.46211716, 0.98661430, 0.99990920], abs=1e-8)


def test_rcs_ramps_over_the_steps_of_the_plan():
    algorithm = rcs(rcs_lambda=5.0)
    batches = Batches(torch.cat([Z1, Z2]), torch.cat([Y1, Y2]), (4, 4))
    first, later = (algorithm.objective(batches, step)[0].item() for step in (0, PLAN.steps // 10))
    assert first == pytest.approx(math.log(3), abs=1e-12)
    assert later == pytest.approx(math.log(3) + 5 * 0.46211716 * GOLDEN["RCS"], abs=1e-7)


def test_without_a_plan_rcs_s_weight_is_constant():
    algorithm, batches = ALGORITHMS["RCS"].cls(SHAPE, CLASSES, 3, default_hparams("RCS")).double(), make_batches(0)
    risk = F.cross_entropy(algorithm.predict(batches.x), batches.y)
    for step in (0, 1):
        loss, metrics = algorithm.objective(batches, step)
        assert loss.item() == pytest.approx((risk + metrics["penalty"]).item(), abs=1e-12)


def test_rcs_s_width_is_the_median_distance_of_the_first_batch_s_features():
    algorithm = on_features("RCS")
    algorithm.featurizer = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        algorithm.featurizer.weight.copy_(torch.tensor([[2.0], [0.0]]))
    x = torch.tensor([[0.0], [0.0], [1.0], [3.0]], dtype=torch.float64)  # squared distances 0, 1, 1, 4, 9, 9
    algorithm.update(Batches(x, torch.tensor([0, 1, 2, 0]), (2, 2)))
    assert algorithm.sigma.item() == pytest.approx(4 * 4)
    algorithm.update(Batches(10 * x, torch.tensor([0, 1, 2, 0]), (2, 2)))
    assert algorithm.sigma.item() == pytest.approx(4 * 4)


def test_rcs_waits_for_a_batch_whose_features_differ():
    algorithm = on_features("RCS")
    same = Batches(torch.ones(4, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 0]), (2, 2))
    assert torch.isfinite(algorithm.update(same)["loss"]) and algorithm.sigma.isnan()
    algorithm.update(batches_of(Z1, Z2))
    assert algorithm.sigma > 0


def test_rcs_solves_in_double_precision_and_trains_in_single():
    algorithm = on_features("RCS", torch.float32)
    algorithm.sigma.fill_(10.0)
    loss, metrics = algorithm.objective(Batches(torch.cat([Z1, Z2]).float(), torch.cat([Y1, Y2]), (4, 4)), 0)
    assert metrics["penalty"].item() == pytest.approx(GOLDEN["RCS"], abs=1e-8)
    assert loss.dtype == torch.float32
