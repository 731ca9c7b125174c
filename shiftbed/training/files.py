"""The files of one job, and what they say: the numbers of test splits lie in a file of their own.

Who chooses by validation opens `done.json`; the test numbers are in `test-DIGEST.json`, which `done.json` names by its
content. It is written first, so a job that is done has both, and they are of one run, whoever else finished it.
"""

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.training.store import Store

Row = dict[str, Any]
ENDING = re.compile(rb'"status":"(\w+)","step":(\d+)(?:,"test":"(\w+)")?}$')  # of the canonical text of a result


class JobFiles:
    """The keys of one job in a store."""

    def __init__(self, job_id: str) -> None:
        self.job = f"jobs/{job_id}/job.json"
        self.records = f"jobs/{job_id}/records.jsonl"
        self.checkpoint = f"jobs/{job_id}/checkpoint.pt"
        self.weights = f"jobs/{job_id}/weights.safetensors"
        self.all_weights = f"jobs/{job_id}/weights-{{step}}.safetensors"
        self.logits = f"jobs/{job_id}/logits-{{step}}.safetensors"
        self.times = f"jobs/{job_id}/times.json"
        self.lease = f"jobs/{job_id}/lease.json"
        self.failure = f"jobs/{job_id}/failure.json"
        self.test = f"jobs/{job_id}/test-{{digest}}.json"
        self.done = f"jobs/{job_id}/done.json"


def encode_records(rows: Sequence[Row]) -> bytes:
    """Records as JSON lines."""
    return b"".join(canonical(row) + b"\n" for row in rows)


def parse_records(data: bytes | None) -> list[Row]:
    """The rows of a record file, up to the first that is not whole."""
    rows = []
    for line in (data or b"").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def apart(rows: Sequence[Row], tests: Collection[str]) -> tuple[list[Row], list[Row]]:
    """The rows without the numbers of test splits, and those of test splits alone."""

    def part(row: Row, tested: bool) -> Row:
        splits = {name: numbers for name, numbers in row["splits"].items() if (name in tests) == tested}
        return {"step": row["step"], "splits": splits}

    return [part(row, False) for row in rows], [part(row, True) for row in rows]


def joined(rows: Sequence[Row], tested: Sequence[Row]) -> list[Row]:
    """What `apart` took apart."""
    by_step = {row["step"]: row["splits"] for row in tested}
    return [{**row, "splits": {**row["splits"], **by_step.get(row["step"], {})}} for row in rows]


class Result(NamedTuple):
    """A finished job as it is stored.

    Attributes:
        done: How it ended, and its records but for the test splits.
        test: Their records; nothing if there are none.
    """

    done: bytes
    test: bytes

    @classmethod
    def of(cls, status: str, step: int, rows: Sequence[Row], tests: Collection[str]) -> "Result":
        """The result of a job that ended at a step.

        Args:
            status: How it ended.
            step: Where.
            rows: Its records.
            tests: The names of its test splits.
        """
        known, tested = apart(rows, tests)
        done = {"status": status, "step": step, "records": known}
        if not any(row["splits"] for row in tested):
            return cls(canonical(done), b"")
        test = canonical({"records": tested})
        return cls(canonical({**done, "test": _digest(test)}), test)

    def write(self, store: Store, job_id: str) -> bool:
        """Stores the result, the test numbers first; False if the job was finished before."""
        files = JobFiles(job_id)
        if self.test:  # whatever lies under the name of this content, it becomes this content
            store.put_atomic(files.test.format(digest=_digest(self.test)), self.test)
        return store.create_exclusive(files.done, self.done)

    @classmethod
    def read(cls, store: Store, job_id: str, test: bool = True) -> "Result | None":
        """The result of a job, or None if it has not finished.

        Args:
            store: The store.
            job_id: The job.
            test: Whether to open the file of the test numbers.

        Raises:
            StoreError: It is damaged, or its test numbers are others than those it ended with.
        """
        files = JobFiles(job_id)
        done = store.get(files.done)
        if done is None:
            return None
        name = ending(job_id, done)[2] if test else None
        if name is None:
            return cls(done, b"")
        key = files.test.format(digest=name)
        tested = store.get(key)
        if tested is None or _digest(tested) != name:
            how = "missing" if tested is None else "damaged"
            raise StoreError(f"{key} is {how}; remove {files.done} and run the sweep again, which finishes that job.")
        return cls(done, tested)

    def parsed(self, job_id: str) -> dict[str, Any]:
        """Status, step and records.

        Raises:
            StoreError: It is damaged.
        """
        result = _parsed(self.done, JobFiles(job_id).done)
        if self.test:
            tested = _parsed(self.test, JobFiles(job_id).test.format(digest=_digest(self.test)))
            result["records"] = joined(result["records"], tested["records"])
        return result


def ending(job_id: str, done: bytes) -> tuple[str, int, str | None]:
    """How and at which step a job ended, and the name of its test numbers; only a text of other form is parsed whole.

    Raises:
        StoreError: It is damaged.
    """
    found = ENDING.search(done[-150:])
    if found:
        return found[1].decode(), int(found[2]), found[3].decode() if found[3] else None
    result = _parsed(done, JobFiles(job_id).done)
    return result["status"], result["step"], result.get("test")


def lost_description(job_id: str, how: str) -> StoreError:
    """The error of a job whose description is damaged or missing: nothing else says which job it is."""
    key = JobFiles(job_id).job
    return StoreError(f"{key} is {how}; remove its folder and run the sweep again, which trains it anew.")


def parse_description(job_id: str, data: bytes) -> dict[str, Any]:
    """What a job's file says it is.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return json.loads(data)
    except ValueError as error:
        raise lost_description(job_id, "damaged") from error


def _digest(test: bytes) -> str:
    return hashlib.sha256(test).hexdigest()[:20]


def _parsed(data: bytes, key: str) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError as error:
        raise StoreError(
            f"{key} is damaged; remove it and run the sweep again, which finishes that job alone."
        ) from error
