"""Blind sweeps: nothing reads their test numbers before somebody opens them."""

import json

import pytest
from typer.testing import CliRunner

import shiftbed
from shiftbed.accuracy.study import judge_methods
from shiftbed.cli import app
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.report.choosing import best
from shiftbed.report.models import predictions
from shiftbed.sweeps import verbs
from shiftbed.sweeps.blind import is_sealed, opening, seal, sealed, unblind
from shiftbed.sweeps.bundle import bundle, merge
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.domainbed_format import export_domainbed, import_domainbed
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.sweeps.records import Records, finished_jobs
from shiftbed.tables import read_tables
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from tests.conftest import tiny_job
from tests.sweeps.finished import finish

SEALED = r"The test numbers of .* are sealed, since the sweep is blind; `shiftbed unblind .*` opens them"


def sealed_sweep(folder, compacted=False):
    """A blind sweep of which every test number is garbage: to read one is an error."""
    store = LocalStore(folder)
    seal(store)
    jobs = plan(Request("ColoredDigits", "ERM", draws=2, test_domains=["-90%"], fields={"steps": 2}))
    remember_plan(jobs, store)
    for draw, job in enumerate(jobs):
        finish(store, job, validation=0.5 + 0.1 * draw, test=0.25)
    if compacted:
        compact(store)
        for path in store.root.glob("jobs/*/done.json"):
            path.unlink()
    for path in [*store.root.glob("jobs/*/test-*"), *store.root.glob("parts/*.test.parquet")]:
        path.write_bytes(b"sealed")
    return store


@pytest.fixture(params=["loose", "compacted"])
def sweep(request, tmp_path):
    return sealed_sweep(tmp_path / "sweep", request.param == "compacted")


def test_readers_open_no_test_number(sweep):
    assert is_sealed(sweep)
    for job in finished_jobs(sweep):
        assert set(job.rows[-1]["splits"]) == {"+90%/out", "+80%/out"}
    with Records(sweep) as records:
        (task,) = records.tasks(["accuracy"])
    assert sorted(task.split("+90%/out", "accuracy").ravel()) == [0.5, 0.6]
    with pytest.raises(StoreError, match=r"damaged|cannot be read"):  # so this test would notice
        list(finished_jobs(sweep, test=True))


def test_verbs_that_show_test_numbers_say_that_they_are_sealed(sweep, tmp_path):
    folder = str(sweep.root)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "results.jsonl").touch()
    for verb in (
        lambda: read_tables(folder),
        lambda: shiftbed.read_tables(folder, ["oracle"]),
        lambda: shiftbed.write_page(folder),
        lambda: best(folder, tmp_path / "best", selection="domain-cross-validation"),
        lambda: shiftbed.audit_sweep(folder, study=lambda subject: None),
        lambda: shiftbed.audit_sweep(folder, against=folder),
        lambda: shiftbed.train("ColoredDigits", "ERM", "-90%", folder, steps=2),
        lambda: export_domainbed(folder, tmp_path / "runs"),
        lambda: import_domainbed(tmp_path / "runs", folder),
    ):
        with pytest.raises(StoreError, match=SEALED):
            verb()


def test_the_command_that_opens_them_can_be_copied():
    assert "`shiftbed unblind 'my sweep'` opens them" in sealed("my sweep")


def test_status_and_audit_go_without_them(sweep):
    folder = str(sweep.root)
    said = CliRunner().invoke(app, ["status", folder]).output
    assert f"`shiftbed unblind {folder}` opens them" in " ".join(said.split())
    assert json.loads(CliRunner().invoke(app, ["status", folder, "--json"]).output)["sealed"]
    found = shiftbed.audit_sweep(folder)
    assert found["search space"].verdict == "clear"
    assert (found["test accuracies"].verdict, "are sealed" in found["test accuracies"].sentence) == ("unknown", True)
    assert "oracle selection" not in [finding.source for finding in found.findings]


def test_an_honest_rule_chooses_without_them(tmp_path):
    store = sealed_sweep(tmp_path / "sweep")
    assert best(store.root, tmp_path / "best").choice.draw == 1
    with pytest.raises(StoreError, match="are sealed, since the sweep is blind"):
        predictions(tmp_path / "best")
    assert predictions(tmp_path / "best", domains=["+90%"]).count("train") > 100
    unblind(store.root)
    assert "test" in predictions(tmp_path / "best", domains=["-90%"])


def test_of_models_that_a_blind_sweep_kept_no_test_label_is_shown_either(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    seal(store)
    job = tiny_job("ERM")
    run_job(job, store, keep="final")
    monkeypatch.chdir(tmp_path / "jobs" / job.id)
    for run in (tmp_path, tmp_path / "jobs" / job.id, ".", "weights.safetensors"):
        with pytest.raises(StoreError, match=SEALED):
            predictions(run)
        assert predictions(run, domains=["+90%"]).count("train") > 100
    with pytest.raises(StoreError, match=SEALED):
        judge_methods(tmp_path, tmp_path / "out", on="ColoredDigits")
    assert not (tmp_path / "out").exists()
    unblind(tmp_path)
    assert "test" in predictions(".", domains=["-90%"])


def finished_sweep(folder, blind):
    store = LocalStore(folder)
    if blind:
        seal(store)
    for job in plan(Request("ColoredDigits", "ERM", test_domains=["-90%"], fields={"steps": 2})):
        finish(store, job, test=0.25)
    return store


def test_a_bundle_of_a_sealed_sweep_is_sealed_and_has_all(tmp_path):
    sweep, copy = finished_sweep(tmp_path / "sweep", blind=True), LocalStore(tmp_path / "copy")
    bundle(sweep.root, tmp_path / "sweep.zip")
    merge([tmp_path / "sweep.zip"], copy.root)
    assert is_sealed(copy)
    unblind(copy.root)
    assert list(finished_jobs(copy)) == list(finished_jobs(sweep, test=True))


def test_sealed_and_open_sweeps_are_not_united(tmp_path):
    blind, other = finished_sweep(tmp_path / "blind", True), finished_sweep(tmp_path / "other", False)
    for one, two in ((blind, other), (other, blind)):
        with pytest.raises(StoreError, match="A blind sweep and one that is not cannot be united in"):
            merge([one.root], two.root)


def test_opening_is_for_good_and_the_audit_tells(tmp_path):
    folder = finished_sweep(tmp_path, blind=True).root
    assert opening(LocalStore(folder)) is None
    said = " ".join(CliRunner().invoke(app, ["unblind", str(folder)]).output.split())
    opened = opening(LocalStore(folder))
    assert f"Opened on {opened.date}, after 1 job;" in said
    assert unblind(folder) == opened, "the first time counts"
    (table,) = read_tables(folder, ["training-domain-validation"])
    assert table.accuracies("ERM", table.columns[0]) == {0: 25.0}
    words = shiftbed.audit_sweep(folder)["query budget"].sentence
    assert f"was blind until {opened.date}, when 1 job had finished, now 1." in words
    seal(LocalStore(folder))
    assert not is_sealed(LocalStore(folder))


def test_a_sweep_is_blind_from_its_first_job_on(tmp_path):
    request = Request("ColoredDigits", "ERM", test_domains=["-90%"], fields={"steps": 2})
    finished_sweep(tmp_path / "seen", blind=False)
    with pytest.raises(StoreError, match="has finished jobs; choose a new folder"):
        shiftbed.sweep(request, tmp_path / "seen", blind=True)
    with pytest.raises(StoreError, match="is no blind sweep"):
        unblind(tmp_path / "seen")
    looking = Request(
        "ColoredDigits", "ERM", trials=2, design="search-once", selections=["training-domain-validation", "oracle"]
    )
    with pytest.raises(ShiftbedError, match="would choose by oracle, which reads test numbers"):
        shiftbed.sweep(looking, tmp_path / "new", blind=True)
    seal(LocalStore(tmp_path / "sealed"))
    with pytest.raises(ShiftbedError, match="would choose by oracle, which reads test numbers"):
        verbs.dry_run(looking, tmp_path / "sealed", probe=False)
    with pytest.raises(ShiftbedError, match="and the sweep is blind"):
        verbs.within_budget(looking, tmp_path / "sealed", "1h")


def test_the_command_seals_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(verbs, "plan", lambda request: [])
    options = ["--algorithms", "ERM", "--test=-90%", "--blind", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, ["sweep", "ColoredDigits", *options]).exit_code == 0
    assert is_sealed(LocalStore(tmp_path))
