"""Finished jobs that nobody trained: what a test says they reached."""

from shiftbed.hashing import canonical
from shiftbed.training.files import JobFiles, Result


def finish(store, job, *, validation=0.5, test=0.5, status="done", seconds=None):
    """Writes a job's result: one record, with one accuracy for what validates and one for what is tested."""
    files = JobFiles(job.id)
    accuracy = {"validation": validation, "test": test}
    splits = {
        split.name: {"accuracy": accuracy[split.role], "loss": 1.0, "count": len(split.indices)}
        for split in job.task.splits
        if split.role in accuracy
    }
    rows = [{"step": job.recipe.steps, "splits": splits}]
    store.put_atomic(files.job, canonical(job.describe()))
    Result.of(status, job.recipe.steps, rows, [split.name for split in job.task.of_role("test")]).write(store, job.id)
    if seconds is not None:
        store.put_atomic(files.times, canonical([{"steps": job.recipe.steps, "seconds": seconds}]))
