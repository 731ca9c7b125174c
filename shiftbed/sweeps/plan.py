"""Planning: from a question (datasets, algorithms, draws, trials) to the jobs that answer it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import card
from shiftbed.errors import DataError, HparamError
from shiftbed.hashing import canonical, digest
from shiftbed.hparams import Space, Value
from shiftbed.protocols import PROTOCOLS, LeaveOut, TaskSpec
from shiftbed.registry import did_you_mean
from shiftbed.selection import SELECTIONS
from shiftbed.training.job import Job, resolve_hparams, search_space
from shiftbed.training.recipes import recipe
from shiftbed.training.store import Store


@dataclass(frozen=True)
class Request:
    """What a sweep is asked for.

    Attributes:
        datasets: Names of datasets.
        algorithms: Names of algorithms.
        draws: How many draws of the hyperparameters; the first is the default values.
        trials: How many repetitions, each with its own splits, weights and draws.
        test_domains: The domains to test, or none for all that the protocol lists.
        recipe: How each model is trained.
        protocol: Who trains and who is tested.
        selections: The rules that will choose; domain cross-validation needs jobs that test pairs of domains.
        lean: Record what these rules read and nothing else.
        adapt: The share of every test domain that algorithms are given without labels.
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
    fields: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("datasets", "algorithms", "test_domains", "selections"):
            if isinstance(getattr(self, name), str):  # one name instead of a list of one
                object.__setattr__(self, name, (getattr(self, name),))


def plan(request: Request) -> list[Job]:
    """The jobs of a sweep, those of one cell (all algorithms) together, trial by trial and draw by draw.

    Raises:
        ShiftbedError: A name is unknown, or a number is not positive.
    """
    for name, number in (("draws", request.draws), ("trials", request.trials)):
        if number < 1:
            raise HparamError(f"A sweep needs at least one of its {name}, not {number}.")
    if request.lean and not request.selections:
        raise HparamError("Lean records need to know which selections they serve; name at least one.")
    algorithms = list(dict.fromkeys(ALGORITHMS.canonical_name(name) for name in request.algorithms))
    datasets = list(dict.fromkeys(card(name).name for name in request.datasets))
    _check_names(request, datasets, algorithms)
    jobs = []
    for dataset in datasets:
        resolved = recipe(request.recipe, dataset, **request.fields)
        by_hand = {
            algorithm: {
                name: value for name, value in request.overrides.items() if name in search_space(algorithm, dataset)
            }
            for algorithm in algorithms
        }
        specs = asked_tasks(request, dataset)
        lean = tuple(SELECTIONS.canonical_name(name) for name in request.selections) if request.lean else ()
        by_hand = {name: search_space(name, dataset, resolved.space).checked(by_hand[name]) for name in algorithms}
        for trial in range(request.trials):
            for draw in range(request.draws):
                values = {
                    name: resolve_hparams(dataset, name, resolved, draw, trial, by_hand[name]) for name in algorithms
                }
                jobs += [
                    Job(dataset, name, spec, draw, trial, values[name], resolved, by_hand[name], lean)
                    for spec in specs
                    for name in algorithms
                ]
    return jobs


def _check_names(request: Request, datasets: list[str], algorithms: list[str]) -> None:
    """A domain must be in one of the datasets, and a hyperparameter in one of the algorithms' spaces."""
    domains = [domain for dataset in datasets for domain in card(dataset).domains]
    for name in request.test_domains:
        if name not in domains:
            raise DataError(f"{' and '.join(datasets)} has no domain '{name}'.{did_you_mean(name, domains)}")
    spaces = Space().union(search_space(algorithm, dataset) for algorithm in algorithms for dataset in datasets)
    spaces.checked(request.overrides)


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
        raise DataError(f"No task of {request.protocol} on {dataset} tests {names} alone; leave {dataset} out.")
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
    if not isinstance(spec, LeaveOut) or not 0 < share < 1:
        raise HparamError("Adaptation gives a share between 0 and 1 of test domains that are left out in turn.")
    return replace(spec, adapt=share)


def remember_plan(jobs: Sequence[Job], store: Store) -> None:
    """Stores which jobs were asked for, so that `status` and `tables` know what is missing. Plans add up."""
    rows = sorted(
        (
            {
                "id": job.id,
                "dataset": job.dataset,
                "algorithm": job.algorithm,
                "test_domains": list(job.task.test_domains),
                "draw": job.draw,
                "trial": job.trial,
                "setting": job.setting,
            }
            for job in jobs
        ),
        key=lambda row: str(row["id"]),
    )
    store.create_exclusive(f"plans/{digest(rows)[:20]}.jsonl", b"".join(canonical(row) + b"\n" for row in rows))


def planned(store: Store) -> dict[str, dict[str, Any]]:
    """All jobs that were ever asked for in this store, by id."""
    rows: dict[str, dict[str, Any]] = {}
    for key in sorted(store.list("plans")):
        rows |= {row["id"]: row for row in map(json.loads, (store.get(key) or b"").splitlines())}
    return rows
