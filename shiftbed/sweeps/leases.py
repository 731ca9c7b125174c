"""Leases: who is working on a job. They save work and never protect correctness.

A holder bumps a counter; an observer calls the holder dead after its own clock has seen no change for a while. Two
holders of one job compute the same thing twice and harm nothing.
"""

import json
import os
import platform
import time
import uuid

from shiftbed.hashing import canonical
from shiftbed.training.run import JobFiles
from shiftbed.training.store import Store

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 15.0


class Lease:
    """A worker's claim on the job it runs."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store = store
        self._key = JobFiles(job_id).lease
        self._holder = uuid.uuid4().hex
        self._count = 0
        self._last = 0.0

    def beat(self) -> None:
        """Shows that the holder lives, at most once a second."""
        now = time.monotonic()
        if now - self._last >= BEAT_SECONDS:
            self._last = now
            self._count += 1
            self._write({"holder": self._holder, "count": self._count, "host": platform.node(), "pid": os.getpid()})

    def release(self) -> None:
        """Gives the job up, finished or not."""
        self._write({})

    def _write(self, claim: dict[str, str | int]) -> None:
        self._store.put_atomic(self._key, canonical(claim))


class LeaseWatch:
    """An observer of other workers' leases.

    Args:
        store: Where the leases are.
        patience: Seconds without a change after which a holder counts as dead.
    """

    def __init__(self, store: Store, patience: float = PATIENCE_SECONDS) -> None:
        self._store = store
        self._patience = patience
        self._seen: dict[str, tuple[bytes, float]] = {}

    def held(self, job_id: str) -> bool:
        """Whether somebody who seems alive holds the job."""
        data = self._store.get(JobFiles(job_id).lease)
        try:
            claim = json.loads(data or b"{}")
        except ValueError:
            claim = {}
        if not claim or (claim["host"] == platform.node() and not _process_exists(claim["pid"])):
            return False
        before = self._seen.get(job_id)
        now = time.monotonic()
        if before is None or before[0] != data:
            self._seen[job_id] = (data or b"", now)
            return True
        return now - before[1] < self._patience


def _process_exists(pid: int) -> bool:
    """A hint that saves waiting: if it errs, work is done twice or an observer waits."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
