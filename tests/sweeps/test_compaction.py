"""Compaction: parts say what the jobs' own files say, and nothing ever vanishes from a reader's view."""

import multiprocessing
import os
import random
import shutil
import signal
import threading
import time

import pytest

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.selection import tasks_of
from shiftbed.sweeps import compaction
from shiftbed.sweeps.compaction import Compacted, compact, part_names
from shiftbed.sweeps.records import Records, finished_jobs, outcomes
from shiftbed.training.files import JobFiles, Result
from shiftbed.training.store import LocalStore

SPLITS = [("a", "in", "test"), ("a", "out", "test"), ("b's", "in", "train"), ("b's", "out", "validation")]


class CopyingStore(LocalStore):
    """A store whose rename is copy and delete: what is put appears piece by piece."""

    def put_atomic(self, key, data):
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{os.getpid()}-{threading.get_ident()}"
        temporary.write_bytes(data)
        with path.open("wb") as file:
            for start in range(0, len(data), 500):
                file.write(data[start : start + 500])
                file.flush()
        temporary.unlink()


class RemoteStore:
    """The four operations and no path, as an object store has."""

    def __init__(self):
        self.objects = {}

    def get(self, key):
        return self.objects.get(key)

    def put_atomic(self, key, data):
        self.objects[key] = data

    def create_exclusive(self, key, data):
        return self.objects.setdefault(key, data) is data

    def list(self, prefix, deep=True):
        below = [key for key in list(self.objects) if key.startswith(prefix + "/")]
        if deep:
            return iter(below)
        rests = {key[len(prefix) + 1 :] for key in below}
        return iter({f"{prefix}/{rest.split('/')[0]}" + ("/" if "/" in rest else "") for rest in rests})


def finish_job(store, number, steps=3, extra=None, status="done", apart=True):
    """Writes what a finished job leaves; before test numbers lay apart, it was one file."""
    job_id = f"{number:020x}"
    description = {
        "id": job_id,
        "dataset": "Some",
        "version": 1,
        "algorithm": ("ERM", "IRM")[number % 2],
        "revision": 1,
        "task": {"kind": "leave-out"},
        "test_domains": ["a"],
        "draw": number // 2 % 5,
        "trial": number // 10,
        "hparams": {"lr": 5e-05 * (1 + number), "on": True, "none": None},
        "overrides": {},
        "own_overrides": {},
        "setting": "s1",
        "recipe": {"name": "r", "steps": 300, "evaluate_every": 100},
        "splits": [
            {"name": f"{domain}/{part}", "domain": domain, "part": part, "role": role, "count": 10}
            for domain, part, role in SPLITS
        ],
    }
    chance = random.Random(number)

    def numbers():
        return {"accuracy": chance.random(), "loss": 1e-7 * chance.random(), "count": 10, "class_counts": [3, 7]}

    rows = [
        {
            "step": 100 * (step + 1),
            "splits": {f"{domain}/{part}": numbers() for domain, part, role in SPLITS if role != "train"},
        }
        for step in range(steps)
    ]
    for row in rows[-1:]:
        row["splits"]["a/in"] |= extra or {}
    store.create_exclusive(JobFiles(job_id).job, canonical(description))
    Result.of(status, 100 * steps, rows, ["a/in", "a/out"] if apart else []).write(store, job_id)
    return job_id


@pytest.fixture(params=[LocalStore, CopyingStore, RemoteStore])
def store(request, tmp_path):
    return request.param() if request.param is RemoteStore else request.param(tmp_path)


def everything(store):
    return [(job.description, job.status, job.rows) for job in finished_jobs(store)]


def assert_same_tasks(store):
    (one,) = tasks_of(finished_jobs(store), ["accuracy", "count", "auroc"])
    with Records(store) as records:
        (other,) = records.tasks(["accuracy", "count", "auroc"])
    assert (one.abouts, one.statuses, one.splits) == (other.abouts, other.statuses, other.splits)
    assert one.steps.tolist() == other.steps.tolist()
    assert {name: repr(array.tolist()) for name, array in one.values.items()} == {
        name: repr(array.tolist()) for name, array in other.values.items()
    }


def test_a_reader_sees_the_same_before_and_after(store):
    for number in range(12):
        finish_job(store, number, steps=1 + number % 3)
    finish_job(store, 12, steps=0, status="diverged")
    before = everything(store)
    ended = outcomes(store)
    assert len(before) == 13 and ended[f"{12:020x}"] == "diverged"
    assert_same_tasks(store)
    assert compact(store) == Compacted(13, 1)
    assert compact(store) == Compacted(0, 0), "all are compacted"
    assert everything(store) == before
    assert outcomes(store) == ended
    finish_job(store, 13)
    assert [about["id"] for about, _, _ in everything(store)] == [f"{number:020x}" for number in range(14)]
    assert_same_tasks(store)


def test_jobs_from_before_test_numbers_lay_apart_are_read_alike(tmp_path):
    old, new, both = (LocalStore(tmp_path / name) for name in ("old", "new", "both"))
    for number in range(4):
        finish_job(old, number, apart=False)
        finish_job(new, number)
        finish_job(both, number, apart=number < 2)
    assert b"a/in" in old.get(JobFiles(f"{0:020x}").done) and not list(old.root.glob("jobs/*/test-*"))
    for _ in range(2):
        assert everything(old) == everything(new) == everything(both)
        for store in (old, new, both):
            assert_same_tasks(store)
            compact(store)
    assert [len(list(store.root.glob("parts/*.test.parquet"))) for store in (old, new, both)] == [0, 1, 1]


def test_parts_stand_alone(tmp_path):
    store = LocalStore(tmp_path)
    for number in range(5):
        finish_job(store, number)
    before = everything(store)
    compact(store)
    shutil.rmtree(tmp_path / "jobs")
    assert everything(store) == before
    assert_same_tasks(store)


def test_a_metric_of_a_single_record_is_kept(store):
    finish_job(store, 0)
    finish_job(store, 1, extra={"auroc": 0.25, "weights": [0.5, 1.5]})
    before = everything(store)
    compact(store)
    assert everything(store) == before
    assert before[1][2][-1]["splits"]["a/in"]["weights"] == [0.5, 1.5]
    assert_same_tasks(store)


def test_jobs_in_several_parts_are_taken_once(tmp_path):
    one, other = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "other")
    for number in range(6):
        finish_job(one, number)
        finish_job(other, number + 3)
    compact(one)
    compact(other)
    shutil.copytree(other.root / "parts", one.root / "parts", dirs_exist_ok=True)
    assert [about["id"] for about, _, _ in everything(one)] == [f"{number:020x}" for number in range(9)]
    with Records(one) as records:
        assert records.sql("SELECT count(*), count(DISTINCT id) FROM jobs").fetchone() == (9, 9)
        assert records.sql("SELECT count(*) FROM records").fetchone() == (9 * 3 * 3,)
    assert_same_tasks(one)


def test_opening_for_some_metrics_reads_the_same_numbers(tmp_path):
    store = LocalStore(tmp_path)
    for number in range(3):
        finish_job(store, number)
    with Records(store) as whole, Records(store, ["accuracy", "loss"]) as part:
        tasks = zip(whole.tasks(["accuracy", "loss"]), part.tasks(["accuracy", "loss"]), strict=True)
        for one, other in tasks:
            assert [list(one.values), one.abouts] == [list(other.values), other.abouts]
            for metric, values in one.values.items():
                assert values.tobytes() == other.values[metric].tobytes()
        columns = [name for name, *_ in part.sql("DESCRIBE records").fetchall()]
    assert columns == ["id", "checkpoint", "step", "split", "accuracy", "loss"]


def test_queries_know_the_splits(store):
    for number in range(4):
        finish_job(store, number)
    compact(store)
    query = "SELECT id, avg(accuracy) FROM records JOIN splits USING (id, split) WHERE role = 'validation' GROUP BY id"
    with Records(store) as records:
        means = dict(records.sql(query).fetchall())
        lr = records.sql("SELECT (description->>'$.hparams.lr')::DOUBLE FROM jobs ORDER BY id LIMIT 1").fetchone()
    assert lr == (5e-05,)
    for about, _, rows in everything(store):
        values = [row["splits"]["b's/out"]["accuracy"] for row in rows]
        assert means[about["id"]] == pytest.approx(sum(values) / len(values))


def test_an_empty_store_has_empty_tables(tmp_path):
    assert compact(LocalStore(tmp_path)) == Compacted(0, 0)
    with Records(LocalStore(tmp_path)) as records:
        assert records.tasks(["accuracy"]) == []
        assert records.sql("SELECT * FROM records JOIN splits USING (id, split)").fetchall() == []


def test_batches_become_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "BATCH_BYTES", 3000)
    store = LocalStore(tmp_path)
    for number in range(20):
        finish_job(store, number)
    before = everything(store)
    done = compact(store)
    assert done.jobs == 20 and done.parts == len(part_names(store)) > 5
    assert everything(store) == before
    assert_same_tasks(store)


def test_a_cut_result_is_one_sentence(tmp_path):
    store = LocalStore(tmp_path)
    for number in range(3):
        finish_job(store, number)
    path = tmp_path / JobFiles(f"{1:020x}").done
    path.write_bytes(path.read_bytes()[:200])
    for read in (lambda: list(finished_jobs(store)), lambda: compact(store), lambda: Records(store)):
        with pytest.raises(StoreError, match=r"00001/done\.json is damaged; remove it and run the sweep again"):
            read()
    path.unlink()
    assert compact(store).jobs == 2


def test_a_cut_description_is_one_sentence(tmp_path):
    store = LocalStore(tmp_path)
    path = tmp_path / JobFiles(finish_job(store, 1)).job
    path.write_bytes(path.read_bytes()[:200])
    for read in (lambda: list(finished_jobs(store)), lambda: compact(store), lambda: Records(store)):
        with pytest.raises(StoreError, match=r"00001/job\.json is damaged; remove its folder and run the sweep again"):
            read()


def test_a_finished_job_without_a_description_is_told_and_not_left_out(tmp_path):
    store = LocalStore(tmp_path)
    (tmp_path / JobFiles(finish_job(store, 1)).job).unlink()
    for read in (outcomes, lambda store: list(finished_jobs(store)), compact, Records):
        with pytest.raises(StoreError, match=r"00001/job\.json is missing; remove its folder and run the sweep again"):
            read(store)


@pytest.mark.parametrize(
    "damage", [lambda text: text[:100], lambda text: text.replace(b'"count":10', b'"count":11', 1)]
)
def test_test_numbers_that_are_not_what_their_name_says_are_no_result(tmp_path, damage):
    """The name is the digest of the content, so a number that was changed since is known."""
    store = LocalStore(tmp_path)
    before = [finish_job(store, number) for number in range(3)] and everything(store)
    path = next(tmp_path.glob(f"jobs/{1:020x}/test-*.json"))
    path.write_bytes(damage(path.read_bytes()))
    for read in (everything, compact, Records):
        with pytest.raises(StoreError, match=rf"{path.name} is damaged; remove jobs/0+1/done\.json and"):
            read(store)
    (tmp_path / JobFiles(f"{1:020x}").done).unlink()
    finish_job(store, 1)
    assert everything(store) == before


def test_a_cut_part_is_one_sentence(tmp_path):
    store = LocalStore(tmp_path)
    finish_job(store, 0)
    compact(store)
    for path in tmp_path.glob("parts/*"):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(StoreError, match=r"parquet is damaged; remove it and compact again, or restore it"):
            list(finished_jobs(store))
        with pytest.raises(StoreError, match=r"damaged|cannot be read"), Records(store) as records:
            records.tasks(["accuracy"])
        path.write_bytes(whole)


def test_a_part_is_listed_when_it_is_whole(tmp_path):
    """Its records come first: a compactor killed in between leaves files that nobody reads."""
    created = []

    class Watched(LocalStore):
        def create_exclusive(self, key, data):
            created.append(key)
            return super().create_exclusive(key, data)

    store = Watched(tmp_path)
    finish_job(store, 0)
    created.clear()
    compact(store)
    assert [key.split(".", 1)[1] for key in created] == ["records.parquet", "test.parquet", "jobs.parquet"]
    (tmp_path / created[2]).unlink()
    assert part_names(store) == [] and len(everything(store)) == 1


def test_a_compaction_while_a_reader_reads_hides_nothing(tmp_path):
    """A part that appears after the parts were listed holds jobs that the reader must still find loose."""

    class Racing(LocalStore):
        raced = False

        def list(self, prefix, deep=True):
            found = list(super().list(prefix, deep))
            if prefix == "parts" and not self.raced:
                self.raced = True
                compact(LocalStore(self.root))
            return iter(found)

    def ids_of_records(store):
        with Records(store) as records:
            return [about["id"] for task in records.tasks(["accuracy"]) for about in task.abouts]

    readers = [
        lambda store: [job.id for job in finished_jobs(store)],
        lambda store: list(outcomes(store)),
        ids_of_records,
    ]
    for place, reader in enumerate(readers):
        for number in range(3):
            finish_job(LocalStore(tmp_path), 10 * place + number)
        ids = reader(Racing(tmp_path))
        assert len(ids) == len(set(ids)) == 3 * (place + 1)


def write_forever(store, number):
    while True:
        finish_job(store, number % 500)
        number += 1


def compact_forever(store):
    while True:
        compact(store)


def read_for(store, seconds, said):
    """Reads over and over; what it saw may never vanish, and what was finished before it looked must be there."""
    seen: set[str] = set()
    reads, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        finished = {path.parent.name for path in store.root.glob("jobs/*/done.json")}
        ids = [job.id for job in finished_jobs(store)] if reads % 4 == 0 else list(outcomes(store))
        assert len(ids) == len(set(ids)), "a job was seen twice"
        assert seen | finished <= set(ids), "a finished job was not seen"
        seen = set(ids)
        reads += 1
    said.put((reads, len(seen)))


def disturb(seconds, store):
    """Two writers and two compactors, killed and put to sleep at random, under a looping reader.

    Returns:
        How many times was read, how many jobs were seen at last, and how many were killed and put to sleep.
    """
    # Forked from a server that has imported this: at work at once, and without the threads of this process.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    chance = random.Random(0)
    said = context.Queue()
    writers = [(write_forever, (store, 0)), (write_forever, (store, 5))]
    programs = [*writers, (compact_forever, (store,)), (compact_forever, (store,))]

    def start(target, arguments):
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    running = [start(*program) for program in programs]
    wake = {}
    kills = sleeps = 0
    start_by = time.monotonic() + 60
    while not part_names(store):
        assert time.monotonic() < start_by
        time.sleep(0.05)
    reader = start(read_for, (store, seconds, said))
    try:
        while reader.is_alive():
            time.sleep(0.15)
            for place in [place for place, until in wake.items() if time.monotonic() > until]:
                os.kill(running[place].pid, signal.SIGCONT)
                del wake[place]
            place = chance.randrange(len(running))
            if chance.random() < 0.5 and place not in wake:
                os.kill(running[place].pid, signal.SIGSTOP)
                wake[place] = time.monotonic() + 0.5
                sleeps += 1
            else:
                running[place].kill()
                running[place].join()
                wake.pop(place, None)
                running[place] = start(*programs[place])
                kills += 1
    finally:
        for process in [*running, reader]:
            process.kill()
            process.join()
    assert reader.exitcode == 0, "the reader's own words are above"
    return *said.get(timeout=10), kills, sleeps


@pytest.mark.parametrize("kind", [LocalStore, CopyingStore])
def test_no_job_vanishes_under_kills(tmp_path, kind):
    reads, jobs, kills, sleeps = disturb(2.5, kind(tmp_path))
    assert reads > 2 and kills and sleeps and jobs > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LocalStore, CopyingStore])
def test_no_job_vanishes_in_a_minute_of_kills(tmp_path, kind):
    reads, jobs, kills, sleeps = disturb(60, kind(tmp_path))
    parts = len(part_names(kind(tmp_path)))
    print(f"{kind.__name__}: {reads} reads, at last of {jobs} jobs, {parts} parts; {kills} kills, {sleeps} sleeps")
    assert kills > 20 and sleeps > 20


def test_whoever_stops_it_while_parts_are_written_is_told_that_it_stopped(tmp_path, monkeypatch):
    """A connection that its writers keep busy refuses to be closed, and that took the interrupt's place."""

    def slow(db, *_):
        db.execute("SELECT sum(a.range * b.range) FROM range(20000) a, range(20000) b").fetchall()

    class Interrupted(compaction.ThreadPoolExecutor):
        def shutdown(self, *_, **__):
            time.sleep(0.2)
            raise KeyboardInterrupt

    monkeypatch.setattr(compaction, "_write_part", slow)
    monkeypatch.setattr(compaction, "ThreadPoolExecutor", Interrupted)
    store = LocalStore(tmp_path / "sweep")
    finish_job(store, 0)

    def interrupted():
        yield from compaction.loose_jobs(store)
        raise KeyboardInterrupt

    monkeypatch.setattr(compaction, "LOOK_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        compaction.write_parts(interrupted(), tmp_path, ())
