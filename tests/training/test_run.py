"""One job: what it records, how it ends, and what it refuses."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save_file

from shiftbed.algorithms import ALGORITHMS, ERM, register
from shiftbed.data import load as load_data
from shiftbed.errors import AlgorithmError, DataError, StoreError
from shiftbed.hashing import canonical
from shiftbed.protocols import LeaveOut
from shiftbed.training import run, store
from shiftbed.training.device import find_runtime
from shiftbed.training.files import Result
from shiftbed.training.job import make_job
from shiftbed.training.model import load as load_weights
from shiftbed.training.recipes import recipe
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer
from tests.conftest import tiny_job


@pytest.fixture(autouse=True)
def every_evaluation_is_saved(monkeypatch):
    monkeypatch.setattr(run, "SAVE_SECONDS", 0.0)


@pytest.fixture
def local(tmp_path):
    return LocalStore(tmp_path)


def finished(local, job):
    return Result.read(local, job.id).parsed(job.id)


def test_records_are_taken_after_every_interval_and_the_last_step_and_not_before(local):
    job = tiny_job("ERM", steps=5, every=2)
    run_job(job, local)
    assert [row["step"] for row in finished(local, job)["records"]] == [2, 4, 5]


@pytest.mark.parametrize("setting", ["dtype", "device", "no gradients", "inference"])
def test_what_a_notebook_set_in_torch_changes_no_number_and_stays_set(setting, local, tmp_path):
    job, other = tiny_job("IRM", steps=2, every=2), LocalStore(tmp_path / "other")
    images = load_data("ColoredDigits")["-90%"].inputs[:5]
    run_job(job, local, keep="final")
    said = load_weights(local.root).predict(images)
    inference = torch.inference_mode() if setting == "inference" else nullcontext()
    try:
        if setting == "dtype":
            torch.set_default_dtype(torch.float64)
        if setting == "device":
            torch.set_default_device("meta")
        torch.set_grad_enabled(setting != "no gradients")
        with inference:
            before = (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
            run_job(job, other, keep="final")
            assert (load_weights(other.root).predict(images) == said).all()
            assert before == (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
    assert finished(other, job) == finished(local, job)


def test_a_device_of_torch_is_a_device():
    assert find_runtime(torch.device("cpu")) == find_runtime("cpu")


def looking_first(job):
    return replace(job, recipe=job.recipe.model_copy(update={"evaluate_first": True}))


@pytest.mark.parametrize("algorithm", ["Mixup", "SWAD", "MMLD"])
def test_a_look_after_the_first_update_changes_no_other_number_and_teaches_nothing(algorithm, local, tmp_path):
    usual = tiny_job(algorithm, steps=8, every=3)
    looking, other = looking_first(usual), LocalStore(tmp_path / "other")
    assert looking.id == usual.id and looking.setting == usual.setting
    run_job(usual, local, keep="final")
    run_job(looking, other, keep="final")
    first, *later = finished(other, looking)["records"]
    assert first["step"] == 1 and later == finished(local, usual)["records"]
    assert local.get(JobFiles(usual.id).weights) == other.get(JobFiles(usual.id).weights)


def test_whoever_comes_first_says_whether_the_first_update_is_looked_at(local):
    job, made = looking_first(tiny_job("ERM", steps=4)), []
    run_job(job, local, should_stop=lambda: bool(made), on_step=lambda step, _: made.append(step))
    run_job(tiny_job("ERM", steps=4), local)
    assert [row["step"] for row in finished(local, job)["records"]] == [1, 2, 4]


def test_records_hold_every_split_but_those_trained_on(local):
    job = tiny_job("ERM")
    run_job(job, local)
    row = finished(local, job)["records"][-1]["splits"]
    assert set(row) == {"+90%/out", "+80%/out", "-90%/in", "-90%/out"}
    assert [row[name]["count"] for name in ("+90%/out", "-90%/in", "-90%/out")] == [119, 480, 119]


def test_the_numbers_of_test_splits_lie_in_a_file_of_their_own(local):
    job = tiny_job("ERM")
    made = iter(range(9))
    run_job(job, local, should_stop=lambda: next(made) == 5)
    files = JobFiles(job.id)
    assert b"-90%/" not in local.get(files.records), "neither while it is trained"
    run_job(job, local)
    (test,) = local.root.glob("jobs/*/test-*.json")
    assert b"-90%/" not in local.get(files.done) + local.get(files.records)
    assert test.stem == f"test-{json.loads(local.get(files.done))['test']}"
    for row in json.loads(test.read_bytes())["records"]:
        assert set(row["splits"]) == {"-90%/in", "-90%/out"}


def test_test_numbers_are_of_the_run_that_finished_first(local):
    job = tiny_job("ERM")
    run_job(job, local)
    before = finished(local, job)
    late = [{"step": 6, "splits": {"-90%/in": {"accuracy": 1.0}}}]
    assert not Result.of("done", 6, late, ["-90%/in"]).write(local, job.id)
    assert len(list(local.root.glob("jobs/*/test-*.json"))) == 2
    assert finished(local, job) == before
    for path in local.root.glob("jobs/*/test-*.json"):
        path.unlink()
    with pytest.raises(StoreError, match=r"test-\w+\.json is missing; remove jobs/\w+/done\.json and run"):
        finished(local, job)


def test_checkpoints_from_before_test_numbers_lay_apart_are_continued(local, tmp_path, monkeypatch):
    job, whole = tiny_job("IRM"), LocalStore(tmp_path / "whole")
    run_job(job, whole)
    made = iter(range(9))
    with monkeypatch.context() as patch:
        patch.setattr(run, "apart", lambda rows, tests: (rows, []))
        patch.setattr(run, "CHECKPOINT_FORMAT", 1)
        run_job(job, local, should_stop=lambda: next(made) == 5)
    assert b"-90%/" in local.get(JobFiles(job.id).records)
    made = []
    run_job(job, local, on_step=lambda step, _: made.append(step))
    assert made == [6]
    for key in (JobFiles(job.id).done, JobFiles(job.id).records):
        assert local.get(key) == whole.get(key)


def test_a_recorded_accuracy_is_that_of_the_saved_weights(local):
    job = tiny_job("CORAL")
    run_job(job, local, keep="final")
    trainer = Trainer(job)
    trainer.algorithm.load_state_dict(load_safetensors(local.get(JobFiles(job.id).weights)), strict=False)
    split = next(split for split in job.task.splits if split.name == "-90%/in")
    places = trainer.data.pool.places(split)
    inputs, labels = trainer.data.pool.resident[places], trainer.data.pool.labels[places]
    trainer.algorithm.eval()
    right = (trainer.algorithm.predict(inputs.float() / 255).argmax(1) == labels).float().mean().item()
    assert finished(local, job)["records"][-1]["splits"]["-90%/in"]["accuracy"] == pytest.approx(right, abs=1e-7)


def test_the_same_job_gives_the_same_bytes_in_another_folder_with_another_interval(local, tmp_path):
    first, second = tiny_job("Mixup", every=2), tiny_job("Mixup", every=3)
    other = LocalStore(tmp_path / "other")
    torch.manual_seed(123)
    run_job(first, local, keep="final")
    run_job(second, other, keep="final")
    files = JobFiles(first.id)
    assert local.get(files.weights) == other.get(files.weights)
    assert finished(local, first)["records"][-1] == finished(other, second)["records"][-1]


def test_jobs_in_threads_of_one_process_give_the_bytes_of_one_after_another(local, tmp_path):
    """Torch has one generator for all threads: they trained on each other's draws, and were done without a word."""
    jobs, other = [tiny_job(name) for name in ("CORAL", "MixStyle", "Mixup", "DANN")], LocalStore(tmp_path / "other")
    for job in jobs:
        run_job(job, local)
    with ThreadPoolExecutor(len(jobs)) as threads:
        assert list(threads.map(lambda job: run_job(job, other), jobs)) == ["done"] * len(jobs)
    for job in jobs:
        for key in (JobFiles(job.id).done, JobFiles(job.id).records):
            assert other.get(key) == local.get(key), job.algorithm


def test_algorithms_of_a_cell_start_from_the_same_weights():
    weights = [Trainer(tiny_job(name)).weights()["featurizer.maps.0.weight"] for name in ("ERM", "IRM", "GroupDRO")]
    assert all(torch.equal(one, weights[0]) for one in weights)
    assert not torch.equal(Trainer(tiny_job("ERM", trial=1)).weights()["featurizer.maps.0.weight"], weights[0])


def test_a_finished_job_is_not_run_again_and_leaves_no_checkpoint(local):
    job = tiny_job("ERM")
    run_job(job, local)
    made = []
    assert run_job(job, local, on_step=lambda step, metrics: made.append(step)) == "done"
    assert not made
    assert local.get(JobFiles(job.id).checkpoint) == b""


@pytest.mark.parametrize("keep", ["best", "all", "logits"])
def test_a_job_begun_without_keeping_weights_has_them_all_in_the_end(keep, local, tmp_path):
    job, whole, made = tiny_job("ERM", steps=8, every=2, lr=0.02), LocalStore(tmp_path / "whole"), []
    stop = {"should_stop": lambda: len(made) == 5, "on_step": lambda step, _: made.append(step)}
    run_job(job, whole, keep=keep)
    run_job(job, local, **stop)
    run_job(job, local, keep=keep)
    kept = {path.name: path.read_bytes() for path in (whole.root / "jobs" / job.id).glob("*.safetensors")}
    assert kept and kept == {path.name: path.read_bytes() for path in local.root.glob("jobs/*/*.safetensors")}


@pytest.mark.parametrize(("before", "then"), [("best", "best"), ("none", "final"), ("all", "none")])
def test_what_is_kept_loses_no_steps_where_nothing_is_missing(before, then, local):
    made = []
    again = {"on_step": lambda step, _: made.append(step)}
    run_job(tiny_job("ERM"), local, keep=before, should_stop=lambda: len(made) == 5, **again)
    run_job(tiny_job("ERM"), local, keep=then, **again)
    assert made == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("then", ["none", "all", "logits"])
def test_the_best_of_an_attempt_that_was_stopped_are_not_taken_for_weights_of_the_end(then, local, tmp_path):
    job, whole, made = tiny_job("ERM", steps=8, every=2, lr=0.02), LocalStore(tmp_path / "whole"), []
    stop = {"should_stop": lambda: len(made) == 5, "on_step": lambda step, _: made.append(step)}
    run_job(job, whole, keep="final")
    run_job(job, local, keep="best", **stop)
    weights = JobFiles(job.id).weights
    assert local.get(weights) is not None
    run_job(job, local, keep=then)
    assert local.get(weights) == whole.get(weights)


def test_evaluations_in_quick_succession_cost_no_checkpoint_each_and_change_nothing(local, tmp_path, monkeypatch):
    job, other = tiny_job("ERM", steps=5, every=1), LocalStore(tmp_path / "other")
    run_job(job, local)
    monkeypatch.setattr(run, "SAVE_SECONDS", 1e9)
    run_job(job, other)
    files = JobFiles(job.id)
    assert other.get(files.checkpoint) is None
    assert other.get(files.done) == local.get(files.done) and other.get(files.records) == local.get(files.records)


def test_a_job_whose_loss_is_not_finite_ends_as_diverged_with_its_last_good_records(local):
    class Diverging(ERM):
        def update(self, minibatches, unlabeled=None):
            metrics = super().update(minibatches)
            return {"loss": metrics["loss"] * (float("nan") if self.step == 3 else 1)}

    register()(Diverging)
    job = tiny_job("Diverging")
    assert run_job(job, local) == "diverged"
    result = finished(local, job)
    assert (result["step"], [row["step"] for row in result["records"]]) == (3, [2])


@pytest.mark.parametrize("where", ["update", "predict"])
def test_what_breaks_after_a_bad_loss_has_diverged_and_not_failed(where, local):
    """As decompositions do, which refuse what is not finite."""

    class Decomposing(ERM):
        def update(self, minibatches, unlabeled=None):
            if self.step == 3 and where == "update":
                raise torch.linalg.LinAlgError("not finite")
            metrics = super().update(minibatches)
            return {"loss": metrics["loss"] * (float("nan") if self.step == 3 else 1)}

        def predict(self, x):
            if self.step == 4 and where == "predict":
                raise torch.linalg.LinAlgError("not finite")
            return super().predict(x)

    register()(Decomposing)
    job = tiny_job("Decomposing")
    assert run_job(job, local) == "diverged"
    result = finished(local, job)
    assert (result["step"], [row["step"] for row in result["records"]]) == (3, [2])


def test_what_breaks_without_a_bad_loss_has_failed(local):
    class Broken(ERM):
        def update(self, minibatches, unlabeled=None):
            raise torch.linalg.LinAlgError("a bug")

    register()(Broken)
    with pytest.raises(torch.linalg.LinAlgError):
        run_job(tiny_job("Broken"), local)


def test_a_slip_of_the_program_is_told_after_a_bad_loss_too(local):
    class Slipping(ERM):
        def update(self, minibatches, unlabeled=None):
            if self.step == 3:
                return {"los": 0}["loss"]
            metrics = super().update(minibatches)
            return {"loss": metrics["loss"] * (float("nan") if self.step == 3 else 1)}

    register()(Slipping)
    with pytest.raises(KeyError):
        run_job(tiny_job("Slipping"), local)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_no_algorithm_fails_where_numbers_overflow(name, local):
    rates = {"lr": 1e30, **({"linear_lr": 1e30} if name == "ERMPlusPlus" else {})}
    assert run_job(tiny_job(name, **rates), local) in ("diverged", "done")


def test_a_bad_loss_before_a_stop_is_not_forgotten(local):
    class OnceBad(ERM):
        def update(self, minibatches, unlabeled=None):
            metrics = super().update(minibatches)
            return {"loss": metrics["loss"] * (float("inf") if self.step == 3 else 1)}

    register()(OnceBad)
    job = tiny_job("OnceBad")
    made = []
    stop = {"should_stop": lambda: len(made) == 3, "on_step": lambda step, _: made.append(step)}
    assert run_job(job, local, **stop) == "stopped"
    assert run_job(job, local) == "diverged"
    assert finished(local, job)["step"] == 3


def test_outputs_that_are_not_numbers_are_divergence_and_not_the_first_class(local):
    class Breaking(ERM):
        def update(self, minibatches, unlabeled=None):
            super().update(minibatches)
            if self.step == 6:
                torch.nn.init.constant_(self.classifier.weight, float("nan"))
            return {}

    register()(Breaking)
    job = tiny_job("Breaking")
    assert run_job(job, local) == "diverged"
    result = finished(local, job)
    assert (result["step"], [row["step"] for row in result["records"]]) == (6, [2, 4])


def test_whoever_comes_first_sets_the_evaluation_interval(local):
    first, second = tiny_job("ERM", steps=8, every=4), tiny_job("ERM", steps=8, every=2)
    made = []
    run_job(first, local, should_stop=lambda: len(made) == 5, on_step=lambda step, _: made.append(step))
    run_job(second, local)
    assert [row["step"] for row in finished(local, first)["records"]] == [4, 8]


def test_initial_weights_may_have_moved_since_a_job_was_planned(local, tmp_path):
    torch.manual_seed(0)
    first, moved = tmp_path / "first.safetensors", tmp_path / "moved.safetensors"
    save_file(timm.create_model("resnet26", num_classes=0).state_dict(), first)

    def job_from(file):
        how = recipe("quick", "ColoredDigits", network="resnet26", initial_weights=str(file), steps=1)
        return make_job("ColoredDigits", "ERM", LeaveOut(("-90%",)), how, overrides={"batch_size": 2})

    planned = job_from(first)
    local.create_exclusive(JobFiles(planned.id).job, canonical(planned.describe()))
    first.rename(moved)
    assert job_from(moved).id == planned.id
    assert run_job(job_from(moved), local) == "done"


def test_a_late_process_leaves_a_finished_job_tidy(local):
    job = tiny_job("ERM")
    run_job(job, local)
    files = JobFiles(job.id)
    records = local.get(files.records)
    local.put_atomic(files.records, b"")
    local.put_atomic(files.checkpoint, b"late")
    run_job(job, local)
    assert local.get(files.records) == records and local.get(files.checkpoint) == b""


def test_a_batch_larger_than_a_domain_is_refused(local):
    with pytest.raises(DataError, match=r"A batch of 481 .* the 480 training examples .* --set batch_size=480 or less"):
        run_job(tiny_job("ERM", batch_size=481), local)


def test_an_update_that_returns_nothing_is_refused(local):
    class Silent(ERM):
        def update(self, minibatches, unlabeled=None):
            super().update(minibatches)

    register()(Silent)
    with pytest.raises(AlgorithmError, match=r"Silent.update\(\) returned None"):
        run_job(tiny_job("Silent"), local)


def test_checkpoints_of_other_jobs_and_newer_formats_are_refused(local, monkeypatch):
    job, other = tiny_job("ERM"), tiny_job("ERM", trial=1)
    foreign = run.encode_checkpoint(Trainer(other), [], "none")
    local.put_atomic(JobFiles(job.id).checkpoint, foreign)
    with pytest.raises(StoreError, match=f"belongs to job {other.id}"):
        run_job(job, local)
    with monkeypatch.context() as patch:
        patch.setattr(run, "CHECKPOINT_FORMAT", 99)
        newer = run.encode_checkpoint(Trainer(job), [], "none")
    local.put_atomic(JobFiles(job.id).checkpoint, newer)
    with pytest.raises(StoreError, match="newer shiftbed"):
        run_job(job, local)


def test_a_torn_description_of_an_unfinished_job_is_one_sentence(local):
    job = tiny_job("ERM")
    local.put_atomic(JobFiles(job.id).job, b'{"id":')
    with pytest.raises(StoreError, match=r"job\.json is damaged; remove its folder and run the sweep again"):
        run_job(job, local)


def test_a_torn_checkpoint_makes_the_job_start_over(local):
    job = tiny_job("ERM")
    whole = run.encode_checkpoint(Trainer(job), [], "none")
    local.put_atomic(JobFiles(job.id).checkpoint, whole[: len(whole) // 2])
    assert run_job(job, local) == "done"


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EPERM, "choose a folder on another")],
)
def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stays(local, monkeypatch, number, words):
    job = tiny_job("ERM")
    made = []
    run_job(job, local, should_stop=lambda: len(made) == 4, on_step=lambda step, _: made.append(step))
    before = local.get(JobFiles(job.id).checkpoint)

    def full(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(store.os, "write", full)
        with pytest.raises(StoreError, match=words):
            run_job(job, local)
    assert local.get(JobFiles(job.id).checkpoint) == before
    assert not list(local.root.rglob(".*")), "nothing half-written is left"
    assert run_job(job, local) == "done"


def test_times_are_kept_apart_from_records(local):
    job = tiny_job("ERM")
    run_job(job, local)
    (attempt,) = json.loads(local.get(JobFiles(job.id).times))
    assert attempt["steps"] == 6 and attempt["seconds"] > 0
    assert "seconds" not in local.get(JobFiles(job.id).done).decode()
