"""A table: results by algorithm and test domain under one selection, with what they rest on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from shiftbed.errors import plural
from shiftbed.protocols import Fixed, Flexible, TargetTrained
from shiftbed.selection import Cadence, Selection, Variant, own_rule
from shiftbed.selection import Column as RecordColumn
from shiftbed.selection.evidence import is_own
from shiftbed.sweeps.designs import REDRAW, Design
from shiftbed.tables.cells import AVERAGE, OVERALL, Chosen, Column, Tested
from shiftbed.tables.estimates import (
    DIVISORS,
    Comparison,
    Estimate,
    StandardError,
    paired_permutation_test,
    usual_count,
)
from shiftbed.tables.grids import MISSING, Grid, placed
from shiftbed.tables.missing import MissingJob, named_jobs, sweep_command, was_imported
from shiftbed.tables.rows import as_rows

ORACLE_MARK = "†"
ORACLE_NOTE = f"{ORACLE_MARK} Oracle: chosen with the test domain's labels."
LEAK_MARK = "‡"
BASELINE = "ERM"
FEW = 8  # algorithms that are compared with the baseline one by one
CHANCE = 0.05
NONE_COMPETES = "no finished job competes"


@dataclass(frozen=True)
class Table:
    """One setting (dataset, recipe, hyperparameters set by hand) under one selection.

    Attributes:
        about: The description of one of its jobs: dataset, version, recipe and what else all of them share.
        columns: The test domains, each with those it is tested together with.
        chosen: Per algorithm, tested domains and trial, what the selection picked.
        names: Per row the registry name of its algorithm.
        sizes: The same, from how many draws; one that lacks a job which the selection needs beside it is none of them.
        design: How hyperparameters were searched.
        cadences: When its jobs were evaluated.
        beside: The same of the jobs that the selection reads beside them, where these are others.
        missing: The jobs that were planned and have not finished.
        sources: What the command needs for these where classes have changed since, in words.
        needed: Other jobs that the selection needs: those that test two domains, or winners trained again.
        lacking: The columns that the selection reads and no job of the setting has.
        unrecorded: How many jobs do not have what it reads, where others do: lean ones that were for other selections.
        se: The standard error's divisor.
        folder: Where the sweep is.
        unaveraged: The rows that have no average although they could; see `whole_trials`.
        uncounted: Per row the trials that are left out of cells, see there.
        apart: Fields of recipe and task that tell it from other tables which would have the same title.
    """

    about: dict[str, Any]
    selection: Selection
    columns: tuple[Column, ...]
    chosen: dict[str, dict[Tested, dict[int, Chosen]]]
    names: dict[str, str]
    sizes: dict[str, dict[Tested, dict[int, int]]]
    design: Design
    cadences: tuple[Cadence, ...]
    beside: tuple[Cadence, ...] = ()
    missing: tuple[MissingJob, ...] = ()
    sources: str = ""
    needed: tuple[MissingJob, ...] = ()
    lacking: tuple[RecordColumn, ...] = ()
    unrecorded: int = 0
    se: StandardError = "sample"
    folder: str = "DIR"
    unaveraged: frozenset[str] = frozenset()
    uncounted: Mapping[str, frozenset[int]] = field(default_factory=dict)
    apart: Mapping[str, Any] = field(default_factory=dict)

    def whole_trials(self) -> "Table":
        """The same with the trials that lack no job, nor one beside them; a mean with half a trial means nothing.

        A cell without one keeps those that were begun: that it was chosen from fewer draws than others can be said
        beside it. An average is cited without that, so that its row has none. Where only the first trial searches, the
        others are as whole as it is.
        """
        chosen: dict[str, dict[Tested, dict[int, Chosen]]] = {name: {} for name in self.chosen}
        uncounted: dict[str, frozenset[int]] = {}
        unaveraged: set[str] = set()
        for name, cells in self.chosen.items():
            own = self.names[name], self.by_hand_of(name)
            lacking = [job for job in (*self.missing, *self.needed) if (job.algorithm, job.by_hand) == own]
            for tested, trials in cells.items():
                halves = {job.trial for job in lacking if set(tested) <= set(job.tested)}
                halves = set(trials) if self.design.two_stages and 0 in halves else halves & set(trials)
                whole = {trial: one for trial, one in trials.items() if trial not in halves}
                chosen[name][tested] = whole or trials
                if halves and whole:
                    uncounted[name] = uncounted.get(name, frozenset()) | halves
                elif halves:
                    unaveraged.add(name)
        return replace(self, chosen=chosen, uncounted=uncounted, unaveraged=frozenset(unaveraged))

    @cached_property
    def draws(self) -> dict[str, tuple[int, int]]:
        """Per row the fewest and the most draws that a cell was chosen from; where none was, that competed for one."""
        found: dict[str, tuple[int, int]] = {}
        for name, cells in self.sizes.items():
            each = [
                (trial in self.chosen[name].get(tested, {}), size)
                for tested, trials in cells.items()
                for trial, size in trials.items()
            ]
            sizes = [size for is_chosen, size in each if is_chosen] or [size for _, size in each]
            found[name] = min(sizes), max(sizes)
        return found

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.about["dataset"]

    @property
    def title(self) -> str:
        """Dataset, recipe, what was set by hand, and who was trained on where the columns do not tell."""
        recipe = self.about["recipe"]
        steps = "1 step" if recipe["steps"] == 1 else f"{recipe['steps']} steps"
        how = f"recipe {recipe['name']}, {steps}{self.by_hand}{self.told_apart}"
        return f"{self.dataset} (version {self.about['version']}), {how}{self._trained_on}"

    @property
    def by_hand(self) -> str:
        """Hyperparameters that were set by hand, and how much of the test domains was seen unlabelled."""
        values = "".join(f", {name} = {value}" for name, value in self.about["overrides"].items())
        adapted = self.about["task"].get("adapt")
        return values + (f", adaptation: {adapted:g} of the test domains seen unlabelled" if adapted else "")

    @property
    def told_apart(self) -> str:
        """What tells it from other tables of the same title, if there are any."""
        return "".join(f", {name} = {'none' if value is None else value}" for name, value in self.apart.items())

    @property
    def is_reference(self) -> bool:
        """Whether its models are NICO++'s references, which were trained on the test domains."""
        return self.about["task"]["kind"] == TargetTrained.kind

    @property
    def _trained_on(self) -> str:
        task = self.about["task"]
        if self.is_reference:
            return f", target-trained{' per domain' if len(task['domains']) == 1 else ''}: a reference, not a result"
        if task["kind"] == Flexible.kind:
            return f", flexible-{'compositional' if task['compositional'] else 'random'}"
        if task["kind"] == Fixed.kind:
            return f", trained on {', '.join(task['train'])}"
        return ""

    @property
    def algorithms(self) -> list[str]:
        """ERM first, the others by name."""
        return sorted(self.chosen, key=lambda name: (name.split(" ")[0] != BASELINE, name.lower()))

    @property
    def is_empty(self) -> bool:
        """Whether the selection picked nothing at all."""
        return not any(trials for cells in self.chosen.values() for trials in cells.values())

    @cached_property
    def leaks(self) -> dict[str, bool]:
        """Per row, whether the selection knows what its algorithm does without."""
        return {label: self.selection.leaks(name) for label, name in self.names.items()}

    @property
    def not_recorded(self) -> list[str]:
        """The columns it lacks that belong to its own jobs, and not to others beside them."""
        return [str(column) for column in self.lacking if is_own(column)]

    def shares(self, algorithm: str, column: Column) -> dict[int, float]:
        """The share of right predictions of each trial; `AVERAGE` averages domains in each trial that has them all."""
        cells = self.chosen[algorithm]
        if column != AVERAGE:
            tested, domain = column
            return {trial: one.share(domain) for trial, one in sorted(cells.get(tested, {}).items())}
        if algorithm in self.unaveraged:
            return {}
        each = [self.shares(algorithm, column) for column in self.columns]
        trials = sorted(set.intersection(*map(set, each)))
        return {trial: float(np.mean([values[trial] for values in each])) for trial in trials}

    def accuracies(self, algorithm: str, column: Column) -> dict[int, float]:
        """The same in percent."""
        return {trial: 100 * share for trial, share in self.shares(algorithm, column).items()}

    def estimate(self, algorithm: str, column: Column) -> Estimate | None:
        """A cell, in percent.

        Shares are averaged before they become percents, as DomainBed does: what lies between two printed digits, as
        the mean of two trials often does, is then rounded as in its tables.
        """
        found = Estimate.of(list(self.shares(algorithm, column).values()), self.se)
        return None if found is None else found.times(100)

    @cached_property
    def estimates(self) -> dict[tuple[str, Column], Estimate | None]:
        """All cells."""
        columns = (*self.columns, AVERAGE)
        return {(name, column): self.estimate(name, column) for name in self.algorithms for column in columns}

    def pairs(self, algorithm: str, baseline: str, other: "Table | None" = None) -> tuple[list[float], list[float]]:
        """The accuracies of the models of two algorithms that both have, in the mean over what each is tested on.

        The domains that one model is tested on together are one pair: they share its seed, and vary with it. The second
        algorithm's are of another table, if there is one.
        """
        ours, theirs = [], []
        for tested in dict.fromkeys(tested for tested, _ in self.columns):
            columns = [column for column in self.columns if column[0] == tested]
            one, two = self._means(algorithm, columns), (other or self)._means(baseline, columns)
            for trial in sorted(set(one) & set(two)):
                ours.append(one[trial])
                theirs.append(two[trial])
        return ours, theirs

    def _means(self, algorithm: str, columns: Sequence[Column]) -> dict[int, float]:
        """The mean over some columns of each trial that has them all, in percent."""
        each = [self.accuracies(algorithm, column) for column in columns]
        return {
            trial: float(np.mean([values[trial] for values in each])) for trial in set.intersection(*map(set, each))
        }

    def comparison(self, algorithm: str) -> Comparison | None:
        """A paired permutation test against the baseline over the models that both have."""
        if BASELINE not in self.chosen or algorithm == BASELINE:
            return None
        return paired_permutation_test(*self.pairs(algorithm, BASELINE))

    def heading(self, column: Column) -> str:
        """A column's name: its domain, with its companions where it is tested in several companies."""
        tested, domain = column
        if column == AVERAGE:
            return "Avg"
        if domain == OVERALL:
            return "overall"
        several = sum(other == domain for _, other in self.columns) > 1
        return f"{domain} (with {', '.join(name for name in tested if name != domain)})" if several else domain

    def why_empty(self, algorithm: str, column: Column) -> str:
        """Why a cell has no number; the empty text if it has one."""
        if self.estimates[algorithm, column] is not None:
            return ""
        if self.not_recorded:
            return f"not recorded: {', '.join(self.not_recorded)}"
        own = [job for job in self.missing if job.algorithm == self.names[algorithm]]
        if column != AVERAGE:
            own = [job for job in own if job.tested == column[0]]
        if own:
            return f"not finished: {named_jobs(own)}"
        needed = [job for job in self.needed if job.algorithm == self.names[algorithm]]
        if column != AVERAGE:
            needed = [job for job in needed if set(column[0]) <= set(job.tested)]
        if needed:
            return f"not run: {named_jobs(needed)}"
        if column == AVERAGE:
            return "no trial has every domain"
        return NONE_COMPETES if column[0] in self.sizes.get(algorithm, {}) else "never planned"

    def notes(self) -> list[str]:
        """What a reader must know before comparing rows."""
        mark = f"{ORACLE_NOTE} " if self.selection.oracle else ""
        notes = [f"{mark}{self.selection.summary}"]
        if self.unaveraged:
            notes.append(f"Jobs are missing of {', '.join(sorted(self.unaveraged))}: no average.")
        if self.uncounted:
            each = [
                f"{name} (trial {', '.join(map(str, sorted(some)))})" for name, some in sorted(self.uncounted.items())
            ]
            notes.append(f"Not counted, since jobs of them are missing: {', '.join(each)}.")
        elsewhere = self.selection.needs_other_datasets
        if self.not_recorded:
            notes.append(
                f"No number: the selection reads {', '.join(self.not_recorded)}, which these jobs do not have."
            )
        elif self.unrecorded:
            notes.append(left_out(self.unrecorded, "the selection"))
        elif self.is_empty and not (self.missing or self.needed or elsewhere):
            notes.append(f"No number: {NONE_COMPETES}; those that diverged do not.")
        without = [name for name in self.algorithms if NONE_COMPETES in {self.why_empty(name, c) for c in self.columns}]
        if without and not (self.is_empty or elsewhere):
            where = "" if len(without) == len(self.algorithms) else f" of {', '.join(without)}"
            notes.append(f"No number{where} where {NONE_COMPETES}; those that diverged do not.")
        if self.design.name != REDRAW:
            notes.append(f"Search design {self.design.name}: {self.design.summary}")
        if elsewhere and (without or self.is_empty):
            notes.append("The selection needs the same draws on another dataset, in the same folder.")
        notes += self._fairness()
        notes += [f"{words}: {again}." for words, again, command in self.unfinished() if command is None]
        if any(self.leaks.values()):
            labels = " and ".join(self.selection.needs)
            notes.append(f"{LEAK_MARK} Leaks: the selection uses {labels}, without which these learn.")
        incomplete = [name for name in self.algorithms if own_rule(self.names[name]) is None]
        if incomplete:
            complete = [name for name in self.algorithms if name not in incomplete]
            others = f"all rows but {', '.join(complete)}" if complete else "all rows"
            who = ", ".join(incomplete) if len(incomplete) <= len(complete) else others
            notes.append(f"Registered without a selection of their own, which DomainBed asks for: {who}.")
        return [*notes, *self._comparisons()]

    def _comparisons(self) -> Iterable[str]:
        """How the algorithms compare with the baseline; where they are many, in few words each, the best first."""
        found = {name: one for name in self.algorithms if (one := self.comparison(name))}
        together = any(len(tested) > 1 for tested, _ in self.columns)
        test = f"permutation test of pairs of trial and {'domains tested together' if together else 'domain'}"
        each = [f"{name} {one}" for name, one in found.items()]
        if len(found) > FEW:
            usual = usual_count(one.n for one in found.values())
            test += f"; n = {usual} unless said, p where it is below {CHANCE}"
            ordered = sorted(found.items(), key=lambda item: -item[1].difference)
            each = [f"{name} {one.in_short(usual, CHANCE)}" for name, one in ordered]
        if found:
            yield f"Against {BASELINE}, in points ({test}): {', '.join(each)}."

    def _fairness(self) -> Iterable[str]:
        chosen = {name: counts for name, counts in self.draws.items() if any(counts)}  # of the others nothing is shown
        if len(set(chosen.values())) > 1 or any(low != high for low, high in chosen.values()):
            each = ", ".join(
                f"{name} {low}" + (f" to {high}" if low != high else "") for name, (low, high) in chosen.items()
            )
            yield f"Not yet fair: the cells were chosen from unequal numbers of draws ({each})."
        own, others = (" or ".join(map(str, some)) for some in (self.cadences, self.beside))
        if len(self.cadences) > 1:
            yield f"Not quite fair: jobs were evaluated {own}, so some had more chances."
        if self.beside:
            yield (
                f"Jobs were evaluated {own}, those that the selection reads beside them {others}: only steps that both "
                "have can be chosen."
            )

    def unfinished(self) -> list[tuple[str, str, str | None]]:
        """What is missing, in words, with what to do about it, and the command that runs it where it is known."""
        found = []
        again = "run the same command again"
        asking = f"{again} with --selection {self.selection.name}"  # nobody has asked for them yet
        for jobs, what, do in ((self.missing, "planned", f"{again}{self.sources}"), (self.needed, "needed", asking)):
            if jobs:
                count = f"1 {what} job has" if len(jobs) == 1 else f"{len(jobs)} {what} jobs have"
                words = f"{count} not finished ({named_jobs(jobs)})"
                do = "run them there and import again" if was_imported(self.about) else do
                command = sweep_command(self.about, jobs, self.folder, self.design, self.selection.name)
                found.append((words, do, None if self.sources and jobs is self.missing else command))
        return found

    def grid(self) -> Grid:
        """The table ready to be printed."""
        columns = [*self.columns, AVERAGE]
        counts = [estimate.n for estimate in self.estimates.values() if estimate]
        usual = usual_count(counts)
        entries = {}
        for column in columns:
            cells = [self.estimates[name, column] for name in self.algorithms]
            texts = [self._cell_text(cell, usual) for cell in cells]
            entries[column] = placed(texts, [None if cell is None else cell.mean for cell in cells])
        spread = f"{self.design.spread}{DIVISORS[self.se]}"
        unequal = f"(n) beside a number: over n trials, not {usual}. Avg is over the trials that have every domain."
        return Grid(
            title=self.title,
            caption=f"{self.selection.name}: accuracy in %, mean ± {spread}, n = {usual}",
            corner="algorithm",
            columns=[self.heading(column) for column in columns],
            rows=[(self.row_name(name), [entries[c][i] for c in columns]) for i, name in enumerate(self.algorithms)],
            notes=[*([unequal] if len(set(counts)) > 1 else []), *self.notes()],
            commands=[(f"{words}; to run them:", command) for words, _, command in self.unfinished() if command],
            data=as_rows([self]),
        )

    def row_name(self, algorithm: str) -> str:
        """The row's name, marked where the selection leaks to its algorithm."""
        return f"{algorithm} {LEAK_MARK}" if self.leaks[algorithm] else algorithm

    def by_hand_of(self, algorithm: str) -> str:
        """What of a row's algorithm was set by hand, as JSON."""
        one = next((one for cells in self.chosen[algorithm].values() for one in cells.values()), None)
        return "" if one is None else Variant.of(one.about).by_hand

    def _cell_text(self, estimate: Estimate | None, usual: int) -> str:
        if estimate is None:
            return MISSING
        mark = ORACLE_MARK if self.selection.oracle else ""
        doubt = estimate.deviation if self.design.spread == "standard deviation" else estimate.standard_error
        error = "" if doubt is None else f" ±{doubt:.1f}"
        count = "" if estimate.n == usual else f" ({estimate.n})"
        return f"{estimate.mean:.1f}{mark}{error}{count}"


def left_out(unrecorded: int, reader: str) -> str:
    """That so many jobs do not compete, since their lean records are for others than a reader of them."""
    return (
        f"Without what {reader} reads, and left out: {plural(unrecorded, 'job')} with lean records for other "
        "selections; a sweep into another folder records it."
    )
