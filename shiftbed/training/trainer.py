"""The live objects of one job: its data, its algorithm, and its position."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Algorithm, TrainingPlan, Wrapper, call_hook, has_hook
from shiftbed.algorithms.averaging import live_norms
from shiftbed.algorithms.base import check_logits, looks_around, optimizers_of
from shiftbed.algorithms.state import unsaved
from shiftbed.algorithms.tuning import innermost
from shiftbed.data import card
from shiftbed.errors import AlgorithmError
from shiftbed.networks import FeaturizerModule
from shiftbed.protocols import Split
from shiftbed.selection import SELECTIONS
from shiftbed.training.augment import augmentation_words
from shiftbed.training.batches import TaskData
from shiftbed.training.capture import CapturedStep, CapturedUpdate, fixed_size
from shiftbed.training.device import Runtime, numerics
from shiftbed.training.evaluation import on_host, split_metrics
from shiftbed.training.files import Row
from shiftbed.training.job import Job
from shiftbed.training.recipes import domainbed_names
from shiftbed.training.schedules import set_learning_rates
from shiftbed.training.streams import Stream, philox_key, reseed

EVALUATION_BATCH = 512
CPU_EVALUATION_BATCH = 512 * 64 * 64  # pixels; 512 images of 224 pixels a side take ResNet-50 5 GB
GPU_EVALUATION_BATCH = 256 * 224 * 224  # pixels
COMPILED_EVALUATION = 64 * 64  # pixels; compiling for larger images takes longer than all evaluations of a job save
TRANSDUCTIVE_BATCH = 64  # of one domain, for algorithms whose prediction may depend on the batch
Predict = Callable[[torch.Tensor], torch.Tensor]


class Trainer:
    """Trains one job, a step at a time.

    Attributes:
        step: Updates made.
        classes: The names of the classes.
    """

    def __init__(self, job: Job, runtime: Runtime = Runtime()) -> None:  # noqa: B008  # it is frozen
        self.job = job
        self.runtime = runtime
        self.data = TaskData(job, runtime.device)
        self.classes = card(job.dataset).classes
        # The cell and not the job seeds the weights: algorithms are compared from equal starts.
        reseed(f"{philox_key(*job.cell):x}", 0, "weights")
        self.algorithm: Algorithm = ALGORITHMS[job.algorithm].cls(
            self.data.input_shape,
            len(self.classes),
            len(job.task.train_domains),
            {
                **domainbed_names(job.recipe.network, job.recipe.augmentation),
                **job.hparams,
                **job.recipe.for_networks(),
                "unlabeled_domains": len(self.data.unlabelled),
            },
        )
        self.algorithm.to(runtime.device)
        per_step = self.data.batch_size * len(self.data.streams)
        self.plan = TrainingPlan(
            steps=job.recipe.steps,
            steps_per_epoch=max(1, round(len(self.data.training) / per_step)),
            seed=philox_key(job.id) % 2**32,
        )
        call_hook(self.algorithm, "start", self.plan)
        self._tensors = _names(self.algorithm)
        self.step = 0
        # The first step with a bad loss, kept as a tensor so that no step waits for the device.
        self._bad_step = torch.tensor(math.inf, device=runtime.device)
        self._made = torch.tensor(0.0, device=runtime.device)
        self._checkpointing = False
        self._apart = looks_around(type(self.algorithm))  # then no batch has images of two domains, as in DomainBed
        self._captured = self._accelerated()

    def _accelerated(self) -> CapturedStep | None:
        """Compiles and captures on a GPU, for classes that are declared fit for it; everything else runs plainly."""
        if not self.runtime.on_gpu:
            return None
        if len(self.data.input_shape) == 3:
            self.algorithm.to(memory_format=torch.channels_last)
        for optimizer in optimizers_of(self.algorithm):
            _fuse(optimizer)
        entry = ALGORITHMS[self.job.algorithm]
        if not (self.runtime.accelerate and entry.capturable):
            return None
        torch._dynamo.config.recompile_limit = 64  # one for each batch size; beyond it steps would run plainly
        for module in self.algorithm.modules():
            if isinstance(module, FeaturizerModule):
                module.accelerate()
        inside = innermost(self.algorithm)
        if inside is self.algorithm:
            return CapturedStep(self.algorithm, self._make_step)
        captured = CapturedUpdate(inside, self.data.sizes)
        inside.update = captured  # type: ignore[method-assign, assignment]  # only for the minibatches that are made here
        return captured.step

    def advance(self) -> dict[str, Any]:
        """One update; returns what the algorithm says of it."""
        with numerics(self.job.recipe.precision, self.runtime):
            if self.step % self.plan.steps_per_epoch == 0 and has_hook(type(self.algorithm), "epoch"):
                self.algorithm.rng = reseed(self.job.id, self.step, "epoch")
                call_hook(self.algorithm, "epoch", self.data.training)
            self.algorithm.train()
            set_learning_rates(optimizers_of(self.algorithm), self.job.recipe, self.step)
            inputs = self.data.step_inputs(self.step)
            metrics = self._within_memory(inputs)
        self.step += 1
        return metrics

    def _within_memory(self, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        """A step; where the memory does not suffice, one that needs less of it and comes to the same, or a sentence."""
        inside = innermost(self.algorithm)
        before = inside.step
        while True:
            self.algorithm.rng = reseed(self.job.id, self.step, "update")  # what did not fit may have drawn
            try:
                if self._captured is None or isinstance(self.algorithm, Wrapper):
                    return self._make_step(*inputs)
                metrics = self._captured(self.algorithm.phase(self.step), *inputs)
                self.algorithm.step = self.step + 1  # a replay runs no Python
                return metrics
            except torch.OutOfMemoryError as error:
                for optimizer in optimizers_of(self.algorithm):
                    optimizer.zero_grad()
                # Where the algorithm inside has made its update and a wrapper lacks memory, it must make no other.
                if inside.step != before or not self._save_memory():
                    raise AlgorithmError(
                        f"{self.job.algorithm} with {self.data.batch_size} examples a domain needs more memory than "
                        f"{self.runtime.device} has; set a smaller batch_size."
                    ) from error

    def _save_memory(self) -> bool:
        """Parts of a batch one after the other for separable losses, else activations computed twice, if possible."""
        algorithm = innermost(self.algorithm)
        if self._captured is not None:  # its graph holds memory of its own, and always the whole batch
            self._captured = self.algorithm.tape = algorithm.tape = None
            vars(algorithm).pop("update", None)
            return True
        if live_norms(self.algorithm):  # parts have other statistics, and what is computed twice counts twice in them
            return False
        if ALGORITHMS[self.job.algorithm].separable and type(algorithm).update is Algorithm.update:
            algorithm.parts *= 2
            return algorithm.parts <= self.data.batch_size
        body = getattr(getattr(algorithm, "featurizer", None), "body", None)
        if body is None or not hasattr(body, "set_grad_checkpointing") or self._checkpointing:
            return False
        if not algorithm.recomputable:
            return False
        body.set_grad_checkpointing(True)
        self._checkpointing = True
        return True

    def _make_step(self, *inputs: torch.Tensor) -> dict[str, Any]:
        """The arithmetic of a step."""
        batches = self.data.batches(*inputs)
        if self._captured is not None:
            fixed_size(batches.x)
        unlabeled = [list(batches.unlabeled)] if batches.unlabeled else []
        metrics = self.algorithm.update(batches, *unlabeled)  # older published classes take minibatches alone
        if not isinstance(metrics, dict):
            name = type(self.algorithm).__name__
            raise AlgorithmError(f"{name}.update() returned {metrics!r}; it must return a dict of numbers to watch.")
        loss = torch.as_tensor(metrics.get("loss", 0.0), device=self._made.device)
        self._made += 1
        bad = torch.where(torch.isfinite(loss).all(), math.inf, self._made)
        self._bad_step.copy_(torch.minimum(self._bad_step, bad))
        return metrics

    def diverged_at(self) -> int | None:
        """The first step whose loss, or at whose evaluation an output, was not finite, or None."""
        first = float(self._bad_step)
        return None if math.isinf(first) else int(first)

    def evaluate(self) -> Row:
        """Accuracy, loss and count of every split that a selection may read: all but those that are trained on.

        An algorithm that looks at the other images of a batch sees 64 of one split, in the order that `_order` says.
        """
        self.algorithm.eval()
        reseed(self.job.id, self.step, "evaluation")
        with numerics(self.job.recipe.precision, self.runtime):
            if has_hook(type(self.algorithm), "evaluated") and self.job.recipe.is_regular(self.step):
                trained = set(self.job.task.train_domains)
                validation = [s for s in self.job.task.of_role("validation") if s.domain in trained]
                results = self._evaluate_splits(validation, self.algorithm.current)
                call_hook(self.algorithm, "evaluated", results)
            splits = [split for split in self.job.task.splits if is_recorded(self.job, split)]
            return {"step": self.step, "splits": self._evaluate_splits(splits, self.algorithm.predict)}

    @torch.inference_mode()
    def logits(self) -> dict[str, torch.Tensor]:
        """The outputs for every tested image that is reported, by split and in its order, from batches as evaluated."""
        self.algorithm.eval()
        reseed(self.job.id, self.step, "evaluation")
        with numerics(self.job.recipe.precision, self.runtime):
            return {
                split.name: self._split_logits(split, self.algorithm.predict)
                for split in self.job.task.of_role("test")
                if split.part != "out"
            }

    @torch.inference_mode()
    def _evaluate_splits(self, splits: Sequence[Split], predict: Predict) -> dict[str, dict[str, Any]]:
        if not splits:  # of training domains that are trained on whole
            return {}
        pool = self.data.pool
        places = [pool.places(split) for split in splits]
        if self._apart or any(self._words(split) is not None for split in splits):
            logits = [self._split_logits(split, predict) for split in splits]
        else:  # splits are small: together they fill a device
            whole = self._logits(np.concatenate(places), None, predict)
            logits = list(whole.split([len(where) for where in places]))
        metrics = {
            split.name: split_metrics(out, pool.labels[torch.from_numpy(where).to(pool.device)])
            for split, out, where in zip(splits, logits, places, strict=True)
        }
        finite = torch.stack([torch.isfinite(out).all() for out in logits]).all()
        # Outputs that are not finite: the first class would win, and sometimes a table.
        bad = torch.where(finite, math.inf, float(self.step))
        self._bad_step.copy_(torch.minimum(self._bad_step, bad))
        return on_host(metrics)

    def _words(self, split: Split) -> np.ndarray | None:
        """Random words for validation images, where the recipe augments these too."""
        if split.role != "validation" or not self.job.recipe.augment_validation:
            return None
        return augmentation_words(philox_key(self.job.id, split.name, self.step), 0, len(split.indices))

    def _order(self, split: Split) -> np.ndarray | None:
        """In which order the images of a split are predicted, as positions in it; None is its own order.

        A split in the order of the dataset, which is often that of the classes, would show an algorithm that looks at
        the other images of a batch 64 of one class. It is shuffled, alike for all algorithms of a cell and at every
        step. A split that was shuffled when it was made, as DomainBed's are, is evaluated in its own order.
        """
        count = len(split.indices)
        if not self._apart or (np.diff(split.indices) < 0).any():
            return None
        return Stream(philox_key(*self.job.cell, split.name, "evaluation"), np.arange(count), "epochs").take(0, count)

    def _split_logits(self, split: Split, predict: Predict) -> torch.Tensor:
        """The outputs for a split, in its order, whatever the order in which they were predicted."""
        places, words, order = self.data.pool.places(split), self._words(split), self._order(split)
        if order is None:
            return self._logits(places, words, predict)
        logits = self._logits(places[order], None if words is None else words[order], predict)
        return logits[torch.from_numpy(np.argsort(order)).to(logits.device)]

    def _logits(self, places: np.ndarray, words: np.ndarray | None, predict: Predict) -> torch.Tensor:
        outputs, size = [], self._evaluation_batch()
        large = math.prod(self.data.input_shape[1:]) > COMPILED_EVALUATION
        with torch.compiler.set_stance("force_eager") if self._captured and large else nullcontext():
            for start in range(0, len(places), size):
                part = slice(start, start + size)
                x = self.data.evaluation_inputs(places[part], None if words is None else words[part])
                if self._captured and not large:
                    torch._dynamo.maybe_mark_dynamic(x, 0)
                logits = predict(x)
                check_logits(self.algorithm, logits, len(x), len(self.classes))
                outputs.append(logits.float())
        return torch.cat(outputs)

    def _evaluation_batch(self) -> int:
        if self._apart:
            return TRANSDUCTIVE_BATCH
        if not self.runtime.on_gpu:
            return min(EVALUATION_BATCH, cpu_evaluation_batch(self.data.input_shape))
        return max(TRANSDUCTIVE_BATCH, GPU_EVALUATION_BATCH // math.prod(self.data.input_shape[1:]))

    def state(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {"step": self.step, "bad_step": self._bad_step.cpu(), "algorithm": self.algorithm.state_dict()}

    def can_be_saved(self) -> bool:
        """Whether a state holds all that the algorithm keeps, and a new object has the networks to load it into."""
        return not unsaved(self.algorithm) and _names(self.algorithm) == self._tensors

    def load_state(self, state: dict[str, Any]) -> bool:
        """Continues from a saved state; False if a new object of the algorithm's class cannot take it."""
        try:
            self.algorithm.load_state_dict(state["algorithm"])
        except Exception:  # a class may build networks, buffers or optimizers as it trains; torch raises many errors
            return False
        self.step = state["step"]
        self._made.fill_(self.step)
        self._bad_step.copy_(state["bad_step"])
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors of the algorithm, each once (`network` shares those of its parts), for a file anyone can load."""
        tensors = dict(self.algorithm.named_parameters()) | dict(self.algorithm.named_buffers())
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _names(algorithm: nn.Module) -> set[str]:
    """The names of the parameters and buffers that there are now."""
    return {name for name, _ in (*algorithm.named_parameters(), *algorithm.named_buffers())}


def cpu_evaluation_batch(input_shape: Sequence[int]) -> int:
    """How many inputs a CPU may predict at once without taking gigabytes for what a network computes on the way."""
    return max(1, CPU_EVALUATION_BATCH // math.prod(input_shape[1:]))


def is_recorded(job: Job, split: Split) -> bool:
    """All that is validated or tested; of a lean job what its selections read, and what tables report."""
    if split.role not in ("validation", "test"):
        return False
    columns = [column for name in job.lean for column in SELECTIONS[name].columns]
    about = {"role": split.role, "part": split.part, "domain": split.domain, "name": split.name}
    reported = split.role == "test" and split.part != "out"
    return reported or not columns or any(column.covers(about) for column in columns)


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Has an optimizer step in one kernel, which insists on gradients that lie in memory as their parameters do."""
    for group in optimizer.param_groups:
        group.update(fused=True, capturable=True, foreach=None)

    def lay_out(*_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                    parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)

    optimizer.register_step_pre_hook(lay_out)
