"""Algorithms that weight domains by how badly they do."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, log_uniform


@register(
    space=Space(groupdro_eta=log_uniform(1e-3, 1e-1, default=1e-2)),
    paper="Sagawa et al., 2020",
    needs=("domain labels",),
)
class GroupDRO(ERM):
    """Weights domains by their recent loss, with exponentiated gradient steps.

    Departures from the paper, as in DomainBed: groups are domains, and there is no adjustment for group sizes. From
    DomainBed: the weights exist from the start, one per domain, so that a checkpoint can be loaded into a new object.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("q", torch.ones(num_domains))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The weighted risk, with weights that have already seen this step's risks."""
        risks = batches.mean(F.cross_entropy(self.network(batches.x), batches.y, reduction="none"))
        q = self.get_buffer("q") * (self.hparams["groupdro_eta"] * risks.detach()).exp()
        q = q / q.sum()
        return q @ risks, {"q": q}
