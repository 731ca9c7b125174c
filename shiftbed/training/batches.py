"""The data of one task as tensors, and the batches that its streams make of it."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from shiftbed.algorithms import Batches
from shiftbed.data import card, load
from shiftbed.errors import DataError
from shiftbed.protocols import Split
from shiftbed.training.job import Job
from shiftbed.training.streams import Stream, philox_key

BLOCK = 64  # steps whose examples are chosen, and uploaded, at once


class Pool(NamedTuple):
    """All examples of a dataset on one device, one domain after the other.

    Attributes:
        inputs: Images as uint8 (N×C×H×W; on a GPU with channels last in memory), or any tensor.
        labels: Their classes.
        starts: Where each domain begins.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    starts: dict[str, int]

    def places(self, split: Split) -> torch.Tensor:
        """Where the examples of a split are."""
        return torch.from_numpy(split.indices + self.starts[split.domain]).to(self.labels.device)


def pool_of(dataset: str, image_size: int | None, device: str = "cpu") -> Pool:
    """The examples of a dataset on a device; images larger than `image_size` are reduced to it.

    Raises:
        DataError: The images differ in size and the recipe does not say to which they are brought.
    """
    return _pool(dataset, card(dataset).version, image_size, device)


@lru_cache(maxsize=4)
def _pool(dataset: str, version: int | str, image_size: int | None, device: str) -> Pool:
    inputs, labels, starts, count = [], [], {}, 0
    for domain in load(dataset).domains:
        starts[domain.name] = count
        count += len(domain.labels)
        inputs.append(_domain_inputs(dataset, domain.inputs, image_size))
        labels.append(torch.from_numpy(np.array(domain.labels)))
    whole = torch.cat(inputs).to(device)
    if device != "cpu" and whole.dim() == 4:
        whole = whole.contiguous(memory_format=torch.channels_last)
    return Pool(whole, torch.cat(labels).to(device), starts)


def _domain_inputs(dataset: str, inputs: object, image_size: int | None) -> torch.Tensor:
    if isinstance(inputs, np.ndarray):
        tensor = torch.from_numpy(np.array(inputs))
        return _reduced(tensor.permute(0, 3, 1, 2), image_size) if tensor.dtype == torch.uint8 else tensor
    if image_size is None:
        raise DataError(f"The images of {dataset} differ in size; choose a recipe that says an image_size.")
    images = (torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] for image in inputs)  # type: ignore[attr-defined]
    return torch.cat([_resized(image, image_size) for image in images])


def _reduced(images: torch.Tensor, side: int | None) -> torch.Tensor:
    return _resized(images, side) if side and side < min(images.shape[2:]) else images.contiguous()


def _resized(images: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(images.float(), size=(side, side), mode="area").round().byte()


def as_model_input(inputs: torch.Tensor) -> torch.Tensor:
    """What a network is given: images in [0, 1], everything else as float32."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs.float()


class TaskData:
    """The examples of a job's task: training batches by step, evaluation splits whole.

    Args:
        job: Whose task it is.
        device: Where the examples live.
    """

    def __init__(self, job: Job, device: str = "cpu") -> None:
        self.pool = pool_of(job.dataset, job.recipe.image_size, device)
        self.batch_size = int(job.hparams["batch_size"])
        training = job.task.of_role("train")
        smallest = min(training, key=lambda split: len(split.indices))
        if not 1 <= self.batch_size <= len(smallest.indices):
            raise DataError(
                f"A batch of {self.batch_size} cannot be drawn from the {len(smallest.indices)} training examples of "
                f"domain '{smallest.domain}' of {job.dataset}; set batch_size between 1 and that."
            )
        self.streams = {
            split.domain: Stream(philox_key(*job.cell, split.domain), split.indices, job.recipe.sampling)
            for split in training
        }
        self.training = TrainingExamples(self.pool, training)
        self._block: tuple[int, torch.Tensor] = -1, torch.empty(0)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as the network sees it."""
        return tuple(self.pool.inputs.shape[1:])

    def chosen(self, step: int) -> torch.Tensor:
        """The places in the pool of a step's examples: positions `step · B` to `(step + 1) · B` of each stream."""
        number, within = divmod(step, BLOCK)
        if self._block[0] != number:
            count = BLOCK * self.batch_size
            parts = [
                (stream.take(number * count, count) + self.pool.starts[domain]).reshape(BLOCK, self.batch_size)
                for domain, stream in self.streams.items()
            ]
            places = torch.from_numpy(np.concatenate(parts, axis=1))
            self._block = number, places.to(self.pool.labels.device, non_blocking=True)
        return self._block[1][within]

    def batches(self, chosen: torch.Tensor) -> Batches:
        """The minibatches of the examples at these places."""
        x = as_model_input(self.pool.inputs[chosen])
        sizes = [self.batch_size] * len(self.streams)
        return Batches(x, self.pool.labels[chosen], sizes, self.training.positions[chosen])


class TrainingExamples:
    """All training examples of a task, one domain after the other, un-augmented.

    Attributes:
        positions: For each place in the pool, where the example stands here; −1 if it is not trained on.
    """

    def __init__(self, pool: Pool, splits: list[Split]) -> None:
        self._pool = pool
        self._places = torch.cat([pool.places(split) for split in splits])
        self.positions = torch.full((len(pool.labels),), -1, device=pool.labels.device)
        self.positions[self._places] = torch.arange(len(self._places), device=pool.labels.device)

    def __len__(self) -> int:
        return len(self._places)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs as the network takes them, and labels, in the order of `Batches.positions`."""
        for places in self._places.split(size):
            yield as_model_input(self._pool.inputs[places]), self._pool.labels[places]
