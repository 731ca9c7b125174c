"""Packs of arrays: killed between any two writes they continue, and are never taken for whole before they are."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shiftbed.data.arrays import Pending, read_arrays, write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.data.pack import read_pack
from shiftbed.errors import DataError

NAMES = [f"domain {number}" for number in range(5)]


def made_card(**changes) -> Card:
    fields = {
        "name": "Made", "version": 1, "summary": "s", "classes": ("a", "b"), "domains": dict.fromkeys(NAMES, 4),
        "input_shape": (1, 2, 2), "size_class": "small", "licence": "none", "citation": "none", "source": "made",
    }  # fmt: skip
    return Card(**{**fields, **changes})


def make(number: int, log: list[int], count: int = 4) -> Domain:
    log.append(number)
    inputs = np.random.default_rng(number).integers(0, 256, (count, 2, 2, 1), dtype=np.uint8)
    return Domain(NAMES[number], inputs, np.arange(count) % 2, np.arange(count))


def pending(log: list[int], origin: str = "source") -> list[Pending]:
    return [Pending(name, f"{origin} {name}", partial(make, number, log)) for number, name in enumerate(NAMES)]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def interrupt(after: int):
    def on_progress(done, total):
        if done == after:
            raise KeyboardInterrupt

    return on_progress


def test_interrupted_it_makes_only_what_is_missing(tmp_path):
    write_arrays(pending([]), made_card(), tmp_path / "whole")
    log: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        write_arrays(pending(log), made_card(), tmp_path / "Made", interrupt(after=3))
    assert log == [0, 1, 2] and not (tmp_path / "Made").exists()
    write_arrays(pending(log), made_card(), tmp_path / "Made")
    assert log == [0, 1, 2, 3, 4]
    assert content(tmp_path / "Made") == content(tmp_path / "whole")
    assert [len(domain) for domain in read_arrays(tmp_path / "Made", dict.fromkeys(NAMES, 4))] == [4] * 5


def test_what_was_made_from_other_files_is_made_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_arrays(pending([], origin="older"), made_card(), tmp_path / "Made", interrupt(after=3))
    log: list[int] = []
    write_arrays(pending(log), made_card(), tmp_path / "Made")
    assert log == [0, 1, 2, 3, 4]


def test_fewer_domains_than_an_interrupted_writer_had_leave_nothing_of_it(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_arrays(pending([]), made_card(), tmp_path / "Made", interrupt(after=4))
    card = made_card(domains={NAMES[0]: 4})
    write_arrays([make(0, [])], card, tmp_path / "Made")
    assert set(content(tmp_path / "Made")) == {"inputs-0.npy", "labels-0.npy", "groups-0.npy", "pack.json"}


def test_domains_that_are_not_the_cards_leave_nothing(tmp_path):
    with pytest.raises(DataError, match=r"domain 0 3 \(should be 4\)"):
        write_arrays([make(0, [], count=3)], made_card(domains={NAMES[0]: 4}), tmp_path / "Made")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from shiftbed.data.arrays import write_arrays
from tests.data.test_arrays import made_card, pending
left = int(sys.argv[2])
save = np.save
def counted(*arguments):
    global left
    left -= 1
    if left == 0:  # in the middle of a file
        Path(arguments[0]).write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    save(*arguments)
np.save = counted
write_arrays(pending([]), made_card(), Path(sys.argv[1]))
"""


def test_killed_in_the_middle_of_a_file_it_ends_as_if_it_had_not_been(tmp_path):
    write_arrays(pending([]), made_card(), tmp_path / "whole")
    for saves in (8, 5):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "Made"), str(saves)], cwd=Path.cwd())
        assert killed.returncode == -signal.SIGKILL
    write_arrays(pending([]), made_card(), tmp_path / "Made")
    assert content(tmp_path / "Made") == content(tmp_path / "whole")


@pytest.mark.parametrize("name", ["inputs-1.npy", "labels-3.npy"])
def test_a_pack_of_arrays_that_is_not_whole_says_so(tmp_path, name):
    write_arrays(pending([]), made_card(), tmp_path / "Made")
    file = tmp_path / "Made" / name
    whole = file.read_bytes()
    for left in (whole[:-1], b"", None):
        file.unlink() if left is None else file.write_bytes(left)
        with pytest.raises(DataError, match="Made is not whole"):
            read_pack(tmp_path / "Made")
