"""Times of jobs: on what they ran and for how long, carried beside the records when a store moves.

In a job's own folder they are `times.json`; a store that came from elsewhere has them as `times/DIGEST.jsonl`, a line a
job, named by content as parts and plans are. Hosts are told apart and not named.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from shiftbed.hashing import canonical, digest
from shiftbed.training.run import JobFiles, parse_times
from shiftbed.training.store import Store

FOLDER = "times"
KEPT = ("device", "started", "seconds", "steps", "torch")
Attempt = dict[str, Any]


def carried_times(store: Store) -> dict[str, list[Attempt]]:
    """The attempts of every job whose times came with a bundle or a merge, by id."""
    found: dict[str, list[Attempt]] = {}
    for key in sorted(store.list(FOLDER)):
        for row in map(json.loads, (store.get(key) or b"").splitlines()):
            found[row["id"]] = _united(found.get(row["id"], []), row["attempts"])
    return found


def job_times(store: Store) -> dict[str, list[Attempt]]:
    """The attempts of every job of a store that left its times, by id: where, when, and how many seconds."""
    found = carried_times(store)
    for key in store.list("jobs", deep=False):
        job_id = key.split("/")[1]
        times = parse_times(store.get(JobFiles(job_id).times))
        own = [_without_host(one) for one in times if "started" in one]  # older files do not say when
        if own:
            found[job_id] = _united(found.get(job_id, []), own)
    return found


def carry_times(source: Store, store: Store) -> None:
    """Adds the times of a store's jobs to another store."""
    known = carried_times(store)
    rows = [
        {"id": job_id, "attempts": attempts}
        for job_id, attempts in sorted(job_times(source).items())
        if _united(known.get(job_id, []), attempts) != known.get(job_id)
    ]
    if rows:
        store.create_exclusive(f"{FOLDER}/{digest(rows)[:20]}.jsonl", b"".join(canonical(row) + b"\n" for row in rows))


def hours(attempts: Iterable[Attempt]) -> dict[str, tuple[float, float]]:
    """By device, the hours of all jobs one by one, and those in which at least one of them ran on it."""
    summed: dict[str, float] = defaultdict(float)
    spans: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in attempts:
        summed[one["device"]] += one["seconds"] / 3600
        spans[one["device"], one["place"]].append((one["started"], one["started"] + one["seconds"]))
    busy: dict[str, float] = defaultdict(float)
    for (device, _), some in spans.items():
        busy[device] += sum(end - start for start, end in _merged(some)) / 3600
    return {device: (summed[device], busy[device]) for device in sorted(summed)}


def _merged(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Spans of time without overlap that cover the same moments."""
    start, end = min(spans)
    for begins, ends in sorted(spans):
        if begins > end:
            yield start, end
            start, end = begins, ends
        end = max(end, ends)
    yield start, end


def _without_host(attempt: Attempt) -> Attempt:
    return {**{name: attempt[name] for name in KEPT}, "place": digest([attempt["host"]])[:6]}


def _united(some: list[Attempt], others: list[Attempt]) -> list[Attempt]:
    """The attempts of both, each once, by time."""
    every = {canonical(one): one for one in (*some, *others)}
    return sorted(every.values(), key=lambda one: (one["started"], canonical(one)))
