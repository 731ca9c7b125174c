"""Algorithms as the code behind published numbers has them: one thing is changed in each, to explain a difference."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms import ALGORITHMS, register
from shiftbed.algorithms.adversarial import DANN
from shiftbed.algorithms.base import Metrics
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.contextual import ARM
from shiftbed.algorithms.gradients import IGA


@register(space=ALGORITHMS["IGA"].space, paper="Ye et al., 2022", separable=True, capturable=True)
class IGAWithoutGraph(IGA):
    """IGA as in OoD-Bench: its penalty is made of gradients without a graph, and so moves nothing."""

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The mean risk, which is all that has a gradient there."""
        return batches.mean(F.cross_entropy(self.network(batches.x), batches.y, reduction="none")).mean(), {}


@register(space=ALGORITHMS["DANN"].space, paper="Ye et al., 2022", needs=ALGORITHMS["DANN"].needs)
class DANNWithoutPenalty(DANN):
    """DANN as in OoD-Bench: the gradient penalty is taken of a constant, and so is 0."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, {**hparams, "grad_penalty": 0.0})


@register(space=ALGORITHMS["ARM"].space, paper="Ye et al., 2022", needs=ALGORITHMS["ARM"].needs)
class ARMUntrainedContext(ARM):
    """ARM as in DomainBed and OoD-Bench: the optimizer does not have the context network, which stays random."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.context_net.requires_grad_(False)
        self.optimizer = self.make_optimizer()
