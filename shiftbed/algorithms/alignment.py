"""Algorithms that make all domains alike: their features, or their losses."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, TrainingPlan, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import full_precision, ramp
from shiftbed.hparams import SizeClass, Space, constant, log_uniform, uniform

GAMMA = Space(mmd_gamma=log_uniform(1e-1, 1e1, default=1.0))


def with_unlabeled(batches: Batches) -> Batches:
    """The unlabelled inputs as more domains behind the others, which alone have labels."""
    if not batches.unlabeled:
        return batches
    sizes = (*batches.sizes, *(len(x) for x in batches.unlabeled))
    return Batches(torch.cat([batches.x, *batches.unlabeled]), batches.y, sizes)


def mean_distance(products: torch.Tensor) -> torch.Tensor:
    """The mean over all pairs of |a_i − a_j|², given the inner products of all a_i; 0 for one vector.

    The sum over pairs is D Σ_i a_i·a_i − Σ_ij a_i·a_j, so no pair is ever formed.
    """
    count = len(products)
    return (products.diagonal().sum() - products.sum() / count) * (2 / max(count - 1, 1))


def mean_pairwise_distance(statistics: torch.Tensor) -> torch.Tensor:
    """The mean over all pairs of rows of their squared Euclidean distance; 0 for one row."""
    rows = statistics.flatten(1)
    rows = rows - rows.mean(0)  # changes no distance, and nearly equal rows lose no digits
    return mean_distance(rows @ rows.T)


def squared_distances(rows: torch.Tensor) -> torch.Tensor:
    """The squared Euclidean distance of every row to every row, exactly 0 to itself, from one Gram matrix."""
    rows = rows - rows.mean(0)
    gram = rows @ rows.T
    norms = gram.diagonal()
    return (norms[:, None] + norms - 2 * gram).clamp(min=0)


def moments(rows: torch.Tensor) -> torch.Tensor:
    """The mean over √d and the covariance over d of n×d features, as one (d + 1)×d matrix."""
    n, d = rows.shape[-2:]
    mean = rows.mean(-2, keepdim=True)
    centred = rows - mean
    return torch.cat([mean / d**0.5, centred.mT @ centred / ((n - 1) * d)], -2)


class Alignment(ERM, ABC):
    """Mean risk of the domains, plus a distance between their features."""

    @abstractmethod
    def distance(self, features: torch.Tensor, batches: Batches) -> torch.Tensor:
        """How far the domains' features are apart: the mean over all pairs of domains."""

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus gamma times the distance; unlabelled domains count in the distance only."""
        everyone = with_unlabeled(batches)
        features = self.featurizer(everyone.x)
        logits = self.classifier(features[: len(batches.y)])
        risks = batches.mean(F.cross_entropy(logits, batches.y, reduction="none"))
        with full_precision(features) as z:
            penalty = self.distance(z, everyone)
        return risks.mean() + self.hparams["mmd_gamma"] * penalty, {"penalty": penalty}


@register(space=GAMMA, paper="Sun and Saenko, 2016", needs=("domain labels",), capturable=True)
class CORAL(Alignment):
    """Aligns the mean and the covariance of the features between all pairs of domains.

    Departures from the paper, as in DomainBed: the mean is aligned too; squared differences of covariances are divided
    by d², not 4d²; the penalty sits on the features, not on the logits. From DomainBed: all domains go through the
    network in one forward. Live batch norm then normalises them alike, as it will at test time; there each domain has
    statistics of its own in training, which hide from the penalty what it is to align.
    """

    def distance(self, features: torch.Tensor, batches: Batches) -> torch.Tensor:
        """Squared differences of means, over d, and of covariances, over d²."""
        self.at_least_two(batches)
        if len(set(batches.sizes)) == 1:
            return mean_pairwise_distance(moments(features.unflatten(0, (len(batches), -1))))
        return mean_pairwise_distance(torch.stack([moments(part) for part in batches.split(features)]))


@register(space=GAMMA, paper="H. Li et al., 2018", needs=("domain labels",), capturable=True)
class MMD(Alignment):
    """Aligns the kernel mean embeddings of the features between all pairs of domains.

    Departures from the paper, as in DomainBed: no autoencoder and no adversary, but the penalty on the features of a
    classifier; the kernel is a sum of seven Gaussians of fixed widths; an example's kernel with itself counts too. From
    DomainBed: distances are those of centred features, which in float32 keeps near examples apart, and are exactly 0
    from an example to itself; all domains go through the network in one forward, as in CORAL.
    """

    def distance(self, features: torch.Tensor, batches: Batches) -> torch.Tensor:
        """The mean squared distance of embeddings, whose inner products are mean kernels between domains."""
        precisions = torch.logspace(-3, 3, 7, dtype=features.dtype, device=features.device)
        kernel = torch.exp(-precisions[:, None, None] * squared_distances(features)).sum(0)
        return mean_distance(batches.mean(batches.mean(kernel).T))


def random_piles(features: torch.Tensor, batches: Batches, rng: np.random.Generator) -> tuple[torch.Tensor, Batches]:
    """All features as two piles: each domain is cut at a random example, the one part here and the other there."""
    parts = [part.tensor_split([int(rng.integers(len(part)))]) for part in batches.split(features)]
    one, other = (torch.cat(pile) for pile in zip(*parts, strict=True))
    return torch.cat([one, other]), Batches(batches.x, batches.y, (len(one), len(other)))


@register(space=GAMMA, paper="Chevalley et al., 2022", needs=("domain labels",))
class CausIRL_CORAL(CORAL):  # noqa: N801  # DomainBed's name
    """Aligns mean and covariance of the features between two random mixtures of the domains.

    Domains are interventions on the style; features that do not depend on the style have the same distribution under
    any mixture of them. A mixture of fewer than two examples is not compared.

    Departures from the paper, as in DomainBed: the distance is CORAL's with its departures. From DomainBed: all domains
    go through the network in one forward, as in CORAL; unlabelled ones, where the task has them, are cut and mixed too.
    """

    def distance(self, features: torch.Tensor, batches: Batches) -> torch.Tensor:
        """CORAL's, of the two mixtures."""
        features, piles = random_piles(features, batches, self.rng)
        return super().distance(features, piles) if min(piles.sizes) > 1 else features.new_zeros(())


@register(space=GAMMA, paper="Chevalley et al., 2022", needs=("domain labels",))
class CausIRL_MMD(MMD):  # noqa: N801  # DomainBed's name
    """Aligns the kernel mean embeddings of the features between two random mixtures of the domains.

    Departures from the paper, as in DomainBed: the distance is MMD's with its departures. From DomainBed: those of
    CausIRL_CORAL and MMD.
    """

    def distance(self, features: torch.Tensor, batches: Batches) -> torch.Tensor:
        """MMD's, of the two mixtures."""
        features, piles = random_piles(features, batches, self.rng)
        return super().distance(features, piles) if min(piles.sizes) > 1 else features.new_zeros(())


def variance_among(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The unbiased variance of the values whose weight is 1 and not 0; of a single one it is 0."""
    count = chosen.sum()
    centred = values - (chosen * values).sum() / count
    return (chosen * centred.square()).sum() / (count - 1).clamp(min=1)


def rdm_space(dataset: str, size_class: SizeClass) -> Space:
    """RDM's hyperparameters, whose authors chose ranges by the dataset."""
    name = dataset.partition("-")[0]  # later copies of a dataset have a number behind its name
    weight, anneal, spread = (0.1, 10.0, 5.0), (800, 2700, 1500), uniform(0.001, 0.007, default=0.004)
    if name in ("PACS", "TerraIncognita"):
        weight = (1.0, 10.0, 5.0)
    if name == "DomainNet":
        weight, anneal = (0.1, 1.0, 0.5), (1500, 3000, 2400)
    if name in ("TerraIncognita", "OfficeHome", "DomainNet"):
        spread = constant(0.0)
    space = Space(
        rdm_lambda=uniform(*weight),
        rdm_penalty_anneal_iters=uniform(*anneal, integer=True),
        variance_weight=spread,
        rdm_lr=uniform(8e-6, 2e-5, default=1.5e-5),
    )
    if size_class == "small":
        return space
    batch = (30, 60, 40) if name in ("TerraIncognita", "DomainNet") else (70, 100, 88)
    return space | Space(batch_size=uniform(*batch, integer=True))


@register(space=rdm_space, paper="Nguyen et al., 2024", needs=("domain labels",), capturable=True)
class RDM(ERM):
    """Makes the losses in the worst domain be distributed as those in all domains together.

    The distance of both samples of losses is their MMD; their variances are penalised too. Up to the annealing step
    both weights are 0; the optimizer then starts anew, with a learning rate of its own.

    Departures from the paper: none known. From DomainBed: domains may differ in size; there may be one domain, or one
    example in the worst, whose variance is 0.
    """

    restart_hparam = "rdm_penalty_anneal_iters"
    restart_lr = "rdm_lr"

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk, plus the weighted MMD between the worst domain's losses and all, plus their weighted variances."""
        losses = F.cross_entropy(self.network(batches.x), batches.y, reduction="none")
        risks = batches.mean(losses)
        worst = (batches.domains == risks.argmax()).to(losses.dtype)
        precisions = torch.logspace(-4, 3, 8, dtype=losses.dtype, device=losses.device)
        kernel = torch.exp(-precisions[:, None, None] * (losses[:, None] - losses).square()).sum(0)
        excess = worst / worst.sum() - 1 / len(losses)
        matching = ((excess[:, None] * excess) * kernel).sum()  # autocast would take products in half precision
        variance = variance_among(losses, torch.ones_like(worst)) + variance_among(losses, worst)
        loss = risks.mean()
        if step >= self.hparams["rdm_penalty_anneal_iters"]:
            loss = loss + self.hparams["rdm_lambda"] * matching + self.hparams["variance_weight"] * variance
        return loss, {"penalty": matching, "variance": variance}


def relative_chi_square(kernel: torch.Tensor, same: torch.Tensor, alpha: float, epsilon: float) -> torch.Tensor:
    """How far a joint distribution is from the product of its marginals: 0 if independent, at most 1/α − 1.

    The estimate is 2b·θ − θ·Hθ − 1 with θ = (H + εI)⁻¹ b.

    Args:
        kernel: Of all examples, in the first variable.
        same: Of all examples, in the second: 1 where it is the same, else 0.
        alpha: The share of the joint distribution in the mixture it is compared with.
        epsilon: The ridge.
    """
    m = len(kernel)
    joint = kernel * same
    h = (alpha / m) * joint.T @ joint + ((1 - alpha) / m**2) * (kernel.T @ kernel) * (same.T @ same)
    b = joint.mean(0)
    ridge = epsilon * torch.eye(m, dtype=h.dtype, device=h.device)
    theta = torch.linalg.solve_ex(h + ridge, b, check_errors=False).result  # a check would wait for the device
    return 2 * b @ theta - theta @ h @ theta - 1


@register(
    space=Space(rcs_lambda=log_uniform(1e-1, 1e2, default=1.0), rcs_alpha=constant(0.5), rcs_epsilon=constant(1e-2)),
    paper="Chen et al., 2023",
    needs=("domain labels",),
)
class RCS(ERM):
    """Makes features and class together independent of the domain, by the relative chi-square divergence.

    Departures from the paper: the kernel's width is the median squared distance of the first batch's features, not
    inputs, for features are what it compares; batches are the benchmark's, not balanced by class and domain; the weight
    ramps up as in the paper's deep networks, to `rcs_lambda` instead of to 1 (without a plan it is constant, as in the
    authors' demonstration); the optimizer and its schedule are the recipe's (there SGD).
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.steps: int | None = None
        self.register_buffer("sigma", torch.tensor(math.nan))

    def start(self, plan: TrainingPlan) -> None:
        """Learns how long the ramp is."""
        self.steps = plan.steps

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Risk over all examples plus the ramped weight times the divergence, in double precision."""
        features = self.featurizer(batches.x)
        risk = F.cross_entropy(self.classifier(features), batches.y)
        domains = batches.domains
        with full_precision(features) as z:
            distances = squared_distances(z.double())
            known = self.get_buffer("sigma")
            median = distances.detach().where(distances > 0, math.nan).nanmedian()
            sigma = torch.where(known.isnan(), median, known)
            kernel = torch.exp(-distances / sigma.nan_to_num(1.0)) * (batches.y[:, None] == batches.y)
            same = (domains[:, None] == domains).to(kernel.dtype)
            penalty = relative_chi_square(kernel, same, self.hparams["rcs_alpha"], self.hparams["rcs_epsilon"])
        weight = self.hparams["rcs_lambda"] * (ramp(step / self.steps) if self.steps else 1.0)
        return risk + weight * penalty.to(risk.dtype), {"penalty": penalty, "sigma": sigma}
