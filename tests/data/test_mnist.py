"""The MNIST family: its construction on made files, and on the real ones where they are."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from shiftbed.data import load, mnist
from shiftbed.data.dataset import DATASETS
from shiftbed.data.mnist import colour, read_idx, read_part
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError

REAL = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Files of the official layout with few images; the counts to expect are changed with them."""
    random = np.random.default_rng(0)
    few = {}
    for part, (images, labels, _) in mnist.FILES.items():
        count = {"train": 600, "test": 100}[part]
        few[part] = (images, labels, count)
        pixels = random.integers(0, 256, (count, 28, 28), np.uint8)
        (tmp_path / f"{images}.gz").write_bytes(gzip.compress(idx(pixels)))
        (tmp_path / labels).write_bytes(idx(random.integers(0, 10, count).astype(np.uint8)))
    monkeypatch.setattr(mnist, "FILES", few)
    return tmp_path


def test_idx_files_packed_and_plain(made):
    images, labels = read_part(made, "train")
    assert images.shape == (600, 28, 28) and labels.shape == (600,)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03too short", b"no idx file at all" * 9])
def test_files_that_are_no_idx(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match="is no IDX file of bytes"):
        read_idx(tmp_path, "x")
    with pytest.raises(DataError, match="There is no file y"):
        read_idx(tmp_path, "y")


def test_a_wrong_count_is_refused(made):
    (made / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(7, np.uint8)))
    with pytest.raises(DataError, match="has 600 images and 7 labels, not 600"):
        read_part(made, "train")


def test_domains_take_every_third_image_of_a_pool(made):
    domains = mnist.coloured_as_domainbed(made)
    assert [(domain.name, len(domain)) for domain in domains] == [("+90%", 234), ("+80%", 233), ("-90%", 233)]
    assert [len(domain) for domain in mnist.rotated(made)] == [117] * 4 + [116] * 2


def test_blue_takes_its_share_from_the_other_colour():
    grey = np.full((5000, 4, 4), 200, np.uint8)
    random = np.random.default_rng(1)
    plain = colour("a", grey, np.zeros(5000, int), 0.1, random)
    blue = colour("a", grey, np.zeros(5000, int), 0.1, random, blue=(0.5, 0.1))
    assert plain.inputs.shape[-1] == 2 and blue.inputs.shape[-1] == 3
    share = blue.inputs[:, 0, 0, 2] / 200
    assert abs(share.mean() - 0.5) < 0.01 and abs(share.std() - 0.1) < 0.01
    total = blue.inputs.astype(int).sum(-1)
    assert np.abs(total - 200).max() <= 1
    agree = blue.inputs[:, 0, 0, :2].argmax(1) == blue.labels
    assert abs(agree.mean() - 0.9) < 0.03
    assert abs(blue.labels.mean() - 0.75) < 0.03, "class 0 is below five: label 1, flipped in a quarter of cases"


def test_every_card_of_the_family_says_what_is_made():
    names = [name for name in DATASETS if "MNIST" in name]
    assert len(names) == 6
    for name in names:
        card = DATASETS[name].card
        assert sum(card.domains.values()) == (60_000 if "OoD-Bench" in name else 70_000)
        assert len(card.archives) == 4
    assert DATASETS["ColoredMNIST"].card.classes == ("5 to 9", "0 to 4")
    assert DATASETS["ColoredFashionMNIST"].card.classes == ("sandal to boot", "top to coat")


@pytest.mark.skipif(not REAL.exists(), reason="the real MNIST files are not here")
@pytest.mark.parametrize("name", ["ColoredMNIST", "ColoredMNIST-OoD-Bench", "RotatedMNIST"])
def test_the_real_files(name, root):
    prepare(name, REAL)
    dataset = load(name)
    assert {domain.name: len(domain) for domain in dataset.domains} == dataset.card.domains
    assert list(dataset.card.domains) == list(DATASETS[name].card.domains), "in the card's order"
    for domain in dataset.domains:
        channels, height, width = dataset.card.input_shape
        assert domain.inputs.shape[1:] == (height, width, channels)
    if name != "RotatedMNIST":
        for domain, flip in zip(dataset.domains, (0.1, 0.2, 0.9), strict=True):
            colours = domain.inputs.reshape(len(domain), -1, 2).sum(axis=1, dtype=np.int64).argmax(axis=1)
            assert abs((colours != domain.labels).mean() - flip) < 0.01
            assert abs(domain.labels.mean() - 0.5) < 0.02
