"""ERMPlusPlus against its recipe written down as a plain loop."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Algorithm
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train
from tests.algorithms.test_tuning import Normed, around

EARLY = {"linear_steps": 3, "eoa_start": 5, "linear_lr": 1e-2}


def by_hand(network, steps, weight_decay=0.01):
    """Three steps of the classifier, then all; the mean of the weights after 5, 6, … steps."""
    network.requires_grad_(True)
    start = torch.optim.Adam(network[1].parameters(), lr=1e-2, weight_decay=weight_decay)
    rest = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=weight_decay)
    seen = []
    for step in range(steps):
        batches, optimizer = make_batches(step), start if step < 3 else rest
        optimizer.zero_grad()
        F.cross_entropy(network(batches.x), batches.y).backward()
        optimizer.step()
        seen.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
    mean = torch.stack(seen[4:]).mean(0) if steps > 5 else seen[-1]
    nn.utils.vector_to_parameters(mean, network.parameters())
    return network


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 6, 9])
def test_it_predicts_as_the_loop_written_by_hand(steps):
    algorithm = build("ERMPlusPlus", weight_decay=0.01, **EARLY)
    expected = by_hand(copy.deepcopy(algorithm.inner.network), steps)
    train(algorithm, steps)
    x = make_batches(99).x
    assert torch.allclose(algorithm.predict(x), expected(x), atol=1e-10)


def test_only_the_classifier_learns_in_the_start_and_no_gradient_goes_further():
    algorithm = build("ERMPlusPlus", **EARLY)
    before = copy.deepcopy(algorithm.inner.featurizer.state_dict())
    train(algorithm, 3)
    after = algorithm.inner.featurizer
    assert all(torch.equal(value, before[key]) for key, value in after.state_dict().items())
    assert all(parameter.grad is None for parameter in after.parameters())
    train(algorithm, 1, first=3)
    assert not any(torch.equal(value, before[key]) for key, value in after.named_parameters())


@pytest.mark.parametrize("burnin", [1, 3, 4])
def test_a_rate_that_sets_in_during_the_start_is_the_one_after_it(burnin):
    own = {"eqrm_burnin_iters": burnin, "eqrm_lr": 1e-6, "lr": 2e-3}
    algorithm = build(ALGORITHMS.canonical_name("ERMPlusPlus(EQRM)"), **EARLY, **own)
    rates = []
    for step in range(6):
        algorithm.update(make_batches(step))
        rates.append(algorithm.inner.optimizer.param_groups[0]["lr"])
    assert rates == [*[1e-2] * 3, *[2e-3] * max(0, burnin - 3), *[1e-6] * min(3, 6 - burnin)]


def test_both_phases_have_their_learning_rate():
    algorithm = build("ERMPlusPlus", lr=2e-3, **EARLY)
    rates = []
    for step in range(5):
        algorithm.update(make_batches(step))
        rates.append(algorithm.inner.optimizer.param_groups[0]["lr"])
    assert rates == [1e-2, 1e-2, 1e-2, 2e-3, 2e-3]


@pytest.mark.parametrize("saved_after", [0, 2, 3, 4])
@pytest.mark.parametrize(
    ("inside", "values", "rates"),
    [
        ("DANN", {"lr_g": 2e-4}, {2e-4}),
        ("URM", {"urm_discriminator_lr": 3e-5}, {1e-3, 3e-5}),
        ("ERDG", {"lr_d": 2e-6, "lr_c": 3e-6, "lr_cp": 4e-6}, {1e-3, 2e-6, 3e-6, 4e-6}),
    ],
)
def test_the_algorithm_inside_has_its_own_rates_again_also_when_it_was_resumed(inside, values, rates, saved_after):
    own = [group["lr"] for group in build(inside, lr=1e-3, **values).optimizer.param_groups]
    assert set(own) == rates
    algorithm, other = (build(f"ERMPlusPlus({inside})", seed=seed, lr=1e-3, **values, **EARLY) for seed in (0, 7))
    train(algorithm, saved_after)
    other.load_state_dict(algorithm.state_dict())
    for step in range(saved_after, 6):
        other.update(make_batches(step))
        now = [group["lr"] for group in other.inner.optimizer.param_groups]
        assert now == (own if step >= EARLY["linear_steps"] else [EARLY["linear_lr"]] * len(own))


def test_batch_norm_is_live_in_the_start():
    algorithm = around("ERMPlusPlus", Normed, **EARLY)
    norm = algorithm.inner.featurizer[2]
    train(algorithm, 1)
    assert algorithm.inner.featurizer.training and norm.running_mean.abs().sum() > 0
    assert not algorithm.eval().inner.featurizer.training


def test_the_averaged_network_sees_every_minibatch_once_more():
    algorithm = around("ERMPlusPlus", Normed, linear_steps=0, eoa_start=1)
    body, norm = algorithm.inner.featurizer[:2], algorithm.inner.featurizer[2]

    def averaged_statistics():
        with algorithm.averaged():
            return torch.stack([norm.running_mean, norm.running_var])

    train(algorithm, 3)
    before = averaged_statistics()
    train(algorithm, 1, first=3)
    with algorithm.averaged(), torch.no_grad():
        features = body(make_batches(3).x)
    joined = torch.stack([norm.running_mean, norm.running_var])
    expected = before + (joined - before) / 4  # the fourth to join the mean
    expected = 0.9 * expected + 0.1 * torch.stack([features.mean(0), features.var(0)])
    assert torch.allclose(averaged_statistics(), expected, atol=1e-12)


@pytest.mark.parametrize("before", [2, 4, 7])
def test_saved_and_loaded_the_next_steps_are_the_same_in_every_phase(before):
    algorithm = build("ERMPlusPlus", dtype=torch.float32, **EARLY)
    train(algorithm, before, dtype=torch.float32)
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    other = build("ERMPlusPlus", seed=7, dtype=torch.float32, **EARLY)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for made in (algorithm, other):
        train(made, 3, first=before, dtype=torch.float32)
    assert largest_difference(algorithm, other) == 0
    assert torch.equal(algorithm.average, other.average)


def test_without_a_start_and_an_average_it_is_erm_and_with_them_it_is_not():
    assert_same_as_erm(build("ERMPlusPlus", linear_steps=0, eoa_start=100), atol=1e-12)
    erm = build("ERM")
    train(erm, 5)
    for changes in ({}, {"linear_steps": 0, "eoa_start": 2}, {"linear_steps": 3, "eoa_start": 100}):
        other = build("ERMPlusPlus", **changes)
        train(other, 5)
        assert largest_difference(erm, other) > 1e-6


def test_it_needs_no_plan():
    algorithm = ALGORITHMS["ERMPlusPlus"].cls((3, 8, 8), 3, 3, build("ERMPlusPlus", **EARLY).hparams).double()
    assert torch.isfinite(algorithm.update(make_batches(0, shape=(3, 8, 8)))["loss"])


def test_it_goes_around_other_algorithms():
    algorithm, alone = build("ERMPlusPlus(CORAL)", linear_steps=0, eoa_start=100), build("CORAL")
    train(algorithm, 4)
    train(alone, 4)
    assert largest_difference(algorithm, alone) == 0


def test_a_class_without_an_optimizer_is_refused():
    class Bare(Algorithm):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.featurizer = nn.Linear(2, 2)

    with pytest.raises(AlgorithmError, match=r"ERMPlusPlus sets the rate of an `optimizer`, which Bare has not\."):
        around("ERMPlusPlus", Bare)
