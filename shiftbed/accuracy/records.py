"""Predicted accuracies from records alone: confidences are recorded, so no model needs to be kept."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shiftbed.accuracy.intervals import conformal_quantile
from shiftbed.accuracy.selection import SOURCE_CONFIDENCE
from shiftbed.selection.evidence import VALIDATION
from shiftbed.tables.cells import Chosen
from shiftbed.tables.table import Table

Row = dict[str, Any]
LEVEL = 0.9  # the probability with which intervals are meant to hold


def recorded(tables: Sequence[Table]) -> list[Row]:
    """What DoC predicts for every cell of tables, in the mean over its trials, beside what was measured.

    The interval is conformal: how much predictions err on all other test domains, of this dataset and of others. With
    fewer than nine of those (at 90 %) there is none.

    Args:
        tables: Under a selection; the models it chose are predicted for.

    Returns:
        Rows as `shiftbed.accuracy.kept.predictions` has them, `low` and `high` None where there is no interval.
    """
    rows = [row for table in tables for row in _rows(table)]
    groups = np.array([f"{row['dataset']}/{row['domain']}" for row in rows])
    sizes = np.array([abs(row["accuracy"] - row["true"]) for row in rows])
    for group in dict.fromkeys(groups.tolist()):
        others = groups != group
        half = conformal_quantile(sizes[others], groups[others], LEVEL) if others.any() else np.inf
        if np.isfinite(half):
            for row in (rows[place] for place in np.flatnonzero(~others)):
                row |= {"low": max(0.0, row["accuracy"] - half), "high": min(1.0, row["accuracy"] + half)}
                row["level"] = LEVEL
    return rows


def _rows(table: Table) -> list[Row]:
    found = []
    for tested, domain in table.columns:
        for name in table.algorithms:
            chosen = list(table.chosen[name].get(tested, {}).values())
            predicted = float(np.mean([_predicted(one, domain) for one in chosen])) if chosen else np.nan
            if np.isfinite(predicted):  # records of other programs have no confidences
                counts = chosen[0].counts()
                found.append(
                    {
                        "dataset": table.dataset,
                        "domain": domain or ", ".join(tested),
                        "algorithm": name,
                        "job": chosen[0].choice.job_id,
                        "method": "doc",
                        "accuracy": min(max(predicted, 0.0), 1.0),
                        "low": None,
                        "high": None,
                        "level": None,
                        "images": round(counts.get(domain, sum(counts.values()))),
                        "true": float(np.mean([one.share(domain) for one in chosen])),
                        "trust": "",
                    }
                )
    return found


def _predicted(one: Chosen, domain: str) -> float:
    """Accuracy on held-out images of the training domains, less what is lost in confidence on the test domain."""
    task, at = one.task, (one.choice.row, one.choice.position)
    if "confidence" not in task.values:
        return float("nan")
    places = task.reported(domain)
    there, counts = (task.values[metric][*at, places] for metric in ("confidence", "count"))
    lost = task.mean(SOURCE_CONFIDENCE)[at] - there @ counts / counts.sum()
    return float(task.mean(VALIDATION)[at] - lost)
