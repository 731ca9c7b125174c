"""Jobs as Slurm job arrays, through submitit."""

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.attempt import attempt_remotely, noticing
from shiftbed.sweeps.executors import ClusterExecutor, needed
from shiftbed.training.device import Runtime
from shiftbed.training.job import Job
from shiftbed.training.run import Keep
from shiftbed.training.store import LocalStore

MINUTES = 240
TICK_SECONDS = 1.0


class SlurmExecutor(ClusterExecutor):
    """Runs every job as an element of a Slurm job array with one core and, on a GPU, one GPU.

    sbatch's own variables choose the rest: `SBATCH_PARTITION`, `SBATCH_ACCOUNT`, `SBATCH_TIMELIMIT` and so on. Before
    its time is over, or when it is preempted, a job saves, is queued again and continues from its checkpoint.

    Args:
        store: The sweep's folder, under a path that all nodes see; submitit's files and logs go to `slurm` in it.
        code: Users' files that register algorithms, under such paths too.
        keep: Which weights to keep.
        runtime: The device of every job.
        cluster: submitit's name of the kind of cluster; `local` needs no Slurm and is for tests.

    Raises:
        ShiftbedError: submitit is not installed, or there is no Slurm here.
    """

    def __init__(
        self,
        store: LocalStore,
        code: Sequence[Path] = (),
        keep: Keep = "none",
        runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
        cluster: str = "slurm",
    ) -> None:
        super().__init__(store, code, keep, runtime)
        submitit = needed("submitit", "slurm")
        try:
            self._executor = submitit.AutoExecutor(folder=self._store.root / "slurm", cluster=cluster)
        except RuntimeError as error:
            raise ShiftbedError(
                "There is no Slurm here (no `srun`); run this on a machine that submits to it."
            ) from error
        self._executor.update_parameters(
            name="shiftbed",
            timeout_min=MINUTES,
            cpus_per_task=1,
            slurm_setup=["export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"],
            **({"gpus_per_node": 1} if runtime.on_gpu else {}),
        )
        self._elements: dict[str, Any] = {}

    def _submit(self, jobs: list[Job]) -> None:
        with self._executor.batch():
            elements = [self._executor.submit(Attempt(job.describe(), self._arguments)) for job in jobs]
        self._elements |= {job.id: element for job, element in zip(jobs, elements, strict=True)}

    def _hear(self) -> Iterator[tuple[str, dict[str, Any]]]:
        time.sleep(TICK_SECONDS)
        for job_id in [job_id for job_id, element in self._elements.items() if element.done()]:
            element = self._elements.pop(job_id)
            # Asked for a result that will never come, submitit would wait for it a quarter of a minute.
            error = element.exception() if element.paths.result_pickle.exists() else element.state
            if error is None:
                yield job_id, element.result()
            else:
                said = error if isinstance(error, str) else type(error).__name__
                yield job_id, {"event": "died", "why": f"Slurm says {said}; its log is {element.paths.stderr}"}

    def _dismiss(self) -> None:
        for element in self._elements.values():
            element.cancel(check=False)
        self._elements = {}


class Attempt:
    """What Slurm runs: one attempt at a job that, preempted, saves and has itself queued again."""

    def __init__(self, description: dict[str, Any], arguments: dict[str, Any]) -> None:
        self._description = description
        self._arguments = arguments

    def __call__(self) -> dict[str, str]:
        """Runs the job; submitit's own handler, which would leave at once, gets the signal when the job has saved."""
        from submitit import JobEnvironment

        number = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")
        queue_again = signal.getsignal(number)
        with noticing(number) as preempted:
            message = attempt_remotely(self._description, **self._arguments, should_stop=preempted)
        if preempted() and message.get("outcome") == "stopped":
            assert callable(queue_again)
            queue_again(number, None)  # does not return
        return message

    def checkpoint(self) -> Any:
        """What to queue again: the same attempt, since the checkpoint is in the store."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
