"""The kernels of the ConvNet for MNIST, run on the CPU by triton's interpreter."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# Triton decides when a kernel is defined whether it is compiled or interpreted: so in a process of its own.
SCRIPT = """
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


def test_values_and_gradients_are_those_of_the_modules_and_a_second_derivative_is_refused():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == "The fused group norm has no second derivative.", run.stderr
