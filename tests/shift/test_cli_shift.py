import json
from itertools import combinations

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import shiftbed
from shiftbed.cli import app, console
from shiftbed.cli import shift as cli_shift
from shiftbed.data import load
from shiftbed.data.dataset import MultiDomainDataset
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.protocols import LeaveOut
from shiftbed.shift import estimators, features, ratio
from shiftbed.shift.bounds import Bounds, FiniteSampleTerms, predictor, unlearned
from shiftbed.shift.closed_forms import CLOSED_FORMS
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.matrix import Cell, ShiftMatrix
from shiftbed.shift.measure import measure_shift
from shiftbed.shift.measures import estimate
from shiftbed.sweeps.blind import seal
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    moments = {"mlp": ratio.Training(1e-2, 32, 1, 20), "mlp-390": ratio.Training(1e-3, 32, 1, 5)}
    monkeypatch.setattr(ratio, "TRAINING", moments)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """What is said is tested here, not where its lines end."""
    monkeypatch.setattr(console, "_width", 400)


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["shift", *arguments, "--device", "cpu"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_built_in_dataset_is_measured_and_ends_in_a_picture(tmp_path):
    said = call("ColoredDigits", "--runs", "2", "--most", "100", "--out", str(tmp_path))
    assert "diversity" in said and "correlation" in said and "total variation is at least" in said
    assert "kept 100 of 1,198" in said or "kept 99 of 1,198" in said
    assert (tmp_path / "ColoredDigits-plane.png").stat().st_size > 5000
    assert "Next: shiftbed shift ColoredDigits --matrix" in said


def test_a_share_that_chance_gives_bounds_no_total_variation():
    told = estimators._estimate("accuracy", 0.915, 0.01, 1000)
    assert cli_shift.bound_in_words(told).endswith("their total variation is at least 0.791.")  # 0.915 − 1.96 · 0.01
    for accuracy in (0.48, 0.527):
        said = cli_shift.bound_in_words(estimators._estimate("accuracy", accuracy, 0.018, 1000))
        assert "at least" not in said and "chance gives too" in said


def test_few_examples_that_are_all_told_apart_may_share_some_inputs():
    """None of twenty wrong leaves three in twenty: it was said that their total variation is at least 1.000 ± 0.000."""
    said = cli_shift.bound_in_words(estimators._estimate("accuracy", 1.0, 0.0, 20))
    assert said.endswith("1.000 (95 %: 0.850 to 1.000): their total variation is at least 0.700.")


def test_json_is_what_the_folder_keeps(tmp_path):
    said = call("ColoredDigits", "--runs", "1", "--most", "100", "--no-baseline", "--json", "--out", str(tmp_path))
    read = json.loads(said)
    assert read == json.loads((tmp_path / "ColoredDigits.json").read_text())
    assert read["method"] == "ratio" and 0 <= read["correlation"]["value"] <= 1
    assert read["without_shift"] is None


def test_without_labels_the_measures_that_need_none_still_run(tmp_path, monkeypatch):
    made = CLOSED_FORMS["mean moved by 4"].dataset(100)
    p, q = made.domains
    unlabelled = MultiDomainDataset(made.card, (p, type(q)("q", q.inputs, np.full(100, -1))))
    monkeypatch.setattr(features, "load", lambda name: unlabelled)
    said = call("closed form", "--measures", "mmd,ni", "--out", str(tmp_path))
    assert "mmd" in said and "ni needs the labels of 'q'" in said and "have no labels" in said
    with pytest.raises(ShiftbedError, match="have no labels"):
        call("closed form", "--out", str(tmp_path))


def test_the_matrix_has_every_pair_and_the_rest(tmp_path):
    said = call("ColoredDigits", "--matrix", "--measures", "mmd", "--out", str(tmp_path))
    assert "the rest" in said and "+80%" in said
    assert (tmp_path / "ColoredDigits-mmd.png").exists()


def test_after_a_matrix_no_domain_is_named_that_could_not_be_measured(tmp_path):
    random = np.random.default_rng(0)
    for domain, most in (("one", 30), ("three", 30), ("tiny", 3)):
        for label in ("cat", "dog"):
            (tmp_path / "set" / domain / label).mkdir(parents=True)
            for number in range(most):
                image = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
                image.save(tmp_path / "set" / domain / label / f"{number}.png")
    said = call(str(tmp_path / "set"), "--matrix", "--runs", "1", "--out", str(tmp_path / "shift"))
    assert "'tiny' has 6 examples" in said and said.rstrip().endswith("--test three")


def test_a_matrix_wider_than_the_terminal_is_cut_into_tables_and_no_name_is_cut(capsys, monkeypatch):
    names = [f"fluent-high-contrast-{number}" for number in range(6)]
    cells = [Cell(*pair, "m", (ShiftEstimate("m", 0.5, 0.01),)) for pair in combinations(names, 2)]
    monkeypatch.setattr(cli_shift, "console", Console(width=80))
    cli_shift._print_measure(ShiftMatrix(tuple(names), tuple(cells)), "m")
    said = capsys.readouterr().out
    assert "…" not in said and max(map(len, said.splitlines())) <= 80
    # Every name heads a column once, and a row of each of the four tables.
    assert [said.count(name) for name in names] == [5] * 6 and said.count("0.500") == said.count("±0.010") == 30


def test_a_matrix_marks_what_chance_gives_and_what_says_little():
    found = [
        estimate("emd", 4.7, 0.1, 50, no_shift=5.2),
        estimate("emd", 5.7, 0.1, 50, no_shift=5.2),
        estimate("covariate", 0.5, 0.2, 50, highest=1.0),
        estimate("mmd", 0.001, 0.001, 50, no_shift=-0.0001),
        ShiftEstimate("correlation", 0.5),
    ]
    shown = ["(4.700)\n±0.100", "5.700\n±0.100", "0.500?\n±0.200", "(0.001)\n±0.001", "0.500"]
    assert [*map(cli_shift._in_matrix, found)] == shown
    assert cli_shift._in_matrix(None) == ""


def test_the_matrix_is_measured_as_it_is_asked_for(tmp_path, monkeypatch):
    made = CLOSED_FORMS["flipped, mean 1"].dataset(100)
    monkeypatch.setattr(features, "load", lambda name: made)
    by = {"method": "kde-paper", "runs": 2, "most": 60}
    words = ["--method", "kde-paper", "--runs", "2", "--most", "60", "--json", "--out", str(tmp_path)]
    (cell,) = json.loads(call("closed form", "--matrix", *words))["cells"]
    alone = measure_shift(made, **by, baseline=False, device="cpu")
    assert cell["estimates"][1]["value"] == alone.correlation.value
    assert cell["estimates"][1]["count"] == alone.correlation.count <= 60
    with_baseline = measure_shift(made, **by, device="cpu")
    for name, one in zip(("diversity", "correlation"), cell["estimates"], strict=True):
        assert one["details"]["no shift"] == getattr(with_baseline, name).details["no shift"]
    (cell,) = json.loads(call("closed form", "--matrix", "--no-baseline", *words))["cells"]
    assert "no shift" not in cell["estimates"][1]["details"], "and what was kept with one is not taken for it"
    with pytest.raises(ShiftbedError, match="--model is about two sides, and --matrix compares all domains"):
        call("closed form", "--matrix", "--model", "run", "--out", str(tmp_path))


def test_measures_of_which_none_can_be_taken_are_one_sentence(tmp_path, monkeypatch):
    made = CLOSED_FORMS["flipped, mean 1"].dataset(12)
    monkeypatch.setattr(features, "load", lambda name: made)
    with pytest.raises(ShiftbedError, match="has 12 examples, and with fewer than 20"):
        call("closed form", "--measures", "all", "--out", str(tmp_path))


def test_a_matrix_of_which_nothing_can_be_measured_is_one_sentence(tmp_path, monkeypatch):
    made = CLOSED_FORMS["flipped, mean 1"].dataset(100)
    p, q = made.domains
    apart = MultiDomainDataset(made.card, (p, type(q)("q", np.zeros((100, 2)), q.labels)))
    monkeypatch.setattr(features, "load", lambda name: apart)
    with pytest.raises(ShiftbedError, match=r"No pair of domains can be measured\. .*bring them to one size"):
        call("closed form", "--matrix", "--out", str(tmp_path))


def test_a_folder_that_lacks_classes_says_so_and_its_unlabelled_neighbour_stays_in_the_next_command(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "root"))
    random = np.random.default_rng(0)
    kinds = {"day": ("cat", "dog"), "dusk": ("cat", "dog"), "night": ("cat",)}
    folders = [tmp_path / "mine" / site / kind for site, those in kinds.items() for kind in those]
    for folder in [*folders, tmp_path / "new site"]:
        folder.mkdir(parents=True)
        for i in range(20):
            Image.fromarray(random.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(folder / f"{i}.png")
    asked = [str(tmp_path / "mine"), "--on", str(tmp_path / "new site"), "--matrix", "--measures", "mmd,ni"]
    said = call(*asked, "--out", str(tmp_path))
    assert said.startswith("Not all domains have all classes: 'night' has no 'dog'.")
    assert "'day' has the classes cat, dog and 'night' the class cat" in said and "±0.0" in said
    assert f"Next: shiftbed shift mine --on '{tmp_path / 'new site'}'" in said
    assert (tmp_path / "mine-ni.png").exists()
    few = [str(tmp_path / "mine"), "--on", str(tmp_path / "new site"), "--measures", "mmd", "--out", str(tmp_path)]
    assert f"--on '{tmp_path / 'new site'}' --matrix" in call(*few), "of one site there is no matrix without the folder"


def test_the_network_that_is_named_learns_for_every_measure(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr("shiftbed.shift.measures.take", lambda name, p, q, settings: taken.append(settings) or [])
    call(
        "ColoredDigits",
        "--network",
        "mlp-390",
        "--measures",
        "concept",
        "--runs=1",
        "--most=60",
        "--out",
        str(tmp_path),
    )
    assert [one.network for one in taken] == ["mlp-390"]


def test_a_model_is_bounded_by_images_that_it_did_not_learn_from(tmp_path):
    job = make_job("EmojiStyles", "ERM", LeaveOut(("noto",)), recipe("quick", "EmojiStyles", steps=2))
    run_job(job, LocalStore(tmp_path / "run"), keep="final")
    data, learned = load("EmojiStyles"), {split.domain: split.indices for split in job.task.of_role("train")}
    rest = unlearned(data, tmp_path / "run")
    assert len(rest["noto"]) == len(data["noto"])
    for domain, indices in learned.items():
        assert len(rest[domain]) == len(data[domain]) - len(indices)
        assert np.array_equal(rest[domain].labels, np.delete(data[domain].labels, indices))
    predict = predictor(tmp_path / "run", data.card.classes)
    whole = features.samples_of(data, ["noto"])["noto"]
    said = shiftbed.load(tmp_path / "run").predict(data["noto"].inputs).argmax(1)
    assert np.array_equal(np.bincount(predict(whole.inputs)), np.bincount(said)), "in another order"
    assert np.mean(predict(whole.inputs) == whole.labels) == np.mean(said == data["noto"].labels)


def test_a_model_is_not_tested_on_images_that_it_adapted_to(tmp_path):
    job = make_job("EmojiStyles", "ERM", LeaveOut(("noto",), adapt=0.25), recipe("quick", "EmojiStyles", steps=2))
    run_job(job, LocalStore(tmp_path), keep="final")
    data, (given,) = load("EmojiStyles"), job.task.of_role("unlabelled")
    assert len(given.indices) > 0
    assert len(unlearned(data, tmp_path)["noto"]) == len(data["noto"]) - len(given.indices)
    other = MultiDomainDataset(data.card.model_copy(update={"version": "of other images"}), data.domains)
    assert unlearned(other, tmp_path) is other, "nobody knows which of them it learned from"


def test_the_bounds_of_a_model_keep_to_the_seal_of_its_sweep(tmp_path, monkeypatch):
    job = make_job("EmojiStyles", "ERM", LeaveOut(("noto",)), recipe("quick", "EmojiStyles", steps=2))
    store = LocalStore(tmp_path / "sweep")
    seal(store)
    run_job(job, store, keep="final")
    asked = ["EmojiStyles", "--model", str(store.root / "jobs" / job.id), "--out", str(tmp_path / "shift")]
    monkeypatch.setattr("shiftbed.cli.shift._two_sides", lambda *_: pytest.fail("measured before it was refused"))
    with pytest.raises(StoreError, match="sealed"):
        call(*asked, "--test", "noto")
    with pytest.raises(ShiftbedError, match="--model needs the labels of both sides"):
        call(*asked, "--on", str(tmp_path))


def test_the_bounds_of_a_model_are_told_with_their_slack(tmp_path, monkeypatch):
    monkeypatch.setattr("shiftbed.cli.shift._refuse_unusable", lambda run, asked: None)
    monkeypatch.setattr("shiftbed.shift.bounds.unlearned", lambda dataset, run: dataset)
    monkeypatch.setattr("shiftbed.shift.bounds.predictor", lambda *_: lambda inputs: np.zeros(len(inputs), int))
    monkeypatch.setattr("shiftbed.shift.bounds.bounds_of", lambda *_: Bounds(0.1, 0.4, 0.3, 0.2, 0.6, 0.1))
    terms = FiniteSampleTerms(0.1, 0.2, 0.3, 0.4)
    monkeypatch.setattr("shiftbed.shift.bounds.finite_sample_terms", lambda *_: terms)
    asked = ["ColoredDigits", "--model", "run", "--runs=1", "--most=60", "--no-baseline", "--out", str(tmp_path)]
    told = json.loads(call(*asked, "--json"))["bounds"]
    assert told["slack"] == pytest.approx([0.3, 0.2]) and told["holds"]
    assert "between NICO++'s bounds 0.100 and 0.600" in call(*asked)


def test_an_unknown_method_is_one_sentence(tmp_path):
    with pytest.raises(ShiftbedError, match="no method 'kd'"):
        call("ColoredDigits", "--method", "kd", "--out", str(tmp_path))
