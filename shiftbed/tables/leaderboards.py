"""Leaderboards: averages over datasets, ranks and their changes, and ranking scores by kind of shift."""

import math
import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shiftbed import published
from shiftbed.data import card_if_known
from shiftbed.errors import ShiftbedError
from shiftbed.selection import SELECTIONS, Selection
from shiftbed.tables.cells import AVERAGE
from shiftbed.tables.estimates import (
    DIVISORS,
    TOO_FEW,
    Estimate,
    StandardError,
    ranks,
    spearman,
    spearman_interval,
    usual_count,
)
from shiftbed.tables.grids import MISSING, Entry, Grid, own_key, placed
from shiftbed.tables.table import BASELINE, ORACLE_MARK, ORACLE_NOTE, Table

UNKNOWN = "unknown"
# What rows for machines have.
TAKEN = {"leaderboard", "oracle", "algorithm", "average", "standard_error", "n", "rank", "change_of_rank"}
KINDS = ("diversity", "correlation", UNKNOWN)
Kinds = Mapping[str, str | None]  # per dataset whose shift was measured, the kind that dominates, or None


@dataclass(frozen=True)
class Leaderboard:
    """Algorithms ranked by their mean over datasets.

    Attributes:
        name: What it is called.
        estimates: Per dataset and algorithm the accuracy.
        selections: Per dataset, how models were selected.
        se: The standard error's divisor; None of printed numbers, whose trials are not known either.
    """

    name: str
    estimates: Mapping[str, Mapping[str, Estimate]]
    selections: Mapping[str, Selection | None]
    se: StandardError | None = None

    @classmethod
    def of(cls, tables: Sequence[Table], name: str = "") -> "Leaderboard":
        """The leaderboard of some tables, one for each dataset.

        Raises:
            ShiftbedError: Two tables are about the same dataset.
        """
        estimates: dict[str, dict[str, Estimate]] = {}
        for table in tables:
            if table.dataset in estimates:
                raise ShiftbedError(
                    f"A leaderboard takes one table of {table.dataset}, not those of several selections or recipes; "
                    "name one selection, and keep sweeps by other recipes in folders of their own."
                )
            found = {algorithm: table.estimates[algorithm, AVERAGE] for algorithm in table.algorithms}
            estimates[table.dataset] = {algorithm: one for algorithm, one in found.items() if one is not None}
        rules = {table.dataset: table.selection for table in tables}
        return cls(name, estimates, rules, tables[0].se if tables else None)

    @classmethod
    def published(cls, paper: str, name: str = "", **labels: str) -> "Leaderboard":
        """The leaderboard of a paper's numbers.

        Args:
            paper: A paper or one of its tables, as `published.cells` takes it.
            name: What to call it.
            labels: What else the cells must have, such as `weights="moco-v2"`.

        Raises:
            ShiftbedError: An algorithm has several numbers on a dataset, as under several selections.
        """
        estimates: dict[str, dict[str, Estimate]] = defaultdict(dict)
        rules: dict[str, Selection | None] = {}
        for cell in published.cells(paper, domain="", measure="accuracy", **labels):
            if cell.algorithm and cell.dataset and cell.mean is not None:  # not the means over algorithms
                known = estimates[cell.dataset].get(cell.algorithm)
                if known is not None and known.mean != cell.mean:
                    raise ShiftbedError(
                        f"{paper} has several numbers of {cell.algorithm} on {cell.dataset}; name one of its tables, "
                        'or labels that tell them apart, such as selection="oracle" or weights="imagenet".'
                    )
                if known is None or known.standard_error is None:  # one number is printed again, with its error
                    estimates[cell.dataset][cell.algorithm] = Estimate(cell.mean, cell.spread, 1)
                rules[cell.dataset] = SELECTIONS[cell.selection] if cell.selection else None
        return cls(name or paper, estimates, rules)

    @property
    def has_oracle(self) -> bool:
        """Whether a number of some dataset was chosen with the test domain's labels."""
        return any(rule is not None and rule.oracle for rule in self.selections.values())

    @property
    def oracle_note(self) -> list[str]:
        """What must be said of oracle numbers, if there are any."""
        return [ORACLE_NOTE] if self.has_oracle else []

    @property
    def averages(self) -> dict[str, float]:
        """The mean over datasets of every algorithm that has all of them."""
        every = set.intersection(*(set(found) for found in self.estimates.values())) if self.estimates else set()
        names = [name for found in self.estimates.values() for name in found if name in every]
        means = {name: statistics.fmean(found[name].mean for found in self.estimates.values()) for name in names}
        return {name: round(mean, 9) for name, mean in means.items()}  # equal sums of decimals differ in the last bit

    def average_error(self, algorithm: str) -> float | None:
        """The standard error of an algorithm's mean over datasets, whose errors are independent."""
        errors = [found[algorithm].standard_error for found in self.estimates.values() if algorithm in found]
        known = [error for error in errors if error is not None]
        if algorithm not in self.averages or len(known) < len(errors):
            return None
        return math.sqrt(sum(error**2 for error in known)) / len(known)

    @property
    def ranks(self) -> dict[str, int]:
        """Their ranks, 1 for the best."""
        return ranks(self.averages)

    def agreement(self, other: "Leaderboard") -> tuple[float, tuple[float, float] | None, int] | None:
        """Spearman's correlation with another leaderboard, its 95 % interval, and the number of algorithms."""
        mine, theirs = self.averages, other.averages
        correlation, n = spearman(mine, theirs), len(set(mine) & set(theirs))
        return None if correlation is None else (correlation, spearman_interval(correlation, n), n)

    def grid(self, against: "Leaderboard | None" = None) -> Grid:
        """The leaderboard ready to be printed, best first.

        Args:
            against: Another leaderboard; changes of rank (its rank minus ours) are then shown.
        """
        averages, places = self.averages, self.ranks
        every = {name for found in self.estimates.values() for name in found}
        names = sorted(every, key=lambda name: (places.get(name, len(every)), name.lower()))
        columns = [self._column(dataset, names) for dataset in self.estimates]
        mark = ORACLE_MARK if self.has_oracle else ""
        texts = [_text(averages.get(name), self.average_error(name), mark) for name in names]
        columns.append(placed(texts, [averages.get(name) for name in names]))
        columns.append([Entry(str(places.get(name, MISSING))) for name in names])
        before = _ranks_among(against, averages) if against else {}
        now = _ranks_among(self, before)
        if against:
            columns.append([Entry(_signed(before[n] - now[n] if n in before else None)) for n in names])
        return Grid(
            title=self.name or "All datasets",
            caption=f"{self.rules}: accuracy in %, mean ± standard error{self.trials}",
            corner="algorithm",
            columns=[*self.estimates, "Avg", "rank", *(["ΔR"] if against else [])],
            rows=[(name, [column[row] for column in columns]) for row, name in enumerate(names)],
            notes=self._notes(against),
            data=[
                {
                    "leaderboard": self.name,
                    "oracle": self.has_oracle,
                    "algorithm": name,
                    **{
                        own_key("dataset", dataset, TAKEN): found[name].mean if name in found else None
                        for dataset, found in self.estimates.items()
                    },
                    "average": averages.get(name),
                    "standard_error": self.average_error(name),
                    "n": min((found[name].n for found in self.estimates.values() if name in found), default=0),
                    "rank": places.get(name),
                    "change_of_rank": before[name] - now[name] if name in before else None,
                }
                for name in names
            ],
        )

    @property
    def _counts(self) -> list[int]:
        return [one.n for found in self.estimates.values() for one in found.values()]

    @property
    def rules(self) -> str:
        """How models were selected."""
        return ", ".join(sorted({rule.name for rule in self.selections.values() if rule})) or "as published"

    @property
    def trials(self) -> str:
        """What the standard errors are, and over how many trials; nothing of printed numbers."""
        return "" if self.se is None else f"{DIVISORS[self.se]}, n = {usual_count(self._counts)}"

    def _column(self, dataset: str, names: Sequence[str]) -> list[Entry]:
        rule = self.selections[dataset]
        mark = ORACLE_MARK if rule and rule.oracle else ""
        cells = [self.estimates[dataset].get(name) for name in names]
        usual = usual_count(self._counts)
        texts = [
            MISSING
            if cell is None
            else _text(cell.mean, cell.standard_error, mark) + (f" ({cell.n})" if cell.n != usual else "")
            for cell in cells
        ]
        return placed(texts, [None if cell is None else cell.mean for cell in cells])

    def _notes(self, against: "Leaderboard | None") -> list[str]:
        notes = ["Avg is the mean over datasets; algorithms without all of them are not ranked."]
        if len(set(self._counts)) > 1:
            notes.append(
                f"(n) beside a number: over the n trials that have every domain, not {usual_count(self._counts)}."
            )
        notes += self.oracle_note
        if not against:
            return notes
        over = "" if set(against.estimates) == set(self.estimates) else f" (over {', '.join(against.estimates)})"
        notes.append(
            f"ΔR is the rank in {against.name}{over} minus the rank here, among the algorithms that both rank."
        )
        found = self.agreement(against)
        if found is None:
            return [*notes, f"The rank correlation with {against.name} is not defined."]
        correlation, interval, n = found
        between = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else TOO_FEW
        said = f"{correlation:.3f}, {between}, n = {n} algorithms"
        return [*notes, f"Spearman's correlation with {against.name}: {said}."]


def _text(mean: float | None, error: float | None, mark: str = "") -> str:
    if mean is None:
        return MISSING
    return f"{mean:.1f}{mark}" + ("" if error is None else f" ±{error:.1f}")


def _ranks_among(board: Leaderboard, names: Mapping[str, float] | Mapping[str, int]) -> dict[str, int]:
    return ranks({name: value for name, value in board.averages.items() if name in names})


def leaderboards(tables: Sequence[Table]) -> list[Leaderboard]:
    """The leaderboards of a sweep: one for each selection and recipe with tables of several datasets.

    A table without a number, as where all jobs diverged, ranks nobody and is left out.
    """
    groups: dict[tuple[str, str, str], list[Table]] = defaultdict(list)
    for table in (one for one in tables if not (one.is_reference or one.is_empty)):
        groups[table.selection.name, table.about["recipe"]["name"], table.by_hand].append(table)
    found = []
    for (_, recipe, by_hand), members in groups.items():
        datasets = {table.dataset for table in members}
        if 1 < len(datasets) == len(members):
            found.append(Leaderboard.of(members, f"All datasets, recipe {recipe}{by_hand}"))
    return found


def ranking_score(ours: Mapping[str, float], baseline: Mapping[str, tuple[float, float]]) -> int | None:
    """OoD-Bench's score: datasets where an algorithm is above ERM's mean ± standard error, minus those below.

    Args:
        ours: Per dataset the algorithm's mean accuracy.
        baseline: Per dataset ERM's mean and standard error; the ends of the interval count as inside.

    Returns:
        The score, or None where the algorithm lacks a dataset.
    """
    if not set(baseline) <= set(ours):
        return None
    margin = 1e-9  # printed numbers are decimal fractions: 81.5 + 0.1 must not be below 81.6
    above = sum(ours[dataset] > mean + error + margin for dataset, (mean, error) in baseline.items())
    below = sum(ours[dataset] < mean - error - margin for dataset, (mean, error) in baseline.items())
    return above - below


def shift_kind(dataset: str) -> str:
    """The kind of shift that dominates a dataset, from its card; else unknown."""
    known = card_if_known(dataset)
    return (known and known.shift) or UNKNOWN


def ranking_grid(board: Leaderboard, kinds: Kinds | None = None, folder: str = "DIR") -> Grid:
    """OoD-Bench's ranking scores, the kinds of shift side by side.

    Args:
        board: A leaderboard with ERM in it.
        kinds: What was measured; where it does not say the kind of a dataset's shift, the card does.
        folder: Where the sweep is, for commands.

    Raises:
        ShiftbedError: ERM has no standard error on some dataset.
    """
    measured = kinds or {}
    by_kind: dict[str, dict[str, tuple[float, float]]] = {kind: {} for kind in KINDS}
    for dataset, found in board.estimates.items():
        reference = found.get(BASELINE)
        if reference is None or reference.standard_error is None:
            raise ShiftbedError(f"A ranking score needs {BASELINE} on {dataset} with at least two trials; run them.")
        kind = measured.get(dataset) or shift_kind(dataset)
        by_kind[kind][dataset] = (reference.mean, reference.standard_error)
    shown = [kind for kind in KINDS if by_kind[kind]]
    names = list(dict.fromkeys(name for found in board.estimates.values() for name in found))
    means = {
        name: {dataset: found[name].mean for dataset, found in board.estimates.items() if name in found}
        for name in names
    }
    scores = {name: {kind: ranking_score(means[name], by_kind[kind]) for kind in shown} for name in names}
    names.sort(key=lambda name: ([-(score if score is not None else -99) for score in scores[name].values()], name))
    mark = ORACLE_MARK if board.has_oracle else ""
    return Grid(
        title=board.name or "All datasets",
        caption=f"{board.rules}: ranking score, datasets above {BASELINE}'s mean ± standard error{board.trials}, "
        "minus those below",
        corner="algorithm",
        columns=[f"{kind} ({len(by_kind[kind])})" for kind in shown],
        rows=[(name, [Entry(_signed(scores[name][kind], mark)) for kind in shown]) for name in names],
        notes=[
            *(f"{kind}: {', '.join(_by_what(name, kind, measured) for name in by_kind[kind])}." for kind in shown),
            *board.oracle_note,
        ],
        commands=[
            (
                f"To measure what kind of shift {name} has:",
                shlex.join(["shiftbed", "shift", name, f"--out={folder}/shift"]),
            )
            for name in by_kind[UNKNOWN]
            if name not in measured
        ],
        data=[
            {"leaderboard": board.name, "oracle": board.has_oracle, "algorithm": name, **scores[name]} for name in names
        ],
    )


def _by_what(dataset: str, kind: str, measured: Kinds) -> str:
    """A dataset with what says its kind of shift: its card, unless it was measured and one kind dominates."""
    if dataset not in measured:
        return dataset
    if measured[dataset]:
        return f"{dataset} (measured)"
    return f"{dataset} ({'measured' if kind == UNKNOWN else 'by its card; measured'}, neither kind dominates)"


def _signed(score: int | None, mark: str = "") -> str:
    return MISSING if score is None else f"{score:+d}{mark}" if score else f"0{mark}"
