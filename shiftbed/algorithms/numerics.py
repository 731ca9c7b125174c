"""Precision, ramps and gradients turned round: what algorithms of several families share."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(features: torch.Tensor) -> Iterator[torch.Tensor]:
    """Features in float32 at least, and no autocast while they are used: kernels and second derivatives need it."""
    half = features.dtype in (torch.float16, torch.bfloat16)
    with torch.autocast(features.device.type, enabled=False):
        yield features.float() if half else features


def ramp(progress: float) -> float:
    """From 0 at the start of training, steeply at first, to nearly 1 at its end."""
    return 2 / (1 + math.exp(-10 * progress)) - 1


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.factor * gradients[0], None


def scale_gradient(features: torch.Tensor, factor: float) -> torch.Tensor:
    """The features themselves; their gradient is multiplied by a factor."""
    return _ScaleGradient.apply(features, factor)


def reverse_gradient(features: torch.Tensor, weight: float) -> torch.Tensor:
    """The features themselves; what is trained on them descends, what they come from ascends with this weight."""
    return scale_gradient(features, -weight)
