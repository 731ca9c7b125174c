"""What the page says of a sweep's results: leaderboards, tables by domain, curves, draws, and what numbers rest on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shiftbed.audit.subject import Subject
from shiftbed.selection import SELECTIONS, Selection, TaskRecords
from shiftbed.selection.evidence import VALIDATION
from shiftbed.tables import AVERAGE, Estimate, Leaderboard, Table, as_rows, leaderboards
from shiftbed.tables.making import USUAL
from shiftbed.tables.table import BASELINE

MOST_POINTS = 1500  # jobs of a setting that the scatter of hyperparameters shows
MOST_ROWS = 6000  # numbers whose jobs are listed on the page itself
COMMON_STEPS = 2  # fewer are no curve


@dataclass(frozen=True)
class Results:
    """The tables of a sweep: by selection, one for each setting, in the same order.

    Attributes:
        selections: The rules that chose something, those that do not see the test domain first.
        tables: By the rule's name.
    """

    selections: tuple[Selection, ...]
    tables: dict[str, list[Table]]

    @classmethod
    def of(cls, subject: Subject, names: Sequence[str] = ()) -> "Results":
        """The tables of the named selections; by default of the usual ones, where they choose something."""
        rules = [SELECTIONS[name] for name in dict.fromkeys(names or USUAL)]
        tables = {rule.name: subject.tables(rule.name) for rule in rules}
        chose = [rule for rule in rules if not all(table.is_empty for table in tables[rule.name])]
        shown = sorted(chose or rules[:1], key=lambda rule: rule.oracle)
        return cls(tuple(shown), {rule.name: tables[rule.name] for rule in shown})

    @property
    def usual(self) -> list[Table]:
        """The tables that the summary speaks of: those of the first rule."""
        return self.tables[self.selections[0].name]

    @property
    def algorithms(self) -> list[str]:
        """All rows' names, the best first: those that charts show at first then differ most in their looks."""
        means: dict[str, list[float]] = {}
        for table in (table for tables in self.tables.values() for table in tables):
            for name in table.algorithms:
                found = means.setdefault(name, [])
                if table in self.usual and (one := table.estimates[name, AVERAGE]) is not None:
                    found.append(one.mean)
        return sorted(means, key=lambda name: (-sum(means[name]), name))


# --- tables -----------------------------------------------------------------------------------------------------------


def numbers(results: Results) -> list[dict[str, Any]]:
    """Every number of every table with what it rests on, as `shiftbed tables --format json` has it."""
    return [row for tables in results.tables.values() for row in as_rows(tables)]


def by_selection(results: Results) -> list[dict[str, Any]]:
    """Per selection its tables, ready for the template; cells are numbered as in `numbers`."""
    found, start = [], 0
    for rule in results.selections:
        tables = results.tables[rule.name]
        shown = []
        for table in tables:
            shown.append(_shown(table, start))
            start += len(table.algorithms) * (len(table.columns) + 1)
        boards = leaderboards(tables)
        found.append({"rule": rule, "tables": shown, "boards": [_ranked(board) for board in boards]})
    return found


def _shown(table: Table, start: int) -> dict[str, Any]:
    """A table's rows, the best first, with the geometry of their error bars."""
    grid = table.grid()
    width = len(grid.columns)
    estimates = {name: table.estimates[name, AVERAGE] for name in table.algorithms}
    scale = Scale.of([one for one in estimates.values() if one is not None])
    rows: list[dict[str, Any]] = []
    for place, (name, (label, entries)) in enumerate(zip(table.algorithms, grid.rows, strict=True)):
        first = start + place * width
        cells = [{"entry": entry, "number": first + column} for column, entry in enumerate(entries)]
        for cell, column in zip(cells, (*table.columns, AVERAGE), strict=True):
            estimate = table.estimates[name, column]
            cell["value"] = "" if estimate is None else estimate.mean
            cell["why"] = table.why_empty(name, column)
        one = estimates[name]
        rows.append(
            {
                "name": label,
                "cells": cells[:-1],
                "average": cells[-1],
                "bar": None if one is None else scale.bar(one),
                "n": 0 if one is None else one.n,
                "against": table.comparison(name),
                "draws": table.draws.get(name),
            }
        )
    rows.sort(key=lambda row: -(row["average"]["value"] if row["average"]["value"] != "" else -1))
    erm = estimates.get(BASELINE)
    return {
        "title": table.title,
        "dataset": table.dataset,
        "grid": grid,
        "rows": rows,
        "scale": scale,
        "baseline": None if erm is None else scale.place(erm.mean),
    }


def _ranked(board: Leaderboard) -> dict[str, Any]:
    """A leaderboard over datasets, whose numbers sort by what is printed, with error bars of its averages."""
    grid = board.grid()
    averages = {name: Estimate(mean, board.average_error(name), 1) for name, mean in board.averages.items()}
    scale = Scale.of(averages.values())
    rows = [
        {
            "name": name,
            "cells": [{"entry": one, "value": _number(one.text)} for one in entries],
            "bar": scale.bar(averages[name]) if name in averages else None,
        }
        for name, entries in grid.rows
    ]
    baseline = scale.place(averages[BASELINE].mean) if BASELINE in averages else None
    return {"grid": grid, "rows": rows, "scale": scale, "baseline": baseline}


def _number(text: str) -> float | str:
    try:
        return float(text.split(" ")[0].rstrip("†‡"))
    except ValueError:
        return ""


@dataclass(frozen=True)
class Scale:
    """Where accuracies lie on a row's error bar, in per cent of its width."""

    low: float
    high: float

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> "Scale":
        """A scale that holds some estimates with their standard errors, ending at whole numbers."""
        ends = [one.mean + sign * (one.standard_error or 0) for one in estimates for sign in (-1, 1)]
        if not ends:
            return cls(0, 100)
        low, high = np.floor(min(ends) - 0.5), np.ceil(max(ends) + 0.5)
        return cls(max(0.0, float(low)), min(100.0, float(high)))

    def place(self, value: float) -> float:
        """Where a value lies."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def bar(self, one: Estimate) -> dict[str, float]:
        """Where an estimate and its standard error lie."""
        error = one.standard_error or 0
        ends = [min(max(self.place(one.mean + sign * error), 0), 100) for sign in (-1, 1)]
        return {"mean": self.place(one.mean), "low": ends[0], "high": ends[1]}


# --- curves -----------------------------------------------------------------------------------------------------------


def curves(table: Table) -> list[dict[str, Any]]:
    """Per algorithm, test and validation accuracy over the steps of its chosen jobs: mean over trials and domains.

    Only steps that all of them recorded are shown, so that every point is a mean of the same jobs.
    """
    found = []
    for name in table.algorithms:
        jobs = [
            _curve(one.task, one.choice.row, domain)
            for tested, domain in table.columns
            for one in table.chosen[name].get(tested, {}).values()
        ]
        common = sorted(set.intersection(*(set(steps) for steps, _, _ in jobs))) if jobs else []
        if len(common) >= COMMON_STEPS:
            at = [np.searchsorted(steps, common) for steps, _, _ in jobs]
            test, validation = (
                np.mean([job[kind][where] for job, where in zip(jobs, at, strict=True)], axis=0) for kind in (1, 2)
            )
            found.append(
                {
                    "algorithm": name,
                    "steps": [int(step) for step in common],
                    "test": _rounded(test),
                    "validation": _rounded(validation),
                    "jobs": len(jobs),
                }
            )
    return found


def _curve(task: TaskRecords, row: int, domain: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps of a job, its accuracy on a test domain and on what validates, in per cent."""
    known = task.steps[row] >= 0
    return task.steps[row][known], 100 * _tested(task, row, domain)[known], 100 * task.mean(VALIDATION)[row][known]


def _tested(task: TaskRecords, row: int, domain: str) -> np.ndarray:
    places = task.reported(domain)
    accuracy, counts = (task.values[metric][row][:, places] for metric in ("accuracy", "count"))
    return (accuracy * counts).sum(axis=1) / counts.sum(axis=1) if len(places) > 1 else accuracy[:, 0]


def _rounded(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 2) for value in values]


# --- hyperparameters --------------------------------------------------------------------------------------------------


def draws(subject: Subject, table: Table) -> dict[str, Any]:
    """Every finished job of a setting as a point: its hyperparameters, and its accuracy at its best validation step."""
    tested = {tested for tested, _ in table.columns}
    points: list[dict[str, Any]] = []
    for task in subject.tasks:
        here = task.abouts[0]["setting"] == table.about["setting"] and task.tested in tested
        if not here or not task.steps.size:  # all diverged before their first record
            continue
        validation = np.where(np.isnan(task.mean(VALIDATION)), -np.inf, task.mean(VALIDATION))
        for row, about in enumerate(task.abouts):
            best = int(validation[row].argmax())
            if validation[row, best] > -np.inf:
                columns = [domain for together, domain in table.columns if together == task.tested]
                accuracy = 100 * float(np.mean([_tested(task, row, domain)[best] for domain in columns]))
                points.append(_point(about, accuracy))
    every = max(1, -(-len(points) // MOST_POINTS))
    names = sorted({name for point in points for name in point["values"]})
    varying = [name for name in names if len({p["values"][name] for p in points if name in p["values"]}) > 1]
    return {
        "title": table.title,
        "names": varying,
        "tested": [", ".join(together) for together in dict.fromkeys(together for together, _ in table.columns)],
        "points": [{**p, "values": {n: p["values"][n] for n in varying if n in p["values"]}} for p in points[::every]],
        "all": len(points),
    }


def _point(about: dict[str, Any], accuracy: float) -> dict[str, Any]:
    values = {name: value for name, value in about["hparams"].items() if isinstance(value, int | float | str)}
    return {
        "algorithm": about["algorithm"],
        "tested": ", ".join(about["test_domains"]),
        "draw": about["draw"],
        "trial": about["trial"],
        "accuracy": round(accuracy, 2),
        "values": values,
    }


# --- provenance -------------------------------------------------------------------------------------------------------


def provenance(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each number rests on, as short as it can be said; of very many numbers, nothing."""
    if len(rows) > MOST_ROWS:
        return []
    return [
        {
            "dataset": row["dataset"],
            "selection": row["selection"],
            "algorithm": row["algorithm"],
            "test": row["test"] or "overall",
            "accuracy": row["accuracy"],
            "standard_error": row["standard_error"],
            "n": row["n"],
            "why": row["why_empty"],
            "draws": [row["least_draws"], row["most_draws"]],
            "chosen": [[one["trial"], one["job"], one["draw"], one["step"]] for one in row["chosen"]],
        }
        for row in rows
    ]
