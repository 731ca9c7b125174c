"""Our own featurizers, what can be frozen in any of them, and how one is chosen."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed import networks
from shiftbed.algorithms.base import ERM
from shiftbed.errors import AlgorithmError, UnknownNameError
from shiftbed.networks import MLP, MNIST_CNN, NETWORKS, ContextNet, Featurizer, ResNet

SHAPES = {
    "small": (3, 16, 16),
    "mnist-convnet": (2, 28, 28),
    "nico-shallow": (3, 28, 28),
    "wide-resnet-16-2": (3, 32, 32),
    "mlp": (5,),
    "mlp-390": (2, 14, 14),
}


def made(name, seed=0, **hparams):
    torch.manual_seed(seed)
    return Featurizer(SHAPES[name], {"network": name, **hparams})


def images(name, count=4):
    return torch.rand(count, *SHAPES[name], generator=torch.Generator().manual_seed(1))


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def norms(module):
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


@pytest.mark.parametrize("name", SHAPES)
def test_every_network_gives_features_of_the_length_it_says_in_both_precisions(name):
    for dtype in (torch.float32, torch.float64):
        features = made(name).to(dtype)(images(name).to(dtype))
        assert features.shape == (4, made(name).n_outputs) and features.dtype == dtype


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("mnist-convnet", 371136), ("mlp-390", 305760), ("nico-shallow", 95408), ("wide-resnet-16-2", 691520)],
)
def test_networks_of_papers_have_as_many_parameters_as_their_tables_say(name, parameters):
    assert size(made(name)) == parameters


def test_the_mnist_convnet_is_the_table_of_the_domainbed_paper():
    network, x = made("mnist-convnet"), images("mnist-convnet")
    features = network(x)
    weights = list(network.parameters())  # of each block: filters, biases, scales, shifts
    for i, stride in enumerate((1, 2, 1, 1)):
        filters, biases, scales, shifts = weights[4 * i : 4 * i + 4]
        x = F.group_norm(F.relu(F.conv2d(x, filters, biases, stride, padding=1)), 8, scales, shifts)
    torch.testing.assert_close(features, x.flatten(2).mean(2))
    assert MNIST_CNN((2, 28, 28)).n_outputs == 128


def test_mlp_390_starts_from_xavier_uniform_with_the_gain_of_relu():
    network = made("mlp-390")
    for layer, inputs in ((network.layers[1], 392), (network.layers[3], 390)):
        bound = math.sqrt(2) * math.sqrt(6 / (inputs + 390))
        assert 0.999 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    assert (network(images("mlp-390")) >= 0).all()


def test_the_shallow_network_of_nico_drops_after_its_second_and_fourth_convolution():
    network = made("nico-shallow")
    kinds = [type(layer).__name__ for layer in network.maps]
    assert kinds == ["Sequential", "Sequential", "Dropout", "Sequential", "Sequential", "Dropout"]
    assert [layer.p for layer in network.maps if isinstance(layer, nn.Dropout)] == [0.4, 0.4]
    assert (network(images("nico-shallow")) >= 0).all()
    with pytest.raises(AlgorithmError, match=r"at least 19×19.*\(3, 16, 16\)"):
        Featurizer((3, 16, 16), {"network": "nico-shallow"})


def test_the_wide_resnet_is_pre_activated_with_the_stride_in_the_second_convolution():
    network, x = made("wide-resnet-16-2").eval(), images("wide-resnet-16-2")
    for number, norm in enumerate(norms(network)):  # statistics that are not 0 and 1
        norm.running_mean.fill_(0.01 * number)
        norm.running_var.fill_(1 + 0.1 * number)
    w = dict(network.state_dict())

    def norm(x, key):
        names = ("running_mean", "running_var", "weight", "bias")
        return F.relu(F.batch_norm(x, *(w[f"{key}.{name}"] for name in names)))

    maps = F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=1)
    for layer in (1, 2, 3):
        for block in (0, 1):
            key, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            inner = F.conv2d(norm(maps, f"{key}.bn1"), w[f"{key}.conv1.weight"], w[f"{key}.conv1.bias"], padding=1)
            inner = norm(inner, f"{key}.bn2")
            inner = F.conv2d(inner, w[f"{key}.conv2.weight"], w[f"{key}.conv2.bias"], stride, padding=1)
            if f"{key}.shortcut.weight" in w:
                maps = F.conv2d(maps, w[f"{key}.shortcut.weight"], w[f"{key}.shortcut.bias"], stride)
            maps = maps + inner
    pooled = F.avg_pool2d(norm(maps, "bn1"), 8)  # as DomainBed pools
    torch.testing.assert_close(network(x), pooled[:, :, 0, 0], rtol=1e-4, atol=1e-5)
    assert network.bn1.momentum == 0.9


def test_the_perceptron_has_as_many_layers_as_its_depth_and_drops_before_relu():
    network = MLP(5, 2, {"mlp_width": 7, "mlp_depth": 4, "mlp_dropout": 0.5})
    assert size(network) == (5 + 1) * 7 + 2 * (7 + 1) * 7 + (7 + 1) * 2
    assert network.n_outputs == 2 and size(MLP(5, 2, {})) == 6 * 256 + 257 * 256 + 257 * 2
    x = torch.randn(3, 5)
    hidden = F.relu(network.eval().input(x))
    for layer in network.hiddens:
        hidden = F.relu(layer(hidden))
    torch.testing.assert_close(network(x), network.output(hidden))
    assert (network(x) < 0).any()
    assert made("mlp", mlp_width=7).n_outputs == 7


def test_the_context_network_gives_one_map_of_the_size_of_the_image():
    network = ContextNet((3, 9, 11))
    assert network(torch.rand(2, 3, 9, 11)).shape == (2, 1, 9, 11)
    assert size(network) == (75 * 64 + 64) + 2 * 128 + (1600 * 64 + 64) + (1600 + 1)


@pytest.mark.parametrize(
    ("shape", "hparams", "name"),
    [
        ((7,), {}, "mlp"),
        ((2, 28, 28), {}, "mnist-convnet"),
        ((3, 32, 32), {}, "wide-resnet-16-2"),
        ((3, 64, 64), {"resnet18": True}, "resnet18"),
        ((3, 28, 28), {"network": "small"}, "small"),
    ],
)
def test_without_a_name_the_shape_of_the_inputs_chooses_as_in_domainbed(shape, hparams, name):
    assert Featurizer(shape, hparams).name == name


def test_the_usual_resnet_has_50_layers():
    assert ResNet((3, 32, 32), {}).n_outputs == 2048


@pytest.mark.parametrize("name", ["small", "mnist-convnet", "nico-shallow", "wide-resnet-16-2"])
def test_stages_are_the_modules_that_give_maps_and_a_hook_can_replace_them(name):
    network, x, seen = made(name).eval(), images(name), []
    before = network(x)
    for stage in network.stages:
        hook = stage.register_forward_hook(lambda module, inputs, output: seen.append(output) or output * 0)
        assert not torch.equal(network(x), before)
        hook.remove()
    assert len(seen) == len(network.stages) >= 3 and all(maps.ndim == 4 for maps in seen)


def test_perceptrons_have_no_stages_and_algorithms_that_need_maps_refuse_them():
    class NeedsMaps(ERM):
        needs = ("feature maps",)

    hparams = {"lr": 1e-3, "weight_decay": 0.0, "nonlinear_classifier": False}
    assert made("mlp").stages == made("mlp-390").stages == []
    for name in ("mlp", "mlp-390"):
        with pytest.raises(AlgorithmError, match=f"NeedsMaps needs convolutional stages, which the network {name} "):
            NeedsMaps(SHAPES[name], 2, 2, {**hparams, "network": name})
    NeedsMaps(SHAPES["small"], 2, 2, {**hparams, "network": "small"})


@pytest.mark.parametrize(
    ("mode", "statistics_move", "affine_learns"),
    [("trained", True, True), ("frozen-statistics", False, True), ("frozen", False, False)],
)
def test_batch_norm_learns_what_its_mode_says_after_every_call_of_train(mode, statistics_move, affine_learns):
    network, x = made("wide-resnet-16-2", batch_norm=mode), images("wide-resnet-16-2")
    for _ in range(2):
        assert network.eval().train() is network
        assert network.training and network.conv1.training
        before = [norm.running_mean.clone() for norm in norms(network)]
        network(x).sum().backward()
        moved = [not torch.equal(norm.running_mean, old) for norm, old in zip(norms(network), before, strict=True)]
        assert moved == [statistics_move] * len(moved)
    learned = [norm.weight.grad is not None and norm.bias.grad is not None for norm in norms(network)]
    assert learned == [affine_learns] * len(learned)
    assert network.conv1.weight.grad is not None


def test_a_frozen_mode_survives_a_copy_and_a_module_around_it():
    network = nn.Sequential(copy.deepcopy(made("wide-resnet-16-2", batch_norm="frozen-statistics")), nn.Linear(128, 2))
    network.train()
    assert len(norms(network)) == 13 and not any(norm.training for norm in norms(network))


def test_freezing_stages_stops_all_up_to_the_last_of_them_and_nothing_after():
    network, x = made("wide-resnet-16-2"), images("wide-resnet-16-2")
    network.freeze_stages(2)
    network.train()
    before = copy.deepcopy(network.state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(x).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.startswith(("layer3", "bn1"))}


def test_more_stages_than_there_are_cannot_be_frozen_and_none_changes_nothing():
    network = made("small")
    network.freeze_stages(0)
    assert all(parameter.requires_grad for parameter in network.parameters())
    network.freeze_stages(1)
    assert [parameter.requires_grad for parameter in network.parameters()] == [False] * 4 + [True] * 10
    with pytest.raises(AlgorithmError, match="small has 3 stages; 4 of them cannot be frozen"):
        network.freeze_stages(4)
    with pytest.raises(AlgorithmError, match="mlp has no convolutional stages; 1 "):
        made("mlp").freeze_stages(1)


def test_an_unknown_mode_of_batch_norm_is_named_with_the_nearest():
    with pytest.raises(AlgorithmError, match=r"no batch_norm 'frosen'\. Did you mean frozen"):
        made("small", batch_norm="frosen")


def test_frozen_batch_norm_resumes_to_the_bit():
    def algorithm():
        torch.manual_seed(0)
        shape, hparams = SHAPES["wide-resnet-16-2"], {"lr": 1e-2, "weight_decay": 0.0, "network": "wide-resnet-16-2"}
        return ERM(shape, 3, 1, {**hparams, "batch_norm": "frozen-statistics"})

    def step(one):
        return one.train().update([(images("wide-resnet-16-2"), torch.tensor([0, 1, 2, 0]))])["loss"]

    first, second = algorithm(), algorithm()
    step(first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    step(first)
    step(second)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_only_our_networks_are_listed_and_timm_is_imported_for_none_of_them(monkeypatch):
    assert {name for name in NETWORKS if not name.startswith("cifar-")} == set(SHAPES)  # the pool has its own tests
    monkeypatch.setattr("shiftbed.networks.backbones.timm_names", None)
    assert NETWORKS["Small"].name == "small"
    for path in Path(networks.__file__).parent.glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not [line for line in imports if line.split()[1].startswith(("timm", "torchvision", "huggingface"))]


def test_a_compiled_network_heeds_hooks_that_come_and_go():
    # In a process that has compiled another network of its kind, whose code torch uses again without a look at hooks.
    first, second = made("small"), made("small")
    x = images("small")
    plain = first(x)
    for network in (first, second):
        network.compile(backend="eager")
    assert torch.equal(first(x), plain)
    hook = second.stages[1].register_forward_hook(lambda stage, inputs, maps: 2 * maps)
    hooked = second(x)
    hook.remove()
    assert not torch.allclose(hooked, plain) and torch.equal(second(x), plain)


def test_an_unknown_network_is_answered_with_the_nearest_of_ours_and_of_timm():
    with pytest.raises(UnknownNameError, match=r"no network 'mnist-convnett'\. Did you mean mnist-convnet"):
        NETWORKS["mnist-convnett"]
    with pytest.raises(UnknownNameError, match=r"Did you mean .*vit_base_patch16_224"):
        NETWORKS["vit_base_patch16_22"]


def test_inputs_that_are_no_images_are_refused():
    for name in ("small", "mnist-convnet", "wide-resnet-16-2"):
        with pytest.raises(AlgorithmError, match=f"'{name}' takes images"):
            Featurizer((5,), {"network": name})


def test_the_small_network_starts_from_the_weights_it_always_had():
    weights = np.array([parameter.double().sum().item() for parameter in made("small").parameters()])
    np.testing.assert_allclose(weights[[0, 4, 8, 12]], [-0.591319, -4.725914, 7.295600, -1.923269], rtol=1e-5)
