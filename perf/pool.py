"""How long a replaced worker takes to be ready, against a worker started from nothing.

Run: python perf/pool.py
"""

import json
import os
import signal
import statistics
import tempfile
import time

from shiftbed.sweeps.forkserver import ForkServer

REPEATS = 5


def seconds_to_ready(server: ForkServer, root: str) -> float:
    """Starts a worker, waits until it says that it is ready, and kills it."""
    started = time.perf_counter()
    connection = server.fork(root=root, code=[], keep="none")
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


def main() -> None:
    """Prints both times and their ratio."""
    with tempfile.TemporaryDirectory() as root:
        warm = ForkServer()
        seconds_to_ready(warm, root)
        replaced = [seconds_to_ready(warm, root) for _ in range(REPEATS)]
        warm.close()
        cold = [seconds_from_nothing(root) for _ in range(REPEATS)]
    print(f"replaced worker: median {statistics.median(replaced):.3f} s of {[round(s, 3) for s in replaced]}")
    print(f"worker from nothing: median {statistics.median(cold):.3f} s of {[round(s, 3) for s in cold]}")
    print(f"ratio: {statistics.median(cold) / statistics.median(replaced):.0f}")


if __name__ == "__main__":
    main()
