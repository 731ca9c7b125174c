"""The committed results: the page is what the records give, its counts are right, and nothing of it needs the data."""

import itertools
import json
import re
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import studies
from typer.testing import CliRunner

from shiftbed.algorithms import ALGORITHMS
from shiftbed.benchmarks import benchmark, find, job_count, narrowed, request_of
from shiftbed.cli import app
from shiftbed.errors import UnknownNameError
from shiftbed.hashing import canonical
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.plan import plan, remember_plan
from shiftbed.tables import Estimate
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore
from tests.made_records import made_job

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "results.py"))
MISSING = ("IRM", ("-90%",), 1, 1)  # algorithm, test domains, trial, draw
OPTIONS = (("datasets", "ColoredMNIST"), ("algorithms", "ERM,IRM"), ("draws", "2"), ("trials", "2"))
OPTIONS += (("selection", "training-domain-validation"),)


def test_the_page_is_what_the_records_give():
    assert SCRIPT["page"]() == (ROOT / "docs" / "results.md").read_text(encoding="utf-8"), "run scripts/results.py"


def test_links_and_pictures_of_the_page_are_there():
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links and links <= anchors
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(pictures) > 5 and all((ROOT / "docs" / picture).is_file() for picture in pictures)


def test_the_page_says_how_often_the_same_experiment_does_not_agree_with_itself():
    """Our errors divide by n − 1, those of the papers by n."""
    ours, theirs = np.random.default_rng(0).normal(size=(2, 100_000, 3))

    def apart(trials):
        error = ours[:, :trials].std(1, ddof=1) / trials**0.5 if trials > 1 else 0
        return (abs(ours[:, :trials].mean(1) - theirs.mean(1)) > error + theirs.std(1) / 3**0.5).mean()

    assert [apart(trials) for trials in (3, 2, 1)] == pytest.approx([0.3, 1 / 3, 0.72], abs=0.01)
    says = "three of ten cells would not agree, a third if one of them has two trials, and seven of ten if it has one"
    assert says in " ".join(SCRIPT["HEAD"].split())
    assert Estimate.of(ours[0].tolist()).standard_error == pytest.approx(ours[0].std(ddof=1) / 3**0.5)


def test_the_records_are_small():
    assert sum(file.stat().st_size for file in (ROOT / "docs" / "results").rglob("*") if file.is_file()) < 20e6


def test_had_training_ended_earlier_the_oracle_would_have_chosen_then():
    """Two draws whose order changes after step 10, in two trials; a third trial lacks a draw."""

    def job(draw, trial, early, late):
        rows = [(step, {"c/in": value - 0.1, "c/out": value}) for step, value in ((10, early), (20, late))]
        return made_job(draw, rows, trial=trial)

    script = runpy.run_path(str(ROOT / "scripts" / "last_step.py"))
    jobs = [job(0, 0, 0.4, 0.9), job(1, 0, 0.6, 0.5), job(0, 1, 0.4, 0.7), job(1, 1, 0.8, 0.5), job(0, 2, 1.0, 1.0)]
    script["whole_trials"].__globals__["finished_jobs"] = lambda store: jobs
    whole = script["whole_trials"]([Path("sweep")], "c", "ERM")
    assert whole == jobs[:4]
    ends = [script["at_step"](whole, "c", step) for step in (10, 19, 20)]
    assert ends == ["60.0† ±10.0", "60.0† ±10.0", "70.0† ±10.0"]
    assert script["within"](whole, "c", (1, 20)) == "65.0† (60.0 to 70.0)"
    rows = script["page"]([Path("sweep")], "c", ["ERM"], [20], [(1, 20)], each_trial=True).splitlines()[2:5]
    assert rows == [
        "| ERM | 2 | 70.0† ±10.0 | 65.0† (60.0 to 70.0) |",
        "| ERM | only 0 | 80.0† | 65.0† (50.0 to 80.0) |",
        "| ERM | only 1 | 60.0† | 65.0† (60.0 to 70.0) |",
    ]


def test_of_models_of_one_update_the_one_is_chosen_that_does_best_on_domains_left_out(tmp_path):
    script = runpy.run_path(str(ROOT / "docs" / "results" / "first_update.py"))
    page = script["page"]
    page.__globals__.update(DRAWS=2, TRIALS=2, best_of_later=lambda *_: (SimpleNamespace(score=0.45, step=700), 0.6))

    def models(draw, left_out, alone):
        """Every pair of domains has the same accuracy on both, every domain alone another one."""
        each = [{"tested": [one], "accuracy": {one: alone}} for one in page.__globals__["DOMAINS"]]
        pairs = itertools.combinations(page.__globals__["DOMAINS"], 2)
        each += [{"tested": pair, "accuracy": dict.fromkeys(pair, left_out)} for pair in pairs]
        return [{**one, "draw": draw, "trial": trial} for one in each for trial in range(2)]

    (tmp_path / "cell.json").write_text(json.dumps(models(0, 0.5, 0.2) + models(1, 0.4, 0.9)))
    (tmp_path / "job.json").write_text(json.dumps(models(0, 0.4, 0.2) + models(1, 0.3, 0.9)))
    lines = page(tmp_path, Path("sweep")).splitlines()
    assert lines[2].endswith("45.0, 60.0 at step 700 | 60.0 |"), "every 100 steps"
    assert lines[3].endswith("50.0, 20.0 at step 1 | 20.0 |"), "the better score, not the better test accuracy"
    assert lines[5].endswith("| all | 20.0 ±0.0 | 20.0 ±0.0 | 20.0 ±0.0 | 20.0 ±0.0 |")
    assert lines[6].endswith("45.0, 60.0 at step 700 | 60.0 |"), "what scores less than a later model is not chosen"


def test_two_programs_are_compared_by_the_jobs_that_both_have(tmp_path):
    script = runpy.run_path(str(ROOT / "scripts" / "job_by_job.py"))
    rows = [(10, {"c/in": 0.9, "c/out": 0.9}), (20, {"c/in": 0.5, "c/out": 0.9})]
    jobs = [made_job(draw, [*rows[:1], (20, {"c/in": 0.4 + 0.1 * draw, "c/out": 0.9})]) for draw in range(4)]
    script["of_sweep"].__globals__["finished_jobs"] = lambda store: [*jobs, made_job(0, rows, tested=("a",))]
    theirs = [{"trial": 0, "draw": draw, "rows": [{"step": 20, "in": 0.3 + 0.1 * draw}]} for draw in range(3)]
    (tmp_path / "ERM-once.json").write_text(json.dumps(theirs))
    assert "| ERM | once | 3 | 50.0 | 40.0 | +10.0 ±0.0 | 1.00 |" in script["page"](Path("sweep"), tmp_path, "c")


def test_every_rung_has_as_many_jobs_as_were_asked_for():
    counts = {one.folder: sum(map(job_count, one.asked.parts)) for one in SCRIPT["LADDER"] if hasattr(one, "asked")}
    assert counts == {
        "ood-bench-table-3": 6 * 5,
        "ood-bench-figure-4": job_count_of("ood-bench-figure-4"),
        "ood-bench-coloredmnist": 3 * 16 * 20,
        "ood-bench-as-there": 2 * 20,
        "domainbed-coloredmnist": 3 * (3 + 3) * 20,  # of three algorithms, with pairs for domain cross-validation
        "domainbed-as-coded": 3 * 20,
        "builtin-emoji": len(list(ALGORITHMS)) * 7 * 4,
        "pacs-128px": 8 * 4 * 3,
        "pacs-128px-scratch": 8 * 4 * 3,
        "domainbed-rotatedmnist": 9 * 6 * 5,
        "nico-table-1": 5,
    }
    rules = ["training-domain-validation", "oracle"]
    asked = narrowed(find("domainbed"), ["ColoredMNIST"], trials=1, selections=rules)
    assert job_count(asked.parts[0]) == 540
    with pytest.raises(UnknownNameError, match=r"has no selection 'oracles'\. Did you mean oracle\?"):
        narrowed(find("domainbed"), selections=["oracles"])


def test_nico_s_protocol_takes_any_dataset_and_made_data_none():
    (part,) = narrowed(find("nico-table-1"), ["EmojiStyles"]).parts
    assert (part.name, part.dataset, job_count(part)) == ("EmojiStyles", "EmojiStyles", 5)
    with pytest.raises(UnknownNameError, match=r"no dataset 'EmojiStyle'\. Did you mean EmojiStyles"):
        narrowed(find("nico-table-1"), ["EmojiStyle"])
    with pytest.raises(UnknownNameError, match="Benchmark ood-bench-table-3 has no dataset 'PACS'"):
        narrowed(find("ood-bench-table-3"), ["PACS"])


def job_count_of(name):
    return sum(map(job_count, find(name).parts))


def test_what_was_not_measured_is_not_measured_to_be_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("shiftbed.shift.studies.study", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("shiftbed.shift.nico.covariate_and_concept", lambda *_, **__: 1 / 0)
    for name, part in (("ood-bench-figure-4", "a"), ("nico-table-1", "PACS")):
        (grid,) = benchmark(name, tmp_path, parts=[part], train=False).grids
        assert not grid.rows
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made records of DomainBed's ColoredMNIST in the arithmetic of a GPU, compacted; one job is missing.

    Draw 1 has the better validation. Its test accuracy is 0.5 in trial 0 and 0.7 in trial 1, everywhere.
    """
    made = LocalStore(tmp_path_factory.mktemp("results") / "made")
    rules = ["training-domain-validation"]
    asked = narrowed(find("domainbed"), ["ColoredMNIST"], ["ERM", "IRM"], draws=2, trials=2, selections=rules)
    (part,) = asked.parts
    jobs = plan(request_of(part, "bf16"))
    remember_plan(jobs, made)
    for job in jobs:
        if (job.algorithm, tuple(job.task.test_domains), job.trial, job.draw) == MISSING:
            continue
        shares = {"validation": 0.6 + 0.1 * job.draw, "test": (0.5 if job.draw else 0.9) + 0.2 * job.trial * job.draw}
        splits = {s.name: {"accuracy": shares[s.role], "count": 10} for s in job.task.splits if s.role in shares}
        result = {"status": "done", "step": 100, "records": [{"step": 100, "splits": splits}]}
        attempt = {"host": "h", "device": "GPU", "started": 10.0, "seconds": 360.0, "steps": 100, "torch": "2"}
        files = JobFiles(job.id)
        for key, content in ((files.job, job.describe()), (files.done, result), (files.times, [attempt])):
            (made.root / key).parent.mkdir(parents=True, exist_ok=True)
            (made.root / key).write_bytes(canonical(content))
    compact(made)
    kept = made.root.parent / "kept"
    words = ["bundle", str(made.root), "--out", str(kept) + ".zip", "--metrics", "accuracy,count"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, ["merge", str(kept) + ".zip", "--out", str(kept)]).exit_code == 0
    shutil.rmtree(made.root)
    return kept


@pytest.fixture
def study(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "no data"))
    return studies.BenchmarkStudy(3, "Made", str(folder), "domainbed", OPTIONS, ("ColoredMNIST",))


def test_jobs_and_hours_are_counted(study):
    words = list(study.counts())
    assert words == [
        "Jobs done: trial 0: 12 of 12; trial 1: 11 of 12.",
        "Costs: 2.30 hours of jobs in 0.10 hours of GPU.",
    ]
    assert not study.is_whole()


def test_a_trial_that_lacks_a_job_counts_in_no_cell_of_it_nor_in_the_average(study):
    (grid,) = study.tables
    rows = {name: [entry.text for entry in entries] for name, entries in grid.rows}
    assert rows["ERM"] == ["60.0 ±10.0"] * 4  # half the distance of two trials
    assert rows["IRM"] == ["60.0 ±10.0"] * 2 + ["50.0 (1)"] * 2
    text = study.page()
    assert "(n) beside a number: its n, not 2." in text
    assert "Not counted, since jobs of them are missing: IRM (trial 1)." in text
    assert "n: 1 in 2 cells, 2 in 6 cells." in text  # -90% of IRM, and its average


def test_the_command_shows_the_table_without_data_and_writes_nothing(study, folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    words = [word for name, value in OPTIONS for word in (f"--{name}", value)]
    shown = CliRunner().invoke(app, ["benchmark", "domainbed", *words, "--out", str(folder), "--no-train"])
    assert shown.exit_code == 0 and "60.0 ±10.0" in shown.output
    assert "Not counted, since jobs of them are missing: IRM (trial 1)." in " ".join(shown.output.split())
    assert "1 planned job has not finished (IRM on " in " ".join(shown.output.split())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_command_says_that_a_folder_has_nothing_of_what_is_asked_for(folder):
    words = ["--datasets", "ColoredMNIST", "--steps", "7", "--out", str(folder), "--no-train"]
    said = CliRunner().invoke(app, ["benchmark", "domainbed", *words]).exception
    assert "is of domainbed as it is asked for here; without --no-train they are run" in str(said)


def test_ours_and_the_paper_s_are_drawn(study, folder, tmp_path, monkeypatch):
    """ERM is the paper's experiment but for its numbers of draws: its circles are hollow."""
    shown = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.errorbar", lambda axis, x, y, **look: shown.append((x, y, look["label"], look["mfc"]))
    )
    words = [word for name, value in OPTIONS for word in (f"--{name}", value)]
    words += ["--out", str(folder), "--no-train", "--figure", str(tmp_path / "both.svg")]
    drawn = CliRunner().invoke(app, ["benchmark", "domainbed", *words])
    assert drawn.exit_code == 0 and (tmp_path / "both.svg").stat().st_size > 1000
    (x, y, name, fill), (published, below, paper, _) = shown[:2]  # where colour agrees most
    assert (x, name, fill) == (pytest.approx([60, 60]), "ours, where the experiment may differ", "white")
    assert (published, paper) == ([72.7, 72.0], "the paper's") and y < below
    assert shown[-2][0] == pytest.approx(
        [60, 50]
    )  # averages: IRM's of trial 0 alone, since a job of the other is missing
    assert shown[-1][0] == [52.0, 51.8]


def test_what_is_not_run_says_how_to(study):
    text = replace(study, folder="nowhere").page()
    assert "Not run yet: 24 jobs." in text and "shiftbed prepare ColoredMNIST\nshiftbed benchmark domainbed " in text


def cell(ours, error, published, spread, **differs):
    numbers = {"ours": ours, "standard_error": error, "n": 1 if error is None else 3}
    return {
        "row": "ERM",
        "column": "a",
        **numbers,
        "published": published,
        "published_spread": spread,
        "differs": differs,
    }


def test_agreement_is_within_both_errors_and_of_the_same_experiment_alone():
    rows = [cell(50.0, 1.0, 52.0, 1.0), cell(50.0, 1.0, 52.1, 1.0), cell(1.0, 1.0, 9.0, 1.0, steps="2 here")]
    counted, agreed = studies.Agreement(tuple(rows), 1).words()
    assert counted == "n: 3 in 3 cells."
    assert agreed == "1 of 2 cells agree with the paper's. Others: ERM, a: 50.0 and 52.1 ± 1.0."
    _, alone = studies.Agreement((cell(50.04, None, 50.0, 0.0, trials="1 here"),), 1).words()
    assert alone == "1 of 1 cells agree with the paper's (ours have no error yet, n = 1)."
