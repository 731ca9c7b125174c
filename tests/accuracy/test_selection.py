"""The label-free rule picks by what confidence says of the test domain."""

import numpy as np
import pytest

from shiftbed.accuracy.records import recorded
from shiftbed.protocols import Fixed
from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.selection.records import tasks_of
from shiftbed.tables import tables_of
from shiftbed.training.evaluation import split_metrics
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from tests.conftest import tiny_job
from tests.made_records import made_job


def whole_job(algorithm, draw):
    how = recipe("quick", "ColoredDigits", steps=6, evaluate_every=2)
    return make_job("ColoredDigits", algorithm, Fixed(train=("+90%", "+80%"), test=("-90%",)), how, draw)


def job(draw, step_values, whole=False):
    about = (whole_job if whole else tiny_job)("ERM", draw=draw).describe()
    rows = []
    for step, (accuracy, source, there) in step_values.items():
        splits = {}
        for split in about["splits"]:
            if split["role"] == "validation" and split["part"] == "out":
                splits[split["name"]] = {"accuracy": accuracy, "confidence": source}
            elif split["role"] == "test":
                splits[split["name"]] = {"accuracy": 0.0, "confidence": there}
        rows.append({"step": step, "splits": splits})
    return JobRecords(about, "done", rows)


@pytest.mark.parametrize("whole", [False, True], ids=["part", "whole"])
def test_it_takes_the_best_predicted_accuracy(whole):
    # 0.9 − (0.95 − 0.5) = 0.45; 0.8 − (0.8 − 0.7) = 0.7; 0.7 − (0.75 − 0.72) = 0.67
    jobs = [job(0, {2: (0.9, 0.95, 0.5), 4: (0.8, 0.8, 0.7)}, whole), job(1, {2: (0.7, 0.75, 0.72)}, whole)]
    choice = SELECTIONS["predicted-accuracy"].choose(jobs)
    assert (choice.draw, choice.step) == (0, 4)
    assert choice.score == pytest.approx(0.7)
    assert SELECTIONS["training-domain-validation"].choose(jobs).step == 2


def test_records_alone_predict_the_accuracy_of_what_was_chosen():
    jobs = [job(0, {2: (0.9, 0.95, 0.5)}), job(1, {2: (0.7, 0.75, 0.72)})]
    tasks = tasks_of(jobs, ["accuracy", "count", "confidence"])
    for task in tasks:
        task.values["count"][:] = 10
    (row,) = recorded(tables_of(tasks, [SELECTIONS["training-domain-validation"]]))
    assert row["accuracy"] == pytest.approx(0.45), "0.9 − (0.95 − 0.5), of the draw that validates best"
    assert (row["true"], row["low"], row["method"], row["job"]) == (0.0, None, "doc", jobs[0].id)
    tasks = tasks_of(jobs, ["accuracy", "count"])
    assert recorded(tables_of(tasks, [SELECTIONS["training-domain-validation"]])) == []


def test_domains_that_are_tested_together_have_their_own_images():
    said = {"accuracy": 0.5, "confidence": 0.5}
    counts = {"b": 30, "c": 70}
    splits = {f"{name}/in": {**said, "count": count} for name, count in counts.items()}
    jobs = [made_job(0, [(1, {"a/out": {**said, "count": 10}, **splits})], tested=("b", "c"))]
    tasks = tasks_of(jobs, ["accuracy", "count", "confidence"])
    rows = recorded(tables_of(tasks, [SELECTIONS["training-domain-validation"]]))
    assert {row["domain"]: row["images"] for row in rows} == counts


def test_intervals_from_records_are_as_wide_as_errors_on_other_domains(monkeypatch):
    errors = {f"domain {place}": place / 100 for place in range(10)}
    rows = [
        {"dataset": "D", "domain": name, "accuracy": 0.5 + error, "true": 0.5, "low": None, "high": None, "level": None}
        for name, error in errors.items()
    ]
    monkeypatch.setattr("shiftbed.accuracy.records._rows", lambda table: table)
    found = {row["domain"]: row for row in recorded([[dict(row) for row in rows]])}
    # Of nine others the ninth smallest, ⌈(9 + 1) · 0.9⌉: the largest.
    assert found["domain 0"]["high"] == pytest.approx(0.5 + 0.09)
    assert found["domain 9"]["low"] == pytest.approx(0.59 - 0.08)
    assert all(row["low"] is None for row in recorded([[dict(row) for row in rows[:9]]])), "eight others are too few"


def test_it_is_no_oracle_but_leaks_to_algorithms_that_never_see_test_images():
    rule = SELECTIONS["predicted-accuracy"]
    assert not rule.oracle
    assert rule.leaks("ERM")
    assert not any(column.role == "test" and column.metric == "accuracy" for column in rule.columns)


def test_records_hold_the_mean_confidence():
    import torch

    logits = torch.log(torch.tensor([[0.9, 0.1], [0.3, 0.7]]))
    assert float(split_metrics(logits, torch.tensor([0, 0]))["confidence"]) == pytest.approx(0.8)
    assert np.isfinite(float(split_metrics(logits, torch.tensor([1, 1]))["confidence"]))
