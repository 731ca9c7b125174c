"""Initial weights: layouts of checkpoints, where files are looked for, and what is said when they are not there."""

import argparse
import copy
import hashlib
import os
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from shiftbed.algorithms import ALGORITHMS
from shiftbed.errors import DataError
from shiftbed.networks import Featurizer, load_initial_weights, weights, weights_digest
from tests.algorithms.common import default_hparams

REAL = Path(__file__).parents[3] / "shared" / "data" / "resnet50_imagenet_supervised_fp16.safetensors"
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of weights of its own; no cache of another program and no network."""

    def offline(archive, folder):
        raise DataError("offline")

    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(weights, "download", offline)
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def shaken(network, seed=0):
    """The same network in evaluation mode, with statistics of batch norm that are not 0 and 1."""
    random = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=random)
            module.running_var.uniform_(0.5, 2, generator=random)
            module.weight.data.uniform_(0.5, 1.5, generator=random)
    return network.eval()


@pytest.fixture(scope="module")
def resnet18():
    torch.manual_seed(5)
    return shaken(torchvision.models.resnet18())


@pytest.fixture(scope="module")
def empty():
    """Networks without initial weights, made once."""
    networks = {}

    def of(name):
        if name not in networks:
            networks[name] = Featurizer((3, 32, 32), {"network": name}).eval()
        for tensor in networks[name].backbone.state_dict().values():
            tensor.zero_()
        return networks[name]

    return of


def images(size=32, channels=3):
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def features(source, x):
    """What a ResNet of torchvision gives before its head, for normalised images."""
    head, source.fc = source.fc, nn.Identity()
    with torch.no_grad():
        out = source((x - MEAN) / DEVIATION)
    source.fc = head
    return out


def made(network, initial, shape=(3, 32, 32)):
    return Featurizer(shape, {"network": network, "initial_weights": str(initial)}).eval()


def prefixed(state, prefix):
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def other(state):
    return {name: tensor + 1 for name, tensor in state.items()}


LAYOUTS = {
    "torchvision": lambda s: s,
    "timm": lambda s: {name: tensor for name, tensor in s.items() if not name.startswith("fc.")},
    "nested state_dict": lambda s: {"epoch": 3, "arch": "resnet18", "state_dict": s, "optimizer": {"state": {}}},
    "nested model": lambda s: {"model": prefixed(s, "module.")},
    "MoCo v1, v2": lambda s: {
        "state_dict": {
            **prefixed(other(s), "module.encoder_k."),
            **prefixed(s, "module.encoder_q."),
            "module.queue": torch.zeros(128, 8),
            "module.encoder_q.fc.2.weight": torch.zeros(1),
        }
    },
    "MoCo v3": lambda s: {
        "state_dict": {
            **prefixed(other(s), "module.momentum_encoder."),
            **prefixed(s, "module.base_encoder."),
            "module.predictor.0.weight": torch.zeros(1),
        }
    },
    "SimCLR, converted": lambda s: {"state_dict": s},
    "SimCLR, backbone": lambda s: {"state_dict": {**prefixed(s, "backbone."), "backbone.fc.2.bias": torch.zeros(1)}},
    "SimCLR, encoder": lambda s: {**prefixed(s, "encoder."), "projector.0.weight": torch.zeros(1)},
    "resnet": lambda s: {"resnet": s, "head": {"layers.0.weight": torch.zeros(1)}},
    "old PyTorch": lambda s: {name: tensor for name, tensor in s.items() if "num_batches" not in name},
    "ours": lambda s: {**prefixed(s, "featurizer.backbone."), "classifier.weight": torch.zeros(1)},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resnet_of_any_layout_gives_the_features_of_its_source(layout, resnet18, empty, tmp_path):
    torch.save(LAYOUTS[layout](resnet18.state_dict()), tmp_path / "file.pth")
    network = empty("resnet18")
    load_initial_weights(network, str(tmp_path / "file.pth"))
    torch.testing.assert_close(network(images()), features(resnet18, images()), rtol=1e-4, atol=1e-4)


def test_half_precision_safetensors_are_read_into_the_network_s_own_precision(resnet18, folder):
    save_file(
        {name: t.half() if t.ndim == 4 else t for name, t in resnet18.state_dict().items()}, folder / "a.safetensors"
    )
    network = made("resnet18", "a.safetensors")
    assert network.backbone.conv1.weight.dtype == torch.float32
    torch.testing.assert_close(network(images()), features(resnet18, images()), rtol=1e-2, atol=1e-2)


class SimclrBlock(nn.Module):
    """A bottleneck block under the names of the converted SimCLR-v2 checkpoints."""

    def __init__(self, channels, width, stride, first):
        super().__init__()
        self.projection = nn.Identity()
        if first:
            self.projection = nn.Module()
            self.projection.shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.projection.bn = nn.Sequential(nn.BatchNorm2d(4 * width))
        convolutions = (
            nn.Conv2d(channels, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.Conv2d(width, 4 * width, 1, bias=False),
        )
        norms = [nn.Sequential(nn.BatchNorm2d(n), nn.ReLU()) for n in (width, width)]
        last = nn.Sequential(nn.BatchNorm2d(4 * width), nn.Identity())
        self.net = nn.Sequential(convolutions[0], norms[0], convolutions[1], norms[1], convolutions[2], last)

    def forward(self, x):
        side = self.projection.bn(self.projection.shortcut(x)) if hasattr(self.projection, "bn") else x
        return torch.relu(side + self.net(x))


class SimclrResNet26(nn.Module):
    def __init__(self):
        super().__init__()
        stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()), nn.MaxPool2d(3, 2, 1)
        )
        parts, channels = [stem], 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            part = nn.Module()
            part.blocks = nn.Sequential(
                SimclrBlock(channels, width, stride, True), SimclrBlock(4 * width, width, 1, False)
            )
            parts.append(part)
            channels = 4 * width
        self.net = nn.Sequential(*parts)
        self.fc = nn.Linear(2048, 10)

    def forward(self, x):
        x = self.net[0](x)
        for part in self.net[1:]:
            x = part.blocks(x)
        return x.mean((2, 3))


def test_a_resnet_of_simclr_v2_s_converter_gives_the_features_of_its_source(empty, tmp_path):
    torch.manual_seed(6)
    source = shaken(SimclrResNet26())
    torch.save({"resnet": source.state_dict(), "head": {"layers.0.weight": torch.zeros(1)}}, tmp_path / "r26.pth")
    network = empty("resnet26")
    load_initial_weights(network, str(tmp_path / "r26.pth"))
    with torch.no_grad():
        torch.testing.assert_close(network(images()), source((images() - MEAN) / DEVIATION), rtol=1e-4, atol=1e-4)


def transformer(size=32):
    torch.manual_seed(7)
    source = torchvision.models.VisionTransformer(size, 16, 6, 2, 64, 192)
    for parameter in source.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    return source.eval()


@pytest.mark.parametrize("layout", ["torchvision", "MoCo v3"])
def test_a_vision_transformer_of_any_layout_gives_the_features_of_its_source(layout, tmp_path):
    if layout == "torchvision":
        source = transformer()
        state = source.state_dict()
        source.heads = nn.Identity()
    else:
        import timm

        source = timm.create_model("test_vit", num_classes=0, img_size=32).eval()
        head = {"head.0.weight": torch.zeros(1), "head.3.weight": torch.zeros(1)}
        state = {"state_dict": prefixed({**source.state_dict(), **head}, "module.base_encoder.")}
    torch.save(state, tmp_path / "vit.pth")
    network = made("test_vit", tmp_path / "vit.pth")
    with torch.no_grad():
        torch.testing.assert_close(network(images()), source((images() - MEAN) / DEVIATION), rtol=1e-4, atol=1e-4)


def test_a_second_head_that_timm_knows_of_is_left_out_too(tmp_path):
    import timm

    torch.manual_seed(8)
    source = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32).eval()
    torch.save(source.state_dict(), tmp_path / "deit.pth")
    network = made("deit_tiny_distilled_patch16_224", tmp_path / "deit.pth")
    source.reset_classifier(0)
    with torch.no_grad():
        torch.testing.assert_close(network(images()), source((images() - MEAN) / DEVIATION), rtol=1e-4, atol=1e-4)


def test_the_position_embedding_is_interpolated_to_another_image_size(tmp_path):
    source = transformer(32)
    position = source.encoder.pos_embedding.data
    position[:, 1:] = position[:, 1:2]  # the same everywhere, so that interpolation changes nothing
    torch.save(source.state_dict(), tmp_path / "vit.pth")
    larger = made("test_vit", tmp_path / "vit.pth", (3, 64, 64)).backbone.pos_embed
    assert larger.shape == (1, 17, 64)
    torch.testing.assert_close(larger[0, 0], position[0, 0])
    torch.testing.assert_close(larger[0, 1:], position[0, 1:2].expand(16, -1))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_filters_of_other_input_channels_are_copies_of_the_first_three(channels, resnet18, tmp_path):
    torch.save(resnet18.state_dict(), tmp_path / "a.pth")
    filters = made("resnet18", tmp_path / "a.pth", (channels, 32, 32)).backbone.conv1.weight
    for channel in range(channels):
        assert torch.equal(filters[:, channel], resnet18.conv1.weight[:, channel % 3])


def test_weights_of_another_network_are_refused_with_their_names(resnet18, empty, tmp_path):
    def load(network, state):
        torch.save(state, tmp_path / "a.pth")
        load_initial_weights(empty(network), str(tmp_path / "a.pth"))

    state = resnet18.state_dict()
    shallower = {name: tensor for name, tensor in state.items() if not name.startswith("layer4.1")}
    with pytest.raises(DataError, match=r"a\.pth and the network resnet18 .*lacks layer4\.1\.conv1\.weight, .* more"):
        load("resnet18", shallower)
    with pytest.raises(DataError, match=r"layer1\.0\.conv1\.weight is 64×64×3×3 and should be 64×64×1×1"):
        load("resnet26", state)
    with pytest.raises(DataError, match=r"the network has no layer5\.weight; name the network they were made for"):
        load("resnet18", {**state, "layer5.weight": torch.zeros(1)})
    with pytest.raises(DataError, match=r"lacks conv1\.weight.*the network has no something"):
        load("resnet18", {"something": torch.zeros(1)})
    assert not any(tensor.any() for tensor in empty("resnet18").backbone.state_dict().values())


def test_our_own_networks_take_files_too_and_other_weights_stay_random(tmp_path):
    torch.manual_seed(0)
    source = Featurizer((3, 8, 8), {"network": "small"})
    torch.save(prefixed(source.state_dict(), "featurizer."), tmp_path / "small.pth")
    network = Featurizer((3, 8, 8), {"network": "small", "initial_weights": str(tmp_path / "small.pth")})
    assert torch.equal(network(images(8)), source(images(8)))
    torch.manual_seed(0)
    fresh = Featurizer((3, 8, 8), {"network": "small", "initial_weights": "none"})
    assert torch.equal(fresh(images(8)), source(images(8)))


@pytest.mark.parametrize("network", ["small", "test_resnet"])
def test_of_two_featurizers_the_one_that_predicts_is_taken(network, folder):
    hparams = {**default_hparams("ADRMX"), "network": network}
    trained = ALGORITHMS["ADRMX"].cls((3, 32, 32), 3, 2, hparams)
    save_file(dict(trained.named_parameters()) | dict(trained.named_buffers()), folder / "adrmx.safetensors")
    again = Featurizer((3, 32, 32), {**hparams, "initial_weights": "adrmx.safetensors"})
    for own, label in zip(again.parameters(), trained.featurizer_label.parameters(), strict=True):
        assert torch.equal(own, label)


def test_the_digest_is_that_of_the_file_and_follows_it(resnet18, empty, folder):
    file = folder / "moco_v1_200ep_pretrain.pth.tar"
    file.write_bytes(b"one")
    assert weights_digest("moco", "resnet50") == hashlib.sha256(b"one").hexdigest()
    assert (
        weights_digest(str(file), "small") == weights_digest(file.name, "small") == hashlib.sha256(b"one").hexdigest()
    )
    before = weights._file_digest.cache_info().misses
    weights_digest("MoCo", "resnet50")
    assert weights._file_digest.cache_info().misses == before
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert weights_digest("moco", "resnet50") == hashlib.sha256(b"two").hexdigest()
    assert weights_digest(None, "resnet50") is weights_digest("none", "small") is None
    torch.save(resnet18.state_dict(), folder / "a.pth")
    assert load_initial_weights(empty("resnet18"), "a.pth") == weights_digest("a.pth", "resnet18")


@pytest.mark.parametrize(
    ("initial", "network", "file"),
    [
        ("imagenet", "resnet18", "resnet18-f37072fd.pth"),
        ("imagenet", "resnet50", "resnet50-0676ba61.pth"),
        ("ImageNet", "vit_base_patch16_224", "vit_b_16-c867db91.pth"),
        ("imagenet", "test_resnet", "test_resnet.r160_in1k.safetensors"),
        ("resnet50.ram_in1k", "resnet50", "resnet50.ram_in1k.safetensors"),
        ("moco", "resnet50", "moco_v1_200ep_pretrain.pth.tar"),
        ("moco-v2", "resnet50", "moco_v2_200ep_pretrain.pth.tar"),
        ("moco-v3", "vit_base_patch16_224", "moco_v3_vit-b-300ep.pth.tar"),
    ],
)
def test_weights_that_are_not_here_are_asked_for_with_file_and_folder(initial, network, file, folder):
    with pytest.raises(DataError, match=f"could not be downloaded; get https://.* put the file at {folder / file}"):
        weights_digest(initial, network)


def test_converted_weights_are_asked_for_with_how_to_make_them(folder):
    for initial, file in (("simclr", "simclr_resnet50-1x.pth"), ("simclr-v2", "simclr_v2_r50_1x_sk0.pth")):
        with pytest.raises(DataError, match=f"made by hand: take .* converted with .* put the file at {folder / file}"):
            weights_digest(initial, "resnet50")


def test_what_is_neither_a_name_nor_a_file_is_answered_with_the_nearest_name(folder):
    with pytest.raises(DataError, match=r"no initial weights 'moco-v4', and no file .*Did you mean moco"):
        weights_digest("moco-v4", "resnet50")
    with pytest.raises(DataError, match=f"no file gone.pth or {folder / 'gone.pth'}"):
        weights_digest("gone.pth", "resnet50")
    with pytest.raises(DataError, match="no weights 'moco-v2' for resnet18, only for resnet50"):
        weights_digest("moco-v2", "resnet18")
    with pytest.raises(DataError, match="no weights 'imagenet' for small"):
        weights_digest("imagenet", "small")


def test_weights_are_downloaded_once_and_found_in_other_programs_caches(folder, tmp_path, monkeypatch):
    def arrives(archive, folder):
        (folder / archive.file).write_bytes(archive.mirrors[0].encode())
        return folder / archive.file

    monkeypatch.setattr(weights, "download", arrives)
    address = "https://dl.fbaipublicfiles.com/moco/moco_checkpoints/moco_v2_200ep/moco_v2_200ep_pretrain.pth.tar"
    assert weights_digest("moco-v2", "resnet50") == hashlib.sha256(address.encode()).hexdigest()
    monkeypatch.setattr(weights, "download", None)
    weights_digest("moco-v2", "resnet50")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "moco_v1_200ep_pretrain.pth.tar").write_bytes(b"torch")
    assert weights_digest("moco", "resnet50") == hashlib.sha256(b"torch").hexdigest()
    (tmp_path / "model.safetensors").write_bytes(b"hub")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(tmp_path / "model.safetensors"))
    assert weights_digest("resnet50.ram_in1k", "resnet50") == hashlib.sha256(b"hub").hexdigest()


def test_damaged_and_dangerous_files_are_refused_in_one_sentence(folder):
    (folder / "resnet18-f37072fd.pth").write_bytes(b"cut off")
    with pytest.raises(DataError, match=r"resnet18-f37072fd\.pth is damaged"):
        weights_digest("imagenet", "resnet18")
    for name in ("cut.pth", "cut.safetensors"):
        (folder / name).write_bytes(b"cut off")
        with pytest.raises(DataError, match=f"{name} (cannot be read as weights|holds more than tensors)"):
            made("small", name)
    torch.save({"args": argparse.Namespace(lr=1), "model": {}}, folder / "object.pth")
    with pytest.raises(DataError, match=r"object\.pth holds more than tensors and cannot be loaded safely"):
        made("small", "object.pth")
    torch.save([torch.zeros(1)], folder / "list.pth")
    with pytest.raises(DataError, match=r"list\.pth holds a list, not tensors by name"):
        made("small", "list.pth")


def test_images_are_normalised_as_the_weights_expect():
    half, imagenet = (0.5, 0.5, 0.5), (0.485, 0.456, 0.406)
    assert weights.normalisation("simclr", "resnet50") == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert weights.normalisation("vit_base_patch16_224.augreg_in1k", "vit_base_patch16_224") == (half, half)
    for initial in (None, "none", "imagenet", "moco-v2", "own.pth", "vit_base_patch16_224.safetensors"):
        assert weights.normalisation(initial, "resnet50")[0] == imagenet


@pytest.mark.parametrize("initial", ["simclr", "simclr-v2", "vit_base_patch16_224.augreg_in1k", "moco", "imagenet"])
def test_published_weights_named_by_their_file_are_normalised_as_by_their_name(initial):
    """They have one digest, and so the jobs that begin with them one id."""
    network = "vit_base_patch16_224" if "vit" in initial else "resnet50"
    file = weights._published(initial, network).file
    for name in (file, f"/somewhere/{file}"):
        assert weights.normalisation(name, network) == weights.normalisation(initial, network)


def test_a_stride_in_the_first_convolution_is_taken_from_the_file_s_own_words(empty, tmp_path):
    torch.manual_seed(6)
    source = torchvision.models.resnet.ResNet(torchvision.models.resnet.Bottleneck, [2, 2, 2, 2]).eval()
    network = copy.deepcopy(empty("resnet26"))
    for words, change in (({}, lambda resnet: resnet), ({"stride": "on conv1 of the first block"}, with_first_stride)):
        save_file(source.state_dict(), tmp_path / "a.safetensors", words)
        load_initial_weights(network, str(tmp_path / "a.safetensors"))
        torch.testing.assert_close(network(images(64)), features(change(source), images(64)), rtol=1e-4, atol=1e-4)


def with_first_stride(resnet):
    for layer in (resnet.layer2, resnet.layer3, resnet.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    return resnet


@pytest.mark.skipif(not REAL.exists(), reason="the real weights of ResNet-50 are not here")
def test_the_real_resnet_50_of_the_first_paper_gives_the_features_of_torchvision_s_with_its_stride():
    from safetensors.torch import load_file

    source = with_first_stride(torchvision.models.resnet50()).eval()
    assert source.load_state_dict(load_file(REAL), strict=False).missing_keys == ["fc.weight", "fc.bias"]
    x = images(64)[:1]
    with torch.no_grad():
        given = made("resnet50", REAL, (3, 64, 64))(x)
    torch.testing.assert_close(given, features(source, x), rtol=1e-3, atol=1e-4)
    assert 0.1 < given.mean() < 1  # features of a trained network, neither dead nor blown up
