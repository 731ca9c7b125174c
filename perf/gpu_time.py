"""How long something takes on a GPU, and how fast its memory is."""

import statistics
from collections.abc import Callable

import torch

BANDWIDTH = 4.3e12  # bytes a second, read and written, that a copy reaches on an H200


def microseconds(action: Callable[[], object]) -> float:
    """The median time of a call, of ten that are captured together: kernels alone, without their launches."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(2):
            action()  # compiles
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            action()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(5):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(100 * start.elapsed_time(end))
    return statistics.median(times)
