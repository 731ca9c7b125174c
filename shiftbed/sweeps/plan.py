"""Planning: from a question (datasets, algorithms, draws, trials) to the jobs that answer it."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import card
from shiftbed.errors import DataError, HparamError, StoreError
from shiftbed.hashing import canonical
from shiftbed.hparams import Space, Value
from shiftbed.protocols import PROTOCOLS, LeaveOut, TaskSpec
from shiftbed.registry import listed, refuse_unknown
from shiftbed.selection import SELECTIONS
from shiftbed.sweeps.designs import DESIGNS, REDRAW
from shiftbed.training.job import Hparams, Job, check_fixed, resolve_hparams, search_space
from shiftbed.training.recipes import Recipe, recipe
from shiftbed.training.store import Store

Row = dict[str, Any]  # of a plan: a job that was asked for


@dataclass(frozen=True)
class Request:
    """What a sweep is asked for.

    Attributes:
        datasets: Names of datasets.
        algorithms: Names of algorithms.
        draws: How many draws of the hyperparameters; the first is the default values.
        trials: How many repetitions, each with its own splits and weights, and draws where the design says so.
        test_domains: The domains to test, or none for all that the protocol lists.
        recipe: The recipe's name, or a YAML file of one's own.
        protocol: Who trains and who is tested.
        selections: The rules that will choose; domain cross-validation needs jobs that test pairs of domains.
        lean: Record what these rules read and nothing else.
        adapt: The share of every test domain that algorithms are given without labels.
        design: How hyperparameters are searched.
        groups: The settings that compete in the design `groups`; without them the first draws do.
        fields: Recipe fields set by hand (`steps`, `evaluate_every`).
        overrides: Hyperparameters set by hand.
    """

    datasets: Sequence[str]
    algorithms: Sequence[str]
    draws: int = 1
    trials: int = 1
    test_domains: Sequence[str] = ()
    recipe: str = "quick"
    protocol: str = "leave-one-domain-out"
    selections: Sequence[str] = ()
    lean: bool = False
    adapt: float = 0.0
    design: str = REDRAW
    groups: Sequence[Mapping[str, Value]] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("datasets", "algorithms", "test_domains", "selections"):
            object.__setattr__(self, name, tuple(listed(getattr(self, name))))


@dataclass(frozen=True)
class Part:
    """One dataset's part of a request, its names resolved.

    Attributes:
        specs: The tasks that are asked for.
        by_hand: Per algorithm, the hyperparameters set by hand that it has.
        groups: Per algorithm, the values of each stated setting that it has.
    """

    dataset: str
    recipe: Recipe
    specs: list[TaskSpec]
    by_hand: dict[str, dict[str, Value]]
    groups: dict[str, list[dict[str, Value]]]
    lean: tuple[str, ...]

    def values(self, algorithm: str, draw: int, trial: int) -> Hparams:
        """The hyperparameters of a draw: what the trial draws, or one of the stated settings."""
        stated = self.groups[algorithm]
        by_hand = {**stated[draw], **self.by_hand[algorithm]} if stated else self.by_hand[algorithm]
        return resolve_hparams(self.dataset, algorithm, self.recipe, 0 if stated else draw, trial, by_hand)

    def jobs(self, draw: int, trial: int) -> list[Job]:
        """The jobs of a draw and trial, those of one task together."""
        values = {name: self.values(name, draw, trial) for name in self.by_hand}
        return [
            Job(self.dataset, name, spec, draw, trial, values[name], self.recipe, by_hand, self.lean)
            for spec in self.specs
            for name, by_hand in self.by_hand.items()
        ]


def plan(request: Request) -> list[Job]:
    """The jobs of a sweep, those of one cell (all algorithms) together, trial by trial and draw by draw.

    Of a design in two stages these are the jobs of the first; `second_stage` has the others, once these are done.

    Raises:
        ShiftbedError: A name is unknown, or a number is not positive.
    """
    trials = 1 if DESIGNS[request.design].two_stages else request.trials
    return [
        job
        for part in parts(request)
        for trial in range(trials)
        for draw in range(request.draws)
        for job in part.jobs(draw, trial)
    ]


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Jobs without doubles: draws with the same values are one job, whose number is that of the first."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(job.id, job)
    return list(found.values())


def parts(request: Request) -> Iterator[Part]:
    """A request, dataset by dataset.

    Raises:
        ShiftbedError: A name is unknown, or a number is not positive or does not fit the design.
    """
    _check_numbers(request)
    algorithms = list(dict.fromkeys(ALGORITHMS.canonical_name(name) for name in request.algorithms))
    datasets = list(dict.fromkeys(card(name).name for name in request.datasets))
    _check_names(request, datasets, algorithms)
    lean = tuple(SELECTIONS.canonical_name(name) for name in request.selections) if request.lean else ()
    for dataset in datasets:
        resolved = recipe(request.recipe, dataset, **request.fields)
        check_fixed(resolved, dataset)
        spaces = {name: search_space(name, dataset, resolved.space) for name in algorithms}
        yield Part(
            dataset,
            resolved,
            asked_tasks(request, dataset),
            {name: _own(request.overrides, space) for name, space in spaces.items()},
            {name: [_own(group, space) for group in request.groups] for name, space in spaces.items()},
            lean,
        )


def _own(values: Mapping[str, Value], space: Space) -> dict[str, Value]:
    """Those of some values that an algorithm has, checked."""
    return space.checked({name: value for name, value in values.items() if name in space})


def _check_numbers(request: Request) -> None:
    for name, number in (("draws", request.draws), ("trials", request.trials)):
        if number < 1:
            raise HparamError(f"A sweep needs at least one of its {name}, not {number}.")
    if request.lean and not request.selections:
        raise HparamError("Lean records need to know which selections they serve; name at least one.")
    design = DESIGNS[request.design]
    if design.stated and request.draws > 1:
        raise HparamError(f"The design {design.name} states its values, so it has one draw, not {request.draws}.")
    if request.groups and design.name != "groups":
        raise HparamError(f"Only the design groups has stated settings to choose from, not {design.name}.")
    if request.groups and len(request.groups) != request.draws:
        raise HparamError(
            f"{len(request.groups)} settings are stated, so there are as many draws, not {request.draws}."
        )
    if design.two_stages and any(SELECTIONS[name].needs_other_datasets for name in request.selections):
        raise HparamError(f"The design {design.name} has a winner for each dataset; external-dataset needs redraw.")


def _check_names(request: Request, datasets: list[str], algorithms: list[str]) -> None:
    """A domain must be in one of the datasets, and a hyperparameter in one of the algorithms' spaces."""
    domains = [domain for dataset in datasets for domain in card(dataset).domains]
    refuse_unknown("domain", request.test_domains, domains, " and ".join(datasets))
    spaces = Space().union(search_space(algorithm, dataset) for algorithm in algorithms for dataset in datasets)
    for values in (request.overrides, *request.groups):
        spaces.checked(values)


def asked_tasks(request: Request, dataset: str) -> list[TaskSpec]:
    """The protocol's tasks, in its order; where test domains are named, those that test nothing else."""
    listed = [adapting(spec, request.adapt) for spec in PROTOCOLS[request.protocol](card(dataset))]
    if any(SELECTIONS[name].needs_pairs for name in request.selections):
        listed += [adapting(spec, request.adapt) for spec in _pairs(request, dataset)]
    if not request.test_domains:
        return listed
    wanted, fraction = set(request.test_domains), recipe(request.recipe, dataset).holdout
    paired = any(SELECTIONS[name].needs_pairs for name in request.selections)

    def is_asked(spec: TaskSpec) -> bool:
        tested = set(spec.task(dataset, 0, fraction).test_domains)
        return tested <= wanted or (paired and len(tested) == 2 and bool(tested & wanted))

    asked = [spec for spec in listed if is_asked(spec)]
    if not asked:
        names = ", ".join(request.test_domains)
        raise DataError(
            f"No task of {request.protocol} on {dataset} tests {names} alone; "
            f"name all domains of one of its tasks, or leave {dataset} out."
        )
    return asked


def _pairs(request: Request, dataset: str) -> list[TaskSpec]:
    """The pairs that domain cross-validation needs: every tested domain with every other one."""
    if request.protocol != "leave-one-domain-out":
        raise HparamError(
            f"Domain cross-validation chooses among tasks that leave one domain out, not {request.protocol}."
        )
    pairs = PROTOCOLS["leave-pair-out"](card(dataset))
    wanted = set(request.test_domains) or set(card(dataset).domains)
    return [spec for spec in pairs if isinstance(spec, LeaveOut) and wanted & set(spec.test)]


def adapting(spec: TaskSpec, share: float) -> TaskSpec:
    """A task that gives a share of its test domains without labels.

    Raises:
        HparamError: The share is no share, or the kind of task does not know this.
    """
    if not share:
        return spec
    if not 0 < share < 1:
        raise HparamError(f"Adaptation gives a share between 0 and 1 of every test domain, not {share:g}.")
    if not isinstance(spec, LeaveOut) or spec.whole:
        raise HparamError(
            "Adaptation needs test domains that are left out in turn and not tested whole; choose such a protocol, "
            "or leave the adaptation out."
        )
    return replace(spec, adapt=share)


def remember_plan(jobs: Sequence[Job], store: Store, design: str = REDRAW) -> None:
    """Stores which jobs were asked for, so that `status` and `tables` know what is missing. Plans add up.

    Raises:
        StoreError: The store has jobs of another search design that would stand in the same table.
    """
    named = {} if design == REDRAW else {"design": design}  # which leaves plans of before as they are
    rows: list[Row] = sorted(
        (
            {
                "id": job.id,
                "dataset": job.dataset,
                "algorithm": job.algorithm,
                "test_domains": list(job.task.test_domains),
                "draw": job.draw,
                "trial": job.trial,
                "setting": job.setting,
                **({"own_overrides": own} if (own := job.own_overrides) else {}),
                **({"revision": source} if (source := _source(job.algorithm)) else {}),
                **named,
            }
            for job in distinct(jobs)
        ),
        key=lambda row: str(row["id"]),
    )
    key, content = _as_file(rows)
    before = store.get(key)
    if before is not None:  # it was accepted once; cut off since, it is made whole
        if before != content:
            store.put_atomic(key, content)
        return
    known = planned(store)
    others = of_other_designs(rows, known)
    clash = next((row for row in others if row["id"] not in known), None)
    if clash is not None:
        raise mixed_designs(clash, known)
    elsewhere = {row["id"] for row in others}
    new = [row for row in rows if row["id"] not in elsewhere]
    if new:
        store.create_exclusive(*_as_file(new))


def _source(algorithm: str) -> str | None:
    """The revision of a class of the user's, which tells its source; that of our own classes is a number."""
    revision = str(ALGORITHMS[algorithm].revision)
    return revision if "source " in revision else None


def _as_file(rows: Sequence[Row]) -> tuple[str, bytes]:
    """The key and the content of a plan; whatever else lies under the name of this content is damaged."""
    lines = [canonical(row) for row in rows]
    return _key(lines), b"".join(line + b"\n" for line in lines)


def _key(lines: Sequence[bytes]) -> str:
    """The name of a plan: the digest of its rows, whose canonical text these lines between brackets are."""
    return f"plans/{hashlib.sha256(b'[' + b','.join(lines) + b']').hexdigest()[:20]}.jsonl"


def planned(store: Store) -> dict[str, Row]:
    """All jobs that were ever asked for in this store, by id.

    Raises:
        StoreError: A plan is damaged.
    """
    rows: dict[str, Row] = {}
    for key in sorted(store.list("plans")):
        lines = (store.get(key) or b"").splitlines()
        if key != _key(lines):  # cut off between two lines it would be a smaller sweep
            raise StoreError(f"{key} is damaged; remove it and run its sweep again, which plans it anew.")
        rows |= {row["id"]: row for row in map(json.loads, lines)}
    return rows


def of_several_sources(rows: Iterable[Row]) -> set[str]:
    """The algorithms that were planned from more than one source, as a class is that has changed in between."""
    sources: dict[str, set[str | None]] = defaultdict(set)
    for row in rows:
        sources[row["algorithm"]].add(row.get("revision"))
    return {algorithm for algorithm, some in sources.items() if len(some - {None}) > 1}


def with_sources(unfinished: Iterable[Row], rows: Iterable[Row]) -> str:
    """What the command of unfinished jobs needs where classes among them have changed since; else nothing.

    Args:
        unfinished: The rows of these jobs.
        rows: Those of all that was planned.
    """
    changed = of_several_sources(rows) & {row["algorithm"] for row in unfinished}
    if not changed:
        return ""
    return f", with the source of {', '.join(sorted(changed))} as it was planned"


def planned_designs(rows: Iterable[Row]) -> dict[str, str]:
    """The name of the search design of each setting, from the rows of plans."""
    return {row["setting"]: row.get("design", REDRAW) for row in rows}


def of_other_designs(rows: Iterable[Row], known: Mapping[str, Row]) -> list[Row]:
    """Those rows that would stand in one table with known ones of another search design."""
    before = planned_designs(known.values())
    return [row for row in rows if row["setting"] in before and before[row["setting"]] != row.get("design", REDRAW)]


def mixed_designs(row: Row, known: Mapping[str, Row]) -> StoreError:
    """The error of a row among known ones of another design: no table could say how its numbers were chosen."""
    before = planned_designs(known.values())[row["setting"]]
    return StoreError(
        f"The folder has a sweep of {row['dataset']} with the design {before}, whose tables would mix with those of "
        f"{row.get('design', REDRAW)}; use another folder."
    )
