"""Packs are copied once to a disk of the machine that reads them."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from shiftbed.data import load
from shiftbed.data.load import forget
from shiftbed.data.prepare import prepare
from shiftbed.data.staging import staged
from shiftbed.errors import DataError


def test_a_dataset_is_read_from_its_copy(root, folder, tmp_path, monkeypatch):
    prepare(str(folder))
    plain = load("mine")
    forget()
    monkeypatch.setenv("SHIFTBED_STAGE", str(tmp_path / "scratch"))
    copied = load("mine")
    (copy,) = (tmp_path / "scratch").glob("mine-*")
    pixels = copied["größe"].inputs
    assert Path(pixels.filename).parent == copy
    assert (pixels == plain["größe"].inputs).all() and copied.card == plain.card


def test_many_at_once_copy_it_once_and_a_changed_pack_anew(tmp_path, monkeypatch):
    pack, copies = tmp_path / "pack", []
    pack.mkdir()
    (pack / "pixels.u8").write_bytes(b"1234")
    assert staged(pack) == pack, "nobody asked for a copy"
    monkeypatch.setenv("SHIFTBED_STAGE", str(tmp_path / "scratch"))
    whole = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", lambda *paths: copies.append(paths) or whole(*paths))
    readers = [threading.Thread(target=staged, args=(pack,)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(copies) == 1 and (staged(pack) / "pixels.u8").read_bytes() == b"1234"
    (pack / "pixels.u8").write_bytes(b"12345")
    assert (staged(pack) / "pixels.u8").read_bytes() == b"12345" and len(copies) == 2


def test_a_copy_that_was_cut_short_is_made_again(tmp_path, monkeypatch):
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "pixels.u8").write_bytes(b"1234")
    monkeypatch.setenv("SHIFTBED_STAGE", str(tmp_path / "scratch"))

    def cut(source, target):
        target.mkdir()
        (target / "pixels.u8").write_bytes(b"12")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DataError, match=r"scratch \(No space left on device\); make"):
        patch.setattr(shutil, "copytree", cut)
        staged(pack)
    assert (staged(pack) / "pixels.u8").read_bytes() == b"1234"


def test_a_stage_that_runs_full_is_one_short_sentence_and_is_emptied(tmp_path, monkeypatch):
    pack = tmp_path / "pack"
    pack.mkdir()
    for name in ("pack.json", "pixels.u8"):
        (pack / name).write_bytes(b"1234")

    def full(source, target, **_):
        Path(target).write_bytes(b"12")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)

    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, full, False, False))
    monkeypatch.setenv("SHIFTBED_STAGE", str(tmp_path / "scratch"))
    with pytest.raises(DataError, match=r"cannot be copied to \S+scratch \(No space left on device\); make room"):
        staged(pack)
    assert not list((tmp_path / "scratch").glob("pack-*"))
