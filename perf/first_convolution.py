"""The first convolution of the ConvNet for MNIST by a kernel of its own, against cuDNN's: is it worth having?

    python perf/first_convolution.py                          on a GPU: both, timed alternately, at three sizes
    TRITON_INTERPRET=1 python perf/first_convolution.py       on a CPU: only whether it is right

No fast kernel of cuDNN takes one or two channels. This one gathers the 9 or 18 values under each place of the output,
padded to 16 or 32, and multiplies them with all filters at once; maps are written once, and read once for the gradient
of the filters. The input needs no gradient: it is an image.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from gpu_time import BANDWIDTH, microseconds

PLACES = 128  # of the output, a program and turn
PROGRAMS = 264  # of the gradient, each of which goes over its share of all places; two for each processor of an H200
KIND = (
    torch.bfloat16 if torch.cuda.is_available() else torch.float32
)  # triton's interpreter has no products of bfloat16


@triton.jit
def _patches(x_ptr, place, count, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, k: tl.constexpr):
    """What lies under some places of the output: rows of 3×3 pixels, each with its channels; zeros outside."""
    value = tl.arange(0, k)[None, :]
    tap, c = value // channels, value % channels
    n, y, x = place // (height * width), place // width % height, place % width
    row, column = y[:, None] + tap // 3 - 1, x[:, None] + tap % 3 - 1
    inside = (place < count)[:, None] & (tap < 9) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    where = ((n[:, None] * height + row) * width + column) * channels + c
    return tl.load(x_ptr + where, mask=inside, other=0.0)


@triton.jit
def _forward(
    x_ptr, filters_ptr, out_ptr, count, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    k: tl.constexpr, outputs: tl.constexpr, places: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * places + tl.arange(0, places)
    kind = out_ptr.dtype.element_ty
    patches = _patches(x_ptr, place, count, height, width, channels, k).to(kind)
    o = tl.arange(0, outputs)[None, :]
    filters = tl.load(filters_ptr + tl.arange(0, k)[:, None] * outputs + o)
    out = tl.dot(patches, filters, input_precision="ieee")
    where = place.to(tl.int64)[:, None] * outputs + o
    tl.store(out_ptr + where, out.to(kind), mask=(place < count)[:, None])


@triton.jit
def _gradient(
    x_ptr, gradient_ptr, parts_ptr, count, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    k: tl.constexpr, outputs: tl.constexpr, places: tl.constexpr, programs: tl.constexpr,
):  # fmt: skip
    o = tl.arange(0, outputs)[None, :]
    total = tl.zeros((k, outputs), tl.float32)
    for start in range(tl.program_id(0) * places, count, programs * places):
        place = start + tl.arange(0, places)
        patches = _patches(x_ptr, place, count, height, width, channels, k).to(gradient_ptr.dtype.element_ty)
        where = place.to(tl.int64)[:, None] * outputs + o
        gradient = tl.load(gradient_ptr + where, mask=(place < count)[:, None], other=0.0)
        total += tl.dot(tl.trans(patches), gradient, input_precision="ieee")
    tl.store(parts_ptr + (tl.program_id(0) * k + tl.arange(0, k)[:, None]) * outputs + o, total)


class FirstConvolution(torch.autograd.Function):
    """A 3×3 convolution with padding 1 of images that need no gradient; sums are in float32."""

    @staticmethod
    def forward(ctx, x, weight):
        """The maps, channels last."""
        x = x.contiguous(memory_format=torch.channels_last)
        n, channels, height, width = x.shape
        outputs, k = len(weight), max(16, triton.next_power_of_2(9 * channels))
        filters = x.new_zeros(k, outputs, dtype=KIND)
        filters[: 9 * channels] = weight.permute(2, 3, 1, 0).reshape(-1, outputs)
        out = x.new_empty(n, outputs, height, width, dtype=KIND).to(memory_format=torch.channels_last)
        ctx.sizes = {"height": height, "width": width, "channels": channels, "k": k, "outputs": outputs}
        count = n * height * width
        _forward[(triton.cdiv(count, PLACES),)](x, filters, out, count, **ctx.sizes, places=PLACES)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """The gradient of the filters, always summed in the same order."""
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        channels, outputs, k = (ctx.sizes[name] for name in ("channels", "outputs", "k"))
        parts = x.new_empty(PROGRAMS, k, outputs, dtype=torch.float32)
        count = gradient.numel() // outputs
        _gradient[(PROGRAMS,)](x, gradient, parts, count, **ctx.sizes, places=PLACES, programs=PROGRAMS)
        return None, parts.sum(0)[: 9 * channels].reshape(3, 3, channels, outputs).permute(3, 2, 0, 1)


def by_cudnn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As the network does it today: torch's convolution under autocast."""
    return torch.nn.functional.conv2d(x.to(KIND), weight.to(KIND), padding=1)


def there_and_back(convolution, x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> None:
    """Forward, and the gradient of the filters."""
    convolution(x, weight).backward(gradient)


def check(device: str) -> None:
    """Both against float64."""
    torch.manual_seed(0)
    for channels, side in ((1, (28, 28)), (2, (5, 7)), (3, (9, 4))):
        x, weight = torch.rand(3, channels, *side, device=device), torch.randn(64, channels, 3, 3, device=device)
        weight.requires_grad_()
        probe = torch.randn(3, 64, *side, device=device)
        exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
        right = [exact, torch.autograd.grad((exact * probe).sum(), weight)[0]]
        for convolution in (by_cudnn, FirstConvolution.apply):
            out = convolution(x, weight)
            found = [out, torch.autograd.grad((out.float() * probe).sum(), weight)[0]]
            apart = [
                (one - other).detach().norm() / other.detach().norm() for one, other in zip(found, right, strict=True)
            ]
            errors = [float(one) for one in apart]
            assert max(errors) < (0.01 if KIND is torch.bfloat16 else 1e-5), (convolution, channels, errors)
    print(f"both are right, up to {KIND}'s rounding")


def compare() -> None:
    """Forward, and forward and backward, in microseconds, beside the time that the bytes take."""
    weight = torch.randn(64, 2, 3, 3, device="cuda", requires_grad=True)
    for count in (256, 910, 4096):
        x = torch.rand(count, 2, 28, 28, device="cuda").to(memory_format=torch.channels_last)
        gradient = torch.randn(count, 64, 28, 28, device="cuda", dtype=torch.bfloat16)
        gradient = gradient.to(memory_format=torch.channels_last)
        floor = 1e6 * (gradient.numel() * 2 + x.numel() * 4) / BANDWIDTH
        for name, convolution in (("cuDNN", by_cudnn), ("own", FirstConvolution.apply)):
            forward = microseconds(partial(convolution, x, weight))
            both = microseconds(partial(there_and_back, convolution, x, weight, gradient))
            print(
                f"{count} images, {name}: {forward:.0f} µs forward, {both:.0f} with backward; "
                f"bytes {floor:.0f} and {2 * floor:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    check("cuda" if on_gpu else "cpu")
    if on_gpu:
        compare()
