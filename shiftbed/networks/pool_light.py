"""Light classifiers for 32 px: MobileNet, ShuffleNet, EfficientNet."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from shiftbed.networks.pool_base import Branches, Residual, SqueezeExcite, conv_norm, pool_network


def mobilenet(channels: int) -> list[nn.Module]:
    """Depthwise and 1×1 convolutions in turn (Howard et al., 2017)."""
    stages: list[nn.Module] = [conv_norm(channels, 32)]
    before = 32
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for after, stride in plan:
        stages.append(
            nn.Sequential(conv_norm(before, before, stride=stride, groups=before), conv_norm(before, after, 1))
        )
        before = after
    return stages


def inverted(
    before: int,
    after: int,
    stride: int,
    expansion: int,
    kernel: int = 3,
    squeeze: float = 0.0,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Module:
    """A depthwise convolution of many channels between 1×1 ones (Sandler et al., 2018); the last is linear."""
    width = before * expansion
    body = nn.Sequential(
        conv_norm(before, width, 1, activation=activation) if expansion > 1 else nn.Identity(),
        conv_norm(width, width, kernel, stride, groups=width, activation=activation),
        SqueezeExcite(width, max(1, int(before * squeeze)), activation) if squeeze else nn.Identity(),
        conv_norm(width, after, 1, activation=None),
    )
    return Residual(body, relu=False) if stride == 1 and before == after else body


def mobilenet_v2(channels: int) -> list[nn.Module]:
    """Inverted residuals (Sandler et al., 2018), halved at three places fewer than at 224 px."""
    stages: list[nn.Module] = [conv_norm(channels, 32)]
    before = 32
    plan = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, after, depth, stride in plan:
        blocks = []
        for place in range(depth):
            blocks.append(inverted(before, after, stride if place == 0 else 1, expansion))
            before = after
        stages.append(nn.Sequential(*blocks))
    return [*stages, conv_norm(before, 1280, 1)]


def efficientnet(channels: int) -> list[nn.Module]:
    """Inverted residuals that weigh their channels (Tan and Le, 2019)."""
    stages: list[nn.Module] = [conv_norm(channels, 32, activation=nn.SiLU)]
    before = 32
    plan = (
        (1, 16, 1, 3, 1),
        (6, 24, 2, 3, 2),
        (6, 40, 2, 5, 2),
        (6, 80, 3, 3, 2),
        (6, 112, 3, 5, 1),
        (6, 192, 4, 5, 2),
        (6, 320, 1, 3, 1),
    )
    for expansion, after, depth, kernel, stride in plan:
        blocks = []
        for place in range(depth):
            blocks.append(inverted(before, after, stride if place == 0 else 1, expansion, kernel, 0.25, nn.SiLU))
            before = after
        stages.append(nn.Sequential(*blocks))
    return stages


class Shuffle(nn.Module):
    """Deals the channels of each group to all groups."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same maps in another order."""
        return x.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)


def shuffle_unit(before: int, after: int, stride: int, groups: int) -> nn.Module:
    """1×1 convolutions in groups around a depthwise one (Zhang et al., 2018); with a stride the input is appended."""
    made = after - before if stride == 2 else after
    middle = after // 4
    first_groups = 1 if before == 24 else groups
    body = nn.Sequential(
        conv_norm(before, middle, 1, groups=first_groups),
        Shuffle(first_groups),
        conv_norm(middle, middle, stride=stride, groups=middle),
        conv_norm(middle, made, 1, groups=groups, activation=None),
    )
    if stride == 1:
        return Residual(body)
    return nn.Sequential(Branches(body, nn.AvgPool2d(3, 2, 1)), nn.ReLU())


def shufflenet(groups: int, widths: Sequence[int], channels: int) -> list[nn.Module]:
    """ShuffleNet's stages."""
    stages: list[nn.Module] = [conv_norm(channels, 24, 1)]
    before = 24
    for width, depth in zip(widths, (4, 8, 4), strict=True):
        units = [shuffle_unit(before, width, 2, groups)]
        units += [shuffle_unit(width, width, 1, groups) for _ in range(depth - 1)]
        stages.append(nn.Sequential(*units))
        before = width
    return stages


class SplitUnit(nn.Module):
    """Half the channels pass, the other half is convolved, and both are shuffled (Ma et al., 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            conv_norm(half, half, 1),
            conv_norm(half, half, groups=half, activation=None),
            conv_norm(half, half, 1),
        )
        self.shuffle = Shuffle(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both halves, shuffled."""
        passed, convolved = x.chunk(2, 1)
        return self.shuffle(torch.cat([passed, self.body(convolved)], 1))


def halving_unit(before: int, after: int) -> nn.Module:
    """Two paths with a stride, shuffled."""
    half = after // 2
    short = nn.Sequential(
        conv_norm(before, before, stride=2, groups=before, activation=None), conv_norm(before, half, 1)
    )
    long = nn.Sequential(
        conv_norm(before, half, 1),
        conv_norm(half, half, stride=2, groups=half, activation=None),
        conv_norm(half, half, 1),
    )
    return nn.Sequential(Branches(short, long), Shuffle(2))


def shufflenet_v2(widths: Sequence[int], last: int, channels: int) -> list[nn.Module]:
    """ShuffleNetV2's stages."""
    stages: list[nn.Module] = [conv_norm(channels, 24)]
    before = 24
    for width, depth in zip(widths, (3, 7, 3), strict=True):
        stages.append(nn.Sequential(halving_unit(before, width), *(SplitUnit(width) for _ in range(depth))))
        before = width
    return [*stages, conv_norm(before, last, 1)]


pool_network("cifar-mobilenet", "MobileNet", mobilenet)
pool_network("cifar-mobilenetv2", "MobileNetV2", mobilenet_v2)
pool_network("cifar-efficientnet-b0", "EfficientNet-B0", efficientnet)
pool_network("cifar-shufflenet-g2", "ShuffleNet with 2 groups", partial(shufflenet, 2, (200, 400, 800)))
pool_network("cifar-shufflenet-g3", "ShuffleNet with 3 groups", partial(shufflenet, 3, (240, 480, 960)))
for _size, _widths, _last in (
    ("0.5", (48, 96, 192), 1024),
    ("1", (116, 232, 464), 1024),
    ("1.5", (176, 352, 704), 1024),
    ("2", (224, 488, 976), 2048),
):
    pool_network(f"cifar-shufflenetv2-{_size}", f"ShuffleNetV2 ×{_size}", partial(shufflenet_v2, _widths, _last))
