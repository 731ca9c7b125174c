"""Classifiers for 32 px without residual blocks: VGG, DenseNet, GoogLeNet, PNASNet, RepVGG."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from shiftbed.networks.pool_base import Branches, conv, conv_norm, pool_network


def vgg(depths: Sequence[int], channels: int) -> list[nn.Module]:
    """Convolutions and maxima in turn (Simonyan and Zisserman, 2015), with batch norm and no hidden linear layers."""
    stages: list[nn.Module] = []
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        layers = [conv_norm(channels if place == 0 else width, width) for place in range(depth)]
        stages.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
        channels = width
    return stages


class Appended(nn.Module):
    """Appends what a body makes of all channels so far."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The new channels and the old ones."""
        return torch.cat([self.body(x), x], 1)


def norm_first(before: int, after: int, kernel: int) -> nn.Sequential:
    """Batch norm, ReLU, convolution."""
    return nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(), conv(before, after, kernel))


def densenet(depths: Sequence[int], channels: int, growth: int = 32) -> list[nn.Module]:
    """Layers that see all layers before them (Huang et al., 2017)."""
    stages: list[nn.Module] = [conv(channels, 2 * growth)]
    before = 2 * growth
    for number, depth in enumerate(depths):
        layers: list[nn.Module] = []
        for _ in range(depth):
            body = nn.Sequential(norm_first(before, 4 * growth, 1), norm_first(4 * growth, growth, 3))
            layers.append(Appended(body))
            before += growth
        if number < len(depths) - 1:
            layers += [norm_first(before, before // 2, 1), nn.AvgPool2d(2)]
            before //= 2
        stages.append(nn.Sequential(*layers))
    return [*stages, nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())]


def inception(before: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> nn.Module:
    """Filters of several sizes side by side (Szegedy et al., 2015); 5×5 is 3×3 twice."""
    return Branches(
        conv_norm(before, one, 1),
        nn.Sequential(conv_norm(before, three[0], 1), conv_norm(three[0], three[1])),
        nn.Sequential(conv_norm(before, five[0], 1), conv_norm(five[0], five[1]), conv_norm(five[1], five[1])),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(before, pooled, 1)),
    )


def googlenet(channels: int) -> list[nn.Module]:
    """GoogLeNet's stages, without its side classifiers."""
    return [
        conv_norm(channels, 192),
        nn.Sequential(inception(192, 64, (96, 128), (16, 32), 32), inception(256, 128, (128, 192), (32, 96), 64)),
        nn.Sequential(
            nn.MaxPool2d(3, 2, 1),
            inception(480, 192, (96, 208), (16, 48), 64),
            inception(512, 160, (112, 224), (24, 64), 64),
            inception(512, 128, (128, 256), (24, 64), 64),
            inception(512, 112, (144, 288), (32, 64), 64),
            inception(528, 256, (160, 320), (32, 128), 128),
        ),
        nn.Sequential(
            nn.MaxPool2d(3, 2, 1),
            inception(832, 256, (160, 320), (32, 128), 128),
            inception(832, 384, (192, 384), (48, 128), 128),
        ),
    ]


def depthwise(before: int, after: int, kernel: int, stride: int) -> nn.Module:
    """Each input channel convolved by itself, to one or several output channels."""
    return conv_norm(before, after, kernel, stride, groups=before, activation=None)


def pooled(before: int, after: int, stride: int) -> nn.Module:
    """The maximum of 3×3; where the size changes, a projection."""
    return nn.Sequential(
        nn.MaxPool2d(3, stride, 1),
        conv_norm(before, after, 1, activation=None) if stride == 2 else nn.Identity(),
    )


def cell_a(before: int, after: int, stride: int) -> nn.Module:
    """The small cell: a 7×7 convolution plus a maximum (Liu et al., 2018)."""
    return Branches(depthwise(before, after, 7, stride), pooled(before, after, stride), add=True)


def cell_b(before: int, after: int, stride: int) -> nn.Module:
    """The large cell: two such sums side by side, projected."""
    left = Branches(depthwise(before, after, 7, stride), depthwise(before, after, 3, stride), add=True)
    right = Branches(pooled(before, after, stride), depthwise(before, after, 5, stride), add=True)
    return nn.Sequential(Branches(left, right), conv_norm(2 * after, after, 1))


def pnasnet(cell: Callable[[int, int, int], nn.Module], width: int, channels: int) -> list[nn.Module]:
    """Six cells of each of three widths, with a cell that halves the image between them."""
    stages: list[nn.Module] = [conv_norm(channels, width)]
    before = width
    for place in range(3):
        after = width * 2**place
        halving = [cell(before, after, 2)] if place else []
        stages.append(nn.Sequential(*halving, *(cell(after, after, 1) for _ in range(6))))
        before = after
    return stages


def repvgg_block(before: int, after: int, stride: int) -> nn.Module:
    """A 3×3 convolution, a 1×1 one and the input itself, each normed, added (Ding et al., 2021)."""
    paths = [conv_norm(before, after, 3, stride, activation=None), conv_norm(before, after, 1, stride, activation=None)]
    if stride == 1 and before == after:
        paths.append(nn.Sequential(nn.BatchNorm2d(before)))
    return Branches(*paths, add=True)


def repvgg(channels: int) -> list[nn.Module]:
    """RepVGG-A0 as it is trained: its paths are not merged."""
    stages: list[nn.Module] = [repvgg_block(channels, 48, 1)]
    before = 48
    for width, depth, stride in ((48, 2, 1), (96, 4, 2), (192, 14, 2), (1280, 1, 2)):
        blocks = [repvgg_block(before, width, stride), *(repvgg_block(width, width, 1) for _ in range(depth - 1))]
        stages.append(nn.Sequential(*blocks))
        before = width
    return stages


for _layers, _depths in (
    (11, (1, 1, 2, 2, 2)),
    (13, (2, 2, 2, 2, 2)),
    (16, (2, 2, 3, 3, 3)),
    (19, (2, 2, 4, 4, 4)),
):
    pool_network(f"cifar-vgg{_layers}", f"VGG-{_layers} with batch norm", partial(vgg, _depths))
pool_network("cifar-densenet121", "DenseNet-121", partial(densenet, (6, 12, 24, 16)))
pool_network("cifar-densenet169", "DenseNet-169", partial(densenet, (6, 12, 32, 32)))
pool_network("cifar-googlenet", "GoogLeNet", googlenet)
pool_network("cifar-pnasnet-a", "PNASNet-A", partial(pnasnet, cell_a, 44))
pool_network("cifar-pnasnet-b", "PNASNet-B", partial(pnasnet, cell_b, 32))
pool_network("cifar-repvgg-a0", "RepVGG-A0", repvgg)
