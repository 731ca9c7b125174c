"""The second stage of a search: the winner of every cell, trained again in the other trials."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shiftbed.protocols import LeaveOut, TaskSpec
from shiftbed.selection import SELECTIONS, Companions, TaskRecords
from shiftbed.selection.records import Cell
from shiftbed.selection.rules import Choice, Selection
from shiftbed.sweeps.designs import DESIGNS
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.records import Records
from shiftbed.training.job import Hparams, Job
from shiftbed.training.store import Store

USUAL = "training-domain-validation"


def second_stage(request: Request, store: Store) -> list[Job]:
    """The jobs that the winners of finished searches need: their values, in every trial but the first.

    A search has a winner for each of the requested selections, once all of its draws have ended. Draws that were not
    asked for do not compete, though an earlier and larger search may have left them in the store.
    """
    if not DESIGNS[request.design].two_stages or request.trials == 1:
        return []
    first_stage = plan(request)
    searches, asked = _searches(first_stage), {job.id for job in first_stage}
    rules = [SELECTIONS[name] for name in request.selections or (USUAL,)]
    metrics = sorted({"accuracy"}.union(*(rule.metrics for rule in rules)))
    with Records(store, metrics, test=any(rule.reads_test for rule in rules)) as records:
        found = [task.that(lambda about: about["id"] in asked) for task in records.tasks(metrics)]
    tasks = [task for task in found if task is not None]
    winners = _Winners(tasks, rules)
    jobs = [
        replace(one, draw=choice.draw, trial=trial, hparams=Hparams(choice.hparams))
        for search in searches
        for rule, choice in winners.of(search)
        for one in (search[0], *(_pairs(search[0], searches) if rule.needs_pairs else ()))
        for trial in range(1, request.trials)
    ]
    return list({job.id: job for job in jobs}.values())


def most_reruns(request: Request) -> int:
    """How many jobs the second stage has, where no two rules choose the same."""
    if not DESIGNS[request.design].two_stages:
        return 0
    searches = _searches(plan(replace(request, draws=1, groups=request.groups[:1])))
    rules = [SELECTIONS[name] for name in request.selections or (USUAL,)]
    beside = [list(_pairs(search[0], searches)) for search in searches]
    companions = {id(pair) for pairs in beside for pair in pairs}
    winners = [pairs for search, pairs in zip(searches, beside, strict=True) if id(search[0]) not in companions]
    each = sum(1 + len(pairs) * rule.needs_pairs for pairs in winners for rule in rules)
    return (request.trials - 1) * each


def _searches(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs of a first stage, by what they search for: one algorithm's values for one task."""
    found: dict[tuple[object, ...], dict[str, Job]] = defaultdict(dict)
    for job in jobs:
        found[job.dataset, job.algorithm, job.spec][job.id] = job
    return [list(search.values()) for search in found.values()]


class _Winners:
    """What the rules choose in a store."""

    def __init__(self, tasks: Sequence[TaskRecords], rules: Sequence[Selection]) -> None:
        companions = Companions(tasks)
        self._chosen: list[list[dict[Cell, Choice]]] = []
        self._place: dict[str, tuple[int, Cell]] = {}
        self._rules = rules
        for number, task in enumerate(task for task in tasks if not companions.is_pair_of_singles(task)):
            self._chosen.append([rule.choices(task, companions) for rule in rules])
            self._place |= {about["id"]: (number, key[0]) for about, key in zip(task.abouts, task.keys, strict=True)}

    def of(self, search: Sequence[Job]) -> Iterator[tuple[Selection, Choice]]:
        """Each rule's choice for a search; none while a job of it is missing, or where all diverged."""
        if all(job.id in self._place for job in search):
            number, cell = self._place[search[0].id]
            for rule, chosen in zip(self._rules, self._chosen[number], strict=True):
                if cell in chosen:
                    yield rule, chosen[cell]


def _pairs(job: Job, searches: Sequence[Sequence[Job]]) -> Iterator[Job]:
    """A job of the same algorithm for each task that tests one more domain."""
    for other, *_ in searches:
        same = (other.dataset, other.algorithm) == (job.dataset, job.algorithm)
        if same and _tested(job.spec) < _tested(other.spec):
            yield other


def _tested(spec: TaskSpec) -> set[str]:
    return set(spec.test) if isinstance(spec, LeaveOut) else set()
