"""Our numbers beside the paper's: a difference only where the two experiments were the same."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shiftbed.benchmarks.spec import Benchmark, Part, SweepPart
from shiftbed.benchmarks.views import Number, numbers
from shiftbed.data import card
from shiftbed.errors import ShiftbedError
from shiftbed.published import Cell
from shiftbed.published import table as published_table
from shiftbed.selection import SELECTIONS
from shiftbed.shift.kept import shift_kinds
from shiftbed.sweeps.designs import DESIGNS, Spread
from shiftbed.tables import Estimate, Grid, Leaderboard, Table, ranking_grid
from shiftbed.tables.cells import AVERAGE
from shiftbed.tables.estimates import usual_count
from shiftbed.tables.grids import MISSING, Entry
from shiftbed.tables.table import ORACLE_MARK, ORACLE_NOTE
from shiftbed.training.recipes import recipe

Facts = dict[str, Any]
SPREAD = "standard error"
SCORE = "ranking score"
PAPER, DIFFERENCE = "  paper", "  difference"


def paper_facts(part: SweepPart, selection: str) -> Facts:
    """What the paper did, as the benchmark's own file says it: all that must be equal for a difference to mean much."""
    how = recipe(part.recipe, card(part.dataset).name, **part.fields)
    facts = {
        "dataset": part.dataset,
        "version": part.version,
        "backbone": how.network,
        "weights": how.initial_weights,
        "steps": how.steps,
        "draws": part.search.draws,
        "trials": part.search.trials,
        "selection": selection,
    }
    return facts | dict.fromkeys(part.unstated, "not stated")


def our_facts(table: Table, algorithm: str, n: int) -> Facts:
    """What we did, as the records say it."""
    how = table.about["recipe"]
    least, most = table.draws.get(algorithm, (0, 0))
    return {
        "algorithm": algorithm,
        "dataset": table.dataset,
        "version": table.about["version"],
        "backbone": how.get("network", "unknown"),
        "weights": how.get("initial_weights"),
        "steps": how["steps"],
        "draws": least if least == most else f"{least} to {most}",
        "trials": n,
        "selection": table.selection.name,
    }


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """What differs between two experiments, in words."""
    return {
        name: f"{_word(ours[name])} here, {_word(value)} in the paper"
        for name, value in theirs.items()
        if ours[name] != value
    }


def _word(value: Any) -> str:
    return "random" if value is None else str(value)


def compare(benchmark: Benchmark, part: SweepPart, table: Table) -> Grid:
    """A table of ours, below each row the paper's, and their difference where it means something.

    Args:
        benchmark: The benchmark, as its file has it.
        part: Its part that the table belongs to, as the file has it.
        table: Our table.
    """
    shown = numbers(table, part.view)
    theirs = paper_facts(part, table.selection.name)
    differs = {}
    for row in dict.fromkeys(number.row for number in shown):
        cells = [number for number in shown if number.row == row]
        n = min((number.estimate.n for number in cells if number.estimate), default=0)
        differs[row] = differing(our_facts(table, cells[0].algorithm, n), theirs)
        if part.published and part.published.differs:
            differs[row]["source"] = part.published.differs
    title = f"{benchmark.name}, {part.name}: {table.title}"
    spread = DESIGNS[part.search.design].spread
    caption = f"{table.selection.name}: ours (n = {usual_n(shown)}) and the paper's, mean ± {spread}"
    left = [f"{words}: run the benchmark again." for words, _, command in table.unfinished() if command]
    return beside(benchmark, part, title, caption, shown, differs, spread, [*table.notes(), *left])


def paper_board(
    benchmark: Benchmark, board: Leaderboard, shown: Sequence[tuple[SweepPart, Table]]
) -> Leaderboard | None:
    """The paper's leaderboard of the same datasets and algorithms; None where it lacks a dataset.

    Args:
        benchmark: The benchmark.
        board: Our leaderboard.
        shown: Our tables, each with its part as the benchmark's file has it.
    """
    estimates: dict[str, dict[str, Estimate]] = {}
    for part, table in shown:
        if table.selection in board.selections.values() and part.published and part.view == "domains":
            cells = [(name, _average(part, table, name)) for name in table.algorithms]
            found = {
                name: Estimate(cell.mean, cell.spread, 1) for name, cell in cells if cell and cell.mean is not None
            }
            estimates.setdefault(table.dataset, {}).update(found)
    if set(estimates) != set(board.estimates) or not all(estimates.values()):
        return None
    return Leaderboard(f"the paper ({benchmark.paper})", estimates, dict.fromkeys(estimates))


def ranks_beside(benchmark: Benchmark, board: Leaderboard, shown: Sequence[tuple[SweepPart, Table]]) -> Grid:
    """A leaderboard with its changes of rank from the paper's, and in what the experiments differ."""
    paper = paper_board(benchmark, board, shown)
    grid = board.grid(paper)
    if paper is None:
        return grid
    others: dict[str, None] = {}
    for part, table in shown:
        if table.selection in board.selections.values() and part.published:
            theirs = paper_facts(part, table.selection.name)
            for name in table.algorithms:
                average = table.estimates[name, AVERAGE]
                facts = our_facts(table, name, average.n) if average else theirs
                others |= dict.fromkeys(differing(facts, theirs))
            others |= {"source": None} if part.published.differs else {}
    notes = [f"Not the paper's experiment: other {', '.join(others)}."] if others else []
    return replace(grid, notes=[*grid.notes, *notes])


def scores_beside(board: Leaderboard, tables: Sequence[str], folder: str | Path) -> Grid | None:
    """OoD-Bench's ranking scores of a leaderboard; None where the paper has none or ERM no error.

    The paper's stand beside them if they are of the same datasets.

    Args:
        board: Our leaderboard.
        tables: The published tables of the benchmark.
        folder: The sweep's folder, beside whose records shift may have been measured.
    """
    cells = [cell for name in tables for cell in published_table(name)]
    printed = {cell.algorithm: cell.mean for cell in cells if cell.measure == SCORE}
    if not printed:
        return None
    try:
        grid = ranking_grid(board, shift_kinds(folder), str(folder))
    except ShiftbedError:  # one trial has no error to compare with
        return None
    of = {cell.dataset for cell in cells if cell.measure != SCORE and cell.dataset}
    if set(board.estimates) != of:
        return replace(grid, notes=[*grid.notes, f"The paper's scores are of {', '.join(sorted(of))} together."])
    scores = [(name, printed.get(name)) for name, _ in grid.rows]
    texts = [MISSING if score is None else f"{score:+.0f}" for _, score in scores]
    rows = [(name, [*entries, Entry(text)]) for (name, entries), text in zip(grid.rows, texts, strict=True)]
    data = [{**row, "published": score} for row, (_, score) in zip(grid.data, scores, strict=True)]
    return replace(grid, columns=[*grid.columns, "paper"], rows=rows, data=data)


def _average(part: SweepPart, table: Table, algorithm: str) -> Cell | None:
    labels = {"algorithm": table.names[algorithm], "selection": table.selection.name, "measure": "accuracy"}
    return part.published.cell(dataset=part.dataset, domain="", **labels) if part.published else None


def usual_n(shown: Iterable[Number]) -> int:
    """Over how many trials or runs most of our numbers are."""
    return usual_count(number.estimate.n for number in shown if number.estimate)


def beside(
    benchmark: Benchmark,
    part: Part,
    title: str,
    caption: str,
    shown: Sequence[Number],
    differs: Mapping[str, Mapping[str, str]],
    spread: Spread = "standard error",
    notes: Iterable[str] = (),
    decimals: int = 1,
) -> Grid:
    """Numbers as a grid, three lines a row: ours, the paper's, and the difference.

    Args:
        benchmark: The benchmark.
        part: Its part.
        title: The title.
        caption: What the numbers are.
        shown: Our numbers.
        differs: Per row, what makes it another experiment than the paper's.
        spread: What follows the ± of ours.
        notes: What else a reader must know.
        decimals: How many are printed, if the paper prints no more.
    """
    columns = list(dict.fromkeys(number.column for number in shown))
    cells = {(number.row, number.column): _published(part, number) for number in shown}
    decimals = max([decimals, *(cell.decimals for cell in cells.values() if cell)])
    usual = usual_n(shown)
    rows: list[tuple[str, list[Entry]]] = []
    data = []
    for row in dict.fromkeys(number.row for number in shown):
        ours = {number.column: number for number in shown if number.row == row}
        found = {name: cells[row, name] for name in ours}
        alike = {name for name in ours if not differs[row] and name not in part.trends}
        gaps = {name: _gap(ours[name].estimate, found[name]) if name in alike else None for name in ours}
        rows.append((row, [Entry(_text(ours.get(name), spread, decimals, usual)) for name in columns]))
        if any(found.values()):
            entries = [Entry(_printed(found.get(name), ours.get(name))) for name in columns]
            rows.append((_paper_name(differs[row]), entries))
        if any(gap is not None for gap in gaps.values()):
            rows.append((DIFFERENCE, [Entry(_signed(gaps.get(name), decimals)) for name in columns]))
        data += [_row(benchmark, part, ours[name], found[name], gaps[name], differs[row]) for name in ours]
    why = dict.fromkeys(_why(row) for row in differs.values() if row)
    caption = caption if shown else "nothing of it was measured here"
    said = [*why, *benchmark.notes, *notes]
    if any(number.estimate and number.estimate.n != usual for number in shown):
        said.insert(0, f"(n) beside a number: its n, not {usual}.")
    if any(_mark(number.labels) for number in shown) and not any(note.startswith(ORACLE_MARK) for note in said):
        said.append(ORACLE_NOTE)
    return Grid(title, caption, "algorithm", columns, rows, said, data=data)


def _published(part: Part, number: Number) -> Cell | None:
    cell = part.published.cell(**{"dataset": part.dataset, **number.labels}) if part.published else None
    return cell if cell is not None and cell.mean is not None else None


def _paper_name(differs: Mapping[str, str]) -> str:
    return f"{PAPER}, other {', '.join(differs)}" if differs else PAPER


def _why(differs: Mapping[str, str]) -> str:
    return f"No difference is shown: {'; '.join(f'{name}: {words}' for name, words in differs.items())}."


def _gap(ours: Estimate | None, theirs: Cell | None) -> tuple[float, float | None] | None:
    """Our mean minus the paper's, and its standard error where both are known to have one."""
    if ours is None or theirs is None or theirs.mean is None:
        return None
    difference = ours.mean - theirs.mean
    if (
        ours.standard_error is None
        or theirs.spread is None
        or not published_table(theirs.table).spread.startswith(SPREAD)
    ):
        return difference, None
    return difference, math.hypot(ours.standard_error, theirs.spread)


def _mark(labels: Mapping[str, str]) -> str:
    """Every oracle number is marked, the paper's too."""
    rule = labels.get("selection", "")
    return ORACLE_MARK if rule in SELECTIONS and SELECTIONS[rule].oracle else ""


def _text(number: Number | None, spread: Spread, decimals: int, usual: int) -> str:
    if number is None or number.estimate is None:
        return MISSING
    estimate = number.estimate
    doubt = estimate.standard_error if spread == "standard error" else estimate.deviation
    error = "" if doubt is None else f" ±{doubt:.{decimals}f}"
    count = "" if estimate.n == usual else f" ({estimate.n})"
    return f"{estimate.mean:.{decimals}f}{_mark(number.labels)}{error}{count}"


def _printed(cell: Cell | None, ours: Number | None) -> str:
    """The paper's number; an oracle's if the paper says so, or if ours beside it is one."""
    if cell is None or cell.mean is None or ours is None:
        return MISSING
    doubt = "" if cell.spread is None else f" ±{cell.spread:.{cell.decimals}f}"
    return f"{cell.mean:.{cell.decimals}f}{_mark({'selection': cell.selection}) or _mark(ours.labels)}{doubt}"


def _signed(gap: tuple[float, float | None] | None, decimals: int) -> str:
    if gap is None:
        return MISSING
    return f"{gap[0]:+z.{decimals}f}" + ("" if gap[1] is None else f" ±{gap[1]:.{decimals}f}")


def _row(
    benchmark: Benchmark,
    part: Part,
    ours: Number,
    theirs: Cell | None,
    gap: tuple[float, float | None] | None,
    differs: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "benchmark": benchmark.name,
        "benchmark_version": benchmark.version,
        "part": part.name,
        "dataset": part.dataset,
        **ours.labels,
        "oracle": bool(_mark(ours.labels)),
        "row": ours.row,
        "column": ours.column,
        "ours": None if ours.estimate is None else ours.estimate.mean,
        "standard_error": None if ours.estimate is None else ours.estimate.standard_error,
        "n": 0 if ours.estimate is None else ours.estimate.n,
        "published": None if theirs is None else theirs.mean,
        "published_spread": None if theirs is None else theirs.spread,
        "published_in": None if theirs is None else theirs.table,
        "reconstructed": theirs is not None and theirs.reconstructed,
        "trend": ours.column in part.trends,
        "difference": None if gap is None else gap[0],
        "differs": dict(differs),
    }
