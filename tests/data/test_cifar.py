"""The CIFAR-10 family on made files of the published layouts."""

import json

import numpy as np
import pytest
from PIL import Image

from shiftbed.data import cifar, load
from shiftbed.data.cifar import BAR, CLASSES, STANDARD
from shiftbed.data.dataset import DATASETS
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError

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
        *_, last = cifar.corrupted(tmp_path, ("contrast",), source)
        assert last.name == "contrast-5" and last.inputs.shape == images.shape
        assert np.array_equal(last.labels, labels) and not np.array_equal(last.inputs, images)


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
