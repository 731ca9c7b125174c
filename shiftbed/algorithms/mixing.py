"""Algorithms that train on mixtures of examples."""

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, log_uniform


@register(
    space=Space(mixup_alpha=log_uniform(1e-1, 1e1, default=0.2)),
    paper="Xu et al., 2019; Yan et al., 2020; Wang et al., 2020",
    needs=("images",),
)
class Mixup(ERM):
    """Trains on convex combinations of examples of two domains and of their losses.

    Departures from DomainBed: all pairs go through the network in one forward, and the draws come from the generator
    the algorithm is given. Of two minibatches of different sizes only the first examples are paired, as there.
    """

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean over a random cycle of domains of the mixed cross-entropy of neighbours."""
        minibatches = list(batches)
        alpha = self.hparams["mixup_alpha"]
        order = self.rng.permutation(len(minibatches))
        shares = self.rng.beta(alpha, alpha, len(minibatches))
        inputs, pairs = [], []
        for i, share in enumerate(shares.tolist()):
            (x1, y1), (x2, y2) = minibatches[order[i]], minibatches[order[(i + 1) % len(order)]]
            size = min(len(y1), len(y2))
            inputs.append(share * x1[:size] + (1 - share) * x2[:size])
            pairs.append((share, y1[:size], y2[:size]))
        logits = self.network(torch.cat(inputs)).split([len(x) for x in inputs])
        losses = [
            share * F.cross_entropy(out, y1) + (1 - share) * F.cross_entropy(out, y2)
            for out, (share, y1, y2) in zip(logits, pairs, strict=True)
        ]
        return torch.stack(losses).mean(), {}
