"""Two leaderboards side by side: the ranking with and without the knowledge that may have leaked."""

from collections import defaultdict
from collections.abc import Sequence

from shiftbed.audit.findings import Finding
from shiftbed.audit.subject import HONEST, Subject
from shiftbed.tables import Leaderboard, Table
from shiftbed.tables.estimates import TOO_FEW

SOURCE = "ranking"


def ranking(subject: Subject) -> Finding:
    """The leaderboards under honest and under oracle selection, one pair for each recipe."""
    grids, sentences, changed = [], [], False
    for recipe, honest in _boards(subject, HONEST[0]).items():
        oracle = _boards(subject, "oracle").get(recipe)
        if oracle is None or len(honest.averages) < 2:
            continue
        grids.append(oracle.grid(against=honest))
        words, differs = _compared(honest, oracle)
        sentences.append(f"{recipe}: {words}" if recipe else words)
        changed |= differs
    if not grids:
        return Finding(SOURCE, "unknown", "fewer than two algorithms have numbers under honest and oracle selection.")
    return Finding(SOURCE, "exposed" if changed else "clear", f"{'; '.join(sentences)}.", grids)


def ranking_against(subject: Subject, other: Subject) -> Finding:
    """The leaderboards of two sweeps under the same honest selection: protocol A and protocol B."""
    mine, theirs = (_whole(one) for one in (subject, other))
    grid = mine.grid(against=theirs)
    if len(set(mine.averages) & set(theirs.averages)) < 2:
        return Finding(f"{SOURCE} against {other.folder}", "unknown", "they have fewer than two algorithms in common.")
    words, differs = _compared(theirs, mine)
    return Finding(f"{SOURCE} against {other.folder}", "exposed" if differs else "clear", f"{words}.", [grid])


def _compared(one: Leaderboard, other: Leaderboard) -> tuple[str, bool]:
    """How two leaderboards agree, and whether the first place changes."""
    found = one.agreement(other)
    names = [name for name in one.averages if name in other.averages]
    first, second = (max(names, key=lambda name: board.averages[name]) for board in (one, other))
    same = (
        f"{first} is first in both" if first == second else f"{first} is first in {one.name}, {second} in {other.name}"
    )
    if found is None:
        return f"{same}; the rank correlation is not defined", first != second
    correlation, interval, n = found
    between = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else TOO_FEW
    return f"{same}; Spearman's correlation is {correlation:.2f} ({between}), n = {n} algorithms", first != second


def _boards(subject: Subject, selection: str) -> dict[str, Leaderboard]:
    """Per recipe the leaderboard over its datasets, where each has one table."""
    groups: dict[str, list[Table]] = defaultdict(list)
    for table in subject.results(selection):
        if not table.is_empty:
            groups[table.about["recipe"]["name"]].append(table)
    return {
        "" if len(groups) == 1 else recipe: Leaderboard.of(_one_each(tables), selection)
        for recipe, tables in groups.items()
    }


def _one_each(tables: Sequence[Table]) -> list[Table]:
    """Of each dataset the table with the most columns: a leaderboard has one of each."""
    ordered = sorted(tables, key=lambda table: len(table.columns))
    return list({table.dataset: table for table in ordered}.values())


def _whole(subject: Subject) -> Leaderboard:
    return Leaderboard.of(_one_each([t for t in subject.results(HONEST[0]) if not t.is_empty]), subject.folder)
