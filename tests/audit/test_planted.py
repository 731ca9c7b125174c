"""Leaks that a foreign script plants in files are found; clean sweeps raise no alarm."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.audit.verbs import audit_sweep
from shiftbed.data.prepare import prepare
from shiftbed.tables import read_tables, render
from tests.audit.made_sweeps import write_pictures, write_sweep

SCRIPT = Path(__file__).with_name("plant_leaks.py")


def plant(kind, path):
    subprocess.run([sys.executable, str(SCRIPT), kind, str(path)], check=True)


def alarms(folder, **more):
    return {finding.source: finding.sentence for finding in audit_sweep(folder, **more).alarms}


@pytest.fixture(scope="session")
def clean_sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean") / "sweep"
    write_sweep(folder, draws=8, trials=1, test_domains=("-90%", "+90%"))
    return folder


@pytest.fixture
def sweep(clean_sweep, tmp_path):
    shutil.copytree(clean_sweep, tmp_path / "sweep")
    return tmp_path / "sweep"


def test_the_clean_sweep_is_clean(sweep):
    assert alarms(sweep) == {}


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("augmented", "augmented validation", "augments validation images"),
        ("validation", "validation from the test domain", "validate on a domain that they test"),
        ("trained", "test labels in training", "train on labels of a domain that they test"),
        ("narrowed", "search space", "lr of"),
        ("fixed", "search space", "mixup_alpha of Mixup fixed at 0.33"),
        ("thinned", "draws", "CORAL on +90%"),
    ],
)
def test_a_leak_in_the_sweep_is_found(sweep, kind, source, words):
    plant(kind, sweep)
    found = alarms(sweep)
    assert list(found) == [source]
    assert words in found[source]


def test_a_narrowed_space_is_called_so(sweep):
    plant("narrowed", sweep)
    (grid,) = audit_sweep(sweep)["search space"].grids
    assert {row["hyperparameter"]: row["what"] for row in grid.data} == {"lr": "narrowed"}
    assert len(grid.data) == 3  # one for each algorithm


def test_an_algorithm_that_is_not_registered_here_was_not_compared(sweep):
    for path in sweep.glob("jobs/*/job.json"):
        about = json.loads(path.read_text())
        if about["algorithm"] == "CORAL":
            path.write_text(json.dumps({**about, "algorithm": "Mine"}))
    found = audit_sweep(sweep)["search space"]
    assert found.verdict == "unknown"
    assert "the draws of Mine are not known here; name their file with --code." in found.sentence


def test_a_winner_chosen_by_test_accuracy_is_found(sweep):
    table = sweep.parent / "table.json"
    table.write_text(render(read_tables(sweep, ["training-domain-validation"]), "json"))
    assert alarms(sweep, table=table) == {}
    plant("winner", table)
    found = alarms(sweep, table=table)
    assert list(found) == ["published table"]
    assert "the best of their cell on the test domain" in found["published table"]
    (grid,) = audit_sweep(sweep, table=table)["published table"].grids
    assert {row["algorithm"] for row in grid.data} == {"CORAL"}


def published(sweep):
    """A table of the sweep beside it, and its rows."""
    table = sweep.parent / "table.json"
    table.write_text(render(read_tables(sweep, ["training-domain-validation"]), "json"))
    return table, json.loads(table.read_text())


def test_numbers_that_are_not_those_of_the_records_are_found(sweep):
    table, rows = published(sweep)
    assert "all 6 choices" in audit_sweep(sweep, table=table)["published table"].sentence
    for row in rows:
        row["accuracy"] += 10
        for choice in row["chosen"]:
            choice["accuracy"] += 10
    table.write_text(json.dumps(rows))
    found = audit_sweep(sweep, table=table)["published table"]
    assert found.verdict == "alarm"
    assert "15 of 15 numbers of table.json are not those of the records, by up to 10.0 points" in found.sentence
    (grid,) = found.grids
    assert all(row["claimed"] == pytest.approx(row["recorded"] + 10) for row in grid.data)


@pytest.mark.parametrize("asked", [{"draws": 2}, {"trials": 1}, {"draws": 3, "trials": 2}])
def test_a_table_of_the_first_draws_and_trials_is_told_from_a_wrong_one(tmp_path, asked):
    write_sweep(tmp_path / "sweep", draws=4, trials=3)
    tables = read_tables(tmp_path / "sweep", ["training-domain-validation"], **asked)
    (tmp_path / "table.json").write_text(render(tables, "json"))
    found = audit_sweep(tmp_path / "sweep", table=tmp_path / "table.json")["published table"]
    assert found.verdict == "exposed"
    size = f"draws below {asked.get('draws', 4)} and trials below {asked.get('trials', 3)} alone"
    assert f"are those of their selections among {size}; who left the others out" in found.sentence
    rows = json.loads((tmp_path / "table.json").read_text())
    rows[0]["accuracy"] += 1
    (tmp_path / "table.json").write_text(json.dumps(rows))
    assert list(alarms(tmp_path / "sweep", table=tmp_path / "table.json")) == ["published table"]


@pytest.mark.parametrize(("which", "numbers"), [("domain", 15), ("average", 15), ("choice", 15), ("invented", 14)])
def test_one_number_that_is_not_that_of_the_records_is_found(sweep, which, numbers):
    table, rows = published(sweep)
    row = next(row for row in rows if (row["test"] == "average") == (which == "average"))
    number = row["chosen"][0] if which == "choice" else row
    number["accuracy"] += 0.2
    if which == "invented":  # an algorithm that no job trained
        row |= {"algorithm": "Mine", "chosen": []}
    table.write_text(json.dumps(rows))
    found = audit_sweep(sweep, table=table)["published table"]
    assert found.verdict == "alarm" and f"1 of {numbers} numbers" in found.sentence


def test_numbers_as_they_are_printed_are_those_of_the_records(sweep):
    table, rows = published(sweep)
    for row in rows:
        row["accuracy"] = round(row["accuracy"], 1)
        for choice in row["chosen"]:
            choice["accuracy"] = round(choice["accuracy"], 1)
    table.write_text(json.dumps(rows))
    assert alarms(sweep, table=table) == {}


def test_a_table_of_domains_that_are_tested_in_several_companies_is_that_of_its_selection(tmp_path):
    sweep = tmp_path / "sweep"
    write_sweep(sweep, dataset="RotatedDigits", algorithms=("ERM",), draws=2, trials=1, protocol="leave-pair-out")
    table, _ = published(sweep)
    assert alarms(sweep, table=table) == {}


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A folder of pictures: three domains, two classes, and a manifest of them."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "root"))
    folder, _ = write_pictures(tmp_path)
    return folder


def audited_data(path):
    prepare(str(path))
    folder = path.parent / "sweep"
    write_sweep(folder, dataset=path.stem, algorithms=("ERM",), draws=1, trials=1)
    return audit_sweep(folder)["duplicates"]


def test_pictures_that_differ_are_no_duplicates(images):
    assert audited_data(images).verdict == "clear"


def test_copies_encoded_anew_in_a_training_folder_are_found(images):
    plant("reencoded", images)
    found = audited_data(images)
    assert found.verdict == "alarm"
    (row,) = found.grids[0].data
    assert (row["images"], row["identical"], row["same_label"]) == (12, 0, 12)
    assert {row["smaller"], row["larger"]} == {"one", "two"}
    assert [name.split("/")[-3] for name in row["example"]] == ["one", "two"]
    assert f"Such as {row['example'][0]} and {row['example'][1]}." in found.grids[0].notes


def test_one_small_picture_hides_no_copies_of_the_others(images):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), np.uint8)
    for domain, small in zip(("one", "two"), pixels, strict=True):
        Image.fromarray(small).save(images / domain / "cat" / "! small.png")  # before the others
    plant("reencoded", images)
    (row,) = audited_data(images).grids[0].data
    assert (row["images"], row["identical"], row["same_label"]) == (12, 0, 12)
    copy, original = (Path(name).stem for name in row["example"])
    assert copy == f"copy-{original}"


def test_test_labels_in_a_manifest_are_found(images):
    manifest = images.parent / "listed.csv"
    plant("labels", manifest)
    found = audited_data(manifest)
    assert found.verdict == "alarm"
    (row,) = found.grids[0].data
    assert (row["images"], row["identical"], row["same_label"]) == (12, 12, 12)


def test_ten_clean_sweeps_raise_at_most_one_alarm(tmp_path):
    raised = []
    for seed in range(10):
        folder = tmp_path / str(seed)
        write_sweep(folder, algorithms=("ERM", "Mixup"), draws=4, trials=1, test_domains=("-90%",), seed=seed)
        raised += audit_sweep(folder).alarms
    assert len(raised) <= 1


def test_the_page_fits_80_columns_and_the_json_has_the_same_verdicts(sweep):
    plant("narrowed", sweep)
    found = audit_sweep(sweep)
    assert max(map(len, found.text().splitlines())) <= 80
    assert "ALARM   search space" in found.text()
    as_json = json.loads(json.dumps(found.as_dict()))
    assert [one["verdict"] for one in as_json["findings"]] == [one.verdict for one in found.findings]


def test_a_blind_audit_reads_no_accuracy(sweep, monkeypatch):
    from shiftbed.sweeps.records import Records

    asked = []
    whole = Records.tasks
    monkeypatch.setattr(Records, "tasks", lambda self, metrics: asked.extend(metrics) or whole(self, metrics))
    plant("narrowed", sweep)
    found = audit_sweep(sweep, blind=True)
    assert asked == []
    assert [one.source for one in found.alarms] == ["search space"]
    assert found["test accuracies"].verdict == "unknown"
