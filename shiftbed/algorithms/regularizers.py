"""Algorithms that restrain logits or features and need no domain labels."""

from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.draws import with_rest
from shiftbed.algorithms.numerics import full_precision
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import SizeClass, Space, choice, log_uniform, uniform


@register(
    space=Space(sd_reg=log_uniform(1e-5, 1e-1, default=0.1)),
    paper="Pezeshki et al., 2021",
    separable=True,
    capturable=True,
)
class SD(ERM):
    """Penalises large logits, so that strong features do not starve weak ones (spectral decoupling).

    Departures from the paper, as in DomainBed: the squares are averaged over all logits, where the paper takes half
    their sum.
    """

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy plus the weighted mean square of the logits."""
        logits = self.network(batches.x)
        with full_precision(logits) as s:
            penalty = s.square().mean()
        return F.cross_entropy(logits, batches.y) + self.hparams["sd_reg"] * penalty, {"penalty": penalty}


def von_neumann_entropy(features: torch.Tensor) -> torch.Tensor:
    """The entropy of the spectrum of ZᵀZ/N, where the rows of Z are the features at unit length.

    On GPUs torch looks at the host whether the decomposition converged: the one place where a step waits.
    """
    with full_precision(features) as z:
        rows = F.normalize(z) / len(z) ** 0.5
        finite = rows.isfinite().all()
        # Of what is not finite torch would raise an error; a loss that is not a number says that training diverged.
        spectrum = torch.linalg.svdvals(torch.where(finite, rows, 0)).square()
    # The logarithm of a vanishing value would have no derivative.
    entropy = -(spectrum * spectrum.clamp_min(torch.finfo(spectrum.dtype).tiny).log()).sum()
    return torch.where(finite, entropy, torch.nan)


@register(space=Space(vne_coefficient=uniform(-0.1, 0.1, default=-0.01)), paper="Kim et al., 2023")
class VNE(ERM):
    """Lowers or raises the entropy of the spectrum of the features, as the sign of a coefficient says.

    Departures from the paper: the authors published neither the coefficient nor its sign for domain generalization,
    only that it is far below 0.5 and that batches have 32 examples or more. Random draws therefore take both signs;
    the default lowers the entropy, gently, as fewer directions leave less room for what is peculiar to a domain.
    """

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy minus the coefficient times the entropy."""
        features = self.featurizer(batches.x)
        entropy = von_neumann_entropy(features)
        loss = F.cross_entropy(self.classifier(features), batches.y)
        return loss - self.hparams["vne_coefficient"] * entropy, {"entropy": entropy}


def shuffled_within_classes(y: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
    """For every example the place of one of its class: each class permuted, as a permutation of all examples says."""
    order, shuffled = y.argsort(stable=True), (y * len(y) + ranks).argsort()
    return torch.empty_like(order).scatter_(0, order, shuffled)


@register(paper="Kim et al., 2021", capturable=True)
class SelfReg(ERM):
    """Pulls the logits and features of an example towards those of others of its class.

    Departures from the paper, as in DomainBed: no curriculum over domains and no averaging of weights. From DomainBed:
    the projection is trained; there it is made after the optimizer and stays random.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        width = self.featurizer.n_outputs
        hidden = width if width == 2048 else 2 * width
        self.cdpl = nn.Sequential(
            *(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, width), nn.BatchNorm1d(width)),
        )
        self.optimizer = self.make_optimizer()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Cross-entropy plus distances to another example of the class, and to a mixture of two."""
        if len(batches.y) < 2:
            raise AlgorithmError("SelfReg needs at least 2 examples a step, for its batch norm; raise batch_size.")
        features = self.featurizer(batches.x)
        logits, projected = self.classifier(features), self.cdpl(features)
        share, rest = self.drawn(lambda rng: with_rest(rng.beta(0.5, 0.5)))
        draws = [self.drawn(lambda rng: rng.permutation(len(batches.y))) for _ in range(2)]
        one, two = (shuffled_within_classes(batches.y, ranks) for ranks in draws)

        def distance(to_logits: torch.Tensor, to_features: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(logits, to_logits) + 0.3 * F.mse_loss(features, to_features)

        partner = [values[one] for values in (logits, projected)]
        mixture = [share * values[one] + rest * values[two] for values in (logits, projected)]
        penalty = share * distance(*partner) + rest * distance(*mixture)
        loss = F.cross_entropy(logits, batches.y)
        return loss + loss.detach().clamp_max(1) * penalty, {"penalty": penalty}


def urm_space(dataset: str, size_class: SizeClass) -> Space:
    """DomainBed's ranges; the discriminator learns more slowly than the classifier."""
    small = size_class == "small"
    return Space(
        urm_adv_lambda=uniform(0.0, 0.2, default=0.1),
        urm_discriminator_hidden_layers=choice(1, 2, 3, default=1),
        urm_generator_output=choice("tanh", "relu", default="tanh"),
        urm_discriminator_lr=(
            log_uniform(10**-5.5, 10**-3.5, default=1e-3) if small else log_uniform(1e-6, 10**-4.5, default=5e-5)
        ),
    )


@register(space=urm_space, paper="Krishnamachari et al., 2024", capturable=True)
class URM(ERM):
    """Spreads the features evenly: a discriminator must not tell them from uniform noise.

    Features are bounded by tanh, also in prediction, and noise is in [−1, 1]; with ReLU it is in [0, 1].

    Departures from the paper: none known. From DomainBed: none in the arithmetic; both players step at once, which is
    the same, since neither step changes what the other one is computed from.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        output = self.hparams["urm_generator_output"]
        if output not in ("tanh", "relu"):
            raise AlgorithmError(f"URM's urm_generator_output is '{output}'; set tanh or relu.")
        self.lowest = -1.0 if output == "tanh" else 0.0
        self.network = nn.Sequential(self.featurizer, nn.Tanh() if output == "tanh" else nn.ReLU(), self.classifier)
        widths = [self.featurizer.n_outputs, *[100] * (1 + self.hparams["urm_discriminator_hidden_layers"])]
        hidden = [(nn.Linear(a, b), nn.LeakyReLU()) for a, b in pairwise(widths)]
        self.discriminator = nn.Sequential(*chain(*hidden), nn.Linear(100, 1))
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer, in which the discriminator has a learning rate of its own."""
        rates = {"discriminator": self.hparams["urm_discriminator_lr"]}
        groups = [
            {"params": child.parameters(), "lr": rates.get(name, self.hparams["lr"])}
            for name, child in self.named_children()
            if name != "network"  # featurizer and classifier once more
        ]
        return torch.optim.Adam(groups, weight_decay=self.hparams["weight_decay"])

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Cross-entropy and what the features gain by passing for noise, plus the discriminator's own loss."""
        features = self.network[1](self.featurizer(batches.x))
        risk = F.cross_entropy(self.classifier(features), batches.y)
        noise = self.drawn(lambda rng: rng.uniform(self.lowest, 1.0, features.shape))
        fixed = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        passing = F.softplus(-functional_call(self.discriminator, fixed, (features,))).mean()  # −log of "noise"
        on_noise = F.softplus(-self.discriminator(noise)).mean()
        on_features = F.softplus(self.discriminator(features.detach())).mean()  # −log of "no noise"
        weight = self.hparams["urm_adv_lambda"]
        disc_loss = on_noise + weight * on_features
        return risk + weight * passing + disc_loss, {"disc_loss": disc_loss}
