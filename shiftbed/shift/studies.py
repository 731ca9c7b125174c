"""OoD-Bench's studies on ColoredMNIST, and the door through which benchmarks of shift are run."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shiftbed.data import MultiDomainDataset
from shiftbed.data.mnist import coloured_study
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.estimators import How, integrated
from shiftbed.shift.features import samples_of
from shiftbed.shift.kept import Kept, NotMeasuredError
from shiftbed.shift.measure import ShiftMeasurement, measure_shift
from shiftbed.shift.measures import Settings, take
from shiftbed.training.store import write_json

COMPARED = 10_000  # examples a domain: with so many, NI without shift is what the paper prints
SHIFTS = ("diversity", "correlation")


class Part(Protocol):
    """What of a benchmark's part this room reads (see `shiftbed.benchmarks.spec.ShiftPart`)."""

    name: str
    dataset: str
    measures: tuple[str, ...]
    grid: dict[str, tuple[float, ...]]
    runs: int

    def options(self) -> dict[str, dict[str, Any]]:
        """By the name of a setting, what its data are made with."""


def coloured(options: Mapping[str, float], folder: Path | None = None, seed: int = 0) -> MultiDomainDataset:
    """A training and a test domain of ColoredMNIST.

    Args:
        options: `rho_train` and `rho_test`; with blue also `blue_train`, `blue_test` and `blue_deviation`.
        folder: Where MNIST's IDX files are; by default they are downloaded to the data root.
        seed: Another draw of images, label noise and colours.
    """
    blues = None
    if "blue_deviation" in options:
        blues = [(options[f"blue_{side}"], options["blue_deviation"]) for side in ("train", "test")]
    return coloured_study((options["rho_train"], options["rho_test"]), blues, folder, seed)


def study(
    options: Mapping[str, float],
    *,
    method: str = "ratio",
    folder: Path | None = None,
    runs: int = 5,
    most: int | None = None,
) -> ShiftMeasurement:
    """Diversity and correlation shift between two domains of ColoredMNIST, all settings alike."""
    return measure_shift(coloured(options, folder), method=method, runs=runs, most=most, baseline=False)


def run(
    part: Part, out: Path, folder: Path | None = None, most: int | None = None, measure: bool = True
) -> Iterator[dict[str, Any]]:
    """Measures what a benchmark's part asks for, a number at a time; what is in the folder is not measured again.

    The default estimator stands in the paper's own columns, the kernel densities in columns of their own.

    Args:
        part: What is asked for.
        out: The benchmark's folder.
        folder: Where MNIST's IDX files are.
        most: The most examples of a domain.
        measure: Measure what is not there; without it there are only the numbers of the folder.
    """
    if "covariate shift" in part.measures:
        from shiftbed.shift.nico import run as run_nico

        yield from run_nico(part, out, measure)
        return
    kept = Kept(out / "measurements.json", measure)
    values: dict[str, float] = {}
    for (setting, options), asked in product(part.options().items(), part.measures):
        labels = {"dataset": part.dataset, "setting": setting}
        with suppress(NotMeasuredError):
            for name, one in _of_measure(asked, options, part, folder, most, kept):
                values[setting] = values.get(setting, one.value)
                yield {
                    "labels": {**labels, "measure": name},
                    "mean": one.value,
                    "spread": one.standard_error,
                    "n": part.runs,
                    "differs": {},
                }
    if part.grid and measure:
        _heat_map(part, np.array(list(values.values())), out)


def _of_measure(
    measure: str, options: Mapping[str, float], part: Part, folder: Path | None, most: int | None, kept: Kept
) -> Iterator[tuple[str, ShiftEstimate]]:
    shift = measure.removesuffix(" shift")
    if shift not in SHIFTS:
        yield measure, kept.get([measure, options], lambda: _compared(measure, options, part.runs, folder))[0]
        return
    for methods in _trained_together(part):
        keys = _keys(methods, options, part, most)
        found = kept.get_all(keys, partial(_shifts, options, methods, folder, part.runs, most))
        for method, both in found.items():
            yield measure if method == "ratio" else f"{measure}, {method}", both[SHIFTS.index(shift)]


def _keys(methods: Sequence[str], options: Mapping[str, float], part: Part, most: int | None) -> dict[str, list[Any]]:
    """By method, under what its estimates are kept."""
    return {method: [method, options, part.runs, most] for method in methods}


def _trained_together(part: Part) -> tuple[tuple[str, ...], ...]:
    """The methods of a part; those that need the same networks stand together."""
    return (("ratio",),) if part.grid else (("ratio",), ("kde-paper", "kde"))


def _shifts(
    options: Mapping[str, float], methods: Sequence[str], folder: Path | None, runs: int, most: int | None
) -> dict[str, list[ShiftEstimate]]:
    """Diversity and correlation shift by methods of one kind: the networks are trained once."""
    found = study(options, method=methods[0], folder=folder, runs=runs, most=most).found
    by_method = {methods[0]: found}
    for method in methods[1:]:
        assert found.densities is not None
        by_method[method] = integrated(found.densities, How(method))
    return {method: [one.diversity, one.correlation] for method, one in by_method.items()}


def ahead(
    part: Part, out: Path, folder: Path | None = None, most: int | None = None, workers: int = 4
) -> Iterator[str]:
    """Measures the shifts of a part's settings in several processes and keeps them for `run`.

    Small networks leave a GPU idle most of the time: several of them share it.

    Yields:
        What is finished. A generator that is closed ends the work as soon as what was begun is finished.
    """
    kept = Kept(out / "measurements.json")
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        begun = {}
        for (setting, options), methods in product(part.options().items(), _trained_together(part)):
            keys = _keys(methods, options, part, most)
            if not all(key in kept for key in keys.values()):
                begun[pool.submit(_shifts, options, methods, folder, part.runs, most)] = setting, keys
        for work in as_completed(begun):
            setting, keys = begun[work]
            kept.get_all(keys, work.result)
            yield f"{setting}, {', '.join(keys)}"
    finally:
        pool.shutdown(cancel_futures=True)


def _compared(measure: str, options: Mapping[str, float], runs: int, folder: Path | None) -> list[ShiftEstimate]:
    """A comparison measure over draws of the data: pixels for EMD and MMD, 390 features for NI."""
    values = []
    for seed in range(runs):
        network = "mlp-390" if measure == "NI" else None
        p, q = (
            one.at_most(COMPARED, seed) for one in samples_of(coloured(options, folder, seed), network=network).values()
        )
        values.append(take(measure.lower(), p, q, Settings(seed=seed))[0].value)
    error = float(np.std(values, ddof=1) / np.sqrt(runs)) if runs > 1 else None
    return [ShiftEstimate(measure, float(np.mean(values)), error, count=min(len(p), len(q)))]


def _heat_map(part: Part, values: np.ndarray, out: Path) -> None:
    """The part of Figure 4 whose two varied options span it, as numbers and as a picture."""
    from shiftbed.shift.pictures import grids

    rows, columns = [name for name, options in part.grid.items() if len(options) > 1]
    shape = len(part.grid[rows]), len(part.grid[columns])
    title = f"{part.name}: {part.measures[0]}"
    labels = (rows, part.grid[rows], columns, part.grid[columns])
    numbers = {"title": title, "values": values.reshape(shape).tolist(), "labels": labels}
    write_json(numbers, out / f"figure-4-{part.name}.json")
    grids({title: values.reshape(shape)}, {title: labels}, out / f"figure-4-{part.name}.png")
