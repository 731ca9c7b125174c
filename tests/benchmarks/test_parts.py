"""What of a folder belongs to a part of a benchmark: its rows, and the domains that it tests."""

from dataclasses import replace

import pytest

from shiftbed.benchmarks import benchmark, done_count, find, job_count, narrowed, request_of
from shiftbed.benchmarks.spec import parse
from shiftbed.sweeps.plan import plan
from shiftbed.sweeps.stages import second_stage
from shiftbed.training.store import LocalStore
from tests.made_records import made_folder

COLOURED = "ColoredMNIST-OoD-Bench"
BY_DOMAIN = {"+90%": 0.8, "+80%": 0.7, "-90%": 0.3}


def accuracy(job, split, _):
    """80, 70 and 30 % by the domain that is tested, and a point more in every trial."""
    return BY_DOMAIN[job.task.test_domains[0]] + job.trial / 100


def coloured(root, domains):
    """OoD-Bench's ERM on ColoredMNIST, tested on other domains than the paper's."""
    (part,) = narrowed(find("ood-bench-correlation"), [COLOURED], ["ERM"]).parts
    made_folder(root, plan(replace(request_of(part, "float32"), test_domains=domains)), accuracy)
    asked = {"datasets": [COLOURED], "algorithms": ["ERM"], "train": False}
    (grid,) = benchmark("ood-bench-correlation", root, **asked).grids
    return grid, {row["column"]: row for row in grid.data}


def test_a_domain_that_the_paper_does_not_test_is_not_averaged_over(tmp_path):
    grid, rows = coloured(tmp_path, ())
    assert grid.columns == ["-90%", "Avg"]
    assert rows["Avg"]["ours"] == pytest.approx(31)  # and not 61, the mean over three domains
    assert (rows["Avg"]["published"], rows["Avg"]["difference"]) == (29.9, pytest.approx(1.1))


def test_a_domain_that_the_paper_tests_and_the_folder_lacks_leaves_no_average(tmp_path):
    (part,) = narrowed(find("domainbed"), ["ColoredMNIST"], ["ERM"], selections=["oracle"]).parts
    made_folder(tmp_path, plan(replace(request_of(part, "float32"), test_domains=("+90%", "+80%"))), accuracy)
    asked = {"datasets": ["ColoredMNIST"], "algorithms": ["ERM"], "selections": ["oracle"], "train": False}
    (grid,) = benchmark("domainbed", tmp_path, **asked).grids
    rows = {row["column"]: row for row in grid.data}
    assert rows["+90%"]["ours"] == pytest.approx(81) and rows["+90%"]["difference"] is not None
    assert rows["-90%"]["ours"] is None and rows["Avg"]["ours"] is None  # not 76 beside the paper's 58.5
    assert rows["Avg"]["published"] == 58.5


def test_the_winners_of_a_search_count_as_done_once_they_were_trained_again(tmp_path):
    mine = parse(
        "{name: mine, version: 1, kind: sweep, summary: Mine, parts: [{dataset: ColoredDigits, recipe: quick, "
        'algorithms: [ERM], test: ["-90%"], search: {design: search-once, draws: 2, trials: 3}}]}',
        "mine.yaml",
    )
    request = request_of(mine.parts[0], "float32")
    made_folder(tmp_path, plan(request), accuracy, design="search-once")
    assert done_count(mine, tmp_path, "float32") == 2
    made_folder(tmp_path, second_stage(request, LocalStore(tmp_path)), accuracy, design="search-once")
    assert done_count(mine, tmp_path, "float32") == job_count(mine.parts[0]) == 2 + 2
