"""The five algorithms against the golden values and self-checks of their papers' mathematics, in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Algorithm, Batches
from shiftbed.algorithms.alignment import mean_pairwise_distance
from shiftbed.algorithms.invariance import scale_gradients
from shiftbed.errors import AlgorithmError
from shiftbed.training.job import search_space

# Two domains: logits S, labels Y, features Z.
S1 = torch.tensor([[2, 0, -1], [0.5, 1, 0], [-1, 0, 1], [0, 0, 0]], dtype=torch.float64)
S2 = torch.tensor([[1, 1, 0], [0, -2, 1], [3, 0, 0], [0.2, 0.4, -0.6]], dtype=torch.float64)
Y1, Y2 = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 1])
Z1 = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 1]], dtype=torch.float64)
Z2 = torch.tensor([[1, 0], [2, 1], [0, 3], [2, 2]], dtype=torch.float64)
R1, R2, MEAN_RISK = 0.5890834858, 0.5220706164, 0.5555770511
LOGITS = Batches.of([(S1, Y1), (S2, Y2)])


def make(name: str, domains: int = 2, **hparams) -> Algorithm:
    values = {**search_space(name, "ColoredDigits").draw(0, 0), "network": "small", **hparams}
    torch.manual_seed(0)
    return ALGORITHMS[name].cls((2, 8, 8), 3, domains, values).double()


def on_logits(name: str, **hparams) -> Algorithm:
    """An algorithm whose inputs are the logits themselves."""
    algorithm = make(name, **hparams)
    algorithm.featurizer = algorithm.classifier = algorithm.network = nn.Identity()
    return algorithm


class Injected:
    """A generator whose draws a test chooses."""

    def __init__(self, order, shares):
        self.order, self.shares = order, shares

    def permutation(self, count):
        return np.array(self.order)

    def beta(self, a, b, size):
        self.parameters = (a, b)
        return np.array(self.shares)


def test_erm_is_the_mean_over_all_examples():
    loss, _ = on_logits("ERM").objective(LOGITS, 0)
    assert loss.item() == pytest.approx(MEAN_RISK, abs=1e-10)


def test_erm_weights_domains_by_their_size():
    loss, _ = on_logits("ERM").objective(Batches.of([(S1[:1], Y1[:1]), (S2, Y2)]), 0)
    first = F.cross_entropy(S1[:1], Y1[:1]).item()
    assert loss.item() == pytest.approx((first + 4 * R2) / 5, abs=1e-9)


def test_irm_gradients_are_the_golden_ones():
    even, odd = (scale_gradients(S1, Y1)[half::2].mean().item() for half in (0, 1))
    assert (even, odd) == (pytest.approx(-0.38960511, abs=1e-8), pytest.approx(-0.16996083, abs=1e-8))
    even, odd = (scale_gradients(S2, Y2)[half::2].mean().item() for half in (0, 1))
    assert (even, odd) == (pytest.approx(-0.21351670, abs=1e-8), pytest.approx(-0.30399064, abs=1e-8))


def test_irm_gradients_equal_those_of_automatic_differentiation():
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(F.cross_entropy(scale * S1, Y1), scale)
    assert scale_gradients(S1, Y1).mean().item() == pytest.approx(expected.item(), abs=1e-14)


def test_irm_s_loss_before_and_after_annealing():
    algorithm = on_logits("IRM", irm_lambda=7.0, irm_penalty_anneal_iters=3)
    before, metrics = algorithm.objective(LOGITS, 2)
    after, _ = algorithm.objective(LOGITS, 3)
    assert metrics["penalty"].item() == pytest.approx(0.06556234, abs=1e-8)
    assert before.item() == pytest.approx(MEAN_RISK + 0.06556234, abs=1e-8)
    assert after.item() == pytest.approx(MEAN_RISK + 7 * 0.06556234, abs=1e-7)


def test_irm_s_penalty_lets_the_gradient_through():
    logits = S1.clone().requires_grad_()
    g = scale_gradients(logits, Y1)
    (g[0::2].mean() * g[1::2].mean()).backward()
    assert torch.autograd.gradcheck(lambda s: scale_gradients(s, Y1), (S1.clone().requires_grad_(),))
    assert logits.grad is not None and logits.grad.abs().sum() > 0


def test_irm_s_penalty_can_be_negative():
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    _, metrics = on_logits("IRM").objective(Batches.of([(logits, torch.tensor([0, 1]))]), 0)
    assert metrics["penalty"].item() < -0.1


def test_irm_of_zero_logits_and_of_equal_halves():
    algorithm = on_logits("IRM")
    _, metrics = algorithm.objective(Batches.of([(torch.zeros_like(S1), Y1)]), 0)
    assert metrics["penalty"].item() == 0
    doubled = (S1.repeat_interleave(2, 0), Y1.repeat_interleave(2))
    _, metrics = algorithm.objective(Batches.of([doubled]), 0)
    assert metrics["penalty"].item() == pytest.approx(scale_gradients(S1, Y1).mean().item() ** 2, abs=1e-15)


def test_irm_restarts_its_optimizer_at_the_annealing_step():
    algorithm = make("IRM", irm_penalty_anneal_iters=2)
    batch = [(torch.rand(4, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))] * 2
    moments = []
    for _ in range(4):
        algorithm.update(batch)
        moments.append(next(iter(algorithm.optimizer.state.values()))["step"].item())
    assert moments == [1, 2, 1, 2]


def test_groupdro_s_weights_and_loss_are_the_golden_ones():
    algorithm = on_logits("GroupDRO", groupdro_eta=0.1)
    loss, metrics = algorithm.objective(LOGITS, 0)
    assert metrics["q"].tolist() == pytest.approx([0.50167532, 0.49832468], abs=1e-8)
    assert loss.item() == pytest.approx(0.55568932, abs=1e-8)


def test_groupdro_s_gradient_treats_its_weights_as_constants():
    algorithm = on_logits("GroupDRO", groupdro_eta=0.5)
    s1, s2 = S1.clone().requires_grad_(), S2.clone().requires_grad_()
    loss, metrics = algorithm.objective(Batches.of([(s1, Y1), (s2, Y2)]), 0)
    (found,) = torch.autograd.grad(loss, s1)
    (alone,) = torch.autograd.grad(F.cross_entropy(s1, Y1), s1)
    assert torch.allclose(found, metrics["q"][0] * alone, atol=1e-14)


def test_groupdro_s_weights_follow_the_risks():
    algorithm = make("GroupDRO", groupdro_eta=0.5)
    x = torch.rand(8, 2, 8, 8, dtype=torch.float64)
    batches = Batches(x, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), (4, 4))
    before = algorithm.q.clone()
    risks = batches.mean(F.cross_entropy(algorithm.network(batches.x), batches.y, reduction="none"))
    algorithm.update(batches)
    growth = (algorithm.q / before).log()
    assert algorithm.q.sum().item() == pytest.approx(1, abs=1e-12)
    assert (growth[0] - growth[1]).item() == pytest.approx(0.5 * (risks[0] - risks[1]).item(), abs=1e-12)


def test_an_objective_changes_nothing_itself():
    algorithm = make("GroupDRO", groupdro_eta=0.5)
    batches = Batches(torch.rand(8, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), (4, 4))
    first, second = (algorithm.objective(batches, 0)[0].item() for _ in range(2))
    assert first == second
    assert algorithm.q.tolist() == [1, 1]


def on_features(z1, z2):
    algorithm = make("CORAL")
    algorithm.featurizer = nn.Identity()
    algorithm.classifier = nn.Linear(z1.shape[1], 3).double()
    _, metrics = algorithm.objective(
        Batches.of([(z1, torch.zeros(len(z1)).long()), (z2, torch.zeros(len(z2)).long())]), 0
    )
    return metrics["penalty"].item()


def test_coral_s_penalty_is_the_golden_one():
    assert on_features(Z1, Z2) == pytest.approx(23.34201389, abs=1e-8)
    means = torch.stack([Z1.mean(0), Z2.mean(0)])
    assert mean_pairwise_distance(means).item() / 2 == pytest.approx(2.03125, abs=1e-12)


def test_coral_s_loss_is_the_mean_risk_plus_gamma_times_the_penalty():
    algorithm = make("CORAL", mmd_gamma=3.0)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 3).double()
    with torch.no_grad():
        algorithm.classifier.weight.zero_()
        algorithm.classifier.bias.zero_()
    z1, z2 = Z1.clone().requires_grad_(), Z2.clone().requires_grad_()
    loss, _ = algorithm.objective(Batches.of([(z1, Y1), (z2, Y2)]), 0)
    assert loss.item() == pytest.approx(math.log(3) + 3 * 23.34201389, abs=1e-7)
    loss.backward()
    first = algorithm.objective(Batches.of([(Z1 + 1e-6 * torch.eye(4, 2), Y1), (Z2, Y2)]), 0)[0]
    change = (z1.grad * torch.eye(4, 2)).sum().item()
    assert (first - loss).item() / 1e-6 == pytest.approx(change, rel=1e-4), "both moments let the gradient through"


def test_coral_s_invariances():
    generator = torch.Generator().manual_seed(3)
    z1, z2 = (torch.randn(6, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    shift = torch.randn(5, dtype=torch.float64, generator=generator)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=generator))
    assert on_features(z1, z1) == pytest.approx(0, abs=1e-14)
    assert on_features(z1[[3, 1, 5, 0, 2, 4]], z2) == pytest.approx(on_features(z1, z2), rel=1e-12)
    assert on_features(z1, z1 + shift) == pytest.approx(shift.square().sum().item() / 5, rel=1e-12)
    assert on_features(z1 @ rotation, z2 @ rotation) == pytest.approx(on_features(z1, z2), rel=1e-12)


def test_coral_averages_over_all_pairs_of_domains():
    rows = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = [(rows[i] - rows[j]).square().sum().item() for i in range(4) for j in range(i)]
    assert mean_pairwise_distance(rows).item() == pytest.approx(sum(pairs) / 6, rel=1e-12)
    assert mean_pairwise_distance(rows[:1]).item() == 0


def test_coral_with_unequal_batches():
    z2 = Z2[:3]
    covariances = [np.cov(z.numpy().T) for z in (Z1, z2)]
    means = [z.numpy().mean(0) for z in (Z1, z2)]
    expected = ((means[0] - means[1]) ** 2).sum() / 2 + ((covariances[0] - covariances[1]) ** 2).sum() / 4
    assert on_features(Z1, z2) == pytest.approx(expected, rel=1e-12)


def test_mixup_s_loss_is_the_golden_one():
    algorithm = on_logits("Mixup", mixup_alpha=0.4)
    algorithm.rng = Injected([0, 1], [0.3, 0.7])  # the second pair is the first, seen from its other end
    loss, _ = algorithm.objective(LOGITS, 0)
    assert loss.item() == pytest.approx(0.93913671, abs=1e-8)
    assert algorithm.rng.parameters == (0.4, 0.4)


def test_mixup_pairs_a_cycle_of_the_permutation():
    algorithm = on_logits("Mixup")
    algorithm.rng = Injected([1, 0], [1.0, 1.0])
    loss, _ = algorithm.objective(LOGITS, 0)
    assert loss.item() == pytest.approx(MEAN_RISK, abs=1e-10)
    algorithm.rng = Injected([1, 0], [1.0, 0.0])  # both pairs then show domain 1 alone
    assert algorithm.objective(LOGITS, 0)[0].item() == pytest.approx(R2, abs=1e-10)


def test_mixup_of_unequal_batches_pairs_the_first_examples():
    algorithm = on_logits("Mixup")
    algorithm.rng = Injected([0, 1], [1.0, 1.0])
    loss, _ = algorithm.objective(Batches.of([(S1, Y1), (S2[:2], Y2[:2])]), 0)
    expected = (F.cross_entropy(S1[:2], Y1[:2]) + F.cross_entropy(S2[:2], Y2[:2])) / 2
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)


OFF = {  # each algorithm with its idea switched off, and how close to ERM it must then stay
    "IRM": ({"irm_lambda": 0.0, "irm_penalty_anneal_iters": 0}, 0.0),
    "GroupDRO": ({"groupdro_eta": 0.0}, 2e-14),
    "CORAL": ({"mmd_gamma": 0.0}, 2e-14),
    "Mixup": ({}, 2e-14),
}


@pytest.mark.parametrize("name", OFF)
def test_switched_off_it_is_erm_and_switched_on_it_is_not(name):
    hparams, tolerance = OFF[name]
    generator = torch.Generator().manual_seed(5)
    steps = [
        Batches(torch.rand(12, 2, 8, 8, dtype=torch.float64, generator=generator), torch.arange(12) % 3, (4, 4, 4))
        for _ in range(5)
    ]

    def trajectory(algorithm):
        for batches in steps:
            algorithm.update(batches)
        return nn.utils.parameters_to_vector(algorithm.parameters())

    erm = trajectory(make("ERM", domains=3))
    off = make(name, domains=3, **hparams)
    if name == "Mixup":
        off.rng = Injected([0, 1, 2], [1.0, 1.0, 1.0])
    assert (trajectory(off) - erm).abs().max().item() <= tolerance
    assert (trajectory(make(name, domains=3)) - erm).abs().max().item() > 1e-6


def test_one_domain_of_all_examples_trains_as_several_parts_do():
    x, y = torch.rand(12, 2, 8, 8, dtype=torch.float64), torch.arange(12) % 3
    whole, parts = make("ERM"), make("ERM")
    whole.update(Batches(x, y, (12,)))
    parts.update(Batches(x, y, (4, 4, 4)))
    for one, two in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["IRM", "CORAL"])
def test_one_example_a_domain_is_refused_where_the_method_is_not_defined(name):
    with pytest.raises(AlgorithmError, match="at least 2 examples"):
        make(name).update([(torch.rand(1, 2, 8, 8, dtype=torch.float64), torch.tensor([1]))] * 2)


@pytest.mark.parametrize("name", sorted(OFF))
def test_one_training_domain_works(name):
    metrics = make(name, domains=1).update([(torch.rand(4, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))])
    assert math.isfinite(metrics["loss"])
