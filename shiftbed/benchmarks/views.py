"""Views: which of a table's numbers a paper prints, each with the labels of the paper's own cell."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from shiftbed.audit.oracle import cells_tested_jointly, leakage
from shiftbed.benchmarks.spec import View
from shiftbed.selection import Variant
from shiftbed.tables import AVERAGE, Estimate, Table, group_estimates, spread_estimates, variances
from shiftbed.tables.spreads import EVERY


class Number(NamedTuple):
    """One of our numbers.

    Attributes:
        row: The row of its table.
        column: The column.
        labels: How the paper labels its own.
        estimate: The number; None where it is missing.
        algorithm: Whose it is.
    """

    row: str
    column: str
    labels: dict[str, str]
    estimate: Estimate | None
    algorithm: str


def numbers(table: Table, view: View) -> list[Number]:
    """What a view shows of a table."""
    return list(VIEWS[view](table))


def _averaged(table: Table, algorithm: str, estimate: Estimate | None) -> Estimate | None:
    """A number over several domains; none of a row that lacks jobs."""
    return None if algorithm in table.unaveraged else estimate


def _domains(table: Table) -> Iterator[Number]:
    for name in table.algorithms:
        for column in (*table.columns, AVERAGE):
            labels = _labels(table, name, column[1], "accuracy")
            yield Number(name, table.heading(column), labels, table.estimates[name, column], name)


def _spread(table: Table) -> Iterator[Number]:
    """Of the domains that are tested together; the deviation has the divisor of NICO++'s tables.

    Where several sets of domains are tested each has a row of its own, whose numbers over its domains are not the
    paper's. One domain alone has no deviation.
    """
    measures = {
        "average": ("Avg", "accuracy"),
        "overall": ("Ova", "overall accuracy"),
        "deviation": ("Std", "standard deviation over domains"),
    }
    sets = list(dict.fromkeys(tested for tested, _ in table.columns))
    for tested in sets:
        if len(tested) == 1:
            for name, column in product(table.algorithms, (one for one in table.columns if one[0] == tested)):
                labels = _labels(table, name, column[1], "accuracy")
                yield Number(name, table.heading(column), labels, table.estimates[name, column], name)
            continue
        where = ", ".join(tested) if len(sets) > 1 else ""
        for name, cells in spread_estimates(table, tested, ddof=0).items():
            row = f"{name}, {where}" if where else name
            for domain in tested:
                yield Number(row, domain, _labels(table, name, domain, "accuracy"), cells[domain], name)
            for key, (heading, measure) in measures.items():
                estimate = _averaged(table, name, cells[key])
                yield Number(row, heading, _labels(table, name, where, measure), estimate, name)


def _groups(table: Table) -> Iterator[Number]:
    for (name, group), estimate in group_estimates(table).items():
        labels = _labels(table, name, "" if group == EVERY else group, "accuracy")
        yield Number(name, group, labels, _averaged(table, name, estimate), name)


def _overall(table: Table) -> Iterator[Number]:
    for name in table.algorithms:
        labels = _labels(table, name, "", "overall accuracy")
        yield Number(name, "overall", labels, table.estimates[name, AVERAGE], name)


def _variance(table: Table) -> Iterator[Number]:
    measures = {
        "epoch": "standard deviation over epochs",
        "seed": "standard deviation over seeds",
        "gap": "oracle gap",
    }
    for name in table.algorithms:
        average = table.estimates[name, AVERAGE]
        for key, value in variances(table, name).items():
            estimate = None if value is None or average is None else Estimate(value, None, average.n)
            labels = _labels(table, name, "", measures[key])
            labels |= (
                {"selection": "oracle"} if key == "gap" else {}
            )  # the test domains' labels say which record is best
            yield Number(name, key, labels, estimate, name)


def _leakage(table: Table) -> Iterator[Number]:
    """Per set of domains that are tested together, honest selection and the oracle that sees K of them."""
    tasks = {
        id(one.task): one.task
        for cells in table.chosen.values()
        for trials in cells.values()
        for one in trials.values()
    }
    for task in tasks.values():
        where = f"tested on {', '.join(task.tested)}"
        for name in table.algorithms:
            counted = table.chosen[name].get(task.tested, {})
            own = {Variant.of(one.about) for one in counted.values()}
            cells = [
                leakage(accuracy, best)
                for cell, accuracy, best in cells_tested_jointly(task, table.selection)
                if cell.variant in own and cell.trial in counted
            ]
            for k in range(len(task.tested) + 1):
                by_domain = [one.oracle[k - 1] if k else one.honest for one in cells]
                setting = f"{where}; K={k}" if k else where
                labels = _labels(table, name, "", "accuracy", setting=setting)
                labels["selection"] = "oracle" if k else table.selection.name
                row = f"{name}, {where.removeprefix('tested on ')}: {f'K = {k}' if k else 'no oracle'}"
                for place, domain in enumerate(task.tested):
                    values = [float(found[place]) for found in by_domain]
                    yield Number(row, domain, labels | {"domain": domain}, Estimate.of(values, table.se), name)
                means = Estimate.of([float(np.mean(found)) for found in by_domain], table.se)
                yield Number(row, "Avg", labels, _averaged(table, name, means), name)
                if k:
                    leaks = Estimate.of([float(one.leakage[k - 1]) for one in cells], table.se)
                    yield Number(row, "leak", labels | {"measure": "leakage"}, _averaged(table, name, leaks), name)


def _labels(table: Table, algorithm: str, domain: str, measure: str, **more: str) -> dict[str, str]:
    known = {"algorithm": table.names[algorithm], "selection": table.selection.name}
    return {**known, "domain": domain, "measure": measure, **more}


VIEWS: dict[View, Callable[[Table], Iterator[Number]]] = {
    "domains": _domains,
    "spread": _spread,
    "groups": _groups,
    "overall": _overall,
    "variance": _variance,
    "leakage": _leakage,
}
