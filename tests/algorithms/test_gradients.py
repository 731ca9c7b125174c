"""ANDMask, IGA, MLDG and Fishr against hand-made numbers and slow, independent versions of themselves."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shiftbed.algorithms import Batches
from shiftbed.algorithms.gradients import agreed_gradient, head_gradient_variances
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train
from tests.algorithms.test_golden import Y1, Y2, Z1, Z2

FEATURES = Batches.of([(Z1, Y1), (Z2, Y2)])


def with_network(name: str, *layers: nn.Module, domains: int = 2, **hparams):
    """An algorithm whose featurizer is all layers but the last."""
    algorithm = build(name, domains, **hparams)
    algorithm.network = nn.Sequential(nn.Sequential(*layers[:-1]), layers[-1]).double()
    algorithm.featurizer, algorithm.classifier = algorithm.network
    algorithm.optimizer = algorithm.make_optimizer()
    return algorithm


def on_features(name: str, **hparams):
    """An algorithm on the features themselves, with the linear head of the golden values."""
    algorithm = with_network(name, nn.Linear(2, 3), **hparams)
    with torch.no_grad():
        weight = torch.tensor([[0.5, -0.2], [0.0, 0.3], [-0.4, 0.1]], dtype=torch.float64)
        algorithm.classifier.weight.copy_(weight)
        algorithm.classifier.bias.copy_(torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64))
    return algorithm


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def differs_from_erm(name: str, **hparams) -> bool:
    erm, other = build("ERM"), build(name, **hparams)
    train(erm, 5)
    train(other, 5)
    return largest_difference(erm, other) > 1e-6


# ANDMask


def test_andmask_s_gradient_is_the_golden_one():
    gradients = torch.tensor([[1.0, -1, 2, 0], [1, 1, 4, 1]], dtype=torch.float64)
    assert agreed_gradient(gradients, 1.0).tolist() == pytest.approx([2, 0, 6, 0], abs=1e-8)


def test_andmask_s_threshold_counts_domains():
    gradients = torch.tensor([[1.0, 1, 1, 1], [1, 1, -1, 0], [1, -1, -1, 0]], dtype=torch.float64)
    agreeing = [(agreed_gradient(gradients, tau) != 0).tolist() for tau in (1 / 3, 0.5, 1.0)]
    assert agreeing == [[True, True, True, True], [True, False, False, False], [True, False, False, False]]


@given(st.integers(1, 60))
def test_andmask_finds_agreement_of_any_number_of_domains(domains):
    assert torch.all(agreed_gradient(torch.full((domains, 3), 0.3), 1.0) > 0)


def test_andmask_moves_nothing_where_gradients_are_opposite():
    algorithm = with_network("ANDMask", nn.Linear(2, 3))
    nn.init.zeros_(algorithm.classifier.weight), nn.init.zeros_(algorithm.classifier.bias)
    algorithm.optimizer = torch.optim.SGD(algorithm.parameters(), lr=1.0)
    y = torch.tensor([0, 1])
    # With zero weights p is uniform: inputs of opposite sign have opposite gradients of the weights.
    algorithm.update([(torch.eye(2, dtype=torch.float64), y), (-torch.eye(2, dtype=torch.float64), y)])
    assert algorithm.classifier.weight.abs().max().item() == 0
    assert algorithm.classifier.bias.tolist() == pytest.approx([1 / 6, 1 / 6, -1 / 3], abs=1e-9)


def test_andmask_without_its_threshold_is_erm_and_with_it_is_not():
    assert_same_as_erm(build("ANDMask", tau=0.0))
    assert differs_from_erm("ANDMask")


# IGA


def test_iga_s_penalty_and_its_gradient_by_finite_differences():
    algorithm = on_features("IGA", penalty=3.0)

    def by_hand():
        gradients = []
        for x, y in FEATURES:
            p = algorithm.network(x).softmax(1) - F.one_hot(y, 3)
            gradients.append(torch.cat([(p.T @ x / len(x)).flatten(), p.mean(0)]))
        mean = (gradients[0] + gradients[1]) / 2
        risk = sum(F.cross_entropy(algorithm.network(x), y) for x, y in FEATURES) / 2
        return risk + 3 * sum((g - mean).square().sum() for g in gradients)

    loss, _ = algorithm.objective(FEATURES, 0)
    loss.backward()
    assert loss.item() == pytest.approx(by_hand().item(), rel=1e-12)
    weight = algorithm.classifier.weight
    with torch.no_grad():
        for i in range(3):
            for j in range(2):
                ends = []
                for change in (1e-5, -2e-5):
                    weight[i, j] += change
                    ends.append(by_hand().item())
                weight[i, j] += 1e-5
                assert weight.grad[i, j].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_iga_of_identical_domains_and_of_one_domain_has_no_penalty():
    algorithm = build("IGA")
    assert algorithm.objective(make_batches(0, same=True), 0)[1]["penalty"].item() < 1e-28
    assert build("IGA", 1).objective(make_batches(0, (6,)), 0)[1]["penalty"].item() == 0


def test_iga_without_its_penalty_is_erm_and_with_it_is_not():
    assert_same_as_erm(build("IGA", penalty=0.0))
    assert differs_from_erm("IGA")


def test_iga_works_in_full_precision_under_autocast():
    algorithm = build("IGA", dtype=torch.float32)
    batches = make_batches(0, dtype=torch.float32)
    expected = algorithm.objective(batches, 0)[1]["penalty"]
    with torch.autocast("cpu", torch.bfloat16):
        found = algorithm.objective(batches, 0)[1]["penalty"]
    assert found.item() == expected.item()


def test_iga_has_second_derivatives_of_attention():
    class Attention(nn.Module):
        def forward(self, x):
            q = x.unflatten(1, (1, 2, -1)).float()
            return F.scaled_dot_product_attention(q, q, q).flatten(1).double()

    algorithm = with_network("IGA", nn.Linear(2, 8), Attention(), nn.Linear(8, 3))
    assert torch.isfinite(algorithm.update(FEATURES)["loss"])


@pytest.mark.parametrize("name", ["ANDMask", "IGA", "MLDG", "Fishr"])
def test_frozen_and_unused_parameters_are_left_alone(name):
    class Wasteful(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.unused = nn.Parameter(torch.ones(3))

    algorithm = with_network(name, nn.Linear(2, 4), Wasteful(4, 5), nn.Linear(5, 3), n_meta_test=1)
    if name == "Fishr":
        algorithm.variances = torch.zeros(2, 18, dtype=torch.float64)
    frozen = algorithm.featurizer[0].requires_grad_(False)
    before, head = frozen.weight.clone(), algorithm.classifier.weight.clone()
    algorithm.update(FEATURES)
    assert torch.equal(frozen.weight, before) and frozen.weight.grad is None
    assert not torch.equal(algorithm.classifier.weight, head)


# MLDG


def mldg_by_copies(network, optimizer, minibatches, order, held_out, beta, lr, weight_decay):
    """A step with deep copies and torch's own Adam."""
    gradients = [torch.zeros_like(parameter) for parameter in network.parameters()]
    loss = 0.0
    for number, i in enumerate(order[:-held_out]):
        j = order[-held_out:][number % held_out]
        inner = copy.deepcopy(network)
        adam = torch.optim.Adam(inner.parameters(), lr=lr, weight_decay=weight_decay)
        first = F.cross_entropy(inner(minibatches[i][0]), minibatches[i][1])
        adam.zero_grad()
        first.backward()
        for total, parameter in zip(gradients, inner.parameters(), strict=True):
            total += parameter.grad / len(minibatches)
        adam.step()
        second = F.cross_entropy(inner(minibatches[j][0]), minibatches[j][1])
        for total, part in zip(gradients, torch.autograd.grad(second, list(inner.parameters())), strict=True):
            total += beta * part / len(minibatches)
        loss += (first + beta * second).item() / len(minibatches)
    for parameter, total in zip(network.parameters(), gradients, strict=True):
        parameter.grad = total
    optimizer.step()
    return loss


@pytest.mark.parametrize(("domains", "n_meta_test", "held_out"), [(4, 1, 1), (4, 2, 2), (3, 2, 2), (2, 2, 1)])
def test_mldg_steps_as_with_copies_of_the_network(domains, n_meta_test, held_out):
    settings = {"lr": 3e-3, "weight_decay": 0.1}
    algorithm = build("MLDG", domains, n_meta_test=n_meta_test, mldg_beta=0.7, **settings)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), **settings)
    for step in range(3):
        batches = make_batches(step, (5, 6, 4, 6)[:domains])
        algorithm.rng = np.random.default_rng(step)
        found = algorithm.update(batches)["loss"].item()
        order = np.random.default_rng(step).permutation(domains).tolist()
        expected = mldg_by_copies(network, optimizer, list(batches), order, held_out, 0.7, **settings)
        assert found == pytest.approx(expected, rel=1e-9)
    assert torch.allclose(flat(algorithm.network.parameters()), flat(network.parameters()), atol=1e-8)


def test_mldg_without_its_meta_test_is_a_step_on_the_meta_training_domains():
    algorithm = build("MLDG", 3, mldg_beta=0.0, n_meta_test=1)
    algorithm.optimizer = torch.optim.SGD(algorithm.parameters(), lr=0.1)
    before = copy.deepcopy(algorithm.network)
    batches = list(make_batches(0))
    algorithm.update(batches)
    trained = np.random.default_rng(0).permutation(3)[:2]
    loss = sum(F.cross_entropy(before(batches[i][0]), batches[i][1]) for i in trained)
    expected = flat(before.parameters()) - 0.1 / 3 * flat(torch.autograd.grad(loss, list(before.parameters())))
    assert torch.allclose(flat(algorithm.network.parameters()), expected, atol=1e-12)
    assert differs_from_erm("MLDG")


def test_mldg_updates_the_statistics_of_batch_norm():
    algorithm = with_network("MLDG", nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    algorithm.train().update(FEATURES)
    norm = algorithm.featurizer[1]
    assert norm.num_batches_tracked.item() == 2, "once for either domain of the pair"
    assert norm.running_mean.abs().min() > 0


def test_mldg_refuses_one_domain():
    with pytest.raises(AlgorithmError, match="MLDG needs two or more training domains"):
        build("MLDG", 1)


# Fishr


def variances_by_loop(head, batches):
    rows = []
    for x, y in batches:
        losses = [F.cross_entropy(head(x[i : i + 1]), y[i : i + 1]) for i in range(len(y))]
        gradients = [torch.autograd.grad(loss, list(head.parameters()), create_graph=True) for loss in losses]
        rows.append(torch.stack([flat(one) for one in gradients]).var(0, correction=0))
    return torch.stack(rows)


def sorted_rows(values):
    return values.sort(1).values  # the order of coordinates is nobody's business


@settings(max_examples=20)
@given(st.sampled_from([(4, 4), (3, 5), (1, 6), (2, 2, 2)]), st.booleans(), st.integers(0, 99))
def test_fishr_s_variances_are_those_of_single_gradients(sizes, nonlinear, seed):
    torch.manual_seed(seed)
    layers = (nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)) if nonlinear else ()
    head = (nn.Sequential(*layers) if nonlinear else nn.Linear(5, 3)).double()
    z = torch.randn(sum(sizes), 5, dtype=torch.float64)
    batches = Batches(z, torch.arange(sum(sizes)) % 3, sizes)
    found = head_gradient_variances(head, z, head(z), batches)
    assert torch.allclose(sorted_rows(found), sorted_rows(variances_by_loop(head, batches)), atol=1e-13)


@pytest.mark.parametrize("nonlinear", [False, True])
def test_fishr_s_penalty_lets_the_gradient_through_features_and_head(nonlinear):
    torch.manual_seed(0)
    head = (nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)) if nonlinear else nn.Linear(2, 3)).double()
    z = torch.cat([Z1, Z2]).requires_grad_()
    batches = Batches(z, FEATURES.y, (4, 4))
    inputs = (z, *head.parameters())
    found, expected = (
        torch.autograd.grad(variances.var(0, correction=0).sum(), inputs)
        for variances in (head_gradient_variances(head, z, head(z), batches), variances_by_loop(head, batches))
    )
    for one, other in zip(found, expected, strict=True):
        assert one.abs().max() > 1e-4
        assert torch.allclose(one, other, atol=1e-12)


def test_fishr_s_loss_is_differentiated_through_its_features():
    algorithm = on_features("Fishr", penalty_anneal_iters=0)
    algorithm.variances = torch.zeros(2, 9, dtype=torch.float64)
    z = FEATURES.x.clone().requires_grad_()
    penalty = algorithm.objective(Batches(z, FEATURES.y, (4, 4)), 0)[1]["penalty"]
    by_loop = variances_by_loop(algorithm.classifier, Batches(z, FEATURES.y, (4, 4))).var(0, correction=0).mean()
    found, expected = (torch.autograd.grad(value, z)[0] for value in (penalty, by_loop))
    assert torch.allclose(found, expected, atol=1e-12)


def test_fishr_s_penalty_is_the_golden_one_at_the_first_and_the_second_step():
    algorithm = on_features("Fishr", ema=0.95, penalty_anneal_iters=1, **{"lambda": 10.0})
    algorithm.variances = torch.zeros(2, 9, dtype=torch.float64)
    loss, metrics = algorithm.objective(FEATURES, 0)
    assert metrics["penalty"].item() == pytest.approx(2.03679531, abs=1e-8)
    assert loss.item() == pytest.approx(F.cross_entropy(algorithm.predict(FEATURES.x), FEATURES.y).item(), abs=1e-12)
    algorithm.variances.copy_(metrics["variances"].detach())
    again, metrics = algorithm.objective(FEATURES, 1)
    assert metrics["penalty"].item() == pytest.approx(7.74491419, abs=1e-8)
    assert (again - loss).item() == pytest.approx(77.4491419, abs=1e-7)


def test_fishr_s_first_penalty_does_not_depend_on_the_average():
    for ema in (0.0, 0.5, 0.99):
        algorithm = on_features("Fishr", ema=ema)
        algorithm.variances = torch.zeros(2, 9, dtype=torch.float64)
        assert algorithm.objective(FEATURES, 0)[1]["penalty"].item() == pytest.approx(2.03679531, abs=1e-8)


def test_fishr_averages_from_the_first_step_and_restarts_its_optimizer_once():
    algorithm = build("Fishr", penalty_anneal_iters=2)
    counts = []
    for step in range(4):
        before = algorithm.variances.clone()
        train(algorithm, 1, first=step)
        assert not torch.equal(before, algorithm.variances)
        counts.append(next(iter(algorithm.optimizer.state.values()))["step"].item())
    assert counts == [1, 2, 1, 2]
    assert build("Fishr", penalty_anneal_iters=0).restart_step is None


def test_fishr_of_identical_domains_has_no_penalty():
    assert build("Fishr").objective(make_batches(0, same=True), 0)[1]["penalty"].item() < 1e-30


def test_fishr_is_erm_before_annealing_and_without_its_weight_and_else_is_not():
    assert_same_as_erm(build("Fishr"))
    assert_same_as_erm(build("Fishr", penalty_anneal_iters=0, **{"lambda": 0.0}))
    assert differs_from_erm("Fishr", penalty_anneal_iters=0)


def test_fishr_works_with_a_nonlinear_head():
    metrics = train(build("Fishr", nonlinear_classifier=True, penalty_anneal_iters=0), 2)
    assert math.isfinite(metrics[-1]["loss"]) and metrics[-1]["penalty"] > 0


def test_fishr_refuses_an_average_without_end():
    with pytest.raises(AlgorithmError, match=r"ema is 1\.0; set a number below 1"):
        build("Fishr", ema=1.0)


class LargestTensor(TorchDispatchMode):
    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.entries = max(self.entries, result.numel())
        return result


def test_fishr_never_forms_the_gradients_of_single_examples():
    n, c, d = 64, 7, 33
    head = nn.Linear(d, c)
    z = torch.randn(n, d, requires_grad=True)
    batches = Batches(z, torch.arange(n) % c, (n // 2, n // 2))
    with LargestTensor() as largest:
        head_gradient_variances(head, z, head(z), batches).square().sum().backward()
    assert largest.entries <= n * (d + 1), "no N × C × d tensor"
