"""StableNet: the dependence it measures, the weights it learns and what it remembers, in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shiftbed.algorithms import Batches
from shiftbed.algorithms.reweighting import dependence_gradient, fourier_features, through_softmax
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def dependence(functions, shares):
    """The squared covariances off the diagonal."""
    centred = functions - (shares[:, None] * functions).sum(0)
    covariance = (centred * shares[:, None]).T @ centred
    return (covariance - covariance.diag().diag()).square().sum()


def test_the_gradient_of_dependence_is_the_one_computed_by_hand():
    # Weighted means 1/4 and 1/2, covariance 1/4·1·2 − 1/4·1/2 = 3/8 =: C, which counts twice: 2C². By the second share
    # C grows with 1·2 − 1·1/2 − 2·1/4 = 1, so that the dependence grows with 4C = 3/2; by the first it does not change.
    first, second = dependence_gradient(tensor([[0.0, 0.0], [1.0, 2.0]]), tensor([0.75, 0.25])).tolist()
    assert second - first == pytest.approx(1.5, abs=1e-15)


def test_the_gradients_are_those_of_automatic_differentiation():
    random = np.random.default_rng(0)
    functions = torch.from_numpy(random.normal(size=(9, 4)))
    logits = torch.from_numpy(random.normal(size=9)).requires_grad_()
    shares = logits.softmax(0)
    numpy_s = np.cov(functions.numpy().T, aweights=shares.detach().numpy(), bias=True)
    assert dependence(functions, shares).item() == pytest.approx((numpy_s**2).sum() - (np.diag(numpy_s) ** 2).sum())
    (expected,) = torch.autograd.grad(dependence(functions, shares), logits)
    shares = shares.detach()
    found = through_softmax(shares, dependence_gradient(functions, shares))
    assert torch.allclose(found, expected, atol=1e-14)


def test_constant_coordinates_depend_on_nothing():
    functions = fourier_features(tensor([[1.0, 2.0, 5.0]] * 4), tensor([0.7]), tensor([[0.1, 0.2, 0.3]]))[0]
    assert dependence_gradient(functions, tensor([0.1, 0.2, 0.3, 0.4])).abs().max() < 1e-14


def test_fourier_features_are_cosine_plus_sine_over_each_example_s_range():
    random = np.random.default_rng(1)
    z, frequencies, phases = random.normal(size=(5, 4)), random.normal(size=3), random.uniform(0, 6, (3, 4))
    found = fourier_features(*map(torch.from_numpy, (z, frequencies, phases))).numpy()
    for k in range(3):
        angle = frequencies[k] * z + phases[k]
        angle = angle - angle.min(1, keepdims=True)
        angle = angle / angle.max(1, keepdims=True) * np.pi / 2
        assert np.allclose(found[k], np.sqrt(2) * (np.cos(angle) + np.sin(angle)), atol=1e-12)


def test_equal_coordinates_give_no_nan():
    assert fourier_features(torch.zeros(2, 3), torch.ones(1), torch.zeros(1, 3)).isfinite().all()


def reference_weights(z, memory, memory_weights, rng, strength):
    """The inner problem with torch's own SGD and a new set of functions at each step."""
    frequencies, phases = rng.standard_normal(20), rng.uniform(0, 2 * math.pi, (20, z.shape[1]))
    w = torch.ones(len(z), dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([w], lr=1.0, momentum=0.9)
    everything = torch.cat([z, memory])
    for k in range(20):
        sgd.param_groups[0]["lr"] = 1.0 if k < 10 else 0.1
        angle = everything * frequencies[k] + torch.from_numpy(phases[k])
        angle = angle - angle.min(1, keepdim=True).values
        angle = angle / angle.max(1, keepdim=True).values * math.pi / 2
        u = math.sqrt(2) * (angle.cos() + angle.sin())
        q = torch.cat([w, memory_weights]).softmax(0)
        sgd.zero_grad()
        (dependence(u, q) / strength + w.softmax(0).square().sum()).backward()
        sgd.step()
    return w.detach()


def test_stablenet_follows_its_loop_step_by_step():
    algorithm, reference = build("StableNet", batch_size=6, stablenet_lambda=0.05), build("ERM")
    memory, memory_weights = torch.zeros(0, 128).double(), torch.zeros(0).double()
    train(algorithm, 3)
    for step in range(3):
        batches = make_batches(step)
        z = reference.featurizer(batches.x)
        w = reference_weights(z.detach(), memory, memory_weights, np.random.default_rng(step), 0.05)
        assert w.std() > 0.01, "the weights differ"
        loss = (w.softmax(0) * F.cross_entropy(reference.classifier(z), batches.y, reduction="none")).sum()
        reference.optimizer.zero_grad()
        loss.backward()
        reference.optimizer.step()
        if step == 0:
            memory, memory_weights = z.detach(), w
        else:
            memory = (memory * step + z.detach()) / (step + 1)
            memory_weights = (memory_weights * step + w) / (step + 1)
    assert torch.allclose(algorithm.memory, memory, atol=1e-9)
    assert torch.allclose(algorithm.memory_weights, memory_weights, atol=1e-9)
    assert largest_difference(algorithm, reference) < 1e-9


def test_the_memory_is_a_mean_for_ten_steps_and_then_moves_by_a_tenth():
    algorithm = build("StableNet", lr=0.0, batch_size=6)
    seen = []
    for step in range(12):
        seen.append(algorithm.featurizer(make_batches(step % 10).x).detach())
        train(algorithm, 1, first=step)
        if step == 9:
            assert torch.allclose(algorithm.memory, torch.stack(seen).mean(0), atol=1e-12)
    expected = 0.9 * (0.9 * torch.stack(seen[:10]).mean(0) + 0.1 * seen[10]) + 0.1 * seen[11]
    assert torch.allclose(algorithm.memory, expected, atol=1e-12)


def test_rows_that_hold_no_example_do_not_count():
    short, long = build("StableNet", batch_size=6, stablenet_lambda=0.05), build("StableNet", stablenet_lambda=0.05)
    assert len(long.memory) == 192
    long.memory.fill_(1e3)
    train(short, 3)
    train(long, 3)
    assert torch.allclose(long.memory[:18], short.memory, atol=1e-12)
    assert (long.memory[18:] == 1e3).all()
    assert largest_difference(short, long) < 1e-9


def test_smaller_steps_change_the_first_rows_alone():
    algorithm = build("StableNet", batch_size=6)
    train(algorithm, 2)
    before = algorithm.memory.clone()
    algorithm.update(make_batches(5, (2, 2, 1)))
    assert torch.equal(algorithm.memory[5:], before[5:]) and not torch.equal(algorithm.memory[:5], before[:5])
    assert algorithm.memory_age.tolist() == [3] * 5 + [2] * 13


def test_more_examples_than_the_memory_has_rows_are_refused():
    with pytest.raises(AlgorithmError, match=r"remembers 18 examples .* this step has 19"):
        build("StableNet", batch_size=6).update(make_batches(0, (6, 6, 7)))


def test_learned_weights_lower_the_dependence():
    algorithm = build("StableNet", batch_size=6, stablenet_lambda=1.0)
    random = np.random.default_rng(0)
    z = torch.from_numpy(random.normal(size=(18, 128)))
    shares = algorithm.learned_weights(z).softmax(0)
    assert shares.sum().item() == pytest.approx(1, abs=1e-12)
    frequencies, phases = random.normal(size=50), random.uniform(0, 2 * math.pi, (50, 128))
    functions = fourier_features(z, *map(torch.from_numpy, (frequencies, phases)))
    learned, equal = (sum(dependence(u, q) for u in functions) for q in (shares, torch.full((18,), 1 / 18).double()))
    assert learned < equal


def test_stablenet_switched_off_is_erm_and_switched_on_it_is_not():
    assert_same_as_erm(build("StableNet", stablenet_lambda=1e15))
    stablenet, erm = build("StableNet"), build("ERM")
    train(stablenet, 3)
    train(erm, 3)
    assert largest_difference(stablenet, erm) > 1e-6


def test_unequal_single_and_one_sided_batches_train():
    for batches in (make_batches(0, (1, 7, 3)), make_batches(0, (1,))):
        one_class = Batches(batches.x, torch.zeros_like(batches.y), batches.sizes)
        for given_batches in (batches, one_class):
            assert math.isfinite(build("StableNet", domains=len(batches)).update(given_batches)["loss"])
