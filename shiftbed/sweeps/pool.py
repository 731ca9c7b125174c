"""The local executor: a pool of workers forked from a warm parent."""

import json
import multiprocessing
import multiprocessing.forkserver
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from shiftbed.hashing import canonical
from shiftbed.sweeps import worker
from shiftbed.sweeps.leases import PATIENCE_SECONDS, LeaseWatch
from shiftbed.training.job import Job
from shiftbed.training.run import JobFiles, Keep, parse_records
from shiftbed.training.store import LocalStore

TICK_SECONDS = 0.25
LOOK_SECONDS = 1.0
MOST_DEATHS = 20  # of a job's workers, none of them having got further than the one before
STOP_SECONDS = 5.0


def warm_context() -> BaseContext:
    """A context whose processes are forked from a server that has torch loaded; it starts now, in the background."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__, "shiftbed.cli"])
    multiprocessing.forkserver.ensure_running()
    return context


@dataclass(eq=False)
class Seat:
    """One place in the pool: a worker process and the job it runs."""

    process: BaseProcess
    connection: Connection
    job: Job | None = None


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

    @property
    def left(self) -> int:
        """Jobs that have not ended in any way."""
        return len(self.jobs) - len(self.ended) - len(self.failed)

    def jobs_worth(self) -> float:
        """The work that is done, in jobs, the running ones counted by their steps."""
        return len(self.ended) + len(self.failed) + sum(self.running.values())


class LocalPool:
    """Runs jobs side by side on this machine.

    Args:
        store: The sweep's folder.
        workers: How many processes.
        code: Users' files that register algorithms.
        keep: Which weights to keep.
        patience: Seconds after which another launcher's silent job is taken over.
    """

    def __init__(
        self,
        store: LocalStore,
        workers: int,
        code: Sequence[Path] = (),
        keep: Keep = "none",
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._size = workers
        self._arguments = (str(store.root), [str(path) for path in code], keep)
        self._watch = LeaseWatch(store, patience)
        self._context = warm_context()
        self._seats: list[Seat] = []
        self._waiting: deque[Job] = deque()
        self._deaths: dict[str, tuple[int, int]] = {}
        self._last_look = 0.0

    def run(self, jobs: Sequence[Job], on_change: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Runs all jobs that are not done yet; a failing job never stops the others.

        Interrupted, it has the workers save what they do and leaves.
        """
        unique = list({job.id: job for job in jobs}.values())
        progress = self._progress = Progress(unique)
        for job in unique:
            done = self._store.get(JobFiles(job.id).done)
            if done is None:
                self._waiting.append(job)
            else:
                progress.ended[job.id] = json.loads(done)["status"]
        progress.found = len(progress.ended)
        try:
            while progress.left:
                self._fill_seats()
                self._hear()
                on_change(progress)
        finally:
            self._dismiss()
            progress.running = {}
        return progress

    def _fill_seats(self) -> None:
        """Gives every free seat a job that nobody else seems to run."""
        while len(self._seats) < min(self._size, self._progress.left):
            self._seats.append(self._hire())
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

    def _hire(self) -> Seat:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=worker.work, args=(theirs, *self._arguments), daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        return Seat(process, ours)

    def _assign(self, seat: Seat, job: Job) -> None:
        seat.job = job
        self._progress.running[job.id] = 0.0
        try:
            seat.connection.send_bytes(canonical(job.describe()))
        except OSError:
            self._bury(seat)

    def _hear(self) -> None:
        """Waits a moment for what the workers say; a closed connection is a dead worker."""
        by_connection = {seat.connection: seat for seat in self._seats}
        for ready in wait(list(by_connection), timeout=TICK_SECONDS):
            seat = by_connection[ready]  # type: ignore[index]
            try:
                message = json.loads(seat.connection.recv_bytes())
            except (EOFError, OSError):
                self._bury(seat)
                continue
            if message["event"] == "step":
                self._progress.running[message["id"]] = message["share"]
            elif message["event"] in ("ended", "failed"):
                self._settle(seat, message)

    def _settle(self, seat: Seat, message: dict[str, str]) -> None:
        job, seat.job = seat.job, None
        assert job is not None
        self._progress.running.pop(job.id, None)
        if message["event"] == "failed":
            self._progress.failed[job.id] = message["why"]
        elif message["outcome"] == "stopped":
            self._waiting.append(job)  # somebody else finished it, which the next look will show
        else:
            self._end(job, message["outcome"])

    def _end(self, job: Job, outcome: str) -> None:
        self._progress.elsewhere.discard(job.id)
        self._progress.ended[job.id] = outcome

    def _bury(self, seat: Seat) -> None:
        """Replaces a dead worker; its job goes first in the queue, unless it keeps killing its workers."""
        self._seats.remove(seat)
        seat.connection.close()
        seat.process.join()
        self._progress.deaths += 1
        if seat.job is None:
            return
        job = seat.job
        self._progress.running.pop(job.id, None)
        rows = len(parse_records(self._store.get(JobFiles(job.id).records)))
        deaths, rows_before = self._deaths.get(job.id, (0, -1))
        deaths = 1 if rows > rows_before else deaths + 1
        self._deaths[job.id] = (deaths, rows)
        if deaths < MOST_DEATHS:
            self._waiting.appendleft(job)
        else:
            self._progress.failed[job.id] = (
                f"its worker process died {deaths} times at the same point (out of memory, or a crash in native code)"
            )

    def _dismiss(self) -> None:
        """Lets the workers save and leave; those that do not are killed."""
        for seat in self._seats:
            if seat.process.is_alive():
                seat.process.terminate()
            seat.connection.close()
        deadline = time.monotonic() + STOP_SECONDS
        for seat in self._seats:
            seat.process.join(max(0.0, deadline - time.monotonic()))
            if seat.process.is_alive():
                seat.process.kill()
                seat.process.join()
        self._seats = []


def default_workers() -> int:
    """One process for every core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
