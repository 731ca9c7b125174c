"""Running one job so that nothing computed is lost: records, checkpoints, and the one `done`."""

import io
import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.selection import Cadence
from shiftbed.training.device import Runtime, one_thread, torch_defaults
from shiftbed.training.files import (
    JobFiles,
    Result,
    Row,
    apart,
    encode_records,
    joined,
    parse_description,
    parse_records,
)
from shiftbed.training.job import Job
from shiftbed.training.model import encode_logits, encode_weights
from shiftbed.training.recipes import recipe_of
from shiftbed.training.store import Store
from shiftbed.training.trackers import Tracker, numbers
from shiftbed.training.trainer import Trainer, is_recorded

CHECKPOINT_FORMAT = 2  # before, the test splits were in the record file
SAVE_SECONDS = 1.0  # between checkpoints: where evaluations follow faster, writing each would take a fifth of a job
# As decompositions, index tables and assertions break on what is not finite; other errors are a program's own.
BY_BAD_NUMBERS = (ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError)
Keep = Literal["none", "final", "best", "all", "logits"]
Outcome = Literal["done", "diverged", "stopped"]


def run_job(
    job: Job,
    store: Store,
    *,
    keep: Keep = "none",
    runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
    on_step: Callable[[int, dict[str, Any]], None] = lambda step, metrics: None,
    should_stop: Callable[[], bool] = lambda: False,
    tracker: Tracker | None = None,
) -> Outcome:
    """Trains a job to its end, from its last checkpoint if there is one.

    Any number of processes may do so at once: what they compute is equal, and the first to finish wins.

    Args:
        job: What to train.
        store: Where its records, checkpoints and result go.
        keep: Which weights to keep: none, those of the last step, those of the step with the best accuracy on held-out
            images of the training domains, or those of every evaluation; or, instead of weights, the logits of the
            tested images at every evaluation.
        runtime: The device, and how to use it.
        on_step: Called after every update with the step and the metrics.
        should_stop: Asked before every update; when it says yes a checkpoint is saved and the job left.
        tracker: Told the numbers of every evaluation.

    Returns:
        How it ended.
    """
    files = JobFiles(job.id)
    finished = store.get(files.done)
    if finished is not None:
        _tidy(store, files)
        return json.loads(finished)["status"]
    if not store.create_exclusive(files.job, canonical(job.describe())):
        # When and what is evaluated is not in the id: whoever came first has set it, and all rows follow it.
        described = parse_description(job.id, store.get(files.job) or b"")
        when = recipe_of(described).model_dump(
            include=set(Cadence._fields)
        )  # not its paths, which may be of another machine
        job = replace(job, recipe=job.recipe.model_copy(update=when), lean=tuple(described.get("lean", ())))
    if keep == "best" and not all(is_recorded(job, split) for split in job.task.of_role("validation")):
        raise StoreError("The best weights are those of the best validation, which this lean job does not record.")
    started = time.perf_counter()
    with one_thread(), torch_defaults():
        trainer, rows = resume(job, store, files, runtime, keep)
        first = trainer.step
        outcome = _train(trainer, rows, store, files, keep, on_step, should_stop, tracker)
        _add_times(store, files, runtime, steps=trainer.step - first, seconds=time.perf_counter() - started)
        if outcome != "stopped":
            _finish(trainer, rows, store, files, outcome, keep)
    return outcome


def _train(
    trainer: Trainer,
    rows: list[Row],
    store: Store,
    files: JobFiles,
    keep: Keep,
    on_step: Callable[[int, dict[str, Any]], None],
    should_stop: Callable[[], bool],
    tracker: Tracker | None,
) -> Outcome:
    recipe = trainer.job.recipe
    saved = time.monotonic()
    while trainer.step < recipe.steps:
        if should_stop():
            save(trainer, rows, store, files, keep)
            return "stopped"
        try:
            on_step(trainer.step + 1, trainer.advance())
            row = trainer.evaluate() if recipe.is_due(trainer.step) else None
        except BY_BAD_NUMBERS:
            if trainer.diverged_at() is None:
                raise
            return "diverged"
        if row is None:
            continue
        if trainer.diverged_at() is not None:
            return "diverged"
        rows.append(row)
        if tracker is not None:
            tracker.log(trainer.step, numbers(row))
        if keep == "all" or (keep == "best" and _is_best(rows, trainer.job)):
            where = files.all_weights.format(step=trainer.step) if keep == "all" else files.weights
            store.put_atomic(where, encode_weights(trainer))
        if keep == "logits":
            store.put_atomic(files.logits.format(step=trainer.step), encode_logits(trainer))
        if time.monotonic() - saved < SAVE_SECONDS:
            continue
        save(trainer, rows, store, files, keep)
        saved = time.monotonic()
        # A process that slept through another's finish must not go on for nothing.
        if trainer.step < recipe.steps and store.get(files.done) is not None:
            _tidy(store, files)
            return "stopped"
    return "done"


def _is_best(rows: list[Row], job: Job) -> bool:
    """Whether the last of these rows is the first with the best mean accuracy on held-out training images."""
    names = [split.name for split in job.task.of_role("validation")]
    means = [sum(row["splits"][name]["accuracy"] for name in names) for row in rows]
    return all(mean < means[-1] for mean in means[:-1])


def save(trainer: Trainer, rows: list[Row], store: Store, files: JobFiles, keep: Keep) -> None:
    """Saves records, then the checkpoint that covers them: a checkpoint without its records would lose rows.

    Until the job is done the numbers of test splits are in the checkpoint alone. An algorithm whose state cannot be
    saved gets no checkpoint: interrupted, its job starts over, to the same end.
    """
    known, _ = apart(rows, _tests(trainer.job))
    store.put_atomic(files.records, encode_records(known))
    if trainer.can_be_saved():
        store.put_atomic(files.checkpoint, encode_checkpoint(trainer, rows, keep))


def resume(job: Job, store: Store, files: JobFiles, runtime: Runtime, keep: Keep) -> tuple[Trainer, list[Row]]:
    """A trainer at the last checkpoint, with the rows up to it; later rows are dropped and will be computed again.

    It is a trainer at the start if there is no checkpoint, if rows before it are missing (another process wrote over
    them), if weights or logits of their steps are now to be kept and were not, or if it does not fit a new object of
    the algorithm's class: starting over gives the same result.
    """
    data = store.get(files.checkpoint)
    checkpoint = decode_checkpoint(data, job) if data else None
    if checkpoint is not None and (keep in ("none", "final") or keep == checkpoint.get("keep", keep)):
        step = checkpoint["state"]["step"]
        known = [row for row in parse_records(store.get(files.records)) if row["step"] <= step]
        rows = joined(known, checkpoint.get("test", ()))
        trainer = Trainer(job, runtime)
        if [row["step"] for row in rows] == checkpoint["recorded"] and trainer.load_state(checkpoint["state"]):
            return trainer, rows
    return Trainer(job, runtime), []


def encode_checkpoint(trainer: Trainer, rows: list[Row], keep: Keep) -> bytes:
    """The state of a trainer as bytes that load without running code."""
    buffer = io.BytesIO()
    torch.save(
        {
            "format": CHECKPOINT_FORMAT,
            "job": trainer.job.id,
            "recorded": [row["step"] for row in rows],
            "keep": keep,
            "test": apart(rows, _tests(trainer.job))[1],
            "state": trainer.state(),
        },
        buffer,
    )
    return buffer.getvalue()


def decode_checkpoint(data: bytes, job: Job) -> dict[str, Any] | None:
    """The checkpoint in these bytes, or None if they are not one (then the job starts over, to the same result).

    Raises:
        StoreError: It belongs to another job or to a newer shiftbed.
    """
    try:
        checkpoint = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        job_id, version = checkpoint["job"], checkpoint["format"]
    except Exception:  # torch.load raises whatever the broken bytes lead it to
        return None
    if version > CHECKPOINT_FORMAT:
        raise StoreError(
            f"The checkpoint of job {job.id} was written by a newer shiftbed; update shiftbed to continue it."
        )
    if job_id != job.id:
        raise StoreError(
            f"The checkpoint in the folder of job {job.id} belongs to job {job_id}; move it away to start over."
        )
    return checkpoint


def _finish(trainer: Trainer, rows: list[Row], store: Store, files: JobFiles, outcome: Outcome, keep: Keep) -> None:
    # The best so far of an attempt that kept them, and was stopped, would stay as if they were what the job ended with.
    begun = keep != "best" and store.get(files.weights) is not None
    if (keep == "final" or begun) and outcome == "done":  # of a job that diverged they say nothing
        store.put_atomic(files.weights, encode_weights(trainer))
    # The rows are in `done` itself: a late writer can still replace the record file, but never this.
    result = Result.of(outcome, trainer.diverged_at() or trainer.step, rows, _tests(trainer.job))
    result.write(store, trainer.job.id)
    _tidy(store, files)


def _tests(job: Job) -> list[str]:
    return [split.name for split in job.task.of_role("test")]


def _tidy(store: Store, files: JobFiles) -> None:
    """Empties the checkpoint of a finished job, and brings its record file back to what `done` says."""
    rows = encode_records(json.loads(store.get(files.done) or b"")["records"])
    if store.get(files.records) != rows:
        store.put_atomic(files.records, rows)
    if store.get(files.checkpoint):
        store.put_atomic(files.checkpoint, b"")


def parse_times(data: bytes | None) -> list[dict[str, Any]]:
    """The attempts in a file of times; one that was cut says nothing, and no result depends on it."""
    try:
        return json.loads(data or b"[]")
    except ValueError:
        return []


def _add_times(store: Store, files: JobFiles, runtime: Runtime, steps: int, seconds: float) -> None:
    """Adds this attempt to the file of times and environment, which no result depends on."""
    attempts = parse_times(store.get(files.times))
    attempts.append(
        {
            "host": platform.node(),
            "device": torch.cuda.get_device_name(runtime.device) if runtime.on_gpu else "cpu",
            "deterministic": runtime.deterministic,
            "accelerated": runtime.on_gpu and runtime.accelerate,
            "steps": steps,
            "started": round(time.time() - seconds, 3),
            "seconds": round(seconds, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    )
    store.put_atomic(files.times, canonical(attempts))
