"""What an algorithm draws on the host, as tensors on the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Draw = Callable[[np.random.Generator], Any]


def upload(draw: Draw, rng: np.random.Generator, weight: torch.Tensor) -> torch.Tensor:
    """What a function draws, where a weight is; real numbers in its type."""
    values = torch.as_tensor(np.asarray(draw(rng)))
    return values.to(weight.device, weight.dtype if values.is_floating_point() else None, non_blocking=True)


def with_rest(shares: np.ndarray | float) -> np.ndarray:
    """Shares and what is left of 1, in a last dimension of two."""
    return np.stack([shares, 1 - np.asarray(shares)], -1)


class Tape:
    """The draws of a step that is replayed: its tensors stay, and every replay finds new draws in them."""

    def __init__(self) -> None:
        self._made: list[tuple[Draw, torch.Tensor]] = []
        self._given: Iterator[torch.Tensor] | None = None

    def drawn(self, draw: Draw, rng: np.random.Generator, weight: torch.Tensor) -> torch.Tensor:
        """The next draw of a step: made and noted, or, while a step is captured, the tensor of the one before it."""
        if self._given is not None:
            return next(self._given)
        self._made.append((draw, upload(draw, rng, weight)))
        return self._made[-1][1]

    def erase(self) -> None:
        """Before a plain step: its draws will be noted instead of the last one's."""
        self._made = []

    def draw(self, rng: np.random.Generator) -> None:
        """All draws anew, in their order, into their tensors."""
        for draw, tensor in self._made:
            tensor.copy_(upload(draw, rng, torch.empty(0, dtype=tensor.dtype)), non_blocking=True)

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Hands out the tensors that are there: what is captured meanwhile reads them."""
        self._given = (tensor for _, tensor in self._made)
        try:
            yield
        finally:
            self._given = None
