"""NICO++'s Table 1: covariate and concept shift of a dataset, over random domains and classes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import stats

from shiftbed.data import MultiDomainDataset, card
from shiftbed.errors import DataError
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.features import open_dataset, samples_of
from shiftbed.shift.kept import Kept, NotMeasuredError
from shiftbed.shift.measures import Settings, take
from shiftbed.shift.samples import Sample, union
from shiftbed.training.device import find_runtime

EPOCHS = 20
PAPER = Settings(optimizer="sgd", rate=0.1, batch_size=64)
SMALL_SIDE = 64  # images up to this side get a small network, as MNIST-M does in the paper
COMMON_SIDE = 128  # to which images are brought whose sizes differ; the paper does not say to which
ON_TRAINING, RUNS = "on_training_examples", "runs"  # among the details of an estimate, and of a mean over runs
TRAINED_ON = "covariate shift, on training examples"
MEASURES = {"covariate": "covariate shift", "concept-min": "concept shift (min)", "concept-max": "concept shift (max)"}


class Part(Protocol):
    """What of a benchmark's part this study reads (see `shiftbed.benchmarks.spec.ShiftPart`)."""

    dataset: str
    runs: int

    def options(self) -> dict[str, dict[str, Any]]:
        """By the name of a setting, how many domains and classes are drawn."""


@dataclass(frozen=True)
class Drawn:
    """Who is compared in one run: training domains, test domains and classes."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: tuple[str, ...]


def draw(dataset: MultiDomainDataset, run: int, train: int = 2, test: int = 2, classes: int = 5) -> Drawn:
    """The random domains and classes of a run; all classes where there are no more.

    Raises:
        DataError: The dataset has too few domains.
    """
    names = [domain.name for domain in dataset.domains]
    if len(names) < train + test:
        raise DataError(
            f"{dataset.card.name} has {len(names)} domains, and {train} training and {test} test domains are drawn; "
            "draw fewer, or take a dataset with more."
        )
    random = np.random.default_rng((run, 1))
    domains = random.permutation(names)[: train + test].tolist()
    count = min(classes, len(dataset.card.classes))
    chosen = np.sort(random.permutation(len(dataset.card.classes))[:count])
    return Drawn(tuple(domains[:train]), tuple(domains[train:]), tuple(dataset.card.classes[i] for i in chosen))


def covariate_and_concept(
    dataset: str | Path | MultiDomainDataset,
    run: int,
    *,
    train: int = 2,
    test: int = 2,
    classes: int = 5,
    network: str | None = None,
    epochs: int = EPOCHS,
    device: str | None = None,
) -> list[ShiftEstimate]:
    """One run of the protocol: networks from scratch, values read on held-out examples.

    Departures from the paper: it names no loss, no optimizer but its rate, and not where values are read. Here the loss
    is half the sum of absolute differences, the optimizer has momentum 0.9 and a rate that falls along a cosine, and
    values are read on held-out examples; the covariate shift on training examples is in the details. Where networks
    learn nothing at the paper's rate, they are trained again at a lower one.

    Args:
        dataset: Any dataset.
        run: Decides the domains, the classes and all else that is drawn.
        train: Training domains.
        test: Test domains.
        classes: Classes.
        network: What is trained; by default a ResNet-50, for small images a small network.
        epochs: How long.
        device: Where; a GPU if there is one.
    """
    opened = open_dataset(dataset)
    drawn = draw(opened, run, train, test, classes)
    size = None if opened.card.input_shape else COMMON_SIDE
    samples = samples_of(opened, [*drawn.train, *drawn.test], classes=drawn.classes, size=size)
    p, q = _equal(*(union([samples[name] for name in side], " + ".join(side)) for side in (drawn.train, drawn.test)))
    settings = replace(
        PAPER,
        seed=run,
        network=network or _usual_network(p),
        steps=max(1, epochs * len(p) // (2 * PAPER.batch_size)),  # half of the examples are held out
        outputs=max(2, len(p.classes), len(q.classes)),  # the paper's networks give distributions over labels
        device=find_runtime(device).device,
    )
    who = f"{', '.join(drawn.train)} against {', '.join(drawn.test)}: {', '.join(drawn.classes)}"
    found = [*take("covariate", p, q, settings), *take("concept", p, q, settings)]
    return [replace(one, notes=(*one.notes, who)) for one in found]


def nico_table_1(
    dataset: str | Path | MultiDomainDataset,
    runs: int = 5,
    *,
    saved: Path | None = None,
    measure: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    **options: Any,
) -> dict[str, ShiftEstimate]:
    """Covariate and concept shift of a dataset: the mean over runs by the paper's names, and what training shows.

    A measure of a run whose networks learned nothing says nothing, so that it does not count; where no run does, there
    is no such measure in what is returned.

    Args:
        dataset: Any dataset.
        runs: Draws of domains and classes.
        saved: A file that keeps finished runs.
        measure: Do the runs that it does not have; without it `NotMeasuredError` is raised.
        on_progress: Called with what is done, how many runs of it are, and how many there are.
        options: Those of `covariate_and_concept`.
    """
    opened = open_dataset(dataset) if measure else None
    about = opened.card if opened else card(str(dataset))
    kept = Kept(saved, measure)
    found = []
    for run in range(runs):
        on_progress(f"covariate and concept shift of {about.name}", run, runs)
        key = [about.name, about.version, run, {name: str(options[name]) for name in sorted(options)}]
        found.append(kept.get(key, partial(covariate_and_concept, opened or dataset, run, **options)))
    by_measure: dict[str, list[ShiftEstimate]] = {}
    for one in (one for of_run in found for one in of_run if one.standard_error is not None):
        by_measure.setdefault(MEASURES[one.name], []).append(one)
        if ON_TRAINING in one.details:
            by_measure.setdefault(TRAINED_ON, []).append(replace(one, value=one.details[ON_TRAINING]))
    return {name: _mean(name, by_measure[name]) for name in (*MEASURES.values(), TRAINED_ON) if name in by_measure}


def run(part: Part, out: Path, measure: bool = True) -> Iterator[dict[str, Any]]:
    """Measures what a benchmark's part asks for; the published column stands beside it."""
    for setting, options in part.options().items():
        counts = {"train": options["training_domains"], "test": options["test_domains"], "classes": options["classes"]}
        found: dict[str, ShiftEstimate] = {}
        with suppress(NotMeasuredError):
            found = nico_table_1(part.dataset, part.runs, saved=out / "measurements.json", measure=measure, **counts)
        for name, one in found.items():
            labels = {"dataset": part.dataset, "setting": setting, "measure": name}
            n = int(one.details[RUNS])
            differs = {} if n == part.runs else {"runs": f"{n} here that learned anything, {part.runs} in the paper"}
            yield {"labels": labels, "mean": one.value, "spread": one.standard_error, "n": n, "differs": differs}


def _mean(name: str, of: Sequence[ShiftEstimate]) -> ShiftEstimate:
    """The mean over runs with Student's interval."""
    values = [one.value for one in of]
    notes, count = tuple(note for one in of for note in one.notes), min(one.count for one in of)
    details = {RUNS: float(len(of))}
    if len(values) < 2:
        return ShiftEstimate(name, float(values[0]), count=count, notes=notes, details=details)
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    low, high = (float(np.clip(np.mean(values) + side * half, 0, 1)) for side in (-1, 1))
    return ShiftEstimate(name, float(np.mean(values)), error, (low, high), count, notes, details)


def _equal(p: Sample, q: Sample) -> tuple[Sample, Sample]:
    """As many examples of either side."""
    count = min(len(p), len(q))
    return p.at_most(count), q.at_most(count)


def _usual_network(sample: Sample) -> str | None:
    if sample.inputs.ndim != 4:
        return None
    side = min(sample.inputs.shape[2:])
    return "resnet50" if side > SMALL_SIDE else "nico-shallow" if side == 28 else "small"
