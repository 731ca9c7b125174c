import json

from shiftbed.hashing import canonical
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.sweeps.records import TIMED_JOBS, Records, finished_jobs, outcomes, sweep_status
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore
from tests.sweeps.test_compaction import finish_job


def finish(store, job, status="done", seconds=None):
    """Leaves what a finished job leaves, without training it."""
    store.create_exclusive(JobFiles(job.id).job, canonical(job.describe()))
    store.create_exclusive(JobFiles(job.id).done, canonical({"status": status, "step": 1, "records": []}))
    if seconds is not None:
        store.put_atomic(JobFiles(job.id).times, canonical([{"seconds": seconds}]))


def test_outcomes_are_read_from_parts_and_from_jobs(tmp_path):
    store = LocalStore(tmp_path)
    assert outcomes(store) == {}
    first = finish_job(store, 0)
    compact(store)
    second = finish_job(store, 1, status="diverged")
    third = finish_job(store, 2)
    path = tmp_path / JobFiles(third).done
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))  # another text of the same result
    unfinished = JobFiles(f"{3:020x}")
    store.put_atomic(unfinished.job, b"{}")
    store.put_atomic(unfinished.records, b"")
    assert outcomes(store) == {first: "done", second: "diverged", third: "done"}
    compact(store)
    assert outcomes(store) == {first: "done", second: "diverged", third: "done"}


def test_status_is_the_same_for_compacted_jobs(tmp_path):
    store = LocalStore(tmp_path)
    jobs = plan(Request("ColoredDigits", ["ERM", "IRM"]))
    remember_plan(jobs, store)
    finish(store, jobs[0], seconds=2.0)
    finish(store, jobs[1], status="diverged")
    store.put_atomic(JobFiles(jobs[2].id).failure, canonical({"why": "no luck"}))
    before = sweep_status(store)
    assert [before.count(state) for state in ("done", "diverged", "failed", "left")] == [1, 1, 1, 3]
    assert before.failures == {jobs[2].id: "no luck"} and before.seconds_left == 4 * 2.0
    compact(store)
    assert sweep_status(store) == before


def test_the_time_left_is_estimated_from_a_few_jobs_of_each_kind(tmp_path):
    reads = []

    class Watched(LocalStore):
        def get(self, key):
            reads.append(key)
            return super().get(key)

    store = Watched(tmp_path)
    jobs = plan(Request("ColoredDigits", "ERM", draws=10))
    remember_plan(jobs, store)
    for job in jobs[:-1]:
        finish(store, job, seconds=3.0)
    assert sweep_status(store).seconds_left == 3.0
    assert sum(key.endswith("times.json") for key in reads) == TIMED_JOBS < len(jobs)


def test_a_reader_opens_few_files_of_a_compacted_store(tmp_path):
    """Every file of a job costs time; of compacted ones none is opened."""
    store = LocalStore(tmp_path)
    for number in range(10):
        finish_job(store, number)
    compact(store)
    opened = []

    class Watched(LocalStore):
        def get(self, key):
            opened.append(key)
            return super().get(key)

    assert len(list(finished_jobs(Watched(tmp_path)))) == len(outcomes(Watched(tmp_path))) == 10
    with Records(Watched(tmp_path)) as records:
        assert len(records.tasks(["accuracy"])[0].abouts) == 10
    assert set(opened) <= {"blind.json"}
