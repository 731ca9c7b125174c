"""Algorithms that ask for a predictor which is optimal in every domain at once."""

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import full_precision
from shiftbed.hparams import Space, log_uniform


def scale_gradients(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The derivative of each example's cross-entropy with respect to a factor on its logits, at 1.

    In closed form it is Σ_c (p_c − 1[y = c]) s_c, which needs no second backward pass.
    """
    with full_precision(logits) as s:  # a weight of 1e5 overflows half types
        return (s.softmax(1) * s).sum(1) - s.gather(1, y[:, None])[:, 0]


def means_of_halves(values: torch.Tensor, batches: Batches) -> torch.Tensor:
    """The means over every other example of each domain, from the first and from the second on: D×2."""
    if len(set(batches.sizes)) == 1 and batches.sizes[0] % 2 == 0:
        return values.unflatten(0, (len(batches), -1, 2)).mean(1)
    return torch.stack([torch.stack([part[0::2].mean(), part[1::2].mean()]) for part in batches.split(values)])


def irm_penalty(logits: torch.Tensor, batches: Batches) -> torch.Tensor:
    """The mean over domains of the product of both halves' gradients."""
    one, other = means_of_halves(scale_gradients(logits, batches.y), batches).unbind(1)
    return (one * other).mean()


@register(
    space=Space(
        irm_lambda=log_uniform(1e-1, 1e5, default=1e2),
        irm_penalty_anneal_iters=log_uniform(1, 1e4, default=500, integer=True),
    ),
    paper="Arjovsky et al., 2019",
    needs=("domain labels",),
    capturable=True,
)
class IRM(ERM):
    """Penalises the gradient of each domain's risk with respect to a factor on the logits.

    Departures from the paper, as in DomainBed: the squared gradient is estimated without bias by the product of two
    half-batch gradients (so it can be negative), the weight before annealing is 1, and the loss is not rescaled by the
    weight.
    """

    restart_hparam = "irm_penalty_anneal_iters"

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus the weighted mean over domains of the product of both halves' gradients."""
        self.at_least_two(batches)
        logits = self.network(batches.x)
        risks = batches.mean(F.cross_entropy(logits, batches.y, reduction="none"))
        penalty = irm_penalty(logits, batches)
        weight = self.hparams["irm_lambda"] if step >= self.hparams["irm_penalty_anneal_iters"] else 1.0
        return risks.mean() + weight * penalty, {"penalty": penalty}


@register(
    space=Space(
        vrex_lambda=log_uniform(1e-1, 1e5, default=1e1),
        vrex_penalty_anneal_iters=log_uniform(1, 1e4, default=500, integer=True),
    ),
    paper="Krueger et al., 2021",
    needs=("domain labels",),
    capturable=True,
)
class VREx(ERM):
    """Penalises the variance of the domains' risks.

    Departures from the paper, as in DomainBed: the variance stands beside the mean of the risks, not their sum (so that
    a weight means the same for any number of domains), and its weight before annealing is 1.
    """

    restart_hparam = "vrex_penalty_anneal_iters"

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus the weighted variance of the risks."""
        risks = batches.mean(F.cross_entropy(self.network(batches.x), batches.y, reduction="none"))
        penalty = risks.var(correction=0)
        weight = self.hparams["vrex_lambda"] if step >= self.hparams["vrex_penalty_anneal_iters"] else 1.0
        return risks.mean() + weight * penalty, {"penalty": penalty}
