"""The query ledger: which looks at test domains were taken through the verbs of this package.

It lies in the sweep's own folder, as small files that only add up: reading a table twice asks nothing new, resuming
refunds nothing, a copy of the folder has the ledger of the original, by its id, and bundles and merges take it along.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shiftbed import tables
from shiftbed.audit.oracles import BudgetedOracle
from shiftbed.errors import StoreError
from shiftbed.hashing import canonical, digest
from shiftbed.selection import Cell, Selection, TaskRecords
from shiftbed.selection.rules import ORACLE_BUDGET, TEST_HELD_OUT
from shiftbed.sweeps.blind import LEDGER, add_looks, looks
from shiftbed.tables.estimates import StandardError
from shiftbed.training.store import DiskFullError, LocalStore, Store


class Query(NamedTuple):
    """One look: a rule asked how a job does on its test domains at a step."""

    rule: str
    algorithm: str
    tested: tuple[str, ...]
    trial: int
    job: str
    step: int

    @property
    def cell(self) -> tuple[str, tuple[str, ...], int]:
        """What the budget is counted for, within a setting."""
        return self.algorithm, self.tested, self.trial


def read_tables(
    folder: str | Path,
    selections: Sequence[str] = (),
    se: StandardError = "sample",
    *,
    draws: int | None = None,
    trials: int | None = None,
) -> list[tables.Table]:
    """The tables of a sweep's folder; what oracle selections looked at is written into its ledger.

    Args:
        folder: The sweep's folder.
        selections: Names of selection rules, or "all"; by default the usual ones, where the jobs have what they read.
        se: The standard error: "sample" (divisor n − 1), or "population" as in DomainBed's printed tables.
        draws: Only the first so many draws of each trial, as if no others had been asked for.
        trials: Only the first so many trials, likewise.
    """
    found = tables.read_tables(folder, selections, se, draws=draws, trials=trials)
    store = LocalStore(Path(folder))
    note(store, (query for table in found for query in asked_by(table)))
    return found


def note(store: Store, queries: Iterable[Query]) -> None:
    """Adds queries to a sweep's ledger; those that are there already are not asked again."""
    new = sorted(set(queries) - set(queries_of(store)))
    if not new:
        return
    lines = b"".join(canonical(query._asdict()) + b"\n" for query in new)
    try:
        add_looks(store, f"{LEDGER}/{digest([query._asdict() for query in new])[:20]}.jsonl", lines)
    except DiskFullError:
        raise
    except StoreError as error:
        rules = ", ".join(sorted({query.rule for query in new}))
        raise StoreError(
            f"What {rules} asks of test domains is written down beside the records, which is not possible ({error}) "
            "Name other rules, such as --selection training-domain-validation, or copy the folder and read the copy."
        ) from error


def queries_of(store: Store) -> list[Query]:
    """All that was ever asked, each once."""
    found = set()
    for key in looks(store):
        rows = (json.loads(line) for line in (store.get(key) or b"").splitlines())
        found |= {Query(**{**row, "tested": tuple(row["tested"])}) for row in rows}
    return sorted(found)


def ledger_id(store: Store) -> str | None:
    """What a ledger and its copies share; None before the first query."""
    found = store.get(f"{LEDGER}/id")
    return None if found is None else found.decode()


def looked_at(queries: Iterable[Query], settings: Mapping[str, str]) -> Counter[tuple[Any, ...]]:
    """Per cell and setting, how many records were looked at; two rules that look at one record take one look.

    Args:
        queries: The queries.
        settings: Per job its setting: datasets and recipes that share a folder may share the names of domains.
    """
    asked_once = sorted({(query.cell, query.job, query.step) for query in queries})
    known: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for cell, job, _ in asked_once:
        known[cell] |= {settings[job]} if job in settings else set()
    # A job that is not here, since a copy of the sweep had it, counts where there is one setting it can belong to.
    alone = {cell: next(iter(some)) if len(some) == 1 else "" for cell, some in known.items()}
    return Counter((*cell, settings.get(job, alone[cell])) for cell, job, _ in asked_once)


def asked_by(table: tables.Table) -> Iterable[Query]:
    """What was looked at for a table: nothing, unless its selection is an oracle."""
    if table.selection.oracle:
        tasks = {
            id(one.task): one.task for cells in table.chosen.values() for t in cells.values() for one in t.values()
        }
        for task in tasks.values():
            yield from asked(table.selection, task)


def asked(rule: Selection, task: TaskRecords) -> Iterable[Query]:
    """What an oracle rule asks of a task: the last record of each draw that its budget allows."""
    for row in rule.spent(task) if isinstance(rule, BudgetedOracle) else _first_looks(task):
        cell, _ = task.keys[row]
        step = int(task.steps[row][task.is_last[row]][0])
        yield Query(rule.name, _algorithm(cell), task.tested, cell.trial, task.abouts[row]["id"], step)


def _first_looks(task: TaskRecords) -> Iterable[int]:
    """The rows that the plain oracle looks at: the first jobs of each cell that came to their end and recorded it."""
    held = task.ends_with(TEST_HELD_OUT)
    for where in task.cells.values():
        yield from (np.flatnonzero(held[where].any(axis=1)) + where.start)[:ORACLE_BUDGET].tolist()


def _algorithm(cell: Cell) -> str:
    return f"{cell.variant.algorithm} ({cell.variant.by_hand})" if cell.variant.by_hand else cell.variant.algorithm
