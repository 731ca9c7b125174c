"""Compaction: finished jobs as immutable Parquet parts, which a reader queries instead of opening every job's files.

A part is two files named by their content: `parts/DIGEST.records.parquet`, one row for each job, step and split, and
`parts/DIGEST.jobs.parquet`, one row a job. The second is created last, so a part that is listed is whole. Nothing is
ever removed, neither parts nor the files of compacted jobs: `done.json` stays the one object that says who finished
first. So a job that a reader has seen it will always see, whatever is killed in between, and it takes a job that is in
several places once, by its id.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from shiftbed.errors import StoreError
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore, Store

BATCH_BYTES = 64 * 2**20  # of records as text: the size of a part
LOOK_BYTES = 16 * 2**20  # likewise of parts that are made for a passing look: less memory, and ready sooner
WRITERS = 2  # parts written at once; one more batch is in memory, whose files are being read
JOBS, RECORDS = ".jobs.parquet", ".records.parquet"
KEYS = ("id", "checkpoint", "step", "split")  # the columns of records beside their numbers
FORMAT = "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 30720)"  # small groups: a reader of a few jobs skips most
OWN = ("id", "algorithm", "revision", "draw", "trial", "hparams", "own_overrides")  # what jobs of a table differ in
COUNTS = ("count", "class_counts", "class_correct")  # integers by what they mean; any other number may have a fraction


class Loose(NamedTuple):
    """A finished job as it lies in its own files: its id, its description and its result, as bytes."""

    id: str
    description: bytes
    done: bytes


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: how many jobs it put into how many parts."""

    jobs: int
    parts: int


def compact(store: Store) -> Compacted:
    """Puts the finished jobs that no part holds yet into new parts.

    It may be killed at any moment and run any number of times at once. Every call that finds such jobs makes a part: it
    is for the end of a sweep, or for every few thousand jobs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parts = write_parts(loose_jobs(store, part_jobs(store, part_names(store))), folder)
        for part in parts:
            add_part(store, part, folder)
        return Compacted(len(part_jobs(LocalStore(folder), parts)), len(parts))


def part_names(store: Store) -> list[str]:
    """The parts of a store."""
    return sorted(key.removesuffix(JOBS) for key in store.list("parts") if key.endswith(JOBS))


def add_part(store: Store, part: str, folder: Path) -> None:
    """Copies a part from a folder into a store: its records first, so that a part that is listed is whole."""
    for kind in (RECORDS, JOBS):
        store.create_exclusive(part + kind, (folder / (part + kind)).read_bytes())


def fetched(store: Store, part: str, kind: str, folder: Path) -> str:
    """The path of a part's file; that of a store without paths is first copied into the folder."""
    if isinstance(store, LocalStore):
        return str(store.root / (part + kind))
    path = folder / (part + kind)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(part + kind) or b"")
    return str(path)


def part_jobs(store: Store, parts: Sequence[str]) -> dict[str, str]:
    """How the jobs in some parts of a store ended, by id.

    Raises:
        StoreError: A part is damaged.
    """
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as db:
        for part in reversed(parts):  # the first part that holds a job says how it ended
            path = fetched(store, part, JOBS, Path(folder))
            found.update(read(db, f"SELECT id, status FROM '{quoted(path)}'", path))
    return found


def loose_jobs(store: Store, known: Container[str] = ()) -> Iterator[Loose]:
    """The finished jobs that have files of their own and are not known yet, by id."""
    folders = (key.split("/")[1] for key in store.list("jobs", deep=False) if key.endswith("/"))
    for job_id in sorted(name for name in folders if name not in known):
        files = JobFiles(job_id)
        done = store.get(files.done)
        description = store.get(files.job) if done is not None else None
        if done is not None and description is not None:
            yield Loose(job_id, description, done)


def write_parts(jobs: Iterable[Loose], folder: Path, metrics: Collection[str] | None = None) -> list[str]:
    """Writes finished jobs as parts into a folder.

    Args:
        jobs: The jobs.
        folder: The folder.
        metrics: The numbers to keep of every split, for a passing look; all by default.

    Returns:
        The names of the parts.

    Raises:
        StoreError: A record cannot be read.
    """
    written: list[Future[str]] = []
    database = duckdb.connect(config={"threads": 1})  # one for each writer
    with database, ThreadPoolExecutor(WRITERS) as writers:  # which write while the files of the next batch are read
        for batch in _batches(jobs, BATCH_BYTES if metrics is None else LOOK_BYTES):
            for earlier in written[: 1 - WRITERS]:
                earlier.result()
            written.append(writers.submit(_write_part, database.cursor(), batch, folder, metrics))
    return [part.result() for part in written]


def write_fewer(store: LocalStore, folder: Path, metrics: Collection[str]) -> None:
    """Writes the parts of a store once more into a folder, with a few numbers of every split.

    A part that has no others stays as it is, so that it is recognised elsewhere.
    """
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch, duckdb.connect() as db:
        for part in part_names(store):
            records, jobs = (store.root / (part + kind) for kind in (RECORDS, JOBS))
            known = [name for name, *_ in read(db, f"DESCRIBE FROM '{quoted(records)}'", str(records))]
            kept = [name for name in known if name in {*KEYS, *metrics}]
            if kept != known:
                columns, fewer = ", ".join(map(identifier, kept)), Path(scratch) / "records"
                db.execute(f"COPY (SELECT {columns} FROM '{quoted(records)}') TO '{quoted(fewer)}' {FORMAT}")
                records = fewer
            _name_part(records, jobs, folder)


def _name_part(records: Path, jobs: Path, folder: Path) -> str:
    """Puts the two files of a part into a folder, named by their content."""
    contents = {RECORDS: records.read_bytes(), JOBS: jobs.read_bytes()}
    part = f"parts/{hashlib.sha256(contents[RECORDS] + contents[JOBS]).hexdigest()}"
    (folder / "parts").mkdir(exist_ok=True)
    for kind, content in contents.items():
        (folder / (part + kind)).write_bytes(content)
    return part


def _batches(jobs: Iterable[Loose], most: int) -> Iterator[list[Loose]]:
    batch: list[Loose] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.done)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_part(db: duckdb.DuckDBPyConnection, batch: list[Loose], folder: Path, asked: Collection[str] | None) -> str:
    """Writes one part, with a column for every metric that is asked for, or occurs in any record of the batch."""
    metrics = dict.fromkeys(("accuracy", *(asked or ())), "DOUBLE")
    for job in batch if asked is None else ():
        metrics |= _metrics_of(_first_splits(job.done))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        lines, jobs, records = (Path(scratch) / name for name in ("lines", "jobs", "records"))
        try:
            lines.write_bytes(b"".join(map(_description_line, batch)))
            _copy_jobs(db, lines, jobs)
            with lines.open("wb") as file:
                for job in batch:  # the results are not parsed here, which would take longer than all the rest
                    file.writelines((f'{{"id":"{job.id}","done":'.encode(), job.done.replace(b"\n", b" "), b"}\n"))
            longest = 2**20 + max(len(job.done) for job in batch)
            while True:
                _copy_records(db, lines, longest, metrics, records)
                overlooked = _overlooked(db, records, metrics, batch) if asked is None else {}
                if overlooked.keys() <= metrics.keys():
                    break
                metrics |= overlooked
            return _name_part(records, jobs, folder)
        except (OSError, duckdb.IOException) as error:
            raise StoreError(f"Cannot write to {folder} ({error}); set TMPDIR to a folder with more room.") from error
        except duckdb.Error as error:
            raise _unreadable(batch, error) from error


def _description_line(job: Loose) -> bytes:
    description = json.dumps(job.description.decode())
    status, step = ending(job)
    return f'{{"id":"{job.id}","status":"{status}","step":{step},"description":{description}}}\n'.encode()


def ending(job: Loose) -> tuple[str, int]:
    """How and at which step a job ended: the canonical text of a result ends with it; any other is parsed whole."""
    found = re.search(rb'"status":"(\w+)","step":(\d+)}$', job.done[-99:])
    if found:
        return found[1].decode(), int(found[2])
    result = parsed(job)
    return result["status"], result["step"]


def _copy_jobs(db: duckdb.DuckDBPyConnection, lines: Path, path: Path) -> None:
    """Writes one row a job; what jobs share of their descriptions is apart, so that a reader parses it once."""
    own = ", ".join(f"'{name}', about.{name}" for name in OWN)
    without = ", ".join(f'"{name}": null' for name in OWN)
    about = {**dict.fromkeys(OWN, "JSON"), "dataset": "VARCHAR", "setting": "VARCHAR", "test_domains": ["VARCHAR"]}
    columns = {"id": "VARCHAR", "status": "VARCHAR", "step": "INTEGER", "description": "VARCHAR"}
    db.execute(
        f"""COPY (SELECT id, status, step, about.dataset, about.algorithm->>'$' AS algorithm, about.setting,
            about.trial::INTEGER AS trial, about.draw::INTEGER AS draw, about.test_domains,
            json_object({own}) AS own, json_merge_patch(description, '{{{without}}}') AS shared
        FROM (SELECT *, from_json(description, '{json.dumps(about)}') AS about
            FROM read_ndjson('{quoted(lines)}', columns = {columns})
        )) TO '{quoted(path)}' {FORMAT}"""
    )


def _copy_records(
    db: duckdb.DuckDBPyConnection, lines: Path, longest: int, metrics: dict[str, str], path: Path
) -> None:
    """Writes one row for each job, checkpoint and split."""
    values = ", ".join(f"{identifier(name)} {kind}" for name, kind in metrics.items())
    rows = f"STRUCT(step INTEGER, splits MAP(VARCHAR, STRUCT({values})))[]"
    columns = {"id": "VARCHAR", "done": f"STRUCT(records {rows})"}
    db.execute(
        f"""COPY (
            WITH checkpoints AS (
                SELECT id, unnest(done.records) AS row, unnest(range(len(done.records)))::SMALLINT AS checkpoint
                FROM read_ndjson('{quoted(lines)}', columns = {columns}, maximum_object_size = {longest})
            ), entries AS (
                SELECT id, checkpoint, row.step AS step, unnest(map_entries(row.splits)) AS entry FROM checkpoints
            )
            SELECT id, checkpoint, step, entry.key AS split, unnest(entry.value) FROM entries
        ) TO '{quoted(path)}' {FORMAT}"""
    )


def _first_splits(done: bytes) -> list[dict[str, Any]]:
    """What the first record says of each split, found without parsing the others."""
    start = done.find(b'"splits":')
    if start < 0:
        return []
    try:
        splits, _ = json.JSONDecoder().raw_decode(done[start + len(b'"splits":') :].decode().lstrip())
    except ValueError:
        return []  # a cut file, of which the reader of the whole will tell
    return list(splits.values())


def _metrics_of(splits: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The type of the column of every metric."""
    return {
        name: ("BIGINT" if name in COUNTS else "DOUBLE") + ("[]" if isinstance(value, list) else "")
        for split in splits
        for name, value in split.items()
    }


def _overlooked(
    db: duckdb.DuckDBPyConnection, records: Path, metrics: dict[str, str], batch: list[Loose]
) -> dict[str, str]:
    """All metrics of the jobs whose result has more keys than were written; only these are parsed whole.

    A result has the keys `records`, `status` and `step`, a record `splits` and `step`.
    """
    values = " + ".join(f"count({identifier(name)})" for name in metrics)
    query = f"""SELECT id, 2 * count(DISTINCT checkpoint) + count(*) + {values}
        FROM read_parquet('{quoted(records)}') GROUP BY id"""
    written = dict(db.execute(query).fetchall())
    found: dict[str, str] = {}
    for job in batch:
        if job.done.count(b'":') != 3 + written.get(job.id, 0):
            for row in json.loads(job.done)["records"]:
                found |= _metrics_of(row["splits"].values())
    return found


def _unreadable(batch: list[Loose], error: duckdb.Error) -> StoreError:
    for job in batch:
        described(job), parsed(job)
    return StoreError(
        f"The records of a finished job hold something other than numbers ({str(error).splitlines()[0]})."
    )


def parsed(job: Loose) -> dict[str, Any]:
    """The result of a job.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return json.loads(job.done)
    except ValueError as error:
        key = JobFiles(job.id).done
        raise StoreError(
            f"{key} is damaged; remove it and run the sweep again, which finishes that job alone."
        ) from error


def described(job: Loose) -> dict[str, Any]:
    """The description of a job.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return json.loads(job.description)
    except ValueError as error:
        key = JobFiles(job.id).job
        raise StoreError(
            f"{key} is damaged; remove its folder and run the sweep again, which trains it anew."
        ) from error


def read(db: duckdb.DuckDBPyConnection, query: str, path: str) -> list[tuple[Any, ...]]:
    """The rows of a query to a part's file.

    Raises:
        StoreError: The file is damaged.
    """
    try:
        return db.execute(query).fetchall()
    except duckdb.Error as error:
        raise StoreError(
            f"{path} is damaged; remove it and compact again, or restore it if its jobs came from a bundle."
        ) from error


def quoted(path: str | Path) -> str:
    """A path, or another text, between the quotes of a query."""
    return str(path).replace("'", "''")


def quoted_list(texts: Iterable[str]) -> str:
    """A list of texts in a query."""
    return "[" + ", ".join(f"'{quoted(text)}'" for text in texts) + "]"


def identifier(name: str) -> str:
    """A name as a column of a query."""
    return '"' + name.replace('"', '""') + '"'
