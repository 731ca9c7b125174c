"""Covariate and concept shift of NICO++: how far inputs can be told apart, and labelling functions disagree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from shiftbed.errors import DataError
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.fitting import Labeller, Scale, ever_slower, in_batches, learn_labels, make_network, train
from shiftbed.shift.intervals import groups_of
from shiftbed.shift.measures import Settings, error_of_means, estimate, measure
from shiftbed.shift.samples import Sample, comparable
from shiftbed.training.streams import seeded

HELD_OUT = 0.5  # of each side, for the discrepancy
HELD_OUT_LABELS = 0.2  # of each side, for the labelling functions
FAILED = "the networks do not differ more on one side even where they were trained to: this says nothing of the shift"
UNTAUGHT = (
    "a labelling function is right no more often than the most frequent class, even on the examples that it learned "
    "from: this says nothing of the shift"
)


class Pair(nn.Module):
    """Two networks that are trained to differ on the one sample and to agree on the other.

    Their loss is half the sum of absolute differences of their class probabilities: at most 1, symmetric, and with
    the triangle inequality, as the paper's theorems ask; it becomes the 0-1 loss as the networks grow sure.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """How much they differ on each example, in [0, 1]."""
        return (self.first(x).softmax(1) - self.second(x).softmax(1)).abs().sum(1) / 2

    def disagree(self, x: torch.Tensor) -> torch.Tensor:
        """Whether they choose different classes for each example."""
        return (self.first(x).argmax(1) != self.second(x).argmax(1)).float()


def train_apart(plus: torch.Tensor, minus: torch.Tensor, outputs: int, settings: Settings, seed: int) -> Pair:
    """Two networks from scratch that differ as much as they can on the one sample more than on the other."""
    with seeded(seed):
        pair = Pair(*(make_network(plus, outputs, settings) for _ in range(2)))

        def objective(of_plus: torch.Tensor, of_minus: torch.Tensor) -> torch.Tensor:
            differences = pair(torch.cat([plus[of_plus], minus[of_minus]]))  # batch norm must see both sides at once
            return differences[len(of_plus) :].mean() - differences[: len(of_plus)].mean()

        train([pair], objective, [len(plus), len(minus)], settings, seed)
    return pair


@dataclass(frozen=True)
class Discrepancy:
    """By how much two trained networks disagree more on the one side than on the other.

    Attributes:
        value: At 0-1 loss, on held-out examples; chance can make it negative.
        error: Its standard error.
        soft: At the loss that was trained.
        soft_on_training: As `soft`, on the examples that were trained on.
        on_training: As `value`, on the examples that were trained on: near 1 even for equal domains, if they are few.
        count: Held-out examples of the smaller side.
        groups: Of how many groups these are, if there are any.
    """

    value: float
    error: float
    soft: float
    soft_on_training: float
    on_training: float
    count: int
    groups: int | None

    @property
    def failed(self) -> bool:
        """Whether training came to nothing: sure networks that agree everywhere, or nowhere, have no gradient left.

        Chance alone gives more than 0 on the examples that were trained on.
        """
        return self.on_training <= 0


def discrepancy(p: Sample, q: Sample, settings: Settings) -> Discrepancy:
    """The discrepancy distance of Mansour et al. at 0-1 loss: for rich networks, the total variation of the inputs.

    Two networks are trained to disagree more on p than on q, two others the other way round. The pair that differs more
    on what it was trained on counts: chosen by what is held out, it would show a shift where there is none. If neither
    pair learned anything, all is done again at a lower rate.

    Args:
        p: One side.
        q: The other.
        settings: How networks are trained, and between how many outputs they choose.
    """
    parts = [one.split(1 - HELD_OUT, settings.seed) for one in (p, q)]
    scale = Scale.of(np.concatenate([fit.inputs for fit, _ in parts]))
    fit, held = ([scale(part.inputs, settings.device) for part in of_sides] for of_sides in zip(*parts, strict=True))
    groups = [part.groups for _, part in parts]
    for attempt in ever_slower(settings):
        found = max(
            (_trained(fit[::way], held[::way], groups[::way], attempt) for way in (1, -1)),
            key=lambda one: np.nan_to_num(one.soft_on_training, nan=-1.0),
        )
        if not found.failed:
            break
    return found


def _trained(
    fit: Sequence[torch.Tensor],
    held: Sequence[torch.Tensor],
    groups: Sequence[np.ndarray | None],
    settings: Settings,
) -> Discrepancy:
    """What two networks come to that are trained to differ more on the first of two samples than on the second."""
    pair = train_apart(fit[0], fit[1], settings.outputs, settings, settings.seed)
    plus, minus = (in_batches(pair.disagree, x).double().cpu().numpy() for x in held)
    return Discrepancy(
        float(plus.mean() - minus.mean()),
        error_of_means([plus, -minus], groups),
        _difference(pair, *held),
        _difference(pair, *fit),
        _difference(pair.disagree, *fit),
        min(map(len, held)),
        groups_of(groups),
    )


def _difference(loss: Callable[[torch.Tensor], torch.Tensor], plus: torch.Tensor, minus: torch.Tensor) -> float:
    return float(in_batches(loss, plus).mean() - in_batches(loss, minus).mean())


@measure("covariate", "NICO++'s covariate shift: discrepancy of two networks, held out", highest=1.0)
def _covariate(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    found = discrepancy(p, q, settings)
    memory = f"{found.on_training:.3f} on the examples it was trained on, which measures memory"
    return [
        estimate(
            "covariate",
            found.value,
            None if found.failed else found.error,
            found.count,
            highest=1.0,
            units=found.groups,
            notes=(FAILED if found.failed else memory,),
            soft=found.soft,
            on_training_examples=found.on_training,
        )
    ]


# --- concept shift ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """The labelling function of a domain, learned twice on halves, and the examples that neither has seen."""

    labeller: Labeller
    twin: Labeller
    held_out: Sample


_learned: WeakKeyDictionary[Sample, dict[Settings, Learned]] = WeakKeyDictionary()


def labelling_function(domain: Sample, settings: Settings) -> Learned:
    """What the labels of a domain teach; learned once, however many domains it is compared with.

    Raises:
        DataError: The domain has one class only.
    """
    if len(domain.classes) < 2:
        raise DataError(
            f"All examples of '{domain.name}' are of one class, so that its labels teach nothing; add others, or take "
            "a measure that needs no labels."
        )
    known = _learned.setdefault(domain, {})
    if settings not in known:
        fit, held_out = domain.split(1 - HELD_OUT_LABELS, settings.seed)
        halves = fit.split(0.5, settings.seed + 1)
        labeller, twin = (learn_labels(half, settings, settings.seed + i) for i, half in enumerate(halves))
        known[settings] = Learned(labeller, twin, held_out)
    return known[settings]


@dataclass(frozen=True)
class Disagreement:
    """How often the labelling functions of two domains disagree on the held-out examples of one of them.

    Attributes:
        value: The labelling functions as learned.
        labels: The domain's labels themselves in place of its labelling function: the error of the other's.
        floor: How often two functions learned on halves of this one domain disagree there.
        error: The standard error of `value`.
        count: The examples.
        groups: Of how many groups these are, if there are any.
        gain: By how much the labelling functions are right more often than the most frequent class, on what they
            learned from; the least of both domains.
    """

    value: float
    labels: float
    floor: float
    error: float
    count: int
    groups: int | None
    gain: float

    @property
    def failed(self) -> bool:
        """Whether a labelling function learned nothing."""
        return self.gain <= 0


def disagreements(p: Sample, q: Sample, settings: Settings) -> tuple[Disagreement, Disagreement]:
    """How often the labelling functions of p and q disagree on examples of p, and on those of q."""
    sides = [labelling_function(one, settings) for one in (p, q)]
    gain = min(labeller.gain for side in sides for labeller in (side.labeller, side.twin))
    found = []
    for own, other in (sides, sides[::-1]):
        x, labels = own.held_out.inputs, np.asarray(own.held_out.labels)
        here, there, again = own.labeller(x), other.labeller(x), own.twin(x)
        value, by_labels, floor = (float(np.mean(x)) for x in (here != there, there != labels, here != again))
        groups = [own.held_out.groups]
        error = error_of_means([here != there], groups)
        found.append(Disagreement(value, by_labels, floor, error, len(labels), groups_of(groups), gain))
    return found[0], found[1]


@measure(
    "concept",
    "NICO++'s concept shift: how often the labelling functions of both sides disagree",
    needs=("labels",),
    highest=1.0,
)
def _concept(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    p, q, notes = comparable(p, q)
    ordered = sorted(disagreements(p, q, settings), key=lambda one: one.value)
    by_labels = sorted(one.labels for one in ordered)
    return [
        estimate(
            name,
            one.value,
            None if one.failed else one.error,
            one.count,
            highest=1.0,
            no_shift=one.floor,
            units=one.groups,
            notes=(*notes, UNTAUGHT) if one.failed else notes,
            above_floor=max(0.0, one.value - one.floor),
            by_labels=labels,
            gain=one.gain,
        )
        for name, one, labels in zip(("concept-min", "concept-max"), ordered, by_labels, strict=True)
    ]
