"""The papers' ways to look at a sweep's tables, by name."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shiftbed.errors import ShiftbedError
from shiftbed.registry import did_you_mean
from shiftbed.tables.ensembles import ensemble_grid
from shiftbed.tables.estimates import DIVISORS
from shiftbed.tables.grids import MISSING, Entry, Grid
from shiftbed.tables.leaderboards import Kinds, Leaderboard, leaderboards, ranking_grid
from shiftbed.tables.spreads import group_grid, improvements, spread_grid, thirds, variance_grid
from shiftbed.tables.table import BASELINE, ORACLE_MARK, Table
from shiftbed.yaml_files import read_yaml

View = Callable[[Sequence[Table]], list[Grid]]
Groups = Mapping[str, Sequence[str]]


def _rankings(tables: Sequence[Table], kinds: Kinds | None = None) -> list[Grid]:
    boards = leaderboards(tables)
    if not boards:
        raise ShiftbedError("A ranking score compares several datasets under one recipe; sweep more of them.")
    return [ranking_grid(board, kinds, tables[0].folder) for board in boards]


def improvement_grid(table: Table) -> Grid:
    """Per test domain the baseline's accuracy and how much better each algorithm is there, hardest domain first."""
    rows = improvements(table)
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    if not rows:
        raise ShiftbedError(f"An improvement over {BASELINE} needs {BASELINE} and another algorithm; sweep both.")
    own = {table.heading(column): table.estimates[BASELINE, column] for column in table.columns}  # over all its trials
    baseline = {row["column"]: one.mean for row in rows if (one := own[row["column"]]) is not None}
    gains = {(row["column"], row["algorithm"]): row for row in rows}
    mark = ORACLE_MARK if table.selection.oracle else ""
    counts = sorted({row["n"] for row in rows})

    def shown(test: str, name: str) -> Entry:
        if (test, name) not in gains:
            return Entry(MISSING)
        error = gains[test, name]["standard_error"]
        return Entry(f"{gains[test, name]['improvement']:+z.1f}{mark}" + ("" if error is None else f" ±{error:.1f}"))

    return Grid(
        title=table.title,
        caption=f"{table.selection.name}: accuracy of {BASELINE} in %, and the improvement over it in points, ± its "
        f"standard error{DIVISORS[table.se]}, n = {' or '.join(map(str, counts))}",
        corner="test domain",
        columns=[BASELINE, *names],
        rows=[
            (test, [Entry(f"{baseline[test]:.1f}{mark}"), *(shown(test, name) for name in names)])
            for test in sorted(baseline, key=lambda test: (baseline[test], test))
        ],
        notes=table.notes(),
        data=rows,
    )


def each_table(make: Callable[[Table], list[Grid]]) -> View:
    """A view of every table that has what it shows; it is wrong only where none has."""

    def view(tables: Sequence[Table]) -> list[Grid]:
        grids, reasons = [], []
        for table in tables:
            try:
                grids += make(table)
            except ShiftbedError as reason:
                reasons.append(reason)
        if reasons and not grids:
            raise reasons[0]
        return grids

    return view


def _once(tables: Sequence[Table]) -> list[Table]:
    """One table of each setting, for what no selection chooses: the first that has numbers, if any has."""
    kept: dict[str, Table] = {}
    for table in tables:
        if table.title not in kept or kept[table.title].is_empty:
            kept[table.title] = table
    return list(kept.values())


VIEWS: dict[str, View] = {
    "spread": each_table(spread_grid),
    "groups": each_table(lambda table: [group_grid(table)]),
    "variance": each_table(lambda table: [variance_grid(table)]),
    "improvement": each_table(lambda table: [improvement_grid(table)]),
    "ranking": _rankings,
    "eoa": lambda tables: [ensemble_grid(table, "logits") for table in tables],
    "diwa": lambda tables: [ensemble_grid(table, "weights") for table in _once(tables)],
}


def read_groups(path: str | Path) -> Groups:
    """Groups of domains from a YAML file: domains by group; or a distance by domain, whose thirds are near and far.

    Raises:
        ShiftbedError: The file is not there, or holds neither.
    """
    found = read_yaml(Path(path), f"The file {path} with groups of domains")
    if isinstance(found, dict) and found:
        if all(isinstance(value, int | float) for value in found.values()):
            return thirds({str(name): float(value) for name, value in found.items()})
        if all(isinstance(value, list) for value in found.values()):
            return {str(name): [str(domain) for domain in value] for name, value in found.items()}
    raise ShiftbedError(f"{path} must hold lists of domains by group, or a distance for each domain.")


def view_tables(
    tables: Sequence[Table], view: str, groups: Groups | None = None, kinds: Kinds | None = None
) -> list[Grid]:
    """Tables as one of the papers shows them.

    Args:
        tables: The tables.
        view: spread (NICO++), groups (CIFAR-10-W), variance (NICO++), improvement (CIFAR-10-W), ranking (OoD-Bench),
            eoa or diwa (several jobs as one model).
        groups: Groups of domains, in place of the clusters of the dataset's card.
        kinds: Kinds of shift that were measured, in place of those of the datasets' cards.

    Raises:
        ShiftbedError: There is no such view, or the tables do not have what it shows.
    """
    if view not in VIEWS:
        raise ShiftbedError(f"There is no view '{view}'.{did_you_mean(view, list(VIEWS))}")
    if groups is not None and view == "groups":
        return each_table(lambda table: [group_grid(table, groups)])(tables)
    if kinds is not None and view == "ranking":
        return _rankings(tables, kinds)
    return VIEWS[view](tables)


def boards_against(tables: Sequence[Table], others: Sequence[Table]) -> list[Grid]:
    """The leaderboards of a sweep against those of another, selection by selection.

    Raises:
        ShiftbedError: They have no selection in common.
    """

    def boards(some: Sequence[Table]) -> dict[str, Leaderboard]:
        by_rule: dict[str, list[Table]] = {}
        for table in (one for one in some if not one.is_reference):
            by_rule.setdefault(table.selection.name, []).append(table)
        return {rule: Leaderboard.of(members, members[0].folder) for rule, members in by_rule.items()}

    ours, theirs = boards(tables), boards(others)
    grids = [board.grid(theirs[rule]) for rule, board in ours.items() if rule in theirs]
    if not grids:
        raise ShiftbedError("The two sweeps have no selection in common; name one with --selection.")
    return grids
