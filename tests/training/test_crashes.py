"""Every write, fsync, rename and link of a job fails in turn, before and after it takes effect; nothing is lost."""

import hashlib
import json
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shiftbed.algorithms import ERM, register
from shiftbed.training import run, store
from shiftbed.training.run import JobFiles, decode_checkpoint, run_job
from shiftbed.training.store import LocalStore
from tests.conftest import augmented_job, tiny_job

OPERATIONS = ("write", "fsync", "replace", "link")


@pytest.fixture(autouse=True)
def every_evaluation_is_saved(monkeypatch):
    monkeypatch.setattr(run, "SAVE_SECONDS", 0.0)


class CrashError(BaseException):
    """The process is gone: nothing may catch this and go on."""


class CrashingOs:
    """The os module of a process that dies at its n-th operation, `before` or `after` it takes effect."""

    def __init__(self, fatal: int | None = None, moment: str = "before") -> None:
        self.fatal, self.moment = fatal, moment
        self.log: list[str] = []
        self.dead = False

    def __getattr__(self, name):
        real = getattr(os, name)
        if not callable(real):
            return real

        def operation(*arguments):
            if self.dead and name != "close":  # a dead process cleans nothing up; the test's descriptors are closed
                raise CrashError
            if name not in OPERATIONS:
                return real(*arguments)
            self.log.append(name)
            self.dead = len(self.log) - 1 == self.fatal
            if self.dead and self.moment == "before":
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise CrashError
            result = real(*arguments)
            if self.dead:
                raise CrashError
            return result

        return operation


def fingerprint(folder, job) -> dict[str, str]:
    """SHA-256 of all that must not depend on crashes."""
    files = JobFiles(job.id)
    kept = [folder / key for key in (files.job, files.records, files.weights, files.done)]
    kept += sorted(folder.glob(files.test.format(digest="*")))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def undisturbed(folder, job, monkeypatch) -> tuple[dict[str, str], list[str]]:
    """The fingerprint of a run without crashes, and the operations it made."""
    counting = CrashingOs()
    with monkeypatch.context() as patch:
        patch.setattr(store, "os", counting)
        run_job(job, LocalStore(folder), keep="final")
    return fingerprint(folder, job), counting.log


def crash_and_resume(folder, job, fatal, moment, monkeypatch) -> tuple[dict[str, str], int, int]:
    """Crashes at one operation and runs again: the fingerprint, the steps made again, and those that had to be."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "os", CrashingOs(fatal, moment))
        with pytest.raises(CrashError):
            run_job(job, LocalStore(folder), keep="final")
    survivor = LocalStore(folder)
    files = JobFiles(job.id)
    saved = survivor.get(files.checkpoint)
    checkpoint = decode_checkpoint(saved, job) if saved else None
    covered = checkpoint["state"]["step"] if checkpoint else 0
    due = 0 if survivor.get(files.done) else job.recipe.steps - covered
    made: list[int] = []
    run_job(job, survivor, keep="final", on_step=lambda step, metrics: made.append(step))
    return fingerprint(folder, job), len(made), due


class PastedNoise(ERM):
    """As such classes are published: it draws with NumPy's global generator and counts in a buffer."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("update_count", torch.tensor([0]))

    def update(self, minibatches, unlabeled=None):
        all_x = torch.cat([x for x, y in minibatches])
        all_y = torch.cat([y for x, y in minibatches])
        noise = torch.from_numpy(np.random.normal(0, 0.1, all_x.shape)).float()
        loss = F.cross_entropy(self.predict(all_x + noise), all_y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.update_count += 1
        return {"loss": loss.item()}


@pytest.mark.parametrize("algorithm", ["IRM", "SWAD", "MMLD", "Mixup", "PastedNoise"])
def test_a_crash_at_any_operation_loses_nothing(algorithm, memory_folder, monkeypatch, tiny_colours):
    if algorithm == "PastedNoise":
        register()(PastedNoise)
    job = augmented_job(algorithm)
    expected, operations = undisturbed(memory_folder / "undisturbed", job, monkeypatch)
    assert {name: operations.count(name) for name in OPERATIONS} == CRASH_POINTS
    for fatal, name in enumerate(operations):
        for moment in ("before", "after"):
            folder = memory_folder / f"{fatal}-{moment}"
            found, made, due = crash_and_resume(folder, job, fatal, moment, monkeypatch)
            where = f"{moment} operation {fatal} ({name})"
            assert found == expected, where
            assert made == due, f"{where}: steps before the last checkpoint were made again"


# job.json: 1 write, 2 fsyncs (file, folder), 1 link; 2 evaluations × (records, checkpoint): each 1 write, 2 fsyncs and
# 1 rename; then times, weights and test numbers likewise, `done` with a link, and the emptied checkpoint (no bytes,
# so no write).
CRASH_POINTS = {"write": 9, "fsync": 20, "replace": 8, "link": 2}


def test_the_test_notices_when_the_checkpoint_is_saved_before_its_records(tmp_path, monkeypatch):
    def swapped(trainer, rows, into, files, keep):
        into.put_atomic(files.checkpoint, run.encode_checkpoint(trainer, rows, keep))
        into.put_atomic(files.records, b"".join(run.canonical(row) + b"\n" for row in rows))

    job = tiny_job("IRM", steps=4)
    monkeypatch.setattr(run, "save", swapped)
    expected, operations = undisturbed(tmp_path / "undisturbed", job, monkeypatch)
    results = (
        crash_and_resume(tmp_path / str(fatal), job, fatal, "before", monkeypatch) for fatal in range(len(operations))
    )
    assert any(found != expected or made != due for found, made, due in results)


@pytest.mark.parametrize("algorithm", ["IRM", "Mixup"])
@pytest.mark.parametrize("stop_after", range(6))
def test_stopped_at_any_step_it_continues_to_the_same_end(algorithm, stop_after, tmp_path, monkeypatch):
    job = tiny_job(algorithm)
    expected, _ = undisturbed(tmp_path / "undisturbed", job, monkeypatch)
    made: list[int] = []
    stopped = LocalStore(tmp_path / "stopped")
    stop = {"should_stop": lambda: len(made) == stop_after, "on_step": lambda step, metrics: made.append(step)}
    assert run_job(job, stopped, keep="final", **stop) == "stopped"
    assert run_job(job, stopped, keep="final", on_step=lambda step, metrics: made.append(step)) == "done"
    assert made == [1, 2, 3, 4, 5, 6]
    assert fingerprint(stopped.root, job) == expected


def test_records_that_another_process_cut_short_make_the_job_start_over(tmp_path, monkeypatch):
    job = tiny_job("IRM")
    expected, _ = undisturbed(tmp_path / "undisturbed", job, monkeypatch)
    files, torn = JobFiles(job.id), LocalStore(tmp_path / "torn")
    made: list[int] = []
    run_job(job, torn, keep="final", should_stop=lambda: len(made) == 5, on_step=lambda step, _: made.append(step))
    records = torn.get(files.records)
    assert records is not None and len(records.splitlines()) == 2
    torn.put_atomic(files.records, records[: len(records) // 2 + 10])
    run_job(job, torn, keep="final")
    assert fingerprint(torn.root, job) == expected


def test_a_late_writer_cannot_change_a_finished_job(tmp_path, monkeypatch):
    job = tiny_job("ERM")
    undisturbed(tmp_path, job, monkeypatch)
    files, shared = JobFiles(job.id), LocalStore(tmp_path)
    before = shared.get(files.done)
    assert not shared.create_exclusive(files.done, b"{}")
    shared.put_atomic(files.records, b"")
    assert shared.get(files.done) == before
    assert len(json.loads(before or b"")["records"]) == 3
