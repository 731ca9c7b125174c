"""The kernels of the ConvNet for MNIST beside torch's and beside the time that their bytes take.

python perf/mnist_kernels.py            at three sizes; the first block, the other norms, a step and an evaluation
python perf/mnist_kernels.py --shapes   the first block with programs of several shapes
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from gpu_time import BANDWIDTH, microseconds
from torch import nn

from shiftbed.networks import fused
from shiftbed.networks.convolutional import MnistConvNet

SIZES = (242, 910, 4096)  # images; the first two are a middle and a large draw of DomainBed's ColoredMNIST
# Places, warps and stages of a program.
SHAPES = [(16, 4, 2), (32, 2, 2), (32, 4, 1), (32, 4, 2), (32, 4, 3), (32, 8, 2), (64, 4, 2), (64, 8, 2), (64, 8, 3)]
Block = Callable[[torch.Tensor, nn.Conv2d, nn.GroupNorm], torch.Tensor]


def apart(x: torch.Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> torch.Tensor:
    """The first block as cuDNN's convolution and a kernel for the rest."""
    return fused.relu_group_norm(F.conv2d(x, conv.weight, None, conv.stride, conv.padding), conv.bias, norm)


def modules(x: torch.Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> torch.Tensor:
    """The first block as its modules compute it."""
    return norm(torch.relu(conv(x)))


def there_and_back(
    block: Block, x: torch.Tensor, conv: nn.Conv2d, norm: nn.GroupNorm, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Forward, and the gradients of the parameters."""
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        y = block(x, conv, norm)
    return torch.autograd.grad(y, [*conv.parameters(), *norm.parameters()], dy.to(y))


def forward(block: Block, x: torch.Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> torch.Tensor:
    """Forward alone, as evaluation does it."""
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        return block(x, conv, norm)


def layers() -> tuple[nn.Conv2d, nn.GroupNorm]:
    """A first convolution and its norm."""
    return nn.Conv2d(2, 64, 3, padding=1).cuda(), nn.GroupNorm(8, 64).cuda()


def images(count: int) -> torch.Tensor:
    """Two channels of 28×28, channels last, as pools hand them out."""
    return torch.rand(count, 28, 28, 2, device="cuda").permute(0, 3, 1, 2)


def maps(count: int, channels: int, side: int) -> torch.Tensor:
    """Maps or their gradients."""
    made = torch.randn(count, channels, side, side, device="cuda", dtype=torch.bfloat16)
    return made.to(memory_format=torch.channels_last)


def first_block(count: int) -> None:
    """The first block by three ways."""
    x, dy, floor = images(count), maps(count, 64, 28), 1e6 * count * 64 * 28 * 28 * 2 / BANDWIDTH
    print(f"{count} images, first block; its maps once: {floor:.0f} µs")
    for name, block in (("modules", modules), ("convolution apart", apart), ("one kernel", fused.first_block)):
        conv, norm = layers()
        there = microseconds(partial(forward, block, x, conv, norm))
        both = microseconds(partial(there_and_back, block, x, conv, norm, dy))
        print(f"  {name}: {there:.0f} µs forward, {both:.0f} with backward", flush=True)


def shapes(count: int) -> None:
    """The first block with programs of several shapes."""
    x, dy = images(count), maps(count, 64, 28)
    fused.FIRST_FORWARD = fused.FIRST_BACKWARD = SHAPES[3]
    found = []
    for shape in SHAPES:
        conv, norm = layers()
        fused.FIRST_FORWARD = shape
        there = microseconds(partial(forward, fused.first_block, x, conv, norm))
        fused.FIRST_FORWARD, fused.FIRST_BACKWARD = SHAPES[3], shape
        both = microseconds(partial(there_and_back, fused.first_block, x, conv, norm, dy))
        found.append((there, both, shape))
    for way, which in (("forward", 0), ("with backward", 1)):
        best = ", ".join(f"{one[which]:.0f} {one[2]}" for one in sorted(found, key=lambda one: one[which]))
        print(f"{count} images, {way} (places, warps, stages): {best}", flush=True)


def norms(count: int) -> None:
    """ReLU and group norm of the three other blocks, each."""
    x, norm = maps(count, 128, 14).requires_grad_(), nn.GroupNorm(8, 128).cuda()
    bias, dy = torch.zeros(128, device="cuda", requires_grad=True), maps(count, 128, 14)
    floor = 1e6 * x.numel() * 2 / BANDWIDTH

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(fused.relu_group_norm(x, bias, norm), [x, bias, norm.weight, norm.bias], dy)

    with torch.no_grad():
        there = microseconds(partial(fused.relu_group_norm, x, bias, norm))
    back = microseconds(both) - there
    print(
        f"{count} images, a norm: {there:.0f} µs forward, {back:.0f} backward; bytes {2 * floor:.0f}, {3 * floor:.0f}"
    )


def network(count: int) -> None:
    """A step without its optimizer, and an evaluation."""
    net = nn.Sequential(MnistConvNet((2, 28, 28), {}), nn.Linear(128, 2)).cuda().to(memory_format=torch.channels_last)
    net[0].accelerate()
    x, y = images(count), torch.zeros(count, dtype=torch.long, device="cuda")

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return F.cross_entropy(net(x), y)

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(loss(), list(net.parameters()))

    with torch.no_grad():
        there = microseconds(loss)
    both = microseconds(step)
    work = 146e6 * count
    print(
        f"{count} images, network: {there:.0f} µs forward ({work / there / 1e6:.0f} TFLOP/s), {both:.0f} with backward"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", action="store_true")
    if parser.parse_args().shapes:
        for size in SIZES:
            shapes(size)
    else:
        for size in SIZES:
            for measure in (first_block, norms, network):
                measure(size)
