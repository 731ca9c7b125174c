"""Algorithms that make the features of all domains alike."""

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, log_uniform


def mean_pairwise_distance(statistics: torch.Tensor) -> torch.Tensor:
    """The mean over all pairs of rows of their squared Euclidean distance; 0 for one row.

    The sum over pairs of |a_i − a_j|² is D times the sum of |a_i − ā|², so no pair is ever formed.
    """
    centred = statistics.flatten(1) - statistics.flatten(1).mean(0)
    return centred.square().sum() * (2 / max(len(statistics) - 1, 1))


@register(
    space=Space(mmd_gamma=log_uniform(1e-1, 1e1, default=1.0)),
    paper="Sun and Saenko, 2016",
    needs=("domain labels",),
)
class CORAL(ERM):
    """Aligns the mean and the covariance of the features between all pairs of domains.

    Departures from the paper, as in DomainBed: the mean is aligned too; squared differences of covariances are divided
    by d², not 4d²; the penalty sits on the features, not on the logits.
    """

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus gamma times the mean distance between the domains' first two moments."""
        self.at_least_two(batches)
        features = self.featurizer(batches.x)
        risks = batches.mean(F.cross_entropy(self.classifier(features), batches.y, reduction="none"))
        dimension = features.shape[1]
        means = batches.mean(features)
        covariances = torch.stack([torch.cov(part.T) for part in batches.split(features)])
        penalty = (
            mean_pairwise_distance(means) / dimension + mean_pairwise_distance(covariances.flatten(1)) / dimension**2
        )
        return risks.mean() + self.hparams["mmd_gamma"] * penalty, {"penalty": penalty}
