"""Selection rules against choices made by hand."""

import random

import pytest

from shiftbed.errors import ShiftbedError
from shiftbed.selection import SELECTIONS, Column, Evidence, JobRecords

SPLITS = [
    {"name": "a/out", "domain": "a", "part": "out", "role": "validation"},
    {"name": "b/out", "domain": "b", "part": "out", "role": "validation"},
    {"name": "c/in", "domain": "c", "part": "in", "role": "test"},
    {"name": "c/out", "domain": "c", "part": "out", "role": "test"},
]


def job(draw, rows, steps=30):
    """Rows are (step, accuracy on a/out, b/out, c/in, c/out)."""
    names = [split["name"] for split in SPLITS]
    return JobRecords(
        {"id": f"job{draw}", "draw": draw, "trial": 0, "splits": SPLITS, "recipe": {"steps": steps}},
        "done",
        [
            {"step": s, "splits": {n: {"accuracy": v} for n, v in zip(names, values, strict=True)}}
            for s, *values in rows
        ],
    )


JOBS = [
    job(0, [(10, 0.5, 0.7, 0.1, 0.9), (20, 0.6, 0.8, 0.2, 0.8), (30, 0.6, 0.6, 0.3, 0.30)]),
    job(1, [(10, 0.9, 0.3, 0.4, 0.1), (20, 0.2, 0.2, 0.5, 0.1), (30, 0.6, 0.6, 0.6, 0.40)]),
    job(2, [(10, 0.1, 0.1, 0.7, 0.2), (20, 0.1, 0.1, 0.8, 0.2), (30, 0.1, 0.1, 0.9, 0.35)]),
]


def choose(rule, jobs):
    choice = SELECTIONS[rule].choose(jobs)
    return choice and (choice.job_id, choice.step, pytest.approx(choice.score))


def test_training_domain_validation_takes_the_best_mean_over_domains_at_any_step():
    assert choose("training-domain-validation", JOBS) == ("job0", 20, 0.7)


def test_the_oracle_takes_the_best_last_step_on_held_out_test_images():
    assert choose("oracle", JOBS) == ("job1", 30, 0.4)


@pytest.mark.parametrize("rule", list(SELECTIONS))
def test_the_order_of_jobs_does_not_matter(rule):
    expected = choose(rule, JOBS)
    for seed in range(5):
        shuffled = random.Random(seed).sample(JOBS, len(JOBS))
        assert choose(rule, shuffled) == expected


@pytest.mark.parametrize("rule", list(SELECTIONS))
def test_a_draw_that_is_worse_on_the_rule_s_own_columns_changes_nothing(rule):
    worse = job(9, [(step, 0.0, 0.0, 1.0, 0.0) for step in (10, 20, 30)])
    assert choose(rule, [*JOBS, worse]) == choose(rule, JOBS)


def test_ties_go_to_the_earliest_step_of_the_last_draw():
    rows = [(10, 0.5, 0.5, 0.1, 0.5), (20, 0.5, 0.5, 0.2, 0.5), (30, 0.4, 0.4, 0.3, 0.5)]
    assert choose("training-domain-validation", [job(1, rows), job(0, rows)]) == ("job1", 10, 0.5)
    assert choose("oracle", [job(1, rows), job(0, rows)]) == ("job1", 30, 0.5)


def test_a_job_that_did_not_reach_its_last_step_is_no_oracle_candidate():
    cut = job(5, [(10, 1, 1, 1, 1)])
    assert choose("oracle", [*JOBS, cut]) == ("job1", 30, 0.4)
    assert choose("oracle", [cut]) is None
    assert choose("training-domain-validation", [cut]) == ("job5", 10, 1)
    assert choose("training-domain-validation", [job(6, [])]) is None


def test_a_rule_cannot_read_what_it_does_not_declare():
    evidence = Evidence(JOBS, SELECTIONS["training-domain-validation"].columns)
    with pytest.raises(ShiftbedError, match="test/in/accuracy, which it does not declare"):
        evidence.best(lambda record: record.mean(Column("test", "in", "accuracy")))


def test_only_the_oracle_reads_test_columns():
    for name in SELECTIONS:
        rule = SELECTIONS[name]
        assert rule.oracle == any(column.role == "test" for column in rule.columns)
