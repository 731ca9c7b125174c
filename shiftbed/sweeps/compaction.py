"""Compaction: finished jobs as immutable Parquet parts, which a reader queries instead of opening every job's files.

A part is a few files named by their content: `parts/DIGEST.records.parquet`, one row for each job, step and split;
`parts/DIGEST.test.parquet`, the same of test splits, so that who needs no test number opens none; and
`parts/DIGEST.jobs.parquet`, one row a job. The last is created last, so a part that is listed is whole. Nothing is
ever removed, neither parts nor the files of compacted jobs: `done.json` stays the one object that says who finished
first. So a job that a reader has seen it will always see, whatever is killed in between, and it takes a job that is in
several places once, by its id.
"""

import hashlib
import json
import tempfile
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from shiftbed.errors import StoreError
from shiftbed.training.files import JobFiles, Result, ending, lost_description, parse_description
from shiftbed.training.store import LocalStore, Store

BATCH_BYTES = 64 * 2**20  # of records as text: the size of a part
LOOK_BYTES = 16 * 2**20  # likewise of parts that are made for a passing look: less memory, and ready sooner
WRITERS = 2  # parts written at once; one more batch is in memory, whose files are being read
JOBS, RECORDS, TEST = ".jobs.parquet", ".records.parquet", ".test.parquet"
PART = (RECORDS, TEST, JOBS)  # in the order in which a part is made
KEYS = ("id", "checkpoint", "step", "split")  # the columns of records beside their numbers
FORMAT = "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 30720)"  # small groups: a reader of a few jobs skips most
OWN = ("id", "algorithm", "revision", "draw", "trial", "hparams", "own_overrides")  # what jobs of a table differ in
COUNTS = ("count", "class_counts", "class_correct")  # integers by what they mean; any other number may have a fraction


class Loose(NamedTuple):
    """A finished job as it lies in its own files: its id, its description and its result."""

    id: str
    description: bytes
    result: Result


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


def by_detail(store: Store, parts: Sequence[str], folder: Path) -> list[str]:
    """Parts in the order in which they speak for a job that several hold: those with more numbers first.

    A bundle of a few numbers that comes back to where it was made must not hide the others.

    Args:
        store: The store.
        parts: The names of parts.
        folder: Where files of a store without paths are copied to.
    """
    if len(parts) < 2:
        return list(parts)
    with duckdb.connect() as db:
        paths = {part: fetched(store, part, RECORDS, folder) for part in parts}
        numbers = {part: len(read(db, f"DESCRIBE FROM '{quoted(path)}'", path)) for part, path in paths.items()}
    return sorted(parts, key=lambda part: (-numbers[part], part))


def add_part(store: Store, part: str, folder: Path) -> None:
    """Copies a part from a folder into a store: its jobs last, so that a part that is listed is whole."""
    for kind in PART:
        path = folder / (part + kind)
        if kind != TEST or path.exists():
            store.create_exclusive(part + kind, path.read_bytes())


def record_files(store: Store, parts: Sequence[str], folder: Path, test: bool) -> list[str]:
    """The paths of the records of some parts; of those of test splits only if asked for."""
    found = [fetched(store, part, RECORDS, folder) for part in parts]
    if test:
        there = set(store.list("parts"))
        found += [fetched(store, part, TEST, folder) for part in parts if part + TEST in there]
    return found


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


def loose_jobs(store: Store, known: Container[str] = (), test: bool = True) -> Iterator[Loose]:
    """The finished jobs that have files of their own and are not known yet, by id.

    Args:
        store: The store.
        known: Ids to leave out.
        test: Whether to open the files of test numbers.

    Raises:
        StoreError: A result is damaged, or nothing says which job it is of.
    """
    folders = (key.split("/")[1] for key in store.list("jobs", deep=False) if key.endswith("/"))
    for job_id in sorted(name for name in folders if name not in known):
        result = Result.read(store, job_id, test)
        if result is None:
            continue
        description = store.get(JobFiles(job_id).job)
        if description is None:  # it would be in no table, and no sweep would train it again
            raise lost_description(job_id, "missing")
        yield Loose(job_id, description, result)


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
    # One thread for each writer; it is not closed by name, which stopped by Ctrl-C while they write it would refuse.
    database = duckdb.connect(config={"threads": 1})
    with ThreadPoolExecutor(WRITERS) as writers:  # which write while the files of the next batch are read
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
    with writing_to(folder), tempfile.TemporaryDirectory(dir=folder) as scratch, duckdb.connect() as db:
        for part in part_names(store):
            files = {kind: store.root / (part + kind) for kind in PART}
            files = {kind: path for kind, path in files.items() if path.exists()}
            for kind in files.keys() - {JOBS}:
                known = [name for name, *_ in read(db, f"DESCRIBE FROM '{quoted(files[kind])}'", str(files[kind]))]
                kept = [name for name in known if name in {*KEYS, *metrics}]
                if kept != known:
                    columns, fewer = ", ".join(map(identifier, kept)), Path(scratch) / kind
                    db.execute(f"COPY (SELECT {columns} FROM '{quoted(files[kind])}') TO '{quoted(fewer)}' {FORMAT}")
                    files[kind] = fewer
            _name_part(files, folder)


def _name_part(files: Mapping[str, Path], folder: Path) -> str:
    """Puts the files of a part into a folder, named by their content."""
    contents = {kind: path.read_bytes() for kind, path in files.items()}
    part = f"parts/{part_digest(contents)}"
    (folder / "parts").mkdir(exist_ok=True)
    for kind, content in contents.items():
        (folder / (part + kind)).write_bytes(content)
    return part


def part_digest(files: Mapping[str, bytes]) -> str:
    """What a part is named by: its records, those of test splits if it has any, and its jobs."""
    return hashlib.sha256(b"".join(files.get(kind, b"") for kind in PART)).hexdigest()


def _batches(jobs: Iterable[Loose], most: int) -> Iterator[list[Loose]]:
    batch: list[Loose] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.result.done) + len(job.result.test)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_part(db: duckdb.DuckDBPyConnection, batch: list[Loose], folder: Path, asked: Collection[str] | None) -> str:
    """Writes one part."""
    results = {RECORDS: {job.id: job.result.done for job in batch}}
    tested = {job.id: job.result.test for job in batch if job.result.test}
    results |= {TEST: tested} if tested else {}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        files = {kind: Path(scratch) / kind for kind in (*results, JOBS)}
        lines = Path(scratch) / "lines"
        try:
            with writing_to(folder):
                lines.write_bytes(b"".join(map(_description_line, batch)))
                _copy_jobs(db, lines, files[JOBS])
                for kind, some in results.items():
                    _write_records(db, some, lines, files[kind], asked)
                return _name_part(files, folder)
        except duckdb.Error as error:
            raise _unreadable(batch, error) from error


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Says what to do where a folder for a passing use cannot be written: as a rule its disk is full.

    Raises:
        StoreError: It cannot be written.
    """
    try:
        yield
    except (OSError, duckdb.IOException) as error:
        raise StoreError(f"Cannot write to {folder} ({error}); set TMPDIR to a folder with more room.") from error


def _write_records(
    db: duckdb.DuckDBPyConnection, results: Mapping[str, bytes], lines: Path, path: Path, asked: Collection[str] | None
) -> None:
    """Writes the records of results, with a column for every metric that is asked for, or occurs in any of them."""
    metrics = dict.fromkeys(("accuracy", *(asked or ())), "DOUBLE")
    for result in results.values() if asked is None else ():
        metrics |= _metrics_of(_first_splits(result))
    with lines.open("wb") as file:
        for job_id, result in results.items():  # they are not parsed here, which would take longer than all the rest
            file.writelines((f'{{"id":"{job_id}","done":'.encode(), result.replace(b"\n", b" "), b"}\n"))
    longest = 2**20 + max(map(len, results.values()))
    while True:
        _copy_records(db, lines, longest, metrics, path)
        overlooked = _overlooked(db, path, metrics, results) if asked is None else {}
        if overlooked.keys() <= metrics.keys():
            break
        metrics |= overlooked


def _description_line(job: Loose) -> bytes:
    description = json.dumps(job.description.decode())
    status, step, _ = ending(job.id, job.result.done)
    return f'{{"id":"{job.id}","status":"{status}","step":{step},"description":{description}}}\n'.encode()


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
    db: duckdb.DuckDBPyConnection, records: Path, metrics: dict[str, str], results: Mapping[str, bytes]
) -> dict[str, str]:
    """All metrics of the jobs whose result has more keys than were written; only these are parsed whole.

    A record has the keys `splits` and `step`; a result has `records`, and what comes after it.
    """
    values = " + ".join(f"count({identifier(name)})" for name in metrics)
    query = f"""SELECT id, 2 * count(DISTINCT checkpoint) + count(*) + {values}
        FROM read_parquet('{quoted(records)}') GROUP BY id"""
    written = dict(db.execute(query).fetchall())
    found: dict[str, str] = {}
    for job_id, result in results.items():
        outside = 1 + result[result.rfind(b"]") :].count(b'":')
        if result.count(b'":') != outside + written.get(job_id, 0):
            for row in json.loads(result)["records"]:
                found |= _metrics_of(row["splits"].values())
    return found


def _unreadable(batch: list[Loose], error: duckdb.Error) -> StoreError:
    for job in batch:
        parse_description(job.id, job.description), job.result.parsed(job.id)
    return StoreError(
        f"The records of a finished job hold something other than numbers ({str(error).splitlines()[0]})."
    )


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
