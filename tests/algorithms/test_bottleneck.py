"""IB_ERM and IB_IRM against golden values, hand formulas, and their special cases."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import Batches
from shiftbed.algorithms.bottleneck import mean_variance
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train
from tests.algorithms.test_golden import Y1, Y2, Z1, Z2

FEATURES = Batches.of([(Z1, Y1), (Z2, Y2)])
GOLDEN = (4.91666667 + 1.29166667) / 2


def on_features(name, **hparams):
    """An algorithm on the features themselves, with a fixed linear head."""
    algorithm = build(name, 2, **hparams)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 3).double()
    with torch.no_grad():
        algorithm.classifier.weight.copy_(torch.tensor([[0.5, -0.2], [0.0, 0.3], [-0.4, 0.1]]))
        algorithm.classifier.bias.copy_(torch.tensor([0.1, 0.0, -0.1]))
    return algorithm


def test_the_variance_is_the_golden_one():
    for z, value in ((Z1, 4.91666667), (Z2, 1.29166667)):
        assert mean_variance(z, Batches(z, Y1, (4,))).item() == pytest.approx(value, abs=1e-8)
    assert mean_variance(FEATURES.x, FEATURES).item() == pytest.approx(GOLDEN, abs=1e-8)


def test_the_variance_of_unequal_batches_weighs_domains_alike():
    z = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = np.mean([part.numpy().var(0, ddof=1).mean() for part in z.split([2, 4, 3])])
    assert mean_variance(z, Batches(z, torch.zeros(9), (2, 4, 3))).item() == pytest.approx(expected, rel=1e-12)


def test_the_variance_ignores_where_a_domain_is_and_grows_with_the_square_of_its_scale():
    batches = Batches(3 * FEATURES.x, FEATURES.y, (4, 4))
    assert mean_variance(batches.x, batches).item() == pytest.approx(9 * GOLDEN, abs=1e-6)
    moved = Batches.of([(Z1 + 7, Y1), (Z2 - 5, Y2)])
    assert mean_variance(moved.x, moved).item() == pytest.approx(GOLDEN, abs=1e-8)


def test_ib_erm_s_loss_before_and_after_annealing():
    algorithm = on_features("IB_ERM", ib_lambda=7.0, ib_penalty_anneal_iters=3)
    nn.init.zeros_(algorithm.classifier.weight), nn.init.zeros_(algorithm.classifier.bias)
    assert algorithm.objective(FEATURES, 2)[0].item() == pytest.approx(math.log(3), abs=1e-12)
    loss, metrics = algorithm.objective(FEATURES, 3)
    assert loss.item() == pytest.approx(math.log(3) + 7 * GOLDEN, abs=1e-6)
    assert metrics["penalty"].item() == pytest.approx(GOLDEN, abs=1e-8)


def test_ib_irm_s_loss_in_all_four_phases():
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    algorithm = on_features("IB_IRM", irm_lambda=5.0, ib_lambda=7.0)
    risks, products = [], []
    for z, y in FEATURES:
        logits = algorithm.classifier(z).detach()
        risks.append(F.cross_entropy(logits, y).item())
        halves = [F.cross_entropy(scale * logits[half::2], y[half::2]) for half in (0, 1)]
        products.append(math.prod(torch.autograd.grad(half, scale)[0].item() for half in halves))
    risk, product = sum(risks) / 2, sum(products) / 2
    for irm_start, ib_start, expected in (
        (9, 9, risk + product),
        (0, 9, risk + 5 * product),
        (9, 0, risk + product + 7 * GOLDEN),
        (0, 0, risk + 5 * product + 7 * GOLDEN),
    ):
        algorithm.hparams |= {"irm_penalty_anneal_iters": irm_start, "ib_penalty_anneal_iters": ib_start}
        assert algorithm.objective(FEATURES, 4)[0].item() == pytest.approx(expected, abs=1e-6)


def test_the_variance_s_gradient_reaches_the_features():
    z = Z1.clone().requires_grad_()
    mean_variance(z, Batches(z, Y1, (4,))).backward()
    assert torch.allclose(z.grad, (Z1 - Z1.mean(0)) / 3, atol=1e-12)  # 2 (z − mean) / 3, over 2 coordinates


def fresh_steps(name, **hparams):
    """How many steps the optimizer has made since it was fresh, after each of six updates."""
    algorithm, found = build(name, **hparams), []
    for step in range(6):
        algorithm.update(make_batches(step))
        found.append(int(next(iter(algorithm.optimizer.state.values()))["step"]))
    return found


def test_the_optimizer_is_fresh_where_a_penalty_sets_in():
    assert fresh_steps("IB_ERM", ib_penalty_anneal_iters=4) == [1, 2, 3, 4, 1, 2]
    both = {"irm_penalty_anneal_iters": 2, "ib_penalty_anneal_iters": 3}
    assert fresh_steps("IB_IRM", **both) == [1, 2, 1, 1, 2, 3]


def test_ib_irm_has_a_phase_for_each_penalty():
    algorithm = build("IB_IRM", irm_penalty_anneal_iters=2, ib_penalty_anneal_iters=4)
    assert len({algorithm.phase(step) for step in range(6)}) == 3


def test_without_their_penalties_they_are_erm_and_with_them_they_are_not():
    assert_same_as_erm(build("IB_ERM", ib_lambda=0.0, ib_penalty_anneal_iters=0), atol=1e-12)
    off = {"irm_lambda": 0.0, "irm_penalty_anneal_iters": 0, "ib_lambda": 0.0, "ib_penalty_anneal_iters": 0}
    assert_same_as_erm(build("IB_IRM", **off), atol=1e-12)
    erm = build("ERM")
    train(erm, 5)
    for name in ("IB_ERM", "IB_IRM"):
        other = build(name, ib_penalty_anneal_iters=0, irm_lambda=0.0, irm_penalty_anneal_iters=0)
        train(other, 5)
        assert largest_difference(erm, other) > 1e-6


def test_ib_irm_without_the_variance_is_irm_and_without_irm_s_penalty_ib_erm():
    early = {"irm_penalty_anneal_iters": 2, "ib_penalty_anneal_iters": 2}
    without = {"IRM": {"ib_lambda": 0.0}, "IB_ERM": {"irm_lambda": 0.0, "irm_penalty_anneal_iters": 0}}
    for name, off in without.items():
        one, two = build(name, **early), build("IB_IRM", **{**early, **off})
        train(one, 5)
        train(two, 5)
        assert largest_difference(one, two) < 1e-9


@pytest.mark.parametrize("name", ["IB_ERM", "IB_IRM"])
def test_one_example_a_domain_is_refused(name):
    with pytest.raises(AlgorithmError, match=rf"{name} needs at least 2 examples a domain"):
        build(name).update(make_batches(0, (1, 4, 4)))


def test_the_variance_is_in_full_precision_under_autocast():
    algorithm = build("IB_ERM", dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        _, metrics = algorithm.objective(make_batches(0, dtype=torch.float32), 0)
    assert metrics["penalty"].dtype == torch.float32
