"""Bundles: a store's finished jobs and plans as one file, and stores united by the ids of their jobs.

A bundle is a ZIP of parts, plans, times and the ledger's looks under the names they have in a store. All of them are
named by their content, so what arrives is checked, and to unite two stores is to have the parts of both.
"""

import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from shiftbed.errors import StoreError
from shiftbed.hashing import digest
from shiftbed.registry import listed
from shiftbed.sweeps.blind import MARK, add_looks, is_sealed, looks, seal
from shiftbed.sweeps.compaction import (
    JOBS,
    PART,
    add_part,
    compact,
    loose_jobs,
    part_digest,
    part_jobs,
    part_names,
    quoted_list,
    read,
    record_files,
    write_fewer,
    write_parts,
    writing_to,
)
from shiftbed.sweeps.plan import mixed_designs, of_other_designs, planned
from shiftbed.sweeps.records import no_finished_job, outcomes
from shiftbed.sweeps.times import FOLDER, carry_times
from shiftbed.training.store import LocalStore

LIMIT = 16 * 2**20
MOST_UNPACKED = 4 * 2**30  # what a small file may not blow up to
MEMBER = re.compile(
    r"(parts/[0-9a-f]{64}\.(records|test|jobs)\.parquet|(plans|times|ledger)/[0-9a-f]{20}\.jsonl|blind\.json)"
)


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    Attributes:
        jobs: How many jobs the store has now.
        new: How many of them are new.
        differing: Jobs that several of the stores have, with other accuracies or ends (trained on other devices).
    """

    jobs: int
    new: int
    differing: list[str]


def bundle(folder: str | Path, out: str | Path, limit: int = LIMIT, metrics: Sequence[str] = ()) -> int:
    """Writes the finished jobs, plans, times and ledger of a store into one file; weights and checkpoints stay.

    Args:
        folder: The sweep's folder.
        out: The file.
        limit: The most bytes it may have.
        metrics: The numbers to keep of every split; all by default.

    Returns:
        The number of jobs in it.

    Raises:
        StoreError: No job is finished, or the file would be larger than the limit.
    """
    out = Path(out)
    with tempfile.TemporaryDirectory() as scratch:
        gathered = LocalStore(Path(scratch) / "gathered")
        merged = merge([folder], gathered.root)
        if not merged.jobs:
            raise no_finished_job(folder)
        metrics = listed(metrics)
        if metrics and "accuracy" not in metrics:
            raise StoreError(f"The tables need accuracy, which is not among {', '.join(metrics)}; keep it too.")
        if metrics:
            gathered = _with_metrics(gathered, Path(scratch) / "fewer", metrics)
        packed = Path(scratch) / "bundle.zip"
        # Stored as they are: parts are compressed already.
        with writing_to(Path(scratch)), zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
            mark = [MARK] if is_sealed(LocalStore(Path(folder))) else []
            for key in sorted([*mark, *gathered.list("parts"), *_lines(gathered)]):
                file.writestr(
                    zipfile.ZipInfo(key), gathered.get(key) or b""
                )  # without a date: equal stores, equal files
        size = packed.stat().st_size
        if size > limit:
            raise StoreError(
                f"The bundle of {folder} ({merged.jobs} jobs) would have {_mebibytes(size)}, and {_mebibytes(limit)} "
                f"are allowed; keep fewer metrics, or allow more with a higher limit."
            )
        LocalStore(out.parent).put_atomic(out.name, packed.read_bytes())
    return merged.jobs


def unbundle(file: str | Path, folder: str | Path) -> Merged:
    """Adds the jobs and plans of a bundle to a store, which may be new.

    Raises:
        StoreError: The file is no bundle, is damaged, or holds something that a bundle does not.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _unpack(Path(file), Path(scratch))
        return merge([scratch], folder)


def merge(sources: str | Path | Sequence[str | Path], folder: str | Path) -> Merged:
    """Adds the finished jobs, plans, times and ledgers of stores (folders or bundles) to a store, which may be new.

    The sources stay as they are. Of a job that several have, one is taken, the same in whatever order they are merged.

    Raises:
        StoreError: A source is not there, is damaged or no sweep; one is sealed and another, or the store, is not; or
            one has a sweep of another search design that would stand in the same table.
    """
    store = LocalStore(Path(folder))
    compact(store)  # so that the order is that of the parts
    before = outcomes(store)
    for source in map(Path, listed(sources)):
        if source.is_file():
            unbundle(source, folder)
            continue
        if not source.is_dir():
            raise StoreError(f"There is no folder or bundle {source}; name a sweep's folder or a bundle of one.")
        if not _add(LocalStore(source), store):
            raise no_finished_job(source)
    after = outcomes(store)
    return Merged(len(after), len(after.keys() - before.keys()), _differing(store))


def _add(source: LocalStore, store: LocalStore) -> bool:
    """Adds what a folder has of a sweep, and says whether it has anything."""
    for part in _damaged(source):  # before anything is added: in the store it would hide what is whole
        raise StoreError(
            f"{source.root / part} is damaged: its files are not what their name says; copy them again, or remove them "
            "and compact again if its jobs have files of their own."
        )
    if is_sealed(source) != is_sealed(store):
        if is_sealed(store) or part_names(store):
            raise StoreError(
                f"A blind sweep and one that is not cannot be united in {store.root}; choose another folder, or open "
                "the blind one first with `shiftbed unblind`."
            )
        seal(store)
    here = planned(store)
    for row in of_other_designs(planned(source).values(), here):
        raise mixed_designs(row, here)
    known = part_names(source)
    for part in known:
        add_part(store, part, source.root)
    with tempfile.TemporaryDirectory() as scratch:
        more = write_parts(loose_jobs(source, part_jobs(source, known)), Path(scratch))
        for part in more:
            add_part(store, part, Path(scratch))
    plans = list(source.list("plans"))
    for key in plans:
        store.create_exclusive(key, source.get(key) or b"")
    for key in looks(source):
        add_looks(store, key, source.get(key) or b"")
    carry_times(source, store)
    return bool(known or more or plans)


def _lines(store: LocalStore) -> list[str]:
    """The keys of what a store has as lines, named by their content: plans, times and looks at test domains."""
    return [*store.list("plans"), *store.list(FOLDER), *looks(store)]


def _with_metrics(store: LocalStore, folder: Path, metrics: Sequence[str]) -> LocalStore:
    """A copy of a compacted store with a few numbers of every split."""
    copy = LocalStore(folder)
    write_fewer(store, folder, metrics)
    for key in _lines(store):
        copy.create_exclusive(key, store.get(key) or b"")
    return copy


def _differing(store: LocalStore) -> list[str]:
    parts = part_names(store)
    jobs = quoted_list(str(store.root / (part + JOBS)) for part in parts)
    records = quoted_list(record_files(store, parts, store.root, test=not is_sealed(store)))
    if not parts:
        return []
    query = f"""SELECT DISTINCT id FROM (
            SELECT id, step, split FROM read_parquet({records}, union_by_name = true)
            SEMI JOIN (SELECT id FROM read_parquet({jobs}) GROUP BY id HAVING count(*) > 1) USING (id)
            GROUP BY id, step, split HAVING count(DISTINCT accuracy) > 1
        ) UNION (SELECT id FROM read_parquet({jobs}) GROUP BY id HAVING count(DISTINCT (status, step)) > 1)
        ORDER BY id"""
    with duckdb.connect() as db:
        return [job_id for (job_id,) in read(db, query, f"A part in {store.root / 'parts'}")]


def _unpack(path: Path, folder: Path) -> None:
    """Writes the members of a bundle, whose names and content are checked first, into a folder."""
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            strange = next((info.filename for info in members if not MEMBER.fullmatch(info.filename)), None)
            if strange is not None:
                raise StoreError(f"{path} is no bundle of a sweep: it holds '{strange}'.")
            if sum(info.file_size for info in members) > MOST_UNPACKED:
                raise StoreError(f"{path} would unpack to more than {_mebibytes(MOST_UNPACKED)}; it is not unpacked.")
            for info in members:
                target = folder / info.filename
                content = file.read(info)
                with writing_to(folder):  # nothing is wrong with the bundle then
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(content)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise StoreError(f"{path} is not a whole bundle ({error}); fetch it again.") from error
    store = LocalStore(folder)
    for part in _damaged(store):
        raise StoreError(f"{path} is damaged: {part} is not what its name says; fetch it again.")
    for key in _lines(store):
        if key != f"{key.split('/')[0]}/{digest(_rows(store.get(key) or b''))[:20]}.jsonl":
            raise StoreError(f"{path} is damaged: {key} is not what its name says; fetch it again.")


def _damaged(store: LocalStore) -> Iterator[str]:
    """The parts of a store whose files are not what their name says: cut off, or one of them missing."""
    for part in part_names(store):
        if part != f"parts/{part_digest({kind: store.get(part + kind) or b'' for kind in PART})}":
            yield part


def _rows(plan: bytes) -> list[object]:
    try:
        return [json.loads(line) for line in plan.splitlines()]
    except ValueError:
        return []


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
