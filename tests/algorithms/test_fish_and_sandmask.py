"""Fish and SANDMask against hand-made numbers and slow, independent versions of themselves."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms.gradients import agreed_gradient, softly_agreed_gradient
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train


def differs_from_erm(name, **hparams):
    erm, other = build("ERM"), build(name, **hparams)
    train(erm, 5)
    train(other, 5)
    return largest_difference(erm, other) > 1e-6


# Fish


def fish_with_copies(network, steps, meta_lr, lr):
    """A copy of the network takes the steps on the domains; its Adam's state is carried to the next copy."""
    state = None
    for step in range(steps):
        inner = copy.deepcopy(network)
        adam = torch.optim.Adam(inner.parameters(), lr=lr)
        if state is not None:
            adam.load_state_dict(state)
        for x, y in make_batches(step):
            adam.zero_grad()
            F.cross_entropy(inner(x), y).backward()
            adam.step()
        state = adam.state_dict()
        meta, now = network.state_dict(), inner.state_dict()
        network.load_state_dict({key: value + meta_lr * (now[key] - value) for key, value in meta.items()})
    return network


def test_fish_steps_as_with_copies_of_the_network():
    fish = build("Fish", meta_lr=0.1)
    expected = fish_with_copies(copy.deepcopy(fish.network), 4, meta_lr=0.1, lr=1e-3)
    train(fish, 4)
    for found, value in zip(fish.network.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(found, value, atol=1e-12)


def test_fish_with_a_rate_of_zero_stays_where_it_is():
    fish = build("Fish", meta_lr=0.0)
    before = copy.deepcopy(fish.network.state_dict())
    train(fish, 3)
    assert all(torch.equal(value, before[key]) for key, value in fish.network.state_dict().items())


def test_fish_on_one_domain_with_a_rate_of_one_is_erm():
    fish, erm = build("Fish", 1, meta_lr=1.0), build("ERM", 1)
    train(fish, 5, sizes=(6,))
    train(erm, 5, sizes=(6,))
    assert largest_difference(fish, erm) == 0


def test_fish_is_not_erm():
    assert differs_from_erm("Fish")


def test_fish_scales_the_statistics_of_batch_norm_but_not_their_count():
    fish = build("Fish", meta_lr=0.1)
    fish.network = nn.Sequential(nn.Flatten(), nn.Linear(768, 4), nn.BatchNorm1d(4)).double()
    fish.optimizer = torch.optim.SGD(fish.network.parameters(), lr=0.0)
    inner = copy.deepcopy(fish.network)
    batches = make_batches(0)
    fish.update(batches)
    for x, _ in batches:
        inner(x)
    assert torch.allclose(fish.network[2].running_mean, 0.1 * inner[2].running_mean, atol=1e-12)
    assert torch.allclose(fish.network[2].running_var, 0.9 + 0.1 * inner[2].running_var, atol=1e-12)
    assert fish.network[2].num_batches_tracked == 3


def test_fish_shows_the_mean_loss_of_the_domains():
    fish = build("Fish")
    fish.optimizer = torch.optim.SGD(fish.network.parameters(), lr=0.0)
    batches = make_batches(0)
    risks = [F.cross_entropy(fish.predict(x), y) for x, y in batches]
    assert fish.update(batches)["loss"].item() == pytest.approx(torch.stack(risks).mean().item(), rel=1e-12)


# SANDMask

GRADIENTS = torch.tensor([[1.0, -1, 2, 0], [1, 1, 4, 1]], dtype=torch.float64)


def test_sandmask_s_gradient_by_hand():
    # |mean of signs| is (1, 0, 1, 1/2), the unbiased variance (0, 2, 2, 1/2), the mean (1, 0, 3, 1/2).
    mask = [1, 0, math.tanh(0.5 * 0.75 / 2), math.tanh(0.5 * 0.25 / 0.5)]
    expected = [m * g / (sum(mask) / 4) for m, g in zip(mask, (1, 0, 3, 0.5), strict=True)]
    assert softly_agreed_gradient(GRADIENTS, 0.25, 0.5).tolist() == pytest.approx(expected, rel=1e-9)


def test_sandmask_lets_nothing_below_tau_through():
    gradients = torch.tensor([[1.0, 1, 1], [1, 1, -1], [1, -1, -2]], dtype=torch.float64)
    assert (softly_agreed_gradient(gradients, 0.5, 10.0) != 0).tolist() == [True, False, False]


@settings(max_examples=50)
@given(st.floats(0, 1), st.integers(1, 6), st.integers(0, 1000))
def test_sandmask_with_a_large_k_is_andmask(tau, domains, seed):
    gradients = torch.randn(domains, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(softly_agreed_gradient(gradients, tau, 1e300), agreed_gradient(gradients, tau), rtol=1e-12)


@settings(max_examples=20)
@given(st.permutations(range(4)))
def test_sandmask_does_not_ask_for_the_order_of_domains(order):
    gradients = torch.randn(4, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, two = (softly_agreed_gradient(rows, 0.3, 2.0) for rows in (gradients, gradients[list(order)]))
    assert torch.allclose(one, two, rtol=1e-10)


def test_sandmask_trains_at_its_default_values():
    sandmask, andmask = build("SANDMask"), build("ANDMask")
    losses = [float(metrics["loss"]) for metrics in train(sandmask, 30)]
    train(andmask, 30)
    assert losses[-1] < 0.9 * losses[0]
    assert largest_difference(sandmask, andmask) < 1e-9, "both masks have the threshold 1"


def test_sandmask_without_a_threshold_and_with_a_large_k_is_erm():
    assert_same_as_erm(build("SANDMask", tau=0.0, k=1e300))
    assert differs_from_erm("SANDMask")


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_sandmask_of_one_domain_is_its_gradient(tau):
    gradients = GRADIENTS[1:] + 0.5
    assert softly_agreed_gradient(gradients, tau, 10.0).tolist() == pytest.approx(gradients[0].tolist(), rel=1e-9)


def test_sandmask_of_equal_gradients_without_softness_is_finite():
    assert torch.isfinite(softly_agreed_gradient(torch.ones(2, 3), 0.5, 0.0)).all()
