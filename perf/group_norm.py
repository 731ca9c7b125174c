"""ReLU and group norm over maps in pieces, against the kernels of `networks/fused.py`: which are faster?

    python perf/group_norm.py                          on a GPU: maps of two sizes, all shapes of a program
    TRITON_INTERPRET=1 python perf/group_norm.py       on a CPU: only whether it is right

The kernels in use hold all places of some channels in registers, which leaves room for one program on a processor, and
reach half of the memory's speed. These go over the places twice in pieces; the second time they lie in the cache.
"""

import itertools
from functools import partial

import torch
import triton
import triton.language as tl
from gpu_time import BANDWIDTH, microseconds

from shiftbed.networks import fused
from shiftbed.networks.fused import _by_group

SHAPES = list(itertools.product((32, 64), (16, 32, 64), (2, 4, 8)))  # channels, places and warps of a program


@triton.jit
def _forward(
    x_ptr, bias_ptr, weight_ptr, shift_ptr, y_ptr, mean_ptr, scale_ptr, eps, channels: tl.constexpr,
    places: tl.constexpr, piece: tl.constexpr, tile: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    n, c = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
    first = n.to(tl.int64) * places * channels
    bias = tl.load(bias_ptr + c)[None, :]
    total, square = tl.zeros((tile,), tl.float32), tl.zeros((tile,), tl.float32)
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        x = tl.load(x_ptr + first + row * channels + c[None, :], mask=row < places, other=0.0).to(tl.float32)
        x = tl.where(row < places, tl.maximum(x + bias, 0.0), 0.0)
        total += tl.sum(x, 0)
        square += tl.sum(x * x, 0)
    mean = _by_group(total, tile, size) / (places * size)
    scale = 1.0 / tl.sqrt(_by_group(square, tile, size) / (places * size) - mean * mean + eps)
    slope = scale * tl.load(weight_ptr + c)
    level = tl.load(shift_ptr + c) - mean * slope
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        where = first + row * channels + c[None, :]
        x = tl.load(x_ptr + where, mask=row < places, other=0.0).to(tl.float32)
        y = tl.maximum(x + bias, 0.0) * slope[None, :] + level[None, :]
        tl.store(y_ptr + where, y.to(y_ptr.dtype.element_ty), mask=row < places)
    tl.store(mean_ptr + n * channels + c, mean)
    tl.store(scale_ptr + n * channels + c, scale)


@triton.jit
def _backward(
    x_ptr, bias_ptr, weight_ptr, dy_ptr, mean_ptr, scale_ptr, dx_ptr, parts_ptr, channels: tl.constexpr,
    places: tl.constexpr, piece: tl.constexpr, tile: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    n, c = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
    first = n.to(tl.int64) * places * channels
    bias, weight = tl.load(bias_ptr + c)[None, :], tl.load(weight_ptr + c)
    mean, scale = tl.load(mean_ptr + n * channels + c), tl.load(scale_ptr + n * channels + c)
    dshift, dweight = tl.zeros((tile,), tl.float32), tl.zeros((tile,), tl.float32)
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        where = first + row * channels + c[None, :]
        x = tl.load(x_ptr + where, mask=row < places, other=0.0).to(tl.float32) + bias
        dy = tl.load(dy_ptr + where, mask=row < places, other=0.0).to(tl.float32)
        dshift += tl.sum(dy, 0)
        dweight += tl.sum(dy * (tl.maximum(x, 0.0) - mean[None, :]), 0)
    dweight = dweight * scale
    level = _by_group(dshift * weight, tile, size) / (places * size)
    slope = _by_group(dweight * weight, tile, size) / (places * size)
    dbias = tl.zeros((tile,), tl.float32)
    for start in range(0, places, piece):
        row = start + tl.arange(0, piece)[:, None]
        where = first + row * channels + c[None, :]
        x = tl.load(x_ptr + where, mask=row < places, other=0.0).to(tl.float32) + bias
        dy = tl.load(dy_ptr + where, mask=row < places, other=0.0).to(tl.float32)
        normed = (tl.maximum(x, 0.0) - mean[None, :]) * scale[None, :]
        dx = (dy * weight[None, :] - level[None, :] - normed * slope[None, :]) * scale[None, :]
        dx = tl.where((row < places) & (x > 0), dx, 0.0)
        tl.store(dx_ptr + where, dx.to(dx_ptr.dtype.element_ty), mask=row < places)
        dbias += tl.sum(dx, 0)
    part = parts_ptr + n * 3 * channels + c
    tl.store(part, dweight)
    tl.store(part + channels, dshift)
    tl.store(part + 2 * channels, dbias)


# The kernel in use and how it is launched, the one in pieces, and how often the maps are read and written at least.
WAYS = {
    "forward": (fused._forward, fused.FORWARD, _forward, 2),
    "backward": (fused._backward, fused.BACKWARD, _backward, 3),
}


class Maps:
    """Maps of a convolution and all that the kernels read and write."""

    def __init__(self, n: int, channels: int, side: int, device: str, kind: torch.dtype) -> None:
        def made(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=device)

        self.x, self.dy = (
            made(n, channels, side, side).to(kind).to(memory_format=torch.channels_last) for _ in range(2)
        )
        self.y, self.dx = torch.empty_like(self.x), torch.empty_like(self.x)
        self.bias, self.weight, self.shift = made(3, channels)
        self.mean, self.scale = made(2, n, channels)
        self.parts = made(n, 3, channels)

    def forward(self, kernel, grid: tuple[int, int], **constants) -> None:
        """One call of a forward kernel."""
        given = (self.x, self.bias, self.weight, self.shift, self.y, self.mean, self.scale, 1e-5)
        kernel[grid](*given, **constants)

    def backward(self, kernel, grid: tuple[int, int], **constants) -> None:
        """One call of a backward kernel."""
        given = (self.x, self.bias, self.weight, self.dy, self.mean, self.scale, self.dx, self.parts)
        kernel[grid](*given, **constants)

    def pieces(self, tile: int, piece: int, warps: int) -> tuple[tuple[int, int], dict[str, int]]:
        """The grid and the constants of a kernel that goes over places in pieces."""
        n, channels, height, width = self.x.shape
        fixed = {"channels": channels, "places": height * width, "size": channels // 8}
        return (n, channels // tile), {**fixed, "tile": tile, "piece": piece, "num_warps": warps}


def check(device: str, kind: torch.dtype) -> None:
    """The kernels in pieces against those in use."""
    for channels, side in ((64, 7), (128, 5)):
        maps, same = [Maps(3, channels, side, device, kind) for _ in range(2)]
        same.__dict__.update({name: value.clone() for name, value in maps.__dict__.items()})
        for way, (used, launch, own, _) in WAYS.items():
            grid, constants = fused._launch(same.x, 8, *launch)
            getattr(same, way)(used, grid, **constants, pooled=False)
            grid, constants = maps.pieces(64, 16, 4)
            getattr(maps, way)(own, grid, **constants)
        for name in ("y", "mean", "scale", "dx", "parts"):
            torch.testing.assert_close(getattr(maps, name), getattr(same, name), rtol=1e-2, atol=1e-2, msg=name)
    print("both give the same")


def compare() -> None:
    """Both ways of all maps that are normed, beside the time that the bytes take."""
    for n, (channels, side) in itertools.product((256, 910), ((64, 28), (128, 14))):
        maps = Maps(n, channels, side, "cuda", torch.bfloat16)
        for way, (used, launch, own, passes) in WAYS.items():
            call = getattr(maps, way)
            grid, constants = fused._launch(maps.x, 8, *launch)
            now = microseconds(partial(call, used, grid, **constants, pooled=False))
            found = []
            for shape in SHAPES:
                grid, constants = maps.pieces(*shape)
                found.append((microseconds(partial(call, own, grid, **constants)), shape))
            best = ", ".join(f"{time:.0f} {shape}" for time, shape in sorted(found)[:4])
            floor = passes * 1e6 * 2 * maps.x.numel() / BANDWIDTH
            print(
                f"{n}×{channels}×{side}×{side} {way}: {now:.0f} µs in use, bytes {floor:.0f}; in pieces (channels, "
                f"places, warps) {best}",
                flush=True,
            )


if __name__ == "__main__":
    if torch.cuda.is_available():
        check("cuda", torch.bfloat16)
        compare()
    else:
        check("cpu", torch.float32)
