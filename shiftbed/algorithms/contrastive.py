"""Algorithms that compare every example with all others, by class and by domain."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shiftbed import networks
from shiftbed.algorithms.adversarial import Players
from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import full_precision
from shiftbed.hparams import SizeClass, Space, choice, constant

CAD_SPACE = Space(
    lmbda=choice(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, default=1e-1),
    temperature=choice(0.05, 0.1, default=0.1),
    is_normalized=constant(False),
    is_project=constant(False),
    is_flipped=constant(True),
)


def equal(values: torch.Tensor) -> torch.Tensor:
    """Which pairs have the same value."""
    return values[:, None] == values


def apart(values: torch.Tensor) -> torch.Tensor:
    """Which pairs are of two examples."""
    return ~torch.eye(len(values), dtype=torch.bool, device=values.device)


def log_share(scores: torch.Tensor, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The log of how much of softmax(scores) over each row's `whole` lies in its `part`; neither may be empty."""
    return scores.masked_fill(~part, -torch.inf).logsumexp(1) - scores.masked_fill(~whole, -torch.inf).logsumexp(1)


class DomainBottleneck(ERM, ABC):
    """Risk, plus how well an example's nearest others tell its domain."""

    positive_hparams = ("temperature",)

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.project: nn.Module = nn.Identity()
        if self.hparams["is_project"]:
            width = self.featurizer.n_outputs
            self.project = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))
            self.optimizer = self.make_optimizer()

    @abstractmethod
    def compared(self, others: torch.Tensor, same_class: torch.Tensor) -> torch.Tensor:
        """With whom each example is compared."""

    def bottleneck(self, z: torch.Tensor, batches: Batches) -> torch.Tensor:
        """The mean over examples of −log of the share that the others of another domain have in its softmax."""
        z = self.project(z)
        if self.hparams["is_normalized"]:
            z = F.normalize(z)
        others, same_domain = apart(batches.y), equal(batches.domains)
        same_class = equal(batches.y) & others
        whole = self.compared(others, same_class)
        flipped = self.hparams["is_flipped"]
        part = whole & (~same_domain if flipped else same_domain)
        kept = part.any(1) & same_class.any(1)

        # A row without a part counts nothing, but must be a number: the gradient of a NaN times 0 is NaN.
        left_out = ~kept[:, None]
        temperature = self.hparams["temperature"]
        shares = log_share(z @ z.T / temperature, part | left_out, whole | left_out)
        mean = (shares * kept).sum() / kept.sum().clamp(min=1)
        return (-1 if flipped else 1) * (temperature / 0.07) * mean

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Risk over all examples plus lambda times the bottleneck's loss."""
        features = self.featurizer(batches.x)
        risk = F.cross_entropy(self.classifier(features), batches.y)
        with full_precision(features) as z:
            penalty = self.bottleneck(z, batches)
        return risk + self.hparams["lmbda"] * penalty, {"penalty": penalty}


@register(space=CAD_SPACE, paper="Ruan et al., 2022", needs=("domain labels",), capturable=True)
class CAD(DomainBottleneck):
    """Asks that an example be as similar to those of other domains as to those of its own.

    With similarities as the logits of a softmax over all other examples, the probability that an example picks one of
    another domain is raised; with `is_flipped` off, that it picks one of its own is lowered.

    Departures from the paper, as in DomainBed: an example counts only if another one has its class; features are not
    normalised and not projected unless the hyperparameters say so. From DomainBed: `is_project` works, and with
    `is_flipped` off no example is compared with itself.
    """

    def compared(self, others: torch.Tensor, same_class: torch.Tensor) -> torch.Tensor:
        """With all others."""
        return others


@register(space=CAD_SPACE, paper="Ruan et al., 2022", needs=("domain labels",), capturable=True)
class CondCAD(DomainBottleneck):
    """Asks that an example be as similar to those of other domains as to those of its own, within its class.

    Departures from the paper, as in DomainBed: features are not normalised and not projected unless the
    hyperparameters say so. From DomainBed: `is_project` works.
    """

    def compared(self, others: torch.Tensor, same_class: torch.Tensor) -> torch.Tensor:
        """With all others of its class."""
        return same_class


def supervised_contrast(
    z: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | float = 0.5, temperature: float = 0.07
) -> torch.Tensor:
    """How little of an example's weighted softmax over all others lies on each one of its class, as a mean of −log.

    Similarities are cosines over a temperature. Small constants, DomainBed's, keep it finite: 1e-5 is added to the sum
    below and to the share above, and 1 to the number of examples that have another of their class.
    """
    others = apart(y)
    positive = equal(y) & others
    z = F.normalize(z)
    # ADRMX gives pairs within a domain and across the weights of one half: equal ones, which matter beside 1e-5 only.
    pulls = weights * torch.exp(z @ z.T / temperature) * others
    logs = torch.log(pulls / (pulls.sum(1, keepdim=True) + 1e-5) + 1e-5)
    counts = positive.sum(1)
    return -((logs * positive).sum(1) / counts.clamp(min=1)).sum() / ((counts > 0).sum() + 1)


def adrmx_space(dataset: str, size_class: SizeClass) -> Space:
    """ADRMX's hyperparameters; few of them vary."""
    small = choice(5e-4, 1e-3, 2e-3, 3e-3, default=3e-3)
    return Space(
        cnt_lambda=constant(1.0),
        dclf_lambda=constant(1.0),
        disc_lambda=constant(0.75),
        rmxd_lambda=constant(1.0),
        d_steps_per_g_step=constant(2),
        beta1=constant(0.5),
        mlp_width=constant(256),
        mlp_depth=choice(8, 9, 10, default=9),
        mlp_dropout=constant(0.0),
        lr=small if size_class == "small" else choice(2e-5, 3e-5, 4e-5, 5e-5, default=3e-5),
    )


@register(space=adrmx_space, paper="Demirel et al., 2023", needs=("domain labels", "two domains"), capturable=True)
class ADRMX(Players):
    """Subtracts what a second featurizer says of the domain, and remixes both parts within a class.

    The difference of label and domain features is to be invariant: a discriminator, which takes turns with all other
    networks, must not find the domain in it. An invariant part plus the domain features of another example of the class
    must still be classified as this class.

    Departures from the paper: none known. From DomainBed: both parts of a remix are of one class (there positions
    within the class are taken for positions in the batch); the discriminator's turn builds no graph through the
    featurizers.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.cycle = 1 + self.hparams["d_steps_per_g_step"]
        self.num_classes = num_classes
        self.featurizer_label = networks.Featurizer(input_shape, self.hparams)
        self.featurizer_domain = networks.Featurizer(input_shape, self.hparams)
        width = self.featurizer_label.n_outputs
        self.discriminator = networks.MLP(width, num_domains, self.hparams)
        self.classifier_label_1 = networks.Classifier(width, num_classes, is_nonlinear=True)
        self.classifier_label_2 = networks.Classifier(width, num_classes, is_nonlinear=True)
        self.classifier_domain = networks.Classifier(width, num_domains, is_nonlinear=True)
        self.network = nn.Sequential(self.featurizer_label, self.classifier_label_1)
        others = [child for child in self.children() if child not in (self.discriminator, self.network)]
        betas = (self.hparams["beta1"], 0.9)
        self.disc_opt = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams["lr"], betas=betas)
        self.optimizer = torch.optim.Adam(nn.ModuleList(others).parameters(), lr=self.hparams["lr"], betas=betas)

    @property
    def opt(self) -> torch.optim.Optimizer:
        """The optimizer of all but the discriminator, by its name in DomainBed."""
        return self.optimizer

    def remix_loss(self, invariant: torch.Tensor, domain: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The risk of one random pair of examples a class, summed over classes and divided by their number."""
        classes = torch.arange(self.num_classes, device=y.device)
        order = self.drawn(lambda rng: rng.random(len(y)))
        found, pairs = order.where(y == classes[:, None], -1.0).topk(2, dim=1)
        logits = self.classifier_label_1(invariant[pairs[:, 0]] + domain[pairs[:, 1]])
        losses = F.cross_entropy(logits, classes, reduction="none")
        return (losses * (found[:, 1] >= 0)).mean()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Of all but the discriminator: risks of all heads, remix and contrast, minus the discriminator's loss."""
        h, y, domains = self.hparams, batches.y, batches.domains
        label, domain = self.featurizer_label(batches.x), self.featurizer_domain(batches.x)
        invariant = label - domain
        disc_loss = F.cross_entropy(self.discriminator(invariant), domains)
        with full_precision(label) as z, full_precision(invariant) as z_invariant:
            contrast = supervised_contrast(z, y) + supervised_contrast(z_invariant, y)
        remix = self.remix_loss(invariant, domain, y)
        loss = (
            F.cross_entropy(self.classifier_label_1(label), y)
            + F.cross_entropy(self.classifier_label_2(invariant), y)
            + h["dclf_lambda"] * F.cross_entropy(self.classifier_domain(domain), domains)
            + h["rmxd_lambda"] * remix
            + h["cnt_lambda"] * contrast
            - h["disc_lambda"] * disc_loss
        )
        return loss, {"disc_loss": disc_loss, "remix": remix, "contrast": contrast}

    def discrimination(self, batches: Batches) -> torch.Tensor:
        """The cross-entropy of the domain on invariant parts that are constants."""
        with torch.no_grad():
            invariant = self.featurizer_label(batches.x) - self.featurizer_domain(batches.x)
        return F.cross_entropy(self.discriminator(invariant), batches.domains)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of the label features."""
        return self.network(x)
