"""Jobs that a table lacks, and the command that runs them."""

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shiftbed.algorithms import ALGORITHMS
from shiftbed.errors import ShiftbedError
from shiftbed.hashing import canonical
from shiftbed.selection import Cadence
from shiftbed.sweeps.designs import REDRAW, Design
from shiftbed.sweeps.domainbed_format import RECIPE as IMPORTED
from shiftbed.training.recipes import recipe, recipe_names

NAMED = 4
PROTOCOLS = {  # kind of task, number of domains tested together, grouped, whole
    ("leave-out", 1, False, False): "leave-one-domain-out",
    ("leave-out", 1, False, True): "leave-one-domain-out:whole=true",
    ("leave-out", 1, True, False): "leave-one-domain-out-grouped",
    ("leave-out", 2, False, False): "leave-pair-out",
}


class MissingJob(NamedTuple):
    """A job that a table lacks."""

    algorithm: str
    tested: tuple[str, ...]
    trial: int
    draw: int
    by_hand: str = ""  # what of the algorithm's own was set by hand, as JSON


def named_jobs(jobs: Iterable[MissingJob]) -> str:
    """Which jobs they are, the first few by name."""
    cells: dict[tuple[str, tuple[str, ...]], list[MissingJob]] = defaultdict(list)
    for job in sorted(jobs):
        cells[job.algorithm, job.tested].append(job)
    shown = []
    for (algorithm, tested), members in list(cells.items())[:NAMED]:
        trials, draws = (sorted({getattr(job, name) for job in members}) for name in ("trial", "draw"))
        where = f"{_numbers('trial', trials)}, {_numbers('draw', draws)}"
        shown.append(f"{algorithm} on {' and '.join(tested)}: {where}")
    more = len(cells) - len(shown)
    return "; ".join(shown) + (f"; and {more} more cells" if more > 1 else "; and 1 more cell" if more else "")


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{noun}s {numbers[0]} to {numbers[-1]}"
    return f"{noun}s {', '.join(map(str, numbers))}"


def was_imported(about: dict[str, Any]) -> bool:
    """Whether a job was trained elsewhere, by no recipe of ours."""
    return about["recipe"]["name"] == IMPORTED


def sweep_command(
    about: dict[str, Any], jobs: Sequence[MissingJob], folder: str, design: Design, selection: str
) -> str | None:
    """The command that runs missing jobs, or None where no words of `shiftbed sweep` do, or they cannot be told.

    Args:
        about: The description of a finished job of the same setting.
        jobs: The jobs that are missing.
        folder: The sweep's folder.
        design: How hyperparameters are searched; where values are stated, only the first command knows them.
        selection: Whose winners are trained again, in a design of two stages.
    """
    task = about["task"]
    kind, grouped, whole = task["kind"], bool(task.get("grouped")), bool(task.get("whole"))
    tested = list(dict.fromkeys(name for job in jobs for name in job.tested))
    protocol = PROTOCOLS.get((kind, max(len(job.tested) for job in jobs), grouped, whole))
    how = about["recipe"]
    by_hand = _set_by_hand(about, jobs)
    if protocol is None or design.name == "groups" or was_imported(about) or by_hand is None or _has_own_fields(about):
        return None
    if any(job.algorithm not in ALGORITHMS for job in jobs):  # a class of somebody's file, which --code must name
        return None
    words = ["shiftbed", "sweep", about["dataset"]]
    words.append(f"--algorithms={','.join(sorted({job.algorithm for job in jobs}))}")
    words.append(f"--test={','.join(tested)}")
    words += [f"--draws={1 + max(job.draw for job in jobs)}", f"--trials={1 + max(job.trial for job in jobs)}"]
    words += [f"--design={design.name}"] if design.name != REDRAW else []
    words += [f"--selection={selection}"] if design.two_stages else []
    words += [f"--protocol={protocol}"] if protocol != "leave-one-domain-out" else []
    words += [f"--recipe={how['name']}", f"--steps={how['steps']}"]
    words += [f"--precision={how['precision']}"] if "precision" in how else []
    words += [f"--set={name}={value}" for name, value in by_hand.items()]
    words += [f"--adapt={task['adapt']}"] if task.get("adapt") else []
    return shlex.join([*words, f"--out={folder}"])


def _set_by_hand(about: dict[str, Any], jobs: Sequence[MissingJob]) -> dict[str, Any] | None:
    """The hyperparameters that were set by hand; None where jobs of one sweep have another value than others."""
    each = {(job.algorithm, job.by_hand) for job in jobs}
    values: dict[str, Any] = dict(about["overrides"])
    for name, value in (pair for _, own in each for pair in json.loads(own or "{}").items()):
        if values.setdefault(name, value) != value:
            return None
    return values if len(each) == len({algorithm for algorithm, _ in each}) else None


def _has_own_fields(about: dict[str, Any]) -> bool:
    """Whether fields of the recipe were set that `shiftbed sweep` has no word for."""
    given = about["recipe"]
    if given["name"] not in recipe_names():  # a file of somebody's, which --recipe must name
        return True
    try:
        usual = recipe(given["name"], about["dataset"]).model_dump()
    except ShiftbedError:  # a dataset that is not here
        return False
    spoken = ("steps", "precision", "summary", *Cadence._fields)  # of which the last do not make another job
    compared = [name for name in usual if name in given and name not in spoken]
    return any(canonical(given[name]) != canonical(usual[name]) for name in compared)
