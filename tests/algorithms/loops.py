"""What methods written in loops share: a forward for each domain, numbers on the host, no clever algebra.

The loops are slow and plain. From equal weights, batches and draws, a method and its loops must predict the same.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F

from tests.algorithms import common

SHAPE, STEPS = (3, 8, 8), 10


def adam(modules, h, **options):
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.Adam(parameters, **{"lr": h["lr"], "weight_decay": h["weight_decay"], **options})


def descend(loss, *optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


class Loops:
    """Copies of an algorithm's networks, one optimizer, and `loss` for each update; children change what they must."""

    extra = ()
    restart = None

    def __init__(self, algorithm):
        self.h = algorithm.hparams
        self.f, self.c = copy.deepcopy(algorithm.featurizer), copy.deepcopy(algorithm.classifier)
        self.others = {name: copy.deepcopy(getattr(algorithm, name)) for name in self.extra}
        self.optimizer = self.fresh(self.h["lr"])
        self.memory = {}

    def fresh(self, lr):
        return adam([self.f, self.c, *self.others.values()], self.h, lr=lr)

    def update(self, batches, step, rng):
        if self.restart and step == self.h[self.restart[0]]:
            self.optimizer = self.fresh(self.h[self.restart[1]])
        descend(self.loss(batches, step, rng), self.optimizer)

    def risks(self, batches):
        return [F.cross_entropy(self.predict(x), y) for x, y in batches]

    def predict(self, x):
        return self.c(self.f(x))


def mean(values):
    return sum(values) / len(values)


def whole(batches):
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def domains_of(batches):
    return torch.tensor([number for number, (x, _) in enumerate(batches) for _ in x])


def assert_same_predictions(loops, hparams):
    """After ten updates an algorithm predicts what its loops predict, and not what it predicted before."""
    algorithm, x = common.build(loops.__name__, shape=SHAPE, **hparams).train(), common.make_batches(99, shape=SHAPE).x
    other, first = loops(algorithm), algorithm.predict(x).detach()
    for step in range(STEPS):
        batches = common.make_batches(step, shape=SHAPE)
        algorithm.rng = np.random.default_rng(step)
        algorithm.update(batches)
        other.update(list(batches), step, np.random.default_rng(step))
    with torch.no_grad():
        found, expected = algorithm.predict(x), other.predict(x)
    assert (found - expected).abs().max() < 1e-9
    assert (found - first).abs().max() > 1e-3
