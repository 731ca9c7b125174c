"""Wrappers that keep parts of the network as they were initialised, for a while or for good."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from shiftbed.algorithms.base import (
    Algorithm,
    Metrics,
    Minibatches,
    TrainingPlan,
    Wrapper,
    optimizers_of,
    register,
    restart,
)
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import Space, choice, uniform
from shiftbed.networks import FeaturizerModule


def innermost(algorithm: Algorithm) -> Algorithm:
    """The algorithm inside all wrappers."""
    return innermost(algorithm.inner) if isinstance(algorithm, Wrapper) else algorithm


class Tuning(Wrapper):
    """Freezes parts of the featurizer of the algorithm inside."""

    def __init_subclass__(cls) -> None:
        """Refuses to freeze what an algorithm inside sets free again."""
        super().__init_subclass__()
        for inner in cls.inside():
            if issubclass(inner, LPFT):
                free = inner.__name__.partition("(")[0]
                raise AlgorithmError(
                    f"{cls.__name__}: {free} sets free in the end what is frozen around it; write {free} around the "
                    "other, or leave one of them out."
                )

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        if not isinstance(getattr(innermost(self), "featurizer", None), nn.Module):
            name, inside = type(self).__name__, type(innermost(self)).__name__
            raise AlgorithmError(f"{name} freezes the featurizer, but {inside} has no attribute of this name.")

    @property
    def frozen(self) -> nn.Module:
        """The featurizer of which parts are frozen."""
        return innermost(self).get_submodule("featurizer")


@register(paper="Kumar et al., 2022; Yu et al., 2024", separable=True)
class LinearProbe(Tuning):
    """Trains only what comes after the featurizer, which stays as it was initialised.

    The featurizer is in evaluation mode all the time: its batch norms keep their statistics, its dropout is off.

    Departures from the paper: none.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.probing = True
        self.trainable = [parameter.requires_grad for parameter in self.frozen.parameters()]
        self.frozen.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "LinearProbe":
        """As of any module, except that a frozen featurizer stays in evaluation mode."""
        super().train(mode)
        if self.probing:
            self.frozen.eval()
        return self


@register(space=Space(lpft_share=uniform(0.05, 0.5, default=0.1)), paper="Kumar et al., 2022", separable=True)
class LPFT(LinearProbe):
    """Probes for a share of the steps (`lpft_share`), then fine-tunes everything with fresh optimizers.

    Departures from the paper: both phases have one learning rate, so that a draw costs one job; the share is a
    hyperparameter, where the paper trains the probe to convergence.
    """

    share_hparams: tuple[str, ...] = ("lpft_share",)

    def start(self, plan: TrainingPlan) -> None:
        """Says when probing ends."""
        self.probing_steps = round(self.hparams["lpft_share"] * plan.steps)

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """An update of the algorithm inside, of all its parameters once probing has ended."""
        if not hasattr(self, "probing_steps"):
            raise AlgorithmError("LPFT must know the number of steps; call start(plan) before the first update.")
        if self.probing and self.step >= self.probing_steps:
            self._fine_tune()
        return super().update(minibatches, unlabeled)

    def _fine_tune(self) -> None:
        self.probing = False
        for parameter, trainable in zip(self.frozen.parameters(), self.trainable, strict=True):
            parameter.requires_grad_(trainable)
        for optimizer in optimizers_of(innermost(self)):
            restart(optimizer)
        self.train(self.training)


@register(space=Space(frozen_stages=choice(1, 2, 3, default=2)), paper="Yosinski et al., 2014", separable=True)
class FrozenStages(Tuning):
    """Trains everything but the first `frozen_stages` stages of the featurizer.

    Departures from the paper: none.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        featurizer = self.frozen
        if not isinstance(featurizer, FeaturizerModule):
            name = type(featurizer).__name__
            raise AlgorithmError(f"FrozenStages needs a network of shiftbed, whose stages are known, not {name}.")
        featurizer.freeze_stages(self.hparams["frozen_stages"])
