"""The cells of tables as rows, for machines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shiftbed.tables.cells import AVERAGE, Column

if TYPE_CHECKING:  # a table prints its own rows
    from shiftbed.tables.table import Table


def as_rows(tables: "Sequence[Table]") -> list[dict[str, Any]]:
    """All cells of some tables with what they rest on, for machines."""
    return [
        _row(table, algorithm, column)
        for table in tables
        for algorithm in table.algorithms
        for column in (*table.columns, AVERAGE)
    ]


def _row(table: "Table", algorithm: str, column: Column) -> dict[str, Any]:
    estimate = table.estimates[algorithm, column]
    least, most = table.draws.get(algorithm, (0, 0))
    return {
        "dataset": table.dataset,
        "version": table.about["version"],
        "recipe": table.about["recipe"]["name"],
        "steps": table.about["recipe"]["steps"],
        "task": table.about["task"]["kind"],
        "adaptation": table.about["task"].get("adapt", 0.0),
        "overrides": table.about["overrides"],
        "fields": dict(table.apart),
        "selection": table.selection.name,
        "oracle": table.selection.oracle,
        "leaks": table.leaks[algorithm],
        "algorithm": algorithm,
        "test": column[1] if column != AVERAGE else "average",
        "tested_together": len(column[0]),
        "tested_with": [name for name in column[0] if name != column[1]] if column[1] else [],
        "accuracy": None if estimate is None else estimate.mean,
        "standard_error": None if estimate is None else estimate.standard_error,
        "n": 0 if estimate is None else estimate.n,
        "why_empty": table.why_empty(algorithm, column),
        "least_draws": least,
        "most_draws": most,
        "chosen": [
            {
                "trial": trial,
                "job": one.choice.job_id,
                "draw": one.choice.draw,
                "step": one.choice.step,
                "accuracy": one.accuracy(column[1]),
                "hparams": one.choice.hparams,
                "beside": list(one.choice.beside),
            }
            for trial, one in sorted(table.chosen[algorithm].get(column[0], {}).items())
        ],
    }
