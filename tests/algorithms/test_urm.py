"""URM against two optimizers that take turns, and against hand-made numbers."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Batches
from shiftbed.errors import AlgorithmError
from shiftbed.hashing import seed_hash
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train


def turns(urm, steps, low):
    """The two players with an Adam each, one after the other, on the noise that `train` draws."""
    weight, network, adversary = urm.hparams["urm_adv_lambda"], copy.deepcopy(urm.network), urm.discriminator
    adversary = copy.deepcopy(adversary)
    optimizer = torch.optim.Adam(network.parameters(), lr=urm.hparams["lr"], weight_decay=0.01)
    disc_opt = torch.optim.Adam(adversary.parameters(), lr=urm.hparams["urm_discriminator_lr"], weight_decay=0.01)
    judge = nn.BCEWithLogitsLoss()
    for step in range(steps):
        batches = make_batches(step)
        features = network[1](network[0](batches.x))
        ones, zeros = torch.ones(len(features)).double(), torch.zeros(len(features)).double()
        loss = F.cross_entropy(network[2](features), batches.y) + weight * judge(adversary(features)[:, 0], ones)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        noise = torch.from_numpy(np.random.default_rng(step).uniform(low, 1.0, features.shape))
        loss = judge(adversary(noise)[:, 0], ones) + weight * judge(adversary(features.detach())[:, 0], zeros)
        disc_opt.zero_grad()
        loss.backward()
        disc_opt.step()
    return nn.Sequential(network, adversary)


@pytest.mark.parametrize(("output", "low"), [("tanh", -1.0), ("relu", 0.0)])
def test_both_players_step_at_once_as_they_do_in_turns(output, low):
    urm = build("URM", urm_generator_output=output, urm_adv_lambda=0.7, weight_decay=0.01, lr=2e-3)
    expected = turns(urm, 4, low)
    train(urm, 4)
    found = nn.Sequential(urm.network, urm.discriminator)
    for one, two in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-11)


def test_the_loss_by_hand():
    urm = build("URM", urm_adv_lambda=0.3)
    urm.featurizer, urm.classifier = nn.Identity(), nn.Linear(2, 3).double()
    for layer in (urm.classifier, urm.discriminator[-1]):
        nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    nn.init.constant_(urm.discriminator[-1].bias, 0.8)  # all is noise with probability σ(0.8)
    urm.discriminator[0] = nn.Linear(2, 100).double()
    batches = Batches(torch.ones(4, 2).double(), torch.tensor([0, 1, 2, 0]), (2, 2))
    loss, metrics = urm.objective(batches, 0)
    noise, no_noise = math.log(1 + math.exp(-0.8)), math.log(1 + math.exp(0.8))
    assert metrics["disc_loss"].item() == pytest.approx(noise + 0.3 * no_noise, rel=1e-12)
    assert loss.item() == pytest.approx(math.log(3) + 0.3 * noise + noise + 0.3 * no_noise, rel=1e-12)


def test_features_are_bounded_in_prediction_too():
    urm = build("URM")
    x = make_batches(0).x
    assert torch.equal(urm.predict(x), urm.classifier(urm.featurizer(x).tanh()))


@pytest.mark.parametrize("hidden", [1, 3])
def test_the_discriminator_has_the_layers_it_should(hidden):
    layers = list(build("URM", urm_discriminator_hidden_layers=hidden).discriminator)
    widths = [(layer.in_features, layer.out_features) for layer in layers[::2]]
    assert widths == [(128, 100), *[(100, 100)] * hidden, (100, 1)]
    assert all(isinstance(layer, nn.LeakyReLU) for layer in layers[1::2])


def test_the_discriminator_learns_at_its_own_rate():
    urm = build("URM", lr=1e-2, urm_discriminator_lr=1e-5)
    rates = {id(value): group["lr"] for group in urm.optimizer.param_groups for value in group["params"]}
    assert {rates[id(value)] for value in urm.discriminator.parameters()} == {1e-5}
    assert {rates[id(value)] for value in urm.network.parameters()} == {1e-2}
    draws = [ALGORITHMS["URM"].space("", size).draw(0, 0)["urm_discriminator_lr"] for size in ("small", "large")]
    assert draws == [1e-3, 5e-5]


def test_without_its_weight_and_bound_urm_is_erm_and_with_them_it_is_not():
    # The features of this network end in a ReLU, which a second one does not change.
    assert_same_as_erm(build("URM", urm_generator_output="relu", urm_adv_lambda=0.0))
    erm = build("ERM")
    train(erm, 5)
    for changes in ({}, {"urm_generator_output": "relu"}):
        urm = build("URM", **changes)
        train(urm, 5)
        assert largest_difference(erm, urm) > 1e-6


def test_the_output_is_drawn_as_in_domainbed():
    space = ALGORITHMS["URM"].space()
    for draw in range(1, 10):
        random = np.random.RandomState(seed_hash(seed_hash(draw, 2), "urm_generator_output"))
        assert space.draw(draw, 2)["urm_generator_output"] == random.choice(["tanh", "relu"])


def test_other_outputs_are_refused():
    with pytest.raises(AlgorithmError, match=r"URM's urm_generator_output is 'sigmoid'; set tanh or relu\."):
        build("URM", urm_generator_output="sigmoid")
