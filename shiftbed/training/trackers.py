"""Trackers: where the numbers of a run can be watched beside its records. One small interface for all of them."""

import importlib
import os
import re
import warnings
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
        module = _imported("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder / "tensorboard" / job_id))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


@TRACKERS.named("wandb")
class WeightsAndBiases:
    """A run of Weights & Biases with the job's id; `WANDB_PROJECT` and `WANDB_MODE` say where it goes."""

    def __init__(self, folder: Path, job_id: str) -> None:
        project = os.environ.get("WANDB_PROJECT", "shiftbed")
        self._run = _imported("wandb").init(project=project, id=job_id, name=job_id, resume="allow", dir=str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Waits until all is sent."""
        self._run.finish()


@TRACKERS.named("mlflow")
class MLflow:
    """A run of MLflow named after the job; `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where it goes."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self._mlflow = _imported("mlflow")
        self._mlflow.start_run(run_name=job_id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step; MLflow has no names with a % or + in them."""
        named = {re.sub(r"[^\w./: -]", "_", name): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._mlflow.end_run()


class Watched:
    """A tracker that ends nothing but itself where it fails: all that it is told stands in the records too.

    Args:
        name: The tracker's name.
        folder: The run's folder.
        job_id: The job that is tracked.

    Raises:
        ShiftbedError: There is no such tracker, or it does not start.
    """

    def __init__(self, name: str, folder: Path, job_id: str) -> None:
        make = TRACKERS[name]
        self._name = name
        try:
            self._tracker: Tracker | None = make(folder, job_id)
        except ShiftbedError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ShiftbedError(f"The tracker {name} does not start ({why}); mend it, or train without.") from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Tells it the numbers of a step."""
        self._tell(f"at step {step}, and was told no more", lambda tracker: tracker.log(step, values))

    def close(self) -> None:
        """Ends its run."""
        self._tell("when its run was to end", lambda tracker: tracker.close())

    def _tell(self, when: str, tell: Callable[[Tracker], None]) -> None:
        try:
            if self._tracker is not None:
                tell(self._tracker)
        except Exception as error:
            self._tracker = None
            why = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"The tracker {self._name} failed {when} ({why}); the records have all numbers.", stacklevel=3
            )


def _imported(module: str, package: str = "") -> Any:
    package = package or module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ShiftbedError(f"Tracking with {package} needs `pip install {package}`.") from error


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A record as numbers by name: `accuracy/photo/out`."""
    return {
        f"{metric}/{split}": float(value)
        for split, metrics in row["splits"].items()
        for metric, value in metrics.items()
        if isinstance(value, int | float)
    }
