"""ERDG as OoD-Bench's code has it, to try whether that is the difference: `shiftbed sweep --code` takes this file."""

from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms import ALGORITHMS, Batches, register
from shiftbed.algorithms.adversarial import ERDG, reverse_gradient, scale_gradient
from shiftbed.algorithms.base import Metrics, Minibatches, backward

ENTRY = ALGORITHMS["ERDG"]


@register(space=ENTRY.space, paper=ENTRY.paper, needs=ENTRY.needs)
class MovedByMomentum(ERDG):
    """ERDG whose optimizer moves every weight in both phases: there, gradients are set to zero, not taken away."""

    def descend(self, loss: torch.Tensor) -> None:
        """One step of the optimizer for all weights; momentum moves those that the loss does not depend on."""
        self.optimizer.zero_grad(set_to_none=False)
        backward(loss)
        self.optimizer.step()

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """As the parent's, with a forward for each phase, since the first moves the features too."""
        batches, h = Batches.of(minibatches, unlabeled), self.hparams
        y, domains = batches.y, batches.domains
        own = domains[:, None] == torch.arange(self.num_domains, device=domains.device)
        with torch.no_grad():
            features = self.featurizer(batches.x)
        self.descend(self.mean_risk(self.c_model(features), y, own))

        features = self.featurizer(batches.x)
        helped = scale_gradient(features, h["lbd_c"])
        fixed = F.linear(helped, self.c_model.weight.detach(), self.c_model.bias.detach())
        disc_loss = F.cross_entropy(self.discriminator(reverse_gradient(features, h["lbd_d"])), domains)
        loss = (
            F.cross_entropy(self.classifier(features), y)
            + disc_loss
            + self.mean_risk(fixed, y, ~own)
            + self.mean_risk(self.cp_model(reverse_gradient(features, h["lbd_cp"])), y, own)
        )
        self.descend(loss)
        self.step += 1
        return {"loss": loss.detach(), "disc_loss": disc_loss.detach()}
