"""How long a page takes and how large it is: made records of a sweep on built-in data, as loose jobs.

Run: python perf/report.py
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from shiftbed.hashing import canonical
from shiftbed.report.page import write_page
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore

ALGORITHMS = ("ERM", "CORAL", "IRM", "GroupDRO", "Mixup", "MMD", "VREx", "SD")
STEPS = (50, 100, 150, 200)


def made_sweep(folder: Path, draws: int) -> int:
    """Writes finished jobs of two datasets; returns how many."""
    random, store = np.random.default_rng(0), LocalStore(folder)
    jobs = plan(Request(("ColoredDigits", "RotatedDigits"), ALGORITHMS, draws=draws, trials=3))
    remember_plan(jobs, store)
    for job in jobs:
        names = [(split.name, len(split.indices)) for split in job.task.splits if split.role != "train"]
        rows = [
            {
                "step": step,
                "splits": {
                    name: {"accuracy": round(float(random.random()), 4), "loss": 1.0, "count": count}
                    for name, count in names
                },
            }
            for step in STEPS
        ]
        where = folder / "jobs" / job.id
        where.mkdir(parents=True)
        (folder / JobFiles(job.id).job).write_bytes(canonical(job.describe()))
        (folder / JobFiles(job.id).done).write_bytes(canonical({"status": "done", "step": 200, "records": rows}))
    return len(jobs)


def main() -> None:
    """Two sizes."""
    for draws in (5, 20):
        with tempfile.TemporaryDirectory() as folder:
            count = made_sweep(Path(folder), draws)
            started, parts = time.perf_counter(), {"": time.perf_counter()}
            path = write_page(folder, on_progress=lambda part, *_: parts.setdefault(part, time.perf_counter()))  # noqa: B023
            ended = [*list(parts.values())[1:], time.perf_counter()]
            each = ", ".join(
                f"{name or 'reading'} {end - begin:.1f} s"
                for (name, begin), end in zip(parts.items(), ended, strict=True)
            )
            seconds, size = time.perf_counter() - started, path.stat().st_size / 1e6
            print(f"{count:,} jobs: {seconds:.1f} s ({each}), {size:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
