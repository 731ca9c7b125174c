"""What the classifiers of the CIFAR-10-W paper share: made for 32 px, so that the first layers keep the resolution.

timm has most of them by name, but for images of 224 px: at 32 px their last map is one cell. Here the stem has stride 1
and the image is halved two to four times. Weights start as torch starts them, and no dropout is used.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from shiftbed.networks.base import NETWORKS, FeaturizerModule
from shiftbed.networks.convolutional import require_images

Build = Callable[[int], Sequence[nn.Module]]


class PoolNetwork(FeaturizerModule):
    """Maps of a shrinking image, averaged over its area."""

    build: Build

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        require_images(self.name, input_shape, smallest=32)
        self.maps = nn.Sequential(*type(self).build(input_shape[0]))
        with torch.no_grad():
            self.n_outputs = self.maps.eval()(torch.zeros(1, *input_shape)).shape[1]
        self.maps.train()

    @property
    def stages(self) -> list[nn.Module]:
        """The stem and what follows it, each giving maps."""
        return list(self.maps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of images in [0, 1]."""
        return self.maps((x - 0.5) * 4).mean((2, 3))


def pool_network(name: str, words: str, build: Build) -> None:
    """Registers a classifier by the function that makes its stages for a number of channels."""
    fields = {"build": staticmethod(build), "__doc__": f"{words}, for 32 px.", "__module__": __name__}
    NETWORKS.add(name, type(name, (PoolNetwork,), fields))


def conv(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size (or divides it by the stride), without bias, as a norm follows."""
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False)


def conv_norm(
    before: int,
    after: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm and, unless told otherwise, a ReLU."""
    layers = [conv(before, after, kernel, stride, groups), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Weighs channels by a small network of their means (Hu et al., 2018)."""

    def __init__(self, channels: int, hidden: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Conv2d(channels, hidden, 1), activation(), nn.Conv2d(hidden, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The maps, each multiplied by its weight."""
        return x * self.weigh(x.mean((2, 3), keepdim=True))


class Residual(nn.Module):
    """What a body adds to its input, or to the input's projection; a ReLU after the sum, if wanted."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, relu: bool = True) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.relu = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return self.relu(self.body(x) + self.shortcut(x))


class Branches(nn.Module):
    """Several paths side by side: their maps concatenated, or added and rectified."""

    def __init__(self, *paths: nn.Module, add: bool = False) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)
        self.add = add

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The paths' maps together."""
        maps = [path(x) for path in self.paths]
        return torch.relu(torch.stack(maps).sum(0)) if self.add else torch.cat(maps, 1)
