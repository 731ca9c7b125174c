"""Variance: how test accuracy jitters across checkpoints and seeds, and what picking the best of them would gain."""

import statistics
from typing import Any

import numpy as np

from shiftbed.audit.findings import Finding, Verdict
from shiftbed.audit.subject import HONEST, Subject
from shiftbed.tables import AVERAGE, Table, variance_grid
from shiftbed.tables.grids import MISSING, Entry, Grid
from shiftbed.tables.spreads import LAST_RECORDS

SOURCE = "variance"
COLUMNS = ("checkpoint", "seed", "best_checkpoint", "best_seed")


def variance(subject: Subject) -> Finding:
    """Deviations over the last checkpoints and over trials (NICO++'s Table 4), and the gain of picking by them."""
    rows: list[dict[str, Any]] = []
    for honest, oracle in zip(subject.results(HONEST[0]), subject.results("oracle"), strict=True):
        if not honest.is_empty:
            spread = {row["algorithm"]: row for row in variance_grid(honest, oracle).data}
            rows += [_row(honest, name, spread[name]) for name in honest.algorithms]
    gains = [(row[key], key, row) for row in rows for key in COLUMNS[2:] if row[key] is not None]
    if not gains and not subject.has_records:
        return Finding(SOURCE, "unknown", subject.without_records)
    if not gains:
        return Finding(SOURCE, "unknown", "every job has one record and every cell one trial, so nothing varies.")
    # Each gain is held against the lead on its own dataset: the largest one elsewhere must not hide one that exposes.
    gain, key, row = max(gains, key=lambda one: (_exposes(one[0], one[2]["lead"]), one[0]))
    lead = row["lead"]
    verdict: Verdict = "exposed" if _exposes(gain, lead) else "clear"
    what = "checkpoint" if key == "best_checkpoint" else "seed"
    where = f"{row['algorithm']} on {row['dataset']}"
    words = f"picking the best {what} by test accuracy would gain {gain:.1f} points ({where})"
    if lead is None:
        return Finding(SOURCE, verdict, f"{words}.", [_grid(rows)])
    more = "more" if verdict == "exposed" else "no more"
    against = f"{more} than the {lead:.1f} points between the first and the second algorithm"
    return Finding(SOURCE, verdict, f"{words}, {against}.", [_grid(rows)])


def _exposes(gain: float, lead: float | None) -> bool:
    """Whether a gain could make another algorithm the first; where there is one algorithm, any gain exposes."""
    return gain > (lead or 0.0)


def _row(table: Table, name: str, spread: dict[str, Any]) -> dict[str, Any]:
    checkpoints, seeds = [], []
    for tested, domain in table.columns:
        trials = table.chosen[name].get(tested, {})
        for one in trials.values():
            positions = np.flatnonzero(one.task.steps[one.choice.row] >= 0)[-LAST_RECORDS:]
            if len(positions) > 1:
                best = max(one.accuracy(domain, int(position)) for position in positions)
                checkpoints.append(max(0.0, best - one.accuracy(domain)))
        accuracies = [one.accuracy(domain) for one in trials.values()]
        if len(accuracies) > 1:
            seeds.append(max(accuracies) - statistics.fmean(accuracies))
    return {
        "dataset": table.dataset,
        "algorithm": name,
        "checkpoint": spread["epoch"],
        "seed": spread["seed"],
        "best_checkpoint": statistics.fmean(checkpoints) if checkpoints else None,
        "best_seed": statistics.fmean(seeds) if seeds else None,
        "lead": _lead(table),
    }


def _lead(table: Table) -> float | None:
    """By how much the first algorithm of a table is better than the second."""
    found = [table.estimates[name, AVERAGE] for name in table.algorithms]
    means = sorted((one.mean for one in found if one is not None), reverse=True)
    return means[0] - means[1] if len(means) > 1 else None


def _grid(rows: list[dict[str, Any]]) -> Grid:
    def entries(row: dict[str, Any]) -> list[Entry]:
        return [Entry(MISSING if row[key] is None else f"{row[key]:.2f}") for key in COLUMNS]

    return Grid(
        title="Variance of test accuracy",
        caption=f"{HONEST[0]}: points, mean over test domains",
        corner="dataset, algorithm",
        columns=["checkpoint", "seed", "best checkpoint", "best seed"],
        rows=[(f"{row['dataset']}, {row['algorithm']}", entries(row)) for row in rows],
        notes=[
            f"checkpoint: deviation over the last records of a job, {LAST_RECORDS} or all it has; seed: over trials "
            "(divisor n − 1). "
            "best: what the best of them has over the reported one, or over the mean of seeds."
        ],
        data=rows,
    )
