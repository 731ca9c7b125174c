import errno
import os
import threading
from pathlib import Path

import pytest

from shiftbed.errors import StoreError
from shiftbed.training import store
from shiftbed.training.store import DiskFullError, LocalStore


def test_the_four_operations(tmp_path):
    local = LocalStore(tmp_path / "new")
    assert local.get("a/b") is None and list(local.list("a")) == []
    local.put_atomic("a/b", b"1")
    local.put_atomic("a/b", b"2")
    assert local.get("a/b") == b"2"
    assert local.create_exclusive("a/c", b"3") and not local.create_exclusive("a/c", b"4")
    assert local.get("a/c") == b"3"
    assert sorted(local.list("a")) == ["a/b", "a/c"]
    assert local.get("a/b/c") is None, "below a file there is nothing"


def test_nothing_is_left_beside_a_key_that_is_a_folder(tmp_path):
    local = LocalStore(tmp_path)
    local.put_atomic("a/b", b"1")
    with pytest.raises(StoreError, match="it is a folder; name a file"):
        local.put_atomic("a", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_listing_may_stop_at_what_is_directly_below(tmp_path):
    local = LocalStore(tmp_path)
    for key in ("a/b", "a/c/d", "a/c/e/f", "a/.hidden"):
        local.put_atomic(key, b"")
    assert sorted(local.list("a")) == ["a/b", "a/c/d", "a/c/e/f"]
    assert sorted(local.list("a", deep=False)) == ["a/b", "a/c/"]
    assert list(local.list("none", deep=False)) == []


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    """Parts that a reader overlooks would be jobs that never ran."""
    local = LocalStore(tmp_path)
    local.put_atomic("parts/a", b"")
    real = os.scandir

    def denied(path):
        if Path(path).name == "parts":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(store.os, "scandir", denied)
    with pytest.raises(StoreError, match=r"Cannot read .*parts: permission is denied"):
        list(local.list("parts"))
    assert list(local.list("plans")) == []


def test_the_order_of_what_reaches_the_disk(tmp_path, monkeypatch):
    """File before name, name before folder: any other order can lose or tear a file in a power cut."""
    log = []

    class Watched:
        def __getattr__(self, name):
            real = getattr(os, name)

            def call(*arguments):
                log.append(name)
                return real(*arguments)

            return call if name in ("write", "fsync", "replace", "link") else real

    local = LocalStore(tmp_path)
    monkeypatch.setattr(store, "os", Watched())
    local.put_atomic("a", b"1")
    assert log == ["write", "fsync", "replace", "fsync"]
    log.clear()
    local.create_exclusive("b", b"1")
    assert log == ["write", "fsync", "link", "fsync"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(store.os, "write", lambda file, data: real(file, bytes(data[:7])))
    LocalStore(tmp_path).put_atomic("a", bytes(range(100)))
    assert (tmp_path / "a").read_bytes() == bytes(range(100))


def test_of_many_creators_one_wins_and_its_bytes_stay(tmp_path):
    local = LocalStore(tmp_path)
    won = []

    def create(number):
        if local.create_exclusive("done", str(number).encode() * 1000):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert local.get("done") == str(won[0]).encode() * 1000
    assert list(local.root.glob(".*")) == [], "no temporary file is left"


@pytest.mark.parametrize(("number", "what"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota is used up")])
def test_a_disk_without_room_is_an_error_of_its_own(tmp_path, monkeypatch, number, what):
    def full(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.os, "write", full)
    with pytest.raises(DiskFullError, match=f"{what}; make room and .*: what was written before is kept"):
        LocalStore(tmp_path).put_atomic("a", b"1")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/dev/null/x", "/dev/null is not a folder; choose another folder."),
        ("/proc/shiftbed-x", "no folder can be made there; choose another."),
    ],
)
def test_a_place_where_nothing_can_ever_be_written_promises_nothing(place, words):
    with pytest.raises(StoreError) as told:
        LocalStore(Path(place)).put_atomic("a/b", b"1")
    assert str(told.value).endswith(words) and "again" not in str(told.value)
