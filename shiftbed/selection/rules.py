"""The selection rules: each scores every record of a task, and the best record of a cell is chosen.

Ties are broken as in DomainBed: of a job's equal records the earliest, of equal draws the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shiftbed.algorithms import ALGORITHMS
from shiftbed.algorithms.registration import AlgorithmEntry, Need
from shiftbed.errors import UnknownNameError
from shiftbed.registry import Registry
from shiftbed.selection.evidence import ELSEWHERE, PAIR, VALIDATION, Companions, Evidence, is_own
from shiftbed.selection.records import Cell, Column, JobRecords, TaskRecords, tasks_of

VALIDATION_COUNT = VALIDATION._replace(metric="count")
VALIDATION_LOSS = VALIDATION._replace(metric="loss")
OTHER_DOMAINS = Column("validation", "all", "accuracy")
TEST_HELD_OUT = Column("test", "out", "accuracy")
PAIR_TEST = Column(PAIR, "in", "accuracy")
BEST_ELSEWHERE = Column(ELSEWHERE, "out", "accuracy")

ORACLE_BUDGET = 20  # looks at the test domain for each algorithm, test and trial, as DomainBed allows

Rule = Callable[[Evidence], np.ndarray]


class Choice(NamedTuple):
    """What a rule picked for a cell.

    Attributes:
        job_id: The job whose record is reported.
        step: The record's step.
        score: What it won with.
        draw: The job's draw.
        hparams: The values that the draw stands for.
        beside: The ids of other jobs that the score rests on.
        row: Where the job stands in the task's records.
        position: Where the step stands.
    """

    job_id: str
    step: int
    score: float
    draw: int
    hparams: dict[str, Any]
    beside: tuple[str, ...]
    row: int
    position: int


@dataclass(frozen=True)
class Selection:
    """A registered rule.

    Attributes:
        name: The rule's name.
        rule: Scores the records of a task, jobs × checkpoints; what is not a number does not compete.
        columns: What it reads.
        oracle: Whether it looks at the test domain; its numbers are marked wherever they are printed.
        needs: What it knows that not every algorithm may know: it leaks to those that do not declare the need.
        summary: What it does, for footnotes.
        at_end: Whether it looks at the last step of each job alone: when else jobs were evaluated is one to it.
    """

    name: str
    rule: Rule
    columns: frozenset[Column]
    oracle: bool
    needs: tuple[Need, ...]
    summary: str
    at_end: bool = False

    @property
    def needs_pairs(self) -> bool:
        """Whether it needs, beside each job, those that test one more domain: a planner adds them for no other rule."""
        return any(column.role == PAIR for column in self.columns)

    @property
    def needs_other_datasets(self) -> bool:
        """Whether it needs the same draws on another dataset."""
        return any(column.role == ELSEWHERE for column in self.columns)

    @property
    def reads_test(self) -> bool:
        """Whether it reads numbers of test splits, be it those of other jobs."""
        return any(column.role in ("test", PAIR) for column in self.columns)

    @property
    def metrics(self) -> set[str]:
        """The metrics it reads."""
        return {column.metric for column in self.columns}

    def leaks(self, algorithm: str) -> bool:
        """Whether it knows what the algorithm does without; of an algorithm that is not registered nothing is said."""
        entry = _registered(algorithm) if self.needs else None
        return entry is not None and bool(set(self.needs) - set(entry.needs))

    def lacking(self, task: TaskRecords, companions: Companions | None = None) -> list[Column]:
        """The columns it reads that the task's jobs do not have."""
        return Evidence(task, self.columns, companions).lacking()

    def unrecorded(self, task: TaskRecords, companions: Companions | None = None) -> set[str]:
        """The ids of a task's lean jobs that do not have what it reads, since they are for others."""
        lacking = (some for some in task.lean if any(map(is_own, self.lacking(some, companions))))
        return {about["id"] for some in lacking for about in some.abouts}

    def scores(self, evidence: Evidence) -> np.ndarray:
        """What each record of a task is worth to it: jobs × checkpoints; what is not a number does not compete."""
        scores = self.rule(evidence)
        return np.where(evidence.last, scores, np.nan) if self.at_end else scores

    def choices(self, task: TaskRecords, companions: Companions | None = None) -> dict[Cell, Choice]:
        """What it picks for every cell of a task in which a job competes.

        Args:
            task: The finished jobs of a task.
            companions: The other tasks of the sweep, for rules that need them.
        """
        evidence = Evidence(task, self.columns, companions)
        scores = self.scores(evidence)
        if scores.size == 0:
            return {}
        scores = np.where(np.isnan(scores), -np.inf, scores)
        positions = scores.argmax(axis=1)  # the first of equals
        best = scores[np.arange(len(scores)), positions]
        chosen = {}
        for cell, where in task.cells.items():
            row = where.stop - 1 - int(best[where][::-1].argmax())  # the last of equals
            if best[row] > -np.inf:
                chosen[cell] = _choice(task, evidence, row, int(positions[row]), float(best[row]))
        return chosen

    def choose(self, jobs: Sequence[JobRecords], others: Sequence[JobRecords] = ()) -> Choice | None:
        """Picks among the finished jobs of one cell.

        Args:
            jobs: All draws of an algorithm for one test and trial.
            others: Other jobs of the sweep, for rules that need them.
        """
        metrics = self.metrics | {"accuracy"}
        task = TaskRecords.of(jobs, metrics)
        return next(iter(self.choices(task, Companions(tasks_of(others, metrics))).values()), None)


def _choice(task: TaskRecords, evidence: Evidence, row: int, position: int, score: float) -> Choice:
    about = task.abouts[row]
    return Choice(
        job_id=about["id"],
        step=int(task.steps[row, position]),
        score=score,
        draw=about["draw"],
        hparams=about["hparams"],
        beside=evidence.jobs_beside(row),
        row=row,
        position=position,
    )


def _registered(algorithm: str) -> AlgorithmEntry | None:
    """The entry of an algorithm, if it is known here: records may come from elsewhere."""
    try:
        return ALGORITHMS[algorithm]
    except UnknownNameError:
        return None


def own_rule(algorithm: str) -> str | None:
    """The name of an algorithm's own selection rule; without one it is incomplete in DomainBed's sense."""
    entry = _registered(algorithm)
    return None if entry is None else entry.selection


SELECTIONS: Registry[Selection] = Registry("selection", "shiftbed.selection")


def selection(
    name: str, *columns: Column, oracle: bool = False, needs: tuple[Need, ...] = (), at_end: bool = False
) -> Callable[[Rule], Rule]:
    """Registers a rule with the columns it reads; its docstring is its summary."""

    def wrap(rule: Rule) -> Rule:
        SELECTIONS.add(name, Selection(name, rule, frozenset(columns), oracle, needs, rule.__doc__ or "", at_end))
        return rule

    return wrap


@selection("training-domain-validation", VALIDATION)
def training_domain_validation(evidence: Evidence) -> np.ndarray:
    """The draw and step with the best accuracy on held-out images of the training domains (mean over domains)."""
    return evidence.mean(VALIDATION)


@selection("training-domain-validation-pooled", VALIDATION, VALIDATION_COUNT)
def training_domain_validation_pooled(evidence: Evidence) -> np.ndarray:
    """The draw and step with the best accuracy on held-out images of the training domains (all images together)."""
    return evidence.pooled(VALIDATION)


@selection("domain-cross-validation", PAIR_TEST)
def domain_cross_validation(evidence: Evidence) -> np.ndarray:
    """The draw and step that do best on each training domain in turn when it is left out too (mean over domains)."""
    return evidence.mean(PAIR_TEST)


@selection("oracle", TEST_HELD_OUT, oracle=True, at_end=True)
def oracle(evidence: Evidence) -> np.ndarray:
    """The draw whose last step is best on held-out images of the test domain: one look a draw, at 20 draws at most."""
    asked = (evidence.looks(TEST_HELD_OUT) <= ORACLE_BUDGET)[:, None]
    return np.where(asked, evidence.mean(TEST_HELD_OUT), np.nan)


@selection("ood-validation", OTHER_DOMAINS)
def ood_validation(evidence: Evidence) -> np.ndarray:
    """The draw and step with the best accuracy on whole domains that are neither trained on nor tested."""
    return evidence.mean(OTHER_DOMAINS)


@selection("last-step", VALIDATION, at_end=True)
def last_step(evidence: Evidence) -> np.ndarray:
    """The last step of each draw, as SWAD's authors report it; of the draws the best on training-domain validation."""
    return evidence.mean(VALIDATION)


@selection("worst-domain-validation", VALIDATION, needs=("domain labels",))
def worst_domain_validation(evidence: Evidence) -> np.ndarray:
    """The draw and step with the best accuracy on held-out images of the training domain where it is worst."""
    return evidence.worst(VALIDATION)


@selection("validation-loss", VALIDATION_LOSS)
def validation_loss(evidence: Evidence) -> np.ndarray:
    """The draw and step with the least loss on held-out images of the training domains (mean over domains)."""
    return -evidence.mean(VALIDATION_LOSS)


@selection("external-dataset", BEST_ELSEWHERE, VALIDATION)
def external_dataset(evidence: Evidence) -> np.ndarray:
    """The draw that does best on the other datasets of the sweep (training-domain validation); its best step here."""
    here = evidence.mean(VALIDATION)
    if not here.size:  # all diverged before they were evaluated
        return here
    ranked = np.where(np.isnan(here), -np.inf, here)
    is_best = np.arange(here.shape[1]) == ranked.argmax(axis=1)[:, None]
    return np.where(is_best & ~np.isnan(here), evidence.mean(BEST_ELSEWHERE), np.nan)


@selection("own", VALIDATION, VALIDATION_COUNT, VALIDATION_LOSS)
def own(evidence: Evidence) -> np.ndarray:
    """What the algorithm's authors chose by, where its registration says so; else training-domain validation."""
    scores = training_domain_validation(evidence)
    algorithms = evidence.algorithms
    rules = {name: own_rule(name) for name in np.unique(algorithms)}
    for rule in sorted({rule for rule in rules.values() if rule is not None}):
        follows = np.array([rules[name] == rule for name in algorithms])
        scores = np.where(follows[:, None], SELECTIONS[rule].scores(evidence), scores)
    return scores
