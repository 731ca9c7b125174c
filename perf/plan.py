"""Seconds to plan sweeps of three sizes, ids included: `python perf/plan.py`."""

import time

from shiftbed.algorithms import ALGORITHMS
from shiftbed.sweeps.plan import Request, plan


def main() -> None:
    """Prints the time to plan, on the clock and of a core, and per job."""
    algorithms = list(ALGORITHMS)[:16]
    for draws in (2, 16, 78):
        request = Request(
            ["ColoredMNIST", "RotatedMNIST"],
            algorithms,
            draws=draws,
            trials=3,
            recipe="domainbed-head",
            selections=["domain-cross-validation"],
        )
        start, used = time.perf_counter(), time.process_time()
        jobs = plan(request)
        count = len({job.id for job in jobs})
        seconds, used = time.perf_counter() - start, time.process_time() - used
        words = f"{seconds:.2f} s ({used:.2f} s of a core), {1e6 * used / count:.0f} µs of a core a job"
        print(f"{count:,} jobs in {words}", flush=True)


if __name__ == "__main__":
    main()
