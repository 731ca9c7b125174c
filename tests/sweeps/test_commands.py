"""The commands of sweeps, as a person meets them."""

import json
import shlex
from dataclasses import replace

import pytest

from shiftbed.cli import sweeps as commands
from shiftbed.sweeps.plan import Request, plan, planned, remember_plan
from shiftbed.tables import read_tables
from shiftbed.training.store import LocalStore
from tests.sweeps.finished import finish
from tests.test_cli import shiftbed  # noqa: F401  # a fixture

SMALL = ("sweep", "ColoredDigits", "--algorithms", "ERM,IRM", "--test=-90%", "--steps", "2", "--out", "s")


def test_a_search_once_runs_in_two_stages(shiftbed, tmp_path):  # noqa: F811
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%", "--steps", "2", "--out", "s")
    search = (*command, "--design", "search-once", "--draws", "2", "--workers", "2")
    dry = shiftbed(*search, "--dry-run", "--no-probe").out
    assert "2 jobs, 0 of them done already." in dry
    assert "Then at most 2 jobs that train the winners again." in dry
    ran = shiftbed(*search)
    assert ran.code == 0 and "4 jobs done." in ran.out
    assert "4 jobs done." in shiftbed(*search).out, "the second stage is not trained again either"
    rows = planned(LocalStore(tmp_path / "s")).values()
    assert sorted((row["trial"], row["design"]) for row in rows) == [(t, "search-once") for t in (0, 0, 1, 2)]
    (table,) = read_tables(tmp_path / "s", ["training-domain-validation"])
    assert {estimate.n for estimate in table.estimates.values()} == {3}
    assert "use another folder" in shiftbed(*command, "--draws", "3").err


def test_what_a_sweep_keeps_is_what_the_views_of_ensembles_read(shiftbed, tmp_path):  # noqa: F811
    def swept(keep, *more):
        options = ("--test=-90%", "--steps", "2", "--draws", "2", "--trials", "2", "--out", keep, *more)
        return shiftbed("sweep", "ColoredDigits", "--algorithms", "ERM", *options)

    assert swept("logits", "--keep", "logits").code == 0
    assert "EoA: the sum of the logits of the selected jobs" in shiftbed("tables", "logits", "--view", "eoa").out
    (tmp_path / "plan.yaml").write_text("keep: best\n")
    assert swept("best", "--plan", "plan.yaml").code == 0
    assert "DiWA: the mean of the weights of all draws of a trial" in shiftbed("tables", "best", "--view", "diwa").out
    assert not [*(tmp_path / "best").rglob("logits*")] and not [*(tmp_path / "logits").rglob("weights*")]
    assert "wrong 'keep': it should be 'none', 'final', 'best', 'all' or 'logits'" in swept("x", "--keep", "some").err


@pytest.fixture
def half_done(tmp_path):
    store = LocalStore(tmp_path / "s")
    jobs = plan(Request("ColoredDigits", ["ERM"], draws=2, test_domains=["-90%"]))
    remember_plan(jobs, store)
    finish(store, jobs[0], seconds=60.0)
    return store, jobs[1]


def test_the_command_that_tables_print_runs_the_job_that_is_missing(shiftbed, tmp_path):  # noqa: F811
    store = LocalStore(tmp_path / "s")
    asked = Request("ColoredDigits", ["IRM"], draws=2, test_domains=["-90%"], overrides={"irm_lambda": 5.0})
    jobs = plan(replace(asked, fields={"steps": 2, "precision": "float32"}))
    remember_plan(jobs, store)
    finish(store, jobs[0])
    (table,) = read_tables(store.root, ["training-domain-validation"])
    ((_, command),) = table.grid().commands
    _, *words = shlex.split(command)
    assert "2 jobs done." in shiftbed(*words).out
    (table,) = read_tables(store.root, ["training-domain-validation"])
    assert table.algorithms == ["IRM (irm_lambda = 5.0)"] and not table.missing


def test_a_dry_run_tells_hours_disk_and_warnings(shiftbed, half_done):  # noqa: F811
    command = (
        "sweep",
        "ColoredDigits",
        "--algorithms",
        "ERM",
        "--test=-90%",
        "--draws",
        "2",
        "--out",
        "s",
        "--dry-run",
    )
    found = json.loads(shiftbed(*command, "--json").out)
    assert (found["jobs"], found["done"], found["unknown"]) == (2, 1, [])
    assert found["device_hours"] == pytest.approx(1 / 60) and found["disk_bytes"] > 1000
    out = shiftbed(*command).out
    assert "2 jobs, 1 of them done already.\nAbout 0.017 device-hours (1 min 00 s one by one).\n" in out
    assert "MiB of records" in out and "Note: Each model is tested on one domain" in out


def test_a_plan_in_a_file(shiftbed, tmp_path):  # noqa: F811
    (tmp_path / "plan.yaml").write_text("datasets: ColoredDigits\nalgorithms: [ERM]\nout: s\nsteps: 2\n")
    assert "3 jobs, 0" in shiftbed("sweep", "--plan", "plan.yaml", "--dry-run", "--no-probe").out
    assert "1 job, 0" in shiftbed("sweep", "--plan", "plan.yaml", "--test=-90%", "--dry-run", "--no-probe").out
    (tmp_path / "plan.yaml").write_text("datasets: ColoredDigits\nalgorithm: [ERM]\nout: s\n")
    assert "has no 'algorithm'. Did you mean algorithms" in shiftbed("sweep", "--plan", "plan.yaml").err


def test_a_budget_sets_the_draws(shiftbed):  # noqa: F811
    command = (*SMALL, "--draws", "3", "--dry-run", "--no-probe", "--budget")
    assert "3 draws of every algorithm fit into 9h.\n6 jobs, 0" in shiftbed(*command, "9h").out
    assert "does not hold one draw of every algorithm" in shiftbed(*command, "0.001s").err
    assert "A budget is a time such as 8h" in shiftbed(*command, "soon").err


def test_status_once(shiftbed, half_done):  # noqa: F811
    said = shiftbed("status", "s")
    assert "Nothing runs; the same command finishes the 1 job left." in said.out
    assert json.loads(shiftbed("status", "s", "--json").out)["seconds_left"] == 60


def test_status_follows_a_sweep_until_its_end(shiftbed, half_done, monkeypatch):  # noqa: F811
    naps = iter([lambda: None, lambda: finish(*half_done)])
    monkeypatch.setattr(commands.time, "sleep", lambda seconds: next(naps)())
    said = shiftbed("status", "s", "--watch")
    assert said.out.count("Nothing runs") == 2 and said.out.rstrip().endswith("Next: shiftbed tables s")


def test_ctrl_c_ends_watching(shiftbed, half_done, monkeypatch):  # noqa: F811
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.time, "sleep", interrupt)
    said = shiftbed("status", "s", "--watch")
    assert (said.code, said.err) == (0, "") and said.out.count("Nothing runs") == 1
