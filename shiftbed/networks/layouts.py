"""Key layouts: how published checkpoints name the weights of a network, and how they come to bear timm's names."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from shiftbed.errors import DataError

# ResNets need no table: all publishers use torchvision's names, and what stands before them is found by comparison.
# The exceptions, each with a name that marks it:
Renamings = tuple[tuple[str, str], ...]
TORCHVISION_VIT: Renamings = (
    (r"\bclass_token$", "cls_token"),
    (r"\bconv_proj\.", "patch_embed.proj."),
    (r"\bencoder\.pos_embedding$", "pos_embed"),
    (r"\bencoder\.ln\.", "norm."),
    (r"\bencoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(?:0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:3|linear_2)\.", ".mlp.fc2."),
)
SIMCLR_V2: Renamings = (
    (r"\bnet\.0\.0\.", "conv1."),
    (r"\bnet\.0\.1\.0\.", "bn1."),
    (r"\bnet\.(\d)\.blocks\.(\d+)\.projection\.shortcut\.", r"layer\1.\2.downsample.0."),
    (r"\bnet\.(\d)\.blocks\.(\d+)\.projection\.bn\.0\.", r"layer\1.\2.downsample.1."),
    *((rf"\bnet\.(\d)\.blocks\.(\d+)\.net\.{2 * i}\.", rf"layer\1.\2.conv{i + 1}.") for i in range(3)),
    *((rf"\bnet\.(\d)\.blocks\.(\d+)\.net\.{2 * i + 1}\.0\.", rf"layer\1.\2.bn{i + 1}.") for i in range(3)),
)
LAYOUTS: tuple[tuple[str, Renamings], ...] = (
    (r"\bencoder\.layers\.encoder_layer_0\.", TORCHVISION_VIT),
    (r"\bnet\.1\.blocks\.0\.net\.", SIMCLR_V2),
)
HEADS = ("fc.", "head.", "heads.", "classifier.")
# MoCo's copies of the encoder, which learn nothing themselves, and ADRMX's network of the domain, which predicts none.
BESIDE = ("encoder_k.", "momentum_encoder.", "featurizer_domain.")
SHOWN = 3


def fit(checkpoint: Mapping[str, Any], network: nn.Module, what: str) -> None:
    """Gives a network the weights of a checkpoint, whatever their names begin with and however they are nested.

    Filters of input channels after the third are copies of the first three; the position embedding of a vision
    transformer is interpolated to its image size. Heads are left out.

    Args:
        checkpoint: Tensors by name, perhaps nested (`state_dict`, `model`, `resnet`).
        network: What gets them.
        what: The checkpoint and the network in words, for messages.

    Raises:
        DataError: A weight of the network is missing or of another shape, or the checkpoint has more; it names them.
    """
    own = network.state_dict()
    given = _without_prefix(_renamed(dict(_tensors(checkpoint))), set(own))
    given = {name: _adapted(name, tensor, own.get(name), network) for name, tensor in given.items()}
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in given and name not in optional]
    heads = _heads(network)
    more = [name for name in given if name not in own and not name.startswith(heads)]
    wrong = [
        f"{name} is {_shape(given[name])} and should be {_shape(own[name])}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    if missing or more or wrong:
        troubles = (_listed("it lacks ", missing), _listed("", wrong), _listed("the network has no ", more))
        raise DataError(f"{what} do not fit: {'; '.join(filter(None, troubles))}; name the network they were made for.")
    network.load_state_dict({**own, **{name: given[name] for name in own if name in given}})


def _heads(network: nn.Module) -> tuple[str, ...]:
    """What the names of heads begin with; timm says it of its networks (`head_dist`, `last_linear`)."""
    said = dict(getattr(network, "pretrained_cfg", None) or {}).get("classifier") or ()
    return (*HEADS, *(f"{name}." for name in ((said,) if isinstance(said, str) else said)))


def _tensors(checkpoint: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of nested dictionaries, by dotted names."""
    for key, value in checkpoint.items():
        if isinstance(value, torch.Tensor):
            yield f"{before}{key}", value
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{before}{key}.")


def _renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors by timm's names, where the checkpoint's layout has a table."""
    for mark, renamings in LAYOUTS:
        if any(re.search(mark, name) for name in tensors):
            for pattern, replacement in renamings:
                tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    return tensors


def _without_prefix(tensors: dict[str, torch.Tensor], own: set[str]) -> dict[str, torch.Tensor]:
    """The tensors of the part whose names agree with the network's best, by what follows their common beginning."""
    hits: Counter[str] = Counter()
    for name in tensors:
        parts = name.split(".")
        for i in range(len(parts)):
            if ".".join(parts[i:]) in own:
                hits["".join(f"{part}." for part in parts[:i])] += 1
    if not hits:
        return tensors
    prefix = max(hits, key=lambda one: (hits[one], not any(name in one for name in BESIDE)))
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _adapted(name: str, given: torch.Tensor, own: torch.Tensor | None, network: nn.Module) -> torch.Tensor:
    """A weight for another number of input channels or another image size; any other one as it is."""
    if own is None or given.shape == own.shape or given.ndim != own.ndim:
        return given
    if given.ndim == 4 and given.shape[1] == 3 and given[:, 0].shape == own[:, 0].shape:
        return given[:, [channel % 3 for channel in range(own.shape[1])]]
    patches: Any = getattr(network, "patch_embed", None)
    if name == "pos_embed" and given.ndim == 3 and patches is not None:
        from timm.layers import resample_abs_pos_embed

        class_tokens = getattr(network, "num_prefix_tokens", 0)
        return resample_abs_pos_embed(given.float(), list(patches.grid_size), num_prefix_tokens=class_tokens)
    return given


def _shape(tensor: torch.Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"


def _listed(before: str, names: list[str]) -> str:
    """The first names, and how many there are more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{before}{', '.join(names[:SHOWN])}{more}" if names else ""
