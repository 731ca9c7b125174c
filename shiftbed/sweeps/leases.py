"""Leases: who is working on a job. They save work and never protect correctness.

A holder bumps a counter; an observer calls the holder dead after its own clock has seen no change for a while. Two
holders of one job compute the same thing twice and harm nothing.
"""

import contextlib
import json
import os
import platform
import threading
import time
import uuid

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.training.run import JobFiles
from shiftbed.training.store import Store

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 15.0
SIGN_SECONDS = 3.0  # for a sign of life, where work is only done twice if it comes later


class Lease:
    """A worker's claim on a job while it runs it: `with Lease(store, job_id): ...`.

    A thread beats once a second, so that neither an evaluation of minutes nor the loading of data looks like death.
    """

    def __init__(self, store: Store, job_id: str) -> None:
        self._store = store
        self._key = JobFiles(job_id).lease
        self._holder = uuid.uuid4().hex
        self._count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)

    def __enter__(self) -> "Lease":
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the job up, finished or not."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(StoreError):
            self._store.put_atomic(self._key, b"{}")

    def beat(self) -> None:
        """Shows that the holder lives."""
        self._count += 1
        claim = {"holder": self._holder, "count": self._count, "host": platform.node(), "pid": os.getpid()}
        self._store.put_atomic(self._key, canonical(claim))

    def _beat_on(self) -> None:
        with contextlib.suppress(StoreError):  # of which the job itself will tell
            while not self._over.wait(BEAT_SECONDS):
                self.beat()


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
        moved = self.moved(job_id)
        return bool(moved) or (moved is False and time.monotonic() - self._seen[job_id][1] < self._patience)

    def lives(self, job_id: str) -> bool:
        """Whether whoever holds the job shows a sign of life within a few beats, which this waits for."""
        alive = False if self.moved(job_id) else None  # the first look shows a lease, and not whether it moves
        deadline = time.monotonic() + SIGN_SECONDS
        while alive is False and time.monotonic() < deadline:
            time.sleep(0.2 * BEAT_SECONDS)
            alive = self.moved(job_id)
        return bool(alive)

    def moved(self, job_id: str) -> bool | None:
        """Whether the holder of the job has shown a sign of life since the last look; None if nobody holds it.

        A file that is no claim is nobody's.
        """
        data = self._store.get(JobFiles(job_id).lease)
        try:
            claim = json.loads(data or b"{}")
            host, pid = str(claim["host"]), int(claim["pid"])
        except (ValueError, TypeError, LookupError):
            return None
        if host == platform.node() and not _process_exists(pid):
            return None
        if job_id in self._seen and self._seen[job_id][0] == data:
            return False
        self._seen[job_id] = (data or b"", time.monotonic())
        return True


def _process_exists(pid: int) -> bool:
    """A hint that saves waiting: if it errs, work is done twice or an observer waits."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
