"""TRM, and the closed forms of linear heads that it needs.

Heads are one tensor, D×C×F, with the bias as the last column; features z, N×F, end in a 1 for it. `targets`, N×1×C, are
1 at an example's class. The `shares` of an example, N×D×1, say how much it counts in the risk of each head.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import full_precision
from shiftbed.hparams import Space, log_uniform

FIT_STEPS, FIT_RATE = 30, 0.1
SERIES_TERMS, SERIES_LIMIT = 10, 10.0


def logits_of(heads: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """What every head says of every example: N×D×C."""
    return (z @ heads.flatten(0, 1).T).unflatten(1, heads.shape[:2])


def gradients_of(residuals: torch.Tensor, z: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The gradient of every head's risk by its weights, from that of each loss by its logits."""
    return ((shares * residuals).flatten(1).T @ z).unflatten(0, residuals.shape[1:])


def fitted(heads: torch.Tensor, z: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The heads after some steps of gradient descent on their risks."""
    for _ in range(FIT_STEPS):
        residuals = logits_of(heads, z).softmax(2) - targets
        heads = torch.sub(heads, gradients_of(residuals, z, shares), alpha=FIT_RATE)
    return heads


def inverse_hessian_product(
    v: torch.Tensor, probabilities: torch.Tensor, z: torch.Tensor, shares: torch.Tensor
) -> torch.Tensor:
    """H⁻¹v ≈ Σ_k (I − H)^k v with the Hessian H of every head's risk; a sum ends once an entry passes the limit."""
    total, going = v, torch.ones_like(v[:, :1, :1], dtype=torch.bool)
    for _ in range(SERIES_TERMS):
        change = logits_of(v, z)
        bent = probabilities * (change - (probabilities * change).sum(2, keepdim=True))
        v = v - gradients_of(bent, z, shares)
        total = torch.where(going, total + v, total)
        going = going & (total.abs().amax((1, 2), keepdim=True) <= SERIES_LIMIT)
    return total


@register(
    space=Space(
        cos_lambda=log_uniform(1e-5, 1, default=1e-4),
        iters=log_uniform(1, 1e4, default=200, integer=True),
        groupdro_eta=log_uniform(1e-3, 1e-1, default=1e-2),
    ),
    paper="Xu and Jaakkola, 2021",
    needs=("domain labels", "two domains"),
)
class TRM(ERM):
    """Asks that the classifier which is best for one domain is good for the others.

    Every domain Q has a linear head, fitted to its features in each step. The features then lower the risk R_P of this
    head on every other domain P, with weights that follow these risks. As the head follows the features, the gradient
    of R_P has a second part, −∂⟨H⁻¹ ∇R_P, ∇R_Q⟩, in which H is the Hessian of R_Q and only ∇R_Q is differentiated.

    Departures from the paper, as in DomainBed: plain ERM for the first `iters` steps; a weight `cos_lambda` on the
    second part; H⁻¹ by the first terms of a Neumann series, which ends once it diverges. From DomainBed: a head's bias
    counts among its weights; the series begins with its first term (there a subtraction in place overwrites it with the
    second); the gradient weighs domains as the loss does (there the weights change in place before the backward pass,
    which then sees those of the next step); the weights of the domains grow with the risks themselves, as exponentiated
    gradients do (there with risks already weighted); heads and weights are saved with the rest.

    Attributes:
        heads: The heads of all domains.
        alpha: The weight of each domain P (column) for the head of each domain Q (row).
    """

    heads: torch.Tensor
    alpha: torch.Tensor

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        initial = nn.Linear(self.featurizer.n_outputs, num_domains * num_classes)
        heads = torch.cat([initial.weight, initial.bias[:, None]], 1).detach()
        self.register_buffer("heads", heads.unflatten(0, (num_domains, num_classes)))
        others = 1 - torch.eye(num_domains)
        self.register_buffer("alpha", others / (num_domains - 1))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy plus, after `iters` steps, the mean over heads of their risk on other domains."""
        features = self.featurizer(batches.x)
        loss = F.cross_entropy(self.classifier(features), batches.y)
        if step < self.hparams["iters"]:
            return loss, {}
        with full_precision(features) as z:
            z = F.pad(z, (0, 1), value=1.0)
            classes = torch.arange(self.heads.shape[1], device=z.device)
            targets = (batches.y[:, None, None] == classes).to(z.dtype)
            own = batches.domains[:, None] == torch.arange(len(batches), device=z.device)
            shares = own / own.sum(0).to(z.dtype)
            with torch.no_grad():
                heads = fitted(self.heads.to(z.dtype), z, targets, shares[:, :, None])
            logits = logits_of(heads, z)
            risks = -(logits.log_softmax(2) * targets).sum(2).T @ shares  # of each head (row) on each domain
            residuals = logits.softmax(2) - targets
            with torch.no_grad():
                elsewhere = gradients_of(residuals, z, (shares @ self.alpha.T)[:, :, None])
                direction = inverse_hessian_product(elsewhere, logits.softmax(2), z, shares[:, :, None])
            following = (direction * gradients_of(residuals, z, shares[:, :, None])).sum()
            transfer = ((self.alpha * risks).sum() - self.hparams["cos_lambda"] * following) / len(batches)
            alpha = (self.alpha.log() + self.hparams["groupdro_eta"] * risks.detach()).softmax(1)
        return loss + transfer, {"transfer": transfer, "heads": heads, "alpha": alpha}
