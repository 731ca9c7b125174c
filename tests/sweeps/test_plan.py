import pytest

from shiftbed.errors import DataError, UnknownNameError
from shiftbed.sweeps.plan import Request, plan, planned, remember_plan
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


def test_names_may_be_written_in_any_case_and_twice():
    assert ids(algorithms=["erm", "ERM"]) == ids(algorithms=["ERM"])


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
