"""Algorithms that leave the features of a domain little room to vary."""

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, Minibatches, register, restart
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.invariance import IRM, irm_penalty
from shiftbed.algorithms.numerics import full_precision
from shiftbed.hparams import Space, log_uniform

BOTTLENECK = Space(
    ib_lambda=log_uniform(1e-1, 1e5, default=1e2),
    ib_penalty_anneal_iters=log_uniform(1, 1e4, default=500, integer=True),
)


def mean_variance(features: torch.Tensor, batches: Batches) -> torch.Tensor:
    """The unbiased variance over a domain's examples, averaged over coordinates and domains."""
    with full_precision(features) as z:  # a weight of 1e5 overflows half types
        if len(set(batches.sizes)) == 1:
            return z.unflatten(0, (len(batches), -1)).var(1).mean()
        return torch.stack([part.var(0).mean() for part in batches.split(z)]).mean()


@register(space=BOTTLENECK, paper="Ahuja et al., 2021", needs=("domain labels",), capturable=True)
class IB_ERM(ERM):  # noqa: N801  # DomainBed's name
    """Penalises the variance of the features within each domain, which bounds their entropy.

    Departures from the paper, as in DomainBed: the penalty sets in after a number of steps, with a fresh optimizer.
    From DomainBed: none in the arithmetic.
    """

    restart_hparam = "ib_penalty_anneal_iters"

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus, once annealed, the weighted mean variance."""
        self.at_least_two(batches)
        features = self.featurizer(batches.x)
        risks = batches.mean(F.cross_entropy(self.classifier(features), batches.y, reduction="none"))
        penalty = mean_variance(features, batches)
        weight = self.hparams["ib_lambda"] if step >= self.hparams["ib_penalty_anneal_iters"] else 0.0
        return risks.mean() + weight * penalty, {"penalty": penalty}


@register(
    space=Space(
        irm_lambda=log_uniform(1e-1, 1e5, default=1e2),
        irm_penalty_anneal_iters=log_uniform(1, 1e4, default=500, integer=True),
    )
    | BOTTLENECK,
    paper="Ahuja et al., 2021",
    needs=("domain labels",),
    capturable=True,
)
class IB_IRM(IRM):  # noqa: N801  # DomainBed's name
    """Penalises as IRM does, and the variance of the features within each domain.

    Departures from the paper, as in DomainBed: those of IRM; each penalty sets in after a number of steps of its own,
    with a fresh optimizer, and the variance weighs nothing before. From DomainBed: none in the arithmetic.
    """

    def phase(self, step: int) -> Hashable:
        """Which of the two penalties have set in."""
        return super().phase(step), step >= self.hparams["ib_penalty_anneal_iters"]

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus IRM's penalty and the mean variance, both weighted."""
        self.at_least_two(batches)
        features = self.featurizer(batches.x)
        logits = self.classifier(features)
        risks = batches.mean(F.cross_entropy(logits, batches.y, reduction="none"))
        invariance, variance = irm_penalty(logits, batches), mean_variance(features, batches)
        irm_weight = self.hparams["irm_lambda"] if step >= self.hparams["irm_penalty_anneal_iters"] else 1.0
        ib_weight = self.hparams["ib_lambda"] if step >= self.hparams["ib_penalty_anneal_iters"] else 0.0
        loss = risks.mean() + irm_weight * invariance + ib_weight * variance
        return loss, {"irm_penalty": invariance, "ib_penalty": variance}

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """As of IRM, with a fresh optimizer also where the variance sets in."""
        if self.step == self.hparams["ib_penalty_anneal_iters"]:
            restart(self.optimizer)
        return super().update(minibatches, unlabeled)
