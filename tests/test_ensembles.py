"""Several jobs as one model: sums of logits, means of weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load as decode

from shiftbed.data import load as load_dataset
from shiftbed.errors import StoreError
from shiftbed.protocols import Flexible, LeaveOut
from shiftbed.selection import SELECTIONS
from shiftbed.sweeps.records import finished_jobs
from shiftbed.tables import averaged_weights, ensemble_grid, make_tables, summed_logits, view_tables
from shiftbed.training.job import make_job
from shiftbed.training.model import load
from shiftbed.training.recipes import recipe
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from tests.conftest import tiny_job

RULE = SELECTIONS["training-domain-validation"]


def trained(folder, keep, **about):
    store = LocalStore(folder)
    for value in range(2):
        run_job(tiny_job("ERM", **dict.fromkeys(about, value)), store, keep=keep)
    return sorted(finished_jobs(store), key=lambda job: (job.description["trial"], job.description["draw"]))


@pytest.fixture(scope="module")
def with_logits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logits")
    return folder, trained(folder, "logits", trial=True)


@pytest.fixture(scope="module")
def with_weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return folder, trained(folder, "final", draw=True)


def reported(job):
    return tiny_job("ERM", draw=job.description["draw"], trial=job.description["trial"]).task.of_role("test")[0]


LABELS = np.asarray(load_dataset("ColoredDigits")["-90%"].labels)


def test_kept_logits_are_those_behind_the_recorded_accuracy(with_logits):
    folder, jobs = with_logits
    for job in jobs:
        for row in job.rows:
            kept = decode((folder / JobFiles(job.id).logits.format(step=row["step"])).read_bytes())["-90%/in"]
            right = kept.argmax(1) == LABELS[reported(job).indices]
            assert right.mean() == pytest.approx(row["splits"]["-90%/in"]["accuracy"])


def test_eoa_is_the_accuracy_of_the_summed_logits_on_images_that_all_members_test(with_logits):
    folder, jobs = with_logits
    by_image = []
    for job in jobs:
        kept = decode((folder / JobFiles(job.id).logits.format(step=6)).read_bytes())["-90%/in"]
        by_image.append(dict(zip(reported(job).indices.tolist(), kept, strict=True)))
    common = sorted(by_image[0].keys() & by_image[1].keys())
    right = [int(np.argmax(by_image[0][i] + by_image[1][i])) == LABELS[i] for i in common]
    found = summed_logits(folder, [(job.description, 6) for job in jobs], "-90%")
    assert found.accuracy == pytest.approx(100 * np.mean(right))
    assert (found.count, found.jobs) == (len(common), tuple(job.id for job in jobs))
    assert len(common) < len(by_image[0])  # the trials hold out different images


def test_the_table_of_ensembles_names_members_and_their_number(with_logits):
    folder, jobs = with_logits
    table = make_tables(jobs, [RULE], folder=str(folder))[0]
    grid = ensemble_grid(table, "logits")
    (row,) = grid.data
    assert row["members"] == 2 and row["jobs"] == [job.id for job in jobs]
    steps = [one.choice.step for one in table.chosen["ERM"][("-90%",)].values()]
    members = list(zip([job.description for job in jobs], steps, strict=True))
    assert row["accuracy"] == summed_logits(folder, members, "-90%").accuracy
    assert "2 jobs each" in grid.caption
    assert grid.notes == [f"ERM on -90% ({row['count']} images): {', '.join(row['jobs'])}."]


def test_without_kept_logits_the_weights_of_that_step_serve(with_weights):
    folder, jobs = with_weights
    found = summed_logits(folder, [(jobs[0].description, 6)], "-90%")
    assert found.accuracy == pytest.approx(100 * jobs[0].rows[-1]["splits"]["-90%/in"]["accuracy"])


def test_what_was_not_kept_is_asked_for_in_one_sentence(with_weights, with_logits):
    with pytest.raises(StoreError, match="kept neither logits nor weights of step 4; run it with --keep logits"):
        summed_logits(with_weights[0], [(with_weights[1][0].description, 4)], "-90%")
    with pytest.raises(StoreError, match="kept no weights; run it with --keep best"):
        averaged_weights(with_logits[0], [with_logits[1][0].description], "-90%")


def test_diwa_is_the_model_with_the_mean_of_the_weights(with_weights):
    folder, jobs = with_weights
    models = [load(folder / JobFiles(job.id).weights) for job in jobs]
    with torch.no_grad():
        for one, other in zip(*(model.algorithm.parameters() for model in models), strict=True):
            one.copy_((one + other) / 2)
    images = load_dataset("ColoredDigits")["-90%"].inputs[reported(jobs[0]).indices]
    right = models[0].predict(images).argmax(1) == LABELS[reported(jobs[0]).indices]
    found = averaged_weights(folder, [job.description for job in jobs], "-90%")
    assert found.accuracy == pytest.approx(100 * right.mean())
    assert found.count == len(right)


def test_diwa_takes_the_last_of_the_weights_of_every_evaluation(with_weights, tmp_path):
    folder, _ = with_weights
    again = trained(tmp_path, "all", draw=True)
    assert len(list((tmp_path / "jobs" / again[0].id).glob("weights-*"))) > 1
    members = [job.description for job in again]
    assert averaged_weights(tmp_path, members, "-90%") == averaged_weights(folder, members, "-90%")


def test_the_table_of_mean_weights_takes_all_draws_of_a_trial(with_weights):
    folder, jobs = with_weights
    (row,) = ensemble_grid(make_tables(jobs, [RULE], folder=str(folder))[0], "weights").data
    assert (row["members"], row["jobs"]) == (2, [job.id for job in jobs])
    grid = ensemble_grid(make_tables(jobs, [SELECTIONS["oracle"]], folder=str(folder))[0], "weights")
    assert not grid.data[0]["oracle"] and not any("Oracle" in note for note in grid.notes), "no label chose them"
    assert grid.data[0]["selection"] is None, "nor did any rule"


def test_a_draw_that_diverged_is_in_no_mean(with_weights):
    folder, (one, other) = with_weights
    lost = replace(other, description={**other.description, "id": "lost", "draw": 7}, status="diverged", rows=[])
    (row,) = ensemble_grid(make_tables([one, other, lost], [RULE], folder=str(folder))[0], "weights").data
    assert row["jobs"] == [one.id, other.id]


def test_mean_weights_are_shown_once_and_under_no_selection(with_weights):
    folder, jobs = with_weights
    rules = [SELECTIONS["domain-cross-validation"], RULE, SELECTIONS["oracle"]]
    tables = make_tables(jobs, rules, folder=str(folder))
    (grid,) = view_tables(tables, "diwa")
    assert grid.caption.startswith("accuracy in %. DiWA") and grid.rows[0][1][0].text != "–"
    alone = ensemble_grid(make_tables(jobs[:1], [RULE], folder=str(folder))[0], "weights")
    assert "1 job each" in alone.caption


def test_what_does_not_predict_may_have_any_shape(tmp_path):
    store = LocalStore(tmp_path)
    for shape in ({"mlp_width": 64, "mlp_depth": 3}, {"mlp_width": 64, "mlp_depth": 4}, {"mlp_width": 96}):
        run_job(tiny_job("DANN", **shape), store, keep="final")
    jobs = list(finished_jobs(store))
    first, *others = (load(tmp_path / JobFiles(job.id).weights) for job in jobs)
    with torch.no_grad():
        for part in ("featurizer", "classifier"):
            rest = [getattr(one.algorithm, part).parameters() for one in others]
            for mine, *theirs in zip(getattr(first.algorithm, part).parameters(), *rest, strict=True):
                mine.copy_((mine + sum(theirs)) / 3)
    split = reported(jobs[0])
    right = (
        first.predict(load_dataset("ColoredDigits")["-90%"].inputs[split.indices]).argmax(1) == LABELS[split.indices]
    )
    for order in (jobs, jobs[::-1]):
        found = averaged_weights(tmp_path, [job.description for job in order], "-90%")
        assert found.accuracy == pytest.approx(100 * right.mean())


def test_networks_of_unequal_shapes_that_predict_have_no_mean(tmp_path):
    store = LocalStore(tmp_path)
    how = recipe("quick", "ColoredDigits", steps=2, evaluate_every=2, network="mlp")
    for width in (8, 16):
        values = {"batch_size": 4, "mlp_width": width}
        run_job(make_job("ColoredDigits", "DANN", LeaveOut(("-90%",)), how, overrides=values), store, keep="final")
    members = [job.description for job in finished_jobs(store)]
    with pytest.raises(StoreError, match="draws of DANN predict with networks of unequal shapes"):
        averaged_weights(tmp_path, members, "-90%")


def test_where_classes_have_domains_of_their_own_all_test_images_count(tmp_path):
    store = LocalStore(tmp_path)
    how = recipe("quick", "RotatedDigits", steps=4, evaluate_every=4)
    for trial in range(2):
        protocol = Flexible(compositional=False, dominant=2, minor=2)
        run_job(make_job("RotatedDigits", "ERM", protocol, how, 0, trial, {"batch_size": 4}), store, keep="final")
    jobs = sorted(finished_jobs(store), key=lambda job: job.description["trial"])
    table = make_tables(jobs, [RULE], folder=str(tmp_path))[0]
    ((tested, _),) = table.columns
    assert len(tested) > 1
    for (_, one), job in zip(sorted(table.chosen["ERM"][tested].items()), jobs, strict=True):
        alone = averaged_weights(tmp_path, [job.description], "")
        assert alone.accuracy == pytest.approx(one.accuracy(""))
        assert alone.count == sum(one.counts().values())
        assert summed_logits(tmp_path, [(job.description, 4)], "") == alone
    models, data = [load(tmp_path / JobFiles(job.id).weights) for job in jobs], load_dataset("RotatedDigits")
    right = []
    for split in make_job("RotatedDigits", "ERM", protocol, how, 0, 0, {"batch_size": 4}).task.of_role("test"):
        sums = sum(model.outputs(data[split.domain].inputs[split.indices])[0].astype(float) for model in models)
        right += list(sums.argmax(1) == np.asarray(data[split.domain].labels)[split.indices])
    (grid,) = view_tables([table], "eoa")
    assert grid.data[0]["accuracy"] == pytest.approx(100 * np.mean(right))
    assert grid.data[0]["count"] == len(right)
    (grid,) = view_tables([table], "diwa")
    assert [row["members"] for row in grid.data] == [1, 1]
