"""A worker process: runs the jobs it is sent, one after another."""

import contextlib
import json
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shiftbed.algorithms import ALGORITHMS, load_code
from shiftbed.data import DATASETS
from shiftbed.errors import ShiftbedError
from shiftbed.hashing import canonical
from shiftbed.sweeps.attempt import attempt
from shiftbed.sweeps.capacity import memory_seen
from shiftbed.training.device import Runtime
from shiftbed.training.run import Keep
from shiftbed.training.store import LocalStore, Store

REPORT_SECONDS = 0.2

# The fork server imports this module once, which spares every worker the imports: the registries' rooms, and
# torch._dynamo (1.4 s), which the first optimizer of a process would import.
import torch._dynamo  # noqa: E402, F401

list(ALGORITHMS), list(DATASETS)


def work(connection: Connection, root: str, code: list[str], keep: Keep, runtime: dict[str, Any]) -> None:
    """Runs jobs from the connection until the launcher closes it.

    A terminate signal, or the launcher's death, makes it save the running job and leave.

    Args:
        connection: To the launcher.
        root: The sweep's folder.
        code: Users' files that register algorithms.
        keep: Which weights to keep.
        runtime: The device, and how to use it.
    """
    Worker(connection, LocalStore(Path(root)), keep, Runtime(**runtime)).serve([Path(path) for path in code])


class Worker:
    """What a worker process knows: its launcher, its store, and whether it is to stop."""

    def __init__(self, connection: Connection, store: Store, keep: Keep, runtime: Runtime) -> None:
        self.connection = connection
        self.store = store
        self.keep = keep
        self.runtime = runtime
        self.stopping = False
        self.busy = False

    def serve(self, code: list[Path]) -> None:
        """Answers every job with `ended` or `failed`."""
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        self.tell(event="ready", pid=os.getpid())
        try:
            for path in code:
                load_code(path)
        except ShiftbedError as error:
            self.tell(event="broken", why=str(error))
            return
        with contextlib.suppress(EOFError, ConnectionResetError):
            while not self.stopping:
                self.run(json.loads(self.connection.recv_bytes()))
                self.busy = False

    def run(self, description: dict[str, Any]) -> None:
        """Runs one job; whatever goes wrong in it is written down and told, and the worker goes on."""
        self.busy = True
        job_id = description["id"]
        last_report = 0.0
        evaluated = description["recipe"]["evaluate_every"] + 1  # the first step after an evaluation

        def on_step(step: int) -> None:
            nonlocal last_report
            if step == evaluated:
                self.tell_memory()
            if time.monotonic() - last_report >= REPORT_SECONDS:
                last_report = time.monotonic()
                self.tell(event="step", id=job_id, share=step / description["recipe"]["steps"])

        message = attempt(description, self.store, self.keep, self.runtime, on_step, lambda: self.stopping)
        if message["event"] == "ended":  # a failed kernel would have left the process without its device
            self.tell_memory()
        self.tell(id=job_id, **message)

    def tell_memory(self) -> None:
        """Says what jobs were seen to need of a GPU."""
        if self.runtime.on_gpu:
            self.tell(event="memory", bytes=memory_seen(self.runtime))

    def tell(self, **message: Any) -> None:
        """Sends a message; a launcher that is gone means stop."""
        try:
            self.connection.send_bytes(canonical(message))
        except OSError:
            self.stop()

    def stop(self) -> None:
        """Asks the running job to save and leave; without one the worker leaves at once."""
        self.stopping = True
        if not self.busy:
            sys.exit()
