"""A warm parent: a process with torch loaded, from which workers are forked in milliseconds.

The standard library's fork server would do, but it runs the caller's main module in every worker: a script that calls
`shiftbed.sweep` without a guard would start itself again. This one knows nothing of its caller and unpickles nothing.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from shiftbed.errors import ShiftbedError
from shiftbed.hashing import canonical

MESSAGE_BYTES = 65536


class ForkServer:
    """The launcher's side: starts the server in the background and asks it for workers."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise ShiftbedError("Sweeps on this machine need a system that can fork processes; on Windows use WSL.")
        try:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:  # a Mac has no such sockets
            raise ShiftbedError("Sweeps in processes of their own need Linux; here use `--on ray`.") from error
        # One thread each: forking a process with threads is unsafe, and jobs run on one thread anyway. A session of its
        # own keeps Ctrl-C from it: the launcher decides what happens to the workers.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def fork(self, **arguments: Any) -> Connection:
        """Starts a worker with these arguments; returns the connection to it, which ends when the worker does."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [canonical(arguments)], [theirs.fileno()])
            except OSError as error:
                raise ShiftbedError("The process that starts workers is gone; run the same command again.") from error
        return Connection(ours.detach())

    def close(self) -> None:
        """Ends the server; workers end by themselves, with their connections."""
        self._socket.close()
        self._process.wait()


def serve(requests: socket.socket) -> None:
    """Forks a worker for every request until the launcher is gone."""
    from shiftbed.sweeps import worker

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    # Where pyarrow is installed, scikit-learn loads it and its allocator keeps a thread, which survives a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 1)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _be_worker(worker.work, Connection(descriptors[0]), json.loads(message))
        os.close(descriptors[0])


def _be_worker(work: Any, connection: Connection, arguments: dict[str, Any]) -> NoReturn:
    """The child's life; it never returns to the server's code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        work(connection, **arguments)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # tearing down torch takes half a second, and nothing needs it
