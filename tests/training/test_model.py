"""Models that load: the same answers as the records say, from arrays, pictures and files."""

import copy
import sys
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import shiftbed
from shiftbed.algorithms import ALGORITHMS, ERM, register
from shiftbed.cli import app
from shiftbed.data import load as load_dataset
from shiftbed.data.images import decode
from shiftbed.data.load import forget
from shiftbed.data.pack import RaggedImages
from shiftbed.data.prepare import prepare
from shiftbed.errors import AlgorithmError, DataError, StoreError
from shiftbed.networks import Featurizer, weights
from shiftbed.protocols import LeaveOut
from shiftbed.report.choosing import _best_of, best
from shiftbed.selection import Choice
from shiftbed.training.job import make_job
from shiftbed.training.model import _as_array, encode_weights
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trackers import TRACKERS
from shiftbed.training.trainer import Trainer
from tests.conftest import tiny_job


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    job = tiny_job("CORAL")
    run_job(job, LocalStore(folder), keep="final")
    return folder, job


def test_a_loaded_model_gives_the_recorded_accuracy(run):
    folder, job = run
    model = shiftbed.load(folder)
    split = next(split for split in job.task.splits if split.name == "-90%/in")
    domain = load_dataset("ColoredDigits")["-90%"]
    probabilities = model.predict(domain.inputs[split.indices])
    accuracy = (probabilities.argmax(1) == domain.labels[split.indices]).mean()
    recorded = next(row for row in shiftbed_rows(folder, job) if row["step"] == 6)["splits"]["-90%/in"]["accuracy"]
    assert accuracy == pytest.approx(recorded)
    assert np.allclose(probabilities.sum(1), 1) and len(model.classes) == 2
    assert (model.about["algorithm"], model.about["step"], model.about["job"]) == ("CORAL", 6, job.id)


def shiftbed_rows(folder, job):
    from shiftbed.training.files import Result

    return Result.read(LocalStore(folder), job.id).parsed(job.id)["records"]


def test_pictures_files_and_arrays_are_one(tmp_path):
    job = tiny_job("ERM")
    # EmojiStyles has colour images of 64 px, which the recipe reduces to 32.
    job = make_job("EmojiStyles", "ERM", LeaveOut(("noto",)), recipe("quick", "EmojiStyles", steps=1))
    run_job(job, LocalStore(tmp_path / "run"), keep="final")
    model = shiftbed.load(tmp_path / "run" / "jobs" / job.id)
    images = load_dataset("EmojiStyles")["noto"].inputs[:3]
    Image.fromarray(np.array(images[0])).save(tmp_path / "one.png")
    expected = model.predict(images)
    assert np.array_equal(model.predict([Image.fromarray(np.array(image)) for image in images]), expected)
    assert np.allclose(model.predict([tmp_path / "one.png"])[0], expected[0], atol=1e-6)
    assert model.predict(images[:0]).shape == (0, 11)


def test_images_of_any_size_come_to_the_size_that_was_trained_on(run, tmp_path):
    model = shiftbed.load(run[0])
    images = np.array(load_dataset("ColoredDigits")["-90%"].inputs[:4])
    larger = images.repeat(3, 1).repeat(3, 2)
    assert np.allclose(model.predict(larger), model.predict(images)), "the mean of equal pixels is the pixel"
    mixed = model.predict([images[0], larger[1], images[2, :5], larger[3]])
    assert np.allclose(mixed[[0, 1, 3]], model.predict(images)[[0, 1, 3]])


def test_images_that_are_no_bytes_are_refused_and_not_taken_for_black_ones(run):
    model, images = shiftbed.load(run[0]), np.array(load_dataset("ColoredDigits")["-90%"].inputs[:3])
    for wrong in ([image / 255 for image in images], [*images[:2], images[2].astype(np.int64)]):
        with pytest.raises(DataError, match=r"takes images H×W×C of uint8, 0 to 255, and these are"):
            model.predict(wrong)
    with pytest.raises(DataError, match=r"shape \(2, 8, 8\) or images .* not float64 of shape \(8, 8, 2\)"):
        model.predict(images / 255)
    with pytest.raises(DataError, match="of 2 channels, and these have 3"):
        model.predict([images[0], np.concatenate([images[1], images[1][..., :1]], axis=2)])
    inputs = images.transpose(0, 3, 1, 2) / 255
    assert np.allclose(model.predict(inputs), model.predict(images), atol=1e-6), "inputs as the network takes them"
    assert np.allclose(model.predict(list(inputs)), model.predict(inputs), atol=1e-6)


class KeepsABuffer(ERM):
    """As it should be: what predictions need besides the network is a buffer."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("bias", torch.zeros(num_classes))

    def update(self, minibatches, unlabeled=None):
        metrics = super().update(minibatches)
        self.bias += torch.tensor([1.0, -1.0])
        return metrics

    def predict(self, x):
        return super().predict(x) + self.bias


class KeepsATensor(KeepsABuffer):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        del self.bias
        self.bias = torch.zeros(num_classes)


class BuildsANetwork(ERM):
    def update(self, minibatches, unlabeled=None):
        metrics = super().update(minibatches)
        if not hasattr(self, "first"):
            self.first = copy.deepcopy(self.network)
        return metrics

    def predict(self, x):
        return (self.network if self.training or not hasattr(self, "first") else self.first)(x)


@pytest.mark.parametrize(
    ("cls", "wrapped"), [(KeepsABuffer, False), (KeepsATensor, False), (KeepsATensor, True), (BuildsANetwork, False)]
)
def test_a_loaded_model_predicts_as_the_trained_one_or_says_why_it_cannot(cls, wrapped, tmp_path):
    register()(cls)
    name = f"EoA({cls.__name__})" if wrapped else cls.__name__
    trainer = Trainer(tiny_job(name, lr=0.05))
    for _ in range(4):
        trainer.advance()
    (tmp_path / "weights.safetensors").write_bytes(encode_weights(trainer))
    if cls is not KeepsABuffer:
        with pytest.raises(StoreError, match=r"predicts with more than the parameters and buffers .* train again\.$"):
            shiftbed.load(tmp_path)
        return
    split = next(one for one in trainer.job.task.splits if one.name == "-90%/in")
    outputs = shiftbed.load(tmp_path).outputs(load_dataset("ColoredDigits")["-90%"].inputs[split.indices])[0]
    assert np.allclose(outputs, trainer.logits()["-90%/in"], atol=1e-5)


def test_weights_of_another_version_of_a_class_are_one_sentence(run, tmp_path):
    class Changing(ERM):
        pass

    register()(Changing)
    (tmp_path / "weights.safetensors").write_bytes(encode_weights(Trainer(tiny_job("Changing"))))

    class Wider(ERM):
        def __init__(self, input_shape, num_classes, num_domains, hparams):
            super().__init__(input_shape, num_classes + 1, num_domains, hparams)

    register()(Wider)
    ALGORITHMS.add("Changing", ALGORITHMS["Wider"])
    with pytest.raises(StoreError, match="belongs to another version of Changing"):
        shiftbed.load(tmp_path)


@pytest.mark.parametrize("name", ["MTL", "ARM"])
def test_a_model_that_looks_at_its_batch_predicts_as_it_was_recorded(name, tmp_path):
    job = tiny_job(name)
    run_job(job, LocalStore(tmp_path), keep="final")
    split = next(split for split in job.task.splits if split.name == "-90%/in")
    assert len(split.indices) > 256, "more than a batch of other models"
    domain = load_dataset("ColoredDigits")["-90%"]
    right = shiftbed.load(tmp_path).predict(domain.inputs[split.indices]).argmax(1) == domain.labels[split.indices]
    assert right.mean() == pytest.approx(shiftbed_rows(tmp_path, job)[-1]["splits"]["-90%/in"]["accuracy"])


def test_what_cannot_be_loaded_is_said_in_one_sentence(run, tmp_path):
    with pytest.raises(StoreError, match="no weights in"):
        shiftbed.load(tmp_path)
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(StoreError, match="not written by shiftbed"):
        shiftbed.load(tmp_path)


class FullMemory:
    """A device that holds a few examples at once."""

    def __init__(self, monkeypatch, holds):
        from shiftbed.networks.convolutional import SmallConv

        original = SmallConv.forward

        def forward(network, x):
            if network.training and len(x) > holds:
                raise torch.OutOfMemoryError("out of memory")
            return original(network, x)

        monkeypatch.setattr(SmallConv, "forward", forward)


@pytest.mark.parametrize("name", ["SD", "EoA", "SWAD(SD)"])
def test_a_batch_that_does_not_fit_is_taken_in_parts(name, monkeypatch, tmp_path):
    whole, parts = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "parts")
    job = tiny_job(name, batch_size=8)
    run_job(job, whole)
    FullMemory(monkeypatch, holds=4)
    assert run_job(job, parts) == "done"
    for one, two in zip(shiftbed_rows(tmp_path / "whole", job), shiftbed_rows(tmp_path / "parts", job), strict=True):
        assert one["splits"]["-90%/in"]["loss"] == pytest.approx(two["splits"]["-90%/in"]["loss"], rel=1e-4)


def test_a_wrapper_that_does_not_fit_makes_no_second_update_of_the_algorithm_inside(monkeypatch):
    trainer = Trainer(tiny_job("EoA"))

    def full(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(trainer.algorithm, "iterate", full)
    with pytest.raises(AlgorithmError, match="needs more memory than cpu has"):
        trainer.advance()
    assert trainer.algorithm.inner.step == 1


@pytest.mark.parametrize("name", ["ERM", "Mixup"])
def test_a_captured_step_that_does_not_fit_goes_on_plainly_with_the_same_draws(name):
    plain, captured = Trainer(tiny_job(name)), Trainer(tiny_job(name))

    def full(*_):
        captured.algorithm.rng.random()
        raise torch.OutOfMemoryError("out of memory")

    captured._captured = full
    losses = [[float(trainer.advance()["loss"]) for _ in range(3)] for trainer in (plain, captured)]
    assert losses[0] == losses[1]


def test_a_method_that_needs_the_whole_batch_says_so(monkeypatch, tmp_path):
    FullMemory(monkeypatch, holds=4)
    with pytest.raises(AlgorithmError, match=r"CORAL with 8 examples a domain needs more memory than cpu has; set"):
        run_job(tiny_job("CORAL", batch_size=8), LocalStore(tmp_path))


def test_live_batch_norm_is_not_taken_in_parts():
    trainer = Trainer(tiny_job("ERM", batch_size=8))
    trainer.algorithm.featurizer.add_module("norm", torch.nn.BatchNorm1d(4))
    trainer.algorithm.train()
    assert not trainer._save_memory() and trainer.algorithm.parts == 1
    trainer.algorithm.featurizer.norm.eval()
    assert trainer._save_memory() and trainer.algorithm.parts == 2


def test_activations_computed_twice_come_to_the_same(monkeypatch):
    how = recipe("quick", "ColoredDigits", steps=2, network="resnet18", batch_norm="frozen-statistics")
    trainers = [Trainer(make_job("ColoredDigits", "CORAL", LeaveOut(("-90%",)), how)) for _ in range(2)]
    assert trainers[1]._save_memory() and trainers[1]._checkpointing
    assert trainers[1].algorithm.featurizer.body.grad_checkpointing
    losses = [[float(trainer.advance()["loss"]) for _ in range(2)] for trainer in trainers]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert not trainers[1]._save_memory(), "there is nothing more to save"


@pytest.mark.parametrize("name", ["MLDG", "MixStyle", "MMLD"])
def test_what_activations_computed_twice_would_change_says_that_memory_is_missing(name):
    how = recipe("quick", "ColoredDigits", steps=2, network="test_resnet", batch_norm="frozen-statistics")
    trainer = Trainer(make_job("ColoredDigits", name, LeaveOut(("-90%",)), how))
    assert hasattr(trainer.algorithm.featurizer.body, "set_grad_checkpointing")
    assert not trainer._save_memory() and not trainer._checkpointing


def test_the_best_weights_are_those_of_the_best_validated_step(tmp_path):
    job = tiny_job("ERM", steps=8, every=1, lr=0.02)
    every = LocalStore(tmp_path / "every")
    run_job(job, every, keep="all")
    run_job(job, LocalStore(tmp_path / "best"), keep="best")
    rows = shiftbed_rows(tmp_path / "best", job)
    means = [row["splits"]["+90%/out"]["accuracy"] + row["splits"]["+80%/out"]["accuracy"] for row in rows]
    expected = rows[means.index(max(means))]["step"]
    kept = shiftbed.load(tmp_path / "best")
    assert kept.about["step"] == expected
    folder = tmp_path / "every" / "jobs" / job.id
    assert sorted(int(path.stem.split("-")[1]) for path in folder.glob("weights-*")) == list(range(1, 9))
    assert (folder / f"weights-{expected}.safetensors").read_bytes() == next(
        (tmp_path / "best").glob("jobs/*/weights.safetensors")
    ).read_bytes()


def test_the_best_model_of_swad_is_the_one_that_was_recorded(tmp_path):
    job = tiny_job("SWAD", steps=16, lr=0.01)
    run_job(job, LocalStore(tmp_path / "run"))
    made = best(tmp_path / "run", tmp_path / "best")
    assert made.apart is None
    split = next(split for split in job.task.splits if split.name == "-90%/in")
    domain = load_dataset("ColoredDigits")["-90%"]
    said = shiftbed.load(tmp_path / "best").predict(domain.inputs[split.indices])
    loss = -np.log(said[np.arange(len(said)), domain.labels[split.indices]]).mean()
    row = next(row for row in shiftbed_rows(tmp_path / "run", job) if row["step"] == made.choice.step)
    assert loss == pytest.approx(row["splits"]["-90%/in"]["loss"], rel=1e-5)


def test_the_best_weights_need_records_of_validation(tmp_path):
    lean = replace(tiny_job("ERM"), lean=("oracle",))
    with pytest.raises(StoreError, match="which this lean job does not record"):
        run_job(lean, LocalStore(tmp_path), keep="best")


def test_a_tracker_is_told_every_evaluation(tmp_path):
    told = []

    class Notes:
        def __init__(self, folder, job_id):
            told.append((folder, job_id))

        def log(self, step, values):
            told.append((step, values["accuracy/-90%/in"]))

        def close(self):
            told.append("closed")

    TRACKERS.add("notes", Notes)
    job = shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path, steps=60, track="notes")
    assert told[0] == (tmp_path, job.id) and told[-1] == "closed"
    assert told[1:-1] == [(row["step"], row["splits"]["-90%/in"]["accuracy"]) for row in job.rows]
    with pytest.raises(shiftbed.ShiftbedError, match=r"no tracker 'tensorbord'\. Did you mean tensorboard"):
        shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path / "no", steps=1, track="tensorbord")


class Failing:
    """Fails where its name says."""

    def __init__(self, folder, job_id):
        self._fail("init")

    def log(self, step, values):
        self._fail("log")

    def close(self):
        self._fail("close")

    def _fail(self, where):
        if where == type(self).__name__:
            raise ConnectionError("no server")


@pytest.mark.parametrize(
    ("where", "said"), [("log", "at step 2, and was told no more"), ("close", "when its run was to end")]
)
def test_a_tracker_that_fails_ends_nothing_but_itself(tmp_path, where, said):
    TRACKERS.add("failing", type(where, (Failing,), {}))
    fields = {"steps": 2, "track": "failing"}
    with pytest.warns(UserWarning, match=rf"failing failed {said} \(ConnectionError: no server\)") as noted:
        job = shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path, **fields)
    assert job.status == "done" and len(noted) == 1
    printed = CliRunner().invoke(
        app,
        ["train", "ColoredDigits", "ERM", "--test=-90%", "--steps=2", "--track=failing", f"--out={tmp_path / 'cli'}"],
    )
    assert printed.exit_code == 0 and "no server); the records have all numbers." in " ".join(printed.output.split())


def test_a_tracker_that_does_not_start_leaves_nothing_behind(tmp_path):
    TRACKERS.add("failing", type("init", (Failing,), {}))
    with pytest.raises(shiftbed.ShiftbedError, match=r"failing does not start \(ConnectionError: no server\); mend it"):
        shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path / "out", steps=2, track="failing")
    with pytest.raises(shiftbed.ShiftbedError, match="no tracker 'nosuch'"):
        shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path / "out", steps=2, track="nosuch")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "needs"), [("tensorboard", "torch.utils.tensorboard"), ("wandb",) * 2, ("mlflow",) * 2]
)
def test_a_tracker_that_is_not_installed_says_so(tmp_path, monkeypatch, name, needs):
    monkeypatch.setitem(sys.modules, needs, None)
    with pytest.raises(shiftbed.ShiftbedError, match=f"Tracking with {name} needs `pip install {name}`"):
        shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path, steps=1, track=name)


def test_a_file_may_have_a_tracker_alone(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from shiftbed.training.trackers import TRACKERS\n\n\n@TRACKERS.named('mine')\nclass Mine:\n"
        "    def __init__(self, folder, job_id):\n        self.file = folder / 'told'\n\n"
        "    def log(self, step, values):\n        self.file.write_text(str(step))\n\n"
        "    def close(self):\n        pass\n"
    )
    shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path, steps=3, track="mine", code=tmp_path / "mine.py")
    assert (tmp_path / "told").read_text() == "3"


def test_wandb_and_mlflow_are_told_under_names_they_have(tmp_path, monkeypatch):
    run, mlflow = Mock(), Mock()
    wandb = Mock(init=Mock(return_value=run))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    values = {"accuracy/-90%/in": 0.5}
    for name in ("wandb", "mlflow"):
        tracker = TRACKERS[name](tmp_path, "an-id")
        tracker.log(7, values)
        tracker.close()
    assert wandb.init.call_args.kwargs["id"] == "an-id" and run.finish.called
    run.log.assert_called_once_with(values, step=7)
    mlflow.start_run.assert_called_once_with(run_name="an-id")
    mlflow.log_metrics.assert_called_once_with({"accuracy/-90_/in": 0.5}, step=7)
    assert mlflow.end_run.called


def test_wandb_keeps_a_run_of_the_job(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path, steps=1, track="wandb")
    assert list(tmp_path.glob(f"wandb/offline-run-*-{job.id}/*.wandb"))


def test_mlflow_keeps_a_run_of_the_job(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    job = shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path / "job", steps=1, track="mlflow")
    (run,) = mlflow.search_runs(output_format="list")
    assert (run.info.run_name, run.info.status) == (job.id, "FINISHED")
    assert run.data.metrics["accuracy/-90_/in"] == job.rows[-1]["splits"]["-90%/in"]["accuracy"]


def test_tensorboard_writes_its_files(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    shiftbed.train("ColoredDigits", "ERM", "-90%", tmp_path, steps=1, track="tensorboard")
    assert list(tmp_path.glob("tensorboard/*/events*"))


def test_the_best_of_several_tasks_is_of_the_algorithm_that_is_best_over_all():
    scores = {"ERM": {"a": 0.9, "b": 0.2, "c": 0.99}, "SD": {"a": 0.8, "b": 0.7}}  # without b ERM would look better
    choices = {
        (name, task): Choice(f"{name}-{task}", 1, score, 0, {}, (), 0, 0)
        for name, of in scores.items()
        for task, score in of.items()
    }
    cells = {one.job_id: ("setting", name, (task,), 0) for (name, task), one in choices.items()}
    assert _best_of([*choices.values()], cells).job_id == "SD-a"
    alone = {key: one for key, one in choices.items() if key[0] == "ERM"}
    assert _best_of([*alone.values()], cells).job_id == "ERM-c"


def test_a_file_that_is_no_image_is_one_sentence(tmp_path):
    run_job(tiny_job("ERM"), LocalStore(tmp_path), keep="final")
    with pytest.raises(DataError, match=r"nope\.png cannot be read: No such file"):
        shiftbed.load(tmp_path).predict([tmp_path / "nope.png"])


def test_files_are_read_as_the_images_that_were_trained_on(tmp_path):
    """A transparent icon, a photograph on its side, 16 bits: what `prepare` packs of a file is what a path gives."""
    exif = Image.Exif()
    exif[0x0112] = 6
    clear = np.zeros((28, 28, 4), np.uint8)
    clear[8:20, 8:14] = (200, 30, 30, 255)
    deep = np.linspace(0, 65535, 28 * 28).astype(np.uint16).reshape(28, 28)
    Image.fromarray(clear).save(tmp_path / "clear.png")
    Image.fromarray(clear).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    files = [tmp_path / name for name in ("clear.png", "turned.png", "deep.png")]
    packed = [decode(file, 28, 28) for file in files]
    for file, expected in zip(files, packed, strict=True):
        assert np.array_equal(_as_array(file, 3), expected) and np.array_equal(_as_array(str(file), 3), expected)
        grey = np.asarray(Image.fromarray(expected).convert("L"))[..., None]
        assert np.array_equal(_as_array(file, 1), grey)
        with Image.open(file) as opened:
            assert np.array_equal(_as_array(opened, 3), expected)
    assert packed[0][0, 0].tolist() == [255, 255, 255] and not np.array_equal(packed[0], packed[1])


def test_a_damaged_file_or_picture_is_one_sentence(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"The image .*cut\.jpg cannot be read: it is a damaged image"):
        _as_array(tmp_path / "cut.jpg", 3)
    with Image.open(tmp_path / "cut.jpg") as opened, pytest.raises(DataError, match="A PIL image that was given"):
        _as_array(opened, 3)


def resnet_job(initial):
    """One step of a small ResNet that begins with a file's weights."""
    how = recipe("quick", "EmojiStyles", network="resnet26", initial_weights=initial, steps=1, evaluate_every=1)
    how = how.model_copy(update={"batch_norm": "frozen-statistics", "image_size": 32})
    return make_job("EmojiStyles", "ERM", LeaveOut(("noto",)), how, overrides={"batch_size": 2})


@pytest.mark.parametrize("what", ["normalisation", "stride"])
def test_a_loaded_network_has_what_its_initial_weights_asked_for(what, tmp_path, monkeypatch):
    """Neither is among its parameters, and the file of initial weights is gone by then."""
    torch.manual_seed(0)
    words = {"stride": "on conv1"} if what == "stride" else {}
    save_file(timm.create_model("resnet26", num_classes=0).state_dict(), tmp_path / "first.safetensors", words)
    if what == "normalisation":
        published = weights.Published("first.safetensors", "made by hand", ((0.1, 0.2, 0.3), (2.0, 3.0, 4.0)))
        monkeypatch.setitem(weights.PUBLISHED, "mine", {"resnet26": published})
        monkeypatch.setattr(weights, "weights_folder", lambda: tmp_path)
    trainer = Trainer(resnet_job("mine" if what == "normalisation" else str(tmp_path / "first.safetensors")))
    trainer.advance()
    (tmp_path / "weights.safetensors").write_bytes(encode_weights(trainer))
    (tmp_path / "first.safetensors").unlink()
    split = next(one for one in trainer.job.task.splits if one.name == "noto/in")
    images = load_dataset("EmojiStyles")["noto"].inputs[split.indices[:8]]
    loaded = shiftbed.load(tmp_path).outputs(images)[0]
    assert np.allclose(loaded, trainer.logits()["noto/in"][:8], atol=1e-5)
    again = Featurizer((3, 32, 32), {"network": "resnet26", "initial_weights": str(tmp_path / "weights.safetensors")})
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.eval()(x), trainer.algorithm.featurizer.eval()(x)), "and so has one that begins with it"


def test_no_network_begins_with_a_model_whose_weights_are_a_mean(tmp_path):
    """Its file holds the weights that were being trained, and these are not what it predicts with."""
    trainer = Trainer(tiny_job("EoA(CORAL)"))
    (tmp_path / "eoa.safetensors").write_bytes(encode_weights(trainer))
    with pytest.raises(DataError, match=r"eoa.* is a model of EoA\(CORAL\), .* model of the algorithm inside"):
        Featurizer((2, 8, 8), {"network": "small", "initial_weights": str(tmp_path / "eoa.safetensors")})


def test_files_of_weights_say_nothing_of_strides_that_were_not_moved():
    with_nothing = encode_weights(Trainer(tiny_job("ERM")))
    assert b"strides_first" not in with_nothing


def test_packed_images_of_any_size_are_predicted_as_they_were_evaluated(tmp_path, monkeypatch):
    """A centre of 30 original pixels is another one of a packed image, which is half as large."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    forget()
    random = np.random.default_rng(0)
    for number in range(36):
        file = tmp_path / "sizes" / "abc"[number % 3] / "xy"[number // 3 % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (*random.integers(40, 80, 2), 3), np.uint8)
        Image.fromarray(pixels).resize((60 + number, 90 - number)).save(file)
    prepare(str(tmp_path / "sizes"), short_side=24)
    how = recipe("quick", "sizes", steps=1, augmentation={"size": 16, "evaluation_crop": 30})
    how = how.model_copy(update={"image_size": None})
    job = make_job("sizes", "ERM", LeaveOut(("c",)), how, overrides={"batch_size": 4})
    trainer = Trainer(job)
    trainer.advance()
    (tmp_path / "weights.safetensors").write_bytes(encode_weights(trainer))
    model, split = shiftbed.load(tmp_path), next(one for one in job.task.splits if one.name == "c/in")
    images, expected = load_dataset("sizes")["c"].inputs, trainer.logits()["c/in"]
    forget()
    assert isinstance(images, RaggedImages) and np.array_equal(images[3:5][1], images[4])
    assert np.allclose(model.outputs(images[split.indices])[0], expected, atol=1e-5)
    assert np.allclose(model.outputs(images)[0][split.indices], expected, atol=1e-5)
    as_if_not_packed = model.outputs([np.array(image) for image in images])[0][split.indices]
    assert abs(as_if_not_packed - expected.numpy()).max() > 1e-3


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((2, 8, 8, 2)), r"inputs of shape \(2, 8, 8\) or images H×W×C of uint8, not float64 of shape"),
        ([np.zeros((8, 8, 2), np.float32)], "images H×W×C of uint8, 0 to 255, and these are float32"),
        ([np.zeros((8, 8, 2), np.uint8), np.zeros((8, 8, 3), np.uint8)], "of 2 channels, and these have 3"),
        ([np.zeros((8, 8), np.uint8)], "of 2 channels, and these have none"),
    ],
)
def test_what_are_no_images_is_refused_in_one_sentence(run, images, words):
    with pytest.raises(DataError, match=words):
        shiftbed.load(run[0]).predict(images)
