"""The commands of sweeps, as a person meets them."""

import json
import os
import shlex
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from shiftbed.cli import sweeps as commands
from shiftbed.cli.notes import training_notes
from shiftbed.cli.shared import show_failures
from shiftbed.data.prepare import prepare
from shiftbed.hashing import canonical
from shiftbed.sweeps.plan import Request, plan, planned, remember_plan
from shiftbed.tables import read_tables
from shiftbed.training.files import JobFiles
from shiftbed.training.store import LocalStore
from tests.sweeps.finished import finish
from tests.test_cli import shiftbed  # noqa: F401  # a fixture

SMALL = ("sweep", "ColoredDigits", "--algorithms", "ERM,IRM", "--test=-90%", "--steps", "2", "--out", "s")


def test_a_search_once_runs_in_two_stages(shiftbed, tmp_path):  # noqa: F811
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%", "--steps", "2", "--out", "s")
    search = (*command, "--design", "search-once", "--draws", "2", "--workers", "2")
    dry = shiftbed(*search, "--dry-run", "--no-probe").out
    assert "2 jobs, 0 of them done already." in dry
    assert "Then at most 2 jobs to train the winners again." in dry
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


def test_weights_of_jobs_that_finished_without_them_are_not_promised(shiftbed, tmp_path):  # noqa: F811
    options = ("--test=-90%", "--steps", "2", "--out", "sweep")
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM", *options)
    assert "without --keep" not in shiftbed(*command).out
    said = " ".join(shiftbed(*command, "--keep", "final", "--draws", "2").out.split())
    assert "1 job had finished before without --keep final, and nothing is kept of what they learned" in said
    assert "`shiftbed best sweep` makes the best model again" in said
    assert "without --keep" not in shiftbed(*command, "--keep", "none", "--draws", "2").out
    assert shiftbed("predict", "sweep").code == 0, "of the second draw they were kept"


def test_every_worker_of_a_deterministic_sweep_is_told(shiftbed, tmp_path):  # noqa: F811
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%", "--steps", "2", "--workers", "1")
    assert shiftbed(*command, "--out", "exact", "--deterministic").code == 0
    assert shiftbed(*command, "--out", "usual").code == 0
    for folder, told in (("exact", True), ("usual", False)):
        (times,) = (tmp_path / folder).glob("jobs/*/times.json")
        assert [attempt["deterministic"] for attempt in json.loads(times.read_text())] == [told]


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
    assert "leave --only out" in shiftbed(*command, "--only", "nosuch").err  # it counted all jobs
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


def test_jobs_that_failed_alike_are_told_once(shiftbed, tmp_path, capsys):  # noqa: F811
    store = LocalStore(tmp_path / "s")
    jobs = plan(Request("ColoredDigits", ["ERM"], draws=4, test_domains=["-90%"]))
    remember_plan(jobs, store)
    why = {job.id: f"Cannot read s/jobs/{job.id}/x: no luck." for job in jobs[:3]} | {jobs[3].id: "Another reason."}
    for job_id, reason in why.items():
        store.put_atomic(JobFiles(job_id).failure, canonical({"why": reason}))
    told = " ".join(shiftbed("status", "s").out.split())
    assert told.count("no luck") == 1 and "3 jobs failed for this reason (`--json` lists them), first " in told
    assert f"failed: {jobs[3].id}: Another reason." in told
    assert json.loads(shiftbed("status", "s", "--json").out)["failures"] == why, "every id can still be had"
    show_failures(why, lambda job_id: f"train {job_id}")
    assert capsys.readouterr().out.count("alone: train ") == 2, "for the first of each reason"


def test_data_that_are_not_here_are_missed_before_anything_is_trained(shiftbed, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "empty"))
    command = ("sweep", "PACS,ColoredDigits", "--algorithms", "ERM", "--steps", "2", "--out", "s")
    said = shiftbed(*command)
    assert (said.code, said.err) == (
        1,
        "shiftbed: PACS is not prepared here; run `shiftbed prepare PACS` first.\n",
    )
    assert not (tmp_path / "s").exists()


def test_jobs_that_are_done_need_no_data(shiftbed, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "empty"))
    asked = Request("PACS", ["ERM"], test_domains=["sketch"], fields={"steps": 2, "precision": "float32"})
    for job in plan(asked):
        finish(LocalStore(tmp_path / "s"), job)
    command = ("sweep", "PACS", "--algorithms", "ERM", "--test", "sketch", "--steps", "2", "--precision", "float32")
    assert "1 job done." in shiftbed(*command, "--out", "s").out


def test_a_recipe_that_makes_large_images_small_says_so(shiftbed, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "empty"))
    options = ("--algorithms", "ERM", "--steps", "2", "--out", "s", "--dry-run", "--no-probe")
    told = " ".join(shiftbed("sweep", "PACS", *options).out.split())
    assert "Recipe quick brings images to 32 px and starts from random weights; --recipe domainbed-head is for" in told
    assert "brings images" not in shiftbed("sweep", "PACS", *options, "--json").out
    for name in ("ColoredDigits", "EmojiStyles", "RotatedDigits", "CIFAR-10"):
        assert training_notes("quick", [name]) == [], "not larger, or what the recipe was made for"
    assert training_notes("ood-bench", ["PACS"]) == [], "it sees 224 pixels"


def test_who_trains_on_a_folder_is_told_that_it_has_changed_since_it_was_packed(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for domain in ("day", "night"):
        folder = tmp_path / "mine" / domain / "cat"
        folder.mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), len(domain), np.uint8)).save(folder / "0.png")
    prepare("mine", size_class="small")
    assert not [note for note in training_notes("quick", ["mine"]) if "changed" in note]
    later = time.time() + 10
    os.utime(tmp_path / "mine" / "day" / "cat", (later, later))  # as a new image there does
    assert "The folder mine has changed since it was prepared" in training_notes("quick", ["mine"])[0]


def test_who_trains_on_groups_is_told_that_they_are_divided_and_what_keeps_them_together(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    rows = ["path,class,domain,group"]
    for number in range(8):
        Image.fromarray(np.full((8, 8, 3), 30 * number, np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'cat' if number % 2 else 'dog'},{'day' if number < 4 else 'night'},{number // 2}")
    (tmp_path / "together.csv").write_text("\n".join(rows))
    (tmp_path / "apart.csv").write_text("\n".join(row.rsplit(",", 1)[0] for row in rows))
    prepare(str(tmp_path / "together.csv"), size_class="small")
    prepare(str(tmp_path / "apart.csv"), size_class="small")
    told = training_notes("quick", ["together"])[-1]
    assert told.startswith("together has groups, which a single job divides") and "-out-grouped keeps them" in told
    assert "protocol k-sources:2 divides" in training_notes("quick", ["together"], "k-sources:2")[-1]
    kept = training_notes("quick", ["together"], "leave-one-domain-out-grouped")
    for notes in (kept, training_notes("quick", ["apart"]), training_notes("quick", ["EmojiStyles"])):
        assert not any("groups" in note for note in notes)


def test_a_sweep_without_a_folder_says_which_option_it_lacks(shiftbed):  # noqa: F811
    said = shiftbed("sweep", "ColoredDigits", "--algorithms", "ERM", "--dry-run")
    assert said.err == "shiftbed: A sweep needs a folder for its records; add --out DIR.\n"


def test_the_notes_of_a_dry_run_fit_the_terminal(shiftbed):  # noqa: F811
    out = shiftbed(*SMALL, "--dry-run", "--no-probe").out
    assert "Note: Each model" in out and max(map(len, out.splitlines())) <= 80
