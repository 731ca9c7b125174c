"""How long a store takes to compact, to load from its parts, and to open uncompacted, at three sizes.

Run: python perf/store.py [JOBS ...]
"""

import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shiftbed.selection import SELECTIONS
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.records import Records, outcomes
from shiftbed.training.files import Result
from shiftbed.training.store import LocalStore

SIZES = (1_000, 10_000, 45_900)  # the last is the study of the DomainBed paper
CHECKPOINTS = 17
DISTINCT = 1_000  # results; a group of rows in a part has those of 361 jobs, so none meets itself there
CLASSES, COUNT = 10, 400


def make_result(chance: random.Random, splits: list[str], tests: list[str]) -> Result:
    """A result with what the engine records of every split."""

    def numbers() -> dict[str, object]:
        correct = [chance.randrange(COUNT // CLASSES + 1) for _ in range(CLASSES)]
        return {
            "accuracy": sum(correct) / COUNT,
            "loss": chance.expovariate(1),
            "count": COUNT,
            "balanced_accuracy": chance.random(),
            "macro_f1": chance.random(),
            "worst_class": min(correct) / (COUNT // CLASSES),
            "calibration_error": chance.random(),
            "class_counts": [COUNT // CLASSES] * CLASSES,
            "class_correct": correct,
        }

    rows = [{"step": 300 * (i + 1), "splits": {name: numbers() for name in splits}} for i in range(CHECKPOINTS)]
    return Result.of("done", 300 * CHECKPOINTS, rows, tests)


def make_jobs(folder: Path, jobs: int) -> None:
    """Writes the files of finished jobs: five evaluated splits, as with four domains."""
    about = plan(Request("RotatedDigits", "ERM"))[0].describe()
    about["splits"] = about["splits"][:8]
    splits = [split["name"] for split in about["splits"] if split["role"] != "train"]
    tests = [split["name"] for split in about["splits"] if split["role"] == "test"]
    chance = random.Random(0)
    results = [make_result(chance, splits, tests) for _ in range(min(jobs, DISTINCT))]
    for number in range(jobs):
        about["id"] = hashlib.sha256(str(number).encode()).hexdigest()[:20]
        about |= {"algorithm": f"Algorithm{number % 14}", "draw": number // 14 % 20, "trial": number // 280 % 3}
        about["hparams"]["lr"] = chance.random()
        own = folder / "jobs" / about["id"]
        own.mkdir(parents=True)
        (own / "job.json").write_text(json.dumps(about))
        result = results[number % len(results)]
        (own / "done.json").write_bytes(result.done)
        (own / f"test-{json.loads(result.done)['test']}.json").write_bytes(result.test)


def measure(what: str, folder: Path) -> None:
    """Does one thing in this process and prints its seconds, on the clock and of all cores, and its peak memory."""
    store = LocalStore(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    started, used = time.perf_counter(), time.process_time()
    if what == "compact":
        said = str(compact(store))
    elif what == "outcomes":
        said = f"{len(outcomes(store))} jobs"
    else:
        with Records(store, ["accuracy"]) as records:
            tasks = records.tasks(["accuracy"])
        chosen = [SELECTIONS["training-domain-validation"].choices(task) for task in tasks]
        said = f"{sum(len(task.abouts) for task in tasks)} jobs, {sum(map(len, chosen))} chosen"
    seconds, used = time.perf_counter() - started, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"  {what:17} {seconds:6.2f} s ({used:5.2f} s of cores)  {peak - before:4} MB beyond imports ({before})  {said}"
    )


def main() -> None:
    """Prints all times; every one is of a new process."""
    for jobs in map(int, sys.argv[1:] or SIZES):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_jobs(folder, jobs)
            print(f"{jobs} jobs of {CHECKPOINTS} checkpoints", flush=True)
            for what in ("open uncompacted", "compact", "outcomes", "load"):
                subprocess.run([sys.executable, __file__, "--measure", what, name], check=True)
            size = sum(path.stat().st_size for path in folder.glob("parts/*"))
            print(f"  {len(list(folder.glob('parts/*'))) // 3} parts, {size / 2**20:.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
