"""Algorithms that ask for a predictor which is optimal in every domain at once."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, log_uniform


def scale_gradients(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The derivative of each example's cross-entropy with respect to a factor on its logits, at 1.

    In closed form it is Σ_c (p_c − 1[y = c]) s_c, which needs no second backward pass.
    """
    return ((logits.softmax(1) - F.one_hot(y, logits.shape[1])) * logits).sum(1)


@register(
    space=Space(
        irm_lambda=log_uniform(1e-1, 1e5, default=1e2),
        irm_penalty_anneal_iters=log_uniform(1, 1e4, default=500, integer=True),
    ),
    paper="Arjovsky et al., 2019",
    needs=("domain labels",),
)
class IRM(ERM):
    """Penalises the gradient of each domain's risk with respect to a factor on the logits.

    Departures from the paper, as in DomainBed: the squared gradient is estimated without bias by the product of two
    half-batch gradients (so it can be negative), the weight before annealing is 1, and the loss is not rescaled by the
    weight.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.restart_step = self.hparams["irm_penalty_anneal_iters"]

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus the weighted mean over domains of the product of both halves' gradients."""
        self.at_least_two(batches)
        logits = self.network(batches.x)
        risks = batches.mean(F.cross_entropy(logits, batches.y, reduction="none"))
        gradients = batches.split(scale_gradients(logits, batches.y))
        penalty = torch.stack([g[0::2].mean() * g[1::2].mean() for g in gradients]).mean()
        weight = self.hparams["irm_lambda"] if step >= self.hparams["irm_penalty_anneal_iters"] else 1.0
        return risks.mean() + weight * penalty, {"penalty": penalty}
