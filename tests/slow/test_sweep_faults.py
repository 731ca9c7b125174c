"""Sweeps whose workers, launchers and compactors are killed and put to sleep for minutes; see `docs/faults.md`."""

import json
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from shiftbed.sweeps.compaction import part_names
from shiftbed.sweeps.records import finished_jobs
from shiftbed.tables import as_csv, as_text, read_tables
from shiftbed.training.store import LocalStore
from tests.slow.killer import launchers, send, working
from tests.sweeps.test_compaction import compact_forever, read_for

pytestmark = pytest.mark.slow
JOBS, KILLS = 60, 200
FAULTS_A_JOB = 6  # of its workers, in the minute under a reader
REST = {"worker": 0.5, "launcher": 15.0, "compactor": 2.0, "reader": 5.0}  # seconds between two faults of a kind
LAUNCHER = """
import sys
from shiftbed import Request, sweep
name, out, trials, steps, *code = sys.argv[1:]
fields = {"steps": int(steps), "evaluate_every": int(steps) // 6}
request = Request("ColoredDigits", ["ERM", "IRM", "Mixup"], 5, int(trials), ["-90%"], fields=fields)
sys.exit(bool(sweep(request, out, workers=2, device="cpu", code=code).failed))
"""
COPYING = """
from shiftbed.training.store import LocalStore
from tests.sweeps.test_compaction import CopyingStore
from shiftbed.algorithms import ERM, register

LocalStore.put_atomic = CopyingStore.put_atomic

@register()
class Copied(ERM):
    \"\"\"Stands here because a file of code must register something.\"\"\"
"""


def launch(folder: Path, trials: int, steps: int = 60, code: tuple[Path, ...] = ()) -> subprocess.Popen:
    options = ("shiftbed_launcher", folder, trials, steps, *code)
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, *map(str, options)], stdout=subprocess.DEVNULL)


def tables_of(folder: Path) -> str:
    found = read_tables(folder)
    return as_csv(found) + "\n".join(as_text(table).replace(str(folder), "DIR") for table in found)


def test_two_hundred_kills_leave_every_job_done_once_and_the_same_tables(tmp_path):
    trials = JOBS // 15
    assert launch(tmp_path / "undisturbed", trials).wait(timeout=600) == 0
    folder, log = tmp_path / "sweep", tmp_path / "kills.jsonl"
    running = [launch(folder, trials), launch(folder, trials)]
    arguments = (str(folder), str(log), str(KILLS), str(JOBS))
    killer = subprocess.Popen([sys.executable, "-m", "tests.slow.killer", *arguments])
    first_done: dict[Path, tuple[int, int, bytes]] = {}
    started, restarts = time.monotonic(), 0
    try:
        while any(one.poll() != 0 for one in running):
            assert time.monotonic() - started < 1500, "it does not come to its end"
            time.sleep(0.2)
            for path in folder.glob("jobs/*/done.json"):
                seen = (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
                assert first_done.setdefault(path, seen) == seen, "a finished job was written again"
            for place, one in enumerate(running):
                if one.poll() not in (None, 0):
                    running[place] = launch(folder, trials)
                    restarts += 1
    finally:
        for process in (killer, *running):
            process.kill()
            process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    workers, above = (sum(kind in line for line in lines) for kind in ("worker", "launcher"))
    per_job = Counter(line["job"] for line in lines if "job" in line)
    quarters = Counter(4 * line["finished"] // JOBS for line in lines if "job" in line)
    print(f"{workers} workers and {above} launchers killed in {time.monotonic() - started:.0f} s, {restarts} restarts;")
    print(f"{len(per_job)} of {JOBS} jobs lost a worker, at most {max(per_job.values())} times;")
    print(f"kills while 0, 15, 30, 45 jobs and more were done: {[quarters[quarter] for quarter in range(4)]}")
    assert workers >= KILLS and above >= 3 and restarts >= 3
    assert all(quarters[quarter] >= KILLS // 10 for quarter in range(4)), "all of the sweep is disturbed"
    ids = [job.id for job in finished_jobs(LocalStore(folder))]
    assert len(ids) == len(set(ids)) == JOBS
    assert tables_of(folder) == tables_of(tmp_path / "undisturbed")


@pytest.mark.parametrize("kind", ["rename", "copy and delete"])
def test_a_reader_misses_nothing_in_a_minute_of_kills_and_sleeps(tmp_path, kind):
    (tmp_path / "copying.py").write_text(COPYING)
    code = (tmp_path / "copying.py",) if kind == "copy and delete" else ()
    folder, trials = tmp_path / "sweep", 200  # more jobs than a minute has room for
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    store = LocalStore(folder)

    def compactor():
        process = context.Process(target=compact_forever, args=(store,), daemon=True)
        process.start()
        return process

    running = [launch(folder, trials, 12, code), launch(folder, trials, 12, code)]
    compacting = compactor()
    chance, deadline = random.Random(0), time.monotonic() + 180
    while not part_names(store):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    reader = context.Process(target=read_for, args=(store, 60, said), daemon=True)
    reader.start()
    counts: Counter[str] = Counter()
    asleep: list[tuple[float, int]] = []
    again = dict.fromkeys(REST, 0.0)
    try:
        while reader.is_alive():
            time.sleep(0.3 * chance.random())
            while asleep and time.monotonic() > asleep[0][0]:
                send(asleep.pop(0)[1], signal.SIGCONT)
            compacting = compacting if compacting.is_alive() else compactor()
            running = [one if one.poll() is None else launch(folder, trials, 12, code) for one in running]
            # Where the machine is slow, kills at the usual pace would let no job come to its end.
            finished = len(list(folder.glob("jobs/*/done.json")))
            spared = counts["worker killed"] + counts["worker asleep"] >= FAULTS_A_JOB * (finished + 4)
            alive = {
                "worker": [] if spared else sorted(working(folder)),
                "launcher": launchers(folder),
                "compactor": [compacting.pid],
                "reader": [reader.pid],
            }
            who = chance.choice([name for name in alive if time.monotonic() >= again[name] and alive[name]] or ["none"])
            if who == "none":
                continue
            again[who] = time.monotonic() + REST[who]
            pid = chance.choice(alive[who])
            if who == "reader" or chance.random() < 0.4:
                counts[f"{who} asleep"] += send(pid, signal.SIGSTOP)
                asleep.append((time.monotonic() + 1.0, pid))
            else:
                counts[f"{who} killed"] += send(pid, signal.SIGKILL)
    finally:
        for _, pid in asleep:
            send(pid, signal.SIGCONT)
        for process in (*running, compacting, reader):
            process.kill()
    assert reader.exitcode == 0, "the reader's own words are above"
    reads, jobs = said.get(timeout=10)
    print(f"{kind}: {reads} reads, at last of {jobs} jobs, {len(part_names(store))} parts; {dict(counts)}")
    assert jobs > 5 and counts["worker killed"] > 20 and counts["worker asleep"] > 5
    assert counts["compactor killed"] and counts["launcher killed"]
