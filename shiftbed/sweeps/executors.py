"""What runs a sweep's jobs: the interface of all executors, and what those of clusters share."""

import importlib
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from shiftbed.errors import ShiftbedError
from shiftbed.hashing import canonical
from shiftbed.sweeps.leases import LeaseWatch
from shiftbed.sweeps.pool import Deaths, Progress
from shiftbed.training.device import Runtime, find_runtime
from shiftbed.training.job import Job
from shiftbed.training.run import JobFiles, Keep, parse_records
from shiftbed.training.store import LocalStore

MOST_DEATHS = 3  # of a job's attempts, none of them having got further than the one before
MOST_SUBMITTED = 1000  # jobs at once; also what Slurm allows in one array by default
LOOK_SECONDS = 2.0


class Executor(Protocol):
    """Runs jobs somewhere. `LocalPool` does it on this machine."""

    def run(self, jobs: Sequence[Job], on_change: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Runs all jobs that are not done yet; a failing job never stops the others."""


class ClusterExecutor(ABC):
    """Runs jobs through a scheduler that has its own queue; a subclass says how to submit and how to hear.

    Args:
        store: The sweep's folder, under a path that all machines of the cluster see.
        code: Users' files that register algorithms, under such paths too.
        keep: Which weights to keep.
        runtime: The device of every job.
    """

    def __init__(
        self,
        store: LocalStore,
        code: Sequence[Path] = (),
        keep: Keep = "none",
        runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
    ) -> None:
        self._store = LocalStore(store.root.resolve())
        self._arguments: dict[str, Any] = {
            "root": str(self._store.root),
            "code": [str(path.resolve()) for path in code],
            "keep": keep,
            "runtime": asdict(runtime),
        }
        self._watch = LeaseWatch(self._store)
        self._waiting: deque[Job] = deque()
        self._submitted: dict[str, Job] = {}
        self._deaths = Deaths(self._store)
        self._looked = 0.0
        self._filled = 0.0
        self._full = ""  # why nothing more can be written, once a job has met that

    @abstractmethod
    def _submit(self, jobs: list[Job]) -> None:
        """Puts jobs into the scheduler's queue."""

    @abstractmethod
    def _hear(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Waits a moment; gives the id and the event (`ended`, `failed`, `full`, `died`) of every job that is over."""

    @abstractmethod
    def _dismiss(self) -> None:
        """Takes what is submitted out of the queue and lets what runs save and leave."""

    def run(self, jobs: Sequence[Job], on_change: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Runs all jobs that are not done yet; a failing job never stops the others.

        Raises:
            DiskFullError: The store has no room; what runs or waits in the queue is dismissed.
        """
        progress = self._progress = Progress.of(jobs, self._store)
        self._waiting.extend(job for job in progress.jobs if job.id not in progress.ended)
        try:
            while progress.left:
                if self._waiting and len(self._submitted) <= MOST_SUBMITTED // 2:
                    self._fill_queue()
                for job_id, message in self._hear():
                    self._settle(self._submitted.pop(job_id), message)
                if self._full:
                    raise progress.disk_full(self._full)
                self._look()
                on_change(progress)
        finally:
            self._dismiss()
            self._submitted, progress.running = {}, {}
            self._waiting.clear()
        return progress

    def _fill_queue(self) -> None:
        """Submits what is not done and runs nowhere: another launcher, or one now dead, may have submitted it."""
        elsewhere = self._progress.elsewhere
        if time.monotonic() - self._filled < LOOK_SECONDS and all(job.id in elsewhere for job in self._waiting):
            return
        self._filled = time.monotonic()
        batch: list[Job] = []
        for _ in range(len(self._waiting)):
            if len(self._submitted) + len(batch) == MOST_SUBMITTED:
                break
            job = self._waiting.popleft()
            if self._is_done(job.id):
                continue
            if self._watch.held(job.id):
                elsewhere.add(job.id)
                self._waiting.append(job)
            else:
                elsewhere.discard(job.id)
                batch.append(job)
        self._submitted |= {job.id: job for job in batch}
        if batch:
            self._submit(batch)

    def _is_done(self, job_id: str) -> bool:
        """Looks whether the job is done; if so it has ended."""
        done = self._store.get(JobFiles(job_id).done)
        if done is not None:
            self._progress.elsewhere.discard(job_id)
            self._progress.ended[job_id] = json.loads(done)["status"]
        return done is not None

    def _settle(self, job: Job, message: dict[str, Any]) -> None:
        self._progress.running.pop(job.id, None)
        if self._is_done(job.id):  # whatever became of the attempt
            return
        if message["event"] == "full":
            self._full = message["why"]
        elif message["event"] == "failed":
            self._progress.failed[job.id] = message["why"]
        elif message["event"] == "ended":
            self._waiting.append(job)  # it was stopped from outside
        else:
            self._bury(job, message["why"])

    def _bury(self, job: Job, why: str) -> None:
        """Submits a job again whose process or node is gone, unless that keeps happening at the same point."""
        self._progress.deaths += 1
        deaths = self._deaths.another(job.id)
        if deaths < MOST_DEATHS:
            self._waiting.append(job)
            return
        sentence = f"its process died {deaths} times at the same point ({why})"
        self._progress.failed[job.id] = sentence
        self._store.put_atomic(JobFiles(job.id).failure, canonical({"why": sentence}))

    def _look(self) -> None:
        """Sees from the leases which jobs run, and from the records how far they are."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self._progress.running = {
            job.id: self._share(job) for job in self._submitted.values() if self._watch.held(job.id)
        }

    def _share(self, job: Job) -> float:
        rows = parse_records(self._store.get(JobFiles(job.id).records))
        return rows[-1]["step"] / job.recipe.steps if rows else 0.0


def cluster_runtime(device: str | None = None, deterministic: bool = False) -> Runtime:
    """The runtime of jobs on a cluster: as named, though this machine may have no GPU, or like this machine's.

    Raises:
        ShiftbedError: There is no such kind of device, or it has a number: the scheduler chooses the GPU.
    """
    kind = device or find_runtime().device
    if kind not in ("cpu", "cuda"):
        raise ShiftbedError(f"On a cluster the scheduler chooses the GPU; use --device cuda or cpu, not '{kind}'.")
    return Runtime(kind, deterministic)


def needed(module: str, extra: str) -> ModuleType:
    """An optional module.

    Raises:
        ShiftbedError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ShiftbedError(f"Sweeps on {extra} need `pip install 'shiftbed[{extra}]'`.") from error
