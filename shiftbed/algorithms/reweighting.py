"""Algorithms that weight examples."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import Space, log_uniform

INNER_STEPS = 20


def fourier_features(z: torch.Tensor, frequencies: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """√2·(cos + sin) of every coordinate at a random frequency and phase: K×N×d for K frequencies.

    The arguments of an example are brought to [0, π/2] over its coordinates.
    """
    argument = frequencies[:, None, None] * z + phases[:, None, :]
    lowest, highest = argument.aminmax(dim=2, keepdim=True)
    # Equal arguments (one coordinate, say) are 0/0; they belong at the start of the range.
    argument = (argument - lowest) / (highest - lowest).clamp_min(torch.finfo(z.dtype).tiny) * (math.pi / 2)
    return 2 * (argument + math.pi / 4).sin()  # one sine instead of both


def dependence_gradient(functions: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """How the dependence changes with each example's share, up to a constant that shares of sum 1 do not feel.

    Dependence is the sum of the squared covariances C of all pairs of different coordinates. With the diagonal of C set
    to 0 and uᵢ the functions of example i less their weighted mean, the derivative is 2·uᵢᵀ C uᵢ; automatic
    differentiation would take several times as many operations.
    """
    centred = functions - shares @ functions
    covariance = (shares[:, None] * centred).T @ centred
    covariance.fill_diagonal_(0)
    return 2 * ((centred @ covariance) * centred).sum(1)


def through_softmax(shares: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient by the logits, of a gradient by their softmax."""
    return shares * (gradient - (shares * gradient).sum())


@register(space=Space(stablenet_lambda=log_uniform(1e1, 1e3, default=70.0)), paper="Zhang et al., 2021")
class StableNet(ERM):
    """Weights the examples of a step so that the coordinates of their features become independent.

    Each step learns its weights anew, by gradient descent on the dependence of random functions of the coordinates over
    this step's examples and a memory of earlier ones. A large `stablenet_lambda` leaves the weights equal: ERM. A
    small one puts all weight on one example, among which nothing depends on anything; dependence grows with the square
    of the number of coordinates, and 70 was chosen for 512 of them.

    The memory has one row for each example of a step, `batch_size` times the domains, as the published code has 128
    for its batches of 128.

    Departures from the published code: rows of the memory count once they hold an example (there, rows of zeros take
    part in the first step); a row is the mean of what it saw in its first ten steps, whatever the epoch, and a moving
    average afterwards; equal coordinates give no NaN; the optimizer and its schedule are the recipe's (there SGD).
    """

    positive_hparams = ("stablenet_lambda",)

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        rows = num_domains * int(self.hparams["batch_size"])
        self.register_buffer("memory", torch.zeros(rows, self.featurizer.n_outputs))
        self.register_buffer("memory_weights", torch.zeros(rows))
        self.register_buffer("memory_age", torch.zeros(rows))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The weighted risk, with weights that are constants and sum to 1."""
        memory, memory_weights, age = (self.get_buffer(name) for name in ("memory", "memory_weights", "memory_age"))
        count = len(batches.y)
        if count > len(memory):
            raise AlgorithmError(
                f"StableNet remembers {len(memory)} examples (batch_size times domains), but this step has {count}; "
                f"set batch_size to what a minibatch holds."
            )
        features = self.featurizer(batches.x)
        z = features.detach().to(memory.dtype)
        with torch.autocast(z.device.type, enabled=False):
            weights = self.learned_weights(z)
        losses = F.cross_entropy(self.classifier(features), batches.y, reduction="none")
        rate = 1 / (age[:count] + 1).clamp(max=10)
        metrics = {
            "memory": torch.cat([memory[:count].lerp(z, rate[:, None]), memory[count:]]),
            "memory_weights": torch.cat([memory_weights[:count].lerp(weights, rate), memory_weights[count:]]),
            "memory_age": torch.cat([age[:count] + 1, age[count:]]),
        }
        return (weights.softmax(0) * losses).sum(), metrics

    def learned_weights(self, z: torch.Tensor) -> torch.Tensor:
        """Logits of the weights of a step's examples, after 20 steps of gradient descent with momentum."""
        remembered = self.get_buffer("memory_weights").masked_fill(self.get_buffer("memory_age") == 0, -math.inf)
        frequencies = self.drawn(lambda rng: rng.standard_normal(INNER_STEPS))
        phases = self.drawn(lambda rng: rng.uniform(0, 2 * math.pi, (INNER_STEPS, z.shape[1])))
        weights, velocity = torch.ones_like(z[:, 0]), torch.zeros_like(z[:, 0])
        for k, functions in enumerate(fourier_features(torch.cat([z, self.get_buffer("memory")]), frequencies, phases)):
            shares = torch.cat([weights, remembered]).softmax(0)
            dependence = through_softmax(shares, dependence_gradient(functions, shares))[: len(z)]
            own_shares = weights.softmax(0)
            spread = through_softmax(own_shares, 2 * own_shares)  # of the sum of squared shares
            velocity = 0.9 * velocity + dependence / self.hparams["stablenet_lambda"] + spread
            weights = weights - (1.0 if k < INNER_STEPS // 2 else 0.1) * velocity
        return weights
