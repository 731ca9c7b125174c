"""Small convolutional featurizers, made for 8 to 64 px."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.errors import AlgorithmError
from shiftbed.networks.base import NETWORKS, FeaturizerModule


def require_images(name: str, input_shape: tuple[int, ...], smallest: int = 1) -> None:
    """Refuses inputs that are no images, or too small ones."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise AlgorithmError(
            f"The network '{name}' takes images of at least {smallest}×{smallest}, not inputs of shape {input_shape}."
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
        require_images("small", input_shape, smallest=4)
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

    def accelerate(self) -> None:
        """Nothing: the compiler takes half a minute for it, and 3,000 captured steps are faster without."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of images in [0, 1]."""
        return self.features(self.maps((x - 0.5) * 4))


@NETWORKS.named("mnist-convnet")
class MnistConvNet(FeaturizerModule):
    """DomainBed's network for 28×28 digits: four convolutions, each with ReLU and then group norm, and their mean.

    Inputs stay in [0, 1]. There is no dropout, although the searches draw one.
    """

    n_outputs = 128

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        require_images("mnist-convnet", input_shape)
        widths, strides = (input_shape[0], 64, 128, 128, 128), (1, 2, 1, 1)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU(), nn.GroupNorm(8, after))
                for before, after, stride in zip(widths, widths[1:], strides, strict=False)
            )
        )

        self._fusible = math.prod(input_shape[1:]) <= 32 * 32  # larger maps are too many for one program of a kernel
        self._fused = False

    @property
    def stages(self) -> list[nn.Module]:
        """The four convolutions, each after its group norm."""
        return list(self.blocks)

    def accelerate(self) -> None:
        """Uses kernels of its own between convolutions, which are faster than compiled ones."""
        self._fused = self._fusible
        if not self._fusible:
            super().accelerate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of images in [0, 1]."""
        if not self._fused or any(stage._forward_hooks for stage in self.stages):
            return self.blocks(x).mean((2, 3))
        from shiftbed.networks.fused import first_block, relu_group_norm  # triton, which a GPU brings along

        blocks: Any = self.blocks
        x = first_block(x, blocks[0][0], blocks[0][2])
        for conv, _, norm in blocks[1:]:
            x = F.conv2d(x, conv.weight, None, conv.stride, conv.padding)
            x = relu_group_norm(x, conv.bias, norm, pooled=norm is blocks[-1][-1])
        return x


@NETWORKS.named("nico-shallow")
class NicoShallow(FeaturizerModule):
    """The shallow network with which NICO++ measures shift on MNIST-M (its Table 12).

    Departures from the paper: none known; it states no padding, so there is none.
    """

    n_outputs = 16

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        require_images("nico-shallow", input_shape, smallest=19)
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for kernel, stride, maps in ((7, 1, 32), (5, 2, 32), (3, 1, 64), (3, 2, 64)):
            layers.append(nn.Sequential(nn.Conv2d(channels, maps, kernel, stride), nn.BatchNorm2d(maps), nn.ReLU()))
            if stride == 2:
                layers.append(nn.Dropout(0.4))
            channels = maps
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self.maps = nn.Sequential(*layers)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, self.n_outputs), nn.ReLU())

    @property
    def stages(self) -> list[nn.Module]:
        """The four convolutions, each after its ReLU."""
        return [layer for layer in self.maps if isinstance(layer, nn.Sequential)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of images in [0, 1]."""
        return self.features(self.maps(x))


class WideBlock(nn.Module):
    """A residual block whose norms come before its convolutions; the stride is in the second one."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1)
        same = stride == 1 and channels == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, or its projection, plus what two convolutions add to it."""
        out = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(out))) + self.shortcut(x)


@NETWORKS.named("wide-resnet-16-2")
class WideResNet(FeaturizerModule):
    """DomainBed's network for 32×32 images: a Wide ResNet of 16 layers, twice as wide, without dropout.

    Departures from DomainBed: the last map is averaged whole; DomainBed takes its first 8×8 cells, which is the same
    at 32×32 and would ignore most of a larger image.
    """

    n_outputs = 128

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        require_images("wide-resnet-16-2", input_shape)
        self.conv1 = nn.Conv2d(input_shape[0], 16, 3, padding=1)
        self.layer1 = nn.Sequential(WideBlock(16, 32, 1), WideBlock(32, 32, 1))
        self.layer2 = nn.Sequential(WideBlock(32, 64, 2), WideBlock(64, 64, 1))
        self.layer3 = nn.Sequential(WideBlock(64, 128, 2), WideBlock(128, 128, 1))
        self.bn1 = nn.BatchNorm2d(128, momentum=0.9)

    @property
    def stages(self) -> list[nn.Module]:
        """The three groups of blocks."""
        return [self.layer1, self.layer2, self.layer3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of images in [0, 1]."""
        maps = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return F.relu(self.bn1(maps)).mean((2, 3))
