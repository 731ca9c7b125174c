"""The examples of a dataset where a job can draw them: resident on its device, or streamed from the host."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from shiftbed.data import card, load
from shiftbed.data.pack import RaggedImages
from shiftbed.errors import DataError
from shiftbed.protocols import Split
from shiftbed.training.augment import padded

SHARE_OF_MEMORY = 0.5  # of what is free on a device, for the examples of one dataset
AT_ONCE = 256  # images that are reduced together
MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True, eq=False)
class Pool:
    """All examples of a dataset, one domain after the other.

    Attributes:
        labels: The classes, on the device.
        starts: Where each domain begins.
        device: Where batches are used.
        resident: Inputs on the device (images as uint8 N×C×H×W), or None if they stay on the host.
        hosted: Inputs on the host, one sequence per domain, where they are not resident.
        original: Height and width of every image before packing, or None if these are not images.
        packed: The same as packed.
    """

    labels: torch.Tensor
    starts: dict[str, int]
    device: str
    resident: torch.Tensor | None
    hosted: tuple[Sequence[np.ndarray] | np.ndarray, ...] = ()
    original: np.ndarray | None = None
    packed: np.ndarray | None = None

    def places(self, split: Split) -> np.ndarray:
        """Where the examples of a split are."""
        return split.indices + self.starts[split.domain]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; of images of different sizes, that of the first."""
        if self.resident is not None:
            return tuple(self.resident.shape[1:])
        height, width, channels = np.asarray(self.hosted[0][0]).shape
        return channels, height, width

    def inputs(self, places: torch.Tensor | np.ndarray) -> torch.Tensor:
        """The inputs at these places, on the device; images of different sizes are padded."""
        if self.resident is not None:
            return self.resident[places]
        bounds = [*self.starts.values(), len(self.labels)]
        domains = np.searchsorted(bounds, places, side="right") - 1
        images = [self.hosted[d][place - bounds[d]] for d, place in zip(domains, places, strict=True)]
        batch = padded(images)
        return batch.pin_memory().to(self.device, non_blocking=True) if self.device != "cpu" else batch


def pool_of(dataset: str, image_size: int | None, device: str = "cpu") -> Pool:
    """The examples of a dataset for a device; with an `image_size`, larger images are reduced to it."""
    return _pool(dataset, card(dataset).version, image_size, device)


@lru_cache(maxsize=4)
def _pool(dataset: str, version: int | str, image_size: int | None, device: str) -> Pool:
    domains = load(dataset).domains
    counts = np.cumsum([0, *(len(domain.labels) for domain in domains)])
    starts = {domain.name: int(start) for domain, start in zip(domains, counts, strict=False)}
    labels = torch.from_numpy(np.concatenate([domain.labels for domain in domains])).to(device)
    inputs = [domain.inputs for domain in domains]
    if image_size is not None:
        inputs = [*_of_one_size([_reduced(values, image_size) for values in inputs], image_size)]
    images = np.asarray(inputs[0][0]).dtype == np.uint8
    original, packed = _sizes(inputs) if images else (None, None)
    arrays = [values for values in inputs if isinstance(values, np.ndarray)]
    uniform = len(arrays) == len(inputs) and len({values.shape[1:] for values in arrays}) == 1
    if not images and not uniform:
        raise DataError(f"The inputs of {dataset} differ in shape; they must be images, or tensors of one shape.")
    if not uniform or sum(values.nbytes for values in arrays) > SHARE_OF_MEMORY * _free_memory(device):
        return Pool(labels, starts, device, None, tuple(inputs), original, packed)
    whole = torch.from_numpy(np.concatenate(arrays)).to(device)
    if images:
        whole = whole.permute(0, 3, 1, 2)  # channels stay last in memory, which a GPU prefers
        whole = whole.contiguous() if device == "cpu" else whole
    return Pool(labels, starts, device, whole, (), original, packed)


def _sizes(inputs: Sequence[Sequence[np.ndarray] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of every image, before packing and as packed."""
    original, packed = [], []
    for values in inputs:
        if isinstance(values, RaggedImages):
            rows = values.rows
            original.append(values.original_sizes)
            packed.append(np.stack([rows["height"], rows["width"]], axis=1))
        else:
            size = np.tile(np.asarray(values[0]).shape[:2], (len(values), 1))
            original.append(size)
            packed.append(size)
    return np.concatenate(original), np.concatenate(packed)


def _free_memory(device: str) -> int:
    """Bytes that are free, or that the system would free: a pack that was just written lies in its cache."""
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    said = MEMORY.read_text() if MEMORY.exists() else ""
    found = re.search(r"MemAvailable:\s*(\d+) kB", said)
    # Where the system does not say what is free, as on a Mac, it is taken to be all there is.
    return 1024 * int(found[1]) if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _reduced(values: Sequence[np.ndarray] | np.ndarray, side: int) -> np.ndarray:
    """Images averaged down to a square; an array of images that are no larger stays as it is."""
    if isinstance(values, np.ndarray) and (values.dtype != np.uint8 or side >= min(values.shape[1:3])):
        return values
    return _squares(values, side)


def _of_one_size(inputs: list[np.ndarray], side: int) -> list[np.ndarray]:
    """Domains of images that still differ in size, since some are smaller, brought to one square."""
    if any(values.dtype != np.uint8 for values in inputs) or len({values.shape[1:3] for values in inputs}) == 1:
        return inputs
    return [values if values.shape[1:3] == (side, side) else _squares(values, side) for values in inputs]


def _squares(values: Sequence[np.ndarray] | np.ndarray, side: int) -> np.ndarray:
    """Images averaged to a square, some at a time: as floats all of them may be more than the memory holds."""
    if not isinstance(values, np.ndarray):
        return np.concatenate([_averaged(torch.from_numpy(np.array(image))[None], side) for image in values])
    squares = np.empty((len(values), side, side, values.shape[3]), np.uint8)
    for start in range(0, len(values), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        squares[part] = _averaged(torch.from_numpy(np.array(values[part])), side)
    return squares


def _averaged(images: torch.Tensor, side: int) -> np.ndarray:
    small = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(side, side), mode="area")
    return small.round().byte().permute(0, 2, 3, 1).numpy()
