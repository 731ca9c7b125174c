import threading

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
