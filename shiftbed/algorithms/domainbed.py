"""The names that classes written for DomainBed use, so that one pasted into a file runs unmodified.

    from shiftbed.algorithms.domainbed import Algorithm, ERM, misc, networks

`networks` and `misc` stand for DomainBed's modules of these names. What classes of DomainBed's own file call without
`misc.`, such as `ParamDict`, is here under its bare name too.
"""

import copy
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from shiftbed import networks
from shiftbed.algorithms.adversarial import pull_within
from shiftbed.algorithms.base import ERM, Algorithm
from shiftbed.algorithms.contrastive import supervised_contrast
from shiftbed.algorithms.robust import density_quantile
from shiftbed.hashing import seed_hash

__all__ = [
    "ERM",
    "Algorithm",
    "ErmPlusPlusMovingAvg",
    "MovingAverage",
    "Nonparametric",
    "ParamDict",
    "SupConLossLambda",
    "l2_between_dicts",
    "misc",
    "networks",
    "proj",
    "random_pairs_of_minibatches",
    "split_meta_train_test",
]

Minibatch = tuple[torch.Tensor, torch.Tensor]


def random_pairs_of_minibatches(minibatches: list[Minibatch]) -> list[tuple[Minibatch, Minibatch]]:
    """Every minibatch with the next one in a random cycle, both cut to the shorter one."""
    order = torch.randperm(len(minibatches)).tolist()
    return [_cut(minibatches[i], minibatches[j]) for i, j in zip(order, order[1:] + order[:1], strict=True)]


def split_meta_train_test(minibatches: list[Minibatch], num_meta_test: int = 1) -> list[tuple[Minibatch, Minibatch]]:
    """Pairs of a meta-training and a meta-test minibatch, the last of a random order being for the test.

    Departure from DomainBed: at least one domain is left to train on, where it yields no pair at all.
    """
    order = torch.randperm(len(minibatches)).tolist()
    held_out = min(num_meta_test, len(minibatches) - 1)
    meta_train, meta_test = order[: len(order) - held_out], order[len(order) - held_out :]
    pairs = zip(meta_train, itertools.cycle(meta_test), strict=False)
    return [_cut(minibatches[i], minibatches[j]) for i, j in pairs]


def _cut(one: Minibatch, two: Minibatch) -> tuple[Minibatch, Minibatch]:
    size = min(len(one[0]), len(two[0]))
    return (one[0][:size], one[1][:size]), (two[0][:size], two[1][:size])


def l2_between_dicts(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean squared difference of two dictionaries of tensors with the same keys."""
    return torch.cat([(one[key] - two[key]).flatten() for key in one]).square().mean()


class ParamDict(OrderedDict[str, Any]):
    """Named tensors that add, subtract, multiply and divide as one vector."""

    def _combined(self, other: Any, operation: Callable[[Any, Any], Any]) -> "ParamDict":
        return ParamDict(
            (key, operation(value, other[key] if isinstance(other, dict) else other)) for key, value in self.items()
        )

    def __add__(self, other: Any) -> "ParamDict":
        return self._combined(other, operator.add)

    def __sub__(self, other: Any) -> "ParamDict":
        return self._combined(other, operator.sub)

    def __rsub__(self, other: Any) -> "ParamDict":
        return self._combined(other, lambda own, foreign: foreign - own)

    def __mul__(self, other: Any) -> "ParamDict":
        return self._combined(other, operator.mul)

    def __truediv__(self, other: Any) -> "ParamDict":
        return self._combined(other, operator.truediv)

    def __neg__(self) -> "ParamDict":
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__


class MovingAverage:
    """An exponential moving average of named tensors, of which Fishr keeps one for each domain."""

    def __init__(self, ema: float, oneminusema_correction: bool = True) -> None:
        self.ema = ema
        self.ema_data: dict[str, torch.Tensor] = {}
        self._share = 1 - ema if oneminusema_correction else 1.0

    def update(self, dict_data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The averages as rows, once these values have joined; over 1 − ema, their gradients do not depend on it."""
        before = {name: self.ema_data.get(name, torch.zeros_like(values)) for name, values in dict_data.items()}
        now = {name: torch.lerp(values, before[name], self.ema) for name, values in dict_data.items()}
        self.ema_data = {name: average.detach() for name, average in now.items()}
        return {name: average.reshape(1, -1) / self._share for name, average in now.items()}


class ErmPlusPlusMovingAvg:
    """The running mean of a network's weights from an iteration on, for classes that inherit it beside `Algorithm`."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.network_sma = copy.deepcopy(network).eval()
        self.sma_start_iter = 600
        self.global_iter = 0
        self.sma_count = 0

    @torch.no_grad()
    def update_sma(self) -> None:
        """Takes the present weights into the mean, or for its start."""
        self.global_iter += 1
        averaging = self.global_iter >= self.sma_start_iter
        self.sma_count += averaging
        for mean, value in zip(self.network_sma.state_dict().values(), self.network.state_dict().values(), strict=True):
            if averaging and mean.is_floating_point():
                mean.lerp_(value, 1 / (1 + self.sma_count))
            else:
                mean.copy_(value)


def proj(delta: float, adv_h: nn.Module, h: nn.Module) -> nn.Module:
    """A network, with its weights pulled into the ball of a radius around another's."""
    pull_within(adv_h, h, delta)
    return adv_h


class Nonparametric:
    """The distribution of some values, estimated by Gaussian kernels.

    Departure from DomainBed: a quantile has its exact gradient, as in our EQRM.
    """

    def estimate_parameters(self, x: torch.Tensor) -> None:
        """Takes the values."""
        self.data = x

    def icdf(self, q: float | torch.Tensor) -> torch.Tensor:
        """The quantile at a level between 0 and 1."""
        return density_quantile(self.data, float(q))


class SupConLossLambda(nn.Module):
    """A contrast with the examples of one's class, in which pairs within a domain weigh `lamda`, others the rest."""

    def __init__(self, lamda: float = 0.5, temperature: float = 0.07) -> None:
        super().__init__()
        self.lamda, self.temperature = lamda, temperature

    def forward(self, features: torch.Tensor, labels: torch.Tensor, domain_labels: torch.Tensor) -> torch.Tensor:
        """The mean over all examples that have another of their class."""
        within = domain_labels[:, None] == domain_labels
        weights = self.lamda * within + (1 - self.lamda) * ~within
        return supervised_contrast(features, labels, weights, self.temperature)


def cross_entropy_weights(labels: Iterable[int]) -> torch.Tensor:
    """A weight for each example, so that every class weighs the same in all."""
    classes = np.asarray(list(labels))
    present, place, counts = np.unique(classes, return_inverse=True, return_counts=True)
    return torch.from_numpy(1.0 / (counts[place] * len(present))).float()


misc = SimpleNamespace(
    ErmPlusPlusMovingAvg=ErmPlusPlusMovingAvg,
    MovingAverage=MovingAverage,
    Nonparametric=Nonparametric,
    ParamDict=ParamDict,
    SupConLossLambda=SupConLossLambda,
    l2_between_dicts=l2_between_dicts,
    make_weights_for_balanced_classes=lambda dataset: cross_entropy_weights(int(y) for _, y in dataset),
    proj=proj,
    random_pairs_of_minibatches=random_pairs_of_minibatches,
    seed_hash=seed_hash,
    split_meta_train_test=split_meta_train_test,
)
