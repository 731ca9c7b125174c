"""The noises, blurs and digital changes of CIFAR-10-C (Hendrycks and Dietterich 2019), regenerated."""

from io import BytesIO

import numpy as np
from PIL import Image

from shiftbed.data.corruptions.base import Draws, register
from shiftbed.data.corruptions.pixels import (
    correlate,
    gaussian,
    grid,
    motion_blur_along,
    sample,
    scale_of,
    whole_levels,
    zoom_matrix,
)


@register("noise")
def gaussian_noise(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Adds normal noise to every value."""
    sigma = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return images + sigma * random.normal(images.shape[1:])


@register("noise")
def shot_noise(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Counts photons: Poisson noise with `rate` photons at full brightness."""
    rate = (500, 250, 100, 75, 50)[severity - 1]
    return random.poisson(images * rate) / rate


@register("noise")
def impulse_noise(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Sets a share of the values to 0 or 1, each channel by itself."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    drawn = random.uniform(images.shape[1:])
    return np.where(drawn < share, (drawn < share / 2).astype(np.float32), images)


@register("extra")
def speckle_noise(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Multiplies every value by normal noise around 1."""
    sigma = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    return images * (1 + sigma * random.normal(images.shape[1:]))


@register("extra", random=False)
def gaussian_blur(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Blurs with a Gaussian."""
    sigma = (0.4, 0.6, 0.7, 0.8, 1)[severity - 1]
    return gaussian(images, sigma * scale_of(images))


@register("blur", random=False)
def defocus_blur(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Blurs with a disk whose own edge is blurred."""
    radius, alias_blur = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    scale = scale_of(images)
    return correlate(images, disk(radius * scale, alias_blur * scale))


def disk(radius: float, alias_blur: float) -> np.ndarray:
    """A disk of sum 1, blurred over 3 × 3 pixels (5 × 5 for large ones)."""
    blur_reach = 1 if radius <= 8 else 2
    reach = int(radius) + 2 * blur_reach  # zeros all around, so that the blur of the disk meets no border
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    bell = np.exp(-(np.arange(-blur_reach, blur_reach + 1) ** 2) / (2 * alias_blur**2))
    bell /= bell.sum()
    return correlate(disk[None] / disk.sum(), np.outer(bell, bell))[0]


@register("blur")
def glass_blur(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Moves pixels about by up to a step between two Gaussian blurs.

    CIFAR-10-C means to swap neighbours, but its assignment between NumPy views copies one over the other; each pixel
    thus takes the value of a neighbour up or left of it (or its own), and so it does here.
    """
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    scale = scale_of(images)
    reach = max(1, round(scale))
    rows, columns = (axis.astype(np.int64) for axis in grid(images))
    height, width = rows.shape
    # The outermost pixels stay, as in the original's loops.
    moves = (rows > reach) & (rows <= height - reach) & (columns > reach) & (columns <= width - reach)
    blurred = whole_levels(gaussian(images, sigma * scale))
    which = np.arange(len(images)).reshape(-1, 1, 1)
    for _ in range(rounds):
        step = random.integers((2, height, width), -reach, reach) * moves
        blurred = blurred[which, rows + step[:, 0], columns + step[:, 1]]
    return gaussian(blurred, sigma * scale)


@register("blur")
def motion_blur(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Blurs along a line of random angle, by ImageMagick's formula, which is written out here (regenerated)."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    scale = scale_of(images)
    blurred = motion_blur_along(images, radius * scale, sigma * scale, random.uniform((), -45, 45))
    return whole_levels(blurred + 0.5 / 255)  # ImageMagick rounds


@register("blur", random=False)
def zoom_blur(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Averages the image with zooms into it.

    The zooms are CIFAR-10-C's to the last bit, for their roundings count: the first two ranges end at 1.06 and 1.11
    where the others stop before their end, and 1.25 is large enough for one row more.
    """
    end = (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1]
    zooms = np.arange(1, end, 0.01).tolist()
    height, width = images.shape[1:3]
    planes = np.ascontiguousarray(np.moveaxis(images, -1, 1))
    # All zooms in two products: the first puts them side by side, the second sums over them and over rows at once.
    across = planes @ np.concatenate([zoom_matrix(width, zoom).T for zoom in zooms], axis=1)
    down = np.stack([zoom_matrix(height, zoom) for zoom in zooms], axis=2).reshape(height, -1)
    total = down @ across.reshape(*across.shape[:2], height * len(zooms), width)
    return np.moveaxis(planes + total, 1, -1) / (len(zooms) + 1)


@register("digital", random=False)
def contrast(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Brings values nearer to the mean of their channel."""
    factor = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    means = images.mean(axis=(1, 2), keepdims=True)
    return means + factor * (images - means)


@register("weather", random=False)
def brightness(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Adds to the value of hue, saturation and value."""
    added = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    value = images.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + added, 1)
    # With hue and saturation kept, the channels keep their ratios; black becomes grey.
    return np.where(value > 0, images / np.where(value > 0, value, 1), 1) * brighter


@register("extra", random=False, colour=True)
def saturate(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Changes the saturation of hue, saturation and value: less of it at severities 1 and 2, then more.

    Where there is no colour the hue counts as red, as in CIFAR-10-C, so grey turns reddish at severities 4 and 5.
    """
    factor, added = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    value = images.max(axis=-1, keepdims=True)
    missing = value - images
    depth = missing.max(axis=-1, keepdims=True)
    saturation = depth / np.where(value > 0, value, 1)
    changed = np.clip(factor * saturation + added, 0, 1)
    red = np.array([0, 1, 1], np.float32)
    return value * (1 - changed * np.where(depth > 0, missing / np.where(depth > 0, depth, 1), red))


@register("digital", random=False)
def jpeg_compression(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Stores the image as a JPEG and reads it back."""
    quality = (80, 65, 58, 50, 40)[severity - 1]
    read = np.empty_like(images)
    for index, picture in enumerate(pictures(images)):
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        read[index] = as_floats(Image.open(file))
    return read


@register("digital", random=False)
def pixelate(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Makes the image smaller and large again, with a box filter."""
    factor = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    resized = np.empty_like(images)
    for index, picture in enumerate(pictures(images)):
        fewer = (max(1, int(picture.width * factor)), max(1, int(picture.height * factor)))
        small = picture.resize(fewer, Image.Resampling.BOX)
        resized[index] = as_floats(small.resize(picture.size, Image.Resampling.BOX))
    return resized


def pictures(images: np.ndarray) -> list[Image.Image]:
    """Float images as Pillow's."""
    levels = np.rint(images * 255).astype(np.uint8)
    return [Image.fromarray(one[..., 0] if one.shape[-1] == 1 else one) for one in levels]


def as_floats(picture: Image.Image) -> np.ndarray:
    """A Pillow image as float32 H×W×C in [0, 1]."""
    levels = np.asarray(picture, np.float32) / np.float32(255)
    return levels[..., None] if levels.ndim == 2 else levels


@register("digital")
def elastic_transform(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Moves three points of the image at random, then every pixel by smoothed noise.

    Not monotone in its parameters: the affine part shrinks from one severity to the next as the local part grows.
    """
    local, smoothness, affine = (
        *((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06)),
        *((0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    )[severity - 1]
    count, height, width = images.shape[:3]
    side = min(height, width)
    rows, columns = grid(images)

    middle = np.array([width // 2, height // 2])
    corner = max(1, side // 3)
    points = middle + np.array([[corner, corner], [corner, -corner], [-corner, -corner]])
    moved = points + random.uniform((3, 2), -affine * side, affine * side).astype(np.float64)
    # The affine map from where the points went to where they were: three points determine it.
    homogeneous = np.concatenate([moved, np.ones((count, 3, 1))], axis=2)
    # A triangle squeezed into a line has no map back; the pseudoinverse keeps it finite.
    back = (np.linalg.pinv(homogeneous) @ points).astype(np.float32).reshape(count, 3, 2, 1, 1)
    x, y = (columns * back[:, 0, axis] + rows * back[:, 1, axis] + back[:, 2, axis] for axis in (0, 1))
    turned = sample(images, y, x, "mirror")
    if local == 0:
        return turned

    shifts = random.uniform((2, height, width), -1, 1)
    across, down = (
        local * side * gaussian(shifts[:, axis], smoothness * side, mode="reflect", truncate=3.0) for axis in (0, 1)
    )
    return sample(turned, rows + down, columns + across, "reflect")
