"""The featurizer that hyperparameters and a recipe describe."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shiftbed.networks.base import NETWORKS, FeaturizerModule
from shiftbed.networks.convolutional import MnistConvNet
from shiftbed.networks.heads import Classifier
from shiftbed.networks.weights import is_random, load_initial_weights


def Featurizer(input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> FeaturizerModule:  # noqa: N802
    """The featurizer for inputs of this shape.

    Args:
        input_shape: The shape of one input.
        hparams: Read are `network` (chosen by the shape of the inputs as DomainBed does, if missing),
            `initial_weights` (random if missing), `batch_norm` (`trained` if missing, `frozen-statistics` or
            `frozen`), and what the network itself takes.
    """
    name = hparams.get("network") or _usual_network(input_shape, hparams)
    featurizer = NETWORKS[name](tuple(input_shape), hparams)
    initial = hparams.get("initial_weights")
    if initial is not None and not is_random(initial):
        load_initial_weights(featurizer, initial)
    featurizer.set_batch_norm(hparams.get("batch_norm", "trained"))
    return featurizer


def _usual_network(input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> str:
    """DomainBed's choice by the shape of the inputs; images of any other size get a ResNet."""
    if len(input_shape) == 1:
        return "mlp"
    by_size: dict[tuple[int, ...], str] = {(28, 28): "mnist-convnet", (32, 32): "wide-resnet-16-2"}
    return by_size.get(tuple(input_shape[1:3]), _resnet(hparams))


def _resnet(hparams: Mapping[str, Any]) -> str:
    return "resnet18" if hparams.get("resnet18") else "resnet50"


def MNIST_CNN(input_shape: tuple[int, ...]) -> FeaturizerModule:  # noqa: N802
    """DomainBed's name of `mnist-convnet`."""
    return MnistConvNet(tuple(input_shape), {})


def ResNet(input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> FeaturizerModule:  # noqa: N802
    """DomainBed's name of a ResNet-50, or of a ResNet-18 if `hparams["resnet18"]`."""
    return Featurizer(input_shape, {**hparams, "network": _resnet(hparams)})


class WholeFish(nn.Module):
    """Featurizer and classifier as one module that takes all its weights at once, by its name in DomainBed."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hparams: Mapping[str, Any],
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        featurizer = Featurizer(input_shape, hparams)
        head = Classifier(featurizer.n_outputs, num_classes, hparams["nonlinear_classifier"])
        self.net = nn.Sequential(featurizer, head)
        if weights is not None:
            self.reset_weights(weights)

    def reset_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copies weights, by their names."""
        self.load_state_dict(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of inputs."""
        return self.net(x)
