"""Are all the draws there, and is a published table what its selection says? Winners picked by hand show up here."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.audit.findings import Finding
from shiftbed.audit.subject import Subject
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.selection import SELECTIONS, Cadence, Cell
from shiftbed.sweeps.plan import with_sources
from shiftbed.tables import AVERAGE, Table
from shiftbed.tables.cells import Chosen, Column
from shiftbed.tables.grids import Entry, Grid
from shiftbed.tables.missing import MissingJob, named_jobs
from shiftbed.training.job import resolve_hparams
from shiftbed.training.recipes import recipe_of

SOURCE = "draws"
CLAIMS_SOURCE = "published table"
ROW, CLAIM = ("algorithm", "test", "tested_together", "accuracy"), ("trial", "job", "step", "accuracy")
PRECISION = 0.05  # points: tables print one decimal


def draws(subject: Subject) -> Finding:
    """Whether every cell of a table chose from the same draws, and every job has all its records."""
    missing, cut = _missing(subject), _cut(subject)
    ended = {about["id"] for about in subject.abouts}
    planned = [row for row in subject.plan if row["id"] not in ended]
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
    if not subject.has_records:
        return Finding(SOURCE, "unknown", subject.without_records)
    if planned:
        again = f"run the same command again{with_sources(planned, subject.plan)}"
        sentence = f"{len(planned)} planned jobs have not finished; {again}, then audit."
        return Finding(SOURCE, "unknown", sentence)
    cells = sum(len(task.cells) for task in subject.tasks)
    return Finding(SOURCE, "clear", f"all {cells} cells chose from the same draws, and every job has all its records.")


def _missing(subject: Subject) -> list[MissingJob]:
    """The draws that some cell of a setting has and another lacks; none below the largest may be lacking either."""
    by_setting: dict[str, dict[tuple[Cell, tuple[str, ...]], dict[int, dict[str, Any]]]]
    by_setting = defaultdict(lambda: defaultdict(dict))
    for task in subject.tasks:
        design = subject.design(task.abouts[0])
        for (cell, draw), about in zip(task.keys, task.abouts, strict=True):
            if cell.trial and design.two_stages:  # the winner of the first trial, trained again
                continue
            by_setting[about["setting"]][cell, task.tested][draw] = about
    found = []
    for cells in by_setting.values():
        every = set(range(1 + max(max(some) for some in cells.values())))
        for (cell, tested), some in cells.items():
            who, by_hand = (cell.variant.algorithm, tested, cell.trial), cell.variant.by_hand
            lacking = [draw for draw in sorted(every - set(some)) if not _is_another(draw, list(some.values()))]
            found += [MissingJob(*who, draw, by_hand) for draw in lacking]
    return found


def _is_another(draw: int, abouts: list[dict[str, Any]]) -> bool:
    """Whether a draw of a cell has the values of one that is there: in a small space both are one job."""
    about = abouts[0]
    by_hand = {**about["overrides"], **about["own_overrides"]}
    try:
        recipe = recipe_of(about)
        values = resolve_hparams(about["dataset"], about["algorithm"], recipe, draw, about["trial"], by_hand)
    except ShiftbedError:  # an algorithm or a dataset that is not here
        return False
    return any(one["hparams"] == values for one in abouts)


def _cut(subject: Subject) -> list[str]:
    """Jobs that say they are done and have fewer records than others that were evaluated as often."""
    found = []
    for task in subject.tasks:
        counts = (task.steps >= 0).sum(axis=1)
        usual: dict[Cadence, int] = defaultdict(int)
        for about, count in zip(task.abouts, counts, strict=True):
            usual[Cadence.of(about)] = max(usual[Cadence.of(about)], int(count))
        for about, status, count in zip(task.abouts, task.statuses, counts, strict=True):
            if status == "done" and count < usual[Cadence.of(about)]:
                found.append(about["id"])
    return found


# --- A published table against its records ---------------------------------------------------------------------------


def published_table(subject: Subject, file: Path) -> Finding:
    """Whether the choices that a table rests on are those of its selection, and its numbers those of the records.

    Args:
        subject: The sweep.
        file: What `shiftbed tables DIR --format json` wrote, and somebody published.

    Raises:
        StoreError: The file is no such table.
    """
    rows = _claims(file)
    wrong, numbers, off = _unfounded(subject, rows)
    count = sum(len(row["chosen"]) for row in rows)
    founded = f"all {count} choices of {file.name} are those of their selections"
    if not wrong and not off:
        return Finding(CLAIMS_SOURCE, "clear", f"{founded}, and all {len(numbers)} numbers are those of the records.")
    draws = max(row["most_draws"] for row in rows)
    trials = max((1 + claim["trial"] for row in rows for claim in row["chosen"]), default=0)
    other, _, others_off = _unfounded(subject.first(draws, trials), rows)
    if not other and not others_off:
        among = f"among draws below {draws} and trials below {trials} alone"
        sentence = f"{founded} {among}; who left the others out may have looked at test accuracies."
        return Finding(CLAIMS_SOURCE, "exposed", sentence)
    problems, grids = [], []
    if wrong:
        by_test = sum(one["best_on_test"] for one in wrong)
        because = f", {by_test} of them the best of their cell on the test domain" if by_test else ""
        problems.append(f"{len(wrong)} of {count} choices of {file.name} are not those of their selections{because}")
        grids.append(_choice_grid(wrong))
    if off:
        problems.append(f"{len(off)} of {len(numbers)} numbers of {file.name} are not those of the records{_by(off)}")
        grids.append(_number_grid(off))
    return Finding(CLAIMS_SOURCE, "alarm", f"{'; '.join(problems)}.", grids)


def _unfounded(
    subject: Subject, rows: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The published choices that are not those of their selections; all numbers, and those that the records lack."""
    wrong = [one for row in rows for claim in row["chosen"] for one in _differing(subject, row, claim)]
    numbers = [one for row in rows for one in _numbers(subject, row)]
    return wrong, numbers, [one for one in numbers if not _agrees(one["claimed"], one["recorded"])]


def _claims(file: Path) -> list[dict[str, Any]]:
    try:
        rows = [row for row in json.loads(file.read_text(encoding="utf-8")) if row["selection"] in SELECTIONS]
        if not rows:
            raise ValueError("no row has a selection")
        for row in rows:
            for keys, part in ((ROW, row), *((CLAIM, claim) for claim in row["chosen"])):
                if lacking := [key for key in keys if key not in part]:
                    raise ValueError(f"a row has no '{lacking[0]}'")
            row["accuracy"] = None if row["accuracy"] is None else float(row["accuracy"])
            row["most_draws"] = int(row.get("most_draws", 0))  # of tables of before, nothing is said
            row["chosen"] = [{**claim, "accuracy": float(claim["accuracy"])} for claim in row["chosen"]]
        return rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        example = "`shiftbed tables DIR --format json`"
        if isinstance(error, OSError):
            raise StoreError(f"The table {file} cannot be read ({error.strerror}); {example} writes one.") from error
        raise StoreError(f"{file} is no table of a sweep ({error}); {example} writes one.") from error


def _differing(subject: Subject, row: dict[str, Any], claim: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with a published choice: nothing, or one row."""
    found = {**_labels(row), "trial": claim["trial"], "claimed": claim["accuracy"]}
    chosen = _chosen(subject, row, claim["trial"])
    if not chosen:
        return [{**found, "selected": None, "best": None, "best_on_test": False}]
    if any(_is(one, claim) for one in chosen):
        return []
    first = chosen[0]
    best = _best_on_test(first, row["test"])
    is_best = claim["accuracy"] >= best - 1e-6
    return [{**found, "selected": first.accuracy(row["test"]), "best": best, "best_on_test": is_best}]


def _numbers(subject: Subject, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The published numbers of a row with what the records say: of its choices, and the mean over trials."""
    for claim in row["chosen"]:
        same = [one for one in _chosen(subject, row, claim["trial"]) if _is(one, claim)]
        if same:  # else the choice itself is wrong, which is said already
            recorded = same[0].accuracy(row["test"])
            yield {**_labels(row), "trial": claim["trial"], "claimed": claim["accuracy"], "recorded": recorded}
    if row["accuracy"] is not None:
        found = [table.estimates[row["algorithm"], column] for table, column in _places(subject, row)]
        means = [one.mean for one in found if one is not None]
        nearest = min(means, key=lambda mean: abs(mean - row["accuracy"]), default=None)
        yield {**_labels(row), "trial": None, "claimed": row["accuracy"], "recorded": nearest}


def _labels(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("selection", "algorithm", "test")}


def _agrees(claimed: float, recorded: float | None) -> bool:
    return recorded is not None and abs(claimed - recorded) <= PRECISION + 1e-6


def _by(numbers: list[dict[str, Any]]) -> str:
    """By how much published numbers differ from the records, where these have any."""
    differences = [abs(one["claimed"] - one["recorded"]) for one in numbers if one["recorded"] is not None]
    return f", by up to {max(differences):.1f} points" if differences else ""


def _is(chosen: Chosen, claim: dict[str, Any]) -> bool:
    return (chosen.choice.job_id, chosen.choice.step) == (claim["job"], claim["step"])


def _best_on_test(chosen: Chosen, domain: str) -> float:
    """The best accuracy on a test domain that any record of a cell has."""
    task = chosen.task
    where = task.cells[task.keys[chosen.choice.row][0]]
    return 100 * float(np.nanmax(task.values["accuracy"][where][:, :, task.reported(domain)].mean(axis=-1)))


def _chosen(subject: Subject, row: dict[str, Any], trial: int) -> list[Chosen]:
    """What the selection picks where the published row has a choice."""
    cells = [table.chosen[row["algorithm"]].get(tested, {}) for table, (tested, _) in _places(subject, row)]
    return [cell[trial] for cell in cells if trial in cell]


def _places(subject: Subject, row: dict[str, Any]) -> list[tuple[Table, Column]]:
    """The tables and columns that a published row may be: several, where a domain is tested in several companies."""
    found = []
    for table in subject.tables(row["selection"]):
        if row["algorithm"] in table.chosen and all(row.get(key, own) == own for key, own in _setting(table).items()):
            columns = [one for one in table.columns if one[1] == row["test"] and len(one[0]) == row["tested_together"]]
            found += [(table, column) for column in (columns if row["tested_together"] else [AVERAGE])]
    return found


def _setting(table: Table) -> dict[str, Any]:
    """What a row of a table says of its setting."""
    about = table.about
    recipe, task = about["recipe"], about["task"]
    labels = {"dataset": table.dataset, "version": about["version"], "overrides": about["overrides"]}
    labels |= {"recipe": recipe["name"], "steps": recipe["steps"]}
    return {**labels, "task": task["kind"], "adaptation": task.get("adapt", 0.0)}


def _choice_grid(rows: list[dict[str, Any]]) -> Grid:
    return Grid(
        title="Choices that are not those of their selection",
        caption="test accuracy in %: as published, as selected from the records, and the best of the cell",
        corner="algorithm, test domain, trial",
        columns=["published", "selected", "best"],
        rows=[
            (
                f"{row['algorithm']}, {row['test']}, {row['trial']}",
                [_shown(row[key], 1) for key in ("claimed", "selected", "best")],
            )
            for row in rows
        ],
        data=rows,
    )


def _number_grid(rows: list[dict[str, Any]]) -> Grid:
    def name(row: dict[str, Any]) -> str:
        return f"{row['algorithm']}, {row['test']}, {'mean' if row['trial'] is None else row['trial']}"

    return Grid(
        title="Numbers that are not those of the records",
        caption="test accuracy in %: as published, and as recorded",
        corner="algorithm, test domain, trial",
        columns=["published", "recorded"],
        rows=[(name(row), [_shown(row[key], 2) for key in ("claimed", "recorded")]) for row in rows],
        data=rows,
    )


def _shown(value: float | None, decimals: int) -> Entry:
    return Entry("no job" if value is None else f"{value:.{decimals}f}")
