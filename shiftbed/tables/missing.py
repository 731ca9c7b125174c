"""Jobs that a table lacks, and the command that runs them."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shiftbed.sweeps.designs import REDRAW, Design
from shiftbed.training.recipes import recipe_names

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
    return about["recipe"]["name"] not in recipe_names()


def sweep_command(about: dict[str, Any], jobs: Sequence[MissingJob], folder: str, design: Design) -> str | None:
    """The command that runs missing jobs, or None where there is none or the jobs do not tell their protocol.

    Args:
        about: The description of a finished job of the same setting.
        jobs: The jobs that are missing.
        folder: The sweep's folder.
        design: How hyperparameters are searched; where values are stated, only the first command knows them.
    """
    task = about["task"]
    kind, grouped, whole = task["kind"], bool(task.get("grouped")), bool(task.get("whole"))
    tested = list(dict.fromkeys(name for job in jobs for name in job.tested))
    protocol = PROTOCOLS.get((kind, max(len(job.tested) for job in jobs), grouped, whole))
    recipe = about["recipe"]
    if protocol is None or design.name == "groups" or was_imported(about):
        return None
    words = ["shiftbed", "sweep", about["dataset"]]
    words.append(f"--algorithms={','.join(sorted({job.algorithm for job in jobs}))}")
    words.append(f"--test={','.join(tested)}")
    words += [f"--draws={1 + max(job.draw for job in jobs)}", f"--trials={1 + max(job.trial for job in jobs)}"]
    words += [f"--design={design.name}"] if design.name != REDRAW else []
    words += [f"--protocol={protocol}"] if protocol != "leave-one-domain-out" else []
    words += [f"--recipe={recipe['name']}", f"--steps={recipe['steps']}"]
    words += [f"--precision={recipe['precision']}"] if "precision" in recipe else []
    words += [f"--set={name}={value}" for name, value in about["overrides"].items()]
    return shlex.join([*words, f"--out={folder}"])
