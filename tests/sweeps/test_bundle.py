import errno
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.sweeps.bundle import Merged, bundle, merge, unbundle
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.plan import Request, plan, planned, remember_plan
from shiftbed.sweeps.records import Records, mean_seconds, outcomes
from shiftbed.sweeps.times import hours, job_times
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore
from tests.sweeps.finished import finish
from tests.sweeps.test_compaction import everything, finish_job


@pytest.fixture
def sweep(tmp_path):
    """A store with a plan, compacted jobs and loose ones."""
    store = LocalStore(tmp_path / "sweep")
    remember_plan(plan(Request("ColoredDigits", "ERM")), store)
    for number in range(8):
        finish_job(store, number)
        if number == 4:
            compact(store)
    return store


def test_a_bundle_brings_everything_to_another_place(sweep, tmp_path):
    assert bundle(sweep.root, tmp_path / "sweep.zip") == 8
    assert unbundle(tmp_path / "sweep.zip", tmp_path / "copy") == Merged(8, 8, [])
    copy = LocalStore(tmp_path / "copy")
    assert everything(copy) == everything(sweep)
    assert planned(copy) == planned(sweep)
    assert unbundle(tmp_path / "sweep.zip", tmp_path / "copy") == Merged(8, 0, []), "nothing is new"


@pytest.mark.parametrize(
    ("kind", "left"), [("records", 100), ("records", None), ("test", 100), ("test", None), ("jobs", 100)]
)
def test_a_part_that_is_not_whole_is_not_spread(sweep, tmp_path, kind, left):
    good = LocalStore(tmp_path / "good")
    finish_job(good, 9)
    before = everything(good)
    (file,) = (sweep.root / "parts").glob(f"*.{kind}.parquet")
    if left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:left])
    for take in (lambda: merge([sweep.root], good.root), lambda: bundle(sweep.root, tmp_path / "sweep.zip")):
        with pytest.raises(StoreError, match=r"is damaged: its files are not what their name says; copy them again"):
            take()
    assert everything(good) == before and not (tmp_path / "sweep.zip").exists()


def test_a_plan_that_is_not_whole_is_not_spread(sweep, tmp_path):
    (file,) = (sweep.root / "plans").iterdir()
    file.write_bytes(b"")  # as a copy to a full disk leaves it
    for take in (lambda: merge([sweep.root], tmp_path / "all"), lambda: bundle(sweep.root, tmp_path / "sweep.zip")):
        with pytest.raises(StoreError, match=rf"plans/{file.name} is damaged"):
            take()
    assert everything(LocalStore(tmp_path / "all")) == [] and not (tmp_path / "sweep.zip").exists()


def test_equal_stores_have_equal_bundles(sweep, tmp_path):
    bundle(sweep.root, tmp_path / "one.zip")
    bundle(sweep.root, tmp_path / "other.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()


def test_a_bundle_that_is_too_large_is_refused(sweep, tmp_path):
    with pytest.raises(StoreError, match=r"\(8 jobs\) would have 0\.0 MiB, and 0\.0 MiB are allowed; keep"):
        bundle(sweep.root, tmp_path / "sweep.zip", limit=1000)
    with pytest.raises(StoreError, match=r"it is a folder; name a file"):
        bundle(sweep.root, tmp_path)
    (tmp_path / "afile").touch()
    with pytest.raises(StoreError, match=r"Cannot write \S+: \S+afile is not a folder; choose another folder"):
        bundle(sweep.root, tmp_path / "afile" / "sweep.zip")
    assert not (tmp_path / "sweep.zip").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="There is no finished job"):
        bundle(tmp_path / "empty", tmp_path / "sweep.zip")


def test_a_bundle_of_few_metrics_has_all_jobs_and_these_numbers_alone(sweep, tmp_path):
    assert bundle(sweep.root, tmp_path / "few.zip", metrics=["accuracy"]) == 8
    unbundle(tmp_path / "few.zip", tmp_path / "copy")
    copy = LocalStore(tmp_path / "copy")
    whole, few = everything(sweep), everything(copy)
    assert [about for about, *_ in few] == [about for about, *_ in whole]
    for (_, _, rows), (_, _, fewer) in zip(whole, few, strict=True):
        assert [row["step"] for row in fewer] == [row["step"] for row in rows]
        for row, less in zip(rows, fewer, strict=True):
            assert less["splits"] == {name: {"accuracy": s["accuracy"]} for name, s in row["splits"].items()}
    bundle(copy.root, tmp_path / "again.zip", metrics=["accuracy", "count"])
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "few.zip").read_bytes(), "its parts stay as they are"
    bundle(sweep.root, tmp_path / "one.zip", metrics="accuracy")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "few.zip").read_bytes(), "one name may stand alone"


@pytest.mark.parametrize("first", [True, False])
def test_a_bundle_of_few_metrics_that_comes_back_hides_nothing(sweep, tmp_path, first):
    whole = everything(sweep)
    bundle(sweep.root, tmp_path / "few.zip", metrics=["accuracy"])
    merge([tmp_path / "few.zip"], tmp_path / "few")
    assert merge([tmp_path / "few"], sweep.root) == Merged(8, 0, [])
    for name in [path.name for path in (tmp_path / "few" / "parts").iterdir()]:
        path = sweep.root / "parts" / name  # as if its hash stood before all others, or after them
        path.rename(path.with_name(("0" if first else "f") * 8 + name[8:]))
    assert everything(sweep) == whole
    with Records(sweep) as records:
        query = "SELECT count(*), count(loss), count(DISTINCT (id, checkpoint, split)) FROM records"
        assert len(set(*records.sql(query).fetchall())) == 1, "every record once, with all its numbers"


def attempt(host, started, seconds, device="cpu"):
    return {"host": host, "device": device, "started": started, "seconds": seconds, "steps": 4, "torch": "2", "more": 1}


def test_times_travel_without_the_names_of_hosts(sweep, tmp_path):
    first, second = sorted(outcomes(sweep))[:2]
    sweep.put_atomic(JobFiles(first).times, canonical([attempt("secret", 100, 50), attempt("secret", 0, 20)]))
    sweep.put_atomic(JobFiles(second).times, canonical([{"host": "old", "device": "cpu", "seconds": 1}]))
    bundle(sweep.root, tmp_path / "sweep.zip")
    unbundle(tmp_path / "sweep.zip", tmp_path / "copy")
    copy = LocalStore(tmp_path / "copy")
    assert job_times(copy) == job_times(sweep)
    assert {job: [(a["started"], a["seconds"]) for a in some] for job, some in job_times(copy).items()} == {
        first: [(0, 20), (100, 50)]
    }
    assert b"secret" not in b"".join(copy.get(key) for key in copy.list("times"))
    assert mean_seconds(copy, {("a", "b"): [first, second]}) == {("a", "b"): 70}
    merge([tmp_path / "sweep.zip", sweep.root], copy.root)
    sweep.put_atomic(JobFiles(second).times, canonical([attempt("secret", 200, 5)]))
    merge([sweep.root], copy.root)
    rows = [row for key in copy.list("times") for row in copy.get(key).splitlines()]
    assert len(rows) == 2, "what is known is not written again"


def test_hours_of_a_machine_are_counted_once():
    # Two jobs at once on a GPU, one after them, and one on another machine at the same time.
    shared = [attempt("one", 0, 3600, "GPU"), attempt("one", 1800, 3600, "GPU"), attempt("one", 7200, 3600, "GPU")]
    rows = [{**row, "place": row["host"]} for row in (*shared, attempt("two", 0, 1800, "GPU"), attempt("one", 0, 900))]
    assert hours(rows) == {"GPU": (3.5, 3.0), "cpu": (0.25, 0.25)}


def test_stores_are_united_by_id(sweep, tmp_path):
    other = LocalStore(tmp_path / "other")
    for number in range(5, 12):
        finish_job(other, number)
    before = everything(other)
    assert merge([sweep.root, other.root], tmp_path / "both") == Merged(12, 12, [])
    assert [about["id"] for about, _, _ in everything(LocalStore(tmp_path / "both"))] == sorted(
        outcomes(sweep) | outcomes(other)
    )
    assert everything(other) == before
    bundle(other.root, tmp_path / "other.zip")
    assert merge(str(tmp_path / "other.zip"), sweep.root) == Merged(12, 4, [])  # one may stand alone
    with pytest.raises(StoreError, match="There is no folder or bundle"):
        merge([tmp_path / "nowhere"], sweep.root)


def test_a_job_with_two_results_is_told_and_taken_alike_in_any_order(tmp_path):
    one, other = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "other")
    for number in range(3):
        finish_job(one, number)
        finish_job(other, number, extra={"accuracy": 0.125} if number == 1 else None)
    assert merge([one.root, other.root], tmp_path / "a") == Merged(3, 3, [f"{1:020x}"])
    assert merge([other.root], one.root) == Merged(3, 0, [f"{1:020x}"])
    assert everything(LocalStore(tmp_path / "a")) == everything(one)


def test_a_job_that_ended_otherwise_elsewhere_is_told(tmp_path):
    """All that both recorded is equal: the one diverged after it."""
    one, other = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "other")
    for number in range(2):
        finish_job(one, number)
    finish_job(other, 0)
    finish_job(other, 1, steps=2, status="diverged")
    assert merge([one.root, other.root], tmp_path / "a") == Merged(2, 2, [f"{1:020x}"])


def rewrite(path, change):
    """A bundle with its members changed."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)


def test_sweeps_of_two_designs_are_not_united_in_one_table(tmp_path):
    """`sweep` refuses them in one folder too: one design's winners would compete in the other's trials."""
    folders = {design: tmp_path / design for design in ("redraw", "search-once")}
    for design, folder in folders.items():
        request = Request(["ColoredDigits"], ["ERM"], test_domains=["-90%"], draws=2, trials=2, design=design)
        jobs = plan(request)
        remember_plan(jobs, LocalStore(folder), design)
        for job in jobs:
            finish(LocalStore(folder), job)
    merge([folders["redraw"]], tmp_path / "both")
    with pytest.raises(StoreError, match=r"of ColoredDigits with the design redraw, .* mix with those of search-once"):
        merge([folders["search-once"]], tmp_path / "both")
    assert outcomes(LocalStore(tmp_path / "both")) == outcomes(LocalStore(folders["redraw"]))


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "jobs/x/done.json", "parts/../../evil.jobs.parquet", "parts/x"]
)
def test_nothing_is_unpacked_outside(sweep, tmp_path, name):
    bundle(sweep.root, tmp_path / "sweep.zip")
    rewrite(tmp_path / "sweep.zip", lambda members: members.update({name: b"evil"}))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="is no bundle of a sweep: it holds"):
        unbundle(tmp_path / "sweep.zip", tmp_path / "copy")
    assert set(tmp_path.rglob("*")) == before


def test_changed_content_is_refused(sweep, tmp_path):
    def change(kind):
        def changed(members):
            name = next(name for name in members if kind in name)
            members[name] = members[name][:-1] + b"x"

        return changed

    for kind in ("records", "test", "jobs", "plans"):
        bundle(sweep.root, tmp_path / "sweep.zip")
        rewrite(tmp_path / "sweep.zip", change(kind))
        with pytest.raises(StoreError, match="is damaged"):
            unbundle(tmp_path / "sweep.zip", tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


def test_a_cut_bundle_is_one_sentence(sweep, tmp_path):
    bundle(sweep.root, tmp_path / "sweep.zip")
    whole = (tmp_path / "sweep.zip").read_bytes()
    (tmp_path / "sweep.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="is not a whole bundle"):
        unbundle(tmp_path / "sweep.zip", tmp_path / "copy")
    shutil.copy(__file__, tmp_path / "text.zip")
    with pytest.raises(StoreError, match="is not a whole bundle"):
        merge([tmp_path / "text.zip"], tmp_path / "copy")


def test_a_full_scratch_folder_is_no_damage_of_the_bundle(sweep, tmp_path, monkeypatch):
    bundle(sweep.root, tmp_path / "whole.zip")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"No space left .* set TMPDIR to a folder"):
        patch.setattr(Path, "write_bytes", full)
        unbundle(tmp_path / "whole.zip", tmp_path / "here")
    with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"No space left .* set TMPDIR to a folder"):
        patch.setattr(zipfile.ZipFile, "writestr", full)
        bundle(sweep.root, tmp_path / "again.zip")
