"""The data of one task as tensors, and the batches that its streams make of it."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from shiftbed.algorithms import Batches
from shiftbed.data import card, load
from shiftbed.errors import DataError
from shiftbed.protocols import Split
from shiftbed.training.job import Job
from shiftbed.training.streams import Stream, philox_key


def domain_tensors(dataset: str, image_size: int | None) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels of every domain; images as uint8 N×C×H×W, reduced to `image_size` if they are larger.

    Raises:
        DataError: The images differ in size and the recipe does not say to which they are brought.
    """
    return _domain_tensors(dataset, card(dataset).version, image_size)


@lru_cache(maxsize=4)
def _domain_tensors(
    dataset: str, version: int | str, image_size: int | None
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    tensors = {}
    for domain in load(dataset).domains:
        if isinstance(domain.inputs, np.ndarray):
            inputs = torch.from_numpy(np.array(domain.inputs))
            if inputs.dtype == torch.uint8:
                inputs = _reduced(inputs.permute(0, 3, 1, 2), image_size)
        elif image_size is None:
            raise DataError(f"The images of {dataset} differ in size; choose a recipe that says an image_size.")
        else:
            images = (torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] for image in domain.inputs)
            inputs = torch.cat([_resized(image, image_size) for image in images])
        tensors[domain.name] = inputs, torch.from_numpy(np.array(domain.labels))
    return tensors


def _reduced(images: torch.Tensor, side: int | None) -> torch.Tensor:
    return _resized(images, side) if side and side < min(images.shape[2:]) else images.contiguous()


def _resized(images: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(images.float(), size=(side, side), mode="area").round().byte()


def as_model_input(inputs: torch.Tensor) -> torch.Tensor:
    """What a network is given: images in [0, 1], everything else as float32."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs.float()


class TaskData:
    """The examples of a job's task: training batches by step, evaluation splits whole."""

    def __init__(self, job: Job) -> None:
        self.tensors = domain_tensors(job.dataset, job.recipe.image_size)
        self.batch_size = int(job.hparams["batch_size"])
        smallest = min(job.task.of_role("train"), key=lambda split: len(split.indices))
        if not 1 <= self.batch_size <= len(smallest.indices):
            raise DataError(
                f"A batch of {self.batch_size} cannot be drawn from the {len(smallest.indices)} training examples of "
                f"domain '{smallest.domain}' of {job.dataset}; set batch_size between 1 and that."
            )
        training = job.task.of_role("train")
        self.streams = {
            split.domain: Stream(philox_key(*job.cell, split.domain), split.indices, job.recipe.sampling)
            for split in training
        }
        self.training = TrainingExamples(self, training)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as the network sees it."""
        return tuple(next(iter(self.tensors.values()))[0].shape[1:])

    def batches(self, step: int) -> Batches:
        """The minibatches of a step: positions `step · B` to `(step + 1) · B` of each training domain's stream."""
        inputs, labels, positions = [], [], []
        for domain, stream in self.streams.items():
            chosen = torch.from_numpy(stream.take(step * self.batch_size, self.batch_size))
            inputs.append(self.tensors[domain][0][chosen])
            labels.append(self.tensors[domain][1][chosen])
            positions.append(self.training.positions[domain][chosen])
        sizes = [self.batch_size] * len(self.streams)
        return Batches(as_model_input(torch.cat(inputs)), torch.cat(labels), sizes, torch.cat(positions))

    def whole(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """All inputs (still as stored) and labels of a split."""
        inputs, labels = self.tensors[split.domain]
        chosen = torch.from_numpy(split.indices)
        return inputs[chosen], labels[chosen]


class TrainingExamples:
    """All training examples of a task, one domain after the other, un-augmented.

    Attributes:
        positions: For each domain, where each of its examples stands here; −1 for those that are not trained on.
    """

    def __init__(self, data: TaskData, splits: list[Split]) -> None:
        self._data = data
        self._splits = splits
        self.positions: dict[str, torch.Tensor] = {}
        start = 0
        for split in splits:
            positions = torch.full((len(data.tensors[split.domain][1]),), -1)
            positions[torch.from_numpy(split.indices)] = torch.arange(start, start + len(split.indices))
            self.positions[split.domain] = positions
            start += len(split.indices)
        self._count = start

    def __len__(self) -> int:
        return self._count

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs as the network takes them, and labels, in the order of `Batches.positions`."""
        for split in self._splits:
            inputs, labels = self._data.whole(split)
            for x, y in zip(inputs.split(size), labels.split(size), strict=True):
                yield as_model_input(x), y
