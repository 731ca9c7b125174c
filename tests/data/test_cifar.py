"""The CIFAR-10 family on made files of the published layouts."""

import errno
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from shiftbed.data import cifar, load
from shiftbed.data.cifar import BAR, CLASSES, STANDARD
from shiftbed.data.dataset import DATASETS
from shiftbed.data.look import contact_sheet
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError
from tests.data.made_archives import packed
from tests.data.test_download import Server

RANDOM = np.random.default_rng(0)
EACH = 20


def images_and_labels(count):
    return RANDOM.integers(0, 256, (count, 32, 32, 3), np.uint8), RANDOM.integers(0, 10, count)


def write_binary(folder, name, images, labels):
    records = np.concatenate(
        [labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(len(images), -1)], 1
    )
    records.tofile(folder / f"{name}.bin")


@pytest.fixture
def binary(tmp_path):
    parts = {name: images_and_labels(EACH) for name in (*cifar.TRAIN, *cifar.TEST)}
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name, (images, labels) in parts.items():
        write_binary(tmp_path / "cifar-10-batches-bin", name, images, labels)
    return tmp_path, parts


def test_the_binary_release(binary):
    folder, parts = binary
    train, test = cifar.cifar_10(folder)
    assert np.array_equal(train.inputs, np.concatenate([parts[name][0] for name in cifar.TRAIN]))
    assert np.array_equal(train.labels, np.concatenate([parts[name][1] for name in cifar.TRAIN]))
    assert np.array_equal(test.inputs, parts["test_batch"][0])


def test_the_lossless_sheets_hold_the_same(binary, tmp_path):
    folder, parts = binary
    sheets = tmp_path / "sheets"
    sheets.mkdir()
    for name, (images, _) in parts.items():
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(sheets / f"{name}.png")
    train_labels = [int(label) for name in cifar.TRAIN for label in parts[name][1]]
    (sheets / "train_lables.json").write_text(json.dumps(train_labels))
    (sheets / "test_lables.json").write_text(json.dumps(parts["test_batch"][1].tolist()))
    for one, two in zip(cifar.cifar_10(folder / "cifar-10-batches-bin"), cifar.cifar_10(sheets), strict=True):
        assert np.array_equal(one.inputs, two.inputs) and np.array_equal(one.labels, two.labels)
    (sheets / "test_lables.json").write_text(json.dumps(parts["test_batch"][1].tolist()[:-1]))
    with pytest.raises(DataError, match=f"has images of shape .* and {EACH - 1} labels"):
        cifar.cifar_10(sheets)


def test_a_cut_or_missing_file_is_one_sentence(binary):
    folder, _ = binary
    path = folder / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="are cut off"):
        cifar.cifar_10(folder)
    (folder / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"There is no file data_batch_3\.bin below"):
        cifar.cifar_10(folder)


def test_the_new_test_sets(tmp_path):
    images, labels = images_and_labels(EACH)
    np.save(tmp_path / "cifar10.1_v6_data.npy", images)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", labels.astype(np.int32))
    np.savez(tmp_path / "cifar102_test.npz", images=images, labels=labels)
    for (domain,) in (cifar.cifar_10_1(tmp_path), cifar.cifar_10_2(tmp_path)):
        assert np.array_equal(domain.inputs, images) and domain.labels.dtype == np.int64
    for source in ("CIFAR-10.1", "CIFAR-10.2"):
        *_, pending = cifar.corrupted(tmp_path, ("contrast",), source)
        last = pending.make()
        assert last.name == pending.name == "contrast-5" and last.inputs.shape == images.shape
        assert np.array_equal(last.labels, labels) and not np.array_equal(last.inputs, images)


def write_flickr_sets(folder):
    """As in the challenge's archive: twenty sets of different size, beside two others of the same form."""
    sets = {}
    for number in range(20):
        sets[f"F-{number + 1:02d}"] = images_and_labels(10 + number)
        write_set(folder / "cifar10-f-32" / f"set_{number:02d}", *sets[f"F-{number + 1:02d}"])
    for other in ("cifar-10.1/v6", "cifar-10.1-c/brightness"):
        write_set(folder / other, *images_and_labels(5))
    return sets


def write_set(folder, images, labels):
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", images)
    np.save(folder / "labels.npy", labels)


def test_the_flickr_sets_become_a_pack(tmp_path, root):
    sets = write_flickr_sets(tmp_path / "valid_data")
    with pytest.raises(DataError, match="CIFAR-10-F is made at one size, and --size does nothing for it"):
        prepare("CIFAR-10-F", tmp_path / "valid_data", short_side=16)
    made = prepare("CIFAR-10-F", tmp_path / "valid_data")
    assert made.card.domains == {name: len(labels) for name, (_, labels) in sets.items()}
    for domain in load("CIFAR-10-F").domains:
        images, labels = sets[domain.name]
        assert np.array_equal(domain.inputs, images) and np.array_equal(domain.labels, labels)
    assert contact_sheet(load("CIFAR-10-F"), tmp_path / "sheet.png").stat().st_size > 10_000


def test_flickr_sets_that_are_too_few_or_of_another_form_are_refused(tmp_path, root):
    with pytest.raises(DataError, match=r"CIFAR-10-F has 20 folders with data\.npy and labels\.npy, and .* has 0"):
        prepare("CIFAR-10-F", tmp_path)
    write_flickr_sets(tmp_path)
    np.save(tmp_path / "cifar10-f-32" / "set_03" / "labels.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"set_03 has images of shape \(13, 32, 32, 3\) and 3 labels"):
        prepare("CIFAR-10-F", tmp_path)
    (tmp_path / "cifar10-f-32" / "set_03" / "labels.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"set_03/labels\.npy is not the published NumPy file"):
        prepare("CIFAR-10-F", tmp_path)
    assert not list(root.rglob("*.partial")) and not list(root.rglob("*.lock"))


def test_downloads_of_the_family_survive_broken_connections(binary, root, tmp_path, monkeypatch):
    """The binary release is an archive; NumPy's files are not, although one of them is a zip file inside."""
    monkeypatch.setattr("shiftbed.data.download.time.sleep", lambda seconds: None)
    folder, _ = binary
    images, labels = images_and_labels(EACH)
    np.save(tmp_path / "cifar10.1_v6_data.npy", images)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", labels)
    np.savez(tmp_path / "cifar102_test.npz", images=images, labels=labels)
    members = {f"cifar-10-batches-bin/{path.name}": path.read_bytes() for path in folder.rglob("*.bin")}
    served = {"cifar-10-binary.tar.gz": packed("cifar-10-binary.tar.gz", members)}
    served |= {path.name: path.read_bytes() for path in tmp_path.glob("cifar10*.np?")}
    counts = {"CIFAR-10": {"train": 5 * EACH, "test": EACH}, "CIFAR-10.1": {"test": EACH}, "CIFAR-10.2": {"test": EACH}}
    for name, domains in counts.items():
        entry = DATASETS[name]
        with Server({f"/{file}": content for file, content in served.items()}, drops=2) as server:
            archives = tuple(
                one.model_copy(update={"mirrors": (f"{server.address}/{one.file}",), "sha256": None})
                for one in entry.card.archives
            )
            few = entry.card.model_copy(update={"domains": domains, "archives": archives})
            DATASETS.add(name, entry._replace(card=few))
            try:
                prepare(name)
                assert len(server.asked) == len(archives) + 2
                assert {domain.name: len(domain) for domain in load(name).domains} == domains
                assert contact_sheet(load(name), tmp_path / f"{name}.png").exists()
            finally:
                DATASETS.add(name, entry)


def test_two_at_once_and_a_full_disk_leave_nothing_behind(tmp_path, root, monkeypatch):
    write_flickr_sets(tmp_path / "raw")
    other = []

    def start_another(what, done, total):
        if not other:
            other.append(True)
            with pytest.raises(DataError, match="Another process is packing CIFAR-10-F; wait for it"):
                prepare("CIFAR-10-F", tmp_path / "raw")

    prepare("CIFAR-10-F", tmp_path / "raw", on_progress=start_another)
    assert other and len(load("CIFAR-10-F").domains) == 20
    shutil.rmtree(root)

    def fill_the_disk(what, done, total):
        if done == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DataError, match="is full; make room or choose another SHIFTBED_DATA"):
        prepare("CIFAR-10-F", tmp_path / "raw", on_progress=fill_the_disk)
    assert list((root / "packs").iterdir()) == []


@pytest.mark.parametrize(("name", "corruptions"), [("CIFAR-10-C", STANDARD), ("CIFAR-10-C-bar", BAR)])
def test_corrupted_sets_have_a_domain_for_each_corruption_and_severity(name, corruptions, binary, root):
    folder, parts = binary
    entry = DATASETS[name]
    assert len(entry.card.domains) == 5 * len(corruptions) and len(STANDARD) == 19 and len(BAR) == 10
    few = entry.card.model_copy(update={"domains": dict.fromkeys(entry.card.domains, EACH)})
    DATASETS.add(name, entry._replace(card=few))
    try:
        prepare(name, folder)
        dataset = load(name)
        assert list(dataset.card.domains) == list(few.domains)
        for domain in dataset.domains:
            assert domain.inputs.shape == (EACH, 32, 32, 3)
            assert np.array_equal(domain.labels, parts["test_batch"][1])
        assert len({domain.inputs.tobytes() for domain in dataset.domains}) == len(dataset.domains)
    finally:
        DATASETS.add(name, entry)


def test_cards_of_the_family():
    for source, count in (("CIFAR-10", 10_000), ("CIFAR-10.1", 2_000), ("CIFAR-10.2", 2_000)):
        for suffix in ("C", "C-bar"):
            assert set(DATASETS[f"{source}-{suffix}"].card.domains.values()) == {count}
        assert DATASETS[source].card.classes == CLASSES
