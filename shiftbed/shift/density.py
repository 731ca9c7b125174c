"""Gaussian kernel densities with Scott's bandwidth, in log space, as blocked matrix products."""

import math
from dataclasses import dataclass

import numpy as np
import torch

BLOCK = 2**18  # pairs whose exponents are held at once: they stay in a core's cache
GPU_BLOCK = 2**27
SMALLEST = 1e-250  # a sum of kernels below this may have lost digits to underflow
RIDGE = 1e-6


@dataclass(frozen=True)
class KernelDensity:
    """A Gaussian kernel on every example; the kernel covariance is the sample covariance × n^(−2/(d+4)).

    Attributes:
        whitened: The examples in coordinates in which the kernel is a standard normal, n×d.
        root: The Cholesky factor of the kernel covariance.
        log_constant: Of the normal density and of 1/n.
        centre: The mean of the examples, which is taken out before anything is squared.
    """

    whitened: torch.Tensor
    root: torch.Tensor
    log_constant: float
    centre: torch.Tensor

    @classmethod
    def of(cls, examples: np.ndarray | torch.Tensor, device: str = "cpu") -> "KernelDensity | None":
        """The density of examples n×d; None where they are too few or do not vary at all.

        A covariance that is singular gets a ridge of a millionth of its mean variance.
        """
        values = torch.as_tensor(examples, dtype=torch.float64).to(device)
        n, d = values.shape
        centre = values.mean(0)
        if n <= d:
            return None
        covariance = (values - centre).T @ (values - centre) / (n - 1) * n ** (-2 / (d + 4))
        spread = float(covariance.trace()) / d
        if spread <= 1e-20 * float(values.abs().max()) ** 2:  # what rounding leaves of a constant
            return None
        root, failed = torch.linalg.cholesky_ex(covariance)
        if failed or float(root.diagonal().square().min()) < 1e-12 * spread:
            root = torch.linalg.cholesky(covariance + RIDGE * spread * torch.eye(d, dtype=torch.float64, device=device))
        log_constant = -0.5 * d * math.log(2 * math.pi) - float(root.diagonal().log().sum()) - math.log(n)
        return cls(_whitened(values - centre, root), root, log_constant, centre)

    def log_density(self, points: torch.Tensor) -> torch.Tensor:
        """The log density at points m×d: −½ of all squared distances in one product, exponentiated in place."""
        a = _whitened(points.to(self.centre) - self.centre, self.root)
        b = self.whitened
        # −½|a − b|² = [a, −½|a|², 1] · [b, 1, −½|b|²]: the product leaves nothing to add.
        left = torch.cat([a, -0.5 * a.square().sum(1, keepdim=True), torch.ones_like(a[:, :1])], 1)
        right = torch.cat([b, torch.ones_like(b[:, :1]), -0.5 * b.square().sum(1, keepdim=True)], 1).T.contiguous()
        rows = max(1, (BLOCK if a.device.type == "cpu" else GPU_BLOCK) // len(b))
        exponents = torch.empty((min(rows, len(a)), len(b)), dtype=a.dtype, device=a.device)
        sums = torch.empty(len(a), dtype=a.dtype, device=a.device)
        for start in range(0, len(a), rows):
            part = left[start : start + rows]
            block = torch.mm(part, right, out=exponents[: len(part)])
            torch.sum(block.exp_(), 1, out=sums[start : start + rows])
        logs = sums.log()
        for far in torch.nonzero(sums < SMALLEST).flatten().split(rows):  # from every example
            apart = torch.cdist(a[far], b, compute_mode="donot_use_mm_for_euclid_dist")
            logs[far] = torch.logsumexp(apart.square_().mul_(-0.5), 1)
        return logs + self.log_constant

    def draw(self, count: int, seed: int) -> torch.Tensor:
        """Points drawn from the density: an example each, and a draw of its kernel."""
        random = np.random.default_rng(seed)
        n, d = self.whitened.shape
        noise = torch.from_numpy(random.standard_normal((count, d))).to(self.centre)
        chosen = torch.from_numpy(random.integers(n, size=count)).to(self.centre.device)
        return (self.whitened[chosen] + noise) @ self.root.T + self.centre


def _whitened(centred: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve_triangular(root, centred.T, upper=False).T.contiguous()
