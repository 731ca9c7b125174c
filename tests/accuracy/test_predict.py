"""Predicting from Python and from the command line, on built-in data and on functions."""

import json
import shutil
from itertools import product

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

import shiftbed
from shiftbed.accuracy import domains as made_domains
from shiftbed.accuracy import pictures
from shiftbed.accuracy.domains import corrupted, held_out, target
from shiftbed.accuracy.extraction import DomainImages, Extractor
from shiftbed.accuracy.nearness import Surroundings
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.predict import predict_accuracy
from shiftbed.accuracy.study import Pool
from shiftbed.accuracy.sweep import models, summary
from shiftbed.accuracy.unsure import least_sure
from shiftbed.cli import app
from shiftbed.data import load as load_dataset
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError, ShiftbedError, StoreError
from shiftbed.protocols import Flexible, LeaveOut
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.job import make_job
from shiftbed.training.model import load
from shiftbed.training.recipes import recipe
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from tests.sweeps.finished import finish


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    job = shiftbed.train("RotatedDigits", "ERM", "75", out, steps=60, device="cpu")
    return out / "jobs" / job.id


@pytest.fixture
def few_corruptions(monkeypatch):
    """Some corruptions of few images: what is tested is the way, not the numbers."""
    few = ("gaussian_noise", "contrast", "pixelate", "brightness", "defocus_blur", "snow", "fog", "saturate", "frost")
    monkeypatch.setattr(made_domains.corrupted, "__defaults__", (few, (1, 5)))
    monkeypatch.setattr(made_domains.held_out, "__defaults__", (120,))
    for name, value in (("images", 120), ("severities", (1, 5))):
        monkeypatch.setitem(shiftbed.predict_sweep.__kwdefaults__, name, value)


def linear(images):
    """A model by hand: the class is the brighter half, and the features are the brightnesses."""
    values = np.stack([images[:, :4].mean(axis=(1, 2, 3)), images[:, 4:].mean(axis=(1, 2, 3))], axis=1) / 255
    return 8 * values, values


def halves(random, count, noise):
    labels = random.integers(0, 2, count)
    images = random.normal(90, noise, (count, 8, 8, 1))
    images[:, :4] += 40 * (labels == 0)[:, None, None, None]
    images[:, 4:] += 40 * (labels == 1)[:, None, None, None]
    return images.clip(0, 255).astype(np.uint8), labels


def test_a_function_s_accuracy_is_predicted_from_labelled_domains():
    random = np.random.default_rng(0)
    source = halves(random, 400, 60)
    labelled = {f"noise {noise}": halves(random, 400, noise) for noise in range(70, 250, 12)}
    images, labels = halves(random, 400, 150)
    made = predict_accuracy(linear, images, source=source, domains=labelled)
    accuracy = (linear(images)[0].argmax(1) == labels).mean()
    assert made.low <= accuracy <= made.high
    assert made.high - made.low < 0.4
    assert made.domains == made.groups == len(labelled)
    assert made.images == 400
    assert "rely on it" in made.trust
    assert {one.method for one in made.estimates} >= {"atc-mc", "cot", "doc", "nuclear-norm", "frechet-distance"}
    assert json.loads(json.dumps(made.to_dict()))["method"] == "atc-mc"


def test_a_method_with_one_score_everywhere_names_others():
    random = np.random.default_rng(0)
    labelled = {f"noise {noise}": halves(random, 50, noise) for noise in range(1, 6)}
    given = {"source": halves(random, 50, 1), "domains": labelled}
    with pytest.raises(
        DataError, match=r"prediction-score-0.9 cannot .* same score 0.* another --method \(average-conf"
    ):
        predict_accuracy(linear, halves(random, 50, 2)[0], method="prediction-score-0.9", **given)


def test_a_domain_unlike_the_labelled_ones_is_not_to_be_relied_on():
    random = np.random.default_rng(0)
    source = halves(random, 200, 60)
    labelled = {f"noise {noise}": halves(random, 200, noise) for noise in range(50, 170, 6)}
    white = np.full((200, 8, 8, 1), 255, np.uint8) - random.integers(0, 3, (200, 8, 8, 1)).astype(np.uint8)
    made = predict_accuracy(linear, white, source=source, domains=labelled)
    assert "do not rely on the interval" in made.trust


def test_without_labelled_domains_the_direct_methods_answer():
    random = np.random.default_rng(0)
    images, labels = halves(random, 300, 100)
    two = np.repeat(images, 2, axis=3)  # two channels: no corruption takes them
    made = predict_accuracy(linear, two, source=(two, labels))
    assert made.level is None
    assert made.domains == 0
    assert made.accuracy == pytest.approx((linear(two)[0].argmax(1) == labels).mean(), abs=0.01)
    assert made.low == min(made.direct.values())
    assert "is no interval" in made.trust


def test_a_run_predicts_on_a_folder_and_computes_nothing_twice(run, tmp_path, few_corruptions):
    digits = load_dataset("RotatedDigits")["75"].inputs
    for place, image in enumerate(digits):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{place:04d}.png")
    first = predict_accuracy(run, "RotatedDigits/75")
    of_files = predict_accuracy(run, tmp_path)
    assert (of_files.accuracy, of_files.low) == (first.accuracy, first.low)
    assert 0 <= first.low <= first.accuracy <= first.high <= 1
    kept = sorted((run / "outputs").rglob("*.npz"))
    assert len(kept) == 2 + first.domains  # the clean source is one of the labelled domains
    times = [path.stat().st_mtime_ns for path in kept]
    again = predict_accuracy(run, "RotatedDigits/75", method="cot")
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert {one.method: one for one in again.estimates} == {one.method: one for one in first.estimates}


def test_that_a_model_was_trained_on_the_domain_is_said(run, few_corruptions):
    words = "The model was trained on images of RotatedDigits/15: on new ones it may do worse. "
    assert predict_accuracy(run, "RotatedDigits/15").trust.startswith(words)
    assert "The model was trained" not in predict_accuracy(run, "RotatedDigits/75").trust


def test_the_command_line_predicts_and_shows_unsure_images(run, tmp_path, few_corruptions):
    found = CliRunner().invoke(app, ["predict", str(run), "--on", "RotatedDigits/75", "--json", "--device", "cpu"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["level"] == 0.9
    arguments = ["predict", str(run), "--on", "RotatedDigits/75", "--unsure", str(tmp_path / "unsure")]
    found = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    assert "Predicted accuracy on RotatedDigits/75" in found.stdout
    assert "Next: shiftbed predict" in found.stdout
    rows = (tmp_path / "unsure.csv").read_text().splitlines()
    sure = [float(row.split(",")[2]) for row in rows[1:]]
    assert rows[0] == "image,prediction,confidence,margin,entropy"
    assert sure == sorted(sure)
    assert Image.open(tmp_path / "unsure.png").size[0] > 400


def test_the_models_of_a_sweep_are_predicted_beside_the_truth_and_once(run, few_corruptions):
    folder = run.parent.parent
    found = CliRunner().invoke(app, ["predict", str(folder), "--json", "--device", "cpu"])
    assert found.exit_code == 0, found.output
    (row,) = json.loads(found.stdout)
    alone = predict_accuracy(run, "RotatedDigits/75")
    assert (row["domain"], row["algorithm"], row["job"], row["method"]) == ("75", "ERM", run.name, "atc-mc")
    (job,) = finished_jobs(LocalStore(folder))
    tested = [split for name, split in job.rows[-1]["splits"].items() if name.startswith("75/")]
    right = sum(split["accuracy"] * split["count"] for split in tested) / sum(split["count"] for split in tested)
    assert row["true"] == pytest.approx(right)
    assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
    assert row["images"] == alone.images
    written = (folder / "accuracy" / "predictions.json").stat().st_mtime_ns
    assert shiftbed.predict_sweep(folder) == [row]
    assert (folder / "accuracy" / "predictions.json").stat().st_mtime_ns == written
    (fewer,) = shiftbed.predict_sweep(folder, images=60)
    assert fewer != row, "fitted on other images, it is another prediction"
    wrong = CliRunner().invoke(app, ["predict", str(folder), "--fit", "RotatedDigits"])
    assert "--fit goes with --on" in str(wrong.exception)


@pytest.mark.parametrize(
    ("spec", "given"),
    [(Flexible(compositional=False, dominant=2, minor=2), "train"), (LeaveOut(("75",), adapt=0.3), "unlabelled")],
    ids=["flexible", "adapted"],
)
def test_of_a_test_domain_only_what_the_model_did_not_learn_from_is_asked_about(spec, given, tmp_path, few_corruptions):
    how = recipe("quick", "RotatedDigits", steps=20, evaluate_every=20)
    job = make_job("RotatedDigits", "ERM", spec, how)
    assert any(split.role == given and split.domain in job.task.test_domains for split in job.task.splits)
    run_job(job, LocalStore(tmp_path), keep="final")
    (recorded,) = finished_jobs(LocalStore(tmp_path))
    rows = shiftbed.predict_sweep(tmp_path)
    assert [row["domain"] for row in rows] == list(job.task.test_domains)
    for row in rows:
        places = [split for split in job.task.of_role("test") if split.domain == row["domain"]]
        splits = [recorded.rows[-1]["splits"][split.name] for split in places]
        count = sum(split["count"] for split in splits)
        assert row["images"] == count < len(load_dataset("RotatedDigits")[row["domain"]])
        assert row["true"] == pytest.approx(sum(split["accuracy"] * split["count"] for split in splits) / count)


def test_models_for_domain_cross_validation_alone_are_not_asked(tmp_path):
    """They learned from one domain less than those of the tables, on which they would be taken for these."""
    rules = ("training-domain-validation", "domain-cross-validation")
    jobs = plan(Request("ColoredDigits", "ERM", selections=rules, fields={"steps": 2}))
    for job in jobs:
        finish(LocalStore(tmp_path), job)
        LocalStore(tmp_path).put_atomic(JobFiles(job.id).weights, b"weights")
    assert {len(job.task.test_domains) for job in jobs} == {1, 2}
    assert [job.description["test_domains"] for job in models(tmp_path)] == [["+80%"], ["+90%"], ["-90%"]]


def test_of_models_that_kept_every_evaluation_the_last_is_asked(tmp_path, few_corruptions):
    how = recipe("quick", "RotatedDigits", steps=20, evaluate_every=10)
    job = make_job("RotatedDigits", "ERM", LeaveOut(("75",)), how)
    for keep in ("all", "final"):
        run_job(job, LocalStore(tmp_path / keep), keep=keep)
    assert len(list((tmp_path / "all").rglob("weights-*"))) > 1
    every, final = (shiftbed.predict_sweep(tmp_path / keep) for keep in ("all", "final"))
    assert every == final


def test_a_sweep_that_kept_no_weights_says_how_to_keep_them(tmp_path):
    with pytest.raises(ShiftbedError, match="--keep final"):
        shiftbed.predict_sweep(tmp_path)


def test_what_was_cut_off_is_computed_again(run, tmp_path):
    extract = Extractor(load(run), LocalStore(tmp_path))
    domain = DomainImages.of("some", held_out(run, 20).images())
    whole = extract(domain)
    (path,) = tmp_path.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    assert np.array_equal(extract(domain).logits, whole.logits)
    assert extract.computed == 2
    assert np.array_equal(extract(domain).features, whole.features)
    assert extract.computed == 2


def test_a_model_where_nothing_can_be_kept_still_answers(run, tmp_path, monkeypatch):
    def refuse(*_):
        raise StoreError("Cannot write: the file system is read-only; choose a folder you may write to.")

    monkeypatch.setattr(LocalStore, "put_atomic", refuse)
    extract = Extractor(load(run), LocalStore(tmp_path))
    domain = DomainImages.of("some", held_out(run, 20).images())
    assert np.array_equal(extract(domain).logits, Extractor(load(run))(domain).logits)


def test_held_out_images_are_the_model_s_validation_images(run):
    source = held_out(run, 10_000)
    outputs = Extractor(load(run))(source)
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    validated = [split for name, split in records[-1]["splits"].items() if name.endswith("/out") and "75" not in name]
    right = sum(split["accuracy"] * split["count"] for split in validated)
    assert outputs.right.sum() == pytest.approx(right)


def test_features_are_what_the_classifier_sees(run):
    model = load(run)
    logits, features = model.outputs(held_out(run, 30).images())
    layer = model.algorithm.classifier
    expected = features @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    assert np.allclose(logits, expected, atol=1e-4)
    empty = model.outputs(np.zeros((0, 28, 28, 1), np.uint8))
    assert empty[0].shape == (0, len(model.classes))
    assert empty[1] is None


def test_corrupted_domains_are_made_only_when_asked_for():
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4, int)
    found = corrupted(DomainImages.of("source", images, labels), ("gaussian_noise", "fog"), (1, 2))
    assert [one.name for one in found] == ["clean", "gaussian_noise-1", "gaussian_noise-2", "fog-1", "fog-2"]
    assert [one.group for one in found] == ["clean", "gaussian_noise", "gaussian_noise", "fog", "fog"]
    assert len({one.id for one in found}) == 5
    assert found[1].images().shape == images.shape


def test_nearness_of_a_labelled_domain_itself():
    random = np.random.default_rng(0)
    around = Surroundings(Outputs(np.zeros((100, 2)), random.normal(size=(100, 3))))
    for place in range(9):
        around.add(Outputs(np.zeros((100, 2)), random.normal(place, 1, (100, 3)), name=f"at {place}"), str(place))
    near = around.locate(Outputs(np.zeros((100, 2)), random.normal(4, 1, (100, 3))))
    assert near.nearest == "at 4"
    assert near.share == 1.0  # all others are a step of 1 away from their nearest
    assert near.words().endswith("rely on it.")
    far = around.locate(Outputs(np.zeros((100, 2)), random.normal(40, 1, (100, 3))))
    assert far.share == 0 and "do not rely on the interval" in far.words(), "however few labelled domains there are"


def test_nine_domains_cannot_tell_one_in_twenty_but_that_something_is_at_their_edge():
    random = np.random.default_rng(0)
    around = Surroundings(Outputs(np.zeros((400, 2)), random.normal(size=(400, 3))))
    for place in range(9):
        around.add(Outputs(np.zeros((400, 2)), random.normal(place, 1, (400, 3)), name=f"at {place}"), str(place))
    edge = around.locate(Outputs(np.zeros((400, 2)), random.normal(9.2, 1, (400, 3))))
    assert edge.share == 0 and edge.words().endswith("rely on it with care.")


@pytest.mark.parametrize("images", [10, 20, 50, 400, 2000])
def test_few_images_are_not_taken_for_another_domain(images):
    random = np.random.default_rng(0)
    around = Surroundings(Outputs(np.zeros((400, 2)), random.normal(size=(400, 20))))
    for place in range(30):
        values = random.normal(0.1 * place, 1, (400, 20))
        around.add(Outputs(np.zeros((400, 2)), values, name=f"at {place}"), str(place))
    like = [around.locate(Outputs(np.zeros((images, 2)), random.normal(1.55, 1, (images, 20)))) for _ in range(20)]
    assert sum("do not rely" in one.words() for one in like) <= 3, "one in twenty by chance"
    assert np.mean([one.share for one in like]) > 0.3
    unlike = around.locate(Outputs(np.zeros((images, 2)), random.normal(6, 1, (images, 20))))
    assert "do not rely" in unlike.words()


def test_the_least_sure_come_first():
    assert least_sure(Outputs(np.array([[3.0, 0], [0.1, 0], [1, 0]])), 2).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: predict_accuracy(linear, np.zeros((0, 8, 8, 1), np.uint8), source=()), "There are no images"),
        (lambda run: predict_accuracy(linear, np.zeros((1, 8, 8, 1), np.uint8), source=()), "There is one image"),
        (lambda run: predict_accuracy(linear, np.zeros((3, 8, 8, 1), np.uint8)), "A source of labelled images"),
        (
            lambda run: predict_accuracy(
                linear, np.zeros((3, 8, 8, 1), np.uint8), source=(np.zeros((3, 8, 8, 1)), None)
            ),
            "The source set has no labels",
        ),
        (
            lambda run: predict_accuracy(
                lambda images: np.full((len(images), 2), np.nan), np.zeros((3, 8, 8, 1), np.uint8), source=()
            ),
            "not finite for 3 of 3",
        ),
        (
            lambda run: predict_accuracy(
                lambda images: linear(images)[0],
                np.zeros((3, 8, 8, 1), np.uint8),
                source=(np.zeros((3, 8, 8, 1), np.uint8), np.zeros(3, int)),
                method="bop-js",
            ),
            "bop-js needs features, which this model does not have",
        ),
        (lambda run: predict_accuracy(run, "EmojiStyles/noto"), "^The classes of .* are not the model's"),
        (lambda run: predict_accuracy(run, "RotatedDigits"), "has 6 domains"),
        (lambda run: predict_accuracy(run, "RotatedDigits/99"), r"^RotatedDigits has no domain '99'\. There are 0, 15"),
        (lambda run: predict_accuracy(run, "nowhere"), "is no folder of images"),
        (lambda run: predict_accuracy(run, "RotatedDigits/75", method="act-mc"), "Did you mean atc-mc"),
        (lambda run: predict_accuracy(run, "RotatedDigits/75", domains="EmojiStyles"), "are not the model's"),
        (lambda run: predict_accuracy(run, "RotatedDigits/75", source="RotatedDigits/75"), "it is what is asked about"),
        (lambda run: predict_accuracy(run, "RotatedDigits/75", source="RotatedDigits/0"), "it was trained on"),
        (lambda run: predict_accuracy(run, "RotatedDigits/75", domains="RotatedDigits"), "Nothing is left"),
    ],
)
def test_bad_input_is_one_sentence(run, call, words):
    with pytest.raises(ShiftbedError, match=words):
        call(run)


def test_an_empty_folder_is_said_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="There are no images in"):
        target(str(tmp_path), ())
    with pytest.raises(DataError, match=r"^There is no folder \S+nowhere; name a folder of images, or DATASET/DOMAIN"):
        target("mine/nowhere", ())
    with pytest.raises(DataError, match=r"^There is no folder \./nowhere; "):  # it said to prepare `.`
        target("./nowhere", ())


def test_a_run_that_does_not_know_its_data_asks_for_a_source(run, tmp_path):
    (tmp_path / "weights.safetensors").write_bytes((run / "weights.safetensors").read_bytes())
    with pytest.raises(DataError, match="name a labelled source dataset"):
        predict_accuracy(tmp_path, "RotatedDigits/75")


def test_a_study_of_two_models_from_the_command_line(run, tmp_path, few_corruptions, monkeypatch):
    for name in ("spread", "group_agreement", "errors_by_images", "errors_by_accuracy", "accuracy_by_distance"):
        monkeypatch.setattr(pictures, name, lambda *_: None)  # they have a test of their own
    for place in range(2):
        (tmp_path / f"model-{place}").mkdir()
        for name in ("weights.safetensors", "job.json"):
            (tmp_path / f"model-{place}" / name).write_bytes((run / name).read_bytes())
    arguments = ["accuracy", str(tmp_path), "--out", str(tmp_path / "study"), "--device", "cpu", "--json"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    made = json.loads(found.stdout)
    assert made["constant scores"] == ["ms-aol"]  # the models are equal; aline-s needs three
    assert {row["method"] for row in made["mae"]} >= {"atc-mc", "cot", "mean of the others"}
    assert json.loads((tmp_path / "study" / "study.json").read_text()) == made
    assert (tmp_path / "study" / "scatter.png").exists()
    with pytest.raises(DataError, match="There are no weights"):
        shiftbed.judge_methods(tmp_path / "study", tmp_path)
    about = json.loads((run / "job.json").read_text())
    (tmp_path / "model-1" / "job.json").write_text(json.dumps({**about, "trial": 1}))
    with pytest.raises(DataError, match="held out different images"):
        shiftbed.judge_methods(tmp_path, tmp_path / "again")
    with pytest.raises(DataError, match="There is no study in"):
        shiftbed.judge_methods(tmp_path, tmp_path / "again", beside=[tmp_path / "nowhere"])


def test_a_collapsed_model_is_left_out_of_a_study_by_name(run, tmp_path, few_corruptions, monkeypatch):
    for name in ("scatter", "spread", "group_agreement", "errors_by_images", "errors_by_accuracy"):
        monkeypatch.setattr(pictures, name, lambda *_: None)  # they have a test of their own
    monkeypatch.setattr(pictures, "accuracy_by_distance", lambda *_: None)
    for place in range(3):
        shutil.copytree(run, tmp_path / f"model-{place}", ignore=shutil.ignore_patterns("outputs"))
    dead = tmp_path / "model-1" / "weights.safetensors"
    with safe_open(dead, "np") as file:
        about, tensors = file.metadata(), {name: 0 * file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, dead, about)
    found = CliRunner().invoke(app, ["accuracy", str(tmp_path), "--out", str(tmp_path / "study"), "--device", "cpu"])
    assert found.exit_code == 0, found.output
    (left_out,) = json.loads((tmp_path / "study" / "study.json").read_text())["classifiers left out"]
    assert left_out.endswith(" 1") and f"Left out, since no score of theirs varies: {left_out}." in found.stdout
    made = predict_accuracy(tmp_path / "model-1", "RotatedDigits/75")
    assert made.accuracy == pytest.approx(made.source_accuracy) and "answers the same for all images" in made.trust


def test_spreads_are_not_counted_as_intervals():
    def row(level, low, high):
        who = {"algorithm": "ERM", "domain": "far", "trust": "little"}
        return {**who, "accuracy": 0.467, "low": low, "high": high, "true": 0.5, "level": level}

    lines = [*summary([row(None, 0.4667, 0.53), row(0.9, 0.4, 0.6), row(0.9, 0.1, 0.2)])]
    assert lines[0].endswith("predicted 46.7% (46.7% to 53.0%), true 50.0%")
    assert (
        "1 of 2 intervals (meant to hold with 90%) and 1 of 1 spreads of the direct methods have the truth" in lines[3]
    )


def test_a_study_of_models_of_images_that_differ_in_size(tmp_path, few_corruptions, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    for site, label, number in product("abc", ("x", "y"), range(12)):
        path = tmp_path / "mine" / site / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20 + 4 * (number % 2), 24, 3), np.uint8)).save(path)
    prepare(str(tmp_path / "mine"))
    for draw in range(2):
        shiftbed.train(
            "mine", "ERM", "c", tmp_path / "runs" / str(draw), draw=draw, steps=2, overrides={"batch_size": 8}
        )
    folders = [path.parent for path in (tmp_path / "runs").rglob("weights.safetensors")]
    made = Pool(folders, (), None, "cpu", lambda *_: None, severities=(1,))
    assert len(made._domains) == 10  # nine corruptions, and clean
