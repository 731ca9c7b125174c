"""Benchmarks of accuracy prediction: mean absolute errors as in the CIFAR-10-W paper's table 2, for any classifiers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import numpy as np

from shiftbed.accuracy.methods import METHODS
from shiftbed.accuracy.pool import SINGLE, classifiers
from shiftbed.accuracy.study import Pool, weight_folders
from shiftbed.data import card
from shiftbed.errors import DataError
from shiftbed.training.device import find_runtime
from shiftbed.training.model import job_of

FOLDER = "classifiers"
TRAINING = "cifar-10-w-classifiers"  # the benchmark that trains the paper's classifiers


class Part(Protocol):
    """What of a benchmark's part this room reads (see `shiftbed.benchmarks.spec.AccuracyPart`)."""

    name: str
    dataset: str
    predictors: tuple[str, ...]
    classifiers: tuple[str, ...]
    averaged: int
    trained_on: str
    source: str
    domains_of: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]


def run(
    part: Part, out: Path, on_progress: Callable[[str, int, int], None] = lambda part, done, total: None
) -> Iterator[dict[str, Any]]:
    """The mean absolute error of every predictor for every classifier, in groups of domains and in all.

    Classifiers are those whose weights are in the folder `classifiers`; what they say of images is kept beside them.

    Args:
        part: What is asked for.
        out: The benchmark's folder.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        DataError: The data, or the weights of all that a classifier stands for, are not here.
    """
    methods = {name: _method(name) for name in part.predictors}
    folders, networks = _trained(out / FOLDER, part.trained_on)
    places = {name: _places(name, part, networks, out / FOLDER) for name in part.classifiers}
    datasets = part.domains_of or (part.dataset,)
    clusters = {name: members for one in datasets for name, members in card(one).clusters.items()}
    pool = Pool(folders, datasets, part.source or None, find_runtime(None).device, on_progress)
    for name, members in places.items():
        scores = pool.scores(of=members, methods=list(methods.values())).varying()
        columns: Mapping[str, Sequence[str]] = {**{group: (group,) for group in clusters}, **part.columns}
        where = {column: np.isin(scores.groups, groups) for column, groups in columns.items()}
        where[""] = np.ones(len(scores.domains), bool)
        labels = {"network": name, "setting": ""} if part.averaged == 1 else {"network": "", "setting": name}
        differs = _differs(part, len(scores.classifiers), len(scores.domains), sum(map(len, clusters.values())))
        for predictor, method in methods.items():
            if method in scores.values:
                errors = np.abs(scores.errors(method, by_group=False))
                for column, some in where.items():
                    each = errors[:, some].mean(axis=1)  # of every classifier
                    yield {
                        "labels": {"algorithm": predictor, **labels, "domain": column, "measure": "MAE"},
                        "mean": float(each.mean()),
                        "spread": float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else None,
                        "n": len(each),
                        "differs": differs,
                    }


def _method(name: str) -> str:
    """A method by its own name, or by the paper's."""
    by_label = {METHODS[one].label: one for one in METHODS}
    return by_label.get(name) or METHODS[name].name


def _trained(folder: Path, dataset: str) -> tuple[list[Path], list[str]]:
    """Where classifiers are that learned from a dataset, by trial, and their networks."""
    found = []
    for path in weight_folders(folder):
        job = job_of(path)
        if job is not None and job["dataset"] == dataset:
            found.append((job["trial"], job["recipe"]["network"], path))
    found.sort()
    return [path for _, _, path in found], [network for _, network, _ in found]


def _places(name: str, part: Part, networks: Sequence[str], folder: Path) -> list[int]:
    """Where among those that are here the classifiers are that a name stands for; of a network, the first trials."""
    wanted = [SINGLE.get(name, name)] if part.averaged == 1 else [one.network for one in classifiers()[: part.averaged]]
    found = []
    for network in dict.fromkeys(wanted):
        here = [place for place, one in enumerate(networks) if one == network]
        found += here[: wanted.count(network)]
    if not found:
        first = f"sweep {part.trained_on} --algorithms ERM"
        if wanted[0] in {*SINGLE.values(), *(one.network for one in classifiers())}:
            first = f"benchmark {TRAINING}" + (f" --part {wanted[0]}" if len(wanted) == 1 else "")
        raise DataError(
            f"There are no weights of '{name}' ({', '.join(dict.fromkeys(wanted))}), trained on {part.trained_on}, in "
            f"{folder}; train first: `shiftbed {first} --keep final --out {quote(str(folder))}`."
        )
    return found


def _differs(part: Part, members: int, domains: int, known: int) -> dict[str, str]:
    """What makes it another experiment than the paper's."""
    found = {}
    if members < part.averaged:
        found["classifiers"] = f"{members} here, {part.averaged} in the paper"
    if known and domains < known:
        found["domains"] = f"{domains} here, {known} in the paper"
    return found
