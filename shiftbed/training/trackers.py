"""Trackers: where the numbers of a run can be watched beside its records. One small interface for all of them."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from shiftbed.errors import ShiftbedError
from shiftbed.registry import Registry


class Tracker(Protocol):
    """What takes the numbers of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step, by name."""
        ...

    def close(self) -> None:
        """Ends the run."""
        ...


TRACKERS: Registry[Callable[[Path, str], Tracker]] = Registry("tracker", "shiftbed.training.trackers")


@TRACKERS.named("tensorboard")
class TensorBoard:
    """Event files for TensorBoard, in a folder of the run named after the job."""

    def __init__(self, folder: Path, job_id: str) -> None:
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ShiftbedError("Tracking with TensorBoard needs `pip install tensorboard`.") from error
        self._writer = module.SummaryWriter(str(folder / "tensorboard" / job_id))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A record as numbers by name: `accuracy/photo/out`."""
    return {
        f"{metric}/{split}": float(value)
        for split, metrics in row["splits"].items()
        for metric, value in metrics.items()
        if isinstance(value, int | float)
    }
