"""How long tables take, and how much memory: made records of DomainBed's whole sweep, all selections.

Run: python perf/tables.py
"""

import multiprocessing
import resource
import time
from itertools import combinations

import numpy as np

from shiftbed.selection import SELECTIONS, TaskRecords
from shiftbed.tables import as_csv, as_text, tables_of

DATASETS = {"CMNIST": 3, "RMNIST": 6, "VLCS": 4, "PACS": 4, "OfficeHome": 4, "Terra": 4, "DomainNet": 6}
ALGORITHMS = ("ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN")
TRIALS, CHECKPOINTS = 3, 17
METRICS = ("accuracy", "loss")


def made_task(
    dataset: str, domains: list[str], tested: tuple[str, ...], draws: int, random: np.random.Generator
) -> TaskRecords:
    """The records of all algorithms, trials and draws of one task."""
    splits = [
        {"name": f"{d}/{p}", "domain": d, "part": p, "role": "test" if d in tested else r, "count": 100}
        for d in domains
        for p, r in (("in", "train"), ("out", "validation"))
    ]
    shared = {
        "dataset": dataset,
        "version": 1,
        "revision": 1,
        "test_domains": list(tested),
        "task": {"kind": "leave-out", "test": list(tested), "grouped": False},
        "recipe": {"name": "made", "steps": 4800, "evaluate_every": 300},
        "overrides": {},
        "own_overrides": {},
        "setting": f"{dataset}-{len(tested)}",
        "splits": splits,
        "hparams": {"lr": 1e-3},
    }
    abouts = [
        {**shared, "id": f"{dataset}-{tested}-{a}-{t}-{d}", "algorithm": a, "trial": t, "draw": d}
        for a in sorted(ALGORITHMS)
        for t in range(TRIALS)
        for d in range(draws)
    ]
    shape = (len(abouts), CHECKPOINTS, len(splits))
    steps = np.tile(np.arange(CHECKPOINTS) * 300, (len(abouts), 1))
    values = {metric: random.random(shape) for metric in METRICS}
    values["count"] = np.broadcast_to(np.float64(100), shape)
    return TaskRecords(abouts, ["done"] * len(abouts), splits, steps, values)


def made_sweep(draws: int) -> list[TaskRecords]:
    """All tasks of DomainBed's sweep: every domain alone, and every pair of them."""
    random = np.random.default_rng(0)
    tasks = []
    for dataset, count in DATASETS.items():
        domains = [f"domain {number}" for number in range(count)]
        tests = [*combinations(domains, 1), *combinations(domains, 2)]
        tasks += [made_task(dataset, domains, tested, draws, random) for tested in tests]
    return tasks


def measure(draws: int) -> None:
    """Prints the time and the peak of memory of one size."""
    every = [SELECTIONS[name] for name in SELECTIONS]
    rules = [rule for rule in every if rule.rule.__module__.startswith("shiftbed.selection")]  # not those of the audit
    tasks = made_sweep(draws)
    jobs = sum(len(task.abouts) for task in tasks)
    before = _peak()
    started, busy = time.perf_counter(), time.process_time()
    tables = tables_of(tasks, rules)
    chosen = time.perf_counter() - started
    size = len("".join(map(as_text, tables))) + len(as_csv(tables))
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    print(
        f"{jobs:6,} jobs × {CHECKPOINTS} checkpoints, {len(rules)} selections: {seconds:.2f} s "
        f"({chosen:.2f} s of it selection; {busy:.2f} s of processor time), "
        f"{1e6 * seconds / jobs / CHECKPOINTS:.2f} µs a record, "
        f"peak {_peak():.2f} GB ({before:.2f} GB with the records read), {len(tables)} tables, "
        f"{size / 1e6:.1f} MB of text",
        flush=True,
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Three sizes, each in a process of its own, so that none has the memory of another."""
    for draws in (5, 10, 20):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(draws,))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
