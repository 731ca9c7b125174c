"""Reading a store: the finished jobs and their records, and where the others stand."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from shiftbed.selection import JobRecords
from shiftbed.sweeps.leases import BEAT_SECONDS, LeaseWatch
from shiftbed.sweeps.plan import planned
from shiftbed.training.run import JobFiles
from shiftbed.training.store import Store

State = Literal["done", "diverged", "running", "failed", "left"]


def finished_jobs(store: Store) -> Iterator[JobRecords]:
    """All finished jobs of a store, by id. Whatever order they ran in, and wherever, this is the same."""
    for key in sorted(key for key in store.list("jobs") if key.endswith("/done.json")):
        files = JobFiles(key.split("/")[1])
        description, done = store.get(files.job), store.get(files.done)
        if description is not None and done is not None:
            result = json.loads(done)
            yield JobRecords(json.loads(description), result["status"], result["records"])


@dataclass(frozen=True)
class Status:
    """Where the jobs of a sweep stand.

    Attributes:
        states: The state of every planned job, by id.
        plan: What was planned, by id.
        failures: Why jobs failed, by id.
        seconds_left: An estimate from the times of finished jobs, or None if none has finished.
    """

    states: dict[str, State]
    plan: dict[str, dict[str, Any]]
    failures: dict[str, str]
    seconds_left: float | None

    def count(self, state: State) -> int:
        """How many jobs are in a state."""
        return sum(1 for value in self.states.values() if value == state)


def sweep_status(store: Store) -> Status:
    """Looks at a store from any machine; leases are looked at twice, a little more than a beat apart."""
    plan = planned(store)
    keys = set(store.list("jobs"))
    states: dict[str, State] = {}
    failures: dict[str, str] = {}
    watch = LeaseWatch(store, patience=BEAT_SECONDS)
    claimed = []
    for job_id in plan:
        files = JobFiles(job_id)
        if files.done in keys:
            states[job_id] = json.loads(store.get(files.done) or b"{}")["status"]
            continue
        states[job_id] = "left"
        if files.failure in keys:
            states[job_id] = "failed"
            failures[job_id] = json.loads(store.get(files.failure) or b"{}")["why"]
        if files.lease in keys and watch.held(job_id):
            claimed.append(job_id)
    if claimed:
        time.sleep(1.5 * BEAT_SECONDS)
    for job_id in claimed:
        if watch.held(job_id):
            states[job_id] = "running"
    return Status(states, plan, failures, _seconds_left(store, plan, states))


def _seconds_left(store: Store, plan: dict[str, dict[str, Any]], states: dict[str, State]) -> float | None:
    """Unfinished jobs times the mean time of finished ones of the same dataset and algorithm, over those running."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for job_id, state in states.items():
        attempts = json.loads(store.get(JobFiles(job_id).times) or b"[]") if state == "done" else []
        if attempts:
            kind = (plan[job_id]["dataset"], plan[job_id]["algorithm"])
            seconds.setdefault(kind, []).append(sum(attempt["seconds"] for attempt in attempts))
    if not seconds:
        return None
    means = {kind: sum(values) / len(values) for kind, values in seconds.items()}
    overall = sum(means.values()) / len(means)
    unfinished = [plan[i] for i, state in states.items() if state in ("running", "left", "failed")]
    work = sum(means.get((row["dataset"], row["algorithm"]), overall) for row in unfinished)
    return work / max(1, sum(1 for state in states.values() if state == "running"))
