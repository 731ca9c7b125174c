"""Diversity and correlation shift from kernel densities of learned features, as OoD-Bench estimates them.

A network learns to tell the domains apart given the label, on four fifths of the examples; the eight features it ends
in are taken from the last fifth, standardised, and their densities integrated. Inputs that are features already need no
network: the densities are those of four fifths, which then tell the last fifth apart.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.errors import DataError
from shiftbed.networks import Featurizer
from shiftbed.shift.density import KernelDensity
from shiftbed.shift.features import standardised
from shiftbed.shift.integration import Evaluated, evaluate
from shiftbed.shift.matching import FOLDS, folds
from shiftbed.shift.samples import Sample
from shiftbed.shift.together import as_one, counted, give_back, normalises_batches
from shiftbed.training.streams import seeded

FEATURES = 8
BATCH = 32  # of each side
EPOCHS = 10
AVERAGED = 5  # the last epochs, whose weights are averaged
RATES = (0.05, 0.025)
MOMENTUM = 0.9
DECAY = 1e-4
POINTS = 10_000

LabelledInputs = tuple[torch.Tensor, torch.Tensor]


class Projection(nn.Module):
    """OoD-Bench's domain classifier: g gives eight features, h multiplies them by what the label says and decides."""

    def __init__(self, shape: tuple[int, ...], num_classes: int, network: dict[str, Any]) -> None:
        super().__init__()
        self.featurizer = Featurizer(shape, network)
        self.features = nn.Linear(self.featurizer.n_outputs, FEATURES)
        self.label = nn.Linear(num_classes, FEATURES)
        self.domain = nn.Linear(FEATURES, 2)
        for layer in (self.features, self.label, self.domain):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.num_classes = num_classes

    def g(self, x: torch.Tensor) -> torch.Tensor:
        """The features that are measured."""
        return self.features(self.featurizer(x))

    def h(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Logits of the two domains."""
        one_hot = (y[:, None] == torch.arange(self.num_classes, device=y.device)).to(z)
        return self.domain(z * self.label(one_hot))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Logits of the two domains of an input and its label."""
        return self.h(self.g(x), y)


@dataclass(frozen=True)
class HeldOut:
    """Features whose densities are estimated, and how well examples are told apart that were not learned from.

    Attributes:
        z: Of either side, n×d, standardised: of examples that the network has not seen, if there is one.
        y: Their labels.
        correct: Which held-out examples are given to their side; None if none were held out.
    """

    z: tuple[np.ndarray, np.ndarray]
    y: tuple[np.ndarray, np.ndarray]
    correct: tuple[np.ndarray, np.ndarray] | None = None


def held_out_features(
    p: Sample,
    q: Sample,
    network: dict[str, Any] | None,
    runs: int,
    seed: int,
    device: str,
    on_run: Callable[[], None] = lambda: None,
) -> list[HeldOut]:
    """One network a run, each with another fifth held out; without a network the inputs are the features.

    Networks without batch norm are trained side by side.

    Raises:
        DataError: There are too few groups: a fifth leaves nothing of a side to learn from, or nothing to measure.
    """
    assert p.labels is not None and q.labels is not None
    classes = (p.labels, q.labels)
    if network is None and runs == 1:  # nothing is held out, so that groups may be as few as they are
        return [HeldOut(standardised(p.vectors, q.vectors), classes)]
    held_out = [[of_side == run % FOLDS for of_side in folds(p, q, seed + run // FOLDS)] for run in range(runs)]
    if network is None:
        vectors = standardised(p.vectors, q.vectors)
        return [_told_by_densities(vectors, classes, of_run, device) for of_run in held_out]
    for one, in_runs in zip((p, q), zip(*held_out, strict=True), strict=True):
        if not all(held.any() for held in in_runs):
            raise one.too_few_groups()
    sides = [
        (torch.from_numpy(one.inputs).float().to(device), torch.from_numpy(np.asarray(one.labels)).to(device))
        for one in (p, q)
    ]
    courses = [
        _course(sides, [np.flatnonzero(~held) for held in of_run], network, 1000 * seed + run)
        for run, of_run in enumerate(held_out)
    ]
    made = []
    for course, of_run in zip(_trained(courses, sides, on_run), held_out, strict=True):
        z, y, correct = [], [], []
        for domain, ((inputs, labels), held) in enumerate(zip(sides, of_run, strict=True)):
            rows = torch.from_numpy(np.flatnonzero(held)).to(device)
            with torch.no_grad():
                of_side = torch.cat([course.model.g(inputs[batch]) for batch in rows.split(2048)])
                said = course.model.h(of_side, labels[rows]).argmax(1)
            z.append(of_side.double().cpu().numpy())
            y.append(labels[rows].cpu().numpy())
            correct.append((said == domain).cpu().numpy())
        made.append(HeldOut(standardised(z[0], z[1]), (y[0], y[1]), (correct[0], correct[1])))
    return made


def _told_by_densities(
    z: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray], held: Sequence[np.ndarray], device: str
) -> HeldOut:
    """All but the held-out examples, and which of those lie where their side is denser, given their class."""
    kept = [(of_side[~out], labels[~out]) for of_side, labels, out in zip(z, y, held, strict=True)]
    whole = [KernelDensity.of(of_side, device) for of_side, _ in kept]
    correct = [np.zeros(int(out.sum()), bool) for out in held]
    for number in np.union1d(*y):
        of_class = [KernelDensity.of(of_side[labels == number], device) for of_side, labels in kept]
        first, second = of_class if all(of_class) else whole
        if first is None or second is None:
            continue
        for side, (of_side, labels, out) in enumerate(zip(z, y, held, strict=True)):
            mine = labels[out] == number
            points = torch.from_numpy(of_side[out][mine]).double()
            denser = (first.log_density(points) > second.log_density(points)).cpu().numpy()
            correct[side][mine] = denser == (side == 0)
    (zp, yp), (zq, yq) = kept
    return HeldOut((zp, zq), (yp, yq), (correct[0], correct[1]))


@dataclass(frozen=True)
class Course:
    """A network and what it sees.

    Attributes:
        model: The network, at first with random weights.
        rows: Of p and of q, the examples of every step: steps × batch.
        learned: Of p and of q, all examples that it learns from.
    """

    model: Projection
    rows: tuple[torch.Tensor, torch.Tensor]
    learned: tuple[torch.Tensor, torch.Tensor]


def _course(
    sides: Sequence[LabelledInputs], learned: Sequence[np.ndarray], network: dict[str, Any], seed: int
) -> Course:
    """A new network, and ten epochs over the examples that it learns from, in random order."""
    batch = min(BATCH, *map(len, learned))
    an_epoch = min(map(len, learned)) // batch
    device, classes = sides[0][0].device, int(max(y.max() for _, y in sides)) + 1
    with seeded(seed):
        model = Projection(tuple(sides[0][0].shape[1:]), classes, network).to(device)
        orders = [[torch.randperm(len(rows))[: an_epoch * batch] for rows in learned] for _ in range(EPOCHS)]
    of_sides = [torch.from_numpy(rows) for rows in learned]
    seen = [
        rows[torch.cat(of_side)].view(-1, batch).to(device)
        for rows, of_side in zip(of_sides, zip(*orders, strict=True), strict=True)
    ]
    return Course(model, (seen[0], seen[1]), (of_sides[0].to(device), of_sides[1].to(device)))


def _trained(
    courses: list[Course], sides: Sequence[LabelledInputs], on_run: Callable[[], None] = lambda: None
) -> Iterator[Course]:
    """The courses with their networks trained: side by side where all see as much and none has batch norm."""
    alike = len({course.rows[0].shape for course in courses}) == 1 and not normalises_batches(courses[0].model)
    for group in [courses] if alike else [[course] for course in courses]:
        _train(group, sides, on_run)
        for course in group:
            if normalises_batches(course.model):
                learned = [x[rows] for (x, _), rows in zip(sides, course.learned, strict=True)]
                _refresh_batch_norm(course.model, torch.cat(learned))
            course.model.eval()
            yield course


def _train(courses: list[Course], sides: Sequence[LabelledInputs], on_run: Callable[[], None]) -> None:
    """SGD for ten epochs: the rate falls for five, then stays, and the weights of those steps are averaged."""
    models = [course.model for course in courses]
    forward, parameters = as_one(models)
    rows = [torch.stack(of_side, 1) for of_side in zip(*(course.rows for course in courses), strict=True)]
    steps, _, batch = rows[0].shape
    falling = steps * (EPOCHS - AVERAGED) // EPOCHS
    domain = torch.arange(2, device=rows[0].device).repeat_interleave(batch).repeat(len(models))
    optimizer = torch.optim.SGD(parameters, RATES[0], momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    now = [one.detach() for one in parameters]
    means = [one.clone() for one in now]
    for step, (at_p, at_q) in enumerate(counted(zip(*rows, strict=True), steps, len(models), on_run)):
        progress = min(1.0, step / max(1, falling))
        optimizer.param_groups[0]["lr"] = RATES[1] + (RATES[0] - RATES[1]) * (1 + math.cos(math.pi * progress)) / 2
        x, y = (torch.cat([of_p[at_p], of_q[at_q]], 1) for of_p, of_q in zip(*sides, strict=True))
        optimizer.zero_grad()
        # A sum over networks: none feels another.
        (len(models) * F.cross_entropy(forward(x, y).flatten(0, 1), domain)).backward()
        optimizer.step()
        if step >= falling:
            torch._foreach_lerp_(means, now, 1 / (step - falling + 1))
    torch._foreach_copy_(now, means)
    give_back(models, parameters)


@torch.no_grad()
def _refresh_batch_norm(model: Projection, inputs: torch.Tensor) -> None:
    """Statistics of the averaged weights, from one pass over what was learned."""
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over batches
    model.train()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    for batch in inputs[order.to(inputs.device)].split(2 * BATCH):
        model.g(batch)


def evaluated(held_out: HeldOut, seed: int, device: str) -> tuple[Evaluated, int]:
    """Log densities at points drawn from the pool's density, and how many classes were too small to have one."""
    (zp, zq), (yp, yq) = held_out.z, held_out.y
    whole = [KernelDensity.of(z, device) for z in (zp, zq, np.concatenate([zp, zq]))]
    if not all(whole):
        raise DataError(
            f"Kernel densities need more examples than features, and {min(len(zp), len(zq))} examples have "
            f"{zp.shape[1]}; add examples, or measure by --method ratio."
        )
    within, priors, skipped = [], [], 0
    for number in np.union1d(yp, yq):
        pair = [KernelDensity.of(z[y == number], device) for z, y in ((zp, yp), (zq, yq))]
        if pair[0] is None or pair[1] is None:
            skipped += 1
            continue
        within.append(pair)
        priors.append(float(np.sum(yp == number) + np.sum(yq == number)))
    p, q, pool = (density for density in whole if density is not None)
    at = evaluate(
        pool.draw(POINTS, seed),
        p.log_density,
        q.log_density,
        [one.log_density for one, _ in within if one is not None],
        [other.log_density for _, other in within if other is not None],
        pool.log_density,
        [prior / max(1.0, sum(priors)) for prior in priors],
    )
    return at, skipped
