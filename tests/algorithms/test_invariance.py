"""IRM and VREx: what the golden tests of both do not say."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from shiftbed.algorithms import Batches
from shiftbed.algorithms.invariance import means_of_halves, scale_gradients
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train
from tests.algorithms.test_golden import LOGITS, MEAN_RISK, R1, R2, S1, S2, Y1, Y2, on_logits

SIZES = st.lists(st.integers(2, 7), min_size=1, max_size=4)


@given(
    SIZES | st.tuples(st.integers(2, 9), st.integers(1, 4)).map(lambda pair: [pair[0]] * pair[1]), st.integers(0, 99)
)
def test_irm_s_halves_are_the_even_and_the_odd_examples_of_each_domain(sizes, seed):
    values = torch.randn(sum(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = []
    for part in values.split(sizes):
        even, odd = part.tolist()[::2], part.tolist()[1::2]
        expected.append([sum(even) / len(even), sum(odd) / len(odd)])
    found = means_of_halves(values, Batches(values, values, sizes))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-14)


def test_irm_s_penalty_is_in_full_precision_under_autocast():
    logits = 3 * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) % 5
    with torch.autocast("cpu", torch.bfloat16):
        found = scale_gradients(logits.bfloat16(), y)
    assert found.dtype == torch.float32
    expected = scale_gradients(logits.bfloat16().double(), y)
    assert torch.allclose(found.double(), expected, atol=1e-5)


def test_vrex_s_loss_before_and_after_annealing_is_the_golden_one():
    algorithm = on_logits("VREx", vrex_lambda=7.0, vrex_penalty_anneal_iters=3)
    before, metrics = algorithm.objective(LOGITS, 2)
    after, _ = algorithm.objective(LOGITS, 3)
    assert metrics["penalty"].item() == pytest.approx(0.00112268117, abs=1e-11)
    assert before.item() == pytest.approx(MEAN_RISK + 0.00112268117, abs=1e-9)
    assert after.item() == pytest.approx(MEAN_RISK + 7 * 0.00112268117, abs=1e-9)


def test_vrex_s_gradient_for_two_domains():
    s1, s2 = S1.clone().requires_grad_(), S2.clone().requires_grad_()
    _, metrics = on_logits("VREx").objective(Batches.of([(s1, Y1), (s2, Y2)]), 0)
    found = torch.autograd.grad(metrics["penalty"], (s1, s2))
    for logits, y, part, sign in ((s1, Y1, found[0], 1), (s2, Y2, found[1], -1)):
        (of_risk,) = torch.autograd.grad(F.cross_entropy(logits, y), logits)
        assert torch.allclose(part, sign * (R1 - R2) / 2 * of_risk, atol=1e-10)


def test_vrex_of_equal_risks_is_erm():
    logits = Batches.of([(S1.clone().requires_grad_(), Y1), (S1, Y1)])
    loss, metrics = on_logits("VREx").objective(logits, 0)
    assert metrics["penalty"].item() == 0
    assert loss.item() == pytest.approx(R1, abs=1e-10)


def test_vrex_weighs_domains_equally_whatever_their_size():
    batches = Batches.of([(S1, Y1), (S2[:1], Y2[:1])])
    loss, metrics = on_logits("VREx").objective(batches, 0)
    second = F.cross_entropy(S2[:1], Y2[:1]).item()
    assert metrics["penalty"].item() == pytest.approx((R1 - second) ** 2 / 4, abs=1e-9)
    assert loss.item() == pytest.approx((R1 + second) / 2 + (R1 - second) ** 2 / 4, abs=1e-9)


@settings(max_examples=20)
@given(st.permutations(range(4)))
def test_vrex_does_not_mind_the_order_of_domains(order):
    parts = [(S1, Y1), (S2, Y2), (S1[:3], Y1[:3]), (S2[1:], Y2[1:])]
    algorithm = on_logits("VREx")
    one = algorithm.objective(Batches.of(parts), 0)[0]
    other = algorithm.objective(Batches.of([parts[i] for i in order]), 0)[0]
    assert one.item() == pytest.approx(other.item(), rel=1e-13)


def test_vrex_restarts_its_optimizer_at_the_annealing_step():
    algorithm = build("VREx", vrex_penalty_anneal_iters=2)
    counts = []
    for step in range(4):
        train(algorithm, 1, first=step)
        counts.append(next(iter(algorithm.optimizer.state.values()))["step"].item())
    assert counts == [1, 2, 1, 2]


def test_vrex_without_its_weight_is_erm_to_the_bit_and_with_it_is_not():
    assert_same_as_erm(build("VREx", vrex_lambda=0.0, vrex_penalty_anneal_iters=0), atol=1e-15)
    erm, vrex = build("ERM"), build("VREx")
    train(erm, 5)
    train(vrex, 5)
    assert largest_difference(erm, vrex) > 1e-7


def test_vrex_of_one_domain_is_erm():
    erm, vrex = build("ERM", 1), build("VREx", 1)
    for algorithm in (erm, vrex):
        algorithm.update(make_batches(0, (6,)))
    assert largest_difference(erm, vrex) < 1e-12
