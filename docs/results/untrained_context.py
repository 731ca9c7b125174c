"""ARM as OoD-Bench's code has it, to try whether that is the difference: `shiftbed sweep --code` takes this file."""

from collections.abc import Mapping
from typing import Any

from shiftbed.algorithms import ALGORITHMS, register
from shiftbed.algorithms.contextual import ARM

ENTRY = ALGORITHMS["ARM"]


@register(space=ENTRY.space, paper=ENTRY.paper, needs=ENTRY.needs, capturable=True)
class UntrainedContext(ARM):
    """ARM whose context network keeps its first weights: there it is made after the optimizer, which never sees it."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.context_net.requires_grad_(False)
