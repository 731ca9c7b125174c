"""Classes in the many shapes that published code has: interrupted, each ends exactly as if it had not been."""

import copy
import threading
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import ALGORITHMS, ERM, register
from shiftbed.algorithms.state import unsaved
from shiftbed.algorithms.tuning import innermost
from shiftbed.errors import AlgorithmError
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer
from tests.conftest import tiny_job

SHAPES = {}


def shape(resumes: bool):
    """A class to try, and whether its jobs can continue from a checkpoint (otherwise they start over)."""

    def keep(cls):
        SHAPES[cls.__name__] = (cls, resumes)
        return cls

    return keep


class Pasted(ERM):
    """The usual body of `update`, with a factor that each shape keeps in its own way."""

    def update(self, minibatches, unlabeled=None):
        x = torch.cat([x for x, _ in minibatches])
        y = torch.cat([y for _, y in minibatches])
        loss = F.cross_entropy(self.network(x), y) * self.factor()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.after(loss)
        return {"loss": loss.item()}

    def factor(self):
        return 1.0

    def after(self, loss):
        pass


@shape(resumes=True)
class PrivateAttribute(Pasted):
    _seen = 0.0

    def factor(self):
        return 1 + self._seen

    def after(self, loss):
        self._seen += loss.item()


@shape(resumes=True)
class NumPyNumber(Pasted):
    total = np.float64(0)

    def factor(self):
        return 1 + float(self.total)

    def after(self, loss):
        self.total = self.total + np.float64(loss.item())


@shape(resumes=True)
class PlainTensor(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ema = torch.zeros(())

    def factor(self):
        return 1 + self.ema

    def after(self, loss):
        self.ema = 0.5 * self.ema + loss.detach()


@shape(resumes=True)
class TwoNamesOfOneObject(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.queue, self.sums = [], torch.zeros(2)
        self.memory = {"queue": self.queue, "first": self.sums[0]}
        self.warming = Warming()
        self.warming.queue = self.queue

    def factor(self):
        return 1 + len(self.memory["queue"]) + len(self.warming.queue) + self.memory["first"]

    def after(self, loss):
        self.queue.append(loss.item())
        self.sums += loss.detach()


@shape(resumes=True)
class ListOfTheClass(Pasted):
    seen: list[float] = []  # noqa: RUF012  # as published

    def factor(self):
        return 1 + len(self.seen)

    def after(self, loss):
        self.seen.append(loss.item())


@shape(resumes=False)
class DequeOfTheClass(Pasted):
    seen: deque[float] = deque(maxlen=3)  # noqa: RUF012

    def factor(self):
        return 1 + len(self.seen)

    def after(self, loss):
        self.seen.append(loss.item())


@shape(resumes=True)
class TablesOfTheClass(Pasted):
    table = np.eye(2)
    losses = {"cross entropy": F.cross_entropy}  # noqa: RUF012

    def factor(self):
        return self.table[0, 0] + len(self.losses)


@shape(resumes=True)
class ReplacedListOfTheClass(ListOfTheClass):
    seen = None

    def factor(self):
        return 1.0

    def after(self, loss):
        assert self.seen is None, "what the class says, not what its parent does"


@shape(resumes=True)
class TwoNamesOfAListOfTheClass(Pasted):
    seen: list[float] = []  # noqa: RUF012
    memory = seen

    def factor(self):
        assert len(self.memory) == len(self.seen)
        return 1 + len(self.memory)

    def after(self, loss):
        self.seen.append(loss.item())


@shape(resumes=True)
class LockOfTheClass(Pasted):
    locks = {"one": threading.Lock()}  # noqa: RUF012
    graph = [torch.ones(1, requires_grad=True) * 2]  # noqa: RUF012

    def after(self, loss):
        assert len(self.locks) == len(self.graph) == 1


@shape(resumes=True)
class ChangedHparams(Pasted):
    def factor(self):
        return self.hparams.get("weight", 1.0)

    def after(self, loss):
        self.hparams["weight"] = self.factor() + 1


@shape(resumes=True)
class ProbeThenTune(Pasted):
    def after(self, loss):
        self.rounds = getattr(self, "rounds", 0) + 1
        for parameter in self.featurizer.parameters():
            parameter.requires_grad_(self.rounds >= 2)


@shape(resumes=True)
class SecondNetwork(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.critic = nn.Linear(128, 1)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.9)
        self.teacher = copy.deepcopy(self.network)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.critic_optimizer, 2)

    def after(self, loss):
        self.critic_optimizer.zero_grad()
        self.critic(torch.ones(1, 128)).square().sum().backward()
        self.critic_optimizer.step()
        self.scheduler.step()
        for slow, fast in zip(self.teacher.parameters(), self.network.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)

    def predict(self, x):
        return self.teacher(x) + self.critic.bias


@shape(resumes=True)
class OwnParameters(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.params = list(self.network.parameters())

    def after(self, loss):
        with torch.no_grad():
            self.params[0].mul_(0.9)


class Warming(nn.Module):
    """A layer that counts its calls in a plain attribute, as gradient reversals that warm up are published."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1 + self.calls)


@shape(resumes=True)
class CountingLayer(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.warming = Warming()

    def factor(self):
        return self.warming(torch.ones(()))


@shape(resumes=False)
class RememberingLayer(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.warming = Warming()
        self.warming.recent = deque([0.0], maxlen=3)

    def factor(self):
        return 1 + sum(self.warming.recent)

    def after(self, loss):
        self.warming.recent.append(loss.item())


@shape(resumes=False)
class LooksIntoMemory(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen = self.classifier.weight.data

    def factor(self):
        return 1 + self.seen.square().sum()


@shape(resumes=False)
class ListOfObjects(Pasted):
    class MovingAverage:
        value = 0.0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.averages = [self.MovingAverage()]

    def factor(self):
        return 1 + self.averages[0].value

    def after(self, loss):
        self.averages[0].value += loss.item()


@shape(resumes=False)
class ListOfOptimizers(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.extra = [torch.optim.Adam(self.classifier.parameters(), lr=0.01)]

    def after(self, loss):
        self.extra[0].step()


@shape(resumes=False)
class NumPyArray(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.history = np.zeros(1)

    def factor(self):
        return 1 + float(self.history.sum())

    def after(self, loss):
        self.history = np.append(self.history, loss.item())


@shape(resumes=False)
class Deque(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.recent = deque([0.0], maxlen=3)

    def factor(self):
        return 1 + sum(self.recent)

    def after(self, loss):
        self.recent.append(loss.item())


@shape(resumes=False)
class FreeTensor(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.log_weight = torch.zeros((), requires_grad=True)
        self.weight_optimizer = torch.optim.SGD([self.log_weight], lr=0.1)

    def factor(self):
        return self.log_weight.exp()

    def after(self, loss):
        self.weight_optimizer.step()


@shape(resumes=False)
class OrphanedScheduler(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.1)
        self.rounds = 0

    def after(self, loss):
        self.rounds += 1
        if self.rounds == 2:
            self.optimizer = self.make_optimizer()
        self.scheduler.step()


@shape(resumes=False)
class BuiltWhileTraining(Pasted):
    def after(self, loss):
        self.inner = copy.deepcopy(self.network)

    def predict(self, x):
        return self.inner(x)


@shape(resumes=False)
class BufferWhileTraining(Pasted):
    def after(self, loss):
        self.register_buffer("late", loss.detach())

    def predict(self, x):
        return super().predict(x) * self.late


@shape(resumes=False)
class OtherOptimizer(Pasted):
    rounds = 0

    def after(self, loss):
        self.rounds += 1
        if self.rounds == 2:
            self.optimizer = torch.optim.Adam(self.classifier.parameters(), lr=0.01)


@shape(resumes=False)
class OptimizerOfAnotherClass(Pasted):
    rounds = 0

    def after(self, loss):
        self.rounds += 1
        if self.rounds == 2:
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)


@shape(resumes=False)
class SchedulerOfAnotherClass(Pasted):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.rounds = 0

    def after(self, loss):
        self.scheduler.step()
        self.rounds += 1
        if self.rounds == 2:
            self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)


@pytest.mark.parametrize("name", [*SHAPES, "EoA(PrivateAttribute)", "EoA(CountingLayer)", "EoA(Deque)"])
def test_interrupted_it_ends_as_if_it_had_not_been(name, tmp_path):
    cls, resumes = SHAPES[name.removeprefix("EoA(").removesuffix(")")]
    register()(cls)
    job = tiny_job(name)
    files = JobFiles(job.id)
    whole, broken = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "broken")
    run_job(job, whole, keep="final")
    made: list[int] = []
    run_job(job, broken, keep="final", should_stop=lambda: len(made) == 3, on_step=lambda step, _: made.append(step))
    run_job(job, broken, keep="final", on_step=lambda step, _: made.append(step))
    assert broken.get(files.weights) == whole.get(files.weights)
    assert broken.get(files.done) == whole.get(files.done)
    assert made == ([1, 2, 3, 4, 5, 6] if resumes else [1, 2, 3, 1, 2, 3, 4, 5, 6])


class Centred(Pasted):
    """Published so: a prediction that looks at the batch, and no word of it."""

    def predict(self, x):
        self.hparams.setdefault("seen", []).append(len(x))
        outputs = self.network(x)
        return outputs - outputs.mean(0)


class OtherARM(ALGORITHMS["ARM"].cls):
    """A child that says nothing of what its parent needs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.network.register_forward_pre_hook(lambda _, given: self.hparams["seen"].append(len(given[0])))
        self.hparams["seen"] = []


@pytest.mark.parametrize("name", ["Centred", "OtherARM", "EoA(Centred)"])
def test_no_batch_of_an_evaluation_has_images_of_two_domains(name):
    for cls in (Centred, OtherARM):
        register()(cls)
    trainer = Trainer(tiny_job(name))
    innermost(trainer.algorithm).hparams["seen"] = seen = []
    splits = trainer.evaluate()["splits"].values()
    batches = [min(64, split["count"] - start) for split in splits for start in range(0, split["count"], 64)]
    assert seen == batches and len({split["count"] % 64 for split in splits} - {0}) > 1


def test_an_average_of_weights_that_grow_is_refused_in_one_sentence(tmp_path):
    register()(SHAPES["BuiltWhileTraining"][0])
    with pytest.raises(AlgorithmError, match=r"makes more of them while it trains; make all .* in its constructor\.$"):
        run_job(tiny_job("EoA(BuiltWhileTraining)"), LocalStore(tmp_path))


def test_harmless_attributes_are_not_called_unsaved():
    class Harmless(ERM):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.criterion = F.cross_entropy
            self.names = ("a", "b")
            self.criterion_class = nn.CrossEntropyLoss
            self.nothing = None
            self.norm = partial(nn.LayerNorm, eps=1e-6)
            self.folder = Path("somewhere")
            self.device = torch.device("cpu")
            self.kind, self.size = torch.float32, self.classifier.weight.shape

    register()(Harmless)
    assert unsaved(Trainer(tiny_job("Harmless")).algorithm) == []
