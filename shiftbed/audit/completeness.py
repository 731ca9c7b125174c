"""Are all the draws there, and is a published table what its selection says? Winners picked by hand show up here."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.audit.findings import Finding
from shiftbed.audit.subject import Subject
from shiftbed.errors import StoreError
from shiftbed.selection import SELECTIONS
from shiftbed.tables import Table
from shiftbed.tables.grids import Entry, Grid
from shiftbed.tables.missing import MissingJob, named_jobs
from shiftbed.tables.table import Chosen

SOURCE = "draws"
CLAIMS_SOURCE = "published table"


def draws(subject: Subject) -> Finding:
    """Whether every cell of a table chose from the same draws, and every job has all its records."""
    missing, cut = _missing(subject), _cut(subject)
    planned = {row["id"] for row in subject.plan} - {about["id"] for about in subject.abouts}
    problems = []
    if missing:
        few = f"{len(missing)} draws that other cells have are missing" if len(missing) > 1 else "a draw is missing"
        problems.append(
            f"{few} ({named_jobs(missing)}): the sweep is unfinished, or losing draws were removed, which is a "
            "selection by hand"
        )
    if cut:
        problems.append(f"{len(cut)} finished jobs have fewer records than the others (such as {cut[0]})")
    if problems:
        return Finding(SOURCE, "alarm", f"{'; '.join(problems)}.")
    if planned:
        sentence = f"{len(planned)} planned jobs have not finished; run the same command again, then audit."
        return Finding(SOURCE, "unknown", sentence)
    cells = sum(len(task.cells) for task in subject.tasks)
    return Finding(SOURCE, "clear", f"all {cells} cells chose from the same draws, and every job has all its records.")


def _missing(subject: Subject) -> list[MissingJob]:
    """The draws that some cell of a setting has and another lacks; none below the largest may be lacking either."""
    by_setting: dict[str, dict[tuple[str, tuple[str, ...], int], set[int]]] = defaultdict(lambda: defaultdict(set))
    for task in subject.tasks:
        design = subject.design(task.abouts[0])
        for cell, draw in task.keys:
            if cell.trial and design.two_stages:  # the winner of the first trial, trained again
                continue
            who = (cell.variant.algorithm, task.tested, cell.trial)
            by_setting[task.abouts[0]["setting"]][who].add(draw)
    found = []
    for cells in by_setting.values():
        every = set(range(1 + max(max(some) for some in cells.values())))
        found += [MissingJob(*who, draw) for who, some in cells.items() for draw in sorted(every - some)]
    return found


def _cut(subject: Subject) -> list[str]:
    """Jobs that say they are done and have fewer records than others that were evaluated as often."""
    found = []
    for task in subject.tasks:
        counts = (task.steps >= 0).sum(axis=1)
        usual: dict[int, int] = defaultdict(int)
        for about, count in zip(task.abouts, counts, strict=True):
            usual[about["recipe"]["evaluate_every"]] = max(usual[about["recipe"]["evaluate_every"]], int(count))
        for about, status, count in zip(task.abouts, task.statuses, counts, strict=True):
            if status == "done" and count < usual[about["recipe"]["evaluate_every"]]:
                found.append(about["id"])
    return found


# --- A published table against its records ---------------------------------------------------------------------------


def published_table(subject: Subject, file: Path) -> Finding:
    """Whether the choices that a table rests on are those of its selection.

    Args:
        subject: The sweep.
        file: What `shiftbed tables DIR --format json` wrote, and somebody published.

    Raises:
        StoreError: The file is no such table.
    """
    rows = _claims(file)
    wrong: list[dict[str, Any]] = []
    for row in rows:
        for claim in row["chosen"]:
            wrong += _differing(subject, row, claim)
    count = sum(len(row["chosen"]) for row in rows)
    if not wrong:
        return Finding(CLAIMS_SOURCE, "clear", f"all {count} choices of {file.name} are those of their selections.")
    by_test = sum(one["best_on_test"] for one in wrong)
    because = f", {by_test} of them the best of their cell on the test domain" if by_test else ""
    sentence = f"{len(wrong)} of {count} choices of {file.name} are not those of their selections{because}."
    return Finding(CLAIMS_SOURCE, "alarm", sentence, [_grid(wrong)])


def _claims(file: Path) -> list[dict[str, Any]]:
    try:
        rows = [row for row in json.loads(file.read_text(encoding="utf-8")) if row["selection"] in SELECTIONS]
        if not rows:
            raise ValueError("no row has a selection")
        return [row for row in rows if row["chosen"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        example = "`shiftbed tables DIR --format json`"
        raise StoreError(f"{file} is no table of a sweep ({error}); {example} writes one.") from error


def _differing(subject: Subject, row: dict[str, Any], claim: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with a published choice: nothing, or one row."""
    labels = {key: row[key] for key in ("selection", "algorithm", "test")}
    found = {**labels, "trial": claim["trial"], "claimed": claim["accuracy"]}
    candidates = [_chosen(table, row, claim["trial"]) for table in subject.tables(row["selection"])]
    chosen = [one for one in candidates if one is not None]
    if not chosen:
        return [{**found, "selected": None, "best": None, "best_on_test": False}]
    if any((one.choice.job_id, one.choice.step) == (claim["job"], claim["step"]) for one in chosen):
        return []
    first = chosen[0]
    best = _best_on_test(first, row["test"])
    is_best = claim["accuracy"] >= best - 1e-6
    return [{**found, "selected": first.accuracy(row["test"]), "best": best, "best_on_test": is_best}]


def _best_on_test(chosen: Chosen, domain: str) -> float:
    """The best accuracy on a test domain that any record of a cell has."""
    task = chosen.task
    where = task.cells[task.keys[chosen.choice.row][0]]
    return 100 * float(np.nanmax(task.values["accuracy"][where][:, :, task.reported(domain)].mean(axis=-1)))


def _chosen(table: Table, row: dict[str, Any], trial: int) -> Chosen | None:
    """What the selection picks where the published row has a choice."""
    if table.dataset != row["dataset"] or row["algorithm"] not in table.chosen:
        return None
    columns = [column for column in table.columns if column[1] == row["test"]]
    columns = [column for column in columns if len(column[0]) == row["tested_together"]]
    found = [table.chosen[row["algorithm"]].get(tested, {}).get(trial) for tested, _ in columns]
    return next((one for one in found if one is not None), None)


def _grid(rows: list[dict[str, Any]]) -> Grid:
    def shown(value: float | None) -> Entry:
        return Entry("no job" if value is None else f"{value:.1f}")

    return Grid(
        title="Choices that are not those of their selection",
        caption="test accuracy in %: as published, as selected from the records, and the best of the cell",
        corner="algorithm, test domain, trial",
        columns=["published", "selected", "best"],
        rows=[
            (f"{r['algorithm']}, {r['test']}, {r['trial']}", [shown(r[key]) for key in ("claimed", "selected", "best")])
            for r in rows
        ],
        data=rows,
    )
