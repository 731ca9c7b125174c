"""TRM against explicit Hessians, torch's optimizers, and the derivative of the two-level problem it stands for."""

import io
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn

from shiftbed.algorithms import Batches, transfer_risk
from shiftbed.algorithms.transfer_risk import fitted, inverse_hessian_product, logits_of
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train
from tests.algorithms.test_conformance import HostReads

# In every domain the corners of a triangle have both labels: no head is perfect, and the best one is well determined.
SIZES = (7, 8, 9)
NOISE = 0.3 * torch.randn(24, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
CORNERS = torch.tensor([[1.5, 0.0], [-0.8, 1.3], [-0.8, -1.3]], dtype=torch.float64)
Z = torch.cat([torch.cat([CORNERS + part[:3], CORNERS + part[:3], 4 * part[6:]]) for part in NOISE.split(SIZES)])
Y = torch.cat([torch.tensor([0, 0, 0, 1, 1, 1, *[0, 1, 1][: size - 6]]) for size in SIZES])
WITH_ONE = F.pad(Z, (0, 1), value=1.0)
BATCHES = Batches(Z, Y, SIZES)
TARGETS = F.one_hot(Y)[:, None].double()
SHARES = torch.block_diag(*[torch.ones(size, 1).double() / size for size in SIZES])[:, :, None]


def some_heads(scale=0.5):
    return scale * torch.randn(3, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def risk(head, z, y):
    return F.cross_entropy(z @ head.T, y)


def on_features(**hparams):
    """TRM whose inputs are the features: 3 domains, 2 classes, 2 coordinates."""
    algorithm = build("TRM", iters=0, **hparams)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 2).double()
    algorithm.heads = torch.zeros(3, 2, 3, dtype=torch.float64)
    return algorithm


def test_heads_are_fitted_as_by_torch_s_sgd():
    found = fitted(some_heads(), WITH_ONE, TARGETS, SHARES)
    for head, result, z, y in zip(some_heads(), found, Z.split(SIZES), Y.split(SIZES), strict=True):
        layer = nn.Linear(2, 2).double()
        layer.weight.data, layer.bias.data = head[:, :2].clone(), head[:, 2].clone()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(layer(z), y).backward()
            optimizer.step()
        assert torch.allclose(result, torch.cat([layer.weight, layer.bias[:, None]], 1), atol=1e-12)


def series(hessian, v):
    """The sum of eleven terms, ended by the first that takes an entry above 10."""
    total = v
    for _ in range(10):
        v = v - hessian @ v
        total = total + v
        if total.abs().max() > 10:
            break
    return total


@pytest.mark.parametrize("scale", [1.0, 4.0])  # converging, and ended in the first, second or third term
def test_the_inverse_hessian_is_the_series_of_the_explicit_one(scale):
    z, heads, v = scale * WITH_ONE, some_heads(), some_heads(1.5)
    found = inverse_hessian_product(v, logits_of(heads, z).softmax(2), z, SHARES)
    for number, (own, labels) in enumerate(zip(z.split(SIZES), Y.split(SIZES), strict=True)):

        def loss(head, own=own, labels=labels):
            return risk(head.view(2, 3), own, labels)

        hessian = torch.autograd.functional.hessian(loss, heads[number].flatten())
        expected = series(hessian, v[number].flatten())
        assert torch.allclose(found[number].flatten(), expected, rtol=1e-10, atol=1e-10)


def test_diverging_series_end():
    z, v = 100 * WITH_ONE, some_heads(1.0)
    found = inverse_hessian_product(v, logits_of(0 * v, z).softmax(2), z, SHARES)
    assert torch.isfinite(found).all() and found.abs().max() > 10


def best_head(z, y):
    """The head of least risk, by another optimizer; of all equivalent ones that whose rows sum to zero."""

    def loss(values):
        head = torch.tensor(values.reshape(2, 3), requires_grad=True)
        value = risk(head, z, y)
        value.backward()
        return value.item(), head.grad.numpy().ravel()

    return torch.tensor(minimize(loss, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-11}).x.reshape(2, 3))


def transfer(z, alpha):
    """The weighted risks on other domains of the heads that are best for each: what TRM minimises."""
    parts, labels = F.pad(z, (0, 1), value=1.0).split(SIZES), Y.split(SIZES)
    heads = [best_head(part, y) for part, y in zip(parts, labels, strict=True)]
    risks = [[risk(head, part, y) for part, y in zip(parts, labels, strict=True)] for head in heads]
    return sum(alpha[q][p] * risks[q][p].item() for q in range(3) for p in range(3)) / 3


def test_the_gradient_is_that_of_the_risk_of_fitted_heads(monkeypatch):
    monkeypatch.setattr(transfer_risk, "FIT_STEPS", 1000)
    monkeypatch.setattr(transfer_risk, "FIT_RATE", 0.5)
    monkeypatch.setattr(transfer_risk, "SERIES_TERMS", 500)
    monkeypatch.setattr(transfer_risk, "SERIES_LIMIT", math.inf)
    algorithm = on_features(cos_lambda=1.0)
    algorithm.alpha = torch.tensor([[0, 0.3, 0.7], [0.6, 0, 0.4], [0.5, 0.5, 0]], dtype=torch.float64)
    z = Z.clone().requires_grad_()
    found = algorithm.objective(Batches(z, Y, SIZES), 0)[1]["transfer"]
    (gradient,) = torch.autograd.grad(found, z)
    for place in ((0, 1), (14, 0), (21, 1)):
        change = torch.zeros_like(Z)
        change[place] = 1e-4
        ends = [transfer(Z + sign * change, algorithm.alpha.tolist()) for sign in (1, -1)]
        assert gradient[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-4, abs=1e-7)


def test_the_loss_is_the_mean_risk_plus_the_mean_of_the_heads_risks_elsewhere():
    algorithm = on_features(cos_lambda=0.0)
    heads = fitted(algorithm.heads, WITH_ONE, TARGETS, SHARES)
    parts, labels = WITH_ONE.split(SIZES), Y.split(SIZES)
    risks = [risk(heads[q], parts[p], labels[p]).item() for q in range(3) for p in range(3) if p != q]
    loss, metrics = algorithm.objective(BATCHES, 0)
    assert metrics["transfer"].item() == pytest.approx(sum(risks) / 2 / 3, rel=1e-12)  # α is 1/2 at first
    pooled = F.cross_entropy(algorithm.classifier(Z), Y).item()
    assert loss.item() == pytest.approx(pooled + sum(risks) / 6, rel=1e-12)


def test_weights_follow_the_risks_of_the_fitted_heads():
    algorithm = on_features(groupdro_eta=0.5)
    algorithm.alpha = torch.tensor([[0, 0.3, 0.7], [0.6, 0, 0.4], [0.5, 0.5, 0]], dtype=torch.float64)
    _, metrics = algorithm.objective(BATCHES, 0)
    parts, labels = WITH_ONE.split(SIZES), Y.split(SIZES)
    for q, others in ((0, (1, 2)), (1, (0, 2)), (2, (0, 1))):
        values = [risk(metrics["heads"][q], parts[p], labels[p]).item() for p in others]
        growth = [math.log(metrics["alpha"][q, p] / algorithm.alpha[q, p]) for p in others]
        assert growth[0] - growth[1] == pytest.approx(0.5 * (values[0] - values[1]), abs=1e-12)
        assert metrics["alpha"][q, q] == 0
    assert metrics["alpha"].sum(1).tolist() == pytest.approx([1, 1, 1], abs=1e-12)


def test_weights_survive_huge_risks():
    algorithm = on_features(groupdro_eta=0.1)
    _, metrics = algorithm.objective(Batches(1e6 * Z, Y, SIZES), 0)
    assert torch.isfinite(metrics["alpha"]).all() and torch.isfinite(metrics["transfer"])


def test_before_its_start_trm_is_erm_and_then_it_is_not():
    assert_same_as_erm(build("TRM", iters=5), atol=1e-12)
    erm, trm = build("ERM"), build("TRM", iters=2)
    train(erm, 5)
    train(trm, 5)
    assert largest_difference(erm, trm) > 1e-6
    assert not torch.equal(trm.heads, build("TRM").heads)


def test_heads_and_weights_are_saved_with_the_rest():
    algorithm = build("TRM", iters=1, dtype=torch.float32)
    train(algorithm, 4, dtype=torch.float32)
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    other = build("TRM", iters=1, seed=7, dtype=torch.float32)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    one, two = (train(made, 2, first=4, dtype=torch.float32)[-1] for made in (algorithm, other))
    assert all(torch.equal(one[key], two[key]) for key in ("loss", "transfer"))
    assert torch.equal(algorithm.heads, other.heads) and torch.equal(algorithm.alpha, other.alpha)


def test_no_step_waits_for_the_device_once_heads_are_fitted():
    algorithm, reads = build("TRM", iters=0), HostReads()
    with reads:
        algorithm.objective(make_batches(0, (4, 6, 5)), 0)
    assert reads.count == 0


def test_heads_are_in_full_precision_under_autocast():
    algorithm = build("TRM", iters=0, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        _, metrics = algorithm.objective(make_batches(0, dtype=torch.float32), 0)
    assert metrics["heads"].dtype == metrics["transfer"].dtype == torch.float32
