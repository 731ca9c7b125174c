"""The kernels of the ConvNet for MNIST, run on the CPU by triton's interpreter."""

import inspect
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")

# Triton decides when a kernel is defined whether it is compiled or interpreted: so in a process of its own.
NORM = """
import torch
from torch import nn
from shiftbed.networks.fused import relu_group_norm

torch.manual_seed(0)
for count, channels, side, groups in ((2, 64, (7, 5), 8), (1, 128, (4, 4), 8), (70, 8, (3, 3), 2)):
    for pooled in (False, True):
        x = torch.randn(count, channels, *side, requires_grad=True)
        bias, norm = torch.randn(channels, requires_grad=True), nn.GroupNorm(groups, channels)
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
        expected = norm(torch.relu(x + bias[:, None, None]))
        expected = expected.mean((2, 3)) if pooled else expected
        found = relu_group_norm(x, bias, norm, pooled)
        probe = torch.randn_like(found)
        learned = (x, bias, norm.weight, norm.bias)
        pairs = zip(*([y, *torch.autograd.grad((y * probe).sum(), learned)] for y in (expected, found)))
        for one, other in pairs:
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
try:
    torch.autograd.grad(relu_group_norm(x, bias, norm).sum(), (bias,), create_graph=True)
except RuntimeError as error:
    print(error)
"""


# Three images and two programs: one of them has two. The interpreter has no products of bfloat16.
FIRST = """
import torch
from torch import nn
from shiftbed.networks import fused

torch.manual_seed(0)
fused.PROGRAMS = 2
for channels, side in ((1, (9, 7)), (2, (8, 8)), (3, (5, 4))):
    x, conv, norm = torch.rand(3, channels, *side), nn.Conv2d(channels, 64, 3, padding=1), nn.GroupNorm(8, 64)
    learned = [*conv.parameters(), *norm.parameters()]
    for parameter in learned:
        nn.init.normal_(parameter)
    expected = norm(torch.relu(conv(x)))
    found = fused.FirstBlock.apply(x, *learned, 8, norm.eps, torch.float32)
    probe = torch.randn_like(found)
    pairs = zip(*([y, *torch.autograd.grad((y * probe).sum(), learned)] for y in (expected, found)))
    for one, other in pairs:
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
constant = (torch.zeros(64, 3, 3, 3), torch.linspace(60, 90, 8).repeat_interleave(8), *learned[2:])
flat = fused.FirstBlock.apply(x, *constant, 8, 1e-5, torch.float32)
assert flat.isfinite().all()
try:
    y = fused.FirstBlock.apply(x, *learned, 8, norm.eps, torch.float32)
    torch.autograd.grad(y.sum(), learned, create_graph=True)
except RuntimeError as error:
    print(error)
"""


def interpreted(script):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


def test_values_and_gradients_are_those_of_the_modules_and_a_second_derivative_is_refused():
    run = interpreted(NORM)
    assert run.stdout.strip() == "The fused group norm has no second derivative.", run.stderr


def test_a_first_convolution_in_one_kernel_is_that_of_the_modules():
    run = interpreted(FIRST)
    assert run.stdout.strip() == "The fused convolution has no second derivative.", run.stderr


# What the interpreter takes and the compiler refuses is more than nothing, and a GPU is not needed to see it.
SIZES = {"channels": 128, "places": 196, "size": 16, "tile": 64}
FIRST_SIZES = {"channels": 64, "places": 784, "size": 8, "k": 32, "piece": 32}


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        ("_forward", {**SIZES, "rows": 256, "pooled": False}),
        ("_forward", {**SIZES, "rows": 256, "pooled": True}),
        ("_backward", {**SIZES, "piece": 16, "pooled": False}),
        ("_backward", {**SIZES, "piece": 16, "pooled": True}),
        ("_total", {"width": 384, "columns": 32, "rows": 64}),
        ("_unfold", {"height": 28, "width": 28, "channels": 2, "k": 32, "piece": 128}),
        ("_first_forward", FIRST_SIZES),
        ("_first_backward", FIRST_SIZES),
    ],
)
def test_kernels_compile_for_a_gpu(kernel, sizes, tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from shiftbed.networks import fused

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function = getattr(fused, kernel)
    maps = {"x_ptr", "y_ptr", "dy_ptr", "dx_ptr", "patches_ptr", "filters_ptr"}
    kinds = {"eps": "fp32", "count": "i32", **dict.fromkeys(sizes, "constexpr")}
    signature = {name: kinds.get(name, "*bf16" if name in maps else "*fp32") for name in function.arg_names}
    constants = {(function.arg_names.index(name),): size for name, size in sizes.items()}
    if "constants" in inspect.signature(ASTSource).parameters:  # triton of torch 2.6 names and does not type them
        signature = {name: kind for name, kind in signature.items() if name not in sizes}
        constants = sizes
    source = ASTSource(function, signature, constants)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
