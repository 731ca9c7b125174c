"""Every benchmark file is planned, without its data or weights, and its jobs are counted by hand."""

import pytest

from shiftbed import published
from shiftbed.algorithms import ALGORITHMS
from shiftbed.benchmarks import benchmark_names, find, job_count, request_of
from shiftbed.benchmarks.spec import SweepPart
from shiftbed.sweeps.plan import plan
from shiftbed.training.recipes import recipe

# Sets of test domains for n domains: n alone and n (n - 1) / 2 pairs, so 3 + 3, 4 + 6, 6 + 15.
DOMAINBED_SETS = 6 + 21 + 4 * 10 + 21
REDRAWN = 20 * 3  # draws × trials
SEARCHED_ONCE = 10 + 2  # ten draws in one trial, and the winner twice more
GROUPS = 3 + 2  # three settings in one trial, and the best twice more
SEEDS = 3  # the same values three times

COUNTS = {
    "builtin": 3 * len(list(ALGORITHMS)),  # one test domain of each of three datasets
    "builtin-emoji": 7 * 4 * len(list(ALGORITHMS)),  # test domains × draws
    "domainbed": 9 * DOMAINBED_SETS * REDRAWN,
    "ood-bench-diversity": 16 * (3 * 4 + 1) * REDRAWN,  # three datasets of four domains; one fixed split
    "ood-bench-correlation": 16 * 3 * REDRAWN,  # one test domain of each of three datasets
    "ood-bench-table-3": 6 * 5,  # settings × runs
    "ood-bench-figure-4": 3 * 5 * 5,  # panels × training × test
    "nico-classic-1": SEEDS * (16 + 1 + 13 + 1 + 4 + 9),  # methods, references (pooled, per domain), by network
    "nico-classic-2": SEEDS * (16 + 1 + 13 + 1 + 4 + 9),
    "nico-classic-3": SEEDS * (13 + 1 + 4),
    "nico-flexible-random": SEEDS * (11 + 11 + 9),
    "nico-flexible-compositional": SEEDS * (11 + 11 + 9),
    "nico-table-1": 6 * 5,  # datasets × runs
    "nico-table-4": SEEDS * 16 * (4 + 6 + 4 + 4 + 1),
    "domainbed-v2-supervised": 10 * (3 * 4 + 2 * 3) * SEARCHED_ONCE,  # four domains alone, or three pairs of six
    "domainbed-v2-moco": 10 * (3 * 4 + 2 * 3) * SEARCHED_ONCE,
    "domainbed-v2-vit": 10 * (3 * 4 + 2 * 3) * SEARCHED_ONCE,
    "domainbed-v2-scratch": 10 * (2 * 3) * SEARCHED_ONCE,
    # Probed and tuned: eight kinds of weights on three datasets of four domains, three of them on one more of four
    # domains and on two of three pairs.
    "domainbed-v2-lp-ft": 2 * (8 * 3 * 4 + 3 * (4 + 2 * 3)) * SEARCHED_ONCE,
    "domainbed-v2-frozen": 5 * (1 + 2 + 1) * SEARCHED_ONCE,  # 0 to 4 frozen stages, four sets of test domains
    "domainbed-v2-table-4": 2 * 2 * 10,  # datasets × halves × draws
    "cifar-10-w-accuracy": 2 * 10 * (4 + 40 + 70),  # collections × predictors × classifiers
    "cifar-10-w-classifiers": 70 + 2,  # the paper's 70, and two that it shows alone
    "cifar-10-w-dg-1": 4 * 5 * GROUPS,  # training domains × methods
    "cifar-10-w-dg-2": 10 * GROUPS,
    "cifar-10-w-dg-3": 10 * GROUPS,
    "cifar-10-w-dg-4": 11 * GROUPS,
    "cifar-10-w-dg-balanced": (5 + 8) * GROUPS,
}


def test_every_benchmark_is_counted():
    assert sorted(COUNTS) == benchmark_names()


@pytest.mark.parametrize("name", list(COUNTS))
def test_a_benchmark_has_as_many_jobs_as_its_paper_says(name):
    assert sum(job_count(part) for part in find(name).parts) == COUNTS[name]


def test_domainbed_has_47520_jobs():
    assert COUNTS["domainbed"] == 47_520


@pytest.mark.parametrize("name", ["domainbed", "nico-classic-1", "cifar-10-w-dg-balanced", "domainbed-v2-table-4"])
def test_the_count_is_that_of_the_plan(name):
    part = find(name).parts[0]
    stages = (part.search.trials - 1) * len(part.algorithms) if part.search.design == "groups" else 0
    assert len(plan(request_of(part))) + stages == job_count(part)


def sweep_parts():
    return [
        pytest.param(name, part, id=f"{name}: {part.name}")
        for name in benchmark_names()
        for part in find(name).parts
        if isinstance(part, SweepPart) and part.published
    ]


MEASURES = {"overall": "overall accuracy", "variance": "oracle gap", "leakage": "accuracy"}


@pytest.mark.parametrize("name, part", sweep_parts())
def test_the_published_table_has_a_number_for_every_algorithm_of_a_part(name, part):
    labels = {"domain": "", "measure": MEASURES.get(part.view, "accuracy"), "dataset": part.dataset}
    if part.view == "leakage":
        labels["setting"] = "tested on quickdraw, real, sketch; K=1" if part.dataset == "DomainNet" else ""
        labels |= {"selection": "oracle"} if part.dataset == "DomainNet" else {"setting": "tested on autumn, rock, dim"}
    missing = [
        (algorithm, rule)
        for rule in part.selections
        for algorithm in part.algorithms
        if part.published.cell(**{"algorithm": algorithm, "selection": rule, **labels}) is None
    ]
    assert not missing


@pytest.mark.parametrize("name, part", sweep_parts())
def test_a_part_trains_the_network_that_its_published_table_is_about(name, part):
    how = recipe(part.recipe, part.dataset, **part.fields)
    cells = [cell for table in part.published.tables for cell in published.table(table) if cell.dataset == part.dataset]
    cells = [cell for cell in cells if all(getattr(cell, key) == value for key, value in part.published.labels.items())]
    assert cells
    assert {cell.network for cell in cells} <= {how.network, ""}
    assert (how.initial_weights is None) == ({cell.weights for cell in cells} == {"scratch"})


def test_nothing_is_planned_twice_in_a_benchmark():
    for name in benchmark_names():
        requests = [request_of(part) for part in find(name).parts if isinstance(part, SweepPart)]
        assert len({repr(request) for request in requests}) == len(requests)
