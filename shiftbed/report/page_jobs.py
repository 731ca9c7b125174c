"""What the page says of the jobs: whether they compare honestly, what they cost, how they ended, what made them."""

from collections.abc import Callable, Sequence
from typing import Any

from shiftbed import __version__
from shiftbed.audit.findings import Audit, Finding
from shiftbed.audit.ledger import asked_by, note
from shiftbed.audit.subject import Subject
from shiftbed.audit.verbs import WITH_TEST, WITHOUT_TEST
from shiftbed.errors import ShiftbedError
from shiftbed.report.page_results import Results
from shiftbed.sweeps.records import mean_seconds
from shiftbed.training.run import JobFiles, parse_times
from shiftbed.training.store import Store

Progress = Callable[[str, int, int], None]


def note_looks(store: Store, results: Results) -> None:
    """Writes down what oracle selections looked at, as every verb that shows their numbers does."""
    note(store, (query for tables in results.tables.values() for table in tables for query in asked_by(table)))


def audited(subject: Subject, on_progress: Progress) -> Audit:
    """The audit from the same records; a check that cannot be made here says why."""
    findings = []
    checks = (*WITHOUT_TEST, *WITH_TEST)
    for number, check in enumerate(checks):
        on_progress("auditing", number, len(checks))
        try:
            findings.append(check(subject))
        except ShiftbedError as reason:
            findings.append(Finding(check.__name__.replace("_", " "), "unknown", str(reason)))
    return Audit(subject.folder, len(subject.abouts), findings)


def costs(subject: Subject, store: Store) -> dict[str, Any]:
    """Device-hours behind each algorithm's result on each dataset: mean seconds of a job times jobs."""
    jobs: dict[tuple[str, str], list[str]] = {}
    for about in subject.abouts:
        jobs.setdefault((about["dataset"], about["algorithm"]), []).append(about["id"])
    means = mean_seconds(store, jobs)
    rows = [
        {
            "dataset": kind[0],
            "algorithm": kind[1],
            "jobs": len(jobs[kind]),
            "seconds": seconds,
            "hours": seconds * len(jobs[kind]) / 3600,
        }
        for kind, seconds in sorted(means.items())
    ]
    attempts = [one for ids in jobs.values() for one in parse_times(store.get(JobFiles(ids[0]).times))]
    return {"rows": rows, "hours": sum(row["hours"] for row in rows), "attempts": attempts}


def diverged(subject: Subject) -> list[dict[str, Any]]:
    """The jobs whose loss went wrong."""
    ended = [
        (status, about) for task in subject.tasks for status, about in zip(task.statuses, task.abouts, strict=True)
    ]
    return [about for status, about in ended if status == "diverged"]


def versions(subject: Subject, attempts: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the numbers were made with."""

    def every(values: Sequence[Any]) -> str:
        return ", ".join(sorted({str(value) for value in values if value is not None}))

    abouts = subject.abouts
    found = [
        ("shiftbed", __version__),
        ("torch", every([one.get("torch") for one in attempts])),
        ("python", every([one.get("python") for one in attempts])),
        ("devices", every([one.get("device") for one in attempts])),
        ("numerics", every([about.get("numerics") for about in abouts])),
        ("datasets", every([f"{about['dataset']} version {about['version']}" for about in abouts])),
        ("recipes", every([f"{about['recipe']['name']}, {about['recipe']['steps']} steps" for about in abouts])),
        ("revisions", every([f"{about['algorithm']} {about['revision']}" for about in abouts])),
    ]
    return [(name, value) for name, value in found if value]
