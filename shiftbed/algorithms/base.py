"""What an algorithm is, how it is registered, and ERM, which most algorithms extend."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed import networks
from shiftbed.algorithms import state
from shiftbed.algorithms.batches import Batches
from shiftbed.errors import AlgorithmError
from shiftbed.hashing import digest
from shiftbed.hparams import Space
from shiftbed.registry import Registry

Metrics = dict[str, torch.Tensor]
Minibatches = Batches | Iterable[tuple[torch.Tensor, torch.Tensor]]


class AlgorithmEntry(NamedTuple):
    """A registered algorithm: its class and what registration says of it."""

    cls: "type[Algorithm]"
    space: Space
    paper: str
    needs: tuple[str, ...]
    selection: str | None
    revision: int | str


ALGORITHMS: Registry[AlgorithmEntry] = Registry("algorithm", "shiftbed.algorithms")
BUILT_IN: set[str] = set()
HOOKS = {"start", "epoch", "evaluated"}
AlgorithmClass = TypeVar("AlgorithmClass", bound="type[Algorithm]")


def register(
    *,
    space: Space | None = None,
    paper: str = "",
    needs: tuple[str, ...] = (),
    selection: str | None = None,
    revision: int = 1,
) -> Callable[[AlgorithmClass], AlgorithmClass]:
    """Registers an algorithm under its class name.

    Args:
        space: Its own hyperparameters, beside the shared ones.
        paper: Who proposed it.
        needs: What it cannot do without, in words ("domain labels").
        selection: The name of its own model-selection rule; None marks it incomplete in DomainBed's sense.
        revision: Raised whenever its results change. Classes outside this package get a hash of their file instead.
    """

    def wrap(cls: AlgorithmClass) -> AlgorithmClass:
        ours = cls.__module__.startswith("shiftbed.")
        if not ours and cls.__name__ in BUILT_IN:
            raise AlgorithmError(f"{cls.__name__} is an algorithm of shiftbed; give your class another name.")
        for hook in HOOKS & set(dir(cls)):
            raise AlgorithmError(f"{cls.__name__} defines {hook}(), which this version does not call yet.")
        if ours:
            BUILT_IN.add(cls.__name__)
        version = revision if ours else f"source {_source_hash(cls)}"
        ALGORITHMS.add(cls.__name__, AlgorithmEntry(cls, space or Space(), paper, needs, selection, version))
        return cls

    return wrap


def _source_hash(cls: type) -> str:
    """Hash of all that decides a user's class: its file, files beside it that it imports, and what it builds on."""
    parts: dict[str, object] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("shiftbed."):
            entry = ALGORITHMS.registered(base.__name__)
            parts[base.__name__] = entry.revision if entry else None
            continue
        for path in _sources(sys.modules[base.__module__]):
            parts[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digest(parts)[:12]


def _sources(module: ModuleType) -> set[Path]:
    """A module's file and those of the modules it names that lie in the same folder or below."""
    if not getattr(module, "__file__", None):
        return set()
    own = Path(str(module.__file__)).resolve()
    named = {getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in vars(module).values()}
    files = {
        Path(sys.modules[name].__file__ or "").resolve()
        for name in named
        if isinstance(name, str) and getattr(sys.modules.get(name), "__file__", None)
    }
    return {own, *(path for path in files if path.is_relative_to(own.parent) and "site-packages" not in path.parts)}


def load_code(path: Path) -> None:
    """Runs a user's file, so that the algorithms registered in it are known.

    Raises:
        AlgorithmError: The file does not exist or cannot be run.
    """
    name = f"shiftbed_user_{path.stem}"  # never the name of a module that somebody else imports
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise AlgorithmError(f"There is no Python file at {path}; --code takes a file that registers algorithms.")
    list(ALGORITHMS)  # the built-in names must be known before the file can take one of them
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except AlgorithmError:
        raise
    except Exception as error:
        raise AlgorithmError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if not any(ALGORITHMS[known].cls.__module__ == name for known in ALGORITHMS):
        raise AlgorithmError(f"{path} registers no algorithm; write @register() before your class.")


class Algorithm(nn.Module):
    """A module that learns from one minibatch per training domain.

    A class of DomainBed's shape works unchanged: it overrides `update` and `predict`. Ours write a pure `objective`.
    The whole state, optimizers and plain attributes included, is in `state_dict`: saved and loaded into a new object,
    the next step is the same to the bit.

    Attributes:
        hparams: The hyperparameters, and what the recipe says of the network.
        step: The number of updates made.
        restart_step: The step before which the optimizer starts anew (annealed penalties), or None.
        rng: The one generator of all random draws on the host; the engine reseeds it before every update.
    """

    optimizer: torch.optim.Optimizer
    restart_step: int | None = None

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.hparams = dict(hparams)
        self.step = 0
        self.rng = np.random.Generator(np.random.Philox(0))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The loss to minimise at a step, and numbers to watch.

        It changes nothing itself: a metric that bears the name of a buffer is that buffer's next value.
        """
        raise AlgorithmError(f"{type(self).__name__} defines neither objective() nor update().")

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer of everything trainable."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"], weight_decay=self.hparams["weight_decay"])

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """One step of the optimizer; returns detached tensors, so that no step waits for the device."""
        if self.step == self.restart_step:
            self.optimizer = self.make_optimizer()
        loss, metrics = self.objective(Batches.of(minibatches), self.step)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        for name in metrics.keys() & self._buffers.keys():
            self.get_buffer(name).copy_(metrics.pop(name).detach())
        return {"loss": loss.detach(), **{name: value.detach() for name, value in metrics.items()}}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of inputs."""
        raise AlgorithmError(f"{type(self).__name__} does not define predict().")

    def get_extra_state(self) -> dict[str, Any]:
        """What `nn.Module` leaves out of a state: optimizers, plain attributes, what is frozen."""
        return state.capture(self)

    def set_extra_state(self, saved: dict[str, Any]) -> None:
        """Restores what `get_extra_state` saved."""
        state.restore(self, saved)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As of any module; a buffer that grew after construction (as pasted classes do) takes its saved shape."""
        for name, buffer in list(self.named_buffers()):
            if name in state_dict and state_dict[name].shape != buffer.shape:
                owner, _, leaf = name.rpartition(".")
                self.get_submodule(owner).register_buffer(leaf, torch.empty_like(state_dict[name]))
        return super().load_state_dict(state_dict, strict, assign)


@register(paper="Vapnik, 1998")
class ERM(Algorithm):
    """Minimises the average risk over all examples."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.featurizer = networks.Featurizer(input_shape, self.hparams)
        self.classifier = networks.Classifier(
            self.featurizer.n_outputs, num_classes, self.hparams["nonlinear_classifier"]
        )
        self.network = nn.Sequential(self.featurizer, self.classifier)
        self.optimizer = self.make_optimizer()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy over all examples, whatever their domain."""
        return F.cross_entropy(self.network(batches.x), batches.y), {}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of inputs."""
        return self.network(x)
