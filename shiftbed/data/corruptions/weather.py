"""The weather of CIFAR-10-C and its spatter (Hendrycks and Dietterich 2019), regenerated."""

from functools import lru_cache

import numpy as np
import scipy  # its parts load when they are first used

from shiftbed.data.corruptions.base import Draws, register
from shiftbed.data.corruptions.pixels import (
    coarse_shape,
    correlate,
    gaussian,
    luminance,
    motion_blur_along,
    per_image,
    resize,
    scale_of,
    zoom_matrix,
)

FARTHEST = 20  # distances from a drop's edge are cut off here
LARGEST_DRAWN = 96  # frost for larger images is enlarged: drawing it takes seconds
FAR_APART = 1e6  # pixels between images that are measured together


@register("weather")
def snow(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Whitens the image and lets blurred flakes fall over it."""
    mean, std, zoom, threshold, radius, sigma, mix = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    scale = scale_of(images)
    shape = coarse_shape(images)
    flakes = mean + std * random.normal(shape)
    flakes = zoom_matrix(shape[0], zoom) @ flakes @ zoom_matrix(shape[1], zoom).T
    flakes = np.clip(resize(flakes, *images.shape[1:3]), 0, 1)
    flakes = np.where(flakes < threshold, 0, flakes)
    flakes = motion_blur_along(flakes, radius * scale, sigma * scale, random.uniform((), -135, -45))[..., None]
    whitened = mix * images + (1 - mix) * np.maximum(images, luminance(images) * 1.5 + 0.5)
    return whitened + flakes + flakes[:, ::-1, ::-1]


@register("weather", colour=True)
def frost(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Adds a random part of a frosted window.

    Regenerated: CIFAR-10-C takes its frost from photographs; here it is the drawn pattern of `frosted_window`.
    """
    image_weight, frost_weight = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    height, width = images.shape[1:3]
    window = frosted_window(max(height, width))
    corners = random.uniform((2,)) * (len(window) - np.array([height, width]) + 1)
    frozen = np.stack([window[row : row + height, column : column + width] for row, column in corners.astype(int)])
    return image_weight * images + frost_weight * frozen


@lru_cache(maxsize=4)
def frosted_window(side: int) -> np.ndarray:
    """A window of frost crystals, six images wide, always the same: float32 RGB in [0, 1].

    Crystals of three sizes lie over each other; each is a cell around a random point, filled with needles of one
    direction and brighter towards its edge.
    """
    generator = np.random.Generator(np.random.Philox(key=1))
    wanted, side = 6 * side, min(side, LARGEST_DRAWN)
    size = 6 * side
    pixels = np.moveaxis(np.mgrid[:size, :size], 0, -1).reshape(-1, 2) / side
    light = np.zeros(len(pixels))
    for crystals_a_side, weight in ((3, 0.45), (7, 0.35), (15, 0.2)):
        seeds = generator.uniform(-0.2, 6.2, (int((crystals_a_side * 6.4 / 2) ** 2), 2))
        angles = generator.uniform(0, np.pi, len(seeds))
        brightness = generator.beta(0.8, 1.0, len(seeds))
        (nearest, second), owners = (found.T for found in scipy.spatial.cKDTree(seeds).query(pixels, k=2))
        owner = owners[0]
        offset = pixels - seeds[owner]
        along, across = np.cos(angles[owner]), np.sin(angles[owner])
        # Feathers: needles leave the crystal's axis to both sides at a slant.
        on_axis, off_axis = offset[:, 0] * along + offset[:, 1] * across, offset[:, 1] * along - offset[:, 0] * across
        needles = np.abs(np.sin(np.pi * 2.5 * crystals_a_side * (on_axis + 0.6 * np.abs(off_axis))))
        edge = np.exp(-((second - nearest) * crystals_a_side / 0.15))
        light += weight * (0.55 * brightness[owner] + 0.45 * needles * brightness[owner] + 0.5 * edge)
    clouds = scipy.ndimage.gaussian_filter(generator.normal(size=(1, 48, 48)), (0, 4, 4), mode="wrap")
    clouds = np.clip(1 + 0.35 * (clouds - clouds.mean()) / clouds.std(), 0.2, 1.8)
    light = scipy.ndimage.gaussian_filter(light.reshape(size, size), 0.02 * side) * resize(clouds, size, size)
    return np.clip(resize(light, wanted, wanted)[0, ..., None] * np.array([1.05, 1.2, 1.3]), 0, 1).astype(np.float32)


@register("weather")
def fog(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Adds a cloud and scales back to the image's own brightest value."""
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    height, width = images.shape[1:3]
    cloud = plasma(random, max(height, width), decay)[:, :height, :width, None]
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    return (images + amount * cloud) * brightest / (brightest + amount)


def plasma(random: Draws, side: int, decay: float) -> np.ndarray:
    """Clouds by the diamond-square algorithm, each between 0 and 1: N×S×S, S the next power of two."""
    size = max(2, 1 << (side - 1).bit_length())
    drawn = random.uniform((size, size), -1, 1)
    clouds = np.zeros_like(drawn)
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2
        # The original multiplies by the wobble twice, so roughness falls with the square of the decay.
        noise = wobble**2 * drawn
        corners = clouds[:, ::step, ::step]
        squares = corners + np.roll(corners, -1, axis=1)
        squares = squares + np.roll(squares, -1, axis=2)
        clouds[:, half::step, half::step] = squares / 4 + noise[:, half::step, half::step]
        centres = clouds[:, half::step, half::step]
        beside = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        clouds[:, ::step, half::step] = beside / 4 + noise[:, ::step, half::step]
        below = centres + np.roll(centres, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        clouds[:, half::step, ::step] = below / 4 + noise[:, half::step, ::step]
        step, wobble = half, wobble / decay
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    return clouds / clouds.max(axis=(1, 2), keepdims=True)


@register("extra", colour=True)
def spatter(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Splashes water (severities 1 to 3) or mud (4 and 5) on the lens.

    Not monotone: mud covers what water only brightens. Regenerated: the edges and distances of the water drops are
    worked out here, not by OpenCV.
    """
    mean, std, smoothness, threshold, strength, mud = (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    )[severity - 1]
    # Blurring over more pixels would leave no drop above the threshold: the noise is drawn in CIFAR's pixels instead.
    liquid = gaussian(mean + std * random.normal(coarse_shape(images)), smoothness)
    liquid = resize(liquid, *images.shape[1:3])
    liquid = np.where(liquid < threshold, 0, liquid)
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float32), strength * scale_of(images))
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return images * (1 - cover) + cover * np.array([63, 42, 20], np.float32) / 255
    drops = np.clip(liquid, 0, 1) * drop_light(np.floor(np.clip(liquid, 0, 1) * 255))
    most = drops.max(axis=(1, 2), keepdims=True)
    shine = strength * drops / np.where(most > 0, most, 1)
    return images + shine[..., None] * np.array([175, 238, 238], np.float32) / 255


def drop_light(levels: np.ndarray) -> np.ndarray:
    """How light falls on drops: an emboss of the equalised distance from their edges, in [0, 255].

    Args:
        levels: How thick the liquid is, whole numbers N×H×W.
    """
    box = np.full((3, 3), 1 / 9)
    # A first sheet that is all edge keeps distances finite where an image has no drop.
    edges = np.concatenate([np.ones_like(levels[:1], bool), drop_edges(levels)])
    distances = scipy.ndimage.distance_transform_edt(~edges, sampling=(FAR_APART, 1, 1))[1:]
    blurred = correlate(np.minimum(distances, FARTHEST).astype(np.float32), box)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    return correlate(np.clip(correlate(equalised(np.floor(blurred + 1e-4)), emboss), 0, 255), box)


def drop_edges(levels: np.ndarray) -> np.ndarray:
    """Canny's edges with thresholds 50 and 150: the ridges of the gradient that reach the upper one somewhere."""
    slope = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    across, down = (scipy.ndimage.correlate(levels, kernel[None], mode="nearest") for kernel in (slope, slope.T))
    size = np.abs(across) + np.abs(down)
    around = np.pad(size, [(0, 0), (1, 1), (1, 1)])
    height, width = levels.shape[1:]

    def beside(row: int, column: int) -> np.ndarray:
        return around[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    flat, steep = np.abs(down) < 0.4142 * np.abs(across), np.abs(down) > 2.4142 * np.abs(across)
    same_sign = across * down >= 0
    before = np.select([flat, steep, same_sign], [beside(0, -1), beside(-1, 0), beside(-1, -1)], beside(-1, 1))
    after = np.select([flat, steep, same_sign], [beside(0, 1), beside(1, 0), beside(1, 1)], beside(1, -1))
    ridges = (size > before) & np.where(flat | steep, size >= after, size > after)
    touching = np.ones((1, 3, 3), bool)
    return scipy.ndimage.binary_propagation(ridges & (size > 150), touching, mask=ridges & (size > 50))


def equalised(levels: np.ndarray) -> np.ndarray:
    """Histogram equalisation of whole numbers up to `FARTHEST`, each image by itself, to [0, 255]."""
    count, total = len(levels), levels[0].size
    at = levels.astype(np.int64) + per_image(np.arange(count) * (FARTHEST + 1))
    histogram = np.bincount(at.ravel(), minlength=count * (FARTHEST + 1)).reshape(count, -1)
    sums = histogram.cumsum(axis=1)
    # The darkest level there is becomes 0.
    darkest = np.where(sums > 0, sums, total).min(axis=1, keepdims=True)
    table = np.rint((sums - darkest) * 255 / np.maximum(1, total - darkest)).clip(0)
    return table.ravel()[at].astype(np.float32)
