"""Precision and ramps that algorithms of several families share."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

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
