"""Making tables: from finished jobs and the plan to one table for each setting and selection."""

import json
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from shiftbed.data import card_if_known
from shiftbed.hashing import canonical
from shiftbed.registry import listed, one_of
from shiftbed.selection import (
    SELECTIONS,
    Cadence,
    Choice,
    Column,
    Companions,
    JobRecords,
    Selection,
    TaskRecords,
    Variant,
    tasks_of,
)
from shiftbed.sweeps.blind import refuse_sealed
from shiftbed.sweeps.designs import DESIGNS, REDRAW
from shiftbed.sweeps.plan import planned, planned_designs, with_sources
from shiftbed.sweeps.records import Records, that_test
from shiftbed.tables.cells import Chosen, Tested, reported_columns
from shiftbed.tables.estimates import StandardError
from shiftbed.tables.grids import Grid, grid_text, render_grids, rows_csv
from shiftbed.tables.missing import MissingJob
from shiftbed.tables.rows import as_rows
from shiftbed.tables.table import Table
from shiftbed.training.store import LocalStore

USUAL = ("training-domain-validation", "domain-cross-validation", "ood-validation", "oracle")
ALL = "all"


def read_tables(
    folder: str | Path,
    selections: Sequence[str] = (),
    se: StandardError = "sample",
    *,
    draws: int | None = None,
    trials: int | None = None,
) -> list[Table]:
    """The tables of a sweep's folder, from its finished jobs.

    Args:
        folder: The sweep's folder.
        selections: Names of selection rules, or "all"; by default the usual ones, where the jobs have what they read.
        se: The standard error: "sample" (divisor n − 1), or "population" as in DomainBed's printed tables.
        draws: Only the first so many draws of each trial, as if no others had been asked for.
        trials: Only the first so many trials, likewise.

    Raises:
        StoreError: No job that tests a domain is finished there, or the sweep is sealed.
    """
    refuse_sealed(folder)
    one_of(se, get_args(StandardError), "standard error")
    asked = [name for one in listed(selections) for name in (list(SELECTIONS) if one == ALL else [one])]
    rules = [SELECTIONS[name] for name in dict.fromkeys(asked or USUAL)]
    store = LocalStore(Path(folder))
    metrics = _metrics(rules)
    with Records(store, metrics) as records:
        found = that_test(records.tasks(metrics), folder)
    tasks, plan = first_of(found, list(planned(store).values()), draws, trials)
    tables = tables_of(tasks, rules, plan, se, str(folder))
    allowed = [table for table in tables if not (table.is_empty and table.lacking)]
    return tables if asked else allowed or tables


def first_of(
    tasks: Sequence[TaskRecords], plan: Sequence[dict[str, Any]], draws: int | None, trials: int | None
) -> tuple[Sequence[TaskRecords], Sequence[dict[str, Any]]]:
    """Finished jobs and a plan, of which only the first draws and trials are kept; None keeps all."""
    if draws is None and trials is None:
        return tasks, plan

    def is_kept(about: dict[str, Any]) -> bool:
        return (draws is None or about["draw"] < draws) and (trials is None or about["trial"] < trials)

    kept = [some for task in tasks if (some := task.that(is_kept)) is not None]
    return kept, list(filter(is_kept, plan))


def make_tables(
    jobs: Iterable[JobRecords],
    selections: Sequence[Selection],
    plan: Iterable[dict[str, Any]] = (),
    se: StandardError = "sample",
    folder: str = "DIR",
) -> list[Table]:
    """All tables of some finished jobs: one for each setting and selection.

    Args:
        jobs: The finished jobs.
        selections: The rules.
        plan: What was asked for: a domain or an algorithm with no finished job is then shown as missing.
        se: The standard error.
        folder: Where the sweep is, for commands.
    """
    return tables_of(tasks_of(jobs, _metrics(selections)), selections, plan, se, folder)


def _metrics(selections: Sequence[Selection]) -> list[str]:
    """What is read to choose, and to report."""
    return sorted({"accuracy", "count"}.union(*(selection.metrics for selection in selections)))


def tables_of(
    tasks: Sequence[TaskRecords],
    selections: Sequence[Selection],
    plan: Iterable[dict[str, Any]] = (),
    se: StandardError = "sample",
    folder: str = "DIR",
) -> list[Table]:
    """The same from records that are columns already.

    Tasks that test two domains have no table of their own where their domains are also tested alone: they are there
    for domain cross-validation.
    """
    companions = Companions(tasks)
    settings: dict[str, list[TaskRecords]] = defaultdict(list)
    for task in tasks:
        if not companions.is_pair_of_singles(task):
            settings[task.abouts[0]["setting"]].append(task)
    asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in plan:
        asked[row["setting"]].append(row)

    def order(setting: str) -> tuple[str, ...]:
        about = settings[setting][0].abouts[0]
        return about["dataset"], str(about["version"]), about["recipe"]["name"], setting

    return _told_apart(
        [
            table
            for setting in sorted(settings, key=order)
            for table in Setting(settings[setting], asked[setting], companions, se, folder).tables(selections)
        ]
    )


def _told_apart(tables: Sequence[Table]) -> list[Table]:
    """Tables of one title and selection with what they differ in: they may be of several networks or precisions."""
    alike: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for table in tables:
        alike[table.title, table.selection.name].append(_facts(table.about))
    apart = [_differing(_facts(table.about), alike[table.title, table.selection.name]) for table in tables]
    return [replace(table, apart=own) for table, own in zip(tables, apart, strict=True)]


def _facts(about: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recipe and of a kind of task that make another setting, but for those that titles say."""
    said = ("name", "steps", "summary", *Cadence._fields, "paper", "kind", "test", "domains", "adapt")
    return {name: value for name, value in {**about["recipe"], **about["task"]}.items() if name not in said}


def _differing(own: dict[str, Any], every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts in which some are not the same."""
    return {name: value for name, value in own.items() if len({canonical(facts.get(name)) for facts in every}) > 1}


class Setting:
    """The tasks that stand in one table, whatever the selection.

    Args:
        tasks: Their finished jobs.
        asked: The setting's part of the plan.
        companions: All tasks of the sweep.
        se: The standard error.
        folder: Where the sweep is, for commands.
    """

    def __init__(
        self,
        tasks: Sequence[TaskRecords],
        asked: Sequence[dict[str, Any]],
        companions: Companions,
        se: StandardError,
        folder: str,
    ) -> None:
        self.tasks, self.companions, self.se, self.folder = tasks, companions, se, folder
        self.about = tasks[0].abouts[0]
        self.variants = _labels({cell.variant for task in tasks for cell in task.cells})
        finished = {about["id"] for task in tasks for about in task.abouts}
        unfinished = [row for row in asked if row["id"] not in finished]
        self.missing = [_missing(row) for row in unfinished]
        self.sources = with_sources(unfinished, asked)
        known = {variant.algorithm for variant in self.variants}
        self.names = {label: variant.algorithm for variant, label in self.variants.items()}
        self.names |= {row["algorithm"]: row["algorithm"] for row in unfinished if row["algorithm"] not in known}
        columns = {column for task in tasks for column in reported_columns(task.abouts[0])}
        columns |= {column for row in unfinished for column in reported_columns({**self.about, **row})}
        order = {domain: place for place, domain in enumerate(_domains(tasks))}

        def place(domain: str) -> int:
            return order.get(domain, -1)

        self.columns = sorted(columns, key=lambda column: (place(column[1]), [place(name) for name in column[0]]))
        self.design = DESIGNS[planned_designs(asked).get(self.about["setting"], REDRAW)]
        self.cadences = [
            {cell: {Cadence.of(about) for about in task.abouts[rows]} for cell, rows in task.cells.items()}
            for task in tasks
        ]

    def tables(self, selections: Sequence[Selection]) -> list[Table]:
        """The table of each selection."""
        return [self.table(selection) for selection in selections]

    def table(self, selection: Selection) -> Table:
        """The table of one selection."""
        chosen: dict[str, dict[Tested, dict[int, Chosen]]] = {label: {} for label in sorted(self.names)}
        needed: set[MissingJob] = set()
        for every in self.tasks:
            winners = self._winners(every, selection) if self.design.two_stages else {}
            task = _repeated(every, winners) if self.design.two_stages else every
            if task is None:
                continue
            for cell, choice in selection.choices(task, self.companions).items():
                one = Chosen(task, choice)
                if one.is_reported:
                    chosen[self.variants[cell.variant]].setdefault(task.tested, {})[cell.trial] = one
            needed |= set(_missing_pairs(task, self.companions)) if selection.needs_pairs else set()
            needed |= set(self._not_repeated(task, winners))
        is_empty = not any(chosen.values())
        unrecorded: set[str] = set()
        if not is_empty:
            unrecorded = unrecorded.union(*(selection.unrecorded(task, self.companions) for task in self.tasks))
        recorded = [task for task in self.tasks if task.steps.size]  # the others diverged before they were evaluated
        cadences = () if selection.at_end else self._cadences(chosen)
        lacks = [{*selection.lacking(task, self.companions), *_unreported(task)} for task in recorded if is_empty]
        return Table(
            about=self.about,
            selection=selection,
            columns=tuple(self.columns),
            chosen=chosen,
            names=self.names,
            sizes=self._sizes(needed, unrecorded),
            design=self.design,
            cadences=cadences,
            beside=self._beside(cadences) if selection.needs_pairs else (),
            missing=tuple(sorted(self.missing)),
            sources=self.sources,
            needed=tuple(sorted(needed)),
            lacking=tuple(sorted(set.intersection(*lacks), key=str)) if lacks else (),
            unrecorded=len(unrecorded),
            se=self.se,
            folder=self.folder,
        )

    def _cadences(self, chosen: Mapping[str, Mapping[Tested, Mapping[int, Chosen]]]) -> tuple[Cadence, ...]:
        """When the jobs were evaluated among which cells were chosen; without any, when all jobs were."""
        found = [
            (trial in chosen[self.variants[variant]].get(task.tested, {}), some)
            for task, cells in zip(self.tasks, self.cadences, strict=True)
            for (variant, trial), some in cells.items()
        ]
        kept = [some for is_chosen, some in found if is_chosen] or [some for _, some in found]
        return tuple(sorted(set.union(*kept)))

    def _beside(self, cadences: tuple[Cadence, ...]) -> tuple[Cadence, ...]:
        """When the jobs that test one more domain were evaluated, unless as those that cells were chosen among."""
        pairs = (pair for task in self.tasks for pair in self.companions.pairs(task).values() if pair is not None)
        found = sorted({Cadence.of(about) for pair in pairs for about in pair.abouts})
        return () if tuple(found) == cadences else tuple(found)

    def _sizes(
        self, needed: Iterable[MissingJob], unrecorded: Container[str]
    ) -> dict[str, dict[Tested, dict[int, int]]]:
        """From how many draws each cell is chosen: those that lack no other job, and have what is read."""
        sizes: dict[str, dict[Tested, dict[int, int]]] = {}
        for task in self.tasks:
            waiting = {job[:1] + job[2:] for job in needed if set(task.tested) <= set(job.tested)}
            for cell, rows in task.cells.items():
                if cell.trial == 0 or not self.design.two_stages:  # where the others repeat the first trial's choice
                    asks = [
                        (cell.variant.algorithm, cell.trial, draw, cell.variant.by_hand) for _, draw in task.keys[rows]
                    ]
                    own = sizes.setdefault(self.variants[cell.variant], {}).setdefault(task.tested, {})
                    both = zip(asks, task.abouts[rows], strict=True)
                    own[cell.trial] = sum(ask not in waiting and about["id"] not in unrecorded for ask, about in both)
        return dict(sorted(sizes.items()))

    def _winners(self, task: TaskRecords, selection: Selection) -> dict[Variant, Choice]:
        """What a rule chooses in the first trial, the one that searches."""
        chosen = selection.choices(task, self.companions)
        return {cell.variant: choice for cell, choice in chosen.items() if cell.trial == 0}

    def _not_repeated(self, task: TaskRecords, winners: Mapping[Variant, Choice]) -> Iterable[MissingJob]:
        """The winners that were not trained in a trial that other jobs of the setting have."""
        trials = {about["trial"] for one in self.tasks for about in one.abouts} - {0}
        for variant, winner in winners.items():
            for trial in trials - {cell.trial for cell in task.cells if cell.variant == variant}:
                yield MissingJob(variant.algorithm, task.tested, trial, winner.draw, variant.by_hand)


def _unreported(task: TaskRecords) -> Iterable[Column]:
    """The columns of results that no job of a task has."""
    for place in task.reported():
        if np.isnan(task.values["accuracy"][:, :, place]).all():
            yield Column("test", task.splits[place]["part"], "accuracy")


def _repeated(task: TaskRecords, winners: Mapping[Variant, Choice]) -> TaskRecords | None:
    """A task whose other trials have the winners of the first one alone; None where no job is left.

    In a search of two stages those of several rules, or of an earlier and smaller search, may have been trained
    again. They must not compete: the one of an oracle would win in a row that no oracle chose.
    """
    rows = []
    for row, (cell, draw) in enumerate(task.keys):
        winner = winners.get(cell.variant)
        same = winner is not None and (winner.draw, winner.hparams) == (draw, task.abouts[row]["hparams"])
        rows += [row] if cell.trial == 0 or same else []
    return task.only(rows) if rows else None


def _domains(tasks: Sequence[TaskRecords]) -> list[str]:
    """The domains in the dataset's order: that of its card, or of the splits where it has none here."""
    known = card_if_known(tasks[0].abouts[0]["dataset"])
    split_up = (split["domain"] for task in tasks for split in task.splits)
    return list(dict.fromkeys([*(known.domains if known else ()), *split_up]))


def _missing(row: dict[str, Any]) -> MissingJob:
    by_hand = Variant.of({"revision": 0, **row}).by_hand
    return MissingJob(row["algorithm"], tuple(row["test_domains"]), row["trial"], row["draw"], by_hand)


def _missing_pairs(task: TaskRecords, companions: Companions) -> Iterable[MissingJob]:
    """The jobs that domain cross-validation of a task's jobs would need and that have not finished."""
    order = list(dict.fromkeys(split["domain"] for split in task.splits))
    for domain, pair in companions.pairs(task).items():
        tested = tuple(sorted((*task.tested, domain), key=order.index))
        for cell, draw in task.keys:
            if pair is None or (cell, draw) not in pair.rows:
                yield MissingJob(cell.variant.algorithm, tested, cell.trial, draw, cell.variant.by_hand)


def _labels(variants: Iterable[Variant]) -> dict[Variant, str]:
    """The rows' names: the algorithm, with what was set by hand, and the revision where there are several."""
    revisions: dict[str, set[int | str]] = defaultdict(set)
    ordered = sorted(variants, key=str)
    for variant in ordered:
        revisions[variant.algorithm].add(variant.revision)

    def label(variant: Variant) -> str:
        marks = [f"{name} = {value}" for name, value in json.loads(variant.by_hand or "{}").items()]
        if len(revisions[variant.algorithm]) > 1:
            marks.append(str(variant.revision))
        return variant.algorithm + (f" ({', '.join(marks)})" if marks else "")

    return {variant: label(variant) for variant in ordered}


def as_text(table: Table | Grid) -> str:
    """The table as text of at most 80 columns; many domains continue below."""
    return grid_text(_grid(table))


def as_csv(tables: Sequence[Table]) -> str:
    """All cells of some tables as CSV; jobs, draws and steps of the choices are joined by spaces.

    `least_draws` and `most_draws` say from how many draws an algorithm's cells were chosen.
    """
    return rows_csv(as_rows(tables))


def render(tables: Sequence[Table | Grid], output: str = "text") -> str:
    """Tables in a format: text, markdown, latex, html, csv or json.

    Raises:
        UnknownNameError: There is no such format.
    """
    return render_grids([_grid(table) for table in tables], output)


def _grid(table: Table | Grid) -> Grid:
    return table if isinstance(table, Grid) else table.grid()
