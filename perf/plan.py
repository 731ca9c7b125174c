"""Seconds to plan sweeps of three sizes, ids included: `python perf/plan.py`."""

import time

from shiftbed.algorithms import ALGORITHMS
from shiftbed.sweeps.plan import Request, plan


def main() -> None:
    """Prints the time to plan, and per job."""
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
        start = time.perf_counter()
        jobs = plan(request)
        count = len({job.id for job in jobs})
        seconds = time.perf_counter() - start
        print(f"{count:,} jobs in {seconds:.2f} s, {1e6 * seconds / count:.0f} µs a job", flush=True)


if __name__ == "__main__":
    main()
