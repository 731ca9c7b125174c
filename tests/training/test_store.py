import os
import threading

from shiftbed.training import store
from shiftbed.training.store import LocalStore


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


def test_a_listing_may_stop_at_what_is_directly_below(tmp_path):
    local = LocalStore(tmp_path)
    for key in ("a/b", "a/c/d", "a/c/e/f", "a/.hidden"):
        local.put_atomic(key, b"")
    assert sorted(local.list("a")) == ["a/b", "a/c/d", "a/c/e/f"]
    assert sorted(local.list("a", deep=False)) == ["a/b", "a/c/"]
    assert list(local.list("none", deep=False)) == []


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
