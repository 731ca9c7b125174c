"""Blind sweeps: nothing opens the files of their test numbers until somebody says so, and the ledger remembers it."""

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.sweeps.compaction import loose_jobs, part_jobs, part_names
from shiftbed.training.store import LocalStore, Store, read_json

MARK = "blind.json"
OF_BLIND = "blind.json"  # beside a model that was chosen from a sealed sweep: where that is
LEDGER = "ledger"  # where the looks at test domains are counted
OPENED = f"{LEDGER}/opened.json"


class Opening(NamedTuple):
    """When a blind sweep was opened, and how many of its jobs were finished then."""

    date: str
    jobs: int


def seal(store: Store) -> None:
    """Makes a store blind, which it must be from its first job on.

    Raises:
        StoreError: It has finished jobs, whose test numbers may have been seen.
    """
    if store.get(MARK) is None and (part_names(store) or next(loose_jobs(store, test=False), None)):
        raise StoreError("A sweep is blind from its first job on, and this one has finished jobs; choose a new folder.")
    store.create_exclusive(MARK, b"{}")


def is_sealed(store: Store) -> bool:
    """Whether the test numbers of a store must not be opened."""
    return store.get(MARK) is not None and store.get(OPENED) is None


def sealed(folder: str | Path) -> str:
    """What a verb says of a sealed sweep."""
    command = f"shiftbed unblind {quote(str(folder))}"
    return f"The test numbers of {folder} are sealed, since the sweep is blind; `{command}` opens them."


def refuse_sealed(folder: str | Path) -> None:
    """Stops a verb that cannot do without test numbers.

    Raises:
        StoreError: The sweep is sealed.
    """
    if is_sealed(LocalStore(Path(folder))):
        raise StoreError(sealed(folder))


def refuse_sealed_test(model: Path, domains: Iterable[str]) -> None:
    """Stops a verb that would set the labels of a test domain beside what a model of a sealed sweep says of it.

    Args:
        model: The model's folder: in the sweep, or where a model lies that was chosen from it.
        domains: The domains whose labels would be shown or counted.

    Raises:
        StoreError: One of them is tested by the model, and the sweep is sealed.
    """
    about, of_blind = model / "job.json", model / OF_BLIND
    if about.exists() and set(read_json(about)["test_domains"]) & set(domains):
        chosen_from = [Path(read_json(of_blind)["sweep"])] if of_blind.exists() else []
        for sweep in (*chosen_from, *model.resolve().parents[1:2]):
            refuse_sealed(sweep)


def unblind(folder: str | Path) -> Opening:
    """Opens the test numbers of a blind sweep, for good; the ledger notes when, and after how many jobs.

    Raises:
        StoreError: The sweep is not blind.
    """
    store = LocalStore(Path(folder))
    if store.get(MARK) is None:
        raise StoreError(
            f"{folder} is no blind sweep; `shiftbed sweep ... --out {quote(str(folder))} --blind` starts one."
        )
    finished = part_jobs(store, part_names(store)).keys() | {job.id for job in loose_jobs(store, test=False)}
    now = Opening(datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), len(finished))
    store.create_exclusive(OPENED, canonical(now._asdict()))
    return opening(store) or now


def opening(store: Store) -> Opening | None:
    """When a blind sweep was opened; None if it is sealed, or was never blind."""
    found = store.get(OPENED)
    return None if found is None else Opening(**json.loads(found))


def looks(store: Store) -> list[str]:
    """The keys of the looks at test domains that the ledger of a store counts."""
    return sorted(key for key in store.list(LEDGER) if key.endswith(".jsonl"))


def add_looks(store: Store, key: str, lines: bytes) -> None:
    """Adds looks to the ledger of a store, which has an id from the first of them on."""
    store.create_exclusive(f"{LEDGER}/id", uuid.uuid4().hex.encode())
    store.create_exclusive(key, lines)
