"""Images from files: upright, on white, of 8 bits; and those that cannot be read."""

import csv
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.data import load
from shiftbed.data.images import Refused, decode, decode_image, image_size, readable
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError
from tests.data.conftest import picture


def read(path: Path) -> np.ndarray:
    size = image_size(path)
    assert not isinstance(size, Refused)
    image = decode(path, *size)
    assert not isinstance(image, Refused)
    return image


def sideways() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("brightest", [0, 1, 255, 256, 257, 4095, 65535])
@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_16_bits_are_scaled_alike_in_every_image(tmp_path, brightest, kind):
    grey = np.linspace(0, brightest, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / f"a.{kind}")
    assert np.array_equal(read(tmp_path / f"a.{kind}")[..., 0], grey // 257)


@pytest.mark.parametrize(("brightest", "expected"), [(200, 200), (51400, 200), (1, 255), (0.5, 127)])
def test_numbers_of_any_range_are_8_bits_if_they_fit(tmp_path, brightest, expected):
    Image.fromarray(np.full((8, 8), brightest, np.float32)).save(tmp_path / "a.tif")
    assert (read(tmp_path / "a.tif") == expected).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L", "I;16"])
def test_an_image_on_its_side_is_turned_whatever_its_mode(tmp_path, mode):
    upright = np.zeros((40, 20), np.uint8)
    upright[:10] = 255
    stored = Image.fromarray(np.rot90(upright).copy())
    if mode == "I;16":
        stored = Image.fromarray(np.asarray(stored).astype(np.uint16) * 257)
    more = {"transparency": 77} if mode == "P" else {}  # a colour that no pixel has
    (stored if mode == "I;16" else stored.convert(mode)).save(tmp_path / "a.png", exif=sideways(), **more)
    assert np.array_equal(read(tmp_path / "a.png")[..., 0], upright)


@pytest.mark.parametrize("kind", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_gives_every_format_the_shape_and_the_pixels_that_are_seen(tmp_path, kind, orientation):
    """What is stored for each orientation is the way back from what is seen, written out here."""
    seen = np.asarray(Image.fromarray(np.arange(6, dtype=np.uint8).reshape(3, 2) * 50).resize((32, 48), 0))
    seen = np.stack([seen] * 3, axis=2)
    way_back = {1: seen, 2: seen[:, ::-1], 3: np.rot90(seen, 2), 4: seen[::-1], 5: seen.transpose(1, 0, 2),
                6: np.rot90(seen), 7: np.rot90(seen, 2).transpose(1, 0, 2), 8: np.rot90(seen, -1)}  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    how = {"quality": 100} if kind == "jpg" else {"lossless": True} if kind == "webp" else {}
    Image.fromarray(np.ascontiguousarray(way_back[orientation])).save(tmp_path / f"a.{kind}", exif=exif, **how)
    assert image_size(tmp_path / f"a.{kind}") == (48, 32)
    assert np.abs(read(tmp_path / f"a.{kind}").astype(int) - seen).max() <= 3


@pytest.mark.parametrize(("mode", "clear"), [("RGB", (10, 10, 10)), ("L", 10)])
def test_a_colour_that_counts_as_transparent_is_white(tmp_path, mode, clear):
    grey = np.full((8, 8), 10, np.uint8)
    grey[2:6, 2:6] = 200
    Image.fromarray(grey).convert(mode).save(tmp_path / "a.png", transparency=clear)
    assert np.array_equal(read(tmp_path / "a.png")[..., 0], np.where(grey == 10, 255, 200))


@pytest.mark.parametrize("error", [RuntimeError, TypeError, KeyError, IndexError, struct.error, zlib.error, EOFError])
@pytest.mark.parametrize("step", ["getexif", "convert"])
def test_whatever_a_reader_raises_the_image_is_refused(tmp_path, monkeypatch, error, step):
    """Damaged AVIF files are a RuntimeError in Pillow, damaged EXIF entries a TypeError or a struct.error."""
    picture(8, 8, seed=0).save(tmp_path / "a.png")

    def fail(*_):
        raise error("damaged")

    monkeypatch.setattr(Image.Image, step, fail)
    size = image_size(tmp_path / "a.png")
    refused = size if isinstance(size, Refused) else decode(tmp_path / "a.png", *size)
    assert isinstance(refused, Refused) and "damaged" in refused.why


def test_an_orientation_that_does_not_exist_turns_nothing(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 9
    picture(20, 40, seed=0).save(tmp_path / "a.png", exif=exif)
    assert image_size(tmp_path / "a.png") == (20, 40)


def test_a_picture_is_read_as_its_file_is(tmp_path):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[2:6, 2:6] = (200, 30, 30, 128)
    Image.fromarray(clear).save(tmp_path / "a.png", exif=sideways())
    with Image.open(tmp_path / "a.png") as opened:
        assert np.array_equal(np.asarray(decode_image(opened)), read(tmp_path / "a.png"))


def huge_png() -> bytes:
    """A small file whose header promises 900 million pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_an_image_of_too_many_pixels_is_named_and_can_be_left_out(folder, root):
    (folder / "größe" / "cat" / "huge.png").write_bytes(huge_png())
    assert "900000000 pixels" in image_size(folder / "größe" / "cat" / "huge.png").why
    made = prepare(str(folder), skip_corrupt=True)
    assert [bad.path.name for bad in made.left_out] == ["huge.png"] and made.card.domains["größe"] == 12


def test_a_manifest_may_mix_absolute_and_relative_paths(folder, root, monkeypatch):
    monkeypatch.chdir(folder)
    rows = [
        [str((folder if label == "cat" else Path()) / domain / label / "image 1.png"), label, domain]
        for domain in ("größe", "site one")
        for label in ("cat", "dog & cow")
    ]
    with Path("list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "class", "domain"], *rows])
    prepare("list.csv", rename="mixed")
    assert {name: len(labels) for name, labels in ((one.name, one.labels) for one in load("mixed").domains)} == {
        "größe": 2,
        "site one": 2,
    }


def test_files_that_cannot_be_read_are_all_named_or_left_out(tmp_path):
    good = [tmp_path / f"{number}.jpg" for number in range(2)]
    for path in good:
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    broken, cut = tmp_path / "broken, one.png", tmp_path / "cut.jpg"
    broken.write_bytes(b"no image")
    cut.write_bytes(good[0].read_bytes()[:-2000])  # whose header is whole
    paths = [*good, broken, cut]
    with pytest.raises(DataError, match=r"1 image cannot be read \(.*broken, one\.png: .*\); repair .* --skip-corrupt"):
        readable(paths, skip_corrupt=False)
    assert readable(good, skip_corrupt=False) == readable(paths, skip_corrupt=True) == good
    with pytest.raises(DataError, match="None of 1 images can be read"):
        readable([broken], skip_corrupt=True)
