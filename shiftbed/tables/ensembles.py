"""Derived records: several jobs as one model, by the sum of their logits (EoA) or the mean of their weights (DiWA)."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.data import Domain
from shiftbed.data import load as load_dataset
from shiftbed.errors import StoreError, plural
from shiftbed.protocols import Split
from shiftbed.tables.cells import AVERAGE, OVERALL, Tested
from shiftbed.tables.estimates import Estimate
from shiftbed.tables.grids import MISSING, Grid, placed
from shiftbed.tables.table import ORACLE_MARK, Table
from shiftbed.training.job import Job
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore

NAMED = 6
KINDS = {
    "logits": "EoA: the sum of the logits of the selected jobs of all trials",
    "weights": "DiWA: the mean of the weights of all draws of a trial",
}


@dataclass(frozen=True)
class Derived:
    """A model made of several jobs, on one test domain.

    Attributes:
        accuracy: In percent.
        count: How many images were tested: those that every member tests.
        jobs: The ids of its members.
    """

    accuracy: float
    count: int
    jobs: tuple[str, ...]


def summed_logits(folder: str | Path, members: Sequence[tuple[dict[str, Any], int]], domain: str) -> Derived:
    """The accuracy of the summed logits of some jobs on the images of a domain that all of them test.

    Args:
        folder: The sweep's folder.
        members: Descriptions of jobs, each with its step.
        domain: A domain that they test, or `OVERALL`.

    Raises:
        StoreError: Of a member neither logits nor weights of its step were kept.
    """
    sums: dict[tuple[str, int], np.ndarray] = {}
    counts: dict[tuple[str, int], int] = {}
    for about, step in members:
        for split in reported_splits(about, domain):
            for index, row in zip(split.indices.tolist(), _logits(Path(folder), about, step, split), strict=True):
                image = split.domain, index
                sums[image] = sums.get(image, 0) + row.astype(np.float64)
                counts[image] = counts.get(image, 0) + 1
    common = sorted(image for image, count in counts.items() if count == len(members))
    if not common:
        raise StoreError(
            f"No image of {domain or 'the test domains'} is tested by all {len(members)} jobs; test whole domains."
        )
    data = load_dataset(members[0][0]["dataset"])
    labels = {name: np.asarray(data[name].labels) for name in {name for name, _ in common}}
    right = [int(sums[name, index].argmax()) == labels[name][index] for name, index in common]
    return Derived(100 * float(np.mean(right)), len(common), tuple(about["id"] for about, _ in members))


def averaged_weights(folder: str | Path, members: Sequence[dict[str, Any]], domain: str) -> Derived:
    """The accuracy of the mean of the weights that jobs kept, which must have begun from equal ones.

    Args:
        folder: The sweep's folder.
        members: Descriptions of jobs.
        domain: A domain that they test, or `OVERALL`.

    Raises:
        StoreError: A member kept no weights, or predicts with a network of another shape.
    """
    import torch

    from shiftbed.training.model import last_weights, load

    kept = {about["id"]: last_weights(Path(folder), about["id"]) for about in members}
    for job_id, weights in kept.items():
        if not weights.exists():
            raise StoreError(f"Job {job_id} kept no weights; run it with --keep best in a new folder.")
    models = [load(weights) for weights in kept.values()]
    tensors = [dict(one.algorithm.named_parameters()) | dict(one.algorithm.named_buffers()) for one in models]
    # Where a shape is drawn, as that of an adversary, draws differ in tensors: these become no number, which shows in
    # the logits if they are predicted with. The model with the most has all that any has.
    largest = max(range(len(models)), key=lambda place: len(tensors[place]))
    model, unequal = models[largest], False
    for name, value in tensors[largest].items():
        same = [one[name].data.double() for one in tensors if name in one and one[name].shape == value.shape]
        if value.is_floating_point() and len(same) == len(models):
            value.data.copy_(torch.stack(same).mean(dim=0))
        elif value.is_floating_point():
            value.data.fill_(torch.nan)
            unequal = True
    data, right = load_dataset(members[0]["dataset"]), []
    for split in reported_splits(members[0], domain):
        logits, _ = model.outputs(_images(data[split.domain], split))
        if unequal and not np.isfinite(logits).all():
            raise StoreError(
                f"The draws of {members[0]['algorithm']} predict with networks of unequal shapes, which have no mean; "
                "sweep with its shape set by hand (--set), or leave the algorithm out."
            )
        right.append(logits.argmax(axis=1) == np.asarray(data[split.domain].labels)[split.indices])
    every = np.concatenate(right)
    return Derived(100 * float(every.mean()), len(every), tuple(about["id"] for about in members))


def reported_splits(about: dict[str, Any], domain: str) -> list[Split]:
    """The splits whose accuracy is a job's result on a domain, or on `OVERALL` of them."""
    task = Job.from_description(about).task
    return [one for one in task.of_role("test") if domain in (OVERALL, one.domain) and one.part != "out"]


def _logits(folder: Path, about: dict[str, Any], step: int, split: Split) -> np.ndarray:
    """A job's logits of a split at a step: as they were kept, or from weights of this step."""
    from safetensors.numpy import load as decode

    kept = LocalStore(folder).get(JobFiles(about["id"]).logits.format(step=step))
    if kept is not None:
        return decode(kept)[split.name]
    from shiftbed.training.model import load

    for name in (JobFiles(about["id"]).all_weights.format(step=step), JobFiles(about["id"]).weights):
        if (folder / name).exists():
            model = load(folder / name)
            if model.about["step"] == step:
                return model.outputs(_images(load_dataset(about["dataset"])[split.domain], split))[0]
    raise StoreError(
        f"Job {about['id']} kept neither logits nor weights of step {step}; run it with --keep logits in a new folder."
    )


def _images(domain: Domain, split: Split) -> np.ndarray | Sequence[np.ndarray]:
    """The images of a split; packed ones of any size still know their original sizes."""
    return domain.inputs[split.indices]  # type: ignore[call-overload]  # arrays and packs take many places


def ensemble_grid(table: Table, kind: str) -> Grid:
    """A table's cells with several jobs as one model: the selected ones of all trials, or the draws of each trial.

    Args:
        table: The table whose jobs are the members.
        kind: One of `KINDS`.

    Raises:
        StoreError: What is needed of a job was not kept.
    """
    cells: dict[tuple[str, Any], list[Derived]] = {}
    for name in table.algorithms:
        for tested, domain in table.columns:
            members = _members(table, name, tested, kind)
            derive = summed_logits if kind == "logits" else averaged_weights
            cells[name, (tested, domain)] = [derive(table.folder, some, domain) for some in members]
    estimates = {key: Estimate.of([one.accuracy for one in found], table.se) for key, found in cells.items()}
    for name in table.algorithms:
        each = [estimates[name, column] for column in table.columns]
        means = [one.mean for one in each if one is not None]
        estimates[name, AVERAGE] = Estimate(statistics.fmean(means), None, 1) if len(means) == len(each) else None
    selection = table.selection if kind == "logits" else None  # of weights, all draws are taken
    mark = ORACLE_MARK if selection and selection.oracle else ""
    chose = f"{selection.name}: " if selection else ""
    columns = {}
    for column in (*table.columns, AVERAGE):
        found = [estimates[name, column] for name in table.algorithms]
        texts = [MISSING if one is None else _text(one, mark) for one in found]
        columns[column] = placed(texts, [None if one is None else one.mean for one in found])
    sizes = sorted({len(one.jobs) for found in cells.values() for one in found})
    return Grid(
        title=table.title,
        caption=f"{chose}accuracy in %. {KINDS[kind]}; {' or '.join(map(str, sizes)) or 'no'} "
        f"{'job' if sizes == [1] else 'jobs'} each, on the images that all of them test",
        corner="algorithm",
        columns=[table.heading(column) for column in columns],
        rows=[(name, [columns[column][row] for column in columns]) for row, name in enumerate(table.algorithms)],
        notes=[
            *([f"{mark} Oracle: the members were chosen with the test domain's labels."] if mark else []),
            *_members_named(cells),
        ],
        data=[
            {
                "dataset": table.dataset,
                "selection": selection.name if selection else None,
                "oracle": bool(mark),
                "algorithm": name,
                "ensemble": kind,
                "test": column[1],
                "accuracy": one.accuracy,
                "count": one.count,
                "members": len(one.jobs),
                "jobs": list(one.jobs),
            }
            for (name, column), found in cells.items()
            for one in found
        ],
    )


def _members_named(cells: Mapping[tuple[str, Any], Sequence[Derived]]) -> list[str]:
    """The jobs that became one model, with the domains that it was tested on; the first few."""
    domains: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, column), found in cells.items():
        for one in found:
            domains.setdefault((name, one.jobs), []).append(f"{column[1] or 'all'} ({plural(one.count, 'image')})")
    named = [f"{name} on {', '.join(tested)}: {', '.join(jobs)}." for (name, jobs), tested in domains.items()]
    if len(named) > NAMED:
        named[NAMED:] = [f"The members of {len(named) - NAMED} more are in the formats csv and json."]
    return named


def _members(table: Table, algorithm: str, tested: Tested, kind: str) -> list[Any]:
    """The jobs that become one model each: the selected ones with their steps, or all draws of each trial.

    Of a draw that diverged no weights are kept, and they would say nothing.
    """
    chosen = [one for _, one in sorted(table.chosen[algorithm].get(tested, {}).items())]
    if kind == "logits":
        return [[(one.about, one.choice.step) for one in chosen]] if chosen else []
    cells = [one.task.cells[one.task.keys[one.choice.row][0]] for one in chosen]
    draws = [
        [one.task.abouts[row] for row in range(rows.start, rows.stop) if one.task.statuses[row] == "done"]
        for one, rows in zip(chosen, cells, strict=True)
    ]
    return [some for some in draws if some]


def _text(estimate: Estimate, mark: str) -> str:
    error = "" if estimate.standard_error is None else f" ±{estimate.standard_error:.1f}"
    return f"{estimate.mean:.1f}{mark}{error}"
