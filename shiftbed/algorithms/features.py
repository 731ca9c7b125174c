"""Algorithms that disturb the features, so that no single one and no style decides."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed import networks
from shiftbed.algorithms.base import ERM, Algorithm, Metrics, Minibatches, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, log_uniform, uniform


def percentile(values: torch.Tensor, level: float) -> torch.Tensor:
    """The value below which a share `level` of the last axis lies, interpolated linearly.

    The rank is computed on the host in double precision, as NumPy does. `torch.quantile` computes it in the type of
    the values: in float32 the threshold then often lies just above an entry it should equal, and that entry is kept.
    """
    rank = level * (values.shape[-1] - 1)
    below = int(rank)
    ordered = values.sort(-1).values
    return torch.lerp(ordered[..., below], ordered[..., min(below + 1, values.shape[-1] - 1)], rank - below)


@register(
    space=Space(
        rsc_f_drop_factor=uniform(0, 0.5, default=1 / 3),
        rsc_b_drop_factor=uniform(0, 0.5, default=1 / 3),
    ),
    paper="Huang et al., 2020",
    capturable=True,
)
class RSC(ERM):
    """Mutes the features that speak most for the true class, in the examples that depend on them most.

    Thresholds are percentiles and comparisons are strict: even with both factors 0 the largest gradient of the most
    changed example is muted. With a linear head the gradient is the weight row of the true class, so that the muted
    features depend on the class alone.

    Departures from the paper, as in DomainBed: whole feature vectors are masked, not channels or positions of a
    convolution map, and at every step. From DomainBed: the percentiles are computed on the device.
    """

    share_hparams = ("rsc_f_drop_factor", "rsc_b_drop_factor")

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk with the masked features; the masks are constants."""
        features = self.featurizer(batches.x)
        label = batches.y[:, None]
        probe = features.detach().requires_grad_()
        logits = self.classifier(probe)
        (gradients,) = torch.autograd.grad(logits.gather(1, label).sum(), probe)
        with torch.no_grad():
            kept = gradients < percentile(gradients, 1 - self.hparams["rsc_f_drop_factor"])[:, None]
            confidence, challenged = (
                out.softmax(1).gather(1, label)[:, 0] for out in (logits, self.classifier(features * kept))
            )
            change = confidence - challenged
            spared = change < percentile(change, 1 - self.hparams["rsc_b_drop_factor"])
            mask = kept | spared[:, None]
        return F.cross_entropy(self.classifier(features * mask), batches.y), {}


def content_and_style(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalised feature vectors, their means and their (unbiased) variances."""
    variance, mean = torch.var_mean(features, 1, keepdim=True)
    return (features - mean) / (variance + 1e-5).sqrt(), mean, variance


def in_style(content: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Normalised feature vectors, brought to a mean and a variance."""
    return content * (variance + 1e-5).sqrt() + mean


def descend(loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of some optimizers down a loss; no other parameter gets a gradient, and frozen ones stay."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    moving = [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]
    if not moving:
        return
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward(inputs=moving)
    for optimizer in optimizers:
        optimizer.step()


@register(space=Space(sag_w_adv=log_uniform(1e-2, 1e1, default=0.1)), paper="Nam et al., 2021", capturable=True)
class SagNet(Algorithm):
    """Classifies by content under random styles, and makes the features useless to a head that sees style alone.

    The style of an example is the mean and the variance of its feature vector; its content is what remains when both
    are normalised away. Content head and features learn under mixed styles, the style head learns under swapped
    contents, and the features then learn to leave the style head no choice but the uniform distribution. The features'
    optimizer steps twice a step with shared moments, so that even a weight of 0 moves them.

    Departures from the paper, as in DomainBed: styles are of the feature vector, not of an intermediate map; the style
    head is one layer; the adversary moves all of the featurizer, not only its normalisation. From DomainBed: the
    style head's step and the adversary's share one forward of the featurizer, whose weights are the same for both
    (with live batch norm its running statistics see two forwards a step, not three); gradients of each loss are
    computed only for what it moves, so that none is left over for the next step.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.network_f = networks.Featurizer(input_shape, self.hparams)
        heads = (self.network_f.n_outputs, num_classes, self.hparams.get("nonlinear_classifier", False))
        self.network_c = networks.Classifier(*heads)
        self.network_s = networks.Classifier(*heads)
        whole = self.make_optimizer()  # the recipe's, which is then made once for each network
        self.optimizer_f, self.optimizer_c, self.optimizer_s = (
            type(whole)(part.parameters(), **whole.defaults)
            for part in (self.network_f, self.network_c, self.network_s)
        )

    @property
    def featurizer(self) -> networks.FeaturizerModule:
        """The network under both heads, by the name under which wrappers freeze it."""
        return self.network_f

    def mixed_styles(self, features: torch.Tensor) -> torch.Tensor:
        """Each example's content in a style between its own and another's."""
        content, mean, variance = content_and_style(features)
        share = self.drawn(lambda rng: rng.random((len(features), 1)))
        partners = self.drawn(lambda rng: rng.permutation(len(features)))
        mean = share * mean + (1 - share) * mean[partners]
        variance = share * variance + (1 - share) * variance[partners]
        return in_style(content, mean, variance)

    def swapped_contents(self, features: torch.Tensor) -> torch.Tensor:
        """Another example's content, as a constant, in each example's style."""
        content, mean, variance = content_and_style(features)
        partners = self.drawn(lambda rng: rng.permutation(len(features)))
        return in_style(content.detach()[partners], mean, variance)

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """A step of features and content head, then of the style head, then of the features against it."""
        batches = Batches.of(minibatches, unlabeled)
        content_loss = F.cross_entropy(self.network_c(self.mixed_styles(self.network_f(batches.x))), batches.y)
        descend(content_loss, self.optimizer_f, self.optimizer_c)

        features = self.network_f(batches.x)
        style_loss = F.cross_entropy(self.network_s(self.swapped_contents(features.detach())), batches.y)
        descend(style_loss, self.optimizer_s)

        style_logits = self.network_s(self.swapped_contents(features))
        uniform_labels = torch.full_like(style_logits, 1 / style_logits.shape[1])
        adversary_loss = self.hparams["sag_w_adv"] * F.cross_entropy(style_logits, uniform_labels)
        descend(adversary_loss, self.optimizer_f)

        self.step += 1
        losses = {"loss": content_loss, "style_loss": style_loss, "adversary_loss": adversary_loss}
        return {name: loss.detach() for name, loss in losses.items()}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The content head's logits, of undisturbed features."""
        return self.network_c(self.network_f(x))
