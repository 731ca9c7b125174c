"""The verbs `train` and `sweep`, for Python and the command line alike."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal, get_args

from shiftbed.algorithms import load_code
from shiftbed.data import DATASETS, card
from shiftbed.data import load as load_data
from shiftbed.data.roots import prepared_names
from shiftbed.errors import ShiftbedError
from shiftbed.hparams import Value
from shiftbed.protocols import LeaveOut
from shiftbed.registry import listed, one_of, whole_names
from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.sweeps.blind import is_sealed, refuse_sealed, seal
from shiftbed.sweeps.capacity import MOST_PER_DEVICE, Capacity
from shiftbed.sweeps.designs import DESIGNS
from shiftbed.sweeps.executors import Executor, cluster_runtime
from shiftbed.sweeps.forecast import Forecast, OnProbe, forecast, largest_within, parse_duration
from shiftbed.sweeps.plan import Request, adapting, plan, remember_plan
from shiftbed.sweeps.pool import LocalPool, Progress, default_workers
from shiftbed.sweeps.records import finished_jobs, outcomes
from shiftbed.sweeps.stages import second_stage
from shiftbed.training.device import Precision, Runtime, default_precision, find_runtime, find_runtimes
from shiftbed.training.job import Job, check_fixed, make_job
from shiftbed.training.recipes import recipe as find_recipe
from shiftbed.training.run import Keep, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trackers import Watched

RAY_JOBS_PER_GPU = 2  # one job's host work hides behind the other's kernels


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

    Run again with the same arguments it continues where it stopped, to the bit (on a GPU if `deterministic`).

    Args:
        dataset: The dataset's name.
        algorithm: The algorithm's name.
        test: The test domain, or several.
        out: The folder for the job, its records and weights.
        recipe: How the model is trained: the name of a recipe, or a YAML file of one's own.
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

    Raises:
        StoreError: The folder is that of a sealed sweep.
    """
    refuse_sealed(out)
    one_of(keep, get_args(Keep), "choice of weights")
    for path in listed(code):
        load_code(Path(path))
    draw, trial, steps = int(draw), int(trial), None if steps is None else int(steps)
    known = card(str(dataset))
    tested = set(whole_names(listed(test), known.domains))
    if not tested:
        has = ", ".join(known.domains)
        raise ShiftbedError(f"A job tests at least one domain: name it with --test; {known.name} has {has}.")
    if draw < 0 or trial < 0:
        raise ShiftbedError(f"There is no job of draw {draw} and trial {trial}: its draw and trial are 0 or more.")
    dataset = known.name
    spec = LeaveOut(tuple([name for name in known.domains if name in tested] + sorted(tested - set(known.domains))))
    runtime = find_runtime(device, deterministic)
    how = find_recipe(recipe, dataset, steps=steps, precision=precision or default_precision(runtime))
    check_fixed(how, dataset)
    job = make_job(dataset, algorithm, adapting(spec, adapt), how, draw, trial, overrides)
    store = LocalStore(Path(out))
    tracker = Watched(track, Path(out), job.id) if track else None
    try:
        remember_plan([job], store)
        on_plan(job)
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
    jobs_per_device: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    deterministic: bool = False,
    on: Literal["local", "ray", "slurm"] = "local",
    address: str | None = None,
    keep: Keep = "none",
    code: Sequence[str | Path] = (),
    blind: bool = False,
    only: Collection[str] = (),
    on_change: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Runs the jobs of a request that are not done yet, side by side on this machine or on a cluster.

    Args:
        request: What is asked for, once or several times.
        out: The sweep's folder; several sweeps and launchers may share one.
        workers: Processes; one for each core by default, or as many as fit on the GPUs.
        jobs_per_device: How many jobs share a GPU; by default as many as the first were seen to leave room for.
        device: Where to train; all GPUs if there are any.
        precision: The arithmetic; the fastest that leaves accuracy unchanged by default.
        deterministic: On GPUs, use only kernels that repeat themselves to the bit.
        on: Where jobs run: here, on a Ray cluster, or through Slurm. A cluster must see the folder at the same path.
        address: Of the Ray cluster; by default the one that runs here, or a new one.
        keep: Which weights to keep.
        code: Files that register algorithms.
        blind: Seal the test numbers: no verb opens them before `unblind`.
        only: The ids of jobs to run; all by default.
        on_change: Called several times a second with the progress.

    Returns:
        How it ended.

    Raises:
        DataError: A dataset is not prepared on this machine, and jobs are to run here.
        StoreError: The sweep is to be blind and has finished jobs.
        DiskFullError: The folder's disk is full; the same sweep, called again, goes on.
        ShiftbedError: A name is unknown, none of the jobs has an id that was asked for, or a search of a blind sweep
            would choose by test numbers.
    """
    one_of(keep, get_args(Keep), "choice of weights")
    one_of(on, ("local", "ray", "slurm"), "executor")
    if workers is not None and workers < 1:
        raise ShiftbedError(f"A sweep needs at least one worker, not {workers}.")
    paths, only = [Path(path) for path in listed(code)], listed(only)
    for path in paths:
        load_code(path)
    store = LocalStore(Path(out))
    runtimes = find_runtimes(device, deterministic) if on == "local" else [cluster_runtime(device, deterministic)]
    asked = {"precision": precision or default_precision(runtimes[0])}
    requests = [request] if isinstance(request, Request) else request
    requests = [replace(one, fields={**asked, **one.fields}) for one in requests]
    first = _by_design(requests, plan, only)
    if on == "local":  # the machines of a cluster may have what this one lacks
        _refuse_unprepared([job for jobs in first.values() for job in jobs], store)
    if blind or is_sealed(store):
        _refuse_looks(requests)
        seal(store)

    def run(jobs: dict[str, list[Job]]) -> Progress:
        for design, members in jobs.items():
            remember_plan(members, store, design)
        executor = _executor(on, store, paths, keep, runtimes, workers, jobs_per_device, address)
        return executor.run([job for members in jobs.values() for job in members], on_change)

    progress = run(first)
    winners = _by_design(requests, lambda one: second_stage(one, store), only)
    progress = progress.joined(run(winners)) if winners else progress
    if only and not progress.jobs:
        raise ShiftbedError(
            f"The sweep has no job {' or '.join(only)}; `shiftbed status {quote(str(out))} --json` lists its jobs."
        )
    return progress


def _refuse_looks(requests: Sequence[Request]) -> None:
    """Refuses searches of two stages that choose by what a blind sweep must not open."""
    for one in requests:
        looking = [name for name in one.selections if SELECTIONS[name].reads_test]
        if looking and DESIGNS[one.design].two_stages:
            raise ShiftbedError(
                f"The design {one.design} would choose by {looking[0]}, which reads test numbers, and the sweep is "
                "blind; choose another selection, such as training-domain-validation."
            )


def _refuse_unprepared(jobs: Sequence[Job], store: LocalStore) -> None:
    """Refuses jobs whose data are not here, before one after the other fails for it; what is done needs no data."""
    known = prepared_names()
    lacking = {name for name in {job.dataset for job in jobs} if name not in known and DATASETS[name].build is None}
    if not lacking:
        return
    done = outcomes(store)
    for name in sorted({job.dataset for job in jobs if job.dataset in lacking and job.id not in done}):
        load_data(name)  # which says what to do


def _by_design(
    requests: Sequence[Request], jobs_of: Callable[[Request], list[Job]], only: Collection[str]
) -> dict[str, list[Job]]:
    """The jobs of some requests, or those with some ids, by their search designs; designs without a job lack."""
    found: dict[str, list[Job]] = defaultdict(list)
    for one in requests:
        found[DESIGNS.canonical_name(one.design)] += [job for job in jobs_of(one) if not only or job.id in only]
    return {design: jobs for design, jobs in found.items() if jobs}


def _executor(
    on: str,
    store: LocalStore,
    code: Sequence[Path],
    keep: Keep,
    runtimes: Sequence[Runtime],
    workers: int | None,
    jobs_per_device: int | None,
    address: str | None,
) -> Executor:
    """What runs the jobs, where it was asked for."""
    if on == "ray":
        from shiftbed.sweeps.ray_executor import RayExecutor

        return RayExecutor(
            store, code, keep, runtimes[0], address=address, jobs_per_gpu=jobs_per_device or RAY_JOBS_PER_GPU
        )
    if on == "slurm":
        from shiftbed.sweeps.slurm_executor import SlurmExecutor

        return SlurmExecutor(store, code, keep, runtimes[0])
    if not runtimes[0].on_gpu:
        return LocalPool(store, workers or default_workers(), code, keep, runtimes)
    capacity = Capacity(jobs_per_device or MOST_PER_DEVICE, measured=jobs_per_device is None)
    most = workers or len(runtimes) * (jobs_per_device or MOST_PER_DEVICE)
    return LocalPool(store, most, code, keep, runtimes, capacity)


def dry_run(
    request: Request,
    out: str | Path,
    *,
    device: str | None = None,
    precision: Precision | None = None,
    code: Sequence[str | Path] = (),
    probe: bool = True,
    on_probe: OnProbe = lambda part, done, total: None,
) -> Forecast:
    """What a request would take: jobs, device-hours, disk, and what of it is done already.

    Args:
        request: What is asked for.
        out: The sweep's folder.
        device: Where to measure; a GPU if there is one.
        precision: The arithmetic.
        code: Files that register algorithms.
        probe: Measure a few steps of every kind of job that the folder has no times of.
        on_probe: Told the progress of that.

    Raises:
        ShiftbedError: As of `sweep`.
    """
    store = LocalStore(Path(out))
    request, runtime = _prepared(request, store, device, precision, code)
    return forecast(request, store, runtime, probe, on_probe)


def within_budget(
    request: Request,
    out: str | Path,
    budget: str,
    *,
    workers: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    code: Sequence[str | Path] = (),
    on_probe: OnProbe = lambda part, done, total: None,
) -> Request:
    """The request with as many draws, equally many for every algorithm, as this machine trains within a time.

    Args:
        request: What is asked for; its draws are the most there will be.
        out: The sweep's folder: what is done costs nothing.
        budget: The time: `8h`, `90min`, `2d`.
        workers: Processes; one for each core by default, or one for each GPU.
        device: Where to train; all GPUs if there are any.
        precision: The arithmetic.
        code: Files that register algorithms.
        on_probe: Told the progress of measuring.

    Raises:
        ShiftbedError: As of `sweep`, or not even one draw fits.
    """
    seconds = parse_duration(budget)
    store = LocalStore(Path(out))
    asked, runtime = _prepared(request, store, device, precision, code)
    devices = find_runtimes(device)
    side_by_side = len(devices) if devices[0].on_gpu else workers or default_workers()
    found = largest_within(asked, store, seconds * side_by_side, runtime, on_probe)
    return replace(request, draws=found.draws)


def _prepared(
    request: Request, store: LocalStore, device: str | None, precision: Precision | None, code: Sequence[str | Path]
) -> tuple[Request, Runtime]:
    """A request with its precision, and the device to measure it on; what a sealed sweep refuses is refused."""
    for path in listed(code):
        load_code(Path(path))
    if is_sealed(store):
        _refuse_looks([request])
    runtime = find_runtimes(device)[0]
    return replace(request, fields={"precision": precision or default_precision(runtime), **request.fields}), runtime
