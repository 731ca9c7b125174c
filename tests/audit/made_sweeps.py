"""Made sweeps on disk: real jobs with made records, so that an audit has something to read in a moment."""

import csv

import numpy as np
from PIL import Image

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


def write_pictures(place):
    """A folder of pictures, three domains with two classes each, and a manifest of them."""
    random, folder, manifest = np.random.default_rng(0), place / "pictures", place / "listed.csv"
    rows = []
    for domain in ("one", "three", "two"):
        for label in ("cat", "dog"):
            (folder / domain / label).mkdir(parents=True)
            for number in range(12):
                path = folder / domain / label / f"{number}.png"
                cells = Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8))
                cells.resize((48, 48), Image.Resampling.BICUBIC).save(path)
                rows.append({"path": path.relative_to(place), "class": label, "domain": domain})
    with manifest.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder, manifest


def made_row(job, step, level, random):
    splits = {}
    for split in job.task.splits:
        if split.role in ("validation", "test"):
            n = len(split.indices)
            right = random.random(n) < np.clip(level + random.normal(0, 0.01), 0.05, 0.95)
            half = float(right[::2].mean())
            splits[split.name] = {"accuracy": float(right.mean()), "loss": 1.0, "count": n, "half_accuracy": half}
    return {"step": step, "splits": splits}
