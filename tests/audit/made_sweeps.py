"""Made sweeps on disk: real jobs with made records, so that an audit has something to read in a moment."""

import numpy as np

from shiftbed.hashing import canonical
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.training.files import JobFiles, Result
from shiftbed.training.store import LocalStore


def write_sweep(
    folder,
    *,
    dataset="ColoredDigits",
    algorithms=("ERM", "Mixup", "CORAL"),
    draws=6,
    trials=2,
    seed=0,
    spread=0.05,
    **more,
):
    """A finished sweep whose accuracies are drawn: each draw has its own level, each image its own luck."""
    random = np.random.default_rng(seed)
    store = LocalStore(folder)
    jobs = plan(Request([dataset], algorithms, draws=draws, trials=trials, **more))
    remember_plan(jobs, store)
    for job in jobs:
        level = 0.6 + random.normal(0, spread)
        rows = [made_row(job, step, level, random) for step in (50, 100, 150, 200)]
        store.put_atomic(JobFiles(job.id).job, canonical(job.describe()))
        Result.of("done", 200, rows, [split.name for split in job.task.of_role("test")]).write(store, job.id)
    return store


def made_row(job, step, level, random):
    splits = {}
    for split in job.task.splits:
        if split.role in ("validation", "test"):
            n = len(split.indices)
            right = random.random(n) < np.clip(level + random.normal(0, 0.01), 0.05, 0.95)
            half = float(right[::2].mean())
            splits[split.name] = {"accuracy": float(right.mean()), "loss": 1.0, "count": n, "half_accuracy": half}
    return {"step": step, "splits": splits}
