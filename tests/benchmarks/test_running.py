"""Benchmarks that run: the whole path on built-in data, and what is said when one cannot."""

import json
import re
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import shiftbed
from shiftbed.accuracy.pool import Classifier
from shiftbed.benchmarks import find, job_count, narrowed, read
from shiftbed.benchmarks.running import _only
from shiftbed.cli import app
from shiftbed.data import load as load_dataset
from shiftbed.errors import DataError, ShiftbedError
from shiftbed.protocols import LeaveOut
from shiftbed.sweeps.pool import Progress
from shiftbed.sweeps.records import finished_jobs, outcomes
from shiftbed.tables.missing import MissingJob
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from tests.conftest import tiny_job

# ColoredDigits stands for ColoredMNIST here: the published numbers are found by the labels that the file gives.
MINE = """
name: mine
version: 1
kind: sweep
summary: Mine
paper: Somebody, 2020
every:
  dataset: ColoredDigits
  recipe: quick
  fields: {steps: 4, evaluate_every: 2}
  overrides: {batch_size: 4}
  test: ["-90%"]
  published: {tables: [domainbed/appendix-b-1], labels: {dataset: ColoredMNIST}}
parts:
  - {name: plain, algorithms: [ERM]}
  - {name: aligned, algorithms: [CORAL], overrides: {batch_size: 4, mmd_gamma: 2.0}}
"""


class InThisProcess:
    """Runs jobs one after the other, without the seconds that worker processes take to start."""

    def __init__(self, store, *_):
        self.store = store

    def run(self, jobs, on_change):
        found = len({job.id for job in jobs} & outcomes(self.store).keys())
        return Progress(jobs, {job.id: run_job(job, self.store) for job in jobs}, found=found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark")
    (path / "mine.yaml").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shiftbed.sweeps.verbs.LocalPool", InThisProcess)
        shiftbed.benchmark(str(path / "mine.yaml"), path / "out", device="cpu")
        yield path


def cells(grids):
    return {(row["part"], row["algorithm"], row["domain"]): row for grid in grids for row in grid.data}


def test_a_run_stands_beside_the_published_numbers(folder):
    outcome = shiftbed.benchmark(str(folder / "mine.yaml"), folder / "out", device="cpu")
    assert outcome.progress.found == 2  # nothing is trained again
    found = cells(outcome.grids)
    assert {key[:2] for key in found} == {("plain", "ERM"), ("aligned", "CORAL")}
    row = found["plain", "ERM", "-90%"]
    assert (row["published"], row["differs"]) == (10.0, {})
    assert row["difference"] == pytest.approx(row["ours"] - 10.0)


def test_other_steps_are_said_instead_of_a_difference(folder):
    asked = {"device": "cpu", "steps": 2, "parts": ["plain"]}
    found = cells(shiftbed.benchmark(str(folder / "mine.yaml"), folder / "out", **asked).grids)
    assert set(found) == {("plain", "ERM", "-90%"), ("plain", "ERM", "")}
    assert found["plain", "ERM", "-90%"]["differs"] == {"steps": "2 here, 4 in the paper"}
    assert found["plain", "ERM", "-90%"]["difference"] is None


def test_parts_without_a_table_are_named(folder, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(MINE + "  - {name: longer, algorithms: [ERM], fields: {steps: 6, evaluate_every: 2}}\n")
    assert shiftbed.benchmark(str(file), folder / "out", train=False).unshown == ("longer",)
    assert shiftbed.benchmark(str(file), folder / "out", train=False, parts=["plain"]).unshown == ()
    shown = CliRunner().invoke(app, ["benchmark", f"--file={file}", f"--out={folder / 'out'}", "--no-train"])
    assert shown.exit_code == 0 and "No table of longer: " in shown.output


def test_the_trials_that_are_asked_for_are_shown_and_no_others(folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    for trials, n in ((2, 2), (1, 1)):
        asked = {"device": "cpu", "trials": trials, "parts": ["plain"]}
        row = cells(shiftbed.benchmark(str(folder / "mine.yaml"), out, **asked).grids)["plain", "ERM", "-90%"]
        assert row["n"] == n
        assert row["differs"] == ({"trials": "2 here, 1 in the paper"} if n == 2 else {})


@pytest.mark.parametrize("by_hand", ["", '{"mmd_gamma":2.0}', '{"mmd_gamma":3.0}'])
def test_a_part_lacks_its_own_jobs_and_not_those_with_other_values_set_by_hand(folder, by_hand):
    tables = shiftbed.read_tables(folder / "out", ["oracle"])
    table = next(one for one in tables if "CORAL (mmd_gamma = 2.0)" in one.names)
    part = read(folder / "mine.yaml").parts[1]
    lost = MissingJob("CORAL", ("-90%",), 0, 1, by_hand)
    shown = _only(replace(table, missing=(lost,)), part, [("-90%",)]).whole_trials()
    own = (lost,) if "2.0" in by_hand else ()
    assert (shown.missing, set(shown.unaveraged)) == (own, {"CORAL (mmd_gamma = 2.0)"} if own else set())
    assert set(replace(table, missing=(lost,)).whole_trials().unaveraged) == set(shown.unaveraged)


def cli(*words):
    return CliRunner().invoke(app, ["benchmark", *map(str, words)])


def test_a_benchmark_shares_gpus_as_a_sweep_does(folder, monkeypatch):
    asked = []
    monkeypatch.setattr("shiftbed.benchmarks.running.sweep", lambda *_, **how: asked.append(how) or Progress([]))
    words = ("--file", folder / "mine.yaml", "--out", folder / "out", "--device", "cpu", "--jobs-per-device")
    for given in (3, "auto"):
        assert cli(*words, given).exit_code == 0
    assert [how["jobs_per_device"] for how in asked] == [3, None]
    assert "a number from 1 on, or auto, not '0'" in str(cli(*words, 0).exception)


def test_a_dry_run_counts_jobs_and_those_that_are_done(folder):
    words = ["--file", folder / "mine.yaml", "--out", folder / "out", "--trials", 3, "--dry-run", "--json"]
    shown = json.loads(cli(*words).stdout)
    assert (shown["jobs"], shown["done"]) == (6, 2)
    assert "6 jobs, 2 of them done already." in cli(*words[:-1]).output
    other = cli(*words[:-1], "--precision", "bf16").output
    assert "6 jobs, 0 of them done already." in other, "jobs in another arithmetic are other jobs"


@pytest.mark.parametrize("search", ["{design: fixed, draws: 2}", "{design: groups, draws: 2, groups: [{lr: 0.1}]}"])
def test_a_dry_run_refuses_numbers_that_the_run_refuses(tmp_path, search):
    (tmp_path / "mine.yaml").write_text(MINE.replace("\nevery:", f"\nevery:\n  search: {search}"))
    found = cli("--file", tmp_path / "mine.yaml", "--out", tmp_path / "out", "--dry-run")
    assert "not 2" in str(found.exception)


def test_a_dry_run_needs_neither_data_nor_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    shown = cli(
        "domainbed", "--datasets", "PACS,VLCS", "--draws", 3, "--trials", 1, "--out", tmp_path / "o", "--dry-run"
    )
    assert "540 jobs, 0 of them done already." in shown.output  # 2 × 10 sets of test domains × 9 algorithms × 3


def test_the_list_names_every_benchmark():
    shown = CliRunner().invoke(app, ["benchmarks", "--json"])
    assert {row["name"]: row["jobs"] for row in json.loads(shown.stdout)}["domainbed"] == 47_520


def test_algorithms_are_chosen_and_added():
    part = narrowed(find("domainbed"), ["PACS"], ["erm", "VREx"]).parts[0]
    assert part.algorithms == ("ERM", "VREx")
    # A reference that is about one algorithm takes no other.
    parts = narrowed(find("nico-classic-1"), algorithms=["VREx"]).parts
    assert [part.name for part in parts] == ["ResNet-50", "ResNet-18", "ResNet-50 from scratch"]


def test_numbers_of_draws_and_trials_are_the_asked_ones():
    part = narrowed(find("domainbed-v2-moco"), ["PACS"], ["ERM"], draws=3, trials=2).parts[0]
    assert job_count(part) == 4 * (3 + 1)


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"datasets": ["PAC"]}, "has no dataset 'PAC'. Did you mean PACS?"),
        ({"algorithms": ["ERN"]}, "There is no algorithm 'ERN'"),
        ({"parts": ["nothing"]}, "has no part 'nothing'"),
        ({"datasets": ["PACS"], "parts": ["VLCS"]}, "Nothing of benchmark domainbed is left"),
    ],
)
def test_a_wrong_part_gets_one_sentence(asked, words):
    with pytest.raises(ShiftbedError) as caught:
        narrowed(find("domainbed"), **asked)
    assert words in str(caught.value)


def test_a_benchmark_without_training_takes_no_steps():
    with pytest.raises(ShiftbedError, match="trains nothing"):
        narrowed(find("ood-bench-table-3"), steps=3)


def test_a_file_that_is_not_there_gets_one_sentence(tmp_path):
    with pytest.raises(ShiftbedError, match="There is no file"):
        read(tmp_path / "none.yaml")


def test_a_file_of_any_name_is_read_and_one_that_is_no_text_gets_one_sentence(tmp_path):
    (tmp_path / "mine.txt").write_text(MINE)
    assert "2 jobs, 0 of them done" in cli("--file", tmp_path / "mine.txt", "--dry-run").output
    (tmp_path / "mine.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(ShiftbedError, match=r"mine\.yaml is not a text file in UTF-8; save it as UTF-8\."):
        read(tmp_path / "mine.yaml")


def test_a_benchmark_and_a_file_are_one_too_many():
    assert "one of the two" in str(cli().exception)


def test_a_benchmark_whose_room_is_not_there_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "shiftbed.shift.studies", None)
    with pytest.raises(ShiftbedError, match="cannot run benchmarks of shift yet"):
        shiftbed.benchmark("ood-bench-table-3", tmp_path)


def test_another_room_s_numbers_stand_beside_the_published_ones(tmp_path, monkeypatch):
    setting = "one training domain; test correlation 0.9"

    def run(part, out):
        for name in part.options():
            labels = {"setting": name, "measure": "correlation shift"}
            yield {"labels": labels, "mean": 0.65, "spread": 0.01, "n": part.runs, "differs": {"runs": "1 here"}}

    monkeypatch.setitem(sys.modules, "shiftbed.shift.studies", SimpleNamespace(run=run))
    (grid,) = shiftbed.benchmark("ood-bench-table-3", tmp_path).grids
    row = next(row for row in grid.data if row["setting"] == setting)
    assert (row["published"], row["ours"], row["difference"]) == (0.67, 0.65, None)
    assert len(grid.data) == 6


def test_a_measure_that_the_paper_leaves_open_has_no_difference(tmp_path, monkeypatch):
    setting = "one training domain; test correlation 0.9"

    def run(part, out):
        for measure in ("EMD", "correlation shift"):
            yield {
                "labels": {"setting": setting, "measure": measure},
                "mean": 0.65,
                "spread": 0.01,
                "n": 5,
                "differs": {},
            }

    monkeypatch.setitem(sys.modules, "shiftbed.shift.studies", SimpleNamespace(run=run))
    (grid,) = shiftbed.benchmark("ood-bench-table-3", tmp_path).grids
    rows = {row["measure"]: (row["published"], row["difference"]) for row in grid.data}
    assert rows == {"EMD": (0.08, None), "correlation shift": (0.67, pytest.approx(-0.02))}


OF_SHIFT = """
name: mine
version: 1
kind: shift
summary: Mine
paper: Somebody, 2020
parts:
  - dataset: RotatedDigits
    measures: [covariate shift, concept shift (min), concept shift (max)]
    runs: 2
    settings: {"": {training_domains: 1, test_domains: 1, classes: 2}}
    published: {tables: [nico-plus-plus/table-1], labels: {dataset: PACS}}
"""


def test_a_benchmark_of_shift_measures_and_does_not_measure_twice(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(OF_SHIFT)
    words = ("--file", tmp_path / "mine.yaml", "--out", tmp_path / "out", "--json")
    rows = {row["measure"]: row for row in json.loads(cli(*words).stdout)}
    covariate = rows["covariate shift"]
    assert 0 <= covariate["ours"] <= 1 and covariate["n"] == 2
    assert covariate["published"] is not None
    assert covariate["difference"] == pytest.approx(covariate["ours"] - covariate["published"])
    assert rows["concept shift (min)"]["ours"] <= rows["concept shift (max)"]["ours"]
    monkeypatch.setattr("shiftbed.shift.nico.covariate_and_concept", lambda *_, **__: 1 / 0)
    assert {row["measure"]: row for row in json.loads(cli(*words).stdout)} == rows


OF_ACCURACY = """
name: mine
version: 1
kind: accuracy
summary: Mine
paper: Somebody, 2020
every:
  dataset: RotatedDigits
  trained_on: RotatedDigits
  predictors: [ATC-MC, doc, MS-AoL]
parts:
  - name: one
    classifiers: [small]
    columns: {near: ["0", "15"], far: ["30", "45", "60", "75"]}
    published: {tables: [cifar-10-w/table-2], labels: {dataset: CIFAR-10-Cs, network: ResNet44}}
  - name: three
    classifiers: [mean of three]
    averaged: 3
"""


@pytest.fixture(scope="module")
def with_classifiers(tmp_path_factory):
    """Two classifiers of RotatedDigits, and one of other data that must not be taken for one."""
    path = tmp_path_factory.mktemp("accuracy")
    (path / "mine.yaml").write_text(OF_ACCURACY)
    store = LocalStore(path / "out" / "classifiers")
    how = recipe("quick", "RotatedDigits", steps=30, evaluate_every=30)
    for draw in range(2):
        run_job(make_job("RotatedDigits", "ERM", LeaveOut(("75",)), how, draw=draw), store, keep="final")
    run_job(tiny_job("ERM"), store, keep="final")
    return path


def left_out_errors(scores, accuracies):
    """Points between the accuracy of each domain and what a line through the others says."""
    others = [np.arange(len(scores)) != place for place in range(len(scores))]
    lines = [np.polyfit(scores[some], accuracies[some], 1) for some in others]
    predicted = np.array([np.polyval(line, score) for line, score in zip(lines, scores, strict=True)])
    return 100 * np.abs(accuracies - predicted.clip(0, 1))


def test_a_benchmark_of_accuracy_predicts_what_its_classifiers_reach(with_classifiers):
    words = ("--file", with_classifiers / "mine.yaml", "--out", with_classifiers / "out", "--part", "one", "--json")
    rows = {(row["algorithm"], row["domain"]): row for row in json.loads(cli(*words).stdout)}
    assert set(rows) == {(name, where) for name in ("ATC-MC", "doc", "MS-AoL") for where in ("near", "far", "")}
    jobs = list(finished_jobs(LocalStore(with_classifiers / "out" / "classifiers")))
    (first,) = (
        job.id for job in jobs if job.description["draw"] == 0 and job.description["dataset"] != "ColoredDigits"
    )
    model = shiftbed.load(with_classifiers / "out" / "classifiers" / "jobs" / first)
    confidences, accuracies = [], []
    for domain in load_dataset("RotatedDigits").domains:
        probabilities = model.predict(domain.inputs)
        confidences.append(probabilities.max(1).mean())
        accuracies.append((probabilities.argmax(1) == domain.labels).mean())
    # DoC is the mean confidence but for a constant, which a line does not see.
    expected = left_out_errors(np.array(confidences), np.array(accuracies))
    assert rows["doc", ""]["ours"] == pytest.approx(expected.mean(), rel=1e-4)
    assert rows["doc", "near"]["ours"] == pytest.approx(expected[:2].mean(), rel=1e-4)
    for name in ("ATC-MC", "doc", "MS-AoL"):
        near, far, every = (rows[name, where]["ours"] for where in ("near", "far", ""))
        assert every == pytest.approx((2 * near + 4 * far) / 6)
    assert (rows["ATC-MC", ""]["published"], rows["ATC-MC", ""]["n"]) == (3.10, 1)
    assert rows["ATC-MC", ""]["difference"] == pytest.approx(rows["ATC-MC", ""]["ours"] - 3.10)


def test_fewer_classifiers_than_the_paper_s_are_said(with_classifiers, monkeypatch):
    three = [Classifier(f"small-{seed}", "small", seed, True, "") for seed in range(3)]
    monkeypatch.setattr("shiftbed.accuracy.benchmark.classifiers", lambda: three)
    (grid,) = shiftbed.benchmark(str(with_classifiers / "mine.yaml"), with_classifiers / "out", parts=["three"]).grids
    assert {row["n"] for row in grid.data} == {2} and all(row["standard_error"] > 0 for row in grid.data)
    assert {row["differs"]["classifiers"] for row in grid.data} == {"2 here, 3 in the paper"}
    assert {row["setting"] for row in grid.data} == {"mean of three"}


@pytest.mark.parametrize(
    ("part", "first"),
    [
        ("CIFAR-10-W, single classifiers", "benchmark cifar-10-w-classifiers --part cifar-resnet44 --keep final"),
        ("CIFAR-10-Cs, 40 classifiers", "benchmark cifar-10-w-classifiers --keep final"),
    ],
)
def test_classifiers_that_are_not_here_are_trained_first(tmp_path, part, first):
    with pytest.raises(DataError, match=re.escape(f"train first: `shiftbed {first} --out {tmp_path}/classifiers`")):
        shiftbed.benchmark("cifar-10-w-accuracy", tmp_path, parts=[part])
    assert {part.name for part in find("cifar-10-w-classifiers").parts} >= {"cifar-resnet44", "cifar-vgg19"}


def test_data_that_are_not_here_are_prepared_first(with_classifiers, tmp_path, monkeypatch):
    asked = with_classifiers / "other.yaml"
    asked.write_text(OF_ACCURACY.replace("dataset: RotatedDigits\n", "dataset: RotatedMNIST\n"))
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    with pytest.raises(DataError, match="RotatedMNIST is not prepared here; run `shiftbed prepare RotatedMNIST` first"):
        shiftbed.benchmark(str(asked), with_classifiers / "out", parts=["one"])


def shown_tables(folder, *words):
    asked = ["tables", str(folder / "out"), "--selection", "training-domain-validation", *map(str, words)]
    return CliRunner().invoke(app, asked)


def test_tables_are_shown_as_the_papers_show_them(folder):
    assert "accuracy of ERM in %" in shown_tables(folder, "--view", "improvement").output
    assert "standard deviations and gap" in shown_tables(folder, "--view", "variance").output
    (folder / "groups.yaml").write_text('first: ["-90%"]')
    assert "first" in shown_tables(folder, "--view", "groups", "--groups", folder / "groups.yaml").output
    assert "There is no view 'spreads'" in str(shown_tables(folder, "--view", "spreads").exception)
    assert "kept neither logits nor weights" in str(shown_tables(folder, "--view", "eoa").exception)


def test_ranks_against_another_sweep(folder, tmp_path):
    asked = {"device": "cpu", "datasets": ["ColoredDigits"]}
    shiftbed.benchmark(str(folder / "mine.yaml"), tmp_path / "other", **asked)
    shiftbed.benchmark(str(folder / "mine.yaml"), tmp_path / "mine", **asked)
    words = ["tables", str(tmp_path / "mine"), "--selection", "oracle", "--against", str(tmp_path / "other")]
    shown = CliRunner().invoke(app, words).output
    assert "ΔR" in shown and "rank in" in shown
