"""The classifiers for 32 px: their sizes are the published ones, and all of each is trained."""

import pytest
import torch

from shiftbed.errors import AlgorithmError
from shiftbed.networks import NETWORKS, Featurizer

# Trainable numbers in millions without the last layer, of public definitions for CIFAR.
SIZES = {
    "cifar-resnet18": 11.17,
    "cifar-resnet50": 23.50,
    "cifar-resnet44": 0.66,
    "cifar-preact-resnet18": 11.17,
    "cifar-vgg16": 14.72,
    "cifar-densenet121": 6.95,
    "cifar-mobilenet": 3.21,
    "cifar-resnext29-32x4d": 4.77,
    "cifar-resnext29-2x64d": 9.12,
    "cifar-regnetx-200mf": 2.32,
    "cifar-senet18": 11.25,
    "cifar-dpn26": 11.55,
    "cifar-pnasnet-a": 0.13,
    "cifar-pnasnet-b": 0.45,
    "cifar-shufflenetv2-1": 1.25,
    "cifar-efficientnet-b0": 3.6,
}
SMALL = ("cifar-resnet44", "cifar-shufflenet-g3", "cifar-shufflenetv2-0.5", "cifar-pnasnet-a", "cifar-repvgg-a0")


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_published_ones(name):
    network = NETWORKS[name]((3, 32, 32), {})
    assert sum(one.numel() for one in network.parameters()) / 1e6 == pytest.approx(SIZES[name], abs=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_all_of_it_is_trained_and_stages_are_maps(name):
    network = Featurizer((3, 32, 32), {"network": name})
    features = network(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, network.n_outputs)
    features.square().sum().backward()
    assert all(one.grad is not None for one in network.parameters())
    assert len(network.stages) >= 3


def test_shuffling_deals_the_channels_of_each_group_to_all():
    from shiftbed.networks.pool_light import Shuffle

    dealt = Shuffle(3)(torch.arange(6.0).view(1, 6, 1, 1)).flatten().tolist()
    assert dealt == [0, 2, 4, 1, 3, 5]


def test_small_images_are_refused():
    with pytest.raises(AlgorithmError, match="at least 32×32"):
        NETWORKS["cifar-vgg11"]((3, 16, 16), {})
