"""One attempt at a job, in whatever process an executor gives it."""

import contextlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from shiftbed.algorithms import load_code
from shiftbed.errors import ShiftbedError, sentence
from shiftbed.hashing import canonical
from shiftbed.sweeps.capacity import is_out_of_memory
from shiftbed.sweeps.leases import Lease, LeaseWatch
from shiftbed.training.device import Runtime
from shiftbed.training.job import Job
from shiftbed.training.run import JobFiles, Keep, run_job
from shiftbed.training.store import DiskFullError, LocalStore, Store


def attempt(
    description: dict[str, Any],
    store: Store,
    keep: Keep,
    runtime: Runtime,
    on_step: Callable[[int], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
    code: Sequence[Path] = (),
) -> dict[str, Any]:
    """Runs the described job; whatever goes wrong in it is written down beside it.

    Returns:
        The event `ended` with the outcome; `full` with the reason in one sentence, where the store has no room; or
        `failed` with the reason and whether memory ran out.
    """

    def tell(step: int, metrics: dict[str, Any]) -> None:
        on_step(step)

    try:
        with Lease(store, description["id"]):
            for path in code:
                _load_once(path)
            job = Job.from_description(description)
            outcome = run_job(job, store, keep=keep, runtime=runtime, on_step=tell, should_stop=should_stop)
    except DiskFullError as error:  # nothing is wrong with the job, and there is no room to write that down
        return {"event": "full", "why": str(error)}
    except Exception as error:
        why = write_failure(store, description["id"], error)
        return {"event": "failed", "why": why, "out_of_memory": is_out_of_memory(error)}
    return {"event": "ended", "outcome": outcome}


def attempt_remotely(
    description: dict[str, Any],
    root: str,
    code: list[str],
    keep: Keep,
    runtime: dict[str, Any],
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    """An attempt on another machine: all it is given is plain values, and paths that every machine sees.

    A job that another attempt runs already, submitted twice, is left to that one, as if this one had been stopped.
    """
    store, paths = LocalStore(Path(root)), [Path(path) for path in code]
    if LeaseWatch(store).lives(description["id"]):
        return {"event": "ended", "outcome": "stopped"}
    return attempt(description, store, keep, Runtime(**runtime), should_stop=should_stop, code=paths)


@lru_cache
def _load_once(path: Path) -> None:
    load_code(path)


def write_failure(store: Store, job_id: str, error: Exception) -> str:
    """Leaves the failure beside the job; returns it as one sentence."""
    why = sentence(error)
    details = {"why": why, "traceback": "".join(traceback.format_exception(error))}
    with contextlib.suppress(ShiftbedError):  # the store itself may be what failed
        store.put_atomic(JobFiles(job_id).failure, canonical(details))
    return why


@contextlib.contextmanager
def keeping(number: int) -> Iterator[None]:
    """Restores what this process does at a signal, whatever is installed for it meanwhile; the main thread's alone."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


@contextlib.contextmanager
def noticing(number: int) -> Iterator[Callable[[], bool]]:
    """Makes a signal only noticed while this lasts; gives the question whether it came."""
    came = threading.Event()
    before = signal.signal(number, lambda *_: came.set())
    try:
        yield came.is_set
    finally:
        signal.signal(number, before)
