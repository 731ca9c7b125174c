"""What a sweep would take, and what fits a budget."""

import time
from dataclasses import replace

import pytest

from shiftbed.errors import DataError, HparamError
from shiftbed.sweeps import forecast as room
from shiftbed.sweeps.cautions import cautions
from shiftbed.sweeps.costs import Cost, disk_bytes, kinds, measured_costs
from shiftbed.sweeps.forecast import forecast, largest_within, parse_duration
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.sweeps.stages import second_stage
from shiftbed.training.device import Runtime
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from tests.sweeps.finished import finish

SMALL = Request("ColoredDigits", ["ERM", "IRM"], draws=4, test_domains=["-90%"])
DOMAINBED = Request(
    ["ColoredMNIST", "RotatedMNIST", "VLCS", "PACS", "OfficeHome", "TerraIncognita", "DomainNet"],
    ["ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN"],
    draws=20,
    trials=3,
    recipe="domainbed",
    selections=["training-domain-validation", "domain-cross-validation", "oracle"],
)


def test_the_whole_domainbed_study_is_planned_without_its_data_or_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(room, "weights_are_here", lambda initial, network: initial is None)
    started = time.process_time()
    found = forecast(DOMAINBED, LocalStore(tmp_path), probe=False)
    assert time.process_time() - started < 4
    singles, pairs = 3 + 6 + 4 + 4 + 4 + 4 + 6, 3 + 15 + 6 + 6 + 6 + 6 + 15
    assert found.jobs == (singles + pairs) * 9 * 20 * 3 == 47_520
    assert (found.done, found.device_hours) == (None, None)
    assert "resnet50.tv_in1k are not on this machine" in found.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_what_is_done_costs_nothing_and_tells_what_the_rest_costs(memory_folder):
    store = LocalStore(memory_folder)
    jobs = plan(SMALL)
    for job in jobs[:4]:  # two of each algorithm
        finish(store, job, seconds=3600.0 if job.algorithm == "ERM" else 7200.0)
    found = forecast(SMALL, store, probe=False)
    assert (found.jobs, found.done, found.unknown) == (8, 4, ())
    assert found.device_hours == pytest.approx(2 * 1 + 2 * 2)


def test_once_the_search_is_over_its_winners_are_known_and_two_rules_may_have_the_same(memory_folder):
    rules = ["training-domain-validation", "oracle"]
    request = replace(SMALL, algorithms=["ERM"], trials=3, design="search-once", selections=rules)
    store, search = LocalStore(memory_folder), plan(request)
    for job in search[:-1]:
        finish(store, job, seconds=60.0)
    assert forecast(request, store, probe=False).reruns == 4, "each rule may choose another one"
    finish(store, search[-1], validation=0.9, test=0.9, seconds=60.0)
    assert forecast(request, store, probe=False).reruns == 2
    again = second_stage(request, store)
    remember_plan(again, store, "search-once")
    for job in again:
        finish(store, job, seconds=60.0)
    found = forecast(request, store, probe=False)
    assert (found.reruns, found.device_hours) == (0, None), "nothing is left"
    assert forecast(replace(request, draws=5), store, probe=False).reruns == 4, "a further draw may win instead"


def test_kinds_without_an_estimate_are_named(memory_folder):
    store = LocalStore(memory_folder)
    finish(store, plan(SMALL)[0], seconds=10.0)
    found = forecast(SMALL, store, probe=False)
    assert found.unknown == (("ColoredDigits", "IRM"),)
    assert any("no estimate; `--probe`" in note for note in found.notes)


def test_a_second_stage_is_counted(tmp_path):
    found = forecast(replace(SMALL, trials=3, design="search-once"), LocalStore(tmp_path), probe=False)
    assert (found.jobs, found.reruns) == (8, 4)


def test_a_second_stage_costs_what_is_left_of_it(memory_folder):
    request = replace(SMALL, algorithms=["ERM"], draws=2, trials=3, design="search-once")
    store, jobs = LocalStore(memory_folder), plan(request)
    remember_plan(jobs, store, "search-once")
    finish(store, jobs[0], seconds=60.0)
    assert sum(forecast(request, store, probe=False).seconds.values()) == pytest.approx(60 + 2 * 60)
    finish(store, jobs[1], seconds=60.0)
    found = forecast(request, store, probe=False)
    assert (found.reruns, sum(found.seconds.values())) == (2, pytest.approx(2 * 60))
    again = second_stage(request, store)
    remember_plan(again, store, "search-once")
    for job in again:
        finish(store, job, seconds=60.0)
    found = forecast(request, store, probe=False)
    assert (found.reruns, found.device_hours) == (0, None)


def test_a_probe_measures_what_a_job_takes(memory_folder):
    request = replace(SMALL, algorithms=["ERM"], draws=1, fields={"steps": 60})
    (job,) = plan(request)
    found = forecast(request, LocalStore(memory_folder / "other"))
    started = time.perf_counter()
    run_job(job, LocalStore(memory_folder))
    took = time.perf_counter() - started
    (seconds,) = found.seconds.values()
    assert took / 5 < seconds < 5 * took


def test_seconds_grow_with_the_batch_between_the_smallest_and_the_largest(monkeypatch):
    request = replace(SMALL, algorithms=["ERM"], draws=1)
    small, middle, large = (
        plan(replace(request, overrides={"batch_size": size}, fields={"steps": 100, "evaluate_every": 30}))[0]
        for size in (8, 16, 40)
    )
    measured = {8: 0.1, 40: 0.5}
    monkeypatch.setattr(
        "shiftbed.sweeps.costs._seconds", lambda job, runtime: (1.0, 2.0, measured[job.hparams["batch_size"]])
    )
    costs, gaps = measured_costs(kinds([small, middle, large]), Runtime())
    (cost,) = costs.values()
    assert gaps == []
    assert cost(middle) == pytest.approx(1 + 4 * 2 + 100 * 0.2)


def test_a_probe_that_fails_hides_no_other_estimate(monkeypatch):
    def seconds(job, runtime):
        if job.dataset == "RotatedDigits":
            raise DataError("It is not here.")
        return (1.0, 2.0, 1 / (job.algorithm != "IRM"))

    monkeypatch.setattr("shiftbed.sweeps.costs._seconds", seconds)
    jobs = kinds(plan(Request(["ColoredDigits", "RotatedDigits"], ["IRM", "ERM", "CORAL"])))
    costs, (gap, faster) = measured_costs(jobs, Runtime("cuda"))
    assert list(costs) == [("ColoredDigits", "ERM"), ("ColoredDigits", "CORAL")]
    assert gap.startswith("No estimate for IRM on ColoredDigits, RotatedDigits: ZeroDivisionError in test_forecast.py")
    assert "most are faster" in faster


def budget_of(monkeypatch, costs, request, seconds, store):
    monkeypatch.setattr(room, "measured_costs", lambda jobs, runtime, on_probe: (costs, []))
    return largest_within(request, store, seconds).draws


def test_a_budget_buys_equally_many_draws_of_every_algorithm(monkeypatch, memory_folder):
    store = LocalStore(memory_folder)
    costs = {("ColoredDigits", "ERM"): Cost(10.0), ("ColoredDigits", "IRM"): Cost(30.0)}
    assert budget_of(monkeypatch, costs, SMALL, 119.0, store) == 2
    assert budget_of(monkeypatch, costs, SMALL, 120.0, store) == 3
    assert budget_of(monkeypatch, costs, SMALL, 1e6, store) == 4
    with pytest.raises(HparamError, match=r"does not hold one draw of every algorithm .* name fewer"):
        budget_of(monkeypatch, costs, SMALL, 39.0, store)
    with pytest.raises(HparamError, match="A budget needs the cost of every job"):
        monkeypatch.setattr(room, "measured_costs", lambda jobs, runtime, on_probe: ({}, ["No estimate: why."]))
        largest_within(SMALL, store, 1.0)


def test_a_budget_pays_for_the_second_stage_too(monkeypatch, memory_folder):
    costs = {("ColoredDigits", "ERM"): Cost(10.0)}
    request = replace(SMALL, algorithms=["ERM"], trials=3, design="search-once")
    store = LocalStore(memory_folder)
    assert budget_of(monkeypatch, costs, request, 49.0, store) == 2, "two draws and two reruns"
    assert budget_of(monkeypatch, costs, request, 50.0, store) == 3


def test_durations():
    assert [parse_duration(text) for text in ("8h", "90min", "1.5 d", "30s")] == [28800, 5400, 129600, 30]
    for text in ("8", "h", "8 weeks", "0h", "-1h"):
        with pytest.raises(HparamError, match="such as 8h"):
            parse_duration(text)


def test_the_disk_estimate_is_of_the_right_size(memory_folder):
    (job,) = plan(replace(SMALL, algorithms=["ERM"], draws=1, fields={"steps": 12, "evaluate_every": 1}))
    run_job(job, LocalStore(memory_folder))
    files = [memory_folder / key for key in (JobFiles(job.id).records, JobFiles(job.id).done)]
    size = sum(path.stat().st_size for path in (*files, *memory_folder.glob("jobs/*/test-*.json")))
    assert size < disk_bytes([job]) < 2 * size + 12_000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["Supervised weights (resnet50.tv_in1k)", "Each model is tested on one domain"]),
        ({"selections": ["oracle"], "recipe": "domainbed-v2"}, ["Each model is tested on one domain"]),
        ({"datasets": ["PACS"], "recipe": "domainbed-v2-scratch"}, ["Each model", "All datasets have diversity shift"]),
        ({"datasets": ["PACS"], "protocol": "leave-pair-out", "selections": []}, ["Supervised", "All datasets"]),
        ({"recipe": "domainbed-v2", "protocol": "leave-pair-out", "selections": []}, []),
    ],
    ids=["cross-validation", "one test domain", "one kind of shift", "pairs", "none"],
)
def test_the_papers_warnings(changes, words):
    found = cautions(replace(DOMAINBED, **changes))
    assert len(found) == len(words)
    assert all(note.startswith(start) for note, start in zip(found, words, strict=True))
