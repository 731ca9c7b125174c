"""Packing, drawing and loading images: each against the bare work it stands on, in one run.

Run: python perf/data.py
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from shiftbed.data.examples import list_folder
from shiftbed.data.pack import decode, packed_index, read_pack, write_pack
from shiftbed.data.prepare import prepare

IMAGES = 1600
BATCH = 96
SIDE = 224
REPEATS = 5
SIZES = (500, 2_000, 8_000)


def make_images(folder: Path, count: int, height: int, width: int, suffix: str = "jpg") -> None:
    """Two domains of two classes of smooth, noisy images of varying size."""
    random = np.random.default_rng(0)
    for i in range(count):
        path = folder / f"domain{i % 2}" / f"class{i // 2 % 2}" / f"{i}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 255, (8, 8, 3), np.uint8))
        grown = coarse.resize((width + i % 7, height), Image.Resampling.BICUBIC)
        grown.save(path, quality=90)


def seconds(work: Callable[[], object]) -> float:
    """How long some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def packing(root: Path) -> None:
    """Images packed a second, against the cores times what one core decodes and reduces in a bare loop."""
    make_images(root / "many", IMAGES, 375, 500)
    listing = list_folder(root / "many")
    sizes = []
    for one in listing.examples:
        with Image.open(one.path) as image:
            sizes.append((image.height, image.width))
    index = packed_index(listing, sizes, None)
    shapes = zip(listing.examples, index["height"].tolist(), index["width"].tolist(), strict=True)
    bare = IMAGES / seconds(lambda: [decode(one.path, height, width) for one, height, width in shapes])
    os.environ["SHIFTBED_DATA"] = str(root / "data")
    card = prepare(str(root / "many")).card
    packed = IMAGES / seconds(lambda: write_pack(listing, card, root / "again"))
    cores = len(os.sched_getaffinity(0))
    print(
        f"packing: {packed:.0f} images/s on {cores} cores; one core bare {bare:.0f}; ratio {packed / cores / bare:.2f}"
    )


def drawing(root: Path) -> None:
    """A batch of 96 at 224 px from a packed domain, against NumPy's gather of the same rows."""
    make_images(root / "even", 400, SIDE, SIDE)
    for path in (root / "even").rglob("*.jpg"):
        with Image.open(path) as image:
            image.crop((0, 0, SIDE, SIDE)).save(path, quality=90)
    os.environ["SHIFTBED_DATA"] = str(root / "data")
    prepare(str(root / "even"))
    domain = read_pack(root / "data" / "packs" / "even").domains[0]
    bare = np.array(domain.inputs)
    rows = np.random.default_rng(1).integers(0, len(domain), (REPEATS, BATCH))
    ours, theirs = [], []
    for chosen in rows:
        ours.append(seconds(lambda chosen=chosen: domain.inputs[chosen]))  # type: ignore[misc]
        theirs.append(seconds(lambda chosen=chosen: bare[chosen]))  # type: ignore[misc]
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"drawing {BATCH} at {SIDE} px: {1e3 * statistics.median(ours):.1f} ms; ratio {ratio:.2f}")


def loading(root: Path) -> None:
    """Opening a pack at three sizes: it depends on the number of domains, not of images."""
    os.environ["SHIFTBED_DATA"] = str(root / "data")
    times = []
    for size in SIZES:
        make_images(root / f"n{size}", size, 8, 8, "png")
        prepare(str(root / f"n{size}"))
        folder = root / "data" / "packs" / f"n{size}"
        times.append(statistics.median(seconds(lambda folder=folder: read_pack(folder)) for _ in range(REPEATS)))  # type: ignore[misc]
    shown = ", ".join(f"{size:,} images {1e3 * spent:.2f} ms" for size, spent in zip(SIZES, times, strict=True))
    print(f"loading: {shown}")


def main() -> None:
    """Prints all three."""
    with tempfile.TemporaryDirectory() as folder:
        for study in (packing, drawing, loading):
            study(Path(folder))


if __name__ == "__main__":
    main()
