"""Residual classifiers for 32 px: ResNet, PreActResNet, SENet, ResNeXt, RegNet, DPN."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from shiftbed.networks.pool_base import Residual, SqueezeExcite, conv, conv_norm, pool_network

Block = Callable[[int, int, int], tuple[nn.Module, int]]  # of channels, width and stride: the block, its channels


def stages_of(
    block: Block, stem: int, widths: Sequence[int], depths: Sequence[int], strides: Sequence[int], channels: int
) -> list[nn.Module]:
    """A stem, then blocks of each width; the first of a width has the stride."""
    stages: list[nn.Module] = [conv_norm(channels, stem)]
    for width, depth, stride in zip(widths, depths, strides, strict=True):
        blocks = []
        for place in range(depth):
            made, stem = block(stem, width, stride if place == 0 else 1)
            blocks.append(made)
        stages.append(nn.Sequential(*blocks))
    return stages


def projection(before: int, after: int, stride: int) -> nn.Module | None:
    """How an input gets to another size; None where it has it."""
    return None if stride == 1 and before == after else conv_norm(before, after, 1, stride, activation=None)


def basic(before: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Two convolutions (He et al., 2016)."""
    body = nn.Sequential(conv_norm(before, width, stride=stride), conv_norm(width, width, activation=None))
    return Residual(body, projection(before, width, stride)), width


def bottleneck(
    before: int, width: int, stride: int, *, expansion: int = 4, groups: int = 1, squeeze: float = 0.0
) -> tuple[nn.Module, int]:
    """A convolution between two 1×1 ones; `squeeze` of the input's channels weigh the maps after it."""
    after = width * expansion
    body = nn.Sequential(
        conv_norm(before, width, 1),
        conv_norm(width, width, stride=stride, groups=groups),
        SqueezeExcite(width, round(before * squeeze)) if squeeze else nn.Identity(),
        conv_norm(width, after, 1, activation=None),
    )
    return Residual(body, projection(before, after, stride)), after


class PreActivated(nn.Module):
    """A residual block whose norms come first; a projection sees the normed input (He et al., 2016b)."""

    def __init__(self, before: int, after: int, body: nn.Module, stride: int) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())
        self.body = body
        self.shortcut = None if stride == 1 and before == after else conv(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, or its projection, plus what the body adds."""
        normed = self.norm(x)
        return self.body(normed) + (x if self.shortcut is None else self.shortcut(normed))


def preactivated(
    before: int, width: int, stride: int, *, deep: bool = False, squeeze: int = 0
) -> tuple[nn.Module, int]:
    """Two convolutions, or three with 1×1 ones outside; with `squeeze`, that share's inverse weighs the maps."""
    after = width * 4 if deep else width
    if deep:
        layers = [conv_norm(before, width, 1), conv_norm(width, width, stride=stride), conv(width, after, 1)]
    else:
        layers = [conv_norm(before, width, stride=stride), conv(width, width)]
    if squeeze:
        layers.append(SqueezeExcite(after, after // squeeze))
    return PreActivated(before, after, nn.Sequential(*layers), stride), after


def regnet_block(before: int, width: int, stride: int, *, group: int, squeeze: float = 0.0) -> tuple[nn.Module, int]:
    """A bottleneck that is not narrow, with groups of fixed width (Radosavovic et al., 2020)."""
    return bottleneck(before, width, stride, expansion=1, groups=width // group, squeeze=squeeze)


class DualPath(nn.Module):
    """A block that adds to some channels and appends others (Chen et al., 2017)."""

    def __init__(self, before: int, width: int, kept: int, appended: int, stride: int, first: bool) -> None:
        super().__init__()
        self.kept = kept
        self.body = nn.Sequential(
            conv_norm(before, width, 1),
            conv_norm(width, width, stride=stride, groups=32),
            conv_norm(width, kept + appended, 1, activation=None),
        )
        self.shortcut = conv_norm(before, kept + appended, 1, stride, activation=None) if first else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels that were added to, those of before, and new ones."""
        x, out = self.shortcut(x), self.body(x)
        kept = self.kept
        return torch.relu(torch.cat([x[:, :kept] + out[:, :kept], x[:, kept:], out[:, kept:]], 1))


def dual_path_stages(depths: Sequence[int], channels: int) -> list[nn.Module]:
    """DPN's stages."""
    stages: list[nn.Module] = [conv_norm(channels, 64)]
    before = 64
    widths, kept, appended = (96, 192, 384, 768), (256, 512, 1024, 2048), (16, 32, 24, 128)
    for width, keep, append, depth, stride in zip(widths, kept, appended, depths, (1, 2, 2, 2), strict=True):
        blocks = []
        for place in range(depth):
            blocks.append(DualPath(before, width, keep, append, stride if place == 0 else 1, place == 0))
            before = keep + (place + 2) * append
        stages.append(nn.Sequential(*blocks))
    return stages


FOUR, STRIDES = (64, 128, 256, 512), (1, 2, 2, 2)
deep = partial(preactivated, deep=True)
for _layers, _depths, _block, _before in (
    (18, (2, 2, 2, 2), basic, preactivated),
    (34, (3, 4, 6, 3), basic, preactivated),
    (50, (3, 4, 6, 3), bottleneck, deep),
    (101, (3, 4, 23, 3), bottleneck, deep),
):
    pool_network(f"cifar-resnet{_layers}", f"ResNet-{_layers}", partial(stages_of, _block, 64, FOUR, _depths, STRIDES))
    pool_network(
        f"cifar-preact-resnet{_layers}",
        f"PreActResNet-{_layers}",
        partial(stages_of, _before, 64, FOUR, _depths, STRIDES),
    )
pool_network("cifar-resnet44", "ResNet-44", partial(stages_of, basic, 16, (16, 32, 64), (7, 7, 7), (1, 2, 2)))
pool_network(
    "cifar-senet18",
    "SENet-18",
    partial(stages_of, partial(preactivated, squeeze=16), 64, FOUR, (2, 2, 2, 2), STRIDES),
)
for _groups, _width in ((2, 64), (4, 64), (32, 4)):
    _total = _groups * _width
    pool_network(
        f"cifar-resnext29-{_groups}x{_width}d",
        f"ResNeXt-29 with {_groups} groups of {_width}",
        partial(
            stages_of,
            partial(bottleneck, expansion=2, groups=_groups),
            64,
            (_total, 2 * _total, 4 * _total),
            (3, 3, 3),
            (1, 2, 2),
        ),
    )
for _kind, _flops, _widths, _depths, _group, _squeeze in (
    ("x", 200, (24, 56, 152, 368), (1, 1, 4, 7), 8, 0.0),
    ("x", 400, (32, 64, 160, 384), (1, 2, 7, 12), 16, 0.0),
    ("y", 400, (32, 64, 160, 384), (1, 2, 7, 12), 16, 0.25),
):
    pool_network(
        f"cifar-regnet{_kind}-{_flops}mf",
        f"RegNet{_kind.upper()} of {_flops} MFLOPs at 224 px",
        partial(stages_of, partial(regnet_block, group=_group, squeeze=_squeeze), 64, _widths, _depths, (1, 1, 2, 2)),
    )
pool_network("cifar-dpn26", "DPN-26", partial(dual_path_stages, (2, 2, 2, 2)))
pool_network("cifar-dpn92", "DPN-92", partial(dual_path_stages, (3, 4, 20, 3)))
