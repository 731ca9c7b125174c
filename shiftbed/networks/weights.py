"""Initial weights: published ones by name, or any file; found here, or downloaded, or asked for in one sentence.

A name says what the weights learned from: `imagenet`, `moco`, `simclr`, …, or a tag of timm (`resnet50.ram_in1k`).
Anything else is a file: a path, or the name of a file in the folder `weights` of the data root. Files are PyTorch's
(loaded with `weights_only`) or safetensors, also those of models trained here; `layouts` says which names of tensors
are understood.
"""

import hashlib
import json
import pickle
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shiftbed.data.dataset import Archive
from shiftbed.data.download import download
from shiftbed.data.roots import data_root
from shiftbed.errors import DataError
from shiftbed.networks import layouts
from shiftbed.networks.base import FeaturizerModule
from shiftbed.registry import did_you_mean

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
AS_THEY_ARE: Normalisation = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
TORCHVISION = "https://download.pytorch.org/models"
MOCO = "https://dl.fbaipublicfiles.com/moco/moco_checkpoints"


class Published(NamedTuple):
    """Weights that somebody published.

    Attributes:
        file: The name the file has in the folder of weights.
        origin: Its address, or how to make it.
        normalisation: What the network was given: mean and deviation that were taken out of images in [0, 1].
        hub: Its repository on the Hugging Face hub, whose cache may have it.
    """

    file: str
    origin: str
    normalisation: Normalisation = IMAGENET
    hub: str | None = None


def _torchvision(file: str) -> Published:
    return Published(file, f"{TORCHVISION}/{file}")


PUBLISHED: dict[str, dict[str, Published]] = {
    "imagenet": {  # torchvision's first weights, with which the papers began
        "resnet18": _torchvision("resnet18-f37072fd.pth"),
        "resnet34": _torchvision("resnet34-b627a593.pth"),
        "resnet50": _torchvision("resnet50-0676ba61.pth"),
        "resnet101": _torchvision("resnet101-63fe2227.pth"),
        "resnet152": _torchvision("resnet152-394f9c45.pth"),
        "vit_base_patch16_224": _torchvision("vit_b_16-c867db91.pth"),
    },
    "moco": {
        "resnet50": Published("moco_v1_200ep_pretrain.pth.tar", f"{MOCO}/moco_v1_200ep/moco_v1_200ep_pretrain.pth.tar")
    },
    "moco-v2": {
        "resnet50": Published("moco_v2_200ep_pretrain.pth.tar", f"{MOCO}/moco_v2_200ep/moco_v2_200ep_pretrain.pth.tar")
    },
    "moco-v3": {
        "resnet50": Published(
            "moco_v3_r-50-300ep.pth.tar", "https://dl.fbaipublicfiles.com/moco-v3/r-50-300ep/r-50-300ep.pth.tar"
        ),
        "vit_base_patch16_224": Published(
            "moco_v3_vit-b-300ep.pth.tar", "https://dl.fbaipublicfiles.com/moco-v3/vit-b-300ep/vit-b-300ep.pth.tar"
        ),
    },
    # SimCLR's networks learned from images in [0, 1], without normalisation.
    "simclr": {
        "resnet50": Published(
            "simclr_resnet50-1x.pth",
            "ResNet50_1x of google-research/simclr, converted with tonylins/simclr-converter",
            AS_THEY_ARE,
        )
    },
    # What DomainBed-v2 calls SimCLR: 50 epochs on STL-10.
    "simclr-stl10": {
        "resnet50": Published(
            "simclr_checkpoint_0040.pth.tar", "resnet50_50-epochs_stl10 of sthalles/SimCLR", AS_THEY_ARE
        )
    },
    "simclr-v2": {
        "resnet50": Published(
            "simclr_v2_r50_1x_sk0.pth",
            "r50_1x_sk0 of google-research/simclr, converted with Separius/SimCLRv2-Pytorch",
            AS_THEY_ARE,
        )
    },
}


def load_initial_weights(featurizer: FeaturizerModule, initial: str) -> str:
    """Gives a featurizer its initial weights.

    Args:
        featurizer: The featurizer, as it is registered.
        initial: A name or a file.

    Returns:
        The digest of the file.

    Raises:
        DataError: The file is not here, cannot be read, or does not fit.
    """
    path = _find(initial, featurizer.name)
    checkpoint, notes = _read(path)
    about = json.loads(notes.get("shiftbed", "{}"))  # what is known of a model that was trained here
    if any(name.split(".")[-1] == "average" for name in checkpoint) and about:
        raise DataError(
            f"{path} is a model of {about['algorithm']}, which predicts with a mean of weights that no network has; "
            "begin with a model of the algorithm inside."
        )
    layouts.fit(checkpoint, featurizer.body, f"The weights of {path.name} and the network {featurizer.name}")
    if "conv1" in notes.get("stride", "") or about.get("strides_first"):
        stride_first(featurizer)
    if about:
        _normalise_as(featurizer, checkpoint)
    return _digest(path)


def _normalise_as(featurizer: FeaturizerModule, checkpoint: dict[str, Any]) -> None:
    """Has a network normalise images as the one did whose tensors these are."""
    for name, own in featurizer.named_buffers(recurse=False):
        given = [value for key, value in checkpoint.items() if key.endswith(f".{name}")]
        if given and name in ("mean", "deviation"):
            own[: len(given[0])] = given[0][: len(own)]  # an algorithm may have added channels, there or here


def stride_first(featurizer: FeaturizerModule) -> None:
    """Moves the stride of a ResNet's blocks to their first convolution, where the first ResNet paper has it."""
    resnet: Any = featurizer.body
    for stage in (resnet.layer2, resnet.layer3, resnet.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    featurizer.strides_first = True


def weights_digest(initial: str | None, network: str) -> str | None:
    """The SHA-256 of the file of initial weights of a network; None if its weights are random."""
    return None if is_random(initial) else _digest(_find(str(initial), network))


def weights_are_here(initial: str | None, network: str) -> bool:
    """Whether initial weights are on this machine, without looking elsewhere; random ones always are."""
    if is_random(initial):
        return True
    published = _published(str(initial), network)
    if published is not None:
        return _cached(published) is not None
    return any(place.is_file() for place in (Path(str(initial)).expanduser(), weights_folder() / str(initial)))


def normalisation(initial: str | None, network: str) -> Normalisation:
    """Mean and deviation to take out of images in [0, 1] before a network with these weights sees them."""
    published = None if is_random(initial) else _published(str(initial), network) or _of_file(Path(str(initial)).name)
    return published.normalisation if published else IMAGENET


def is_random(initial: str | None) -> bool:
    """Whether no initial weights are named."""
    return initial is None or initial.lower() == "none"


def _published(initial: str, network: str) -> Published | None:
    """The published weights of this name for a network; None if it must be a file."""
    by_network = PUBLISHED.get(initial.lower())
    if by_network is None:
        return _of_timm(initial)
    if network in by_network:
        return by_network[network]
    default = _of_timm(network) if initial.lower() == "imagenet" else None
    if default is None or "in1k" not in default.file:
        raise DataError(f"There are no weights '{initial}' for {network}, only for {', '.join(by_network)}.")
    return default


def _of_timm(name: str) -> Published | None:
    """The weights that timm has under a network's name, with or without a tag."""
    if Path(name).suffix in (".pth", ".pt", ".tar", ".safetensors", ".bin") or "/" in name:
        return None
    import timm
    from huggingface_hub import hf_hub_url

    try:
        known = timm.get_pretrained_cfg(name)
    except RuntimeError:  # no such tag
        return None
    if known is None or not known.hf_hub_id:
        return None
    address = hf_hub_url(known.hf_hub_id, "model.safetensors")
    file = f"{known.architecture}.{known.tag}.safetensors"
    return Published(file, address, (tuple(known.mean), tuple(known.std)), known.hf_hub_id)


def _of_file(name: str) -> Published | None:
    """The published weights whose file has this name: named by their file they are the same weights."""
    of_timm = _of_timm(name.removesuffix(".safetensors"))
    ours = (published for by_network in PUBLISHED.values() for published in by_network.values())
    return next((one for one in (*ours, of_timm) if one is not None and one.file == name), None)


def _find(initial: str, network: str) -> Path:
    """The file, here or downloaded.

    Raises:
        DataError: It is neither; the sentence says which file to put where.
    """
    published = _published(initial, network)
    if published is None:
        places = (Path(initial).expanduser(), weights_folder() / initial)
        for place in places:
            if place.is_file():
                return place
        hint = did_you_mean(initial, list(PUBLISHED))
        raise DataError(f"There are no initial weights '{initial}', and no file {' or '.join(map(str, places))}.{hint}")
    return _checked(_cached(published) or _downloaded(published, initial, network))


def weights_folder() -> Path:
    """Where files of weights belong."""
    return data_root() / "weights"


def _cached(published: Published) -> Path | None:
    """The file in our folder, or in those of torch and the Hugging Face hub."""
    places = [weights_folder() / published.file, Path(torch.hub.get_dir()) / "checkpoints" / published.file]
    if published.hub:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(published.hub, "model.safetensors")
        places += [Path(cached)] if isinstance(cached, str) else []
    return next((place for place in places if place.is_file()), None)


def _downloaded(published: Published, initial: str, network: str) -> Path:
    where = f"put the file at {weights_folder() / published.file}"
    if not published.origin.startswith("https://"):
        raise DataError(f"The weights '{initial}' of {network} are made by hand: take {published.origin}, and {where}.")
    try:
        return download(Archive(file=published.file, mirrors=(published.origin,)), weights_folder())
    except DataError as error:
        raise DataError(
            f"The weights '{initial}' of {network} are not on this machine and could not be downloaded; get "
            f"{published.origin} and {where}."
        ) from error


def _checked(path: Path) -> Path:
    """Refuses a damaged file, where its name tells the beginning of its checksum, as torchvision's do."""
    promised = re.search(r"-([0-9a-f]{8})\.pth$", path.name)
    if promised and not _digest(path).startswith(promised[1]):
        raise DataError(f"{path} is damaged: its name and its checksum differ; remove it and try again.")
    return path


def _digest(path: Path) -> str:
    stat = path.stat()
    return _file_digest(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _file_digest(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of a file, perhaps nested, and what it says of itself.

    Raises:
        DataError: The file is damaged, or holds objects that would run code when loaded.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(f"{path} holds more than tensors and cannot be loaded safely; save its state_dict.") from error
    except Exception as error:  # the two libraries raise a dozen kinds
        raise DataError(f"{path} cannot be read as weights ({type(error).__name__}); get it again.") from error
    if not isinstance(checkpoint, dict):
        raise DataError(f"{path} holds a {type(checkpoint).__name__}, not tensors by name; save its state_dict.")
    return checkpoint, {}
