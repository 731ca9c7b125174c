"""Jobs as Ray tasks."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.attempt import attempt_remotely, keeping, noticing
from shiftbed.sweeps.executors import ClusterExecutor, needed
from shiftbed.training.device import Runtime
from shiftbed.training.job import Job
from shiftbed.training.run import Keep
from shiftbed.training.store import LocalStore

NODE_LOSSES = 3  # that Ray makes up for by itself before the launcher hears of a death
TICK_SECONDS = 0.25
STOP_SECONDS = 5.0


class RayExecutor(ClusterExecutor):
    """Runs every job as a Ray task with one core and, on a GPU, a share of it.

    Args:
        store: The sweep's folder, under a path that all nodes see.
        code: Users' files that register algorithms, under such paths too.
        keep: Which weights to keep.
        runtime: The device of every job.
        address: The cluster; without it the one that `RAY_ADDRESS` names or that runs here, or else a new one here.
        jobs_per_gpu: How many jobs share a GPU.

    Raises:
        ShiftbedError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self,
        store: LocalStore,
        code: Sequence[Path] = (),
        keep: Keep = "none",
        runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
        address: str | None = None,
        jobs_per_gpu: int = 1,
    ) -> None:
        super().__init__(store, code, keep, runtime)
        self._ray = needed("ray", "ray")
        self._ours = not self._ray.is_initialized()
        if self._ours:
            try:
                with keeping(signal.SIGTERM):  # at which Ray would abort, and nobody would hear of what is saved
                    self._ray.init(address=address, log_to_driver=False, logging_level="error")
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = address or os.environ.get("RAY_ADDRESS", "this machine")
                raise ShiftbedError(f"There is no Ray cluster at {where}; start one with `ray start`.") from error
        share = 1 / jobs_per_gpu if runtime.on_gpu else 0
        self._task = self._ray.remote(num_cpus=1, num_gpus=share, max_retries=NODE_LOSSES)(_run)
        # Tasks inherit the environment of their node, not of the launcher.
        self._environment = {name: value for name, value in os.environ.items() if name.startswith("SHIFTBED_")}
        self._tasks: dict[Any, str] = {}

    def _submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._tasks[self._task.remote(job.describe(), self._arguments, self._environment)] = job.id

    def _hear(self) -> Iterator[tuple[str, dict[str, Any]]]:
        tasks = list(self._tasks)
        if not tasks:  # all that is left runs elsewhere
            time.sleep(TICK_SECONDS)
            return
        if not self._ray.wait(tasks, num_returns=1, timeout=TICK_SECONDS)[0]:
            return
        for task in self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]:
            try:
                message = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                message = {"event": "died", "why": f"Ray says {type(error).__name__}"}
            yield self._tasks.pop(task), message

    def _dismiss(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            self._ray.cancel(task)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
        self._tasks = {}
        if self._ours:
            self._ray.shutdown()


def _run(description: dict[str, Any], arguments: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """The task; cancelling it, which Ray does by an interrupt, makes it save and leave."""
    os.environ.update(environment)
    with noticing(signal.SIGINT) as cancelled:
        return attempt_remotely(description, **arguments, should_stop=cancelled)
