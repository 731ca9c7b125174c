"""What running jobs costs beside the jobs: replaced workers, idle cores, scheduling.

Run: python perf/pool.py [workers] [busy] [ray] [scheduling] [gpu]
"""

import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from shiftbed.algorithms import ALGORITHMS
from shiftbed.sweeps import pool
from shiftbed.sweeps.capacity import Capacity, Memory
from shiftbed.sweeps.forkserver import ForkServer
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.sweeps.pool import LocalPool, default_workers
from shiftbed.training.device import Runtime
from shiftbed.training.store import LocalStore

REPEATS = 5
BUSY_JOBS = 200
GPU_JOBS, GPU_STEPS = 6, 300
SIZES = (100, 1_000, 10_000, 100_000)
SLEEPER = '''
import time
from shiftbed.algorithms import ERM, Space, constant, register

@register(space=Space(number=constant(0)))
class Sleeper(ERM):
    """Takes a second, whatever else the machine does."""

    def update(self, minibatches, unlabeled=None):
        time.sleep(1.0)
        return {"loss": 0.0}
'''


def seconds_to_ready(server: ForkServer, root: str) -> float:
    """Starts a worker, waits until it says that it is ready, and kills it."""
    started = time.perf_counter()
    connection = server.fork(root=root, code=[], keep="none", runtime=asdict(Runtime()))
    ready = json.loads(connection.recv_bytes())
    elapsed = time.perf_counter() - started
    os.kill(ready["pid"], signal.SIGKILL)
    connection.close()
    return elapsed


def seconds_from_nothing(root: str) -> float:
    """Starts a server and a worker of its own."""
    started = time.perf_counter()
    server = ForkServer()
    seconds_to_ready(server, root)
    elapsed = time.perf_counter() - started
    server.close()
    return elapsed


def replaced_workers() -> None:
    """How long a replaced worker takes to be ready, against a worker started from nothing."""
    with tempfile.TemporaryDirectory() as root:
        warm = ForkServer()
        seconds_to_ready(warm, root)
        replaced = [seconds_to_ready(warm, root) for _ in range(REPEATS)]
        warm.close()
        cold = [seconds_from_nothing(root) for _ in range(REPEATS)]
    print(f"replaced worker: median {statistics.median(replaced):.3f} s of {[round(s, 3) for s in replaced]}")
    print(f"worker from nothing: median {statistics.median(cold):.3f} s of {[round(s, 3) for s in cold]}")
    print(f"ratio: {statistics.median(cold) / statistics.median(replaced):.0f}")


def busy_share(on: str) -> None:
    """The share of all workers' time, from the start of the sweep to its end, that was spent in jobs of a second."""
    from shiftbed.sweeps.verbs import sweep

    workers = default_workers()
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "sleeper.py"
        code.write_text(SLEEPER)
        if on == "ray":
            import ray

            ray.init(num_cpus=workers, log_to_driver=False)  # the sweep joins it; starting it is not the sweep's cost
        request = Request(
            "ColoredDigits", "Sleeper", draws=BUSY_JOBS, test_domains=["-90%"], fields={"steps": 1, "evaluate_every": 1}
        )
        started = time.perf_counter()
        progress = sweep(request, folder, workers=workers, device="cpu", on=on, code=[code])  # type: ignore[arg-type]
        wall = time.perf_counter() - started
        times = [json.loads(path.read_bytes()) for path in Path(folder).glob("jobs/*/times.json")]
    jobs = sum(attempt["seconds"] for attempts in times for attempt in attempts)
    words = f"{len(progress.ended)} jobs of {jobs / len(times):.3f} s on {workers} workers in {wall:.1f} s"
    print(f"{on}: {words}: {100 * jobs / workers / wall:.1f} % busy")


def jobs_on_gpu() -> None:
    """Seconds of a few jobs on a GPU one by one, and as many at once as the first was seen to leave room for."""
    from shiftbed.sweeps.verbs import sweep

    fields = {"steps": GPU_STEPS, "evaluate_every": GPU_STEPS // 5}
    request = Request("ColoredDigits", "Mixup", trials=GPU_JOBS, test_domains=["-90%"], fields=fields)
    saw = Capacity.saw

    def say(capacity: Capacity, runtime: Runtime, memory: Memory) -> None:
        saw(capacity, runtime, memory)
        seen = f"{memory.used / 2**20:,.0f} of {memory.total / 2**20:,.0f} MiB"
        print(f"  a job alone needs {seen}: {capacity.of(runtime)} at once", flush=True)

    for jobs_per_device in (1, None):
        crowds: list[int] = []
        Capacity.saw = say if jobs_per_device is None else saw  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            progress = sweep(
                request,
                folder,
                device="cuda",
                jobs_per_device=jobs_per_device,
                on_change=lambda progress, crowds=crowds: crowds.append(len(progress.running)),
            )
            wall = time.perf_counter() - started
        said = (
            f"{len(progress.ended)} jobs in {wall:.1f} s, at most {max(crowds)} at once, {len(progress.failed)} failed"
        )
        print(f"{jobs_per_device or 'auto'} on the GPU: {said}", flush=True)


class InstantServer:
    """Stands in for the fork server; its workers end every job at once."""

    def fork(self, **arguments: object) -> "InstantWorker":
        """A worker."""
        return InstantWorker()

    def close(self) -> None:
        """Nothing is left."""


class InstantWorker:
    """Answers that it is done."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send_bytes(self, data: bytes) -> None:
        """Takes a job."""
        self.messages.append(json.dumps({"event": "ended", "outcome": "done"}).encode())

    def recv_bytes(self) -> bytes:
        """What it says."""
        return self.messages.pop()

    def close(self) -> None:
        """Nothing is left."""


def scheduling() -> None:
    """Microseconds a job to plan, to remember the plan, and to hand out, with workers that take no time."""
    pool.ForkServer = InstantServer  # type: ignore[misc, assignment]
    pool.wait = lambda connections, timeout: [one for one in connections if one.messages]  # type: ignore[assignment]
    pool.STOP_SECONDS = 0.0
    algorithms = list(ALGORITHMS)[:16]
    for size in (SIZES[0], *SIZES):  # the first again: it finds nothing loaded
        with tempfile.TemporaryDirectory() as folder:
            store = LocalStore(Path(folder))
            times = [time.perf_counter()]
            jobs = plan(Request("ColoredDigits", algorithms, draws=math.ceil(size / 48)))
            _ = [job.id for job in jobs]
            times.append(time.perf_counter())
            remember_plan(jobs, store)
            times.append(time.perf_counter())
            ended = LocalPool(store, 8).run(jobs).ended
            times.append(time.perf_counter())
        parts = [1e6 * (after - before) / len(jobs) for before, after in pairwise(times)]
        words = ", ".join(f"{name} {part:.0f}" for name, part in zip(("plan", "store", "hand out"), parts, strict=True))
        print(f"{len(ended):,} jobs: {sum(parts):.0f} µs a job ({words})", flush=True)


def main() -> None:
    """Prints what is asked for; without a word all but Ray and the GPU."""
    for word in sys.argv[1:] or ("workers", "scheduling", "busy"):
        {"workers": replaced_workers, "scheduling": scheduling, "gpu": jobs_on_gpu}.get(
            word, lambda word=word: busy_share("ray" if word == "ray" else "local")
        )()


if __name__ == "__main__":
    main()
