"""Networks: featurizers by name, their initial weights, and the heads on top of them."""

from shiftbed.networks.base import NETWORKS, FeaturizerModule
from shiftbed.networks.convolutional import SmallConv
from shiftbed.networks.featurizers import MNIST_CNN, Featurizer, ResNet, WholeFish
from shiftbed.networks.heads import Classifier, ContextNet
from shiftbed.networks.perceptrons import MLP
from shiftbed.networks.weights import load_initial_weights, stride_first, weights_digest

__all__ = [
    "MLP",
    "MNIST_CNN",
    "NETWORKS",
    "Classifier",
    "ContextNet",
    "Featurizer",
    "FeaturizerModule",
    "ResNet",
    "SmallConv",
    "WholeFish",
    "load_initial_weights",
    "stride_first",
    "weights_digest",
]
