"""Multilayer perceptrons: DomainBed's, as a part of algorithms and as a featurizer, and OoD-Bench's."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.networks.base import NETWORKS, FeaturizerModule


class MLP(nn.Module):
    """DomainBed's perceptron: `mlp_depth` linear layers of `mlp_width` units, dropout and ReLU between them.

    Attributes:
        n_outputs: The length of its output.
    """

    def __init__(self, n_inputs: int, n_outputs: int, hparams: Mapping[str, Any]) -> None:
        super().__init__()
        width, depth = hparams.get("mlp_width", 256), hparams.get("mlp_depth", 3)
        self.input = nn.Linear(n_inputs, width)
        self.dropout = nn.Dropout(hparams.get("mlp_dropout", 0.0))
        self.hiddens = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 2))
        self.output = nn.Linear(width, n_outputs)
        self.n_outputs = n_outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output, without a nonlinearity."""
        for layer in (self.input, *self.hiddens):
            x = F.relu(self.dropout(layer(x)))
        return self.output(x)


@NETWORKS.named("mlp")
class MLPFeaturizer(FeaturizerModule):
    """DomainBed's perceptron for vectors; anything else is flattened."""

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        self.n_outputs = hparams.get("mlp_width", 256)
        self.mlp = MLP(math.prod(input_shape), self.n_outputs, hparams)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of inputs as they are."""
        return self.mlp(x.flatten(1))


@NETWORKS.named("mlp-390")
class MLP390(FeaturizerModule):
    """OoD-Bench's network for Colored MNIST: two layers of 390 units, ReLU after both.

    Weights are Xavier-uniform with the gain of ReLU, biases zero. OoD-Bench gives it two channels of 14×14 pixels.
    """

    n_outputs = 390

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        first, second = nn.Linear(math.prod(input_shape), 390), nn.Linear(390, 390)
        for layer in (first, second):
            nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("relu"))
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of inputs as they are."""
        return self.layers(x)
