"""The whole state of an algorithm, as plain values and tensors that load without running code.

`nn.Module` knows parameters and buffers. Classes written elsewhere keep more, and so do their layers: optimizers and
schedulers, counters, tensors, flags. What is understood is saved; what is not is named, so that the engine can start
such a job over instead of resuming it wrongly.
"""

import pickle
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import suppress
from copy import deepcopy
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) | {"rng", "tape", "update"}  # the last two are the engine's
GENERATORS = {"Philox": np.random.Philox, "PCG64": np.random.PCG64}
HARMLESS = (
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, partial),
    *(Enum, PurePath, torch.device, torch.dtype, torch.Size),  # none of which changes itself
)
CHANGING = (MutableSequence, MutableMapping, MutableSet, np.ndarray, torch.Tensor)
KERNELS = ("fused", "capturable", "foreach")
LIBRARIES = ("torch", "torchvision", "timm", "shiftbed")  # attributes of their layers do not change in training


def capture(algorithm: nn.Module) -> dict[str, Any]:
    """What `nn.Module` leaves out: optimizers (anything with a state of its own), plain values, and what is frozen."""
    layers = {name: _plain_values(layer) for name, layer in _foreign_layers(algorithm).items()}
    stateful = {name: value for name, value in _attributes(algorithm) if _stateful(value)}
    return {
        "stateful": {name: value.state_dict() for name, value in stateful.items()},
        "kinds": {name: _kind(value) for name, value in stateful.items()},
        # In one go, so that what has two names is still one object when it comes back.
        **_encoded({"plain": _plain_values(algorithm), "layers": layers}),
        "apart": _apart(algorithm),
        "trainable": [parameter.requires_grad for parameter in algorithm.parameters()],
        "rng": _generator_state(getattr(algorithm, "rng", None)),
    }


def restore(algorithm: nn.Module, state: dict[str, Any]) -> None:
    """Gives a new object what `capture` saved of another, and nothing that both would then change."""
    apart, layers = state.get("apart", ()), state.get("layers", {})  # checkpoints of earlier versions have none
    moved: dict[int, Any] = {}
    saved_values = deepcopy({"": state["plain"], **layers})
    for part, values in saved_values.items():
        for name, value in values.items():  # a checkpoint is read on the host: tensors go where the weights are
            device = torch.device("cpu") if f"{part}.{name}" in apart else _device(algorithm)
            setattr(algorithm.get_submodule(part), name, _on(device, value, moved))
    for name, value in state["stateful"].items():
        stateful = getattr(algorithm, name)
        if state.get("kinds", {}).get(name, _kind(stateful)) != _kind(stateful):
            raise ValueError(f"{name} was replaced by one of another class")
        _load(stateful, deepcopy(value))
    for parameter, trainable in zip(algorithm.parameters(), state["trainable"], strict=True):
        parameter.requires_grad_(trainable)
    saved = state.get("rng")  # checkpoints of earlier versions have none
    if saved is not None:
        bits = GENERATORS[saved["bit_generator"]]()
        bits.state = {name: _as_words(value) for name, value in saved.items()}
        algorithm.rng = np.random.Generator(bits)  # type: ignore[assignment]


def _load(stateful: Any, saved: dict[str, Any]) -> None:
    """Loads a state; by which kernels an optimizer steps is the matter of the device it is on now."""
    groups = stateful.param_groups if isinstance(stateful, torch.optim.Optimizer) else ()
    for group, own in zip(saved.get("param_groups", ()), groups, strict=False):
        group |= {name: own[name] for name in KERNELS if name in own}
    stateful.load_state_dict(saved)


def _generator_state(generator: Any) -> dict[str, Any] | None:
    """Where a generator is, as plain numbers; None if it is of a kind that is not known here."""
    if not isinstance(generator, np.random.Generator) or type(generator.bit_generator).__name__ not in GENERATORS:
        return None
    return _listed(generator.bit_generator.state)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _as_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_words(item) for key, item in value.items()}
    return np.array(value, np.uint64) if isinstance(value, list) else value


def unsaved(algorithm: nn.Module) -> list[str]:
    """The attributes, also of what is wrapped and of layers, whose state a checkpoint would lose."""
    own = [*algorithm.parameters(), *algorithm.buffers()]
    wrapped = [module for module in algorithm.modules() if _saves_itself(module)]
    return [name for holder in (*wrapped, *_foreign_layers(algorithm).values()) for name in _lost(holder, own)]


def _lost(holder: nn.Module, own: list[torch.Tensor]) -> list[str]:
    """The attributes of one module whose state is lost, among an algorithm that has these tensors of its own."""
    known, memory = {id(tensor) for tensor in own}, {_memory(tensor) for tensor in own} - {0}
    optimizers = {id(value) for _, value in _attributes(holder) if isinstance(value, torch.optim.Optimizer)}
    lost = []
    for name, value in _attributes(holder):
        tensors = list(_tensors(value))
        if tensors and all(id(tensor) in known for tensor in tensors):
            continue  # a list of the network's own parameters comes with the network
        # What looks into the network's memory (`weight.data`) would come back as a copy, and look no more.
        saved = _plain(value) and not any(tensor.requires_grad or _memory(tensor) in memory for tensor in tensors)
        # A scheduler that drives a discarded optimizer would come back driving the new one.
        attached = _stateful(value) and id(getattr(value, "optimizer", None)) in {*optimizers, id(None)}
        keeps = saved or (attached and _saves_itself(holder)) or isinstance(value, HARMLESS)
        if not (keeps or _as_written(holder, name, value)):
            lost.append(name)
    return lost


def shared_values(cls: type) -> dict[str, Any]:
    """Copies of what changes in place among the attributes of a class, and of those it builds on, written elsewhere.

    What cannot be copied, as a lock or the result of a computation with gradients, stays that of the class.
    """
    owners = {name: base for base in reversed(cls.__mro__) for name in vars(base)}  # whose value the class shows
    copies: dict[str, Any] = {}
    memo: dict[int, Any] = {}  # so that what has two names is one object again
    for name, base in owners.items():
        value = vars(base)[name]
        is_library = base.__module__.partition(".")[0] in (*LIBRARIES, "builtins")
        if isinstance(value, CHANGING) and not is_library and not name.startswith("__"):
            with suppress(Exception):
                copies[name] = deepcopy(value, memo)
    return copies


def _as_written(holder: nn.Module, name: str, value: Any) -> bool:
    """Whether a value is still what its class says: a new object has the same."""
    try:
        return pickle.dumps(value) == pickle.dumps(getattr(type(holder), name))  # == is true of 0 and 0.0 too
    except Exception:  # no such attribute, or one that says nothing of itself
        return False


def _memory(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins; 0 if it has none."""
    return tensor.untyped_storage().data_ptr()


def _saves_itself(module: nn.Module) -> bool:
    """Whether a module, as every algorithm, says itself what `nn.Module` leaves out."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _foreign_layers(algorithm: nn.Module) -> dict[str, nn.Module]:
    """The layers that no library defines, by name: they may count, as a gradient reversal that warms up does."""
    return {
        name: layer
        for name, layer in algorithm.named_modules()
        if type(layer).__module__.partition(".")[0] not in LIBRARIES and not _saves_itself(layer)
    }


def _device(algorithm: nn.Module) -> torch.device:
    """Where the weights are."""
    return next((tensor.device for tensor in (*algorithm.parameters(), *algorithm.buffers())), torch.device("cpu"))


def _apart(algorithm: nn.Module) -> list[str]:
    """The attributes with tensors that are not where the weights are: a class may keep some on the host."""
    here = _device(algorithm)
    return [
        f"{part}.{name}"
        for part, holder in {"": algorithm, **_foreign_layers(algorithm)}.items()
        for name, value in _attributes(holder)
        if any(tensor.device != here for tensor in _tensors(value))
    ]


def _plain_values(holder: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in _attributes(holder) if _plain(value)}


def _attributes(algorithm: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(algorithm).items() if name not in MODULE_ATTRIBUTES]


def _stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, nn.Module)


def _plain(value: Any) -> bool:
    """Whether `torch.load(weights_only=True)` gives the value back."""
    if type(value) is dict:
        return all(type(key) in (str, int) and _plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str, torch.Tensor) or isinstance(value, np.generic)


def _kind(value: Any) -> str:
    """The class of an object with a state of its own; the state of another class may load and mean something else."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _encoded(value: Any) -> Any:
    """A copy for saving; NumPy's numbers become Python's, which are equal."""
    return _mapped(value, lambda one: one.item() if isinstance(one, np.generic) else one, {})


def _on(device: torch.device, value: Any, moved: dict[int, Any]) -> Any:
    """A plain value with its tensors on a device."""
    return _mapped(value, lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, moved)


def _mapped(value: Any, change: Callable[[Any], Any], made: dict[int, Any]) -> Any:
    """A plain value with everything changed that is no container; what was made of an object already is made once."""
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, dict):
        made[id(value)] = {key: _mapped(item, change, made) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        made[id(value)] = type(value)(_mapped(item, change, made) for item in value)
    else:
        made[id(value)] = change(value)
    return made[id(value)]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
