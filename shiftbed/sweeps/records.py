"""Reading a store: the finished jobs and their records, by job or by query, and where the other jobs stand."""

import heapq
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, Literal, cast
from zipfile import is_zipfile

import duckdb
import numpy as np

from shiftbed.errors import StoreError
from shiftbed.selection import JobRecords, TaskRecords
from shiftbed.selection.records import NO_STEP, Cells, uncollected
from shiftbed.sweeps.blind import is_sealed
from shiftbed.sweeps.compaction import (
    JOBS,
    KEYS,
    by_detail,
    fetched,
    identifier,
    loose_jobs,
    part_jobs,
    part_names,
    quoted,
    quoted_list,
    read,
    record_files,
    write_parts,
)
from shiftbed.sweeps.leases import BEAT_SECONDS, LeaseWatch
from shiftbed.sweeps.plan import planned
from shiftbed.sweeps.times import carried_times
from shiftbed.training.files import JobFiles, ending, parse_description
from shiftbed.training.run import parse_times
from shiftbed.training.store import LocalStore, Store

State = Literal["done", "diverged", "running", "failed", "left"]
WINDOW = 256  # jobs of a part in memory at once
LOOK_SECONDS = 5.0  # at a lease that does not move, for a status: a busy machine's beats are late
TIMED_JOBS = 20  # of a dataset and algorithm, whose times make an estimate
ROW_KEYS = ("job", "checkpoint", "step", "place")
CHUNK = 2**18  # rows whose places are computed at once, within a processor's cache
EMPTY = """CREATE TABLE jobs (id VARCHAR, status VARCHAR, step INTEGER, dataset VARCHAR, algorithm VARCHAR,
    setting VARCHAR, trial INTEGER, draw INTEGER, test_domains VARCHAR[], own VARCHAR, shared VARCHAR,
    description VARCHAR);
CREATE TABLE records (id VARCHAR, checkpoint SMALLINT, step INTEGER, split VARCHAR, accuracy DOUBLE)"""


def outcomes(store: Store) -> dict[str, str]:
    """How every finished job of a store ended, by id, without reading its records."""
    found = part_jobs(store, part_names(store))
    return found | {job.id: ending(job.id, job.result.done)[0] for job in loose_jobs(store, found, test=False)}


def no_finished_job(folder: str | Path) -> StoreError:
    """The error of a folder that has none, or of a file, which may be a bundle."""
    if Path(folder).is_file():
        if is_zipfile(folder):
            return StoreError(f"{folder} is a bundle; `shiftbed merge {quote(str(folder))} --out DIR` opens it.")
        return StoreError(f"{folder} is a file, not the folder of a sweep; name a folder.")
    return StoreError(
        f"There is no finished job in {folder}; `shiftbed sweep ... --out {quote(str(folder))}` makes some."
    )


def no_test_domain(folder: str | Path) -> StoreError:
    """The error of a folder whose jobs learned from all domains, as `shiftbed best --all-domains` makes them."""
    return StoreError(f"The jobs in {folder} learned from all domains and test none; name the folder of their sweep.")


def that_test(tasks: Sequence[TaskRecords], folder: str | Path) -> list[TaskRecords]:
    """The tasks that test a domain: a model of all domains has no number that a table, or its audit, could show.

    Raises:
        StoreError: No task does.
    """
    found = [task for task in tasks if task.tested]
    if not found:
        raise no_test_domain(folder) if tasks else no_finished_job(folder)
    return found


def finished_jobs(store: Store, test: bool | None = None) -> Iterator[JobRecords]:
    """All finished jobs of a store, by id. Whatever order they ran in, wherever, compacted or not, this is the same.

    Args:
        store: The store.
        test: Whether to open the files of test numbers; by default if the store is not sealed.
    """
    test = not is_sealed(store) if test is None else test
    with tempfile.TemporaryDirectory() as scratch:
        parts = by_detail(store, part_names(store), Path(scratch))
        streams = [_part_jobs(store, part, Path(scratch), test) for part in parts]
        last = None
        for job in heapq.merge(_loose_jobs(store, parts, test), *streams, key=lambda job: job.id):
            if job.id != last:
                yield job
            last = job.id


def _loose_jobs(store: Store, parts: list[str], test: bool) -> Iterator[JobRecords]:
    for job in loose_jobs(store, part_jobs(store, parts), test):
        about, result = parse_description(job.id, job.description), job.result.parsed(job.id)
        yield JobRecords(about, result["status"], result["records"], result["step"])


def _part_jobs(store: Store, part: str, scratch: Path, test: bool) -> Iterator[JobRecords]:
    """The jobs of a part, by id, some at a time."""
    jobs, records = fetched(store, part, JOBS, scratch), record_files(store, [part], scratch, test)
    with duckdb.connect() as db:
        abouts = read(db, f"SELECT id, status, step, own, shared FROM '{quoted(jobs)}' ORDER BY id", jobs)
        for start in range(0, len(abouts), WINDOW):
            window = abouts[start : start + WINDOW]
            rows = _rows_between(db, records, window[0][0], window[-1][0])
            for job_id, status, last, own, shared in window:
                steps = [{"step": step, "splits": splits} for step, splits in rows[job_id].items()]
                yield JobRecords({**json.loads(shared), **json.loads(own)}, status, steps, last)


def _rows_between(
    db: duckdb.DuckDBPyConnection, paths: list[str], first: str, last: str
) -> dict[str, dict[int, dict[str, Any]]]:
    """What files say of the jobs from one id to another: by id, step and split."""
    rows: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for path in paths:
        query = f"FROM '{quoted(path)}' WHERE id BETWEEN '{first}' AND '{last}' ORDER BY id, checkpoint, split"
        found = read(db, query, path)
        metrics = [column[0] for column in db.description or ()][len(KEYS) :]
        for job_id, _, step, split, *values in found:
            known = {name: value for name, value in zip(metrics, values, strict=True) if value is not None}
            rows[job_id].setdefault(step, {})[split] = known
    return rows


class Records:
    """The finished jobs of a store as tables for queries, as they are at the moment of opening.

    `jobs` has a row for each job: id, status, step, dataset, algorithm, setting, trial, draw, test_domains, and its
    description as JSON. `splits` has a row for each job and split: id, split, domain, part, role, count. `records` has
    a row for each job, checkpoint and split: id, checkpoint, step, split, and the metrics.

        with Records(store) as records:
            records.sql("SELECT id, step, avg(accuracy) FROM records JOIN splits USING (id, split) "
                        "WHERE role = 'validation' GROUP BY ALL").fetchall()

    Args:
        store: The store.
        metrics: What will be read of jobs that are not compacted yet: naming it takes a third off the time to open.
        test: Whether to open the files of test numbers; by default if the store is not sealed.
    """

    def __init__(self, store: Store, metrics: Collection[str] | None = None, test: bool | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._db = duckdb.connect()
        folder = Path(self._scratch.name)
        loose = LocalStore(folder / "loose")
        loose.root.mkdir()
        test = not is_sealed(store) if test is None else test
        parts = by_detail(store, part_names(store), folder)
        known = part_jobs(store, parts)
        more = write_parts(loose_jobs(store, known, test), loose.root, metrics)
        places: list[tuple[Store, list[str]]] = [(store, parts), (loose, more)]
        jobs = [fetched(one, part, JOBS, folder) for one, some in places for part in some]
        if jobs:
            self._open(jobs, [path for one, some in places for path in record_files(one, some, folder, test)])
        else:
            self._db.execute(EMPTY)
        self._db.execute(
            """CREATE VIEW splits AS SELECT id, about.name AS split, about.domain, about.part, about.role, about.count
            FROM (SELECT id, unnest(from_json(description, '{"splits": [{"name": "VARCHAR", "domain": "VARCHAR",
                "part": "VARCHAR", "role": "VARCHAR", "count": "BIGINT"}]}').splits) AS about FROM jobs)"""
        )

    def _open(self, jobs: list[str], records: list[str]) -> None:
        """Makes the tables; of a job that is in several parts, that of the first in order."""

        def every(paths: list[str]) -> str:
            read_all = f"read_parquet({quoted_list(paths)}, union_by_name = true, filename = true)"
            part = r"regexp_replace(filename, '\.\w+\.parquet$', '')"
            return f"(SELECT * EXCLUDE filename, {part} AS file FROM {read_all})"

        try:
            counts = self._db.execute(f"SELECT count(id), count(DISTINCT id) FROM {every(jobs)}").fetchone()
            once = ""
            if counts and counts[0] != counts[1]:
                places = ", ".join(f"('{quoted(path.removesuffix(JOBS))}', {i})" for i, path in enumerate(jobs))
                self._db.execute(
                    f"CREATE TABLE firsts AS SELECT id, arg_min(file, place) AS file FROM {every(jobs)} "
                    f"JOIN (VALUES {places}) AS places (file, place) USING (file) GROUP BY id"
                )
                once = "SEMI JOIN firsts USING (id, file)"
            described = "SELECT * EXCLUDE file, json_merge_patch(shared, own) AS description"
            self._db.execute(f"CREATE VIEW jobs AS {described} FROM {every(jobs)} {once}")
            self._db.execute(f"CREATE VIEW records AS SELECT * EXCLUDE file FROM {every(records)} {once}")
        except duckdb.Error as error:
            why = str(error).splitlines()[0]  # duckdb goes on with the query
            raise StoreError(f"A part cannot be read ({why}); restore it, or remove it and compact again.") from error

    def tasks(self, metrics: Iterable[str]) -> list[TaskRecords]:
        """All jobs as columns, task by task: the same as `tasks_of(finished_jobs(store), metrics)`, and faster."""
        with uncollected():
            jobs, cells = self._abouts(), Cells()
            found: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
            for place, (_, about) in enumerate(jobs):
                found[about["setting"], tuple(about["test_domains"])].append(place)
            members = [sorted(found[key], key=lambda place: cells.order(jobs[place][1])) for key in sorted(found)]
        names = [name for (name,) in self.sql("SELECT DISTINCT split FROM records ORDER BY split").fetchall()]
        return _task_records(jobs, members, names, self._rows(names, list(metrics)))

    def _abouts(self) -> list[tuple[str, dict[str, Any]]]:
        """How each job ended, and its description, by id; what many jobs share is parsed once."""
        self.sql("CREATE TEMP TABLE IF NOT EXISTS shares AS SELECT DISTINCT shared FROM jobs ORDER BY shared")
        parsed_once = [json.loads(text) for (text,) in self.sql("SELECT shared FROM shares ORDER BY rowid").fetchall()]
        query = "SELECT status, own, shares.rowid FROM jobs JOIN shares USING (shared) ORDER BY id"
        rows = self.sql(query).fetchall()
        owns = json.loads(f"[{','.join(own for _, own, _ in rows)}]")  # at once, so that equal names are one object
        return [(status, parsed_once[place] | own) for (status, _, place), own in zip(rows, owns, strict=True)]

    def _rows(self, names: list[str], metrics: list[str]) -> dict[str, np.ndarray]:
        """The records as arrays: the place of the job (by id), checkpoint, step, the place of the split, metrics."""
        known = {name for name, *_ in self.sql("DESCRIBE records").fetchall()}
        named = [f"{identifier(name) if name in known else 'NULL'}::DOUBLE AS {identifier(name)}" for name in metrics]
        place = f"(list_position({quoted_list(names)}, split) - 1)::SMALLINT AS place"
        columns = ", ".join(["job", "checkpoint", "step", place, *named])
        jobs = "SELECT id, (row_number() OVER (ORDER BY id) - 1)::INTEGER AS job FROM jobs"
        found = self.sql(f"SELECT {columns} FROM records JOIN ({jobs}) USING (id)").fetchnumpy()
        return {name: np.ma.filled(values, np.nan) if name in metrics else values for name, values in found.items()}

    def sql(self, query: str) -> duckdb.DuckDBPyConnection:
        """Runs a query."""
        return self._db.execute(query)

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._scratch.cleanup()


def _task_records(
    jobs: list[tuple[str, dict[str, Any]]], members: list[list[int]], names: list[str], rows: dict[str, np.ndarray]
) -> list[TaskRecords]:
    """The jobs of each task, in the order given, as columns.

    All tasks are views of one long array a metric, which is filled at once: every record knows where it goes.
    """
    lengths = np.zeros(len(jobs), rows["checkpoint"].dtype)
    np.maximum.at(lengths, rows["job"], rows["checkpoint"] + 1)
    first = np.zeros(len(jobs), int)  # where a job's steps begin, all tasks' steps being one after another
    first_value = np.zeros(len(jobs), int)  # likewise its values
    widths = np.zeros(len(jobs), int)
    places = np.zeros((len(jobs), len(names)), np.int16)
    shapes, steps_end, values_end = [], 0, 0
    for task in members:
        splits = [split["name"] for split in jobs[task[0]][1]["splits"]]
        longest, width = int(lengths[task].max()), len(splits)
        first[task] = steps_end + longest * np.arange(len(task))
        first_value[task] = values_end + longest * width * np.arange(len(task))
        widths[task] = width
        places[task] = [splits.index(name) if name in splits else -1 for name in names]
        shapes.append((len(task), longest, width))
        steps_end += len(task) * longest
        values_end += len(task) * longest * width
    steps = np.full(steps_end, NO_STEP)
    values = {metric: np.full(values_end, np.nan) for metric in rows if metric not in ROW_KEYS}
    for start in range(0, len(rows["job"]), CHUNK):
        chunk = {name: column[start : start + CHUNK] for name, column in rows.items()}
        job, checkpoint = chunk["job"], chunk["checkpoint"]
        steps[first[job] + checkpoint] = chunk["step"]
        place = places[job, chunk["place"]]
        listed = place >= 0
        where = (first_value[job] + checkpoint * widths[job] + place)[listed]
        for metric, array in values.items():
            array[where] = chunk[metric][listed]
    tasks, steps_end, values_end = [], 0, 0
    for task, shape in zip(members, shapes, strict=True):
        size = math.prod(shape)
        abouts = [jobs[member][1] for member in task]
        tasks.append(
            TaskRecords(
                abouts,
                [jobs[member][0] for member in task],
                abouts[0]["splits"],
                steps[steps_end : steps_end + shape[0] * shape[1]].reshape(shape[:2]),
                {metric: array[values_end : values_end + size].reshape(shape) for metric, array in values.items()},
            )
        )
        steps_end += shape[0] * shape[1]
        values_end += size
    return tasks


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

    @property
    def unfinished(self) -> int:
        """How many jobs have not ended, or failed."""
        return len(self.plan) - self.count("done") - self.count("diverged")

    @property
    def jobs_per_second(self) -> float | None:
        """How many jobs the running ones end in a second; None if none runs or none has finished before."""
        return self.unfinished / self.seconds_left if self.count("running") and self.seconds_left else None

    def count(self, state: State) -> int:
        """How many jobs are in a state."""
        return sum(1 for value in self.states.values() if value == state)


def status(folder: str | Path) -> Status:
    """Where the jobs of a sweep stand, from any machine that sees its folder.

    Args:
        folder: The sweep's folder.

    Raises:
        StoreError: There is no sweep in the folder, or no plan of one.
    """
    if Path(folder).is_file():
        raise no_finished_job(folder)
    store = LocalStore(Path(folder))
    now, where = sweep_status(store), quote(str(folder))
    if not now.plan and outcomes(store):
        raise StoreError(
            f"{folder} has finished jobs and no plan of which others belong to them, as an import has; "
            f"`shiftbed tables {where}` shows them."
        )
    if not now.plan:
        raise StoreError(f"There is no sweep in {folder}; `shiftbed sweep ... --out {where}` starts one.")
    return now


def sweep_status(store: Store) -> Status:
    """Looks at a store from any machine; at leases until every holder has shown a sign of life, for a few seconds."""
    plan, ended = planned(store), outcomes(store)
    started = {key.split("/")[1] for key in store.list("jobs", deep=False)}
    states: dict[str, State] = {}
    failures: dict[str, str] = {}
    watch, claimed = LeaseWatch(store), set()
    for job_id in plan:
        states[job_id] = cast(State, ended.get(job_id, "left"))
        if job_id in ended or job_id not in started:
            continue
        failure = store.get(JobFiles(job_id).failure)
        if failure is not None:
            states[job_id] = "failed"
            failures[job_id] = _reason(failure)
        if watch.moved(job_id) is not None:
            claimed.add(job_id)
    deadline = time.monotonic() + LOOK_SECONDS
    while claimed and time.monotonic() < deadline:
        time.sleep(0.2 * BEAT_SECONDS)
        moved = {job_id: watch.moved(job_id) for job_id in claimed}
        states |= {job_id: "running" for job_id, alive in moved.items() if alive}
        claimed = {job_id for job_id, alive in moved.items() if alive is False}
    failures = {job_id: why for job_id, why in failures.items() if states[job_id] == "failed"}  # not if it runs again
    return Status(states, plan, failures, _seconds_left(store, plan, states))


def _reason(failure: bytes) -> str:
    try:
        return json.loads(failure)["why"]
    except ValueError:
        return "the reason was cut while it was written"


def _seconds_left(store: Store, plan: dict[str, dict[str, Any]], states: dict[str, State]) -> float | None:
    """Unfinished jobs times the mean time of finished ones of the same dataset and algorithm, over those running."""
    done: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job_id, state in states.items():
        if state == "done":
            done[plan[job_id]["dataset"], plan[job_id]["algorithm"]].append(job_id)
    means = mean_seconds(store, done)
    if not means:
        return None
    overall = sum(means.values()) / len(means)
    unfinished = [plan[i] for i, state in states.items() if state in ("running", "left", "failed")]
    work = sum(means.get((row["dataset"], row["algorithm"]), overall) for row in unfinished)
    return work / max(1, sum(1 for state in states.values() if state == "running"))


def mean_seconds(store: Store, jobs: Mapping[tuple[str, str], Sequence[str]]) -> dict[tuple[str, str], float]:
    """The mean time of some finished jobs of each kind; kinds of which no job has left its times lack.

    Args:
        store: Where the jobs are.
        jobs: The ids of jobs by kind (dataset and algorithm).
    """
    means = {}
    carried = carried_times(store)
    for kind, ids in jobs.items():
        times = (parse_times(store.get(JobFiles(job_id).times)) or carried.get(job_id) for job_id in ids)
        seconds = [
            sum(attempt["seconds"] for attempt in attempts) for attempts in islice(filter(None, times), TIMED_JOBS)
        ]
        if seconds:
            means[kind] = sum(seconds) / len(seconds)
    return means
