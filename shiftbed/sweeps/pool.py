"""The local executor: a pool of workers forked from a warm parent."""

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from shiftbed.errors import ShiftbedError
from shiftbed.hashing import canonical
from shiftbed.sweeps.capacity import Capacity, Memory
from shiftbed.sweeps.forkserver import ForkServer
from shiftbed.sweeps.leases import PATIENCE_SECONDS, LeaseWatch
from shiftbed.sweeps.plan import distinct
from shiftbed.sweeps.records import outcomes
from shiftbed.training.device import Runtime
from shiftbed.training.job import Job
from shiftbed.training.run import JobFiles, Keep, parse_records
from shiftbed.training.store import DiskFullError, LocalStore, Store

TICK_SECONDS = 0.25
LOOK_SECONDS = 1.0
MOST_DEATHS = 20  # of a job's workers, none of them having got further than the one before
STOP_SECONDS = 5.0


@dataclass(eq=False)
class Seat:
    """One place in the pool: the connection to a worker, its process once it has said so, and the job it runs.

    Attributes:
        crowd: The most jobs that shared the device while this one ran.
    """

    connection: Connection
    runtime: Runtime
    pid: int | None = None
    job: Job | None = None
    crowd: int = 0
    looked: float = 0.0
    seen_done: bool = False


@dataclass
class Progress:
    """How far a sweep has come.

    Attributes:
        ended: Outcome of every job that has ended, by id.
        failed: Why a job failed, by id.
        running: The share of its steps that every job running here has made, by id.
        elsewhere: Jobs that another launcher seems to run.
        deaths: Workers that died and were replaced.
        found: Jobs that were done before this run.
    """

    jobs: Sequence[Job]
    ended: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    deaths: int = 0
    found: int = 0

    @classmethod
    def of(cls, jobs: Sequence[Job], store: Store) -> "Progress":
        """Jobs before a run, those in the store ended: in compacted parts too, which a merged one may consist of."""
        unique, finished = distinct(jobs), outcomes(store)
        ended = {job.id: finished[job.id] for job in unique if job.id in finished}
        return cls(unique, ended, found=len(ended))

    @property
    def left(self) -> int:
        """Jobs that have not ended in any way."""
        return len(self.jobs) - len(self.ended) - len(self.failed)

    def state(self, job_id: str) -> str:
        """Where a job stands: done, diverged, failed, running (here or elsewhere) or left."""
        if job_id in self.ended:
            return self.ended[job_id]
        if job_id in self.failed:
            return "failed"
        return "running" if job_id in self.running or job_id in self.elsewhere else "left"

    def disk_full(self, why: str) -> DiskFullError:
        """The error of a sweep that stopped since its store has no room.

        Args:
            why: What the first job that met it said.
        """
        done = f"{len(self.ended):,} of {len(self.jobs):,} jobs"
        return DiskFullError(f"{why} The sweep started no further job; {done} have ended.")

    def joined(self, other: "Progress") -> "Progress":
        """This and a later stage as one."""
        return Progress(
            [*self.jobs, *other.jobs],
            self.ended | other.ended,
            self.failed | other.failed,
            deaths=self.deaths + other.deaths,
            found=self.found + other.found,
        )

    def jobs_worth(self) -> float:
        """The work that is done, in jobs, the running ones counted by their steps."""
        return len(self.ended) + len(self.failed) + sum(self.running.values())


class Deaths:
    """How often the processes of jobs died at the same point, which their records tell."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[int, int]] = {}

    def another(self, job_id: str) -> int:
        """Counts one more; how many there are, none of them having got further than the one before."""
        rows = len(parse_records(self._store.get(JobFiles(job_id).records)))
        deaths, rows_before = self._seen.get(job_id, (0, -1))
        deaths = 1 if rows > rows_before else deaths + 1
        self._seen[job_id] = (deaths, rows)
        return deaths


class LocalPool:
    """Runs jobs side by side on this machine, once.

    Args:
        store: The sweep's folder.
        workers: How many processes.
        code: Users' files that register algorithms.
        keep: Which weights to keep.
        runtimes: The devices; workers are spread over them.
        capacity: How many workers each device may have; without it as many as there are.
        patience: Seconds after which another launcher's silent job is taken over.
    """

    def __init__(
        self,
        store: LocalStore,
        workers: int,
        code: Sequence[Path] = (),
        keep: Keep = "none",
        runtimes: Sequence[Runtime] = (Runtime(),),
        capacity: Capacity | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._size = workers
        self._arguments = {"root": str(store.root), "code": [str(path) for path in code], "keep": keep}
        self._runtimes = runtimes
        self._capacity = capacity or Capacity(workers, measured=False)
        self._watch = LeaseWatch(store, patience)
        self._server: ForkServer | None = None  # takes seconds to start, and there may be nothing to run
        self._seats: list[Seat] = []
        self._waiting: deque[Job] = deque()
        self._deaths = Deaths(store)
        self._last_look = 0.0
        self._full = ""  # why nothing more can be written, once a job has met that

    def run(self, jobs: Sequence[Job], on_change: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Runs all jobs that are not done yet; a failing job never stops the others.

        Interrupted, it has the workers save what they do and leaves.

        Raises:
            DiskFullError: The store has no room; jobs that ran came to their end, if they could, and no other began.
        """
        progress = self._progress = Progress.of(jobs, self._store)
        self._waiting.extend(job for job in progress.jobs if job.id not in progress.ended)
        try:
            while progress.left:
                if not self._full:
                    self._fill_seats()
                elif not any(seat.job for seat in self._seats):
                    raise progress.disk_full(self._full)
                self._hear()
                self._leave_sleepers()
                on_change(progress)
        finally:
            self._dismiss()
            progress.running = {}
        return progress

    def _fill_seats(self) -> None:
        """Gives every free seat a job that nobody else seems to run."""
        while len(self._seats) < min(self._size, self._progress.left):
            used = [seat.runtime for seat in self._seats]
            roomy = [runtime for runtime in self._runtimes if used.count(runtime) < self._capacity.of(runtime)]
            if not roomy:
                break
            runtime = min(roomy, key=used.count)  # the device with the fewest workers
            self._server = self._server or ForkServer()
            self._seats.append(Seat(self._server.fork(**self._arguments, runtime=asdict(runtime)), runtime))
        free = [seat for seat in self._seats if seat.job is None]
        # While all that waits is held elsewhere, looking at the leases once a second is enough.
        if not free or (self._all_elsewhere() and time.monotonic() - self._last_look < LOOK_SECONDS):
            return
        self._last_look = time.monotonic()
        for _ in range(len(self._waiting)):
            if not free:
                return
            job = self._waiting.popleft()
            done = self._store.get(JobFiles(job.id).done)
            if done is not None:
                self._end(job, json.loads(done)["status"])
            elif self._watch.held(job.id):
                self._progress.elsewhere.add(job.id)
                self._waiting.append(job)
            else:
                self._progress.elsewhere.discard(job.id)
                self._assign(free.pop(), job)

    def _all_elsewhere(self) -> bool:
        return all(job.id in self._progress.elsewhere for job in self._waiting)

    def _assign(self, seat: Seat, job: Job) -> None:
        seat.job, seat.looked, seat.seen_done, seat.crowd = job, time.monotonic(), False, 0
        sharing = [other for other in self._seats if other.job is not None and other.runtime == seat.runtime]
        for other in sharing:
            other.crowd = max(other.crowd, len(sharing))
        self._progress.running[job.id] = 0.0
        try:
            seat.connection.send_bytes(canonical(job.describe()))
        except OSError:
            self._bury(seat)

    def _hear(self) -> None:
        """Waits a moment for what the workers say; a closed connection is a dead worker."""
        for seat in self._heard():
            try:
                message = json.loads(seat.connection.recv_bytes())
            except (EOFError, OSError):
                self._bury(seat)
                continue
            if message["event"] == "ready":
                seat.pid = message["pid"]
            elif message["event"] == "broken":
                raise ShiftbedError(f"Workers cannot start: {message['why']}")
            elif message["event"] == "step":
                self._progress.running[message["id"]] = message["share"]
            elif message["event"] == "memory":
                if seat.crowd == 1:
                    self._capacity.saw(seat.runtime, Memory(*message["bytes"]))
            else:
                self._settle(seat, message)

    def _heard(self) -> list[Seat]:
        """The seats that have something to say, or have fallen silent for good."""
        ready = wait([seat.connection for seat in self._seats], timeout=TICK_SECONDS)
        return [seat for seat in self._seats if seat.connection in ready]

    def _settle(self, seat: Seat, message: dict[str, Any]) -> None:
        job, seat.job = seat.job, None
        if job is None:
            return
        self._progress.running.pop(job.id, None)
        if message.get("out_of_memory") and seat.crowd > 1:
            self._capacity.ran_out(seat.runtime, seat.crowd)
            self._waiting.append(job)
        elif message["event"] == "full":
            self._full = self._full or message["why"]
            self._waiting.append(job)
        elif message["event"] == "failed":
            self._progress.failed[job.id] = message["why"]
        elif message["outcome"] == "stopped":
            self._waiting.append(job)  # somebody else finished it, which the next look will show
        else:
            self._end(job, message["outcome"])
        lost = message["event"] == "failed" and seat.runtime.on_gpu  # a failed kernel leaves no device to its process
        if lost or [other.runtime for other in self._seats].count(seat.runtime) > self._capacity.of(seat.runtime):
            self._seats.remove(seat)
            seat.connection.close()  # upon which the worker leaves

    def _leave_sleepers(self) -> None:
        """Gives up workers whose job somebody else has finished: stopped or hung, they may never say so themselves."""
        now = time.monotonic()
        for seat in [seat for seat in self._seats if seat.job is not None and now - seat.looked > LOOK_SECONDS]:
            seat.looked = now
            assert seat.job is not None
            done = self._store.get(JobFiles(seat.job.id).done)
            if done is None:
                seat.seen_done = False
            elif not seat.seen_done:
                seat.seen_done = True  # its own word is probably on the way
            else:
                job, seat.job = seat.job, None
                self._progress.running.pop(job.id, None)
                self._end(job, json.loads(done)["status"])
                _send_signal(seat, signal.SIGKILL)

    def _end(self, job: Job, outcome: str) -> None:
        self._progress.elsewhere.discard(job.id)
        self._progress.ended[job.id] = outcome

    def _bury(self, seat: Seat) -> None:
        """Replaces a dead worker; its job goes first in the queue, unless it keeps killing its workers."""
        self._seats.remove(seat)
        seat.connection.close()
        self._progress.deaths += 1
        if seat.job is None:
            return
        job = seat.job
        self._progress.running.pop(job.id, None)
        deaths = self._deaths.another(job.id)
        if deaths < MOST_DEATHS:
            self._waiting.appendleft(job)
        else:
            why = f"its worker process died {deaths} times at the same point (out of memory, or a crash in native code)"
            self._progress.failed[job.id] = why
            self._store.put_atomic(JobFiles(job.id).failure, canonical({"why": why}))

    def _dismiss(self) -> None:
        """Lets the workers save and leave; those that do not are killed."""
        for seat in self._seats:
            _send_signal(seat, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self._seats and time.monotonic() < deadline:
            for seat in self._heard():
                try:
                    message = json.loads(seat.connection.recv_bytes())
                except (EOFError, OSError):
                    seat.connection.close()
                    self._seats.remove(seat)
                    continue
                if message["event"] == "ready":
                    seat.pid = message["pid"]
                    _send_signal(seat, signal.SIGTERM)
        for seat in self._seats:
            _send_signal(seat, signal.SIGKILL)
            seat.connection.close()
        if self._server is not None:
            self._server.close()


def _send_signal(seat: Seat, number: signal.Signals) -> None:
    """A worker that has not said its process yet cannot be signalled; it leaves when its connection closes."""
    if seat.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(seat.pid, number)


def default_workers() -> int:
    """One process for every core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
