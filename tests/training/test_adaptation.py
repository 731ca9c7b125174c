"""Unlabelled test images: given to the algorithm, tested nowhere, and their labels never looked at."""

import numpy as np
import pytest
import torch

import shiftbed
from shiftbed.algorithms import ERM, register
from shiftbed.algorithms.tuning import innermost
from shiftbed.data import load
from shiftbed.errors import AlgorithmError, DataError, HparamError
from shiftbed.protocols import LeaveOut
from shiftbed.tables import as_text
from shiftbed.training import batches, capture
from shiftbed.training.job import Job, make_job
from shiftbed.training.pool import pool_of
from shiftbed.training.recipes import recipe
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer


def adapting_job(algorithm: str, test=("-90%",), adapt: float = 0.5) -> Job:
    how = recipe("quick", "ColoredDigits", steps=4, evaluate_every=2)
    return make_job("ColoredDigits", algorithm, LeaveOut(test, adapt=adapt), how, overrides={"batch_size": 4})


def test_the_share_is_taken_from_what_is_reported_and_from_nothing_else():
    with_share, without = adapting_job("ERM").task, adapting_job("ERM", adapt=0.0).task
    given = next(split for split in with_share.splits if split.role == "unlabelled")
    assert given.domain == "-90%" and len(given.indices) == 599 // 2
    tested = {split.name: split for split in with_share.of_role("test")}
    whole = {split.name: split for split in without.of_role("test")}
    assert np.array_equal(tested["-90%/out"].indices, whole["-90%/out"].indices)
    assert sorted([*tested["-90%/in"].indices, *given.indices]) == sorted(whole["-90%/in"].indices)
    assert adapting_job("ERM").setting != adapting_job("ERM", adapt=0.0).setting, "another table"


def test_the_algorithm_gets_them_without_labels():
    seen = []

    class Looking(ERM):
        def update(self, minibatches, unlabeled=None):
            seen.append((len(minibatches), [tuple(x.shape) for x in unlabeled]))
            return super().update(minibatches)

    register()(Looking)
    Trainer(adapting_job("Looking")).advance()
    assert seen == [(2, [(4, 2, 8, 8)])]


@pytest.mark.parametrize("algorithm", ["DANN", "CDANN", "CORAL", "MMD", "SWAD(DANN)", "EoA(CORAL)", "LPFT(MMD)", "ERM"])
def test_poisoned_labels_of_the_given_half_change_nothing_and_other_images_do(algorithm, tmp_path, monkeypatch):
    job = adapting_job(algorithm)
    pool = pool_of("ColoredDigits", job.recipe.image_size)
    given = next(split for split in job.task.splits if split.role == "unlabelled")
    places = torch.from_numpy(pool.places(given))
    poisoned, other = pool.labels.clone(), pool.resident.clone()
    poisoned[places], other[places] = 1 - poisoned[places], 255 - other[places]
    found = []
    for name, changed in (("clean", {}), ("poisoned", {"labels": poisoned}), ("other", {"resident": other})):
        one = pool.__class__(**{**vars(pool), **changed})
        monkeypatch.setattr(batches, "pool_of", lambda *_, one=one: one)
        run_job(job, LocalStore(tmp_path / name), keep="final")
        files = [tmp_path / name / key for key in (JobFiles(job.id).weights, JobFiles(job.id).done)]
        found.append([path.read_bytes() for path in files])
    assert found[0] == found[1]
    assert (found[0][0] != found[2][0]) == (algorithm != "ERM"), "an algorithm that ignores them is told by it"


class Plain:
    """A captured step as it is while it warms up, without a GPU."""

    def __init__(self, algorithm, step):
        self._step = step

    def __call__(self, phase, *inputs):
        return self._step(*inputs)


@pytest.mark.parametrize("algorithm", ["SWAD(DANN)", "EoA(CORAL)"])
def test_the_captured_update_inside_a_wrapper_gets_them_too(algorithm, monkeypatch):
    monkeypatch.setattr(capture, "CapturedStep", Plain)
    job = adapting_job(algorithm)
    plain, captured = Trainer(job), Trainer(job)
    inside = innermost(captured.algorithm)
    inside.update = capture.CapturedUpdate(inside, captured.data.sizes)
    losses = [[float(trainer.advance()["loss"]) for _ in range(4)] for trainer in (plain, captured)]
    assert losses[0] == losses[1] and inside.step == 4


def test_one_labelled_domain_and_an_unlabelled_one_are_enough_for_dann():
    Trainer(adapting_job("DANN", test=("+80%", "-90%"))).advance()


@pytest.mark.parametrize("name", ["MLDG", "EQRM", "ERDG", "TRM", "ADRMX"])
def test_an_unlabelled_domain_is_none_to_those_that_ignore_it(name):
    with pytest.raises(AlgorithmError, match=r"needs two or more training domains; this task has 1\."):
        Trainer(adapting_job(name, test=("+80%", "-90%")))


@pytest.mark.parametrize("tested", [("-90%",), ("+80%", "-90%")])
def test_a_model_that_saw_unlabelled_domains_loads(tested, tmp_path):
    job = adapting_job("DANN", test=tested)
    run_job(job, LocalStore(tmp_path), keep="final")
    images = load("ColoredDigits")["-90%"].inputs[:5]
    assert shiftbed.load(tmp_path).predict(images).shape == (5, 2)


def test_impossible_shares_are_refused(tmp_path):
    with pytest.raises(HparamError, match="share between 0 and 1"):
        shiftbed.train("ColoredDigits", "DANN", "-90%", tmp_path, adapt=1.5)
    with pytest.raises(DataError, match=r"cannot give 0\.9 of itself .* give less than 0\.8\."):
        shiftbed.train("ColoredDigits", "DANN", "-90%", tmp_path, adapt=0.9)
    request = shiftbed.Request(["ColoredDigits"], ["DANN"], protocol="target-trained", adapt=0.5)
    with pytest.raises(HparamError, match="left out in turn"):
        shiftbed.sweep(request, tmp_path)
    whole = shiftbed.Request(["ColoredDigits"], ["DANN"], protocol="leave-one-domain-out:whole=true", adapt=0.5)
    with pytest.raises(HparamError, match="not tested whole"):  # else the record would say adaptation, and none was
        shiftbed.sweep(whole, tmp_path)


def test_tables_and_records_say_adaptation(tmp_path):
    job = shiftbed.train("ColoredDigits", "CORAL", "-90%", tmp_path, steps=2, adapt=0.25)
    assert job.description["task"]["adapt"] == 0.25
    (table,) = shiftbed.read_tables(tmp_path, ["training-domain-validation"])
    assert "adaptation: 0.25 of the test domains seen unlabelled" in as_text(table).replace("\n", " ")
