"""ReLU and group norm of convolution maps, in one GPU kernel each way.

The maps of a small network are read and written more often than they are worked on: what stands between two
convolutions goes over them three times forward and nine times backward once torch has compiled it, and here twice and
three times. Nor does it take seconds to compile for every new batch size.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

# Channels of a program at least, and values that a thread holds, forward and backward; the fastest on an H200.
FORWARD, BACKWARD = (32, 64), (16, 64)


@triton.jit
def _by_group(of_channels, tile: tl.constexpr, size: tl.constexpr):
    """The sum over its group, for each channel."""
    sums = tl.sum(tl.reshape(of_channels, (tile // size, size)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (tile // size, size)), (tile,))


@triton.jit
def _forward(
    x_ptr, bias_ptr, weight_ptr, shift_ptr, y_ptr, mean_ptr, scale_ptr, eps, channels: tl.constexpr,
    places: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr, size: tl.constexpr, pooled: tl.constexpr,
):  # fmt: skip
    """Some channels of one image; mean and scale of their groups are kept for the way back."""
    n, c = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
    row = tl.arange(0, rows)[:, None]
    where = n.to(tl.int64) * places * channels + row * channels + c[None, :]
    x = tl.load(x_ptr + where, mask=row < places, other=0.0).to(tl.float32) + tl.load(bias_ptr + c)[None, :]
    x = tl.where(row < places, tl.maximum(x, 0.0), 0.0)
    mean = _by_group(tl.sum(x, 0), tile, size) / (places * size)
    x = tl.where(row < places, x - mean[None, :], 0.0)
    scale = 1.0 / tl.sqrt(_by_group(tl.sum(x * x, 0), tile, size) / (places * size) + eps)
    weight, shift = tl.load(weight_ptr + c), tl.load(shift_ptr + c)
    if pooled:
        y = tl.sum(x, 0) / places * scale * weight + shift
        tl.store(y_ptr + n * channels + c, y.to(y_ptr.dtype.element_ty))
    else:
        y = x * (scale * weight)[None, :] + shift[None, :]
        tl.store(y_ptr + where, y.to(y_ptr.dtype.element_ty), mask=row < places)
    tl.store(mean_ptr + n * channels + c, mean)
    tl.store(scale_ptr + n * channels + c, scale)


@triton.jit
def _backward(
    x_ptr, bias_ptr, weight_ptr, dy_ptr, mean_ptr, scale_ptr, dx_ptr, parts_ptr, channels: tl.constexpr,
    places: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr, size: tl.constexpr, pooled: tl.constexpr,
):  # fmt: skip
    """Some channels of one image: the gradient of the maps, and this image's part of those of the parameters."""
    n, c = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
    row = tl.arange(0, rows)[:, None]
    where = n.to(tl.int64) * places * channels + row * channels + c[None, :]
    x = tl.load(x_ptr + where, mask=row < places, other=0.0).to(tl.float32) + tl.load(bias_ptr + c)[None, :]
    if pooled:
        dy = tl.where(row < places, (tl.load(dy_ptr + n * channels + c).to(tl.float32) / places)[None, :], 0.0)
    else:
        dy = tl.load(dy_ptr + where, mask=row < places, other=0.0).to(tl.float32)
    mean, scale = tl.load(mean_ptr + n * channels + c), tl.load(scale_ptr + n * channels + c)
    weight = tl.load(weight_ptr + c)
    normed = tl.where(row < places, (tl.maximum(x, 0.0) - mean[None, :]) * scale[None, :], 0.0)
    dshift, dweight = tl.sum(dy, 0), tl.sum(dy * normed, 0)
    level = _by_group(dshift * weight, tile, size) / (places * size)
    slope = _by_group(dweight * weight, tile, size) / (places * size)
    dx = (dy * weight[None, :] - level[None, :] - normed * slope[None, :]) * scale[None, :]
    dx = tl.where((row < places) & (x > 0), dx, 0.0)
    tl.store(dx_ptr + where, dx.to(dx_ptr.dtype.element_ty), mask=row < places)
    part = parts_ptr + n * 3 * channels + c
    tl.store(part, dweight)
    tl.store(part + channels, dshift)
    tl.store(part + 2 * channels, tl.sum(dx, 0))


@triton.jit
def _total(parts_ptr, total_ptr, count, width: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr):
    """The sum over all images, always in the same order."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)[None, :]
    total = tl.zeros((rows, columns), tl.float32)
    for start in range(0, count, rows):
        row = start + tl.arange(0, rows)[:, None]
        inside = (row < count) & (column < width)
        total += tl.load(parts_ptr + row * width + column, mask=inside, other=0.0)
    first = tl.program_id(0) * columns + tl.arange(0, columns)
    tl.store(total_ptr + first, tl.sum(total, 0), mask=first < width)


class ReluGroupNorm(torch.autograd.Function):
    """`group_norm(relu(x + bias))`; differentiable once. Every sum is in float32, and always in the same order."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        x: torch.Tensor,
        bias: torch.Tensor,
        weight: torch.Tensor,
        shift: torch.Tensor,
        groups: int,
        eps: float,
        pooled: bool,
    ) -> torch.Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        n, c = x.shape[:2]
        mean, scale = torch.empty(2, n, c, device=x.device)
        y = torch.empty_like(mean if pooled else x)  # as torch's norm, a mean is in float32
        grid, constants = _launch(x, groups, *FORWARD)
        _forward[grid](x, bias, weight, shift, y, mean, scale, eps, **constants, pooled=pooled)
        ctx.save_for_backward(x, bias, weight, mean, scale)
        ctx.groups, ctx.pooled = groups, pooled
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError("The fused group norm has no second derivative.")
        x, bias, weight, mean, scale = ctx.saved_tensors
        n, c = x.shape[:2]
        dy = dy.contiguous(memory_format=torch.contiguous_format if ctx.pooled else torch.channels_last)
        dx, parts, totals = torch.empty_like(x), mean.new_empty(n, 3, c), mean.new_empty(3, c)
        grid, constants = _launch(x, ctx.groups, *BACKWARD)
        _backward[grid](x, bias, weight, dy, mean, scale, dx, parts, **constants, pooled=ctx.pooled)
        _total[(triton.cdiv(3 * c, 32),)](parts, totals, n, width=3 * c, columns=32, rows=64)
        return dx, totals[2], totals[0], totals[1], None, None, None


def _launch(x: torch.Tensor, groups: int, channels: int, values: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, one image and some of its groups a program, and what the kernel is compiled for."""
    n, c, height, width = x.shape
    tile, rows = max(c // groups, min(channels, c)), triton.next_power_of_2(height * width)
    warps = min(16, max(1, rows * tile // (32 * values)))
    fixed = {"channels": c, "places": height * width, "rows": rows, "tile": tile, "size": c // groups}
    return (n, c // tile), {**fixed, "num_warps": warps}


def relu_group_norm(x: torch.Tensor, bias: torch.Tensor, norm: nn.GroupNorm, pooled: bool = False) -> torch.Tensor:
    """The norm of what ReLU leaves of convolution maps.

    Args:
        x: What a convolution without its bias gives, N×C×H×W.
        bias: The convolution's bias.
        norm: Its groups, weight and bias.
        pooled: Give the mean over all places, N×C, instead of the maps.
    """
    return ReluGroupNorm.apply(x, bias, norm.weight, norm.bias, norm.num_groups, norm.eps, pooled)
