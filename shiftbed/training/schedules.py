"""Learning rates over a run, set by the engine: an algorithm that rebuilds its optimizer keeps its place."""

import math
from collections.abc import Iterable

import torch

from shiftbed.training.recipes import Recipe


def learning_rate_factor(recipe: Recipe, step: int) -> float:
    """What the initial learning rate is multiplied with at a step: it may rise first, and then follows the schedule."""
    rising = recipe.warm_up * recipe.steps
    if step < rising:
        return min(1.0, (step + 1) / rising)
    if recipe.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (recipe.steps - rising)))
    if recipe.schedule == "drop":
        return 0.1 ** (step >= recipe.drop_at * recipe.steps)
    return 1.0


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], recipe: Recipe, step: int) -> None:
    """Brings every optimizer to the learning rate of a step."""
    if recipe.schedule == "constant" and not recipe.warm_up:
        return
    factor = learning_rate_factor(recipe, step)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            initial = group.setdefault("initial_lr", float(group["lr"]))
            if group.get("capturable"):  # a captured step reads the rate from the device
                if not isinstance(group["lr"], torch.Tensor):
                    group["lr"] = torch.tensor(initial, device=group["params"][0].device)
                group["lr"].fill_(initial * factor)
            else:
                group["lr"] = initial * factor
