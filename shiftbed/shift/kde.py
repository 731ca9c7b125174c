"""Diversity and correlation shift from kernel densities of learned features, as OoD-Bench estimates them.

A network learns to tell the domains apart given the label, on four fifths of the examples; the eight features it ends
in are taken from the last fifth, standardised, and their densities integrated.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.networks import Featurizer
from shiftbed.shift.density import KernelDensity
from shiftbed.shift.features import standardised
from shiftbed.shift.integration import Evaluated, evaluate
from shiftbed.shift.matching import FOLDS, folds
from shiftbed.shift.samples import Sample

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
        return self.domain(z * self.label(F.one_hot(y, self.num_classes).to(z)))


@dataclass(frozen=True)
class HeldOut:
    """Features of examples of both sides that the network has not seen, and how well it tells them apart.

    Attributes:
        z: Of either side, n×8, standardised.
        y: Their labels.
        correct: Which examples the network gives to their side; None if no network was trained.
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
    """One network a run, each with another fifth held out; without a network all inputs are the features."""
    assert p.labels is not None and q.labels is not None
    if network is None:
        return [HeldOut(standardised(p.vectors, q.vectors), (p.labels, q.labels))] * runs
    sides = [
        (torch.from_numpy(one.inputs).float().to(device), torch.from_numpy(np.asarray(one.labels)).to(device))
        for one in (p, q)
    ]
    made = []
    for run in range(runs):
        number, fold = divmod(run, FOLDS)
        out = [torch.from_numpy(of_side == fold).to(device) for of_side in folds(p, q, seed + number)]
        learned = [(x[~held], y[~held]) for (x, y), held in zip(sides, out, strict=True)]
        model = train_projection(learned[0], learned[1], network, 1000 * seed + run, device)
        z, y, correct = [], [], []
        for domain, ((inputs, labels), held) in enumerate(zip(sides, out, strict=True)):
            with torch.no_grad():
                of_side = torch.cat([model.g(batch) for batch in inputs[held].split(2048)])
                said = model.h(of_side, labels[held]).argmax(1)
            z.append(of_side.double().cpu().numpy())
            y.append(labels[held].cpu().numpy())
            correct.append((said == domain).cpu().numpy())
        made.append(HeldOut(standardised(z[0], z[1]), (y[0], y[1]), (correct[0], correct[1])))
        on_run()
    return made


def train_projection(
    p: LabelledInputs, q: LabelledInputs, network: dict[str, Any], seed: int, device: str
) -> Projection:
    """SGD for ten epochs: the rate falls for five, then stays, and the weights of those steps are averaged."""
    batch = min(BATCH, len(p[0]), len(q[0]))
    an_epoch = min(len(p[0]), len(q[0])) // batch
    falling = (EPOCHS - AVERAGED) * an_epoch
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classes = int(max(p[1].max(), q[1].max())) + 1
        model = Projection(tuple(p[0].shape[1:]), classes, network).to(device)
        epochs = [[torch.randperm(len(x))[: an_epoch * batch] for x, _ in (p, q)] for _ in range(EPOCHS)]
    rows = [torch.cat([epoch[side] for epoch in epochs]).view(-1, batch).to(device) for side in (0, 1)]
    domain = torch.arange(2, device=device).repeat_interleave(batch)
    optimizer = torch.optim.SGD(model.parameters(), RATES[0], momentum=MOMENTUM, weight_decay=DECAY)
    averaged = copy.deepcopy(model)
    means, now = ([one.data for one in one_model.parameters()] for one_model in (averaged, model))
    for step, (at_p, at_q) in enumerate(zip(*rows, strict=True)):
        progress = min(1.0, step / max(1, falling))
        optimizer.param_groups[0]["lr"] = RATES[1] + (RATES[0] - RATES[1]) * (1 + math.cos(math.pi * progress)) / 2
        logits = model.h(model.g(torch.cat([p[0][at_p], q[0][at_q]])), torch.cat([p[1][at_p], q[1][at_q]]))
        optimizer.zero_grad()
        F.cross_entropy(logits, domain).backward()
        optimizer.step()
        if step >= falling:
            torch._foreach_lerp_(means, now, 1 / (step - falling + 1))
    _refresh_batch_norm(averaged, torch.cat([p[0], q[0]]))
    return averaged.eval()


@torch.no_grad()
def _refresh_batch_norm(model: Projection, inputs: torch.Tensor) -> None:
    """Statistics of the averaged weights, from one pass over what was learned."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
    model.train()
    for batch in inputs[torch.randperm(len(inputs))].split(2 * BATCH):
        model.g(batch)


def evaluated(held_out: HeldOut, seed: int, device: str, points: int = POINTS) -> tuple[Evaluated, int]:
    """Log densities at points drawn from the pool's density, and how many classes were too small to have one."""
    (zp, zq), (yp, yq) = held_out.z, held_out.y
    whole = [KernelDensity.of(z, device) for z in (zp, zq, np.concatenate([zp, zq]))]
    assert all(whole), "matched sides have more examples than features"
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
        pool.draw(points, seed),
        p.log_density,
        q.log_density,
        [one.log_density for one, _ in within if one is not None],
        [other.log_density for _, other in within if other is not None],
        pool.log_density,
        [prior / max(1.0, sum(priors)) for prior in priors],
    )
    return at, skipped
