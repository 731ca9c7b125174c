"""The verbs `train` and `sweep`, for Python and the command line alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from shiftbed.algorithms import load_code
from shiftbed.data import card
from shiftbed.hparams import Value
from shiftbed.protocols import LeaveOut
from shiftbed.selection import JobRecords
from shiftbed.sweeps.executors import Executor, cluster_runtime
from shiftbed.sweeps.plan import Request, adapting, plan, remember_plan
from shiftbed.sweeps.pool import LocalPool, Progress, default_workers
from shiftbed.sweeps.records import finished_jobs, outcomes
from shiftbed.training.device import Precision, default_precision, find_runtime, find_runtimes
from shiftbed.training.job import Job, make_job
from shiftbed.training.recipes import recipe as find_recipe
from shiftbed.training.run import Keep, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trackers import TRACKERS

GPU_WORKERS = 2  # one job's host work hides behind the other's kernels


def train(
    dataset: str,
    algorithm: str,
    test: str | Sequence[str],
    out: str | Path = "shiftbed-run",
    *,
    recipe: str = "quick",
    steps: int | None = None,
    draw: int = 0,
    trial: int = 0,
    overrides: Mapping[str, Value] | None = None,
    adapt: float = 0.0,
    keep: Keep = "final",
    device: str | None = None,
    precision: Precision | None = None,
    deterministic: bool = False,
    code: Sequence[str | Path] = (),
    on_plan: Callable[[Job], None] = lambda job: None,
    on_step: Callable[[int, dict[str, Any]], None] = lambda step, metrics: None,
    should_stop: Callable[[], bool] = lambda: False,
    track: str | None = None,
) -> JobRecords | None:
    """Trains one model and evaluates it on every split that is not trained on.

    Run again with the same arguments it continues where it stopped, to the bit.

    Args:
        dataset: The dataset's name.
        algorithm: The algorithm's name.
        test: The test domain, or several.
        out: The folder for the job, its records and weights.
        recipe: How the model is trained.
        steps: Updates, instead of the recipe's.
        draw: The draw of hyperparameters; 0 is the default values.
        trial: The repetition.
        overrides: Hyperparameters set by hand.
        adapt: The share of every test domain that the algorithm is given without labels.
        keep: Which weights to keep.
        device: Where to train; the GPU if there is one.
        precision: The arithmetic; the fastest that leaves accuracy unchanged by default.
        deterministic: On a GPU, use only kernels that repeat themselves to the bit.
        code: Files that register algorithms.
        on_plan: Called with the job before it starts.
        on_step: Called after every update.
        should_stop: Asked before every update.
        track: The name of a tracker that is told the numbers of every evaluation.

    Returns:
        The finished job, or None if it was stopped before its end.
    """
    for path in code:
        load_code(Path(path))
    tested = {test} if isinstance(test, str) else set(test)
    known = card(dataset)
    dataset = known.name
    spec = LeaveOut(tuple([name for name in known.domains if name in tested] + sorted(tested - set(known.domains))))
    runtime = find_runtime(device, deterministic)
    how = find_recipe(recipe, dataset, steps=steps, precision=precision or default_precision(runtime))
    job = make_job(dataset, algorithm, adapting(spec, adapt), how, draw, trial, overrides)
    store = LocalStore(Path(out))
    remember_plan([job], store)
    on_plan(job)
    tracker = TRACKERS[track](Path(out), job.id) if track else None
    try:
        if job.id not in outcomes(store):
            run_job(job, store, keep=keep, runtime=runtime, on_step=on_step, should_stop=should_stop, tracker=tracker)
    finally:
        if tracker is not None:
            tracker.close()
    return next((finished for finished in finished_jobs(store) if finished.id == job.id), None)


def sweep(
    request: Request | Sequence[Request],
    out: str | Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    on: Literal["local", "ray", "slurm"] = "local",
    address: str | None = None,
    keep: Keep = "none",
    code: Sequence[str | Path] = (),
    on_change: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Runs the jobs of a request that are not done yet, side by side on this machine or on a cluster.

    Args:
        request: What is asked for, once or several times.
        out: The sweep's folder; several sweeps and launchers may share one.
        workers: Processes; one for each core by default, or two for each GPU.
        device: Where to train; all GPUs if there are any.
        precision: The arithmetic; the fastest that leaves accuracy unchanged by default.
        on: Where jobs run: here, on a Ray cluster, or through Slurm. A cluster must see the folder at the same path.
        address: Of the Ray cluster; by default the one that runs here, or a new one.
        keep: Which weights to keep.
        code: Files that register algorithms.
        on_change: Called several times a second with the progress.

    Returns:
        How it ended.
    """
    for path in code:
        load_code(Path(path))
    store = LocalStore(Path(out))
    runtimes = find_runtimes(device) if on == "local" else [cluster_runtime(device)]
    asked = {"precision": precision or default_precision(runtimes[0])}
    requests = [request] if isinstance(request, Request) else request
    jobs = [job for one in requests for job in plan(replace(one, fields={**asked, **one.fields}))]
    remember_plan(jobs, store)
    paths = [Path(path) for path in code]
    executor: Executor
    if on == "ray":
        from shiftbed.sweeps.ray_executor import RayExecutor

        executor = RayExecutor(store, paths, keep, runtimes[0], address=address, jobs_per_gpu=GPU_WORKERS)
    elif on == "slurm":
        from shiftbed.sweeps.slurm_executor import SlurmExecutor

        executor = SlurmExecutor(store, paths, keep, runtimes[0])
    else:
        count = workers or (GPU_WORKERS * len(runtimes) if runtimes[0].on_gpu else default_workers())
        executor = LocalPool(store, count, paths, keep, runtimes)
    return executor.run(jobs, on_change)


def dry_run(
    request: Request, out: str | Path, code: Sequence[str | Path] = (), precision: Precision | None = None
) -> tuple[int, int]:
    """How many jobs a request has, and how many of them are done already."""
    for path in code:
        load_code(Path(path))
    asked = {"precision": precision or default_precision(find_runtimes()[0])}
    ids = {job.id for job in plan(replace(request, fields={**asked, **request.fields}))}
    return len(ids), len(ids & outcomes(LocalStore(Path(out))).keys())
