"""Kills the workers of a sweep, and now and then a launcher: `python killer.py FOLDER LOG KILLS JOBS`.

It picks live workers that have started a job, as their leases say, and logs every kill as a line of JSON; KILLS are of
workers, those of launchers come on top. They are spread over the sweep: as many of them as jobs are done, in
proportion, and a few ahead.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

LAUNCHER_EVERY = 25  # kills of workers
PAUSE = 0.3  # seconds, at most
AHEAD = 6  # jobs


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def working(folder: Path) -> dict[int, str]:
    """The processes that have started a job and not ended it, with the job."""
    found = {}
    for path in folder.glob("jobs/*/lease.json"):
        try:
            claim = json.loads(path.read_text() or "{}")
        except ValueError:  # it is being written
            continue
        if claim and not (path.parent / "done.json").exists():
            found[claim["pid"]] = path.parent.name
    return {pid: job for pid, job in found.items() if "shiftbed.sweeps.forkserver" in command_of(pid)}


def launchers(folder: Path) -> list[int]:
    """The processes that run a sweep into the folder."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if "shiftbed_launcher" in command_of(pid) and str(folder) in command_of(pid)]


def send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def main(folder: Path, log: Path, kills: int, jobs: int) -> None:
    chance = random.Random(0)
    done = 0
    with log.open("a") as file:
        while done < kills:
            time.sleep(PAUSE * chance.random())
            victims = working(folder)
            finished = len(list(folder.glob("jobs/*/done.json")))
            if not victims or done * jobs > kills * (finished + AHEAD):
                continue
            pid = chance.choice(sorted(victims))
            if not send(pid, signal.SIGKILL):
                continue
            done += 1
            line = {"kill": done, "worker": pid, "job": victims[pid], "finished": finished}
            print(json.dumps(line), file=file, flush=True)
            above = launchers(folder) if done % LAUNCHER_EVERY == 0 else []
            if above and send(above[0], signal.SIGKILL):
                print(json.dumps({"kill": done, "launcher": above[0]}), file=file, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
