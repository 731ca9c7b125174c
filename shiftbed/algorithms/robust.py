"""Algorithms that weight domains by how badly they do."""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import Space, log_uniform, uniform


@register(
    space=Space(groupdro_eta=log_uniform(1e-3, 1e-1, default=1e-2)),
    paper="Sagawa et al., 2020",
    needs=("domain labels",),
    capturable=True,
)
class GroupDRO(ERM):
    """Weights domains by their recent loss, with exponentiated gradient steps.

    Departures from the paper, as in DomainBed: groups are domains, and there is no adjustment for group sizes. From
    DomainBed: the weights exist from the start, one per domain, so that a checkpoint can be loaded into a new object;
    all domains go through the network in one forward, which is faster, and so share the statistics of live batch norm.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("q", torch.ones(num_domains))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The weighted risk, with weights that have already seen this step's risks."""
        risks = batches.mean(F.cross_entropy(self.network(batches.x), batches.y, reduction="none"))
        q = self.get_buffer("q") * (self.hparams["groupdro_eta"] * risks.detach()).exp()
        q = q / q.sum()
        return (q * risks).sum(), {"q": q}  # autocast would take the inner product in half precision


def density_quantile(values: torch.Tensor, quantile: float) -> torch.Tensor:
    """The quantile of a Gaussian kernel density estimate, with its exact gradient and without waiting for the device.

    The bandwidth is 1.06 standard deviations times D^(−1/5). The quantile lies between those of the first and the last
    kernel; rounds of a grid of 64 points enclose it, each as good as six bisections. One Newton step then ends the
    search, and carries the gradient: that of q = q₀ − (F(q₀) − α) / f(q₀) is the one of the implicit equation F(q) = α.
    """
    centre = values.detach().mean()  # near zero floating-point numbers are densest
    values = values - centre
    least = torch.finfo(values.dtype).eps ** 2  # of equal values the square root has no derivative
    bandwidth = 1.06 * len(values) ** -0.2 * values.var().clamp_min(least).sqrt()
    at, width = values.detach(), bandwidth.detach()

    offset = width * NormalDist().inv_cdf(quantile)
    low, high = at.amin() + offset, at.amax() + offset
    shares = torch.linspace(0, 1, 65, dtype=at.dtype, device=at.device)
    for _ in range(5):
        points = torch.lerp(low, high, shares)
        below = torch.special.ndtr((points[:, None] - at) / width).mean(1) < quantile
        low, high = points.where(below, low).amax(), points.where(~below, high).amin()

    kernels = (-0.5 * ((low - at) / width).square()).exp() / (width * (2 * torch.pi) ** 0.5)
    excess = torch.special.ndtr((low - values) / bandwidth).mean() - quantile
    return centre + low - excess / kernels.mean()


@register(
    space=Space(
        eqrm_quantile=uniform(0.5, 0.99, default=0.75),
        eqrm_burnin_iters=log_uniform(10**2.5, 10**3.5, default=2500.0),
        eqrm_lr=log_uniform(1e-7, 1e-5, default=1e-6),
    ),
    paper="Eastwood et al., 2022",
    needs=("domain labels", "two domains"),
    capturable=True,
)
class EQRM(ERM):
    """Minimises a high quantile of the domains' risks, after a burn-in on their mean.

    Departures from the paper: none known. From DomainBed: the gradient is that of the quantile, where DomainBed
    differentiates the ends of its bracket (right for two domains only); the burn-in, drawn as a real number, is
    rounded, so that its end, and with it the learning rate of the second phase, is reached; equal risks have a
    quantile; all domains go through the network in one forward, as in GroupDRO.
    """

    restart_hparam = "eqrm_burnin_iters"
    restart_lr = "eqrm_lr"

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        if not 0 < (quantile := self.hparams["eqrm_quantile"]) < 1:
            raise AlgorithmError(f"EQRM's eqrm_quantile is {quantile}; set a number above 0 and below 1.")

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The mean of the risks during the burn-in, then their quantile."""
        risks = batches.mean(F.cross_entropy(self.network(batches.x), batches.y, reduction="none"))
        if step < round(self.hparams["eqrm_burnin_iters"]):
            return risks.mean(), {}
        return density_quantile(risks, self.hparams["eqrm_quantile"]), {}
