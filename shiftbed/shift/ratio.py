"""Diversity and correlation shift without densities: from networks that tell the two sides apart.

Let f(z) be the log ratio of the densities q(z)/p(z), and r(z, y) that of the posteriors q(y|z)/p(y|z). With s = √(q/p)

    D_cor = ½ ∫ √(pq) Σ_y |p(y|z) − q(y|z)| dz = ½ { E_p[σ s] − E_q[σ/s] },   σ = −sign r,
    D_div = ½ ∫_S |p − q| dz = ½ { p(f < −L) − q(f < −L) + q(f > L) − p(f > L) }.

One network learns both f and r on four fifths of the examples, and the expectations are means over the last fifth. The
sign in place of the absolute value is what makes this honest: the examples that are counted had no part in it, so noise
in r averages to zero, where the mean of |noise| would not, and the means have standard errors. A wrong sign only lowers
the estimate. Where f is not learned, s stays near 1 and the estimate is that of the features which were learned. L is
the log of a likelihood ratio: it means the same in every dimension.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.networks import Featurizer
from shiftbed.shift.intervals import few_groups
from shiftbed.shift.matching import FOLDS, folds
from shiftbed.shift.samples import Sample
from shiftbed.shift.together import as_one, counted, give_back, normalises_batches
from shiftbed.training.streams import seeded

DECAY = 1e-2
DELTA = 0.01  # the share of the other side below which an input is as good as certain
TEMPERATURES = torch.linspace(0, 1.5, 61)

LabelledInputs = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Training:
    """How long and how fast a network learns: enough to see a shift, too little to learn examples by heart."""

    rate: float
    batch: int  # of each side
    epochs: int
    fewest_steps: int


TRAINING = {"mlp": Training(1e-2, 64, 4, 400), "mlp-390": Training(1e-3, 128, 4, 150)}
FINE_TUNING = Training(1e-4, 32, 4, 150)  # of backbones that have learned before


class Ratios(nn.Module):
    """Log ratios of the two sides: f of the input, and r of every label given the input."""

    def __init__(self, shape: tuple[int, ...], num_classes: int, network: dict[str, Any]) -> None:
        super().__init__()
        self.featurizer = Featurizer(shape, network)
        self.head = nn.Linear(self.featurizer.n_outputs, 1 + num_classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two: f(x) and r(x, y)."""
        outputs = self.head(F.relu(self.featurizer(x)))
        return outputs[:, 0], outputs[:, 1:].gather(1, y[:, None]).squeeze(1)


@dataclass(frozen=True)
class LogRatios:
    """What networks say of examples of one side that they have not seen: f and r, passes × examples.

    NaN where an example was not held out.
    """

    f: np.ndarray
    r: np.ndarray


def held_out_ratios(
    p: Sample,
    q: Sample,
    network: dict[str, Any],
    runs: int = FOLDS,
    seed: int = 0,
    device: str = "cpu",
    on_run: Callable[[], None] = lambda: None,
) -> tuple[LogRatios, LogRatios]:
    """Trains one network a run, each with another fifth of the examples held out, and reads it there.

    Args:
        p: One side, of equal label counts as the other.
        q: The other side.
        network: What `Featurizer` takes.
        runs: After five of them the examples are divided anew.
        seed: Decides divisions and weights.
        device: Where networks are trained.
        on_run: Called after each; where they are trained side by side, after its share of the work.
    """
    sides = [(torch.from_numpy(one.inputs).float().to(device), _labels(one).to(device)) for one in (p, q)]
    passes = math.ceil(runs / FOLDS)
    read = [LogRatios(*np.full((2, passes, len(side)), np.nan)) for side in (p, q)]
    for number in range(passes):
        held_out = folds(p, q, seed + number)
        in_pass = range(min(FOLDS, runs - number * FOLDS))
        learned = [[np.flatnonzero(of_side != fold) for of_side in held_out] for fold in in_pass]
        for fold, model in enumerate(train_ratios(sides, learned, network, 1000 * seed + number, on_run)):
            unseen = [np.flatnonzero(of_side == fold) for of_side in held_out]
            f, r = calibrated(*read_ratios(model, sides, unseen), len(unseen[0]))
            parts = (slice(0, len(unseen[0])), slice(len(unseen[0]), None))
            for side, rows, part in zip(read, unseen, parts, strict=True):
                side.f[number, rows], side.r[number, rows] = f[part], r[part]
    return read[0], read[1]


def train_ratios(
    sides: Sequence[LabelledInputs],
    learned: Sequence[Sequence[np.ndarray]],
    network: dict[str, Any],
    seed: int,
    on_run: Callable[[], None] = lambda: None,
) -> Iterator[Ratios]:
    """Networks that learn f by telling the sides apart, and r by telling them apart better once the label is known.

    Networks without batch norm are trained side by side, as one batched computation.

    Args:
        sides: Inputs and labels of p and of q.
        learned: For each network, the rows of either side that it learns from.
        network: What `Featurizer` takes.
        seed: Decides weights and batches.
        on_run: As of `held_out_ratios`.
    """
    shape, device = tuple(sides[0][0].shape[1:]), sides[0][0].device
    classes = int(max(y.max() for _, y in sides)) + 1
    random = np.random.default_rng(seed)
    with seeded(seed):
        models = [Ratios(shape, classes, network).to(device) for _ in learned]
    how = TRAINING.get(str(network["network"]), FINE_TUNING)
    fewest = min(len(rows) for of_model in learned for rows in of_model)
    batch = min(how.batch, fewest)
    steps = max(how.fewest_steps, how.epochs * (fewest // batch))
    rows = [
        torch.from_numpy(_batches(of_side, steps, batch, random)).to(device) for of_side in zip(*learned, strict=True)
    ]
    numbers = list(range(len(models)))
    groups = [[number] for number in numbers] if normalises_batches(models[0]) else [numbers]
    for group in groups:
        _train_together([models[number] for number in group], sides, [one[:, group] for one in rows], how.rate, on_run)
        for number in group:
            yield models[number].eval()


def _batches(learned: Sequence[np.ndarray], steps: int, batch: int, random: np.random.Generator) -> np.ndarray:
    """Rows by step and network: every network goes through its examples in random order, again and again."""
    orders = []
    for rows in learned:
        epochs = math.ceil(steps * batch / len(rows))
        order = np.concatenate([random.permutation(rows) for _ in range(epochs)])
        orders.append(order[: steps * batch].reshape(steps, batch))
    return np.stack(orders, 1)


def _train_together(
    models: list[Ratios],
    sides: Sequence[LabelledInputs],
    rows: Sequence[torch.Tensor],
    rate: float,
    on_run: Callable[[], None] = lambda: None,
) -> None:
    forward, parameters = as_one(models)
    steps, _, batch = rows[0].shape
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    domain = torch.arange(2, device=rows[0].device).repeat_interleave(batch).float().expand(len(models), -1)
    for at_p, at_q in counted(zip(*rows, strict=True), steps, len(models), on_run):
        x, y = (torch.cat([of_p[at_p], of_q[at_q]], 1) for of_p, of_q in zip(*sides, strict=True))
        f, r = forward(x, y)
        # A sum over networks: none feels another.
        loss = len(models) * (_loss(f, domain) + _loss(f.detach() + r, domain))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    give_back(models, parameters)


@torch.no_grad()
def read_ratios(
    model: Ratios, sides: Sequence[LabelledInputs], unseen: Sequence[np.ndarray]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both ratios of these rows of either side, one side after the other."""
    parts = []
    for (x, y), rows in zip(sides, unseen, strict=True):
        for chosen in torch.from_numpy(rows).to(x.device).split(2048):
            parts.append(model(x[chosen], y[chosen]))
    f, r = (torch.cat(part).double().cpu() for part in zip(*parts, strict=True))
    return f, r


def calibrated(f: torch.Tensor, r: torch.Tensor, count_p: int) -> tuple[np.ndarray, np.ndarray]:
    """Both ratios scaled so that they are as certain as they are right; each half is scaled by what the other says."""
    domain = (torch.arange(len(f)) >= count_p).double()
    scaled_f, scaled_r = f.clone(), r.clone()
    even = torch.arange(len(f)) % 2 == 0
    for half in (even, ~even):
        other = ~half
        scale_f = _temperature(f[other], torch.zeros_like(f[other]), domain[other])
        scale_r = _temperature(r[other], scale_f * f[other], domain[other])
        scaled_f[half] *= scale_f
        scaled_r[half] *= scale_r
    return scaled_f.numpy(), scaled_r.numpy()


def _temperature(logits: torch.Tensor, offset: torch.Tensor, domain: torch.Tensor) -> float:
    losses = torch.stack([_loss(scale * logits + offset, domain) for scale in TEMPERATURES.tolist()])
    return float(TEMPERATURES[losses.argmin()])


def correlation_terms(of_p: LogRatios, of_q: LogRatios, delta: float = DELTA) -> tuple[np.ndarray, np.ndarray]:
    """Each example's part in D_cor, σ s of p and −σ/s of q, where both sides have mass; the mean over passes."""
    terms = []
    for side, sign in ((of_p, 1), (of_q, -1)):
        shared = np.abs(side.f) < certain(delta)
        terms.append(_over_passes(-sign * np.sign(side.r) * shared * np.exp(sign * side.f / 2), side.f))
    return terms[0], terms[1]


def diversity_terms(of_p: LogRatios, of_q: LogRatios, delta: float = DELTA) -> tuple[np.ndarray, np.ndarray]:
    """Each example's part in D_div: 1 where only its own side has mass, −1 where only the other has."""
    terms = []
    for side, sign in ((of_p, 1), (of_q, -1)):
        alone = (-sign * side.f > certain(delta)).astype(float) - (sign * side.f > certain(delta))
        terms.append(_over_passes(alone, side.f))
    return terms[0], terms[1]


def accuracy_terms(of_p: LogRatios, of_q: LogRatios) -> tuple[np.ndarray, np.ndarray]:
    """Whether each example, with its label, is given to its own side; by halves where the network cannot decide."""
    p, q = (_over_passes((1 + sign * np.sign(side.f + side.r)) / 2, side.f) for side, sign in ((of_p, -1), (of_q, 1)))
    return p, q


def certain(delta: float) -> float:
    """The log ratio at which the other side has this share."""
    return math.log((1 - delta) / delta)


def half_sum(
    terms_p: np.ndarray, terms_q: np.ndarray, groups: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[float, float]:
    """½ (mean of p's terms + mean of q's terms) and its standard error; what is in one group varies together."""
    seen = [~np.isnan(terms) for terms in (terms_p, terms_q)]
    means = [float(np.nanmean(terms)) for terms in (terms_p, terms_q)]
    parts = [
        (terms[there] - mean) / (2 * there.sum())
        for terms, there, mean in zip((terms_p, terms_q), seen, means, strict=True)
    ]
    pulls = np.concatenate(parts)
    if groups is not None:
        each = [group[there] for group, there in zip(groups, seen, strict=True)]
        pulls = np.concatenate([few_groups(of_side) * part for of_side, part in zip(each, parts, strict=True)])
        of = np.concatenate(each)
        pulls = np.bincount(np.unique(of, return_inverse=True)[1], pulls)
    return sum(means) / 2, float(np.sqrt(np.sum(pulls**2)))


def _over_passes(terms: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The mean of each example's terms over the passes that held it out; NaN if none did."""
    reached = ~np.isnan(f)
    count = reached.sum(0)
    total = np.where(reached, terms, 0).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _loss(logits: torch.Tensor, domain: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits, domain)


def _labels(side: Sample) -> torch.Tensor:
    assert side.labels is not None
    return torch.from_numpy(np.ascontiguousarray(side.labels))
