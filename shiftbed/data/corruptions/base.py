"""The list of corruptions, the one function that applies them, and the random draws they are given."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from shiftbed.errors import DataError
from shiftbed.hashing import digest
from shiftbed.registry import Registry

SEVERITIES = (1, 2, 3, 4, 5)
CHUNK = 128  # 32-pixel images at once: their floats and a few temporaries stay in the cache of one core
ALMOST = 1e-3  # a grey level that arithmetic left a hair below an integer is that integer

Family = Literal["noise", "blur", "weather", "digital", "extra", "bar"]


class Draws:
    """The random numbers of some consecutive images, each image having a stream of its own.

    An image's numbers depend on the key and on its position alone, whatever images come before it and however many
    are drawn for at once.

    Args:
        key: 128 bits that name the corruption, the severity and the seed.
        positions: The images' positions in the whole array.
    """

    def __init__(self, key: int, positions: Sequence[int]) -> None:
        # Philox counts in 256 bits: the upper half is the position, so that no two streams can meet.
        self._streams = [
            np.random.Generator(np.random.Philox(key=key, counter=position << 128)) for position in positions
        ]

    def uniform(self, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Uniform float32 numbers, N×shape."""
        drawn = np.empty((len(self._streams), *shape), np.float32)
        for index, stream in enumerate(self._streams):
            drawn[index] = stream.random(shape, dtype=np.float32)
        return low + (high - low) * drawn

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal float32 numbers, N×shape."""
        drawn = np.empty((len(self._streams), *shape), np.float32)
        for index, stream in enumerate(self._streams):
            drawn[index] = stream.standard_normal(shape, dtype=np.float32)
        return drawn

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """Integers in [low, high), N×shape."""
        drawn = np.empty((len(self._streams), *shape), np.int64)
        for index, stream in enumerate(self._streams):
            drawn[index] = stream.integers(low, high, shape)
        return drawn

    def poisson(self, rates: np.ndarray) -> np.ndarray:
        """Poisson counts as float32 with the given rates, one image of rates an image."""
        drawn = np.empty(rates.shape, np.float32)
        for index, stream in enumerate(self._streams):
            drawn[index] = stream.poisson(rates[index])
        return drawn


Function = Callable[[np.ndarray, int, Draws], np.ndarray]


class Corruption(NamedTuple):
    """A registered corruption.

    Attributes:
        function: Takes float32 images in [0, 1] (N×H×W×C), a severity and draws; its result may leave [0, 1].
        family: Four families of CIFAR-10-C's standard fifteen, its four `extra` ones, and CIFAR-10-C-bar's ten.
        random: Whether the result depends on the seed.
        colour: Whether it needs three channels; a grey image is then a copy in each, and the result is their mean.
    """

    function: Function
    family: Family
    random: bool
    colour: bool


CORRUPTIONS: Registry[Corruption] = Registry("corruption", "shiftbed.data.corruptions")


def register(family: Family, *, random: bool = True, colour: bool = False) -> Callable[[Function], Function]:
    """Registers a function under its own name."""

    def wrap(function: Function) -> Function:
        CORRUPTIONS.add(function.__name__, Corruption(function, family, random, colour))
        return function

    return wrap


def corrupt(images: np.ndarray, name: str, severity: int, seed: int = 0) -> np.ndarray:
    """Corrupts images; the result for an image depends on the image, the arguments and its position in the array.

    Values are cut off to whole grey levels, not rounded, as the published sets are.

    Args:
        images: uint8, N×H×W×C with one or three channels.
        name: A corruption's name.
        severity: 1 (weak) to 5 (strong).
        seed: Another seed gives other draws.

    Returns:
        uint8, of the same shape.

    Raises:
        UnknownNameError: No corruption has this name.
        DataError: The severity or the images are not of this form.
    """
    corruption = CORRUPTIONS[name]
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise DataError(f"A corruption's severity is a whole number from 1 to 5, not {severity!r}.")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        form = f"{images.dtype} of shape {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(f"Images to corrupt must be a uint8 array N×H×W×C, not {form}.")
    if images.shape[-1] not in (1, 3) or min(images.shape[1:3]) < 1:
        raise DataError(f"Images to corrupt must have pixels and one or three channels, not the shape {images.shape}.")

    key = int(digest([CORRUPTIONS.canonical_name(name), int(severity), int(seed)])[:32], 16)
    step = max(1, CHUNK * 32 * 32 // (images.shape[1] * images.shape[2]))
    corrupted = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), step):
        clean = images[start : start + step].astype(np.float32, order="C") / np.float32(255)
        as_colour = corruption.colour and clean.shape[-1] == 1
        draws = Draws(key, range(start, start + len(clean)) if corruption.random else ())
        changed = corruption.function(np.repeat(clean, 3, axis=-1) if as_colour else clean, int(severity), draws)
        if as_colour:
            changed = np.clip(changed, 0, 1).mean(axis=-1, keepdims=True)
        corrupted[start : start + step] = np.clip(changed * 255 + ALMOST, 0, 255)
    return corrupted
