"""Networks of timm by name; the tests use timm's smallest."""

import pytest
import torch
from torch import nn
from torchvision.transforms.functional import normalize

from shiftbed.algorithms.base import ERM
from shiftbed.errors import AlgorithmError
from shiftbed.networks import NETWORKS, Featurizer

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def made(network, shape=(3, 32, 32), **hparams):
    torch.manual_seed(0)
    return Featurizer(shape, {"network": network, **hparams})


def images(*shape):
    return torch.rand(2, *(shape or (3, 32, 32)), generator=torch.Generator().manual_seed(1))


def test_a_name_of_timm_is_a_network_with_a_revision_and_is_not_listed():
    cls = NETWORKS["Test_ResNet"]
    assert cls is NETWORKS["test_resnet"] and cls.__name__ == cls.name == "test_resnet" and cls.revision == 1
    assert "test_resnet" not in set(NETWORKS)


@pytest.mark.parametrize(
    ("network", "features"),
    [("test_resnet", 96), ("test_vit", 64), ("test_convnext", 64), ("test_efficientnet", 256)],
)
def test_features_are_pooled_and_as_long_as_the_network_says(network, features):
    for dtype in (torch.float32, torch.float64):
        backbone = made(network).to(dtype)
        assert backbone(images().to(dtype)).shape == (2, features)
        assert backbone.n_outputs == features and backbone.training


def test_images_are_normalised_as_imagenet():
    backbone, x = made("test_resnet").eval(), images()
    torch.testing.assert_close(backbone(x), backbone.backbone(normalize(x, MEAN, DEVIATION)))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_numbers_of_channels_are_taken_and_those_after_the_third_stay_as_they_are(channels):
    backbone, x = made("test_resnet", (channels, 32, 32)).eval(), images(channels, 32, 32)
    mean, deviation = [*MEAN, 0.0][:channels], [*DEVIATION, 1.0][:channels]
    torch.testing.assert_close(backbone(x), backbone.backbone(normalize(x, mean, deviation)))


def test_dropout_stands_before_the_head_and_only_in_training():
    backbone, x = made("test_resnet", resnet_dropout=0.5, batch_norm="frozen"), images()
    whole = backbone.eval()(x)
    torch.manual_seed(3)
    dropped = backbone.train()(x)
    kept = dropped != 0
    assert 0.3 < kept[whole != 0].float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


def test_the_stages_of_a_resnet_are_its_four_layers():
    backbone = made("test_resnet")
    layers = backbone.backbone
    expected = (layers.layer1, layers.layer2, layers.layer3, layers.layer4)
    assert all(stage is layer for stage, layer in zip(backbone.stages, expected, strict=True))


@pytest.mark.parametrize(("network", "count"), [("test_convnext", 4), ("test_vit", 0), ("test_mambaout", 0)])
def test_only_modules_that_give_maps_with_channels_first_are_stages(network, count):
    backbone, seen = made(network, (3, 64, 64)), []
    for stage in backbone.stages:
        stage.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    backbone(images(3, 64, 64))
    assert [shape[2:] for shape in seen] == [(16, 16), (8, 8), (4, 4), (2, 2)][:count]


def test_an_algorithm_that_needs_maps_refuses_a_vision_transformer():
    class NeedsMaps(ERM):
        needs = ("feature maps",)

    hparams = {"lr": 1e-3, "weight_decay": 0.0}
    with pytest.raises(AlgorithmError, match="NeedsMaps needs convolutional stages, which the network test_vit"):
        NeedsMaps((3, 32, 32), 2, 2, {**hparams, "network": "test_vit"})
    NeedsMaps((3, 32, 32), 2, 2, {**hparams, "network": "test_resnet"})


def test_freezing_stages_of_a_resnet_freezes_its_stem_too():
    backbone = made("test_resnet")
    backbone.freeze_stages(2)
    backbone.train()
    frozen = {name.split(".")[1] for name, p in backbone.named_parameters() if not p.requires_grad}
    fixed = {
        name.split(".")[1]
        for name, module in backbone.named_modules()
        if isinstance(module, nn.BatchNorm2d) and not module.training
    }
    assert frozen == {"conv1", "bn1", "layer1", "layer2"} and fixed == {"conv1", "bn1", "layer1", "layer2"}


def test_residual_blocks_start_with_norms_of_one_as_in_torchvision():
    scales = [m.weight for m in made("test_resnet").modules() if isinstance(m, nn.BatchNorm2d)]
    assert all((scale == 1).all() for scale in scales)


def test_a_vision_transformer_takes_any_size_that_its_patches_fill():
    assert made("test_vit", (3, 48, 64))(images(3, 48, 64)).shape == (2, 64)
    with pytest.raises(AlgorithmError, match=r"patches of 16 px, which do not fill 40×40; .*multiple of 16"):
        made("test_vit", (3, 40, 40))


@pytest.mark.parametrize(
    ("network", "side"),
    [("pvt_v2_b0", 64), ("xcit_nano_12_p16_224", 64), ("efficientvit_m0", 224)],
    ids=["overlapping patches", "patches by several convolutions", "a size of one number"],
)
def test_transformers_with_patches_of_another_kind_are_taken(network, side):
    assert torch.isfinite(made(network, (3, side, side)).eval()(images(3, side, side))).all()


def test_inputs_a_backbone_cannot_take_are_refused_in_one_sentence():
    with pytest.raises(AlgorithmError, match=r"test_resnet takes images, not inputs of shape \(7,\)"):
        made("test_resnet", (7,))
    with pytest.raises(AlgorithmError, match="inception_v4 cannot take images of 3×32×32; choose another image_size"):
        made("inception_v4", (3, 32, 32))
