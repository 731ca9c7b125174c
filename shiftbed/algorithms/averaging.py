"""Wrappers that predict with an average of the weights that training passes through."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from shiftbed.algorithms.base import Metrics, Minibatches, TrainingPlan, Wrapper, register, restart
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.tuning import LPFT, innermost
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import SizeClass, Space, constant, log_uniform

REFRESH_BATCHES = 16


def laid_out_as(weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values in memory as a weight is, which compiled networks rely on; a copy if they are not."""
    return values if values.stride() == weight.stride() else torch.empty_like(weight).copy_(values)


class Averaging(Wrapper):
    """Predicts with averaged weights: all parameters, and the running statistics of batch norm.

    Attributes:
        average: The averaged weights, in one vector.
    """

    average: torch.Tensor

    def __init_subclass__(cls) -> None:
        """Refuses to average what predicts with an average of its own: this one would change nothing."""
        super().__init_subclass__()
        for inner in cls.inside():
            if issubclass(inner, Averaging):
                raise AlgorithmError(f"{cls.__name__} would average weights twice; leave one of the two out.")

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("average", self.iterate())

    def weights(self) -> list[torch.Tensor]:
        """What is averaged."""
        ends = (".running_mean", ".running_var")
        statistics = [buffer for name, buffer in self.inner.named_buffers() if name.endswith(ends)]
        return [*self.inner.parameters(), *statistics]

    def iterate(self) -> torch.Tensor:
        """The weights being trained, in one vector."""
        whole = torch.cat([weight.detach().flatten() for weight in self.weights()])
        if "average" in self._buffers and whole.shape != self.average.shape:
            raise AlgorithmError(
                f"{type(self).__name__} averages weights, and the algorithm inside makes more of them while it trains; "
                "make all its networks in its constructor."
            )
        return whole

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Lends the algorithm inside the averaged weights; what is done to vectors among them is done to `average`."""
        weights = self.weights()
        own = [weight.data for weight in weights]
        parts = self.average.split([weight.numel() for weight in weights])
        try:
            for weight, part in zip(weights, parts, strict=True):
                weight.data = laid_out_as(weight, part.view(weight.shape))
            yield
        finally:
            for weight, data in zip(weights, own, strict=True):
                weight.data = data

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of the averaged weights."""
        with self.averaged():
            return self.inner.predict(x)


@register(
    space=Space(eoa_start=constant(100)),
    paper="Arpit et al., 2022",
    selection="training-domain-validation",
    separable=True,
    capturable=True,
)
class EoA(Averaging):
    """Predicts with the plain mean of all weights after the first `eoa_start` steps.

    Departures from the paper: this is one member of the ensemble; the ensemble is the sum of several jobs' logits.
    From its reference code: the mean begins with the weights after exactly `eoa_start` steps, as the paper says, not
    one step before.
    """

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """An update of the algorithm inside, whose weights then join the mean."""
        metrics = super().update(minibatches, unlabeled)
        already = max(self.step - self.hparams["eoa_start"], 0)
        self.average.lerp_(self.iterate(), 1 / (already + 1))
        return metrics


def swad_space(dataset: str, size_class: SizeClass) -> Space:
    """The values of the paper's code; the loss valleys of VLCS are shallower."""
    return Space(
        swad_n_converge=constant(3),
        swad_n_tolerance=constant(6),
        swad_tolerance_ratio=constant(0.2 if dataset == "VLCS" else 0.3),
    )


def live_norms(module: nn.Module) -> list[BatchNorm]:
    """The batch norms of a module in training mode whose statistics its forward passes change."""
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    return [norm for norm in norms if norm.training and norm.track_running_stats]


@torch.no_grad()
def recompute_statistics(algorithm: Averaging, inputs: list[torch.Tensor]) -> None:
    """Gives the averaged network's live batch norms the mean statistics of some minibatches."""
    mode = algorithm.training
    norms = live_norms(algorithm.train())
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    algorithm.eval()
    for norm in norms:
        norm.train()
        norm.momentum = None  # a cumulative mean: the first minibatch overwrites what was there
        norm.num_batches_tracked = torch.tensor(0, device=algorithm.average.device)
    with algorithm.averaged():
        for x in inputs:
            algorithm.inner.predict(x)
    for norm, (momentum, count) in zip(norms, before, strict=True):
        norm.momentum, norm.num_batches_tracked = momentum, count
    algorithm.train(mode)


@register(space=swad_space, paper="Cha et al., 2021", selection="last-step", separable=True, capturable=True)
class SWAD(Averaging):
    """Predicts with the mean of all weights between the first minimum of the validation loss and its rise.

    The steps between two evaluations are a segment, which ends with a validation loss (mean over training domains).
    The valley begins at the first segment whose loss is the least of `swad_n_converge` in a row; the threshold is
    `1 + swad_tolerance_ratio` times the mean of these. It ends with the last segment at or below the threshold, when
    `swad_n_tolerance` in a row were above it: then training ends. At every evaluation `predict` is what SWAD would
    return if training ended there; before the valley, the mean of the last segment.

    Departures from the paper, as in its code: segments shortly before the first minimum belong to the valley if the
    losses at both of their ends are at or below the threshold. From its code: every iterate counts once (there the
    first segments of the valley count twice, or not at all), and none before the valley does (there some do when
    training ends within a few evaluations of its start); the statistics of batch norms that are not frozen are
    recomputed from the last 16 minibatches of a segment, not from 500 fresh ones, which no algorithm is given.

    Attributes:
        segment: The mean of the weights since the last evaluation.
        count: How many they are.
        queue: Segments (mean, count, loss) that may still join the average.
        joined: How many iterates are in the average; 0 before the valley.
        threshold: The loss up to which the valley goes, once it is known.
        ended: Whether training has ended.
    """

    positive_hparams = ("swad_n_converge",)
    segment: torch.Tensor

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("segment", self.iterate())
        self.count = 0
        self.queue: list[tuple[torch.Tensor, int, float]] = []
        self.joined = 0
        self.threshold: float | None = None
        self.ended = False
        self.last_metrics: Metrics = {}
        self.recent: list[torch.Tensor] = []  # inputs of the segment's last minibatches, for live batch norms

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """An update of the algorithm inside, whose weights then join the segment; nothing once training has ended."""
        if self.ended:
            return self.last_metrics
        batches = Batches.of(minibatches)
        metrics = super().update(batches, unlabeled)
        self.count += 1
        self.segment.lerp_(self.iterate(), 1 / self.count)
        if not self.queue and not self.joined:  # no evaluation yet
            self.average.copy_(self.segment)
        if live_norms(self.inner):
            self.recent = [*self.recent, batches.x.detach().clone()][-REFRESH_BATCHES:]
        self.last_metrics = {name: torch.as_tensor(value) for name, value in metrics.items()}
        return self.last_metrics

    def evaluated(self, results: Mapping[str, Mapping[str, float]]) -> None:
        """Closes the segment and decides which segments are in the valley."""
        if self.ended or not self.count:
            return
        if not results:
            raise AlgorithmError("SWAD needs held-out images of the training domains; choose a task that has them.")
        loss = sum(result["loss"] for result in results.values()) / len(results)
        piece = (self.segment.clone(), self.count, loss)
        self.count = 0
        if self.threshold is not None:
            self._join(piece)
        else:
            self._look_for_the_valley(piece)
        if self.recent:
            recompute_statistics(self, self.recent)
            self.recent = []

    def _look_for_the_valley(self, piece: tuple[torch.Tensor, int, float]) -> None:
        """Keeps the latest segments until the first of `swad_n_converge` has the least loss."""
        window = self.hparams["swad_n_converge"]
        self.queue = [*self.queue, piece][-max(window, self.hparams["swad_n_tolerance"]) :]
        self.average.copy_(piece[0])
        losses = [loss for _, _, loss in self.queue]
        if len(losses) < window or losses[-window] > min(losses[-window:]):
            return
        self.threshold = (1 + self.hparams["swad_tolerance_ratio"]) * sum(losses[-window:]) / window
        first = len(losses) - window
        while first >= 2 and max(losses[first - 2 : first]) <= self.threshold:
            first -= 1
        valley, self.queue = self.queue[first:], []
        for early in valley:
            self._join(early)

    def _join(self, piece: tuple[torch.Tensor, int, float]) -> None:
        """Adds a segment to the average if it ends in the valley; above the threshold it waits for one that does."""
        self.queue.append(piece)
        if piece[2] <= (self.threshold or 0.0):
            for mean, count, _ in self.queue:
                self.joined += count
                self.average.lerp_(mean, count / self.joined)
            self.queue = []
        elif len(self.queue) >= self.hparams["swad_n_tolerance"]:
            self.ended, self.queue = True, []


@register(
    space=Space(
        linear_lr=log_uniform(1e-5, 10**-3.5, default=5e-5), linear_steps=constant(500), eoa_start=constant(600)
    ),
    paper="Teterwak et al., 2023",
    separable=True,
)
class ERMPlusPlus(EoA, LPFT):
    """Starts with the classifier alone, then trains everything and predicts with the mean of all later weights.

    The first `linear_steps` steps have a learning rate of their own; then every network of the algorithm inside has its
    own one again. Batch norm's statistics stay live: in the start, and in the averaged network, which every minibatch
    passes once more.

    Departures from the paper: AugMix weights, sampling without replacement and all the data for training are the
    recipe's; the learning rate follows the recipe's schedule, not a plan that an earlier run on 80 % of the data found.
    From DomainBed: the start has exactly `linear_steps` steps (there one more) and goes back through no featurizer; the
    mean begins with the weights after exactly `eoa_start` steps (there one step before).

    Attributes:
        own_rates: The learning rates of the algorithm inside, of each group of its optimizer.
    """

    share_hparams = ()  # its start is a number of steps

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        inside = innermost(self)
        if not hasattr(inside, "optimizer"):
            raise AlgorithmError(f"ERMPlusPlus sets the rate of an `optimizer`, which {type(inside).__name__} has not.")
        self.own_rates = [float(group["lr"]) for group in inside.optimizer.param_groups]
        restart_step = inside.restart_step
        if inside.restart_lr and restart_step is not None and restart_step < self.hparams["linear_steps"]:
            # What would set another rate before the start is over: it is the own one when that ends.
            self.own_rates = [self.hparams[inside.restart_lr]] * len(self.own_rates)
            inside.restart_lr = None
        for group in inside.optimizer.param_groups:
            group["lr"] = self.hparams["linear_lr"]
        self.probing_steps = self.hparams["linear_steps"]

    def start(self, plan: TrainingPlan) -> None:
        """Nothing: the number of steps of the start does not depend on the plan."""

    def train(self, mode: bool = True) -> "ERMPlusPlus":
        """As of any module: only the weights of the featurizer are frozen in the start."""
        Wrapper.train(self, mode)
        return self

    def _fine_tune(self) -> None:
        super()._fine_tune()
        restart(innermost(self).optimizer, self.own_rates)

    @torch.no_grad()
    def refresh(self, x: torch.Tensor) -> None:
        """Shows the averaged network a minibatch, so that its batch norms learn the statistics of its own features."""
        with self.averaged():
            self.inner.current(x)

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """An update of the algorithm inside, whose weights then join the mean."""
        batches = Batches.of(minibatches)
        metrics = super().update(batches, unlabeled)
        if live_norms(self.inner):
            self.refresh(batches.x)
        return metrics
