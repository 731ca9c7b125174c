"""Where a job runs and in which arithmetic."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from shiftbed.errors import ShiftbedError

Precision = Literal["float32", "tf32", "bf16"]
# Held while something draws or trains: torch's generators, number of threads and defaults are the whole process's, and
# threads of a notebook that trained side by side would take each other's.
ALONE = threading.RLock()


@dataclass(frozen=True)
class Runtime:
    """How this machine runs a job; nothing of it is in the job's id.

    Attributes:
        device: The device's name: `cpu`, `cuda` or `cuda:1`.
        deterministic: Use only GPU kernels that repeat themselves to the bit (slower).
        accelerate: On a GPU, compile networks and replay steps as CUDA graphs where the algorithm allows it.
    """

    device: str = "cpu"
    deterministic: bool = False
    accelerate: bool = True

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")


def find_runtime(device: str | None = None, deterministic: bool = False, accelerate: bool = True) -> Runtime:
    """A runtime on the named device; without a name on the GPU if there is one.

    Raises:
        ShiftbedError: There is no such device, or it is of a kind that is not supported.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = str(device)  # notebooks hand on a torch.device, which says its name
    kind, _, number = device.partition(":")
    if "," in device:
        raise ShiftbedError(f"One job runs on one GPU, not on '{device}'; a sweep uses several GPUs side by side.")
    if kind == "mps":
        raise ShiftbedError("Apple's GPU (mps) is not supported, since its results differ too much; use --device cpu.")
    if kind not in ("cpu", "cuda"):
        raise ShiftbedError(f"There is no device '{device}'; use cpu, cuda or cuda:1.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ShiftbedError("There is no GPU here that torch can use; use --device cpu.")
    if number and (kind == "cpu" or not number.isdigit() or int(number) >= torch.cuda.device_count()):
        raise ShiftbedError(f"There is no device '{device}'; `shiftbed doctor` lists those there are.")
    return Runtime(device, deterministic, accelerate)


def find_runtimes(device: str | None = None, deterministic: bool = False) -> list[Runtime]:
    """The runtimes of a sweep: the named device, or every GPU, or the CPU."""
    if device is None and torch.cuda.is_available():
        return [Runtime(f"cuda:{number}", deterministic) for number in range(torch.cuda.device_count())]
    return [find_runtime(device, deterministic)]


def default_precision(runtime: Runtime) -> Precision:
    """bfloat16 on a GPU, where it is the fastest, else float32."""
    return "bf16" if runtime.on_gpu else "float32"


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread a job, and one job at a time: sums are then added in one order, and small networks run no slower."""
    with ALONE:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def torch_defaults() -> Iterator[None]:
    """The defaults of torch in a new process: a notebook that set others would have other numbers, or none."""
    with ALONE, torch.inference_mode(False), torch.enable_grad():
        kind, device = torch.get_default_dtype(), torch.get_default_device()
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        try:
            yield
        finally:
            torch.set_default_dtype(kind)
            if device.type != "cpu":  # which is what there is without one, and set by name would cost every operation
                torch.set_default_device(device)


@contextmanager
def numerics(precision: Precision, runtime: Runtime) -> Iterator[None]:
    """The settings of torch under which every step and evaluation of a job runs."""
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, convolution.allow_tf32, convolution.benchmark
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    matmul.allow_tf32 = convolution.allow_tf32 = precision != "float32"
    convolution.benchmark = runtime.on_gpu and not runtime.deterministic
    if runtime.on_gpu and runtime.deterministic:  # on a CPU one thread adds in one order anyway
        # Read when the first matrices are multiplied; without it cuBLAS may add in any order.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    kind = "cuda" if runtime.on_gpu else "cpu"
    try:
        with torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        matmul.allow_tf32, convolution.allow_tf32, convolution.benchmark = before
        torch.use_deterministic_algorithms(was_deterministic)
