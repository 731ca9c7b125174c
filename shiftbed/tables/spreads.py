"""Spreads: how one model's accuracy differs between test domains, groups of domains, checkpoints and trials."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shiftbed.data import card
from shiftbed.errors import ShiftbedError
from shiftbed.registry import did_you_mean
from shiftbed.tables.cells import OVERALL, Chosen, Tested, reported_columns
from shiftbed.tables.estimates import DIVISORS, Estimate
from shiftbed.tables.grids import MISSING, Entry, Grid, own_key, placed
from shiftbed.tables.table import BASELINE, ORACLE_MARK, ORACLE_NOTE, Table

LAST_RECORDS = 10
MEASURES = ("overall", "average", "deviation", "worst")
TAKEN = {*MEASURES, "dataset", "selection", "oracle", "algorithm", "n", "ddof"}  # what rows for machines have
EVERY = "All"
NAMED = 12  # domains of a group that notes name


def domain_summary(accuracies: Mapping[str, float], counts: Mapping[str, float], ddof: int = 1) -> dict[str, float]:
    """NICO++'s three numbers of one model: its average over test domains, overall accuracy, and their deviation.

    Args:
        accuracies: Per test domain.
        counts: Images of each.
        ddof: The deviation's divisor is the number of domains minus this: 1 is the paper's formula, 0 its tables.

    Raises:
        ShiftbedError: One domain has no deviation.
    """
    values = list(accuracies.values())
    if len(values) < 2:
        raise ShiftbedError("One test domain has no deviation over domains; test several together.")
    overall = sum(accuracies[name] * counts[name] for name in accuracies) / sum(counts[name] for name in accuracies)
    return {
        "average": statistics.fmean(values),
        "overall": overall,
        "deviation": float(np.std(values, ddof=ddof)),
        "worst": min(values),
    }


def spread_grid(table: Table, ddof: int = 1) -> list[Grid]:
    """NICO++'s tables: accuracy by domain of models that are tested on several, one table for each such set.

    Raises:
        ShiftbedError: Every model of the table is tested on one domain.
    """
    sets = [tested for tested in dict.fromkeys(tested for tested, _ in table.columns) if len(tested) > 1]
    if not sets:
        raise ShiftbedError(f"The models of {table.title} are tested on one domain each, which has no deviation.")
    return [_spread(table, tested, ddof) for tested in sets]


def spread_estimates(table: Table, tested: Tested, ddof: int = 1) -> dict[str, dict[str, Estimate | None]]:
    """Per algorithm its accuracy on each of the domains that are tested together, and NICO++'s numbers of them."""
    found = {}
    for name in table.algorithms:
        trials = [one for _, one in sorted(table.chosen[name].get(tested, {}).items())]
        numbers = [_with_summary(one, tested, ddof) for one in trials]
        found[name] = {key: Estimate.of([one[key] for one in numbers], table.se) for key in _keys(tested)}
    return found


def _keys(tested: Tested) -> tuple[str, ...]:
    """What a row has of its domains and over them."""
    return (*map(_key, tested), *MEASURES)


def _key(domain: str) -> str:
    return own_key("domain", domain, TAKEN)


def _spread(table: Table, tested: Tested, ddof: int) -> Grid:
    cells = spread_estimates(table, tested, ddof)
    counts = {name: max((cell.n for cell in cells[name].values() if cell), default=0) for name in table.algorithms}
    keys = _keys(tested)
    columns = {key: _column([cells[name][key] for name in table.algorithms], key, table) for key in keys}
    divisor = "K − 1, as in NICO++'s formula; its tables divide by K" if ddof else "K, as in NICO++'s tables"
    return Grid(
        title=table.title,
        caption=f"{table.selection.name}: accuracy in % of one model by test domain, mean ± standard error"
        f"{DIVISORS[table.se]}, n = {_counted(counts.values())}",
        corner="algorithm",
        columns=[*tested, "Ova", "Avg", "Std", "worst"],
        rows=[(name, [columns[key][row] for key in keys]) for row, name in enumerate(table.algorithms)],
        notes=[
            f"Std is the standard deviation over the K = {len(tested)} test domains (divisor {divisor}).",
            *table.notes(),
        ],
        data=[
            {
                **_origin(table, name),
                **{key: None if cell is None else cell.mean for key, cell in cells[name].items()},
                **{f"{key} ±": None if cell is None else cell.standard_error for key, cell in cells[name].items()},
                "n": counts[name],
                "ddof": ddof,
            }
            for name in table.algorithms
        ],
    )


def _with_doubt(mean: float, doubt: float | None, mark: str) -> str:
    return f"{mean:.2f}{mark}" + ("" if doubt is None else f" ±{doubt:.2f}")


def _counted(counts: Iterable[int]) -> str:
    """How many trials numbers rest on, in words."""
    return " or ".join(map(str, sorted({n for n in counts if n}))) or "0"


def _origin(table: Table, algorithm: str) -> dict[str, Any]:
    """Where a row of numbers for machines comes from."""
    selection = table.selection
    return {"dataset": table.dataset, "selection": selection.name, "oracle": selection.oracle, "algorithm": algorithm}


def _with_summary(one: Chosen, tested: Tested, ddof: int) -> dict[str, float]:
    accuracies = {domain: one.accuracy(domain) for domain in tested}
    summary = domain_summary(accuracies, one.counts(), ddof)
    return {**{_key(domain): accuracy for domain, accuracy in accuracies.items()}, **summary}


def _column(cells: Sequence[Estimate | None], key: str, table: Table) -> list[Entry]:
    mark = ORACLE_MARK if table.selection.oracle else ""
    texts = [MISSING if cell is None else _with_doubt(cell.mean, cell.standard_error, mark) for cell in cells]
    if key == "deviation":  # neither a small nor a large one is better by itself
        return [Entry(text) for text in texts]
    return placed(texts, [None if cell is None else cell.mean for cell in cells], decimals=2)


def group_grid(table: Table, groups: Mapping[str, Sequence[str]] | None = None) -> Grid:
    """CIFAR-10-W's tables: accuracy by group of test domains, every domain weighing the same, mean ± deviation.

    Args:
        table: A table with many test domains.
        groups: Domains by group; the clusters of the dataset's card by default.

    Raises:
        ShiftbedError: There are no groups, accuracy is not told by domain, or a group names a domain that the dataset
            does not have.
    """
    _refuse_unknown(table, groups or {})
    cells = group_estimates(table, groups)
    tested = {domain for _, domain in table.columns}
    members = [(group, [one for one in domains if one in tested]) for group, domains in (groups or {}).items()]
    shown = list(dict.fromkeys(group for _, group in cells))
    mark = ORACLE_MARK if table.selection.oracle else ""
    columns = {}
    for group in shown:
        column = [cells[name, group] for name in table.algorithms]
        texts = [MISSING if cell is None else _with_doubt(cell.mean, cell.deviation, mark) for cell in column]
        columns[group] = placed(texts, [None if cell is None else cell.mean for cell in column], decimals=2)
    counts = _counted(cell.n for cell in cells.values() if cell)
    return Grid(
        title=table.title,
        caption=f"{table.selection.name}: accuracy in %, mean ± standard deviation of runs"
        f"{DIVISORS[table.se]}, n = {counts}; every domain of a group weighs the same",
        corner="algorithm",
        columns=shown,
        rows=[(name, [columns[group][row] for group in shown]) for row, name in enumerate(table.algorithms)],
        notes=[
            *(
                f"{group}: {', '.join(some) or 'none' if len(some) <= NAMED else f'{len(some)} domains'}."
                for group, some in members
            ),
            *table.notes(),
        ],
        data=[
            {
                **_origin(table, name),
                "group": group,
                "accuracy": cell.mean if cell else None,
                "deviation": cell.deviation if cell else None,
                "n": cell.n if cell else 0,
            }
            for (name, group), cell in cells.items()
        ],
    )


def refuse_overall(table: Table) -> None:
    """Refuses a table whose numbers are over all domains together: none of them is of a group of these."""
    if all(domain == OVERALL for _, domain in table.columns):
        raise ShiftbedError(
            f"In {table.title}, classes have test domains of their own: accuracy is that over all images, not by "
            "groups of domains."
        )


def _refuse_unknown(table: Table, groups: Mapping[str, Sequence[str]]) -> None:
    """A misspelt domain would leave its group without it, and nobody would see that in the mean."""
    tasks = [one.task for cells in table.chosen.values() for trials in cells.values() for one in trials.values()]
    known = dict.fromkeys(split["domain"] for task in tasks for split in task.splits)
    known |= dict.fromkeys(domain for _, domain in table.columns if domain)
    for group, domains in groups.items():
        for name in domains:
            if name not in known:
                hint = did_you_mean(name, list(known))
                raise ShiftbedError(f"{table.dataset} has no domain '{name}', which the group {group} names.{hint}")


def group_estimates(
    table: Table, groups: Mapping[str, Sequence[str]] | None = None
) -> dict[tuple[str, str], Estimate | None]:
    """Per algorithm and group of test domains (of the card's clusters, if none are given) and of all, the accuracy.

    A group that is called as all of them are keeps its own domains.

    Raises:
        ShiftbedError: There are no groups, or accuracy is not told by domain.
    """
    refuse_overall(table)
    groups = dict(groups or card(table.dataset).clusters)
    if not groups:
        raise ShiftbedError(f"The card of {table.dataset} has no clusters of domains; give --groups FILE or near-far.")
    groups.setdefault(EVERY, [domain for _, domain in table.columns])
    return {(name, group): _grouped(table, name, set(groups[group])) for name in table.algorithms for group in groups}


def _grouped(table: Table, algorithm: str, domains: set[str]) -> Estimate | None:
    """The unweighted mean over a group's domains within each trial that has all of them."""
    found = [table.accuracies(algorithm, column) for column in table.columns if column[1] in domains]
    if not found:
        return None
    trials = sorted(set.intersection(*map(set, found)))
    return Estimate.of([statistics.fmean(values[trial] for values in found) for trial in trials], table.se)


def thirds(distances: Mapping[str, float]) -> dict[str, list[str]]:
    """Domains as *near*, *middle* and *far* from the training domains: thirds of their distance.

    Args:
        distances: Per domain its (Fréchet) distance to the training domains.
    """
    ordered = sorted(distances, key=lambda name: (distances[name], name))
    names = ("near", "middle", "far")
    return {name: [str(one) for one in part] for name, part in zip(names, np.array_split(ordered, 3), strict=True)}


def improvements(table: Table) -> list[dict[str, Any]]:
    """Per algorithm and domain, the baseline's accuracy and how much better the algorithm is, for a scatter plot."""
    rows: list[dict[str, Any]] = []
    if BASELINE not in table.chosen:
        return rows
    for name in table.algorithms:
        for column in table.columns:
            one, other = table.accuracies(name, column), table.accuracies(BASELINE, column)
            trials = sorted(set(one) & set(other))
            if name != BASELINE and trials:
                reference = statistics.fmean(other[trial] for trial in trials)
                gain = Estimate.of([one[trial] - other[trial] for trial in trials], table.se)
                assert gain is not None
                where = {"test": column[1], "column": table.heading(column)}
                row = {**_origin(table, name), **where, "baseline": reference, "improvement": gain.mean}
                rows.append({**row, "standard_error": gain.standard_error, "n": gain.n})
    return rows


def variance_grid(source: Table, oracle: Table | None = None, last: int = LAST_RECORDS) -> Grid:
    """NICO++'s variance study: over the last records, over trials, and the gap to selection by the test domains.

    Args:
        source: The table under the selection that is studied.
        oracle: The same jobs selected with the test domains' labels; by default the best record of each chosen job, as
            the paper most likely chose.
        last: How many of a job's last records *epoch* looks at.
    """
    mark = ORACLE_MARK if source.selection.oracle else ""
    rows, data = [], []
    for name in source.algorithms:
        numbers = variances(source, name, oracle, last)
        trials = max((len(found) for found in source.chosen[name].values()), default=0)
        rows.append((name, [Entry(MISSING if value is None else f"{value:.2f}{mark}") for value in numbers.values()]))
        data.append({**_origin(source, name), **numbers, "n": trials})
    return Grid(
        title=source.title,
        caption=f"{source.selection.name}: standard deviations and gap, in points, mean over test domains, "
        f"n = {_counted(row['n'] for row in data)}",
        corner="algorithm",
        columns=["epoch", "seed", f"gap{ORACLE_MARK}"],
        rows=rows,
        notes=[
            f"epoch: over the last {min(last, _records(source))} records of a job; seed: over trials (both with "
            "divisor n − 1); gap: what "
            f"{'the best record' if oracle is None else oracle.selection.name + ' selection'}{ORACLE_MARK}, for which "
            "the test domain's labels are needed, would gain.",
            *([ORACLE_NOTE] if mark else []),
        ],
        data=data,
    )


def variances(
    source: Table, name: str, oracle: Table | None = None, last: int = LAST_RECORDS
) -> dict[str, float | None]:
    """An algorithm's deviations over the last records and over trials, and its gap, in the mean over test domains."""
    epochs, seeds, gaps = [], [], []
    for tested, domain in source.columns:
        trials = source.chosen[name].get(tested, {})
        for one in trials.values():
            positions = np.flatnonzero(one.task.steps[one.choice.row] >= 0)[-last:]
            if len(positions) > 1:
                epochs.append(statistics.stdev(one.accuracy(domain, int(position)) for position in positions))
        values = {trial: one.accuracy(domain) for trial, one in trials.items()}
        if len(values) > 1:
            seeds.append(statistics.stdev(values.values()))
        known = {}
        if oracle is None:
            known = _known(trials, domain)
        elif name in oracle.chosen:
            known = oracle.accuracies(name, (tested, domain))
        gaps += [known[trial] - values[trial] for trial in values if trial in known]
    return {
        label: statistics.fmean(found) if found else None
        for label, found in (("epoch", epochs), ("seed", seeds), ("gap", gaps))
    }


def _records(table: Table) -> int:
    """How many records the chosen jobs have at most."""
    tasks = [one.task for cells in table.chosen.values() for trials in cells.values() for one in trials.values()]
    return max((int((task.steps >= 0).sum(axis=1).max()) for task in tasks), default=0)


def _known(trials: Mapping[int, Chosen], domain: str) -> dict[int, float]:
    """The accuracy on a domain of the record of each job that is best in the mean over what is reported of it."""
    found = {}
    for trial, one in trials.items():
        positions = [int(position) for position in np.flatnonzero(one.task.steps[one.choice.row] >= 0)]
        reported = [name for _, name in reported_columns(one.about)]
        means = [statistics.fmean(one.accuracy(name, at) for name in reported) for at in positions]
        found[trial] = one.accuracy(domain, positions[int(np.argmax(means))])
    return found
