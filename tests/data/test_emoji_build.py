"""Tests of the committed EmojiStyles files and of the script that builds them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "build_emoji_styles.py"
PACKED = ROOT / "shiftbed" / "data" / "emoji_styles.npz"
RECORD = PACKED.with_suffix(".json")

STYLES = ["noto", "noto-v1", "twemoji", "fluent-flat", "fluent-contrast", "emojione", "emojione-mono"]
CLASSES = ["animal", "plant", "food", "face", "hand", "vehicle", "building", "clothing", "tool", "sky", "sport"]
EMOJI = 644
CLASS_COUNTS = [85, 23, 70, 85, 37, 62, 28, 28, 121, 46, 59]
PERMISSIVE = {"Apache-2.0", "MIT", "CC-BY-4.0"}
FETCH_FAILED = 3


def load(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a packed file."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """The committed arrays."""
    return load(PACKED)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """The committed record."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_hashes_match_record(arrays: dict[str, np.ndarray], record: dict[str, Any]) -> None:
    found = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    assert found == record["sha256_arrays"]


def test_shapes(arrays: dict[str, np.ndarray]) -> None:
    assert arrays["x"].shape == (7, EMOJI, 64, 64, 3)
    assert arrays["x"].dtype == np.uint8
    assert arrays["label"].shape == (EMOJI,)
    assert arrays["label"].dtype == np.int64
    assert arrays["styles"].tolist() == STYLES
    assert arrays["classes"].tolist() == CLASSES


def test_names_are_sorted_and_unique(arrays: dict[str, np.ndarray]) -> None:
    names = arrays["name"].tolist()
    assert names == sorted(set(names))
    assert len(names) == EMOJI
    assert all(names)


def test_every_emoji_has_a_label(arrays: dict[str, np.ndarray]) -> None:
    assert arrays["label"].min() >= 0
    assert np.bincount(arrays["label"]).tolist() == CLASS_COUNTS


@pytest.mark.parametrize(
    ("name", "expected"),
    [("dog-face", "animal"), ("rose", "plant"), ("pizza", "food"), ("thumbs-up", "hand"), ("rocket", "vehicle")],
)
def test_known_labels(arrays: dict[str, np.ndarray], name: str, expected: str) -> None:
    index = arrays["name"].tolist().index(name)
    assert CLASSES[arrays["label"][index]] == expected


def test_no_drawing_is_blank(arrays: dict[str, np.ndarray]) -> None:
    pixels = arrays["x"].reshape(7, EMOJI, -1)
    assert (pixels.max(-1) > pixels.min(-1)).all()


def test_colours(arrays: dict[str, np.ndarray]) -> None:
    images = arrays["x"].astype(np.int16)
    grey = {style: bool((image.max(-1) == image.min(-1)).all()) for style, image in zip(STYLES, images, strict=True)}
    assert {style for style, is_grey in grey.items() if is_grey} == {"fluent-contrast", "emojione-mono"}
    assert (images.max(axis=(1, 2, 3, 4)) == 255).all()


def test_mirrored_alias_is_mirrored(arrays: dict[str, np.ndarray]) -> None:
    names = arrays["name"].tolist()
    left, right = (names.index(f"backhand-index-pointing-{side}") for side in ("left", "right"))
    images = arrays["x"][STYLES.index("fluent-contrast")].astype(np.int16)
    mirrored = np.abs(images[left, :, ::-1] - images[right]).mean()
    assert mirrored < 1 < np.abs(images[left] - images[right]).mean()


def test_sources(record: dict[str, Any]) -> None:
    assert [source["style"] for source in record["sources"]] == STYLES
    sources = [*record["sources"], record["metadata_source"]]
    assert {source["licence"] for source in sources} <= PERMISSIVE
    for source in sources:
        assert len(source["sha256"]) == 64
        assert all(source[key] for key in ("package", "version", "author", "url"))


def test_ambiguous_alias_is_left_out(arrays: dict[str, np.ndarray]) -> None:
    names = arrays["name"].tolist()
    assert "cricket" not in names  # an alias of cricket-game in three sets
    assert {"cricket-game", "backhand-index-pointing-right", "bear"} <= set(names)


def test_rule_for_aliases() -> None:
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    select = runpy.run_path(str(SCRIPT))["select"]
    own = {"icons": dict.fromkeys(["bat", "bear", "bee", "left-hand", "right-hand"])}
    aliased = {
        "icons": dict.fromkeys(["bat-game", "bear-face", "bee", "left-hand"]),
        "aliases": {
            "bat": {"parent": "old-bat"},
            "old-bat": {"parent": "bat-game"},
            "bear": {"parent": "bear-face"},
            "right-hand": {"parent": "left-hand", "hFlip": True},
        },
    }
    subgroups = dict.fromkeys(["bee", "bear", "bat"], "animal-mammal") | {"bat-game": "no-class", "flag": None}
    subgroups |= dict.fromkeys(["right-hand", "left-hand"], "hands")
    expected = {"bear": 0, "bee": 0, "left-hand": 4, "right-hand": 4}
    assert list(select(subgroups, [own, aliased]).items()) == list(expected.items())
    assert set(select(subgroups, [own])) == {*expected, "bat"}


def test_notice_credits_every_source(record: dict[str, Any]) -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for source in [*record["sources"], record["metadata_source"]]:
        assert (
            f"  Author:  {source['author']}, {source['url']}\n"
            f"  Licence: {source['licence']}\n"
            f"  Package: npm {source['package']} {source['version']}\n"
        ) in notice


def test_size_limit() -> None:
    assert PACKED.stat().st_size < 8_000_000


@pytest.mark.slow
def test_rebuild_is_byte_identical(tmp_path: Path, record: dict[str, Any]) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    needed, found = record["built_with"]["resvg-py"], importlib.metadata.version("resvg-py")
    if found != needed:
        pytest.skip(f"resvg-py {needed} is needed, found {found}")

    out = tmp_path / "emoji_styles.npz"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == FETCH_FAILED:
        pytest.skip(f"packages could not be fetched: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr

    rebuilt = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    # The arrays come first: they tell other pixels from the same pixels packed by another zlib.
    assert rebuilt["sha256_arrays"] == record["sha256_arrays"]
    assert rebuilt["sources"] == record["sources"]
    assert rebuilt["metadata_source"] == record["metadata_source"]
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert digest == hashlib.sha256(PACKED.read_bytes()).hexdigest()
    assert digest in done.stdout
