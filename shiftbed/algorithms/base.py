"""What an algorithm is, and ERM, which most algorithms extend."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed import networks
from shiftbed.algorithms import state
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.draws import Draw, Tape, upload
from shiftbed.algorithms.registration import NEEDS, Need, register
from shiftbed.errors import AlgorithmError

__all__ = [
    "ERM",
    "NEEDS",
    "Algorithm",
    "Metrics",
    "Minibatches",
    "Need",
    "Wrapper",
    "call_hook",
    "has_hook",
    "looks_around",
    "register",
]

Metrics = dict[str, torch.Tensor]
Minibatches = Batches | Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class TrainingPlan:
    """What lies ahead of an algorithm.

    Attributes:
        steps: Updates in all.
        steps_per_epoch: Updates after which as many examples were drawn as there are training examples.
        seed: A number that belongs to the job.
    """

    steps: int
    steps_per_epoch: int
    seed: int


class TrainingData(Protocol):
    """All training examples, un-augmented; `Batches.positions` are places in this order."""

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs as the network takes them, and labels, in order."""
        ...


class Algorithm(nn.Module):
    """A module that learns from one minibatch per training domain.

    A class of DomainBed's shape works unchanged: it overrides `update` and `predict`. Ours write a pure `objective`.
    The whole state, optimizers and plain attributes included, is in `state_dict`: saved and loaded into a new object,
    the next step is the same to the bit.

    Attributes:
        hparams: The hyperparameters, and what the recipe says of the network.
        step: The number of updates made.
        restart_step: The step before which the optimizer starts anew (annealed penalties), or None.
        restart_hparam: The hyperparameter that says so, where one does.
        restart_lr: The hyperparameter that holds the learning rate from that step on, where it is another one.
        rng: The one generator of all random draws on the host; the engine reseeds it before every update and epoch.
        tape: Where the draws of a step are noted, for steps that are replayed; else None.
        positive_hparams: The hyperparameters that must not be 0: it divides by them, or draws with them.
        share_hparams: The hyperparameters that are shares of a whole, or chances: none may be above 1.
        parts: Into how many parts a batch is cut where the memory needs it; for separable losses only.
        recomputable: Whether its networks may compute activations a second time for the gradient: not where a hook sees
            them, or where they have other weights meanwhile.
        cycle: Updates within which every trainable parameter moves (more than 1 where networks take turns).
        needs: What registration says the class cannot do without.
        takes_unlabeled: Whether unlabelled domains count among those that it tells apart.

    Three methods are optional; the engine calls those that a class defines:

    - `start(plan: TrainingPlan)` once, before the first update and before a saved state is loaded;
    - `epoch(data: TrainingData)` before the first update and then every `plan.steps_per_epoch` updates;
    - `evaluated(results)` at every evaluation, with accuracy, loss and count of the validation splits of training
      domains, by name, and of nothing else. These are the results of `current`, the weights being trained.
    """

    optimizer: torch.optim.Optimizer
    restart_step: int | None = None
    restart_hparam: str | None = None
    restart_lr: str | None = None
    tape: Tape | None = None
    positive_hparams: tuple[str, ...] = ()
    share_hparams: tuple[str, ...] = ()
    parts: int = 1
    recomputable: bool = True
    cycle: int = 1
    needs: tuple[Need, ...] = ()
    takes_unlabeled: bool = False

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Gives a job lists, dictionaries and the like of its own, which the class as written keeps for all objects.

        In DomainBed each job has a process; here jobs share one, and what one appended the next would find.
        """
        made = super().__new__(cls)
        vars(made).update(state.shared_values(cls))
        return made

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__()
        name = type(self).__name__
        told_apart = num_domains + (hparams.get("unlabeled_domains", 0) if self.takes_unlabeled else 0)
        if "two domains" in self.needs and told_apart < 2:
            raise AlgorithmError(f"{name} needs two or more training domains; this task has {num_domains}.")
        if "images" in self.needs and len(input_shape) != 3:
            raise AlgorithmError(f"{name} needs images, of three dimensions; these inputs have {len(input_shape)}.")
        self.hparams = dict(hparams)
        for hparam in self.positive_hparams:
            if self.hparams[hparam] <= 0:
                raise AlgorithmError(f"{name}'s {hparam} is {self.hparams[hparam]}; set a number above 0.")
        for hparam in self.share_hparams:
            if self.hparams[hparam] > 1:
                raise AlgorithmError(f"{name}'s {hparam} is {self.hparams[hparam]}; set a share from 0 to 1.")
        self.step = 0
        if self.restart_hparam is not None:
            self.restart_step = round(self.hparams[self.restart_hparam])  # DomainBed draws one of them as a float
        self.rng = np.random.Generator(np.random.Philox(0))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The loss to minimise at a step, and numbers to watch.

        It changes nothing itself: a metric that bears the name of a buffer is that buffer's next value.
        """
        raise AlgorithmError(f"{type(self).__name__} defines neither objective() nor update().")

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer of everything trainable: Adam, or what the recipe says."""
        parameters = list(self.parameters())
        options: dict[str, Any] = {"lr": self.hparams["lr"], "weight_decay": self.hparams["weight_decay"]}
        if self.hparams.get("optimizer", "adam") == "sgd":
            return torch.optim.SGD(parameters, momentum=0.9, nesterov=True, **options)
        if parameters[0].is_cuda:  # one kernel for all parameters, and none of its numbers on the host
            options |= {"fused": True, "capturable": True}
        return torch.optim.Adam(parameters, **options)

    def phase(self, step: int) -> Hashable:
        """What the arithmetic of a step depends on, for classes that are captured: each phase is captured once."""
        return self.restart_step is not None and step >= self.restart_step

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """One step of the optimizer; returns detached tensors, so that no step waits for the device."""
        if self.step == self.restart_step:
            restart(self.optimizer, self.hparams[self.restart_lr] if self.restart_lr else None)
        batches = Batches.of(minibatches, unlabeled)
        self.optimizer.zero_grad()
        if self.parts == 1:
            loss, metrics = self._checked(self.objective(batches, self.step))
            backward(loss)
        else:
            loss, metrics = self._in_parts(batches)
        self.optimizer.step()
        self.step += 1
        for name in metrics.keys() & self._buffers.keys():
            self.get_buffer(name).copy_(metrics.pop(name).detach())
        return {"loss": loss.detach(), **{name: value.detach() for name, value in metrics.items()}}

    def _checked(self, made: Any) -> tuple[torch.Tensor, Metrics]:
        """What `objective` returned; an error that came of it later would name a line that its author did not write."""
        who = f"{type(self).__name__}.objective()"
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], dict):
            raise AlgorithmError(f"{who} must return a loss and a dict: loss, {{}}.")
        loss, metrics = made
        for name, value in (("loss", loss), *metrics.items()):
            if not isinstance(value, torch.Tensor):
                kind = type(value).__name__
                raise AlgorithmError(f"{who} returned {name} as a {kind}; it must be a tensor, without .item().")
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise AlgorithmError(f"{who} returned a loss of shape {shape}; it must be one number, such as its mean.")
        return loss, metrics

    def _in_parts(self, batches: Batches) -> tuple[torch.Tensor, Metrics]:
        """The gradient of a mean over examples, as the sum of its parts' shares."""
        total, count = torch.zeros((), device=batches.y.device), len(batches.y)
        for x, y in zip(batches.x.chunk(self.parts), batches.y.chunk(self.parts), strict=True):
            loss, _ = self.objective(Batches(x, y, [len(y)]), self.step)
            loss = loss * (len(y) / count)
            backward(loss)
            total += loss.detach()
        return total, {}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of inputs."""
        raise AlgorithmError(f"{type(self).__name__} does not define predict().")

    def current(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of the weights being trained; they differ from `predict` where weights are averaged."""
        return self.predict(x)

    def drawn(self, draw: Draw) -> torch.Tensor:
        """What a function draws with `rng`, as a tensor on the device; real numbers in the type of the weights.

        A function and not its numbers: a replayed step runs no Python, and has it called anew for every replay.
        """
        weight = next(self.parameters(), torch.empty(0, dtype=torch.float64))  # without weights, as they are drawn
        return upload(draw, self.rng, weight) if self.tape is None else self.tape.drawn(draw, self.rng, weight)

    def shuffled(self, batches: Batches) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The minibatches in random order."""
        count = len(batches)
        if len(set(batches.sizes)) > 1:  # their sizes must be known here, so that such a step cannot be replayed
            return [batches[i] for i in self.rng.permutation(count)]
        order = self.drawn(lambda rng: rng.permutation(count))
        x, y = (values.unflatten(0, (count, -1))[order] for values in (batches.x, batches.y))
        return list(zip(x, y, strict=True))

    def at_least_two(self, batches: Batches) -> None:
        """Refuses minibatches of one example, for methods that compare the examples of a domain."""
        if min(batches.sizes) < 2:
            name = type(self).__name__
            raise AlgorithmError(f"{name} needs at least 2 examples a domain and step; raise batch_size.")

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
                room = torch.empty_like(state_dict[name], device=buffer.device)  # the saved one is read on the host
                self.get_submodule(owner).register_buffer(leaf, room)
        return super().load_state_dict(state_dict, strict, assign)


def optimizers_of(algorithm: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers an algorithm holds, also in lists and dicts, and those of one that it wraps."""
    found = []
    for value in vars(algorithm).values():
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        found += [one for one in held if isinstance(one, torch.optim.Optimizer)]
    inner = getattr(algorithm, "inner", None)
    return found + (optimizers_of(inner) if isinstance(inner, nn.Module) else [])


def restart(optimizer: torch.optim.Optimizer, rates: float | Sequence[float] | None = None) -> None:
    """Makes an optimizer as good as new: no moments, but its place in a schedule stays.

    Args:
        optimizer: The optimizer.
        rates: Another learning rate, or one for each of its groups; by default they keep theirs.
    """
    optimizer.state.clear()
    if rates is None:
        return
    groups = optimizer.param_groups
    for group, rate in zip(groups, rates if isinstance(rates, Sequence) else [rates] * len(groups), strict=True):
        place = float(group["lr"]) / group["initial_lr"] if group.get("initial_lr") else 1.0
        group["initial_lr"], group["lr"] = rate, rate * place


def check_logits(algorithm: nn.Module, logits: Any, count: int, classes: int | None = None) -> None:
    """Refuses what a `predict` returned that is not one row of logits for every example.

    Raises:
        AlgorithmError: It is something else, which the sentence describes.
    """
    if isinstance(logits, torch.Tensor) and logits.ndim == 2 and logits.shape == (count, classes or logits.shape[1]):
        return
    made = f"a tensor of {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
    raise AlgorithmError(
        f"{type(algorithm).__name__}.predict() returned {made} for {count} examples; it must return their logits, "
        f"a tensor of ({count}, {classes or 'number of classes'})."
    )


def backward(loss: torch.Tensor) -> None:
    """The backward pass in the precision of the forward pass: what ran in float32 is not taken to bfloat16 here."""
    with torch.autocast(loss.device.type, enabled=False):
        loss.backward()


class Wrapper(Algorithm):
    """An algorithm around another one, ERM unless its name says which: `SWAD(CORAL)`.

    The hyperparameters of both are in `hparams`. A child changes what it must of `update` and `predict`. Hooks reach
    both, the wrapper's own first.
    """

    inner_class: "type[Algorithm] | None" = None  # None is ERM

    @classmethod
    def inside(cls) -> "Iterator[type[Algorithm]]":
        """The classes that it is named to wrap, from the outside to the inside."""
        inner = cls.inner_class
        while inner is not None:
            yield inner
            inner = getattr(inner, "inner_class", None)

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.inner = (self.inner_class or ERM)(input_shape, num_classes, num_domains, hparams)
        self.cycle = self.inner.cycle

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """The update of the algorithm inside."""
        self.inner.rng, self.inner.tape = self.rng, self.tape
        metrics = self.inner.update(minibatches, *([] if unlabeled is None else [unlabeled]))  # as the engine does
        self.step += 1
        return metrics

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of the algorithm inside."""
        return self.inner.predict(x)

    def current(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of the weights being trained."""
        return self.inner.current(x)


def looks_around(cls: type[Algorithm]) -> bool:
    """Whether a prediction depends on the other images of a batch; of a `predict` written elsewhere, that it may."""
    owner = next(base for base in cls.__mro__ if "predict" in vars(base))
    foreign = not owner.__module__.startswith("shiftbed.")
    needs, inner = (*cls.needs, *getattr(owner, "needs", ())), getattr(cls, "inner_class", None)
    return foreign or "test batches" in needs or (inner is not None and looks_around(inner))


Hook = Literal["start", "epoch", "evaluated"]


def has_hook(cls: "type[Algorithm] | None", hook: Hook) -> bool:
    """Whether a class, or one it wraps, defines one of the three optional methods."""
    return cls is not None and (hasattr(cls, hook) or has_hook(getattr(cls, "inner_class", None), hook))


def call_hook(algorithm: Algorithm, hook: Hook, argument: Any) -> None:
    """Calls one of the three optional methods where the class, or one it wraps, defines it."""
    if hasattr(type(algorithm), hook):  # a published class may count in an attribute of this name
        getattr(algorithm, hook)(argument)
    if isinstance(algorithm, Wrapper):
        algorithm.inner.rng = algorithm.rng
        call_hook(algorithm.inner, hook, argument)


@register(paper="Vapnik, 1998", separable=True, capturable=True)
class ERM(Algorithm):
    """Minimises the average risk over all examples.

    Departures from the paper: none. From DomainBed: none; the sum of errors of which its paper speaks is a mean in its
    code, in which a domain counts by its examples.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.featurizer = networks.Featurizer(input_shape, self.hparams)
        if "feature maps" in self.needs and not self.featurizer.stages:
            name, network = type(self).__name__, self.featurizer.name
            raise AlgorithmError(f"{name} needs convolutional stages, which the network {network} does not have.")
        self.classifier = networks.Classifier(
            self.featurizer.n_outputs, num_classes, self.hparams.get("nonlinear_classifier", False)
        )
        self.network = nn.Sequential(self.featurizer, self.classifier)
        self.optimizer = self.make_optimizer()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy of the prediction, which a child may change, over all examples, whatever their domain."""
        logits = self.predict(batches.x)
        check_logits(self, logits, len(batches.y))
        return F.cross_entropy(logits, batches.y), {}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of inputs."""
        return self.network(x)
