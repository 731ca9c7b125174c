"""The bare loop that everything is measured against: the same network, batch and arithmetic, and nothing else."""

import time

import torch
import torch.nn.functional as F
from torch import nn


def bare_steps_per_second(network: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, autocast: bool) -> float:
    """Adam steps a second of a network on one batch that already lies on the device."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5)
    synchronise = torch.cuda.synchronize if x.is_cuda else lambda: None
    for step in range(-10, steps):
        if step == 0:
            synchronise()
            start = time.perf_counter()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    synchronise()
    return steps / (time.perf_counter() - start)
