"""What the tests of all algorithms share: small objects, fixed batches, and the comparison with ERM."""

import numpy as np
import torch

from shiftbed.algorithms import ALGORITHMS, Algorithm, Batches, TrainingPlan, call_hook
from shiftbed.hparams import shared_space

SHAPE, CLASSES = (3, 16, 16), 3
PLAN = TrainingPlan(steps=60, steps_per_epoch=10, seed=0)


def default_hparams(name: str, draw: int = 0, trial: int = 0, **changes) -> dict:
    """The hyperparameters of a draw on small images, with the network of the built-in data."""
    space = shared_space("small") | ALGORITHMS[name].space("", "small")
    return {**space.draw(draw, trial), "network": "small", **changes}


def build(name: str, domains: int = 3, *, seed: int = 0, dtype=torch.float64, shape=SHAPE, **hparams) -> Algorithm:
    """A new object of a registered algorithm; equal seeds give equal weights of featurizer and classifier."""
    torch.manual_seed(seed)
    algorithm = ALGORITHMS[name].cls(shape, CLASSES, domains, default_hparams(name, **hparams)).to(dtype)
    algorithm.rng = np.random.default_rng(seed)
    call_hook(algorithm, "start", PLAN)
    return algorithm


def make_batches(seed: int, sizes=(6, 6, 6), *, dtype=torch.float64, shape=SHAPE, same: bool = False) -> Batches:
    """Minibatches whose domains differ in brightness and whose classes are learnable; `same` repeats one domain."""
    random = np.random.default_rng(seed)
    count = sum(sizes)
    y = torch.from_numpy(random.permutation(np.arange(count) % CLASSES))
    x = torch.from_numpy(random.random((count, *shape)))
    x = (x + y.view(-1, *[1] * len(shape))) / CLASSES
    domains = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = x * (1 - 0.2 * domains.view(-1, *[1] * len(shape)))
    if same:
        x, y = x[: sizes[0]].repeat(len(sizes), *[1] * len(shape)), y[: sizes[0]].repeat(len(sizes))
    return Batches(x.to(dtype), y, sizes, torch.arange(count))


class Examples:
    """Training data for the `epoch` hook: the examples of one set of minibatches."""

    def __init__(self, batches: Batches) -> None:
        self.whole = batches

    def __len__(self) -> int:
        return len(self.whole.y)

    def batches(self, size):
        yield from zip(self.whole.x.split(size), self.whole.y.split(size), strict=True)


def train(algorithm: Algorithm, steps: int, *, sizes=(6, 6, 6), first: int = 0, hooks: bool = True, **kinds) -> list:
    """Updates on fixed batches, with the hooks called as the engine calls them; returns the metrics of every step."""
    metrics = []
    for step in range(first, first + steps):
        torch.manual_seed(step)
        np.random.seed(step)
        if hooks and step % PLAN.steps_per_epoch == 0:
            algorithm.rng = np.random.default_rng([step, 1])
            call_hook(algorithm, "epoch", Examples(make_batches(0, sizes, **kinds)))
        algorithm.train()
        algorithm.rng = np.random.default_rng(step)
        metrics.append(algorithm.update(make_batches(step % PLAN.steps_per_epoch, sizes, **kinds)))
    return metrics


def largest_difference(one: Algorithm, two: Algorithm, seed: int = 99, shape=SHAPE) -> float:
    """How far the predictions of two algorithms are apart on unseen inputs."""
    x = make_batches(seed, dtype=next(one.parameters()).dtype, shape=shape).x
    with torch.no_grad():
        return float((one.eval().predict(x) - two.eval().predict(x)).abs().max())


def assert_same_as_erm(algorithm: Algorithm, *, steps: int = 5, atol: float = 1e-9, **erm_hparams) -> None:
    """After some steps from equal weights and batches an algorithm predicts what ERM predicts (in float64)."""
    erm = build("ERM", **erm_hparams)
    assert largest_difference(algorithm, erm) < 1e-12, "the weights must be equal before the first step"
    train(algorithm, steps)
    train(erm, steps)
    assert largest_difference(algorithm, erm) < atol
