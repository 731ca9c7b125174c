"""Networks of one kind that are trained side by side: one batched computation in place of many small ones."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

Step = TypeVar("Step")


def normalises_batches(model: nn.Module) -> bool:
    """Whether a network has batch norm, whose statistics cannot be batched."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def as_one(models: Sequence[nn.Module]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A function of inputs networks × batch, and the parameters it depends on; `give_back` returns them."""
    if len(models) == 1:

        def single(*inputs: torch.Tensor) -> Any:
            made = models[0](*(one[0] for one in inputs))
            return tuple(one[None] for one in made) if isinstance(made, tuple) else made[None]

        return single, list(models[0].parameters())
    parameters, buffers = torch.func.stack_module_state(list(models))
    body = copy.deepcopy(models[0])

    def one(weights: dict[str, torch.Tensor], fixed: dict[str, torch.Tensor], *inputs: torch.Tensor) -> Any:
        return torch.func.functional_call(body, (weights, fixed), inputs)

    every = torch.vmap(one, randomness="different")
    return lambda *inputs: every(parameters, buffers, *inputs), list(parameters.values())


def counted(steps: Iterable[Step], total: int, networks: int, on_run: Callable[[], None]) -> Iterator[Step]:
    """The steps of networks that learn together; `on_run` is called for each of these, after its share of the steps."""
    for done, step in enumerate(steps):
        yield step
        for _ in range((done + 1) * networks // total - done * networks // total):
            on_run()


@torch.no_grad()
def give_back(models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> None:
    """Gives every network its own of the parameters that `as_one` stacked."""
    if len(models) > 1:
        for number, model in enumerate(models):
            for own, stacked in zip(model.parameters(), parameters, strict=True):
                own.copy_(stacked[number])
