"""Augmentation: every image of a batch changed in its own way, in a few operations on the images' device.

What happens at position k of a stream is drawn on the host from words of that position alone: it is the same on every
device and for every batch size, and is uploaded for many steps at once. Crops are drawn in the geometry of the original
image, as torchvision draws them, and cut from the packed one. Normalisation belongs to the networks.

    words = augmentation_words(stream.key, start, count)
    uploaded = augmentation.draw(words, original_sizes, packed_sizes).to(device)
    x = augment(images, uploaded[first:last])
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from shiftbed.errors import DataError, UnknownNameError
from shiftbed.registry import did_you_mean
from shiftbed.training.streams import philox_key

WORDS = 32
# Every quantity has words of its own: one that is switched off or made stronger leaves the others as they are.
AREA, RATIO = slice(0, 10), slice(10, 20)  # ten attempts to find a crop that fits
TOP, LEFT, FLIP, ORDER, FACTORS, GRAYSCALE = 20, 21, 22, 23, slice(24, 28), 28

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ORDERS = np.array(list(permutations(range(4))))
UNCHANGED = np.array([1.0, 1.0, 1.0, 0.0])
CACHED = 400_000  # new pixels at a time on a CPU, whose cache then holds what is computed with them: twice as fast

Share = Annotated[float, Field(ge=0, le=1)]


def augmentation_words(key: int, start: int, count: int) -> np.ndarray:
    """The 32 random words of each of the positions `start` to `start + count` of the stream with this key."""
    generator = np.random.Philox(key=philox_key(key, "augmentation"), counter=start * WORDS // 4)
    return generator.random_raw(WORDS * count).reshape(count, WORDS)


class Augmentation(BaseModel):
    """How training images are changed at random, and how evaluation images are brought to the network's size.

    A recipe gives it by its fields, by the name of a scheme, or by a `scheme` and the fields that differ from it.

    Attributes:
        size: The side of the square that the network sees; None leaves images as they are.
        scale: The crop's share of the image's area, from and to; None frames training images as evaluation images.
        ratio: The crop's width divided by its height, from and to.
        shift: How many pixels a training image is moved at most, each way, over black; instead of a crop.
        flip: How often an image is mirrored.
        jitter: How strongly brightness, contrast, saturation and hue change, in random order.
        grayscale: How often an image loses its colour.
        evaluation_resize: The short side to which evaluation images are brought before their centre is cut out.
        evaluation_crop: The side of the centre of evaluation images that is resized. With neither, the whole image is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int | None = Field(default=None, gt=0)
    scale: tuple[Share, Share] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    shift: int = Field(default=0, ge=0)
    flip: Share = 0.0
    jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] = (0.0, 0.0, 0.0, 0.0)
    grayscale: Share = 0.0
    evaluation_resize: int | None = None
    evaluation_crop: int | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _of_a_scheme(cls, value: Any) -> Any:
        fields = {"scheme": value} if isinstance(value, str) else value
        if not isinstance(fields, dict) or "scheme" not in fields:
            return fields
        name = fields["scheme"]
        if name not in SCHEMES:
            raise UnknownNameError(f"There is no augmentation '{name}'.{did_you_mean(name, list(SCHEMES))}")
        return SCHEMES[name].model_dump() | {field: fields[field] for field in fields if field != "scheme"}

    @model_validator(mode="after")
    def _possible(self) -> "Augmentation":
        if self.size is None and self.model_dump(exclude_defaults=True):
            raise ValueError("an augmentation needs the size of the images it makes")
        if self.shift and self.scale is not None:
            raise ValueError("images are moved (shift) or cropped (scale), not both")
        if any(not 0 < low <= high for low, high in (self.scale or (1, 1), self.ratio)):
            raise ValueError("scale and ratio go from a positive number to one that is not smaller")
        if self.evaluation_resize is not None and (self.evaluation_crop or self.evaluation_resize < (self.size or 0)):
            raise ValueError("evaluation_resize is at least the size, and does not go with evaluation_crop")
        return self

    @property
    def is_random(self) -> bool:
        """Whether training images are changed at random, and not only brought to a size."""
        return self.scale is not None or any((self.shift, self.flip, *self.jitter, self.grayscale))

    def draw(self, words: np.ndarray, original: np.ndarray, packed: np.ndarray | None = None) -> "Parameters":
        """What is done to each training image.

        Args:
            words: A row of `augmentation_words` for each image.
            original: Height and width of each image before packing, N×2.
            packed: Height and width as packed, if these are others.
        """
        uniform = (words >> np.uint64(11)) * 2.0**-53  # 53 bits: a float in [0, 1) that every machine computes alike
        parameters = self.evaluation(original, packed)
        if self.scale is not None:
            crops = self._crops(uniform, self.scale, original)
            parameters = replace(parameters, shown=crops, read=crops)
        if self.shift:
            moved = np.floor(uniform[:, [TOP, LEFT]] * (2 * self.shift + 1)) - self.shift
            boxes = np.concatenate([moved, original.astype(float)], axis=1)
            parameters = replace(parameters, shown=boxes, read=boxes)
        return replace(
            parameters,
            flip=uniform[:, FLIP] < self.flip,
            factors=UNCHANGED + (2 * uniform[:, FACTORS] - 1) * self.jitter,
            order=ORDERS[(uniform[:, ORDER] * len(ORDERS)).astype(int)],
            grayscale=uniform[:, GRAYSCALE] < self.grayscale,
        )

    def _crops(self, uniform: np.ndarray, scale: tuple[float, float], original: np.ndarray) -> np.ndarray:
        """The first that fits of ten boxes of random area and ratio, anywhere; else the largest box in the middle."""
        height, width = original.astype(float).T
        area = (height * width)[:, None] * (scale[0] + uniform[:, AREA] * (scale[1] - scale[0]))
        narrow, wide = np.log(self.ratio)
        ratio = np.exp(narrow + uniform[:, RATIO] * (wide - narrow))
        heights, widths = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
        fits = (heights > 0) & (heights <= height[:, None]) & (widths > 0) & (widths <= width[:, None])
        first = np.arange(len(fits)), fits.argmax(axis=1)
        found = fits[first]
        high = np.where(found, heights[first], np.minimum(height, np.rint(width / self.ratio[0])))
        broad = np.where(found, widths[first], np.minimum(width, np.rint(height * self.ratio[1])))
        above, beside = height - high, width - broad
        top = np.where(found, np.floor(uniform[:, TOP] * (above + 1)), above // 2)
        left = np.where(found, np.floor(uniform[:, LEFT] * (beside + 1)), beside // 2)
        return np.stack([top, left, high, broad], axis=1)

    def evaluation(self, original: np.ndarray, packed: np.ndarray | None = None) -> "Parameters":
        """What is done to each evaluation image, with sizes as in `draw`; nothing of it is random."""
        assert self.size is not None, "without a size images are left as they are"
        sides, count = original.astype(float), len(original)
        shown = read = np.concatenate([np.zeros_like(sides), sides], axis=1)
        if self.evaluation_crop is not None:
            cut = np.minimum(sides, self.evaluation_crop)  # a smaller image is not padded with black
            shown = read = np.concatenate([np.rint((sides - cut) / 2), cut], axis=1)
        elif self.evaluation_resize is not None:
            resized = np.floor(self.evaluation_resize * sides / sides.min(axis=1, keepdims=True))
            corner, pixel = np.rint((resized - self.size) / 2), sides / resized
            shown = np.concatenate([corner * pixel, self.size * pixel], axis=1)
        zoom = np.ones_like(sides) if packed is None else packed / sides
        order, factors, no = np.tile(ORDERS[0], (count, 1)), np.tile(UNCHANGED, (count, 1)), np.zeros(count, bool)
        return Parameters(self.size, shown, read, zoom, flip=no, factors=factors, order=order, grayscale=no)


_JIGEN = Augmentation(size=224, scale=(0.8, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.4), grayscale=0.1)
SCHEMES = {
    "domainbed": Augmentation(size=224, scale=(0.7, 1.0), flip=0.5, jitter=(0.3, 0.3, 0.3, 0.3), grayscale=0.1),
    "jigen": _JIGEN,
    "jigen-nico": _JIGEN.model_copy(update={"evaluation_resize": 256}),
    "celeba": Augmentation(
        size=224, scale=(0.7, 1.0), ratio=(1.0, 4 / 3), flip=0.5, jitter=(0.3, 0.3, 0.3, 0.0), evaluation_crop=178
    ),
    "nico": Augmentation(size=224, scale=(0.8, 1.0), flip=0.5, grayscale=0.3),
    "none": Augmentation(),
}


@dataclass(frozen=True)
class Parameters:
    """What is done to each of N images, on the host."""

    size: int  # the side of the images to make
    shown: np.ndarray  # N×4, top, left, height and width of what becomes the new image, in original pixels
    read: np.ndarray  # the same of the pixels that its filter may see: a crop's filter does not see beyond the crop
    zoom: np.ndarray  # N×2, packed divided by original height and width
    flip: np.ndarray  # N, which images are mirrored
    factors: np.ndarray  # N×4, of brightness, contrast and saturation, and the turn of the hue
    order: np.ndarray  # N×4, the order in which these are applied
    grayscale: np.ndarray  # N, which images lose their colour

    def to(self, device: torch.device | str) -> "Uploaded":
        """The numbers that the device computes with, uploaded; the host does not wait."""

        def upload(array: np.ndarray) -> torch.Tensor:
            tensor = torch.from_numpy(array.astype(np.float32))
            tensor = tensor.pin_memory() if torch.device(device).type == "cuda" else tensor
            return tensor.to(device, non_blocking=True)

        first, length = self.shown[:, :2] * self.zoom, self.shown[:, 2:] * self.zoom
        mirrored = np.stack([np.zeros_like(self.flip), self.flip], axis=1)
        start, step = np.where(mirrored, first + length, first), np.where(mirrored, -length, length) / self.size
        low, high = self.read[:, :2] * self.zoom, (self.read[:, :2] + self.read[:, 2:]) * self.zoom
        jitters, turns = bool((self.factors != UNCHANGED).any()), bool(self.factors[:, HUE].any())
        return Uploaded(
            size=self.size,
            axes=upload(np.stack([start, step, low, high], axis=2)),
            blends=upload(self._blends(turns)) if jitters else None,
            turn=upload(6 * self.factors[:, HUE]) if turns else None,
            grayscale=upload(self.grayscale) if self.grayscale.any() else None,
        )

    def _blends(self, turns: bool) -> np.ndarray:
        """Brightness, contrast and saturation in each image's order: three places before its hue turns, three after.

        In each place stand a factor and the weights of the image's grey and of its mean grey in what is blended with.
        A place that an image does not use holds factor 1, which changes nothing.
        """
        place = self.order.argsort(axis=1)
        slot, hue = place[:, :HUE], place[:, HUE:]
        slot = slot + (slot > hue) * (2 - hue if turns else -1)
        image = np.arange(len(slot))
        blends = np.tile([1.0, 0.0, 0.0], (len(slot), 6 if turns else 3, 1))
        blends[image[:, None], slot, 0] = self.factors[:, :HUE]
        blends[image, slot[:, SATURATION], 1] = 1
        blends[image, slot[:, CONTRAST], 2] = 1
        return blends


@dataclass(frozen=True)
class Uploaded:
    """The same as numbers on the images' device, None where nothing is to be done; it is sliced by image."""

    size: int
    axes: torch.Tensor  # N×2×4, vertical and horizontal: start, step (back if mirrored), limits, in packed pixels
    blends: torch.Tensor | None  # N×3×3 or N×6×3, see `Parameters._blends`
    turn: torch.Tensor | None  # of the hue, in sixths
    grayscale: torch.Tensor | None  # 0 or 1

    def __getitem__(self, some: slice) -> "Uploaded":
        blends, turn, grey = (None if x is None else x[some] for x in (self.blends, self.turn, self.grayscale))
        return Uploaded(self.size, self.axes[some], blends, turn, grey)


@torch.no_grad()
def augment(images: torch.Tensor, uploaded: Uploaded) -> torch.Tensor:
    """Crops, mirrors and recolours each image of a batch (uint8 N×C×H×W) in its own way: floats in [0, 1], N×C×S×S.

    Raises:
        DataError: Colours are to be changed and the images do not have three channels.
    """
    if images.shape[1] != 3 and (uploaded.blends is not None or uploaded.grayscale is not None):
        needed = f"need images of 3 channels and these have {images.shape[1]}"
        raise DataError(f"Colour jitter and grayscale {needed}; choose an augmentation without them.")
    if images.device.type == "cpu" and len(images) > (some := max(1, CACHED // uploaded.size**2)):
        return torch.cat([augment(images[i : i + some], uploaded[i : i + some]) for i in range(0, len(images), some)])
    with torch.autocast(images.device.type, enabled=False):  # half precision would be visible in the pixels
        x = _resampled(images, uploaded)
        places = () if uploaded.blends is None else uploaded.blends[..., None, None, None].unbind(1)
        for place in places[:3]:
            x = _blended(x, *place.unbind(1))
        if uploaded.turn is not None:
            x = _turned(x, uploaded.turn[:, None, None, None])
        for place in places[3:]:
            x = _blended(x, *place.unbind(1))
        if uploaded.grayscale is not None:
            x = torch.lerp(x, _grey(x), uploaded.grayscale[:, None, None, None])
        return x.contiguous()


def _resampled(images: torch.Tensor, uploaded: Uploaded) -> torch.Tensor:
    """Resizes each image's box with a triangle filter as wide as the step: one matrix product for each axis."""
    count, channels, height, width = images.shape
    start, step, low, high = uploaded.axes[..., None, None].unbind(2)  # each N×2×1×1
    new = torch.arange(0.5, uploaded.size, device=images.device)[:, None]
    old = torch.arange(max(height, width), device=images.device)
    reach = step.abs().clamp_(min=1)
    distance = ((start + step * new) / reach - (old + 0.5) / reach).abs_()  # N×2×S×L, in units of the filter's reach
    covered = (torch.minimum(old + 1, high) - torch.maximum(old, low)).clamp_(0, 1)  # the share of a pixel in the box
    weights = (1 - distance).clamp_(min=0).mul_(covered)
    weights /= weights.sum(3, keepdim=True).clamp_(min=1e-6)  # beyond the edge, where no pixel weighs, it is black
    rows = images.permute(0, 2, 1, 3).to(torch.float32, memory_format=torch.contiguous_format)
    across = rows.view(count, height * channels, width) @ weights[:, 1, :, :width].mT
    both = weights[:, 0, :, :height] @ across.view(count, height, channels * uploaded.size)
    return both.view(count, uploaded.size, channels, -1).permute(0, 2, 1, 3).div_(255).clamp_(0, 1)


def _grey(x: torch.Tensor) -> torch.Tensor:
    red, green, blue = x.split(1, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _blended(x: torch.Tensor, factor: torch.Tensor, of_grey: torch.Tensor, of_mean: torch.Tensor) -> torch.Tensor:
    """Moves images away from (factor > 1) or towards black, their grey or their mean grey."""
    grey = _grey(x)
    origin = torch.addcmul(of_mean * grey.mean((1, 2, 3), keepdim=True), of_grey, grey)
    return torch.lerp(origin, x, factor).clamp_(0, 1)


def _turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turns the hue by so many sixths and keeps each pixel's largest and smallest channel value (HSV)."""
    red, green, blue = x.split(1, dim=1)
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    chroma = high - low
    past_green = torch.where(high == green, (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4))
    hue = (torch.where(high == red, green - blue, past_green) / chroma.clamp(min=1e-9)).add_(turn).remainder_(6)
    channels = torch.arange(0, 5, 2, device=x.device)[:, None, None]  # red, green and blue lie two sixths apart
    level = (hue - channels).abs_().sub_(3).abs_().clamp_(1, 2)  # 1 far from the channel, 2 near it
    return torch.addcmul(low - chroma, chroma, level)


def padded(images: Sequence[np.ndarray]) -> torch.Tensor:
    """Images H×W×C of different sizes as one batch N×C×H×W; what lies beyond an image's edge is never read."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    batch = np.zeros((len(images), height, width, images[0].shape[2]), np.uint8)
    for place, image in zip(batch, images, strict=True):
        place[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(batch).permute(0, 3, 1, 2)
