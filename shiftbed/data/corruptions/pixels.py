"""What several corruptions share: lengths, resampling, blurs and noise fields, for many images at once."""

from functools import lru_cache

import numpy as np
import scipy  # its parts load when they are first used

from shiftbed.data.corruptions.base import ALMOST

CIFAR_SIDE = 32
NEGLIGIBLE = 1e-5  # far below a grey level


def scale_of(images: np.ndarray) -> float:
    """How many of these pixels one CIFAR pixel is wide: 1 for images whose shorter side is 32."""
    return min(images.shape[1:3]) / CIFAR_SIDE


def grid(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of every pixel, float32 H×W each."""
    rows, columns = np.mgrid[: images.shape[1], : images.shape[2]].astype(np.float32)
    return rows, columns


def per_image(values: np.ndarray) -> np.ndarray:
    """N numbers, ready to meet N×H×W."""
    return values.reshape(-1, 1, 1)


def whole_levels(images: np.ndarray) -> np.ndarray:
    """Cut off to whole grey levels, where the original stores an intermediate image."""
    return np.floor(images * 255 + ALMOST) / 255


def luminance(images: np.ndarray) -> np.ndarray:
    """Grey values, N×H×W×1."""
    if images.shape[-1] == 1:
        return images
    return (images @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]


def gaussian(images: np.ndarray, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Gaussian blur over axes 1 and 2."""
    return scipy.ndimage.gaussian_filter(images, sigma, mode=mode, truncate=truncate, axes=(1, 2))


def correlate(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Correlates each channel (N×H×W×C or N×H×W) with one odd-sized kernel; borders mirror the second pixel."""
    height, width = images.shape[1:3]
    up, left = kernel.shape[0] // 2, kernel.shape[1] // 2
    padding = [(0, 0), (up, up), (left, left)] + [(0, 0)] * (images.ndim - 3)
    padded = np.pad(images, padding, mode="reflect")
    total = np.zeros_like(images)
    # Adding shifted copies is many times faster than ndimage.correlate for a few weights.
    for row, column in zip(*np.nonzero(kernel), strict=True):
        total += np.float32(kernel[row, column]) * padded[:, row : row + height, column : column + width]
    return total


def motion_blur_along(images: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """ImageMagick's motion blur: half a Gaussian along a line of whole-pixel steps, one angle an image.

    Args:
        images: N×H×W or N×H×W×C.
        radius: The line has 2⌈radius⌉ + 1 pixels.
        sigma: Standard deviation of the Gaussian along the line.
        degrees: N angles.
    """
    height, width = images.shape[1:3]
    reach = 2 * int(np.ceil(radius)) + 1
    steps = np.arange(reach)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    kept = weights > NEGLIGIBLE
    steps, weights = steps[kept], (weights[kept] / weights[kept].sum()).astype(np.float32)
    pad = int(steps[-1])
    padding = [(0, 0), (pad, pad), (pad, pad)] + [(0, 0)] * (images.ndim - 3)
    padded = np.pad(images, padding, mode="edge")
    angles = np.radians(degrees.reshape(-1, 1).astype(np.float64))
    down = pad + np.ceil(steps * np.sin(angles) - 0.5).astype(int)
    right = pad + np.ceil(steps * np.cos(angles) - 0.5).astype(int)
    blurred = np.zeros_like(images)
    for image, source, rows, columns in zip(blurred, padded, down, right, strict=True):
        for weight, row, column in zip(weights, rows, columns, strict=True):
            image += weight * source[row : row + height, column : column + width]
    return blurred


@lru_cache(maxsize=256)
def zoom_matrix(size: int, zoom: float, order: int = 1) -> np.ndarray:
    """The matrix that zooms `size` pixels around their middle as CIFAR-10-C does: cut out, enlarge, trim.

    Order 1 cuts before it enlarges (CIFAR-10-C); order 3 only trims and takes the pixels for spline coefficients
    (CIFAR-10-C-bar's chromatic aberration), which smooths.
    """
    cut = int(np.ceil(size / zoom)) if order == 1 else size
    first = (size - cut) // 2
    matrix = np.zeros((round(cut * zoom), size))
    for column, unit in enumerate(np.eye(cut)):
        matrix[:, first + column] = scipy.ndimage.zoom(unit, zoom, order=order, prefilter=False)
    trim = (len(matrix) - size) // 2
    return matrix[trim : trim + size].astype(np.float32)


@lru_cache(maxsize=32)
def resize_matrix(old: int, new: int) -> np.ndarray:
    """The matrix that resizes `old` pixels to `new` by linear interpolation, pixel centres in place."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old))).astype(np.float32)


def resize(fields: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes fields N×h×w by linear interpolation."""
    if fields.shape[1:] == (height, width):
        return fields
    return resize_matrix(fields.shape[1], height) @ fields @ resize_matrix(fields.shape[2], width).T


def coarse_shape(images: np.ndarray) -> tuple[int, int]:
    """Height and width in CIFAR pixels: where noise is drawn whose grains have to grow with the image."""
    scale = scale_of(images)
    return round(images.shape[1] / scale), round(images.shape[2] / scale)


def sample(images: np.ndarray, rows: np.ndarray, columns: np.ndarray, border: str) -> np.ndarray:
    """Images at fractional places, by bilinear interpolation.

    Args:
        images: N×H×W×C.
        rows: Where to look, N×H×W.
        columns: Where to look, N×H×W.
        border: What lies outside: `zero`, `mirror` (around the outermost pixels) or `reflect` (around their edges).
    """
    count, height, width, channels = images.shape
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top).astype(np.float32), (columns - left).astype(np.float32)
    flat = images.reshape(-1, channels)
    starts = per_image(np.arange(count)) * (height * width)
    total = np.zeros_like(images)
    for step_down, row_weight in ((0, 1 - down), (1, down)):
        row, row_inside = fold(top.astype(np.int64) + step_down, height, border)
        for step_right, column_weight in ((0, 1 - right), (1, right)):
            column, column_inside = fold(left.astype(np.int64) + step_right, width, border)
            weight = row_weight * column_weight * (row_inside & column_inside)
            total += weight[..., None] * np.take(flat, starts + row * width + column, axis=0)
    return total


def fold(index: np.ndarray, size: int, border: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices brought inside [0, size), and whether what lies there counts."""
    if border == "zero":
        return np.clip(index, 0, size - 1), (index >= 0) & (index < size)
    period = max(1, 2 * size - 2) if border == "mirror" else 2 * size
    index = index % period
    return np.where(index < size, index, (period if border == "mirror" else period - 1) - index), np.ones((), bool)


def power_noise(phases: np.ndarray, power: float) -> np.ndarray:
    """Noise of standard deviation 1 whose amplitudes follow the frequency: |f| for 1, 1 / (|f|² + 1) for −2.

    Args:
        phases: Uniform numbers in [0, 1), …×H×W.
        power: 1 (blue) or −2 (brownish).
    """
    height, width = phases.shape[-2:]
    down, across = scipy.fft.fftfreq(height, 1 / height), scipy.fft.fftfreq(width, 1 / width)
    squared = down[:, None] ** 2 + across**2
    amplitudes = (np.sqrt(squared) if power == 1 else 1 / (squared + 1)).astype(np.float32)
    noise = scipy.fft.ifft2(amplitudes * np.exp(np.complex64(2j * np.pi) * phases)).real
    # Only an image of one pixel has no spread.
    return noise / np.maximum(noise.std(axis=(-2, -1), keepdims=True), 1e-12)
