"""Diversity and correlation shift as integrals over densities: OoD-Bench's two formulas, by importance sampling.

Points are drawn from a proposal that covers both sides, and every term is formed from logs: no ratio of densities is
ever taken outside the exponent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

LogDensity = Callable[[torch.Tensor], torch.Tensor]
Formula = Literal["paper", "later"]


@dataclass(frozen=True)
class Thresholds:
    """Densities below which a side counts as absent (diversity), and above which as present (correlation)."""

    diversity: float = 1e-12
    correlation: float = 5e-4


@dataclass(frozen=True)
class Evaluated:
    """All log densities at the drawn points: what both shifts need, whatever the thresholds.

    Attributes:
        p: Of the one side.
        q: Of the other.
        p_given: Of the one side within each class, classes × points.
        q_given: Of the other.
        proposal: Of what the points were drawn from.
        priors: The share of every class.
    """

    p: torch.Tensor
    q: torch.Tensor
    p_given: torch.Tensor
    q_given: torch.Tensor
    proposal: torch.Tensor
    priors: torch.Tensor


def evaluate(
    points: torch.Tensor,
    p: LogDensity,
    q: LogDensity,
    p_given: Sequence[LogDensity],
    q_given: Sequence[LogDensity],
    proposal: LogDensity,
    priors: Sequence[float],
) -> Evaluated:
    """The log densities at points that were drawn from the proposal."""
    none = points.new_empty(0, len(points))
    return Evaluated(
        p(points),
        q(points),
        torch.stack([one(points) for one in p_given]) if p_given else none,
        torch.stack([one(points) for one in q_given]) if q_given else none,
        proposal(points),
        torch.tensor(priors, dtype=torch.float64, device=points.device),
    )


def integrate(at: Evaluated, thresholds: Thresholds, formula: Formula) -> tuple[float, float]:
    """Diversity and correlation shift.

    Args:
        at: The log densities at the drawn points.
        thresholds: Where a side is absent, and where both are present.
        formula: `paper` integrates absolute differences, as the CVPR paper does; `later` squared differences of
            square roots, as the authors' repository has done since.
    """
    log_divide = torch.tensor([thresholds.diversity, thresholds.correlation], dtype=torch.float64).log().tolist()
    alone = torch.minimum(at.p, at.q) < log_divide[0]
    shared = torch.minimum(at.p, at.q) > log_divide[1]
    lean = (at.q - at.p) / 2
    diversity = _difference(at.p - at.proposal, at.q - at.proposal, formula)
    correlation = _difference(at.p_given + lean - at.proposal, at.q_given - lean - at.proposal, formula)
    of_class = torch.where(shared, correlation, 0).mean(1) / 2
    return float(torch.where(alone, diversity, 0).mean() / 2), float(of_class @ at.priors)


def _difference(log_one: torch.Tensor, log_other: torch.Tensor, formula: Formula) -> torch.Tensor:
    if formula == "paper":
        return (log_one.exp() - log_other.exp()).abs()
    return ((log_one / 2).exp() - (log_other / 2).exp()).square()


def calibrate(without_shift: Sequence[Evaluated], start: Thresholds) -> Thresholds:
    """Thresholds at which pairs without shift show next to none: both averages between 0.005 and 0.01.

    Both are bisected together, at most twenty times, with the later formulas whichever are wanted, as the reference
    does. Densities are not computed again.
    """
    diversity, correlation = [0.0, 1e-6], [0.0, 1.0]
    tried = start
    for _ in range(20):
        values = [integrate(at, tried, "later") for at in without_shift]
        found = [sum(column) / len(values) for column in zip(*values, strict=True)]
        if all(0.005 <= value <= 0.01 for value in found):
            break
        # More diversity is seen above a higher threshold, less correlation.
        if found[0] < 0.005:
            diversity[0] = tried.diversity
        elif found[0] > 0.01:
            diversity[1] = tried.diversity
        if found[1] > 0.01:
            correlation[0] = tried.correlation
        elif found[1] < 0.005:
            correlation[1] = tried.correlation
        tried = Thresholds(
            tried.diversity if 0.005 <= found[0] <= 0.01 else sum(diversity) / 2,
            tried.correlation if 0.005 <= found[1] <= 0.01 else sum(correlation) / 2,
        )
    return tried
