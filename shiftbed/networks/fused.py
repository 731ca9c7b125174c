"""ReLU and group norm of convolution maps, and the first convolution with both, in one GPU kernel each way.

The maps of a small network are read and written more often than they are worked on: what stands between two
convolutions goes over them three times forward and nine times backward once torch has compiled it, and here twice and
three times. Nor does it take seconds to compile for every new batch size. The maps of the first convolution are the
largest and take the least arithmetic, so they are computed again wherever they are looked at, and never written.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

# The fastest on an H200. Forward a program has all places of some channels; backward it goes over them in pieces.
CHANNELS, VALUES = 32, 64  # at least, and of a thread
BACKWARD_CHANNELS, PIECE, WARPS = 64, 16, 4
# Of the first convolution: places, warps and stages each way, and how many programs share the images of a batch.
FIRST_FORWARD, FIRST_BACKWARD, PROGRAMS = (32, 4, 3), (64, 4, 2), 528


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
    places: tl.constexpr, piece: tl.constexpr, tile: tl.constexpr, size: tl.constexpr, pooled: tl.constexpr,
):  # fmt: skip
    """Some channels of one image: the gradient of the maps, and this image's part of those of the parameters."""
    n, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * tile + tl.arange(0, tile)
    x_ptr += n * places * channels
    dx_ptr += n * places * channels
    dy_ptr += n * channels if pooled else n * places * channels
    bias, weight = tl.load(bias_ptr + c)[None, :], tl.load(weight_ptr + c)
    mean, scale = tl.load(mean_ptr + n * channels + c), tl.load(scale_ptr + n * channels + c)
    total, product = tl.zeros((piece, tile), tl.float32), tl.zeros((piece, tile), tl.float32)
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        x = tl.load(x_ptr + row * channels + c[None, :], mask=row < places, other=0.0).to(tl.float32) + bias
        dy = _gradient(dy_ptr, row, c, channels, places, pooled)
        total += dy
        product += dy * tl.maximum(x, 0.0)
    dshift = tl.sum(total, 0)
    dweight = (tl.sum(product, 0) - mean * dshift) * scale
    by_dy, by_x, level = _slopes(dweight, dshift, weight, mean, scale, places, tile, size)
    total = tl.zeros((piece, tile), tl.float32)
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        x = tl.load(x_ptr + row * channels + c[None, :], mask=row < places, other=0.0).to(tl.float32) + bias
        dx = _gradient(dy_ptr, row, c, channels, places, pooled) * by_dy[None, :] + x * by_x[None, :] + level[None, :]
        dx = tl.where((row < places) & (x > 0), dx, 0.0)
        tl.store(dx_ptr + row * channels + c[None, :], dx.to(dx_ptr.dtype.element_ty), mask=row < places)
        total += dx
    part = parts_ptr + n * 3 * channels + c
    tl.store(part, dweight)
    tl.store(part + channels, dshift)
    tl.store(part + 2 * channels, tl.sum(total, 0))


@triton.jit
def _gradient(dy_ptr, row, c, channels: tl.constexpr, places: tl.constexpr, pooled: tl.constexpr):
    """The gradient of some places' output, zero outside of the image."""
    if pooled:
        return tl.where(row < places, (tl.load(dy_ptr + c).to(tl.float32) / places)[None, :], 0.0)
    return tl.load(dy_ptr + row * channels + c[None, :], mask=row < places, other=0.0).to(tl.float32)


@triton.jit
def _slopes(dweight, dshift, weight, mean, scale, places: tl.constexpr, tile: tl.constexpr, size: tl.constexpr):
    """What dx is made of, `by_dy · dy + by_x · x + level`.

    It is scale · (weight · dy − mean of weight · dy over the group − normed x · mean of weight · dy · normed x).
    """
    by_x = -scale * scale * _by_group(dweight * weight, tile, size) / (places * size)
    level = -scale * _by_group(dshift * weight, tile, size) / (places * size) - mean * by_x
    return scale * weight, by_x, level


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
        tile, rows = max(c // groups, min(CHANNELS, c)), triton.next_power_of_2(x.shape[2] * x.shape[3])
        warps = min(16, max(1, rows * tile // (32 * VALUES)))
        sizes = {"channels": c, "places": x.shape[2] * x.shape[3], "size": c // groups, "pooled": pooled}
        _forward[(n, c // tile)](
            x, bias, weight, shift, y, mean, scale, eps, **sizes, tile=tile, rows=rows, num_warps=warps
        )
        ctx.save_for_backward(x, bias, weight, mean, scale)
        ctx.sizes = sizes
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError("The fused group norm has no second derivative.")
        x, bias, weight, mean, scale = ctx.saved_tensors
        n, c = x.shape[:2]
        dy = dy.contiguous(memory_format=torch.contiguous_format if dy.ndim == 2 else torch.channels_last)
        dx, parts, totals = torch.empty_like(x), mean.new_empty(n, 3, c), mean.new_empty(3, c)
        tile = max(ctx.sizes["size"], min(BACKWARD_CHANNELS, c))
        given = (x, bias, weight, dy, mean, scale, dx, parts)
        _backward[(n, c // tile)](*given, **ctx.sizes, tile=tile, piece=PIECE, num_warps=WARPS)
        _total[(triton.cdiv(3 * c, 32),)](parts, totals, n, width=3 * c, columns=32, rows=64)
        return dx, totals[2], totals[0], totals[1], None, None, None


def relu_group_norm(x: torch.Tensor, bias: torch.Tensor, norm: nn.GroupNorm, pooled: bool = False) -> torch.Tensor:
    """The norm of what ReLU leaves of convolution maps.

    Args:
        x: What a convolution without its bias gives, N×C×H×W.
        bias: The convolution's bias.
        norm: Its groups, weight and bias.
        pooled: Give the mean over all places, N×C, instead of the maps.
    """
    return ReluGroupNorm.apply(x, bias, norm.weight, norm.bias, norm.num_groups, norm.eps, pooled)


@triton.jit
def _unfold(
    x_ptr, patches_ptr, count, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, k: tl.constexpr,
    piece: tl.constexpr,
):  # fmt: skip
    """What lies under each place of the output: 3×3 pixels, each with its channels, then two ones for the bias."""
    place, value = tl.program_id(0) * piece + tl.arange(0, piece)[:, None], tl.arange(0, k)[None, :]
    tap = value // channels
    down, right = tap // 3 - 1, tap % 3 - 1
    row, column = place // width % height + down, place % width + right
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (tap < 9) & (place < count)
    where = place.to(tl.int64) * channels + (down * width + right) * channels + value % channels
    pixels = tl.load(x_ptr + where, mask=inside, other=0.0)
    ones = (value == 9 * channels) | (value == 9 * channels + 1)
    values = tl.where(ones, 1.0, pixels).to(patches_ptr.dtype.element_ty)
    tl.store(patches_ptr + place.to(tl.int64) * k + value, values, mask=place < count)


@triton.jit
def _first_forward(
    patches_ptr, filters_ptr, weight_ptr, shift_ptr, y_ptr, mean_ptr, scale_ptr, eps, places: tl.constexpr,
    k: tl.constexpr, channels: tl.constexpr, size: tl.constexpr, piece: tl.constexpr,
):  # fmt: skip
    """One image. Patches outside of it are zero, ones included, and so is all that is computed of them."""
    n, c, value = tl.program_id(0).to(tl.int64), tl.arange(0, channels), tl.arange(0, k)
    patches_ptr += n * places * k
    y_ptr += n * places * channels
    filters = tl.load(filters_ptr + value[:, None] * channels + c[None, :])
    total, square = tl.zeros((piece, channels), tl.float32), tl.zeros((piece, channels), tl.float32)
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        patches = tl.load(patches_ptr + row * k + value[None, :], mask=row < places, other=0.0)
        x = tl.maximum(tl.dot(patches, filters, input_precision="ieee"), 0.0)
        total += x
        square += x * x
    mean = _by_group(tl.sum(total, 0), channels, size) / (places * size)
    variance = _by_group(tl.sum(square, 0), channels, size) / (places * size) - mean * mean
    scale = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
    slope = scale * tl.load(weight_ptr + c)
    level = tl.load(shift_ptr + c) - mean * slope
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        patches = tl.load(patches_ptr + row * k + value[None, :], mask=row < places, other=0.0)
        x = tl.maximum(tl.dot(patches, filters, input_precision="ieee"), 0.0)
        y = x * slope[None, :] + level[None, :]
        tl.store(y_ptr + row * channels + c[None, :], y.to(y_ptr.dtype.element_ty), mask=row < places)
    tl.store(mean_ptr + n * channels + c, mean)
    tl.store(scale_ptr + n * channels + c, scale)


@triton.jit
def _first_backward(
    patches_ptr, filters_ptr, weight_ptr, dy_ptr, mean_ptr, scale_ptr, dweight_ptr, dshift_ptr, dfilters_ptr, count,
    places: tl.constexpr, k: tl.constexpr, channels: tl.constexpr, size: tl.constexpr, piece: tl.constexpr,
):  # fmt: skip
    """Some images: their gradients of the norm, and their sum of the gradients of the filters and the bias."""
    c, value = tl.arange(0, channels), tl.arange(0, k)
    filters = tl.load(filters_ptr + value[:, None] * channels + c[None, :])
    dfilters = tl.zeros((k, channels), tl.float32)
    for before in range(0, count - tl.program_id(0), tl.num_programs(0)):
        n = tl.program_id(0).to(tl.int64) + before
        from_ptr, gradient_ptr = patches_ptr + n * places * k, dy_ptr + n * places * channels
        total, product = tl.zeros((piece, channels), tl.float32), tl.zeros((piece, channels), tl.float32)
        for start in range(0, places, piece):
            row = start + tl.arange(0, piece)[:, None]
            patches = tl.load(from_ptr + row * k + value[None, :], mask=row < places, other=0.0)
            dy = _gradient(gradient_ptr, row, c, channels, places, False)
            total += dy
            product += dy * tl.maximum(tl.dot(patches, filters, input_precision="ieee"), 0.0)
        mean, scale = tl.load(mean_ptr + n * channels + c), tl.load(scale_ptr + n * channels + c)
        weight, dshift = tl.load(weight_ptr + c), tl.sum(total, 0)
        dweight = (tl.sum(product, 0) - mean * dshift) * scale
        tl.store(dweight_ptr + n * channels + c, dweight)
        tl.store(dshift_ptr + n * channels + c, dshift)
        by_dy, by_x, level = _slopes(dweight, dshift, weight, mean, scale, places, channels, size)
        for start in range(0, places, piece):
            row = start + tl.arange(0, piece)[:, None]
            patches = tl.load(from_ptr + row * k + value[None, :], mask=row < places, other=0.0)
            dy = _gradient(gradient_ptr, row, c, channels, places, False)
            x = tl.dot(patches, filters, input_precision="ieee")
            dx = tl.where(x > 0, dy * by_dy[None, :] + x * by_x[None, :] + level[None, :], 0.0)
            dfilters += tl.dot(tl.trans(patches), dx.to(patches.dtype), input_precision="ieee")
    tl.store(dfilters_ptr + (tl.program_id(0) * k + value[:, None]) * channels + c[None, :], dfilters)


class FirstBlock(torch.autograd.Function):
    """`group_norm(relu(conv(x)))` of images, which need no gradient; its products are of numbers of one kind.

    Every sum is in float32, and always in the same order.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        x: torch.Tensor,
        filters: torch.Tensor,
        bias: torch.Tensor,
        weight: torch.Tensor,
        shift: torch.Tensor,
        groups: int,
        eps: float,
        kind: torch.dtype,
    ) -> torch.Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        n, inputs, height, width = x.shape
        channels, places, k = len(filters), height * width, max(16, triton.next_power_of_2(9 * inputs + 2))
        patches = x.new_empty(n * places, k, dtype=kind)
        sizes = {"height": height, "width": width, "channels": inputs, "k": k, "piece": 128}
        _unfold[(triton.cdiv(n * places, 128),)](x, patches, n * places, **sizes)
        short = bias.to(kind)
        rest = short.new_zeros(k - 9 * inputs - 2, channels)
        rows = filters.permute(2, 3, 1, 0).reshape(-1, channels).to(kind)
        rows = torch.cat([rows, short[None], (bias - short)[None].to(kind), rest])  # the bias, and what rounding took
        y = torch.empty(n, channels, height, width, device=x.device, dtype=kind, memory_format=torch.channels_last)
        mean, scale = torch.empty(2, n, channels, device=x.device)
        ctx.sizes = {"places": places, "k": k, "channels": channels, "size": channels // groups}
        launch = _pieces(*FIRST_FORWARD)
        _first_forward[(n,)](patches, rows, weight, shift, y, mean, scale, eps, **ctx.sizes, **launch)
        ctx.save_for_backward(patches, rows, weight, mean, scale)
        ctx.inputs = inputs
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError("The fused convolution has no second derivative.")
        patches, rows, weight, mean, scale = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        (k, channels), n = rows.shape, len(dy)
        programs = min(n, PROGRAMS)
        parts, of_norm = mean.new_empty(programs, k, channels), mean.new_empty(2, n, channels)
        given = (patches, rows, weight, dy, mean, scale, *of_norm, parts, n)
        _first_backward[(programs,)](*given, **ctx.sizes, **_pieces(*FIRST_BACKWARD))
        total, (dweight, dshift) = parts.sum(0), of_norm.sum(1)
        dfilters = total[: 9 * ctx.inputs].reshape(3, 3, ctx.inputs, channels).permute(3, 2, 0, 1)
        return None, dfilters, total[9 * ctx.inputs], dweight, dshift, None, None, None


def _pieces(places: int, warps: int, stages: int) -> dict[str, int]:
    return {"piece": places, "num_warps": warps, "num_stages": stages}


def first_block(x: torch.Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> torch.Tensor:
    """The norm of what ReLU leaves of a network's first convolution, 3×3 with padding, in one kernel under autocast."""
    assert conv.bias is not None
    if x.requires_grad or not torch.is_autocast_enabled("cuda"):
        return relu_group_norm(F.conv2d(x, conv.weight, None, conv.stride, conv.padding), conv.bias, norm)
    kind = torch.get_autocast_dtype("cuda")
    return FirstBlock.apply(x, conv.weight, conv.bias, norm.weight, norm.bias, norm.num_groups, norm.eps, kind)
