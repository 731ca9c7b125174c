"""Rebuild the EmojiStyles dataset from public npm packages.

Usage::

    pip install numpy pillow resvg-py==0.5.0
    python scripts/build_emoji_styles.py [--size 64] [--out shiftbed/data/emoji_styles.npz]

The drawings come from seven icon sets under permissive licences, the names and classes from emojibase-data. Every
package is fetched by ``npm pack`` at a pinned version, and its SHA-256 is checked before anything in it is read.

An emoji is kept when its subgroup has a class, all seven sets have an icon (or an alias) of its name, and in none of
them that name is an alias of another emoji's icon. Drawings are rendered on white and are otherwise unchanged.

Beside the ``.npz`` a ``.json`` file of the same stem records the sources, the SHA-256 of every array and the versions
of the tools. Two runs give byte-identical ``.npz`` files. Another zlib may pack the same pixels into other bytes; the
hashes of the arrays do not depend on it.
"""

import argparse
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import resvg_py
from PIL import Image

RESVG_PY_VERSION = "0.5.0"  # other versions may draw otherwise
FETCH_FAILED = 3  # exit status


class FetchError(RuntimeError):
    """A package could not be fetched."""


class Source(NamedTuple):
    """An npm package at a pinned version, with the SHA-256 of the tarball that ``npm pack`` gives."""

    package: str
    version: str
    sha256: str


STYLES = {
    "noto": Source("@iconify-json/noto", "1.2.9", "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad"),
    "noto-v1": Source(
        "@iconify-json/noto-v1", "1.2.5", "2bf62c26c2c2884aa99e90aec942cdaee17a5921f05690694f4978ad4b017c37"
    ),
    "twemoji": Source(
        "@iconify-json/twemoji", "1.2.5", "19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7"
    ),
    "fluent-flat": Source(
        "@iconify-json/fluent-emoji-flat", "1.2.6", "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175"
    ),
    "fluent-contrast": Source(
        "@iconify-json/fluent-emoji-high-contrast",
        "1.2.6",
        "0b92d48c90d2200bd499e3cdd09a127ca6a8c8ddefd34c35eb5a1e4994012ae0",
    ),
    "emojione": Source(
        "@iconify-json/emojione", "1.2.3", "26a14f44284407e8bcde91799388dca2bfd91dbcd55a97f425524a1c5b73610e"
    ),
    "emojione-mono": Source(
        "@iconify-json/emojione-monotone", "1.2.1", "40b90004bafb406b59266155ef9b7e1dd67bf2947fc8db8d07388776f4d0d04e"
    ),
}
EMOJIBASE = Source("emojibase-data", "17.0.0", "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a")
EMOJIBASE_URL = "https://emojibase.dev"  # its package.json names no homepage

# The subgroups of each class; the order of the classes is the order of the labels.
CLASSES = {
    "animal": "animal-amphibian animal-bird animal-bug animal-mammal animal-marine animal-reptile",
    "plant": "plant-flower plant-other",
    "food": "food-asian food-fruit food-prepared food-sweet food-vegetable",
    "face": "cat-face face-affection face-concerned face-costume face-glasses face-hand face-hat face-negative "
    "face-neutral-skeptical face-sleepy face-smiling face-tongue face-unwell monkey-face",
    "hand": "body-parts hand-fingers-closed hand-fingers-open hand-fingers-partial hand-prop hand-single-finger hands",
    "vehicle": "transport-air transport-ground transport-water",
    "building": "place-building place-religious",
    "clothing": "clothing",
    "tool": "computer household light-video lock medical music musical-instrument office phone science sound tool "
    "writing",
    "sky": "sky-weather",
    "sport": "award-medal event game sport",
}


def fetch(source: Source, members: Collection[str]) -> list[Any]:
    """Downloads a package, checks its hash and reads some of its JSON files.

    Raises:
        FetchError: npm is missing or cannot get the package.
        ValueError: The tarball is not the recorded one.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    spec = f"{source.package}@{source.version}"
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--loglevel=error", "--ignore-scripts", spec]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FetchError(f"npm could not fetch {spec}: {done.stderr.strip()}")
        tarball = next(Path(folder).glob("*.tgz"))
        found = hashlib.sha256(tarball.read_bytes()).hexdigest()
        if found != source.sha256:
            raise ValueError(f"{spec}: SHA-256 is {found}, expected {source.sha256}")
        with tarfile.open(tarball) as archive:
            archive.extractall(folder, [archive.getmember(f"package/{member}") for member in members], filter="data")
        return [json.loads(Path(folder, "package", member).read_text(encoding="utf-8")) for member in members]


def slug(label: str) -> str:
    """Turns an emoji's label into the name that icon sets give it: "woman's boot" into "womans-boot"."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub("['\u2019]", "", label.lower())).strip("-")


def resolve(icons: Mapping[str, Any], name: str) -> tuple[str, bool]:
    """Follows aliases to the icon that holds the drawing; the flag says whether they mirror it."""
    aliases = icons.get("aliases", {})
    mirrored = False
    while name in aliases:
        mirrored ^= aliases[name].get("hFlip", False)
        name = aliases[name]["parent"]
    return name, mirrored


def draws_another(icons: Mapping[str, Any], name: str, emoji: Collection[str]) -> bool:
    """Whether a set has under an emoji's name the drawing of another emoji.

    Old sets carry aliases from before a name was given to a newer emoji. A mirrored drawing counts as one of its own:
    it is how a set draws the hand that points the other way.
    """
    target, mirrored = resolve(icons, name)
    return target != name and target in emoji and not mirrored


def select(subgroups: Mapping[str, str | None], sets: Collection[Mapping[str, Any]]) -> dict[str, int]:
    """Chooses the emoji that every set draws; gives the label of each, in the order of their names."""
    label_of = {subgroup: label for label, text in enumerate(CLASSES.values()) for subgroup in text.split()}
    return {
        name: label_of[subgroup]
        for name, subgroup in sorted(subgroups.items())
        if subgroup in label_of
        and all(name in icons["icons"] or name in icons.get("aliases", {}) for icons in sets)
        and not any(draws_another(icons, name, subgroups) for icons in sets)
    }


def render(icons: Mapping[str, Any], name: str, size: int) -> np.ndarray:
    """Renders an icon on white as (size, size, 3) uint8 RGB; a view box that is not square is centred.

    Raises:
        ValueError: Nothing was drawn.
    """
    target, mirrored = resolve(icons, name)
    icon = icons["icons"][target]
    width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
    body = f'<g transform="translate({width} 0) scale(-1 1)">{icon["body"]}</g>' if mirrored else icon["body"]
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" color="#000000" '
        f'width="{size}" height="{size}" viewBox="0 0 {width} {height}">{body}</svg>'
    )
    png = resvg_py.svg_to_bytes(svg_string=svg, background="#ffffff", skip_system_fonts=True)
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    if image.min() == image.max():
        raise ValueError(f"{name}: rendered blank")
    return image


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays so that equal arrays give equal files, unlike ``numpy.savez``, which records the time."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in sorted(arrays.items()):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # dated 1980
            entry.create_system = 3  # zipfile would record the system it runs on
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def build(size: int, out: Path) -> None:
    """Writes the dataset to an ``.npz`` file and its record beside it."""
    fetched = {style: fetch(source, ["icons.json", "info.json"]) for style, source in STYLES.items()}
    sets = {style: icons for style, (icons, _) in fetched.items()}
    emoji, groups, emojibase = fetch(EMOJIBASE, ["en/data.json", "meta/groups.json", "package.json"])
    subgroups = {slug(entry["label"]): groups["subgroups"].get(str(entry.get("subgroup"))) for entry in emoji}
    labels = select(subgroups, sets.values())

    arrays = {
        "x": np.array([[render(icons, name, size) for name in labels] for icons in sets.values()]),
        "label": np.array(list(labels.values()), np.int64),
        "name": np.array(list(labels)),
        "styles": np.array(list(STYLES)),
        "classes": np.array(list(CLASSES)),
    }
    record = {
        "sources": [
            {"style": style, **STYLES[style]._asdict(), "licence": info["license"]["spdx"]}
            | {"author": info["author"]["name"], "url": info["author"]["url"]}
            for style, (_, info) in fetched.items()
        ],
        "metadata_source": EMOJIBASE._asdict()
        | {"licence": emojibase["license"], "author": emojibase["author"], "url": EMOJIBASE_URL},
        "size": size,
        "sha256_arrays": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in sorted(arrays.items())},
        "built_with": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("numpy", "pillow", "resvg-py")},
            "resvg": resvg_py.__resvg_version__,
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
        },
    }
    write_npz(out, arrays)
    out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Runs the command line; prints the SHA-256 of the file."""
    parser = argparse.ArgumentParser(description="Rebuild the EmojiStyles dataset from public npm packages.")
    parser.add_argument("--size", type=int, default=64, help="width and height in pixels (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("shiftbed/data/emoji_styles.npz"), help="the file to write")
    options = parser.parse_args()
    if version("resvg-py") != RESVG_PY_VERSION:
        parser.error(f"needs resvg-py {RESVG_PY_VERSION}, found {version('resvg-py')}")
    try:
        build(options.size, options.out)
    except FetchError as error:
        print(error, file=sys.stderr)
        return FETCH_FAILED
    print(f"{hashlib.sha256(options.out.read_bytes()).hexdigest()}  {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
