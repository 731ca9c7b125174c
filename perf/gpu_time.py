"""How long something takes on a GPU, and how fast its memory is."""

import statistics
from collections.abc import Callable

import torch

BANDWIDTH = 4.3e12  # bytes a second, read and written, that a copy reaches on an H200


def microseconds(action: Callable[[], object]) -> float:
    """The median time of a call, of ten that are queued together."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(6):
        start.record()
        for _ in range(10):
            action()
        end.record()
        torch.cuda.synchronize()
        times.append(100 * start.elapsed_time(end))
    return statistics.median(times[1:])  # the first one compiles
