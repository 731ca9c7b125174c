"""Algorithms that train on mixtures of examples: of their pixels, their styles or their spectra."""

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms.base import ERM, Metrics, Minibatches, TrainingPlan, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.draws import with_rest
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import Space, choice, log_uniform, uniform


@register(
    space=Space(mixup_alpha=log_uniform(1e-1, 1e1, default=0.2)),
    paper="Xu et al., 2019; Yan et al., 2020; Wang et al., 2020",
    capturable=True,
)
class Mixup(ERM):
    """Trains on convex combinations of examples of two domains and of their losses.

    Departures from the papers, two of which adapt to unlabelled images, as in DomainBed: inputs and their losses are
    mixed and nothing more, with one share for two minibatches, of which only the first examples are paired where their
    sizes differ. From DomainBed: all pairs go through the network in one forward, and so share the statistics of live
    batch norm; the draws come from the generator the algorithm is given.
    """

    positive_hparams = ("mixup_alpha",)

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean over a random cycle of domains of the mixed cross-entropy of neighbours."""
        minibatches = self.shuffled(batches)
        alpha = self.hparams["mixup_alpha"]
        shares = self.drawn(lambda rng: with_rest(rng.beta(alpha, alpha, len(batches))))
        inputs, pairs = [], []
        for (x1, y1), (x2, y2), (share, rest) in zip(
            minibatches, [*minibatches[1:], minibatches[0]], shares, strict=True
        ):
            size = min(len(y1), len(y2))
            inputs.append(share * x1[:size] + rest * x2[:size])
            pairs.append((share, y1[:size], rest, y2[:size]))
        logits = self.network(torch.cat(inputs)).split([len(x) for x in inputs])
        losses = [
            share * F.cross_entropy(out, y1) + rest * F.cross_entropy(out, y2)
            for out, (share, y1, rest, y2) in zip(logits, pairs, strict=True)
        ]
        return torch.stack(losses).mean(), {}


def mix_styles(maps: torch.Tensor, partners: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Convolution maps N×C×H×W whose channels' means and deviations are mixed with those of their partners.

    Statistics are constants for the gradient; half precision is left for float32 meanwhile.
    """
    precise = maps.to(torch.promote_types(maps.dtype, torch.float32))
    variance, mean = torch.var_mean(precise.detach(), (2, 3), keepdim=True)
    deviation = (variance + 1e-6).sqrt()
    own = shares.view(-1, 1, 1, 1)
    mixed_deviation = own * deviation + (1 - own) * deviation[partners]
    mixed_mean = own * mean + (1 - own) * mean[partners]
    return ((precise - mean) / deviation * mixed_deviation + mixed_mean).to(maps.dtype)


@register(
    space=Space(
        mixstyle_p=uniform(0.2, 0.8, default=0.5),
        mixstyle_alpha=choice(0.1, 0.2, 0.3, default=0.1),
        mixstyle_layers=choice("12", "123", "23", default="123"),
        mixstyle_mix=choice("random", "crossdomain", default="crossdomain"),
    ),
    paper="Zhou et al., 2021",
    needs=("feature maps",),
)
class MixStyle(ERM):
    """Trains on feature maps whose channel statistics are mixed with those of another example.

    Each of the stages that `mixstyle_layers` names mixes with probability `mixstyle_p` a step, by forward hooks that
    live as long as the forward of a training step: prediction, copies and checkpoints never see them. Partners are any
    examples (`random`) or examples of another domain (`crossdomain`; with one domain, any).

    Departures from the paper: crossdomain takes any number of domains. They stand in a random cycle, and each takes
    the shuffled styles of the next, which for two domains is the paper's swap of both halves; for more, every pair of
    domains is as likely as any other, as in the published loop over pairs, but all go through the network at once. The
    optimizer and its schedule are the recipe's (there SGD).
    """

    positive_hparams = ("mixstyle_alpha",)
    share_hparams = ("mixstyle_p",)
    recomputable = False  # stages that are computed twice call no hooks

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        stages, layers = self.featurizer.stages, str(self.hparams["mixstyle_layers"])
        if not set(layers) <= set("123456789"[: len(stages)]):
            raise AlgorithmError(
                f"MixStyle cannot mix at the layers '{layers}': this network has the stages 1 to {len(stages)}; "
                f"name some of them in mixstyle_layers, as in '12'."
            )
        if self.hparams["mixstyle_mix"] not in ("random", "crossdomain"):
            raise AlgorithmError(f"mixstyle_mix is 'random' or 'crossdomain', not '{self.hparams['mixstyle_mix']}'.")

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk over all examples, with mixed styles in training mode."""

        def mix(stage: nn.Module, inputs: Any, maps: torch.Tensor) -> torch.Tensor:
            if self.rng.random() >= self.hparams["mixstyle_p"]:
                return maps
            if maps[0, 0].numel() < 2:
                raise AlgorithmError("MixStyle cannot mix maps of one pixel; leave late stages out of mixstyle_layers.")
            alpha = self.hparams["mixstyle_alpha"]
            shares = self.drawn(lambda rng: rng.beta(alpha, alpha, len(maps)))
            return mix_styles(maps, self.drawn(lambda _: self.partners(batches.sizes)), shares)

        with ExitStack() as hooks:
            for layer in str(self.hparams["mixstyle_layers"]) if self.training else "":
                hooks.enter_context(self.featurizer.stages[int(layer) - 1].register_forward_hook(mix))
            return F.cross_entropy(self.network(batches.x), batches.y), {}

    def partners(self, sizes: Sequence[int]) -> np.ndarray:
        """The number of the example whose style each example takes; a smaller domain's are taken repeatedly."""
        if self.hparams["mixstyle_mix"] == "random" or len(sizes) == 1:
            return self.rng.permutation(sum(sizes))
        starts = np.cumsum([0, *sizes])
        cycle = self.rng.permutation(len(sizes))
        partners = np.empty(sum(sizes), dtype=np.int64)
        for here, there in zip(cycle, np.roll(cycle, 1), strict=True):
            shuffled = starts[there] + self.rng.permutation(sizes[there])
            partners[starts[here] : starts[here + 1]] = np.resize(shuffled, sizes[here])
        return partners


def mix_amplitudes(x: torch.Tensor, partners: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Images with their own phases and with amplitudes that are, by a share, those of their partners.

    The spectrum of a real image is symmetric, so that half of it is enough.
    """
    spectrum = torch.fft.rfft2(x)
    amplitude = spectrum.abs()
    share = shares.view(-1, 1, 1, 1)
    mixed = (1 - share) * amplitude + share * amplitude[partners]
    return torch.fft.irfft2(torch.polar(mixed, spectrum.angle()), s=x.shape[2:]).clamp(0, 1)


def teacher_ramp(epoch: float) -> float:
    """From e⁻⁵ at the start to 1 after five epochs."""
    return math.exp(-5 * (1 - min(epoch / 5, 1)) ** 2)


@register(
    space=Space(fact_alpha=uniform(0.2, 1.0, default=1.0), fact_lambda=log_uniform(1e-1, 1e2, default=2.0)),
    paper="Xu et al., 2021",
    needs=("images",),
)
class FACT(ERM):
    """Teaches that the class is in the phase of an image's spectrum, by mixing amplitudes, with a slow teacher.

    Original and augmented images are classified, and the student's view of each must agree with the teacher's view of
    the other. The teacher is a moving average of the student, of which the first steps are the plain mean; predictions
    are the student's. Agreement comes in over five epochs, whose length `start` says.

    Departures from the paper: an image's partner and share are drawn among the images of the step, one for each, so
    that a step costs twice ERM's images and not four times; images are in [0, 1] and are not rounded to 256 levels;
    the ramp is smooth within an epoch; the optimizer and its schedule are the recipe's (there SGD).
    """

    share_hparams = ("fact_alpha",)
    temperature = 10.0
    momentum = 0.9995

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.teacher = copy.deepcopy(self.network).requires_grad_(False)
        self.steps_per_epoch: int | None = None

    def start(self, plan: TrainingPlan) -> None:
        """Notes how long an epoch is."""
        self.steps_per_epoch = plan.steps_per_epoch

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk of both views plus the ramped weight times the divergences of the teacher from the student."""
        if self.steps_per_epoch is None:
            raise AlgorithmError("FACT ramps over epochs and must know their length; call start(plan) before update.")
        count = len(batches.y)
        shares = self.drawn(lambda rng: rng.uniform(0, self.hparams["fact_alpha"], count))
        partners = self.drawn(lambda rng: rng.permutation(count))
        views = torch.cat([batches.x, mix_amplitudes(batches.x, partners, shares)])
        logits = self.network(views)
        with torch.no_grad():
            taught = (self.teacher(views) / self.temperature).log_softmax(1).roll(count, 0)
        student = (logits / self.temperature).log_softmax(1)
        # The mean over both views is half the sum of the two divergences.
        consistency = 2 * F.kl_div(student, taught, reduction="batchmean", log_target=True)
        weight = self.hparams["fact_lambda"] * teacher_ramp(step / self.steps_per_epoch)
        risk = F.cross_entropy(logits, batches.y.repeat(2))
        return risk + weight * consistency, {"risk": risk, "consistency": consistency}

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """A step of the student, after which the teacher follows."""
        metrics = super().update(minibatches, unlabeled)
        momentum = min(1 - 1 / (self.step + 1), self.momentum)
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, 1 - momentum)
        return metrics
