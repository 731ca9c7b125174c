"""Job ids: what changes them, what does not, and their golden values."""

import json

import pytest
from pydantic import ValidationError

from shiftbed.errors import HparamError, ShiftbedError, StoreError, UnknownNameError
from shiftbed.hashing import canonical
from shiftbed.protocols import LeaveOut
from shiftbed.training.files import JobFiles
from shiftbed.training.job import Job, make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from tests.conftest import tiny_job

GOLDEN = {
    ("ColoredDigits", "ERM", "-90%", 0, 0): "e3f86365359825cb4d15",
    ("EmojiStyles", "CORAL", "noto", 0, 0): "840603e8cd98dc50d04d",
    ("EmojiStyles", "CORAL", "noto", 2, 1): "33a8c118b741e4944c7a",
    ("RotatedDigits", "IRM", "75", 1, 0): "a76df428a723ef162770",
}


def golden_job(dataset, algorithm, test, draw, trial):
    return make_job(dataset, algorithm, LeaveOut((test,)), recipe("quick", dataset), draw, trial)


@pytest.mark.parametrize(("key", "expected"), GOLDEN.items())
def test_golden_ids(key, expected):
    assert golden_job(*key).id == expected


def test_what_defines_the_result_changes_the_id():
    base = tiny_job("ERM")
    others = [
        tiny_job("GroupDRO"),
        tiny_job("ERM", trial=1),
        tiny_job("ERM", draw=1),
        tiny_job("ERM", steps=7),
        tiny_job("ERM", lr=0.5),
        make_job("ColoredDigits", "ERM", LeaveOut(("+80%",)), base.recipe, overrides={"batch_size": 4}),
    ]
    assert len({base.id, *(job.id for job in others)}) == 1 + len(others)


def test_what_does_not_define_the_result_leaves_the_id():
    assert tiny_job("ERM", every=3).id == tiny_job("ERM", every=2).id
    default = tiny_job("ERM").hparams["lr"]
    assert tiny_job("ERM", lr=default).id == tiny_job("ERM").id
    renamed = tiny_job("ERM").recipe.model_copy(update={"name": "other", "summary": "other"})
    assert (
        make_job("ColoredDigits", "ERM", LeaveOut(("-90%",)), renamed, overrides={"batch_size": 4}).id
        == tiny_job("ERM").id
    )


def test_a_changed_recipe_has_an_identity_of_its_own():
    base = tiny_job("ERM")
    assert base.id, "its recipe has now been asked who it is"
    for change in ({"optimizer": "sgd"}, {"steps": 7}, {"precision": "bf16"}, {"augmentation": {"size": 8}}):
        changed = base.recipe.model_copy(update=change)
        other = make_job("ColoredDigits", "ERM", LeaveOut(("-90%",)), changed, overrides={"batch_size": 4})
        assert other.id != base.id and other.setting != base.setting, change
    with pytest.raises(ValidationError):
        base.recipe.model_copy(update={"optimizer": "lion"})


def test_test_domains_have_one_order_and_no_repetition():
    how = recipe("quick", "RotatedDigits")
    orders = (("0", "75"), ("75", "0"), ("0", "75", "0"))
    assert len({make_job("RotatedDigits", "ERM", LeaveOut(tested), how).id for tested in orders}) == 1


def test_a_job_survives_json():
    job = tiny_job("IRM", draw=2, irm_lambda=5)
    again = Job.from_description(json.loads(json.dumps(job.describe())))
    assert again.id == job.id
    assert again == job


def test_a_description_that_no_longer_fits_is_refused():
    with pytest.raises(StoreError, match="another version of the dataset or the algorithm"):
        Job.from_description({**tiny_job("ERM").describe(), "id": "0" * 20})


def test_a_recipe_of_a_newer_shiftbed_is_refused_in_one_sentence(tmp_path):
    job, store = tiny_job("ERM"), LocalStore(tmp_path)
    newer = job.describe()
    newer["recipe"]["blur"] = 1
    store.put_atomic(JobFiles(job.id).job, canonical(newer))
    for read in (lambda: Job.from_description(newer), lambda: run_job(job, store)):
        with pytest.raises(StoreError, match=rf"recipe of job {job.id} has a 'blur' .* newer shiftbed: update"):
            read()


def test_hyperparameters_come_from_the_draw_the_recipe_and_the_hand_in_this_order():
    how = recipe("quick", "ColoredDigits")
    job = make_job("ColoredDigits", "IRM", LeaveOut(("-90%",)), how, draw=1)
    assert job.hparams["batch_size"] == how.fixed["batch_size"]
    assert job.hparams["irm_lambda"] == pytest.approx(65030.522, abs=5e-4)
    by_hand = make_job("ColoredDigits", "IRM", LeaveOut(("-90%",)), how, draw=1, overrides={"batch_size": 5})
    assert by_hand.hparams["batch_size"] == 5
    assert "irm_penalty_anneal_iters" not in make_job("ColoredDigits", "ERM", LeaveOut(("-90%",)), how).hparams


def test_wrong_names_and_values():
    with pytest.raises(HparamError, match="Did you mean lr"):
        tiny_job("ERM", lrr=1)
    with pytest.raises(UnknownNameError, match=r"no recipe 'quikc'\. Did you mean quick"):
        recipe("quikc", "ColoredDigits")
    with pytest.raises(ShiftbedError, match="'quick' for ColoredDigits has a wrong 'steps'"):
        recipe("quick", "ColoredDigits", steps=0)
