"""The query budget: how often test domains were looked at, and what oracles on a budget would choose."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.audit.findings import Finding
from shiftbed.audit.ledger import ledger_id, looked_at, queries_of
from shiftbed.audit.oracles import HELD_OUT_COUNT, SCALE, privacy
from shiftbed.audit.subject import HONEST, Subject
from shiftbed.errors import plural
from shiftbed.selection import TaskRecords
from shiftbed.selection.rules import ORACLE_BUDGET, TEST_HELD_OUT
from shiftbed.sweeps.blind import opening
from shiftbed.tables import AVERAGE
from shiftbed.tables.grids import MISSING, Entry, Grid
from shiftbed.tables.table import ORACLE_MARK, ORACLE_NOTE
from shiftbed.training.store import LocalStore

SOURCE = "query budget"
ORACLES = ("oracle", "oracle-laplace", "oracle-thresholdout")
COUNTED = "looks through the verbs of shiftbed are counted, but not those of audits and of who opens the files"


def query_budget(subject: Subject) -> Finding:
    """What the ledger says, with the tables of the budgeted oracles and the privacy that noise buys."""
    store = LocalStore(Path(subject.folder))
    looks, opened = looked_at(queries_of(store), _settings(subject)), opening(store)
    until = ""
    if opened:
        done = f"{plural(opened.jobs, 'job')} had finished, now {len(subject.abouts):,}"
        until = f" The sweep was blind until {opened.date}, when {done}."
    grids = [grid for grid in (_oracle_grid(subject), _privacy_grid(subject)) if grid.rows]
    if not looks:
        return Finding(SOURCE, "clear", f"the ledger has no look at a test domain ({COUNTED}).{until}", grids)
    (algorithm, tested, trial, setting), most = min(looks.items(), key=lambda one: (-one[1], one[0]))
    over = sum(count > ORACLE_BUDGET for count in looks.values())
    dataset = next((f" of {one['dataset']}" for one in subject.abouts if one["setting"] == setting), "")
    where = f"{algorithm} on {' and '.join(tested)}{dataset}, trial {trial}"
    words = (
        f"{sum(looks.values())} looks at test domains in {len(looks)} cells, at most {most} of {ORACLE_BUDGET} in one "
        f"({where}); {COUNTED} (ledger {(ledger_id(store) or '')[:8]}).{until}"
    )
    if over:
        return Finding(SOURCE, "alarm", f"{over} of {len(looks)} cells are over the budget: {words}", grids)
    return Finding(SOURCE, "clear", words, grids)


def _settings(subject: Subject) -> dict[str, str]:
    """Per job its setting, also of jobs that were planned and are not here any more."""
    return {row["id"]: row["setting"] for row in (*subject.plan, *subject.abouts)}


def _oracle_grid(subject: Subject) -> Grid:
    """Per setting and algorithm, the accuracy under each oracle."""
    rows, data = [], []
    by_rule = [subject.results(name) for name in (HONEST[0], *ORACLES)]
    for tables in zip(*by_rule, strict=True):
        if tables[1].is_empty:
            continue
        for name in tables[0].algorithms:
            found = [table.estimates.get((name, AVERAGE)) for table in tables]
            texts = [MISSING if one is None else f"{one.mean:.1f}" for one in found]
            marks = ["", *[ORACLE_MARK] * len(ORACLES)]
            cells = [text if text == MISSING else text + mark for text, mark in zip(texts, marks, strict=True)]
            counts = {t.selection.name: one.n if one else 0 for t, one in zip(tables, found, strict=True)}
            cells.append(" or ".join(map(str, sorted({count for count in counts.values() if count}))) or "0")
            rows.append((f"{tables[0].dataset}, {name}", [Entry(cell) for cell in cells]))
            means = {t.selection.name: one and one.mean for t, one in zip(tables, found, strict=True)}
            data.append({"dataset": tables[0].dataset, "algorithm": name, **means, "n": counts})
    return Grid(
        title="Oracles on a budget",
        caption="accuracy in %, mean over trials and test domains",
        corner="dataset, algorithm",
        columns=["honest", "counted", "laplace", "threshold- out", "n"],
        rows=rows,
        notes=[
            ORACLE_NOTE,
            f"counted: `oracle`, one look at each of at most {ORACLE_BUDGET} draws of a cell; laplace: with noise of "
            f"scale {100 * SCALE:g} points; threshold-out: between two halves of the test domain's held-out images. "
            "Thresholdout between training and test domains is refused: they differ by more than its threshold, so "
            "every question would spend budget.",
            "n: the trials that have every domain, over which these means are; those of gaps are over all pairs of "
            "trial and domain that both selections have.",
            *subject.left_out(HONEST[0], *ORACLES),
        ],
        data=data,
    )


def _privacy_grid(subject: Subject) -> Grid:
    """Per task, what the noise of `oracle-laplace` guarantees."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for task in subject.tasks:
        if len(_answered(task)):
            found.setdefault((task.abouts[0]["dataset"], task.tested), _privacy(task))
    rows = [
        (
            f"{dataset}, {' and '.join(tested)}",
            [
                Entry(" + ".join(map(str, one["images"]))),
                *(
                    Entry(MISSING if one[key] is None else f"{one[key]:.3g}")
                    for key in ("epsilon", "queries", "total_epsilon", "swap")
                ),
            ],
        )
        for (dataset, tested), one in found.items()
    ]
    return Grid(
        title=f"Laplace noise of scale {SCALE:g} on the accuracy",
        caption="privacy of oracle-laplace: epsilon of one answer and of all answers of a cell",
        corner="dataset, tested",
        columns=["images", "epsilon", "answers", "total epsilon", "swap"],
        rows=rows,
        notes=[
            f"epsilon: 1 / ({SCALE:g} · images); an answer about domains tested together is their mean, and counts the "
            "images of the smallest as often as there are domains.",
            "swap: the chance that noise alone swaps the best two draws that are asked about, in the mean over cells.",
        ],
        data=[{"dataset": key[0], "tested": list(key[1]), "scale": SCALE, **one} for key, one in found.items()],
    )


def _answered(task: TaskRecords) -> np.ndarray:
    """How many held-out images an oracle's answers are about: jobs that came to their end and recorded it × splits."""
    counts = task.read(HELD_OUT_COUNT)[task.is_last]
    return counts[np.isfinite(counts).all(axis=1)] if task.has(TEST_HELD_OUT) else counts[:0]


def _privacy(task: TaskRecords) -> dict[str, Any]:
    last = task.ends_with(TEST_HELD_OUT)
    sizes = [int(count) for count in _answered(task)[0]]
    most = max((int(last[where].any(axis=1).sum()) for where in task.cells.values()), default=0)
    queries, epsilon = min(ORACLE_BUDGET, most), privacy(sizes)
    accuracy = task.mean(TEST_HELD_OUT)
    cells = [accuracy[where][last[where]][:ORACLE_BUDGET] for where in task.cells.values()]
    best_two = [np.sort(some[np.isfinite(some)])[::-1][:2] for some in cells]
    swaps = [swap_chance(float(best - second)) for best, second in (pair for pair in best_two if len(pair) == 2)]
    swap = float(np.mean(swaps)) if swaps else None  # with one draw there is nothing to swap
    return {
        "images": sizes,
        "epsilon": epsilon,
        "queries": queries,
        "total_epsilon": queries * epsilon,
        "swap": swap,
    }


def swap_chance(gap: float) -> float:
    """The chance that Laplace noise of `SCALE` on both of two accuracies turns their order around."""
    return 0.5 * math.exp(-gap / SCALE) * (1 + gap / (2 * SCALE))
