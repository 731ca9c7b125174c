import numpy as np
import pytest

import shiftbed
from shiftbed.errors import DataError, HparamError, ShiftbedError, StoreError, UnknownNameError
from shiftbed.sweeps.plan import Request, distinct, plan, planned, planned_designs, remember_plan
from shiftbed.training.store import LocalStore


def ids(**request):
    return [job.id for job in plan(Request(datasets=["ColoredDigits"], **request))]


def test_a_sweep_is_algorithms_times_domains_times_draws_times_trials():
    jobs = plan(Request(["ColoredDigits", "RotatedDigits"], ["ERM", "IRM"], draws=2, trials=3))
    assert len(jobs) == 2 * (3 + 6) * 2 * 3
    assert len({job.id for job in jobs}) == len(jobs)


def test_asking_for_more_reuses_every_job_that_exists():
    small = set(ids(algorithms=["ERM", "IRM"], draws=2, trials=1))
    assert small < set(ids(algorithms=["ERM", "IRM"], draws=3, trials=1))
    assert small < set(ids(algorithms=["ERM", "IRM"], draws=2, trials=2))
    assert small < set(ids(algorithms=["Mixup", "IRM", "ERM"], draws=2, trials=1))
    assert small > set(ids(algorithms=["IRM"], draws=2, trials=1, test_domains=["-90%"]))


def test_draws_with_the_same_values_are_one_job_of_the_first_number(memory_folder):
    """In the small space of ADRMX the default values are drawn twice more in the third trial."""
    request = Request("ColoredDigits", ["ADRMX"], draws=20, trials=3, test_domains=["-90%"])
    jobs = [job for job in plan(request) if job.trial == 2]
    same = [job.draw for job in jobs if job.id == jobs[0].id]
    assert same == [0, 9, 15]
    assert [job.draw for job in distinct(jobs) if job.draw in same] == [0]
    remember_plan(jobs, LocalStore(memory_folder))
    assert planned(LocalStore(memory_folder))[jobs[0].id]["draw"] == 0


def test_names_may_be_written_in_any_case_and_twice():
    assert ids(algorithms=["erm", "ERM"]) == ids(algorithms=["ERM"])


def test_hyperparameters_set_by_hand_go_to_the_algorithms_that_have_them():
    jobs = plan(Request("ColoredDigits", ["ERM", "IRM"], overrides={"irm_lambda": 3, "lr": 1e-4}))
    assert {job.algorithm: job.hparams.get("irm_lambda") for job in jobs} == {"ERM": None, "IRM": 3.0}
    assert {job.hparams["lr"] for job in jobs} == {1e-4}
    assert len({job.setting for job in jobs}) == 1, "still one table"
    assert jobs[0].setting != plan(Request("ColoredDigits", "ERM"))[0].setting, "but not that of another lr"


def test_domains_may_be_those_of_one_of_several_datasets():
    jobs = plan(Request(["ColoredDigits", "RotatedDigits"], "ERM", test_domains=["-90%", "75"]))
    assert [(job.dataset, job.task.test_domains) for job in jobs] == [
        ("ColoredDigits", ("-90%",)),
        ("RotatedDigits", ("75",)),
    ]
    with pytest.raises(DataError, match="No task of leave-one-domain-out on ColoredDigits tests 75 alone"):
        plan(Request(["ColoredDigits", "RotatedDigits"], "ERM", test_domains=["75"]))


def test_the_case_of_a_dataset_s_name_does_not_matter():
    assert [job.id for job in plan(Request("rotateddigits", "ERM"))] == [
        job.id for job in plan(Request("RotatedDigits", "ERM"))
    ]


def test_one_name_a_number_or_numpy_s_numbers_will_do(tmp_path):
    asked = Request("RotatedDigits", "ERM", test_domains=75, selections="oracle")
    assert (asked.datasets, asked.test_domains, asked.selections) == (("RotatedDigits",), ("75",), ("oracle",))
    where = {"steps": np.int64(1), "draw": np.int64(0), "trial": np.int32(1)}
    job = shiftbed.train("RotatedDigits", "ERM", 75, tmp_path, overrides={"batch_size": np.int64(4)}, **where)
    assert (job.description["trial"], job.description["hparams"]["batch_size"]) == (1, 4)
    (table,) = shiftbed.read_tables(tmp_path, "training-domain-validation")
    assert table.dataset == "RotatedDigits"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keep": "foo"}, "no choice of weights 'foo'"),
        ({"draw": -1}, "its draw and trial are 0 or more"),
        ({"test": []}, "tests at least one domain"),
    ],
)
def test_what_the_command_line_refuses_python_refuses_too(tmp_path, wrong, words):
    asked = {"test": "75", **wrong}
    with pytest.raises(ShiftbedError, match=words):
        shiftbed.train("RotatedDigits", "ERM", out=tmp_path, steps=1, **asked)
    with pytest.raises(ShiftbedError, match="no executor 'mars'"):
        shiftbed.sweep(Request("RotatedDigits", "ERM"), tmp_path, on="mars")
    with pytest.raises(ShiftbedError, match="at least one worker, not 0"):
        shiftbed.sweep(Request("RotatedDigits", "ERM"), tmp_path, workers=0)


def test_wrong_names():
    with pytest.raises(UnknownNameError, match="Did you mean Mixup"):
        ids(algorithms=["Mixpu"])
    with pytest.raises(DataError, match="ColoredDigits has no domain 'sketch'"):
        ids(algorithms=["ERM"], test_domains=["sketch"])


def test_plans_add_up(tmp_path):
    store = LocalStore(tmp_path)
    assert planned(store) == {}
    first = plan(Request(["ColoredDigits"], ["ERM"]))
    both = plan(Request(["ColoredDigits"], ["ERM", "IRM"]))
    for jobs in (first, both, first):
        remember_plan(jobs, store)
    assert set(planned(store)) == {job.id for job in both}
    assert len(list(store.list("plans"))) == 2


def test_what_is_known_by_another_design_hides_no_new_job(tmp_path):
    store = LocalStore(tmp_path)
    known = plan(Request(["ColoredDigits"], ["ERM"]))
    remember_plan(known, store)
    new = plan(Request(["RotatedDigits"], ["ERM"]))
    remember_plan([*known, *new], store, "fixed")
    assert set(planned(store)) == {job.id for job in [*known, *new]}
    designs = planned_designs(planned(store).values())
    assert (designs[known[0].setting], designs[new[0].setting]) == ("redraw", "fixed")


def test_a_plan_that_was_cut_is_whole_again_after_its_sweep_or_is_told(tmp_path):
    store = LocalStore(tmp_path)
    jobs = plan(Request(["ColoredDigits"], ["ERM"]))
    remember_plan(jobs, store)
    (path,) = (tmp_path / "plans").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    remember_plan(jobs, store)
    assert set(planned(store)) == {job.id for job in jobs}
    for cut in (lines[0][:-9], lines[0], b""):
        path.write_bytes(cut)
        with pytest.raises(StoreError, match=rf"plans/{path.name} is damaged; remove it and run its sweep again"):
            planned(store)
        remember_plan(jobs, store)
        assert set(planned(store)) == {job.id for job in jobs}


A, C, P, S = "art_painting", "cartoon", "photo", "sketch"
PAIRS = [(A, C), (A, P), (A, S), (C, P), (C, S), (P, S)]


@pytest.mark.parametrize(
    ("asked", "tested"),
    [
        ({"selections": ["training-domain-validation"]}, [(A,), (C,), (P,), (S,)]),
        ({"selections": ["training-domain-validation", "oracle"]}, [(A,), (C,), (P,), (S,)]),
        ({"selections": ["domain-cross-validation"]}, [(A,), (C,), (P,), (S,), *PAIRS]),
        ({"selections": ["domain-cross-validation"], "test_domains": [S]}, [(S,), (A, S), (C, S), (P, S)]),
        ({"selections": ["oracle"], "protocol": "leave-pair-out"}, PAIRS),
    ],
    ids=["validation", "oracle", "cross-validation", "one domain", "pairs"],
)
def test_only_the_jobs_that_the_selections_need_are_planned(asked, tested):
    jobs = plan(Request(["PACS"], ["ERM"], recipe="domainbed-head", **asked))
    assert sorted(job.spec.test for job in jobs) == sorted(tested)


def test_cross_validation_of_anything_but_single_domains_is_refused():
    with pytest.raises(HparamError, match="leave one domain out, not leave-pair-out"):
        plan(Request(["PACS"], ["ERM"], selections=["domain-cross-validation"], protocol="leave-pair-out"))
