"""The live objects of one job: its data, its algorithm, and its position."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms import ALGORITHMS, Algorithm, TrainingPlan, call_hook, has_hook
from shiftbed.data import card
from shiftbed.errors import AlgorithmError
from shiftbed.protocols import Split
from shiftbed.training.batches import TaskData, as_model_input
from shiftbed.training.job import Job
from shiftbed.training.streams import philox_key, reseed

EVALUATION_BATCH = 512
TRANSDUCTIVE_BATCH = 64  # of one domain, for algorithms whose prediction depends on the batch
Predict = Callable[[torch.Tensor], torch.Tensor]
Row = dict[str, Any]


class Trainer:
    """Trains one job, a step at a time.

    Attributes:
        step: Updates made.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.data = TaskData(job)
        # The cell and not the job seeds the weights: algorithms are compared from equal starts.
        reseed(f"{philox_key(*job.cell):x}", 0, "weights")
        self.algorithm: Algorithm = ALGORITHMS[job.algorithm].cls(
            self.data.input_shape,
            len(card(job.dataset).classes),
            len(job.task.train_domains),
            {**job.hparams, "network": job.recipe.network},
        )
        per_step = self.data.batch_size * len(self.data.streams)
        self.plan = TrainingPlan(
            steps=job.recipe.steps,
            steps_per_epoch=max(1, round(len(self.data.training) / per_step)),
            seed=philox_key(job.id) % 2**32,
        )
        call_hook(self.algorithm, "start", self.plan)
        self.step = 0
        # The first step with a bad loss, kept as a tensor so that no step waits for the device.
        self._bad_step = torch.tensor(math.inf)

    def advance(self) -> dict[str, Any]:
        """One update; returns what the algorithm says of it."""
        if self.step % self.plan.steps_per_epoch == 0 and has_hook(type(self.algorithm), "epoch"):
            self.algorithm.rng = reseed(self.job.id, self.step, "epoch")
            call_hook(self.algorithm, "epoch", self.data.training)
        self.algorithm.train()
        self.algorithm.rng = reseed(self.job.id, self.step, "update")
        metrics = self.algorithm.update(self.data.batches(self.step), None)
        if not isinstance(metrics, dict):
            name = type(self.algorithm).__name__
            raise AlgorithmError(f"{name}.update() returned {metrics!r}; it must return a dict of numbers to watch.")
        loss = torch.as_tensor(metrics.get("loss", 0.0))
        bad = torch.where(torch.isfinite(loss), math.inf, float(self.step + 1))
        self._bad_step = torch.minimum(self._bad_step, bad)
        self.step += 1
        return metrics

    def diverged_at(self) -> int | None:
        """The first step whose loss, or at whose evaluation an output, was not finite, or None."""
        return None if math.isinf(self._bad_step) else int(self._bad_step)

    def evaluate(self) -> Row:
        """Accuracy, loss and count of every split that a selection may read: all but those that are trained on."""
        self.algorithm.eval()
        reseed(self.job.id, self.step, "evaluation")
        if has_hook(type(self.algorithm), "evaluated"):
            trained = set(self.job.task.train_domains)
            validation = [s for s in self.job.task.of_role("validation") if s.domain in trained]
            results = {split.name: self._evaluate_split(split, self.algorithm.current) for split in validation}
            call_hook(self.algorithm, "evaluated", results)
        splits = [split for split in self.job.task.splits if split.role in ("validation", "test")]
        rows = {split.name: self._evaluate_split(split, self.algorithm.predict) for split in splits}
        return {"step": self.step, "splits": rows}

    @torch.inference_mode()
    def _evaluate_split(self, split: Split, predict: Predict) -> dict[str, float | int]:
        inputs, labels = self.data.whole(split)
        size = TRANSDUCTIVE_BATCH if "test batches" in self.algorithm.needs else EVALUATION_BATCH
        logits = torch.cat([predict(as_model_input(x)) for x in inputs.split(size)])
        if not torch.isfinite(logits).all():  # the first class would win, and sometimes a table
            self._bad_step = torch.minimum(self._bad_step, torch.tensor(float(self.step)))
        accuracy = int((logits.argmax(1) == labels).sum()) / len(labels)
        return {"accuracy": accuracy, "loss": F.cross_entropy(logits.double(), labels).item(), "count": len(labels)}

    def state(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {"step": self.step, "bad_step": self._bad_step, "algorithm": self.algorithm.state_dict()}

    def load_state(self, state: dict[str, Any]) -> bool:
        """Continues from a saved state; False if a new object of the algorithm's class cannot take it."""
        try:
            self.algorithm.load_state_dict(state["algorithm"])
        except Exception:  # a class may build networks, buffers or optimizers as it trains; torch raises many errors
            return False
        self.step = state["step"]
        self._bad_step = state["bad_step"]
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors of the algorithm, each once (`network` shares those of its parts), for a file anyone can load."""
        tensors = dict(self.algorithm.named_parameters()) | dict(self.algorithm.named_buffers())
        return {name: value.detach().contiguous() for name, value in tensors.items()}
