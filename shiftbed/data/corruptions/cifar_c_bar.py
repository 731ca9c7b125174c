"""The ten corruptions of CIFAR-10-C-bar (Mintun et al. 2021), regenerated.

Formulas and severities are those of the authors' program; `level` is its severity, of which a parameter takes a tenth
times its largest value.
"""

from functools import lru_cache

import numpy as np
import scipy  # its parts load when they are first used

from shiftbed.data.corruptions.base import Draws, register
from shiftbed.data.corruptions.pixels import (
    fold,
    grid,
    per_image,
    power_noise,
    sample,
    scale_of,
    whole_levels,
    zoom_matrix,
)

GREY = 128 / 255
MOST_RAYS = 200
TURNS = 21


@register("bar")
def blue_noise_sample(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Blackens the pixels where blue noise is low."""
    level = (0.7, 1.4, 2.1, 3.5, 4.2)[severity - 1]
    noise = power_noise(random.uniform(images.shape[1:3]), 1)
    return images * (noise > 0.3 * level - 2.5)[..., None]


@register("bar")
def brownish_noise(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Adds noise of low frequencies, each channel its own."""
    level = (2.5, 4.0, 5.5, 6.5, 7.0)[severity - 1]
    noise = power_noise(random.uniform((images.shape[3], *images.shape[1:3])), -2)
    return images + level * 6.4 / 255 * np.moveaxis(noise, 1, -1)


@register("bar")
def checkerboard_cutout(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Covers some of the black fields of a turned checkerboard with grey."""
    share = (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]
    angle = per_image(random.uniform((), 0, 2 * np.pi))
    field = np.maximum(per_image(random.uniform((), 0.1, 0.25)) * min(images.shape[1:3]), 1)
    covered = random.uniform((32, 32)) < share
    rows, columns = grid(images)
    down = np.floor((np.cos(angle) * rows + np.sin(angle) * columns) / field).astype(np.int64)
    across = np.floor((np.cos(angle) * columns - np.sin(angle) * rows) / field).astype(np.int64)
    hidden = ((down + across) % 2 == 0) & covered[per_image(np.arange(len(images))), down % 32, across % 32]
    return np.where(hidden[..., None], np.float32(GREY), images)


@register("bar")
def inverse_sparkles(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Whitens the image outside a star with many rays."""
    level = (1.0, 1.5, 2.5, 4.5, 5.0)[severity - 1]
    side = min(images.shape[1:3])
    centre = random.uniform((2,), 0.25, 0.75) * np.array(images.shape[1:3])
    kept = star(images, centre, 0.25 * side * (1 + 0.25 * random.normal((MOST_RAYS,))), rays(random), 0.13 * level)
    return 1 + kept * (images - 1)


@register("bar")
def sparkles(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Draws five white stars with many rays."""
    level = (0.7, 3.5, 5.6, 6.3, 7.0)[severity - 1]
    scale = scale_of(images)
    radius = 0.01 * level * min(images.shape[1:3])
    for _ in range(5):
        centre = random.uniform((2,)) * np.array(images.shape[1:3])
        lengths = np.maximum(radius * (1 + 0.25 * random.normal((MOST_RAYS,))), scale)
        images = images + star(images, centre, lengths, rays(random), 1.0) * (1 - images)
    return images


def rays(random: Draws) -> np.ndarray:
    """How many rays a star has, one number an image."""
    return random.integers((), 50, MOST_RAYS)


def star(images: np.ndarray, centre: np.ndarray, lengths: np.ndarray, rays: np.ndarray, sharpness: float) -> np.ndarray:
    """The light of a star, N×H×W×1 in [0, 1].

    Args:
        images: For their form.
        centre: Row and column, N×2.
        lengths: The rays' lengths, N×`MOST_RAYS`.
        rays: How many of them are used, N.
        sharpness: How fast light falls with the square of the distance.
    """
    rows, columns = grid(images)
    down, across = rows - per_image(centre[:, 0]), columns - per_image(centre[:, 1])
    rays = per_image(rays)
    turn = ((np.arctan2(across, down) + np.pi) / (2 * np.pi)).astype(np.float32) * rays
    ray = np.floor(turn).astype(np.int64)
    between = (turn - ray).astype(np.float32)
    which = per_image(np.arange(len(images)))
    one, next_one = lengths[which, ray % rays], lengths[which, (ray + 1) % rays]
    length = one + between * (next_one - one)
    light = ((length**2 / (down**2 + across**2 + 1e-4)) ** sharpness).astype(np.float32)
    return np.clip((1 - (between - 0.5) ** 2) * light, 0, 1)[..., None]


@register("bar")
def pinch_and_twirl(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Pinches and twirls disks that tile the image, each to a random side."""
    level = (5.5, 6.0, 6.5, 8.5, 10.0)[severity - 1]
    height, width = images.shape[1:3]
    side = min(height, width)
    tile = max(1, side // (5 if side >= 224 else 3))
    radius = tile / 2
    signs = 2 * random.integers((height // tile + 1, width // tile + 1), 0, 2) - 1
    rows, columns = grid(images)
    tile_row, tile_column = (rows // tile).astype(np.int64), (columns // tile).astype(np.int64)
    centre_row, centre_column = tile_row * tile + radius, tile_column * tile + radius
    down, across = rows - centre_row, columns - centre_column
    distance = np.hypot(down, across) / radius
    # Pixels past the last whole tile stay where they are.
    inside = (distance <= 1) & (distance > 0) & (tile_row < height // tile) & (tile_column < width // tile)
    stretch = np.sin(np.pi / 2 * np.where(inside, distance, 1)) ** -(0.04 * level + 0.1)
    angle = signs[:, tile_row, tile_column] * (level * np.pi / 20) * (1 - distance) ** 2 * inside
    from_row = centre_row + stretch * (down * np.cos(angle) - across * np.sin(angle))
    from_column = centre_column + stretch * (down * np.sin(angle) + across * np.cos(angle))
    return sample(images, from_row, from_column, "zero")


@register("bar")
def ripple(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Moves rows and columns by sine waves."""
    level = (5.5, 6.0, 6.5, 7.5, 8.0)[severity - 1]
    side = min(images.shape[1:3])
    lengths, phases = random.uniform((2,), 0.1, 0.3) * side, random.uniform((2,), 0, 2 * np.pi)
    from_row, from_column = (
        at + 0.0025 * level * side * np.sin(2 * np.pi * at / per_image(lengths[:, axis]) + per_image(phases[:, axis]))
        for axis, at in enumerate(grid(images))
    )
    return sample(images, from_row, from_column, "zero")


@register("bar", random=False)
def circular_motion_blur(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Averages the image turned to both sides, with black where nothing was."""
    degrees = (4.2, 5.4, 6.6, 7.8, 9.0)[severity - 1]
    height, width = images.shape[1:3]
    smooth = images
    for axis in (1, 2):
        smooth = scipy.ndimage.spline_filter1d(smooth, axis=axis, output=np.float32)
    pixels = np.moveaxis(smooth, 0, 2).reshape(height * width, -1)
    turned = turning_matrix(height, width, degrees) @ pixels
    return np.moveaxis(turned.reshape(height, width, len(images), -1), 2, 0)


@lru_cache(maxsize=8)
def turning_matrix(height: int, width: int, degrees: float) -> "scipy.sparse.csr_array":
    """The weighted mean of 21 turns by up to some degrees, from cubic spline coefficients to pixels."""
    rows, columns = np.mgrid[:height, :width].reshape(2, -1)
    down, across = rows - (height - 1) / 2, columns - (width - 1) / 2
    total = scipy.sparse.csr_array((height * width, height * width), dtype=np.float32)
    shares = np.linspace(-1, 1, TURNS)
    weights = np.exp(-2 * shares**2)
    for share, weight in zip(shares, weights / weights.sum(), strict=True):
        cosine, sine = np.cos(np.radians(share * degrees)), np.sin(np.radians(share * degrees))
        row = cosine * down + sine * across + (height - 1) / 2
        column = cosine * across - sine * down + (width - 1) / 2
        hair = 1e-9  # the corners of the image not turned at all are inside
        inside = (np.abs(row - (height - 1) / 2) <= (height - 1) / 2 + hair) & (
            np.abs(column - (width - 1) / 2) <= (width - 1) / 2 + hair
        )
        for row_step in range(-1, 3):
            from_row = np.floor(row).astype(np.int64) + row_step
            for column_step in range(-1, 3):
                from_column = np.floor(column).astype(np.int64) + column_step
                values = weight * inside * cubic(row - from_row) * cubic(column - from_column)
                source = fold(from_row, height, "mirror")[0] * width + fold(from_column, width, "mirror")[0]
                places = (np.arange(height * width), source)
                total += scipy.sparse.csr_array((values.astype(np.float32), places), shape=total.shape)
    return total


def cubic(distance: np.ndarray) -> np.ndarray:
    """The cubic B-spline."""
    distance = np.abs(distance)
    near = 2 / 3 - distance**2 + distance**3 / 2
    return np.where(distance < 1, near, np.maximum(2 - distance, 0) ** 3 / 6)


@register("bar")
def lines(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Draws smooth grey lines across the image, whose directions are more or less alike."""
    share = (0.05, 0.1, 0.15, 0.2, 0.25)[severity - 1]
    side = min(images.shape[1:3])
    mean_angle = random.uniform((), 0, 2 * np.pi)
    variation = random.uniform((), 0.1, 1)
    rows, columns = grid(images)
    for _ in range(max(1, int(share * side))):
        through = random.uniform((2,)) * np.array(images.shape[1:3])
        angle = per_image(mean_angle + 2 * np.pi * variation * random.uniform((), -0.5, 0.5))
        down, across = rows - per_image(through[:, 0]), columns - per_image(through[:, 1])
        off_line = np.abs(down * np.sin(angle) - across * np.cos(angle))
        on_line = np.abs(down * np.cos(angle) + across * np.sin(angle)) <= side
        cover = (np.maximum(0, 1 - off_line) * on_line).astype(np.float32)[..., None]
        images = images + cover * (np.float32(GREY) - images)
    return images


@register("bar", colour=True)
def transverse_chromatic_abberation(images: np.ndarray, severity: int, random: Draws) -> np.ndarray:
    """Enlarges two of the three channels, one twice as much as the other, and smooths all; the name is the authors'."""
    level = (1.0, 2.0, 5.0, 9.0, 10.0)[severity - 1]
    height, width = images.shape[1:3]
    order = np.argsort(random.uniform((3,)), axis=1)
    which = np.arange(len(images))
    moved = np.empty_like(images)
    for rank, zoom in enumerate((1.0, 1 + 0.025 * level, 1 + 0.05 * level)):
        channel = images[which, :, :, order[:, rank]]
        zoomed = zoom_matrix(height, zoom, 3) @ channel @ zoom_matrix(width, zoom, 3).T
        moved[which, :, :, order[:, rank]] = zoomed
    return whole_levels(moved + 0.5 / 255)  # the authors' zoom rounds
