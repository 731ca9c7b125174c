"""Featurizers: from inputs to a feature vector of `n_outputs` entries."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shiftbed.errors import AlgorithmError
from shiftbed.registry import Registry


class FeaturizerModule(nn.Module):
    """A module that says how long its feature vector is.

    Attributes:
        n_outputs: The length of the feature vector.
        revision: Raised whenever results change.
        stages: The modules whose outputs are convolution maps (N×C×H×W), in order; empty if there are none. A forward
            hook on one of them sees and can replace its map.
    """

    n_outputs: int
    revision: int = 1

    @property
    def stages(self) -> list[nn.Module]:
        """The modules whose outputs are convolution maps, in order."""
        return []

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__()


NETWORKS: Registry[type[FeaturizerModule]] = Registry("network", "shiftbed.networks")


def Featurizer(input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> FeaturizerModule:  # noqa: N802
    """The featurizer that `hparams["network"]` names, for inputs of this shape."""
    return NETWORKS[hparams["network"]](tuple(input_shape), hparams)


def Classifier(in_features: int, out_features: int, is_nonlinear: bool = False) -> nn.Module:  # noqa: N802
    """The head: one linear layer, or three with ReLU between them."""
    if not is_nonlinear:
        return nn.Linear(in_features, out_features)
    return nn.Sequential(
        nn.Linear(in_features, in_features // 2),
        nn.ReLU(),
        nn.Linear(in_features // 2, in_features // 4),
        nn.ReLU(),
        nn.Linear(in_features // 4, out_features),
    )


@NETWORKS.named("small")
class SmallConv(FeaturizerModule):
    """A convolutional network for 8 to 64 px that one CPU core trains in seconds.

    Three convolutions with group norm (no statistics of the batch) down to a 4×4 map, then one linear layer: the
    built-in images are centred, and pooling the map away loses ten points on EmojiStyles.
    """

    n_outputs = 128

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise AlgorithmError(
                f"The network 'small' takes images of at least 4×4, not inputs of shape {input_shape}."
            )
        halvings = min(3, max(0, round(math.log2(min(input_shape[1:]))) - 2))
        layers: list[nn.Module] = []
        channels = input_shape[0]
        for i, width in enumerate((16, 32, 32)):
            stride = 2 if i >= 3 - halvings else 1
            layers += [nn.Conv2d(channels, width, 3, stride, padding=1), nn.GroupNorm(8, width), nn.ReLU()]
            channels = width
        # The built-in sizes arrive at 4×4 by themselves; pooling them again costs 8 % of a step.
        pool = nn.Identity() if input_shape[1:] in ((8, 8), (16, 16), (32, 32)) else nn.AdaptiveAvgPool2d(4)
        self.maps = nn.Sequential(*layers, pool, nn.Flatten())
        self.features = nn.Sequential(nn.Linear(16 * channels, self.n_outputs), nn.ReLU())

    @property
    def stages(self) -> list[nn.Module]:
        """The three convolutions, each after its ReLU."""
        return [self.maps[2], self.maps[5], self.maps[8]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of images in [0, 1]."""
        return self.features(self.maps((x - 0.5) * 4))
