"""`shiftbed audit DIR --run` trains the study beside a sweep, continues it, and judges it."""

import json

from typer.testing import CliRunner

from shiftbed.audit.pretraining import run_study
from shiftbed.audit.subject import Subject
from shiftbed.cli import app
from shiftbed.sweeps.domainbed_format import REVISION
from tests.audit.made_sweeps import write_sweep


def test_the_study_runs_beside_the_sweep_and_is_not_run_again(tmp_path):
    folder = tmp_path / "sweep"
    write_sweep(
        folder,
        dataset="RotatedDigits",
        algorithms=("ERM",),
        draws=2,
        trials=1,
        test_domains=("75",),
        fields={"steps": 10},
    )
    command = ["audit", str(folder), "--run", "--stand-in", "0", "--workers", "1", "--json"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout.splitlines()[-1])
    (study,) = [one for one in found["findings"] if one["source"] == "pretraining"]
    rows = study["tables"][0]["rows"]
    assert [row["frozen"] for row in rows if "frozen" in row] == [0, 1, 2, 3]
    assert {row["measure"] for row in rows if "measure" in row} == {"relative gap", "slope", "distance"}
    trained = {path: path.stat().st_mtime_ns for path in (folder / "audit").rglob("done.json")}
    assert len({path.parent.parent.parent for path in trained}) == 2  # jobs trained by steps, and probes
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.exception
    assert json.loads(again.stdout.splitlines()[-1])["findings"] == found["findings"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "audit").rglob("done.json")} == trained


def test_a_stand_in_that_is_no_domain_is_named(tmp_path):
    write_sweep(tmp_path / "sweep", algorithms=("ERM",), draws=1, trials=1, test_domains=("-90%",))
    result = CliRunner().invoke(app, ["audit", str(tmp_path / "sweep"), "--run", "--stand-in", "photo"])
    assert "has no domain 'photo' to stand in" in str(result.exception)


def test_a_dataset_that_only_domainbed_trained_on_is_left_out_of_the_study(tmp_path):
    more = {"algorithms": ("ERM",), "draws": 1, "trials": 1, "fields": {"steps": 2}}
    write_sweep(tmp_path, dataset="RotatedDigits", test_domains=("75",), **more)
    write_sweep(tmp_path, dataset="ColoredDigits", test_domains=("-90%",), **more)
    subject = Subject.read(tmp_path)
    for about in subject.abouts:
        if about["dataset"] == "ColoredDigits":
            about["revision"] = REVISION
    found = run_study(subject, workers=1)
    assert "on RotatedDigits" in found.sentence and "ColoredDigits" not in found.sentence
