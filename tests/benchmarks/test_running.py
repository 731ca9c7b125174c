"""Benchmarks that run: the whole path on built-in data, and what is said when one cannot."""

import json
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import shiftbed
from shiftbed.benchmarks import find, job_count, narrowed, read
from shiftbed.cli import app
from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.pool import Progress
from shiftbed.sweeps.records import outcomes
from shiftbed.training.run import run_job

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


def cli(*words):
    return CliRunner().invoke(app, ["benchmark", *map(str, words)])


def test_a_dry_run_counts_jobs_and_those_that_are_done(folder):
    words = ["--file", folder / "mine.yaml", "--out", folder / "out", "--trials", 3, "--dry-run", "--json"]
    shown = json.loads(cli(*words).output)
    assert (shown["jobs"], shown["done"]) == (6, 2)
    assert "6 jobs, 2 of them done already." in cli(*words[:-1]).output


def test_a_dry_run_needs_neither_data_nor_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    shown = cli(
        "domainbed", "--datasets", "PACS,VLCS", "--draws", 3, "--trials", 1, "--out", tmp_path / "o", "--dry-run"
    )
    assert "540 jobs, 0 of them done already." in shown.output  # 2 × 10 sets of test domains × 9 algorithms × 3


def test_the_list_names_every_benchmark():
    shown = CliRunner().invoke(app, ["benchmarks", "--json"])
    assert {row["name"]: row["jobs"] for row in json.loads(shown.output)}["domainbed"] == 47_520


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
