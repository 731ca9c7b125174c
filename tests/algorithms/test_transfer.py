"""Transfer: its three steps against loops over domains, and what `gda` trains, in float64."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import ALGORITHMS
from shiftbed.algorithms.adversarial import pull_within
from shiftbed.hashing import seed_hash
from tests.algorithms import common

build, make_batches, train, largest_difference = (
    partial(function, shape=(3, 8, 8))
    for function in (common.build, common.make_batches, common.train, common.largest_difference)
)


def distance(one, two):
    return sum((a - b).square().sum().item() for a, b in zip(one.parameters(), two.parameters(), strict=True)) ** 0.5


class Loops:
    """The method written domain by domain, with numbers on the host where these decide."""

    def __init__(self, algorithm):
        h = algorithm.hparams
        self.h = h
        self.featurizer, self.classifier = copy.deepcopy(algorithm.featurizer), copy.deepcopy(algorithm.classifier)
        self.head = copy.deepcopy(self.classifier)
        weights = [*self.featurizer.parameters(), *self.classifier.parameters()]
        adam = torch.optim.Adam(weights, lr=h["lr"], weight_decay=h["weight_decay"])
        self.optimizer = torch.optim.SGD(weights, lr=h["lr"]) if h["gda"] else adam
        self.climber = torch.optim.SGD(self.head.parameters(), lr=h["lr_d"])

    def gap(self, batches):
        risks = [F.cross_entropy(self.head(self.featurizer(x)), y) for x, y in batches]
        return self.h["t_lambda"] * (max(risks, key=torch.Tensor.item) - min(risks, key=torch.Tensor.item))

    def update(self, batches):
        for loss in (lambda: F.cross_entropy(self.predict(batches.x), batches.y), lambda: self.gap(batches)):
            value = loss()
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
        self.head.load_state_dict(self.classifier.state_dict())
        for _ in range(self.h["d_steps_per_g"]):
            self.climber.zero_grad()
            (-self.gap(batches)).backward()
            self.climber.step()
            far = distance(self.head, self.classifier)
            if far > self.h["delta"]:
                for own, centre in zip(self.head.parameters(), self.classifier.parameters(), strict=True):
                    own.data = centre.data + self.h["delta"] / far * (own.data - centre.data)

    def predict(self, x):
        return self.classifier(self.featurizer(x))


@pytest.mark.parametrize(
    "hparams",
    [
        {},
        {"lr_d": 1.0, "delta": 0.1, "d_steps_per_g": 5},  # the ball is felt
        {"gda": True, "lr": 0.1, "lr_d": 0.1, "d_steps_per_g": 2, "t_lambda": 3.0},
        {"weight_decay": 0.1, "d_steps_per_g": 1},
    ],
)
def test_ten_updates_are_those_of_loops_over_the_domains(hparams):
    algorithm = build("Transfer", **hparams)
    loops = Loops(algorithm)
    for step in range(10):
        train(algorithm, 1, first=step, sizes=(6, 4, 5))
        loops.update(make_batches(step, (6, 4, 5)))
    x = make_batches(99).x
    with torch.no_grad():
        assert (algorithm.predict(x) - loops.predict(x)).abs().max() < 1e-9
        assert (algorithm.adv_classifier(algorithm.featurizer(x)) - loops.head(loops.featurizer(x))).abs().max() < 1e-9


def test_with_gda_featurizer_and_classifier_are_trained_by_plain_gradient_descent():
    algorithm = build("Transfer", draw=3, weight_decay=0.5)
    assert algorithm.hparams["gda"] is True
    before = [value.detach().clone() for value in algorithm.network.parameters()]
    train(algorithm, 1)
    assert all(not torch.equal(a, b) for a, b in zip(before, algorithm.network.parameters(), strict=True))
    (group,) = algorithm.optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (algorithm.hparams["lr"], 0, 0)


def test_without_its_weight_transfer_by_gda_is_erm_by_gradient_descent():
    transfer, erm = build("Transfer", gda=True, lr=0.1, t_lambda=0.0), build("ERM")
    erm.optimizer = torch.optim.SGD(erm.parameters(), lr=0.1)
    train(transfer, 5)
    train(erm, 5)
    assert largest_difference(transfer, erm) < 1e-12
    on = build("Transfer", gda=True, lr=0.1)
    train(on, 5)
    assert largest_difference(on, erm) > 1e-5


def test_the_head_starts_from_the_classifier_and_climbs_the_gap():
    algorithm = build("Transfer", d_steps_per_g=3, lr_d=1e-2)
    train(algorithm, 2)
    algorithm.eval()
    batches = make_batches(1)
    with torch.no_grad():
        features = algorithm.featurizer(batches.x)
        climbed = algorithm.gap(features, batches).item()
        algorithm.adv_classifier.load_state_dict(algorithm.classifier.state_dict())
        assert algorithm.gap(features, batches).item() < climbed


def test_the_head_s_climb_leaves_all_other_networks_alone():
    one, two = build("Transfer", d_steps_per_g=1), build("Transfer", d_steps_per_g=7)
    for algorithm in (one, two):
        train(algorithm, 1)
    assert largest_difference(one, two) == 0
    assert distance(one.adv_classifier, two.adv_classifier) > 0


@settings(max_examples=30)
@given(scale=st.floats(1e-3, 1e3), radius=st.floats(1e-2, 10))
def test_a_head_outside_the_ball_is_pulled_straight_to_its_rim_and_one_inside_stays(scale, radius):
    torch.manual_seed(0)
    centre, head = nn.Linear(4, 3, dtype=torch.float64), nn.Linear(4, 3, dtype=torch.float64)
    with torch.no_grad():
        for own, its in zip(head.parameters(), centre.parameters(), strict=True):
            own.copy_(its + scale * own)
    before, far = copy.deepcopy(head), distance(head, centre)
    pull_within(head, centre, radius)
    if far <= radius:
        assert distance(head, before) == 0
    else:
        assert distance(head, centre) == pytest.approx(radius, rel=1e-9)
        assert distance(head, before) == pytest.approx(far - radius, rel=1e-6, abs=1e-9)


def test_a_head_at_the_centre_stays_there():
    centre = nn.Linear(4, 3)
    head = copy.deepcopy(centre)
    pull_within(head, centre, 1.0)
    assert distance(head, centre) == 0


HEAD = {
    "t_lambda": (1.0, lambda r: 10 ** r.uniform(-2, 1)),
    "delta": (2.0, lambda r: r.uniform(0.1, 3.0)),
    "d_steps_per_g": (10, lambda r: int(r.choice([1, 2, 5]))),
    "gda": (False, lambda r: True),
    "lr_d": (1e-3, lambda r: 10 ** r.uniform(-4.5, -2.5)),
}


@pytest.mark.parametrize("name", HEAD)
def test_draws_are_domainbed_s(name):
    space = ALGORITHMS["Transfer"].space("PACS", "large")
    assert set(space) == set(HEAD)
    assert space.draw(0, 0)[name] == HEAD[name][0]
    for draw, trial in ((1, 0), (7, 2), (19, 1)):
        random = np.random.RandomState(seed_hash(seed_hash(draw, trial), name))
        assert space.draw(draw, trial)[name] == pytest.approx(HEAD[name][1](random), rel=1e-9)
