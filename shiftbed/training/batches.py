"""The batches that a task's streams make of its examples."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from shiftbed.algorithms import Batches
from shiftbed.errors import DataError
from shiftbed.training.augment import Parameters, Uploaded, augment, augmentation_words
from shiftbed.training.job import Job
from shiftbed.training.pool import Pool, pool_of
from shiftbed.training.streams import Stream, philox_key

BLOCK = 64  # steps whose examples are chosen, and uploaded, at once
AHEAD = 3  # steps for which streamed images are fetched before they are needed


def as_model_input(inputs: torch.Tensor) -> torch.Tensor:
    """What a network is given: images in [0, 1], everything else as float32."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs.float()


class TaskData:
    """The examples of a job's task: training batches by step, evaluation inputs by place.

    A step's inputs are chosen on the host, for many steps at once; what is then computed of them, on the device, draws
    nothing and branches on nothing, so that it can be captured.

    Args:
        job: Whose task it is.
        device: Where batches are used.
    """

    def __init__(self, job: Job, device: str = "cpu") -> None:
        recipe = job.recipe
        self.augmentation = recipe.augmentation
        self.pool: Pool = pool_of(job.dataset, recipe.image_size, device)
        if self.pool.resident is None and self.augmentation.size is None:
            raise DataError(
                f"The images of {job.dataset} differ in size, or are too many for the memory; choose a recipe with an "
                f"image_size or an augmentation."
            )
        self.batch_size = int(job.hparams["batch_size"])
        training = job.task.of_role("train")
        smallest = min(training, key=lambda split: len(split.indices))
        if not 1 <= self.batch_size <= len(smallest.indices):
            count = len(smallest.indices)
            raise DataError(
                f"A batch of {self.batch_size} cannot be drawn from the {count} training examples of domain "
                f"'{smallest.domain}' of {job.dataset}; add images, or --set batch_size={count} or less (1 at least)."
            )
        self.streams = {
            split.domain: Stream(philox_key(*job.cell, split.domain), split.indices, recipe.sampling)
            for split in training
        }
        # Domains that are only looked at: their streams go on after those of the training domains.
        self.unlabelled = {
            split.domain: Stream(philox_key(*job.cell, split.domain, "unlabelled"), split.indices, recipe.sampling)
            for split in job.task.of_role("unlabelled")
        }
        self.training = TrainingExamples(self, np.concatenate([self.pool.places(split) for split in training]))
        self._block = Block(-1, np.empty(0), torch.empty(0), None)
        self._fetching: dict[int, Future[torch.Tensor]] = {}
        self._fetcher = ThreadPoolExecutor(1) if self.pool.resident is None else None

    @property
    def sizes(self) -> list[int]:
        """The number of examples of each training domain in a step."""
        return [self.batch_size] * len(self.streams)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as the network sees it."""
        shape, size = self.pool.input_shape, self.augmentation.size
        return (shape[0], size, size) if size else shape

    def step_inputs(self, step: int) -> tuple[torch.Tensor, ...]:
        """The tensors that `batches` makes a step of: examples, and how their images are changed.

        They have the same shapes at every step, as a captured step needs it. So images from the host, which are padded
        to the largest of their batch, are changed here already.
        """
        block = self._block_of(step)
        within = step % BLOCK
        if block.changes is None:
            return (block.places[within],)
        count = self.batch_size * (len(self.streams) + len(self.unlabelled))
        changes = block.changes[within * count : (within + 1) * count]
        if self._fetcher is not None:
            return block.places[within], augment(self._fetched(step), changes)
        return (block.places[within], *_tensors(changes))

    def batches(self, places: torch.Tensor, *more: torch.Tensor) -> Batches:
        """The minibatches of the examples at these places."""
        if self._fetcher is not None:
            (x,) = more
        elif self._block.changes is None:
            x = as_model_input(self.pool.inputs(places))
        else:
            x = augment(self.pool.inputs(places), _with_tensors(self._block.changes, more))
        x, *unlabelled = x.split([sum(self.sizes), *([self.batch_size] * len(self.unlabelled))])
        places = places[: len(x)]
        return Batches(x, self.pool.labels[places], self.sizes, self.training.positions[places], unlabelled)

    def evaluation_inputs(self, places: np.ndarray, words: np.ndarray | None = None) -> torch.Tensor:
        """Inputs for evaluation, on the device; with random words, changed as training images are."""
        if self.augmentation.size is None:
            where = torch.from_numpy(places).to(self.pool.device) if self.pool.resident is not None else places
            return as_model_input(self.pool.inputs(where))
        changes = self._changes(places, words).to(self.pool.device)
        where = torch.from_numpy(places).to(self.pool.device) if self.pool.resident is not None else places
        return augment(self.pool.inputs(where), changes)

    def _changes(self, places: np.ndarray, words: np.ndarray | None) -> Parameters:
        original, packed = self.pool.original, self.pool.packed
        if original is None or packed is None:
            raise DataError("An augmentation changes images, and these inputs are none; use a recipe without one.")
        if words is None:
            return self.augmentation.evaluation(original[places], packed[places])
        return self.augmentation.draw(words, original[places], packed[places])

    def _block_of(self, step: int) -> "Block":
        number = step // BLOCK
        if self._block.number != number:
            count = BLOCK * self.batch_size
            parts = [
                (stream.take(number * count, count) + self.pool.starts[domain]).reshape(BLOCK, self.batch_size)
                for domain, stream in (self.streams | self.unlabelled).items()
            ]
            places = np.concatenate(parts, axis=1)
            changes = None
            if self.augmentation.size is not None:
                streams = (self.streams | self.unlabelled).values()
                words = [augmentation_words(stream.key, number * count, count) for stream in streams]
                by_step = [part.reshape(BLOCK, self.batch_size, -1) for part in words]
                drawn = self._changes(places.reshape(-1), np.concatenate(by_step, axis=1).reshape(places.size, -1))
                changes = _always_grey(drawn.to(self.pool.device), self.augmentation.grayscale > 0)
            on_device = torch.from_numpy(places).to(self.pool.device, non_blocking=True)
            self._block = Block(number, places, on_device, changes)
        return self._block

    def _fetched(self, step: int) -> torch.Tensor:
        """The images of a step from the host; those of the next steps are fetched meanwhile."""
        assert self._fetcher is not None
        last = (step // BLOCK + 1) * BLOCK
        for coming in range(step, min(step + AHEAD, last)):
            if coming not in self._fetching:
                self._fetching[coming] = self._fetcher.submit(self.pool.inputs, self._block.chosen[coming % BLOCK])
        images = self._fetching.pop(step).result()
        self._fetching = {number: future for number, future in self._fetching.items() if number > step}
        return images


class Block:
    """The examples of `BLOCK` steps: on the host, on the device, and how their images are changed."""

    def __init__(self, number: int, chosen: np.ndarray, places: torch.Tensor, changes: Uploaded | None) -> None:
        self.number = number
        self.chosen = chosen
        self.places = places
        self.changes = changes


FIELDS = ("axes", "blends", "turn", "grayscale")


def _tensors(changes: Uploaded) -> list[torch.Tensor]:
    return [getattr(changes, name) for name in FIELDS if getattr(changes, name) is not None]


def _with_tensors(pattern: Uploaded, tensors: Sequence[torch.Tensor]) -> Uploaded:
    given = iter(tensors)
    of_each = [None if getattr(pattern, name) is None else next(given) for name in FIELDS]
    return Uploaded(pattern.size, *of_each)  # type: ignore[arg-type]  # axes are never None


def _always_grey(changes: Uploaded, wanted: bool) -> Uploaded:
    """A block by chance without a grey image still has the tensor that says so: every step has the same inputs."""
    missing = wanted and changes.grayscale is None
    return replace(changes, grayscale=torch.zeros_like(changes.axes[:, 0, 0])) if missing else changes


class TrainingExamples:
    """All training examples of a task, one domain after the other, un-augmented.

    Attributes:
        positions: For each place in the pool, where the example stands here; −1 if it is not trained on.
    """

    def __init__(self, data: TaskData, places: np.ndarray) -> None:
        self._data = data
        self._places = places
        positions = torch.full((len(data.pool.labels),), -1)
        positions[torch.from_numpy(places)] = torch.arange(len(places))
        self.positions = positions.to(data.pool.device)

    def __len__(self) -> int:
        return len(self._places)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs as the network takes them, and labels, in the order of `Batches.positions`."""
        for start in range(0, len(self), size):
            places = self._places[start : start + size]
            labels = self._data.pool.labels[torch.from_numpy(places).to(self._data.pool.device)]
            yield self._data.evaluation_inputs(places), labels
