"""The demo's plan and its words; the demo itself is run in tests/slow."""

import json
from types import SimpleNamespace

import pytest

from shiftbed.accuracy.kept import PREDICTIONS, predictions
from shiftbed.data import DATASETS
from shiftbed.report import demo
from shiftbed.selection import JobRecords
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.kept import shift_points
from shiftbed.sweeps.plan import plan
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore, write_json

ABOUT = {
    "id": "0123456789abcdef",
    "dataset": "D",
    "algorithm": "ERM",
    "test_domains": ["c"],
    "draw": 1,
    "trial": 0,
    "splits": [
        {"name": "a/out", "domain": "a", "role": "validation"},
        {"name": "c/in", "domain": "c", "role": "test"},
        {"name": "c/out", "domain": "c", "role": "test"},
    ],
}
SPLITS = {
    "a/out": {"accuracy": 0.5, "count": 4},
    "c/in": {"accuracy": 0.25, "count": 30},
    "c/out": {"accuracy": 0.65, "count": 10},
}


@pytest.mark.parametrize("story", [demo.FULL, demo.FAST])
def test_a_story_trains_at_least_forty_models_of_five_algorithms_on_built_in_data(story):
    jobs = [*plan(story.digits), *plan(story.emoji)]
    assert len({job.id for job in jobs}) == len(jobs) >= 40
    assert {job.algorithm for job in jobs} >= {"ERM", "CORAL", "GroupDRO", "IRM"}
    assert len({job.algorithm for job in jobs}) == 5 and len({job.draw for job in jobs}) > 1
    tested = {name for job in plan(story.emoji) for name in job.task.test_domains}
    assert len(tested) == 2
    assert set(story.digits.selections) == set(demo.THREE)
    for name in (*story.shifts, *story.digits.datasets, *story.emoji.datasets):
        assert DATASETS[name].card.ran_on == "built in"
    assert len(story.shifts) == 3


def test_the_full_story_trains_a_dozen_small_classifiers_on_one_split():
    jobs = [job for request in demo.FULL.classifiers for job in plan(request)]
    assert len({job.id for job in jobs}) == 12 and len({job.recipe.network for job in jobs}) == 3
    assert {job.trial for job in jobs} == {0}, "others would have been trained on what these held out"
    assert demo.FAST.classifiers == ()


def test_a_job_s_line_has_its_steps_and_its_accuracies_over_images():
    line = demo.job_line(JobRecords(ABOUT, "done", [{"step": 200, "splits": SPLITS}]))
    assert "D " in line and "ERM" in line and "tests c" in line and "draw 1 trial 0" in line and "200 steps" in line
    assert "validation  50.0 %" in line
    assert "test  35.0 %" in line, "(0.25 · 30 + 0.65 · 10) / 40"


@pytest.mark.parametrize("story", [demo.FULL, demo.FAST])
def test_what_the_demo_says_of_its_jobs_fits_into_80_columns(story):
    for request in (story.digits, story.emoji):
        for job in plan(request):
            about = {**job.describe(), "splits": ABOUT["splits"]}
            records = JobRecords(about, "done", [{"step": 200, "splits": SPLITS}])
            line = demo.job_line(records, brief=True)
            assert len(line) <= 80 and job.algorithm in line and ",".join(job.task.test_domains) in line
            assert "validation  50.0 %  test  35.0 %" in line


def test_a_job_without_records_has_a_line_too():
    assert "validation      –" in demo.job_line(JobRecords(ABOUT, "diverged", []))


def test_every_job_is_told_once_and_those_found_done_are_counted(tmp_path):
    store, said, seen = LocalStore(tmp_path), [], []

    def job(name):
        about = {**ABOUT, "id": name}
        result = {"status": "done", "step": 5, "records": [{"step": 5, "splits": SPLITS}]}
        store.put_atomic(JobFiles(name).done, json.dumps(result).encode())
        return SimpleNamespace(id=name, describe=lambda: about)

    jobs = [job(name) for name in ("first", "second", "third")]
    tell = demo._telling(seen.append, store, said.append)
    for ended in (["first"], ["first", "second"], ["first", "second"], ["first", "second", "third"]):
        tell(SimpleNamespace(jobs=jobs, ended=dict.fromkeys(ended, "done"), found=1))
    assert len(seen) == 4
    assert [line.split()[-1] for line in said] == ["already.", "second", "third"]


def test_the_folder_gives_back_shifts_and_predictions(tmp_path):
    both = [ShiftEstimate(name, 0.4, 0.1, (0.2, 0.6), 10) for name in ("diversity", "correlation")]
    found = {"dataset": "mine", **{one.name: one.as_json() for one in both}}
    write_json(found, tmp_path / "shift" / "mine.json")
    write_json({"domains": [], "cells": []}, tmp_path / "shift" / "mine-matrix.json")
    write_json({"dataset": "other", "others": []}, tmp_path / "shift" / "other.json")
    assert shift_points(tmp_path) == {"mine": tuple(both)}
    assert predictions(tmp_path) == []
    write_json([{"true": 0.5}], tmp_path / "accuracy" / PREDICTIONS)
    assert predictions(tmp_path) == [{"true": 0.5}]
