"""The verb `measure_shift`: diversity and correlation shift between two sides of a dataset, with companions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shiftbed.data import MultiDomainDataset
from shiftbed.registry import listed, refuse_unknown
from shiftbed.shift.estimates import WIDE, ShiftEstimate
from shiftbed.shift.estimators import ESTIMATORS, PERCEPTRON_SIDE, SMALL_SIDE, Found, How
from shiftbed.shift.features import named_sides, open_dataset, resized, samples_of, sides_of
from shiftbed.shift.matching import in_fixed_order, matched, permuted
from shiftbed.shift.measures import TOO_WIDE, Settings, measure
from shiftbed.shift.samples import Sample, refuse_incomparable
from shiftbed.training.device import find_runtime, torch_defaults


@dataclass(frozen=True)
class ShiftMeasurement:
    """Diversity and correlation shift between two sides, and what tells how far to trust them.

    Attributes:
        dataset: The dataset's name.
        train: The one side's domains.
        test: The other's.
        found: What was estimated.
        how: The settings.
        notes: What the reader must know.
    """

    dataset: str
    train: str
    test: str
    found: Found
    how: How
    notes: tuple[str, ...] = ()

    @property
    def diversity(self) -> ShiftEstimate:
        """How much of the inputs only one side has."""
        return self.found.diversity

    @property
    def correlation(self) -> ShiftEstimate:
        """How differently labels go with inputs that both sides have."""
        return self.found.correlation

    @property
    def accuracy(self) -> ShiftEstimate | None:
        """Of telling held-out examples apart, with their labels; None without a network."""
        return self.found.accuracy

    @property
    def bound(self) -> float | None:
        """At least so large is the total variation of inputs and labels; diversity shift cannot exceed that."""
        return None if self.accuracy is None else max(0.0, 2 * self.accuracy.value - 1)

    @property
    def contradicts_bound(self) -> bool:
        """Whether diversity shift lies above the bound by more than chance: three standard errors."""
        if self.accuracy is None or self.bound is None or self.accuracy.standard_error is None:
            return False
        return self.diversity.value > self.bound + 3 * 2 * self.accuracy.standard_error

    def as_json(self) -> dict[str, Any]:
        """What `json.dumps` takes."""
        pair = self.found.without_shift
        return {
            "dataset": self.dataset,
            "train": self.train,
            "test": self.test,
            "method": self.how.method,
            "diversity": self.diversity.as_json(),
            "correlation": self.correlation.as_json(),
            "accuracy": None if self.accuracy is None else self.accuracy.as_json(),
            "bound": self.bound,
            "without_shift": None if pair is None else [one.as_json() for one in pair],
            "notes": list(self.notes),
        }


def measure_shift(
    dataset: str | Path | MultiDomainDataset,
    train: Sequence[str] = (),
    test: Sequence[str] = (),
    *,
    classes: Sequence[str] = (),
    size: int | None = None,
    features: str | None = None,
    features_weights: str | None = None,
    device: str | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    **how: Any,
) -> ShiftMeasurement:
    """How far apart two sides of a dataset are, and in what way.

    Args:
        dataset: A dataset's name, a folder or manifest, or an open dataset.
        train: The training domains; by default all that are not tested.
        test: The test domains; by default the last.
        classes: Only these classes; by default all.
        size: Bring images to this side first; by default those above 32 px that a perceptron looks at come to 32.
        features: Measure the features of this fixed network instead of the inputs.
        features_weights: Its weights, by name or file.
        device: Where to compute; a GPU if there is one.
        on_progress: Called with what is being done, how many runs of it are done, and how many there are.
        how: The fields of `How`: method, network, weights, runs, most, delta, calibrate, baseline, seed, …

    Raises:
        DataError: The domains cannot be compared.
        UnknownNameError: There is no such dataset, network or method.
    """
    refuse_unknown("option", list(how), [one.name for one in fields(How)], "measure_shift")
    settings = How(device=find_runtime(device).device, **how)
    opened = open_dataset(dataset, on_progress)
    train, test = listed(train), listed(test)
    refuse_unknown("domain", [*train, *test], [one.name for one in opened.domains], opened.card.name)
    side = size
    if side is None and features is None and settings.network is None:
        side = _affordable_side(opened)
    train, test = named_sides([one.name for one in opened.domains], train, test)
    taken: dict[str, Any] = {"classes": classes, "size": side, "network": features, "weights": features_weights}
    p, q = sides_of(samples_of(opened, [*train, *test], **taken, device=settings.device), train, test)
    made = compare(p, q, settings, on_progress)
    reduced = (f"images were brought to {side} px; --size keeps more of them",) if side != size else ()
    return replace(made, dataset=opened.card.name, notes=(*made.notes, *reduced))


def _affordable_side(dataset: MultiDomainDataset) -> int | None:
    """The side that images are reduced to for a perceptron, whose cost grows with their pixels, or None."""
    inputs = dataset.domains[0].inputs
    if not isinstance(inputs, np.ndarray) or inputs.dtype != np.uint8 or inputs.ndim != 4:
        return None
    return PERCEPTRON_SIDE if PERCEPTRON_SIDE < max(inputs.shape[1:3]) <= SMALL_SIDE else None


@torch_defaults()
def compare(
    p: Sample,
    q: Sample,
    how: How,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ShiftMeasurement:
    """Diversity and correlation shift between two samples.

    Raises:
        DataError: The samples cannot be compared.
    """
    refuse_incomparable(p, q)
    pair = matched(*in_fixed_order(p, q), how.seed, most=how.most)
    empty = permuted(*pair, how.seed) if how.baseline or how.calibrate else None
    found = ESTIMATORS[how.method](pair, empty, how, on_progress)
    notes = []
    kept = len(pair[0])
    if kept < max(len(p), len(q)):
        notes.append(
            f"kept {kept:,} of {len(p):,} examples of '{p.name}' and {kept:,} of {len(q):,} of '{q.name}': as many of "
            "each class"
        )
    found = replace(found, diversity=_doubted(found.diversity), correlation=_doubted(found.correlation))
    made = ShiftMeasurement("", p.name, q.name, found, how, tuple(notes))
    if made.contradicts_bound:
        note = "diversity shift exceeds what telling the sides apart bears out: do not trust it here"
        made = replace(made, notes=(*made.notes, note))
    return made


def _doubted(one: ShiftEstimate) -> ShiftEstimate:
    """An estimate that says so where its interval is too wide."""
    if one.interval is None or one.interval[1] - one.interval[0] <= TOO_WIDE:
        return one
    return replace(one, notes=(*one.notes, f"the interval of {one.name} shift is {WIDE}"))


@measure(
    "diversity-correlation",
    "what only one side has, and labels that go with other inputs (OoD-Bench)",
    needs=("labels",),
    highest=1.0,
)
def _diversity_and_correlation(p: Sample, q: Sample, settings: Settings) -> list[ShiftEstimate]:
    how = How(**{"baseline": False, **dict(settings.how)}, seed=settings.seed, device=settings.device)
    found = compare(_affordable(p), _affordable(q), how)
    return [found.diversity, found.correlation]


def _affordable(sample: Sample) -> Sample:
    """Images of the side that `measure_shift` brings them to, so that a matrix says what a single pair does."""
    if sample.inputs.ndim != 4 or not PERCEPTRON_SIDE < max(sample.inputs.shape[2:]) <= SMALL_SIDE:
        return sample
    return replace(sample, inputs=resized(torch.from_numpy(sample.inputs), PERCEPTRON_SIDE).numpy())
