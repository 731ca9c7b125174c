"""Measuring shift: kernel densities against scikit-learn's, their growth, and ColoredMNIST from end to end.

Run: python perf/shift.py [THREADS] [FOLDER OF MNIST'S IDX FILES]
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.neighbors import KernelDensity as ScikitKernelDensity

from shiftbed.data.mnist import coloured_study
from shiftbed.shift.density import KernelDensity
from shiftbed.shift.measure import measure_shift

SIZES = (1_000, 4_000, 16_000)
DIMENSIONS = 8
SCIKIT_POINTS = 1_000  # its time grows in proportion to the points
IMAGES = 20_000


def densities(device: str) -> None:
    """Log densities of n points under n kernels in eight dimensions, float64."""
    random = np.random.default_rng(0)
    before = 0.0
    for n in SIZES:
        density = KernelDensity.of(random.standard_normal((n, DIMENSIONS)), device)
        assert density is not None
        points = torch.from_numpy(random.standard_normal((n, DIMENSIONS))).to(device)
        ours = min(timed(lambda density=density, points=points: density.log_density(points)) for _ in range(3))
        line = f"{device}: {n:6,} points {ours:8.3f} s"
        line += f", {ours / before:4.1f} times the one before" if before else ""
        before = ours
        if device == "cpu":
            kernels = density.whitened.numpy()
            centred = (points - density.centre).T
            white = torch.linalg.solve_triangular(density.root, centred, upper=False).T.numpy()[:SCIKIT_POINTS]
            theirs = ScikitKernelDensity(bandwidth=1.0).fit(kernels)
            scikit = timed(lambda theirs=theirs, white=white: theirs.score_samples(white)) * n / len(white)
            exact = [logsumexp(-0.5 * ((row - kernels) ** 2).sum(1)) + density.log_constant for row in white[:200]]
            error = np.abs(density.log_density(points[:200]).numpy() - exact).max()
            line += f"; scikit-learn {scikit:8.3f} s, {scikit / ours:.0f} times; off by {error:.0e}"
        print(line, flush=True)


def end_to_end(device: str, folder: Path) -> None:
    """Two domains of ColoredMNIST, 20,000 images each, default settings with the baseline."""
    data = coloured_study((0.1, 0.9), folder=folder)
    started = time.perf_counter()
    made = measure_shift(data, most=IMAGES, device=device)
    spent = time.perf_counter() - started
    print(f"{device}: ColoredMNIST, 2 × {IMAGES:,} images: {spent:.1f} s ({made.diversity}; {made.correlation})")


def timed(work) -> float:
    """Seconds that a work takes."""
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    """Prints all of it, on the CPU and on a GPU if there is one."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        densities(device)
        if len(sys.argv) > 2:
            end_to_end(device, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
