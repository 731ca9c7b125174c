"""How many jobs share a GPU: as many as fit by what the first ones were seen to need."""

from typing import NamedTuple

import torch

from shiftbed.training.device import Runtime

MOST_PER_DEVICE = 4  # more only wait for each other's kernels
USABLE = 0.9  # of a device's memory: jobs differ, and the largest was perhaps not seen yet


class Memory(NamedTuple):
    """What one job's process was seen to need of a device, and what the device has, in bytes."""

    used: int
    total: int


def memory_seen(runtime: Runtime) -> Memory:
    """The most that this process has needed so far; what others use beside it counts too, to be on the safe side."""
    free, total = torch.cuda.mem_get_info(runtime.device)
    tensors = torch.cuda.memory_reserved(runtime.device)
    beside_tensors = total - free - tensors  # the context, and whoever else is there
    return Memory(torch.cuda.max_memory_reserved(runtime.device) + max(0, beside_tensors), total)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory did not suffice."""
    return any(isinstance(one, torch.OutOfMemoryError) for one in (error, error.__cause__))


class Capacity:
    """How many workers each device may have.

    A GPU begins with one; once its first job has been evaluated, and so has needed the most it will need, there may be
    as many as fit. Where one runs out of memory all the same there is one fewer from then on.

    Args:
        most: The most workers a device may have.
        measured: Whether GPUs begin with one worker; else every device has the most from the start.
    """

    def __init__(self, most: int, measured: bool = True) -> None:
        self._most = most
        self._measured = measured
        self._largest: dict[str, Memory] = {}
        self._limits: dict[str, int] = {}  # where memory ran out

    def of(self, runtime: Runtime) -> int:
        """How many workers a device may have now."""
        limit = self._limits.get(runtime.device, self._most)
        if not (self._measured and runtime.on_gpu):
            return limit
        largest = self._largest.get(runtime.device)
        return 1 if largest is None else max(1, min(limit, int(USABLE * largest.total / largest.used)))

    def saw(self, runtime: Runtime, memory: Memory) -> None:
        """Learns what a job needs that ran alone; beside others it could not be told apart from them."""
        self._largest[runtime.device] = max(memory, self._largest.get(runtime.device, memory))

    def ran_out(self, runtime: Runtime, crowd: int) -> None:
        """Learns that so many jobs did not fit."""
        self._limits[runtime.device] = max(1, min(self._limits.get(runtime.device, self._most), crowd - 1))
