"""The MNIST family: its construction on made files, and on the real ones where they are."""

import gzip
import io
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.data import load, mnist
from shiftbed.data.dataset import DATASETS
from shiftbed.data.look import contact_sheet
from shiftbed.data.mnist import colour, coloured_study, read_idx, read_part
from shiftbed.data.mnist_m import BSDS500, blend, find_photographs
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError
from tests.data.made_archives import packed
from tests.data.test_download import Server

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


@pytest.mark.parametrize("where", [12, 40, -6])
def test_a_packed_idx_file_that_is_damaged_is_one_sentence(tmp_path, where):
    content = bytearray(gzip.compress(idx(np.random.default_rng(0).integers(0, 10, 1000).astype(np.uint8))))
    content[where] ^= 255
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.gz is no IDX file of bytes .*; get it again"):
        read_idx(tmp_path, "x")


def test_the_checksums_are_of_different_files():
    archives = [one for source in mnist.SOURCES for one in mnist.idx_archives(source)]
    assert len({one.sha256 for one in archives}) == 8 and all(len(one.sha256 or "") == 64 for one in archives)
    assert all(len(one.mirrors) == 2 for one in archives)


def test_a_wrong_count_is_refused(made):
    (made / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(7, np.uint8)))
    with pytest.raises(DataError, match="has 600 images and 7 labels, not 600"):
        read_part(made, "train")


def test_domains_take_every_third_image_of_a_pool(made):
    domains = mnist.coloured_as_domainbed(made)
    assert [(domain.name, len(domain)) for domain in domains] == [("+90%", 234), ("+80%", 233), ("-90%", 233)]
    for domain, flip in zip(domains, (0.1, 0.2, 0.9), strict=True):
        energy = domain.inputs.astype(int).sum(axis=(1, 2))
        assert (energy.min(axis=1) == 0).all(), "each image has one colour"
        disagree = (energy.argmax(axis=1) != domain.labels).mean()
        assert abs(disagree - flip) < 4 * np.sqrt(flip * (1 - flip) / len(domain))


def test_domains_are_turned_as_pillow_turns(made):
    domains = mnist.rotated(made)
    assert [len(domain) for domain in domains] == [117] * 4 + [116] * 2
    images, classes = mnist.pooled(made, np.random.Generator(np.random.PCG64(mnist.CONSTRUCTION_SEED)))
    for i, (domain, angle) in enumerate(zip(domains, mnist.ANGLES, strict=True)):
        assert np.array_equal(domain.labels, classes[i::6])
        upright = Image.fromarray(images[i])
        turned, back = (np.asarray(upright.rotate(a, Image.Resampling.BILINEAR), int) for a in (angle, -angle))
        middle = (slice(7, 21), slice(7, 21))  # at the rim the two fill in differently
        error = np.abs(domain.inputs[0, ..., 0].astype(int) - turned)[middle].max()
        assert error <= 1 and (angle == 0 or np.abs(turned - back)[middle].mean() > 20)


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
    names = [name for name in DATASETS if "MNIST" in name and not name.endswith("-M")]
    assert len(names) == 6
    for name in names:
        card = DATASETS[name].card
        assert sum(card.domains.values()) == (60_000 if "OoD-Bench" in name else 70_000)
        assert len(card.archives) == 4
    assert DATASETS["ColoredMNIST"].card.classes == ("5 to 9", "0 to 4")
    assert DATASETS["ColoredFashionMNIST"].card.classes == ("sandal to boot", "top to coat")


def test_a_study_has_a_domain_for_each_rho_and_equal_shares(made):
    dataset = coloured_study((0.1, 0.9, 0.1), folder=made)
    assert [domain.name for domain in dataset.domains] == ["0: rho 0.1", "1: rho 0.9", "2: rho 0.1"]
    assert dataset.card.domains == {domain.name: 200 for domain in dataset.domains}
    assert dataset.card.input_shape == (2, 14, 14) and dataset.domains[0].inputs.shape == (200, 14, 14, 2)
    for domain, rho in zip(dataset.domains, (0.1, 0.9, 0.1), strict=True):
        colours = domain.inputs.reshape(200, -1, 2).sum(axis=1, dtype=np.int64).argmax(axis=1)
        assert abs((colours != domain.labels).mean() - rho) < 4 * np.sqrt(0.09 / 200)
    again = coloured_study((0.1, 0.9, 0.1), folder=made)
    other = coloured_study((0.1, 0.9, 0.1), folder=made, seed=1)
    assert np.array_equal(again.domains[1].inputs, dataset.domains[1].inputs)
    assert not np.array_equal(other.domains[1].inputs, dataset.domains[1].inputs)
    versions = {one.card.version for one in (dataset, again, other, coloured_study((0.1, 0.9, 0.2), folder=made))}
    assert len(versions) == 3


def test_a_study_of_blue_has_the_shares_that_were_asked_for(made):
    dataset = coloured_study((0.1, 0.1), ((0.0, 0.1), (1.0, 0.1)), folder=made)
    assert dataset.card.input_shape == (3, 14, 14)
    assert [domain.name for domain in dataset.domains] == ["0: rho 0.1, blue 0±0.1", "1: rho 0.1, blue 1±0.1"]
    little, much = (domain.inputs.astype(float) for domain in dataset.domains)
    shares = [inputs[..., 2].sum() / inputs.sum() for inputs in (little, much)]
    mean = 0.1 * np.sqrt(2 / np.pi)  # of a half normal
    assert np.allclose(shares, [mean, 1 - mean], atol=0.01)


@pytest.mark.parametrize(
    ("rhos", "blues"), [((), None), ((1.5,), None), ((0.1, 0.2), ((0.5, 0.1),)), ((0.1,), ((0.5, 0.0),))]
)
def test_impossible_studies_are_one_sentence(rhos, blues, made):
    with pytest.raises(DataError, match="Each domain needs a rho between 0 and 1"):
        coloured_study(rhos, blues, folder=made)


def photograph(seed: int, size: tuple[int, int] = (60, 40)) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_blending_is_the_absolute_difference_to_a_patch_of_the_photograph():
    digits = np.random.default_rng(0).integers(0, 256, (50, 28, 28), np.uint8)
    scene = np.asarray(photograph(1)).astype(int)
    blended = blend(digits, scene.astype(np.uint8), np.random.default_rng(2))
    assert blended.shape == (50, 28, 28, 3) and blended.dtype == np.uint8
    black = blend(np.zeros((50, 28, 28), np.uint8), scene.astype(np.uint8), np.random.default_rng(2))
    places = set()
    for image, patch, digit in zip(blended, black, digits, strict=True):
        corners = [(y, x) for y in range(13) for x in range(33) if (scene[y, x] == patch[0, 0]).all()]
        (place,) = [(y, x) for y, x in corners if np.array_equal(scene[y : y + 28, x : x + 28], patch)]
        places.add(place)
        assert np.array_equal(image, np.abs(patch.astype(int) - digit[..., None].astype(int)))
    assert len(places) > 40, "every image has a patch of its own"


@pytest.mark.parametrize("name", ["MNIST-M", "FashionMNIST-M"])
def test_other_photographs_make_a_dataset_that_is_called_like_it(name, made, root):
    for number, folder in enumerate(("a", "a", "b")):
        (made / "photos" / folder).mkdir(parents=True, exist_ok=True)
        photograph(number).save(made / "photos" / folder / f"p{number}.png")
    card = prepare(name, made).card
    assert card.name == f"{name}-like" and card.domains == {"p0": 234, "p1": 233, "p2": 233}
    dataset = load(f"{name}-like")
    assert dataset.card == card and dataset.card.classes == DATASETS[name].card.classes
    assert sorted(path.name for path in (root / "packs").iterdir()) == [f"{name}-like"]
    with pytest.raises(DataError, match=f"{name} is not prepared here"):
        load(name)
    assert contact_sheet(dataset, root / "sheets" / "sheet.png").exists()
    shutil.rmtree(root / "sheets")  # it lies below the backgrounds
    images, classes = mnist.pooled(made, np.random.Generator(np.random.PCG64(mnist.CONSTRUCTION_SEED)))
    assert np.array_equal(dataset["p1"].labels, classes[1::3])
    scene = np.asarray(photograph(1)).astype(int)
    first, digit = dataset["p1"].inputs[0].astype(int), images[1].astype(int)[..., None]
    found = [
        (y, x)
        for y in range(13)
        for x in range(33)
        if np.array_equal(np.abs(scene[y : y + 28, x : x + 28] - digit), first)
    ]
    assert len(found) == 1
    version = card.version
    assert prepare(name, made).card.version == version
    photograph(9).save(made / "photos" / "b" / "p2.png")
    assert prepare(name, made).card.version != version, "other photographs are another version"


def test_bsds500_from_its_archive_makes_mnist_m(made, root, monkeypatch):
    """The archive has 300 images more, in other folders, and what Windows leaves behind."""
    monkeypatch.setattr("shiftbed.data.download.time.sleep", lambda seconds: None)
    folder = "BSR/BSDS500/data/images"
    wide, tall = (encoded(Image.new("RGB", size, "teal"), "JPEG") for size in ((481, 321), (321, 481)))
    members = {f"{folder}/train/{name}.jpg": tall if i % 3 else wide for i, name in enumerate(BSDS500)}
    members |= {f"{folder}/val/{name}.jpg": wide for name in ("3096", "8023")}
    members |= {f"{folder}/train/Thumbs.db": b"", "BSR/BSDS500/data/groundTruth/train/100075.mat": b""}
    served = {"/BSR_bsds500.tgz": packed("BSR_bsds500.tgz", members)}
    for archive in DATASETS["MNIST-M"].card.archives[:-1]:
        plain = made / archive.file.removesuffix(".gz")
        content = plain.read_bytes() if plain.exists() else gzip.decompress((made / archive.file).read_bytes())
        served[f"/{archive.file}"] = gzip.compress(content, 1)
    entry = DATASETS["MNIST-M"]
    with Server(served, drops=2) as server:
        archives = tuple(
            one.model_copy(update={"mirrors": (f"{server.address}/{one.file}",), "sha256": None})
            for one in entry.card.archives
        )
        counts = {name: 4 if i < 100 else 3 for i, name in enumerate(BSDS500)}
        card = entry.card.model_copy(update={"domains": counts, "archives": archives})
        DATASETS.add("MNIST-M", entry._replace(card=card))
        try:
            made_card = prepare("MNIST-M").card
        finally:
            DATASETS.add("MNIST-M", entry)
    assert (made_card.name, made_card.version, len(made_card.domains)) == ("MNIST-M", 1, 200)
    assert sum(DATASETS["MNIST-M"].card.domains.values()) == 70_000


def test_backgrounds_that_cannot_be_used_are_named(made, root):
    with pytest.raises(DataError, match="has 0 background images; put two or more beside the IDX files"):
        prepare("MNIST-M", made)
    photograph(0).save(made / "a.png")
    photograph(0, (20, 40)).save(made / "b.png")
    with pytest.raises(DataError, match=r"The background .*b\.png is smaller than 28×28 pixels"):
        prepare("MNIST-M", made)
    (made / "b.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"The background .*b\.png is not a readable image"):
        prepare("MNIST-M", made)
    (made / "a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.jpg and .*a\.png would both be the domain 'a'; rename one"):
        prepare("MNIST-M", made)
    assert not (root / "packs").exists()


def test_the_names_of_bsds500_alone_do_not_make_it_bsds500(tmp_path):
    for name in BSDS500:
        (tmp_path / f"{name}.jpg").write_bytes(encoded(photograph(0)) if name == BSDS500[0] else b"")
    assert tuple(find_photographs(tmp_path)) != BSDS500


@pytest.mark.skipif(not REAL.exists(), reason="the real MNIST files are not here")
@pytest.mark.parametrize(
    "name",
    [
        "ColoredMNIST-OoD-Bench",
        pytest.param("ColoredMNIST", marks=pytest.mark.slow),
        pytest.param("RotatedMNIST", marks=pytest.mark.slow),
    ],
)
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
