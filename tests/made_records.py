"""Made jobs for the tests of selection and tables."""

from shiftbed.hashing import canonical
from shiftbed.selection import JobRecords
from shiftbed.sweeps.designs import REDRAW
from shiftbed.sweeps.plan import remember_plan
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore


def leave_out(domains, tested):
    """The splits of a leave-out task."""
    splits = []
    for domain in domains:
        test = domain in tested
        splits.append({"name": f"{domain}/in", "domain": domain, "part": "in", "role": "test" if test else "train"})
        role = "test" if test else "validation"
        splits.append({"name": f"{domain}/out", "domain": domain, "part": "out", "role": role})
    return splits


def made_job(
    draw,
    rows,
    *,
    tested=("c",),
    domains=("a", "b", "c"),
    algorithm="ERM",
    trial=0,
    dataset="Toy",
    status="done",
    setting=None,
    splits=None,
    metric="accuracy",
    counts=None,
    **about,
):
    """A finished job; rows are (step, {split: number, or a dictionary of numbers})."""
    splits = leave_out(domains, tested) if splits is None else splits
    description = {
        "id": f"{algorithm}-{dataset}-{'+'.join(tested)}-{trial}-{draw}",
        "dataset": dataset,
        "version": 1,
        "algorithm": algorithm,
        "revision": 1,
        "test_domains": list(tested),
        "task": {"kind": "leave-out", "test": list(tested), "grouped": False},
        "trial": trial,
        "draw": draw,
        "hparams": {"lr": 0.1 * (1 + draw)},
        "recipe": {"name": "quick", "steps": 30, "evaluate_every": 10},
        "overrides": {},
        "own_overrides": {},
        "setting": setting or f"{dataset}, {len(tested)} tested",
        "splits": splits,
        **about,
    }
    counts = counts or {}

    def numbers(name, value):
        given = value if isinstance(value, dict) else {metric: value}
        return {"count": counts.get(name, 10), **given}

    records = [{"step": step, "splits": {n: numbers(n, v) for n, v in values.items()}} for step, values in rows]
    return JobRecords(description, status, records)


def made_folder(root, jobs, share, steps=(100,), design=REDRAW):
    """A sweep's folder in which planned jobs are done; `share(job, split, step)` is the accuracy of a split."""
    store = LocalStore(root)
    remember_plan(jobs, store, design)
    for job in jobs:
        rows = [
            {"step": step, "splits": {s.name: {"accuracy": share(job, s, step), "count": 10} for s in job.task.splits}}
            for step in steps
        ]
        files = JobFiles(job.id)
        for key, content in (
            (files.job, job.describe()),
            (files.done, {"status": "done", "step": steps[-1], "records": rows}),
        ):
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(canonical(content))
    return root
