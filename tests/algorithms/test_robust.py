"""EQRM against an independent root finder; GroupDRO's golden values are elsewhere."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from shiftbed.algorithms import Batches
from shiftbed.algorithms.robust import density_quantile
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, train
from tests.algorithms.test_golden import LOGITS, S1, S2, Y1, Y2, on_logits

RISKS = [0.3, 0.5, 1.1, 0.9]


def quantile_by_root_finding(risks, alpha: float) -> float:
    risks = np.asarray(risks)
    bandwidth = 1.06 * risks.std(ddof=1) * len(risks) ** -0.2
    ends = risks.min() - 9 * bandwidth, risks.max() + 9 * bandwidth
    return brentq(lambda q: norm.cdf(q, risks, bandwidth).mean() - alpha, *ends, xtol=1e-14, rtol=1e-14)


def quantile_and_gradient(risks, alpha: float, dtype=torch.float64):
    values = torch.tensor(risks, dtype=dtype, requires_grad=True)
    found = density_quantile(values, alpha)
    return found.item(), torch.autograd.grad(found, values)[0]


def test_eqrm_s_quantiles_are_the_golden_ones():
    assert quantile_and_gradient(RISKS, 0.75)[0] == pytest.approx(1.01790505, abs=1e-8)
    assert quantile_and_gradient(RISKS, 0.9)[0] == pytest.approx(1.26425957, abs=1e-8)
    loss, _ = on_logits("EQRM", eqrm_burnin_iters=0.0).objective(LOGITS, 0)
    assert loss.item() == pytest.approx(0.59445830, abs=1e-8)


def test_eqrm_s_gradient_is_that_of_the_quantile():
    _, gradient = quantile_and_gradient(RISKS, 0.75)
    assert gradient.tolist() == pytest.approx([-0.058, 0.057, 0.530, 0.471], abs=5e-4)
    for i, found in enumerate(gradient.tolist()):
        up, down = (np.array(RISKS) + sign * 1e-5 * np.eye(4)[i] for sign in (1, -1))
        slope = (quantile_by_root_finding(up, 0.75) - quantile_by_root_finding(down, 0.75)) / 2e-5
        assert found == pytest.approx(slope, abs=1e-7)


@given(st.lists(st.floats(0, 5), min_size=2, max_size=8, unique=True), st.floats(0.02, 0.98))
def test_eqrm_s_quantile_solves_its_equation_and_moves_with_the_risks(risks, alpha):
    if np.std(risks) < 1e-3:
        return
    found, gradient = quantile_and_gradient(risks, alpha)
    assert found == pytest.approx(quantile_by_root_finding(risks, alpha), abs=1e-8)
    assert gradient.sum().item() == pytest.approx(1, abs=1e-9)
    single, gradient = quantile_and_gradient(risks, alpha, torch.float32)
    assert single == pytest.approx(found, abs=1e-4)
    assert gradient.sum().item() == pytest.approx(1, abs=1e-4)


def test_eqrm_s_median_of_two_domains_is_their_mean():
    found, gradient = quantile_and_gradient([0.2, 0.8], 0.5)
    assert found == pytest.approx(0.5, abs=1e-12)
    assert gradient.tolist() == pytest.approx([0.5, 0.5], abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("risk", [0.0, 0.7, 123.4])
def test_equal_risks_have_a_quantile_and_a_gradient(dtype, risk):
    found, gradient = quantile_and_gradient([risk] * 3, 0.75, dtype)
    assert found == pytest.approx(risk, rel=1e-6, abs=1e-6)
    assert gradient.tolist() == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_eqrm_is_erm_during_its_burn_in_and_not_after_it():
    assert_same_as_erm(build("EQRM"), atol=1e-9)
    erm, eqrm = build("ERM"), build("EQRM", eqrm_burnin_iters=0.0, eqrm_lr=1e-3)
    train(erm, 5)
    train(eqrm, 5)
    assert largest_difference(erm, eqrm) > 1e-4


def test_eqrm_s_drawn_burn_in_ends_and_its_second_phase_has_its_own_learning_rate():
    algorithm = build("EQRM", eqrm_burnin_iters=1.6)  # a draw is a real number
    seen = []
    for step in range(4):
        train(algorithm, 1, first=step)
        count = next(iter(algorithm.optimizer.state.values()))["step"].item()
        seen.append((count, algorithm.optimizer.param_groups[0]["lr"]))
    assert seen == [(1, 1e-3), (2, 1e-3), (1, 1e-6), (2, 1e-6)]


def test_eqrm_saved_in_its_second_phase_goes_on_in_it():
    algorithm = build("EQRM", eqrm_burnin_iters=1.6)
    train(algorithm, 3)
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    other = build("EQRM", seed=5, eqrm_burnin_iters=1.6)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    train(algorithm, 2, first=3)
    train(other, 2, first=3)
    assert other.optimizer.param_groups[0]["lr"] == 1e-6
    assert largest_difference(algorithm, other) == 0


def test_eqrm_refuses_one_domain_and_an_impossible_quantile():
    with pytest.raises(AlgorithmError, match="EQRM needs two or more training domains"):
        build("EQRM", 1)
    with pytest.raises(AlgorithmError, match=r"eqrm_quantile is 1\.0; set a number above 0 and below 1"):
        build("EQRM", eqrm_quantile=1.0)


@pytest.mark.parametrize("name", ["GroupDRO", "EQRM"])
def test_losses_are_in_full_precision_under_autocast(name):
    algorithm = on_logits(name, **({"eqrm_burnin_iters": 0.0} if name == "EQRM" else {})).float()
    batches = Batches.of([(S1.float(), Y1), (S2.float(), Y2)])
    with torch.autocast("cpu", torch.bfloat16):
        found = algorithm.objective(batches, 0)[0]
    expected = algorithm.objective(batches, 0)[0]
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
