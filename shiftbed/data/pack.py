"""Packs: images decoded once into one memory-mapped uint8 file, so that no epoch decodes a JPEG again.

Images of one size are packed at it. Others are reduced with Lanczos to 288 px on the short side (never to the crop
size: cropping a 224 px copy again would lose over half of the fine detail), with the original height and width kept
beside them, so that crops can be drawn in the original geometry.

A pack is a folder: `pixels.u8` (all images, one after another), `index.npy` (one row an image), `labels.npy`, perhaps
`groups.npy`, and `pack.json` (the card, and which domains have images of one size). It is written as `NAME.partial`
with a journal of finished blocks and renamed when it is whole: interrupted at any point, it continues.
"""

import errno
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.data.arrays import FORMAT, read_arrays, write_description
from shiftbed.data.dataset import Card, Domain, MultiDomainDataset
from shiftbed.data.examples import Listing
from shiftbed.data.images import Refused, decode, image_size
from shiftbed.data.writing import save_array, sole_writer
from shiftbed.errors import DataError, plural
from shiftbed.hashing import canonical, digest

SHORT_SIDE = 288
BLOCK = 64
CHANNELS = 3
SYNC_SECONDS = 2.0
SHOWN = 10
JOURNAL = "journal.jsonl"
FILES = "files.json"
REFUSED = "refused.txt"
INDEX = np.dtype(
    [
        ("offset", "<i8"),
        ("height", "<i4"),
        ("width", "<i4"),
        ("original_height", "<i4"),
        ("original_width", "<i4"),
    ]
)


class NotWholeError(DataError):
    """A pack of which a part is missing, as an interrupted copy leaves it; `prepare` makes it anew."""


class RaggedImages(Sequence[np.ndarray]):
    """Packed images of different sizes: each is a view into the memory map.

    Attributes:
        rows: Rows of the pack's index: where each image is, its size, and its size before reduction.
    """

    def __init__(self, pixels: np.ndarray, rows: np.ndarray) -> None:
        self._pixels = pixels
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def original_sizes(self) -> np.ndarray:
        """Height and width of each before reduction, N×2."""
        return np.stack([self.rows["original_height"], self.rows["original_width"]], axis=1)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int or slice, as of any sequence; or numbers
        if isinstance(position, slice | np.ndarray):
            return RaggedImages(self._pixels, self.rows[position])
        row = self.rows[position]
        shape = (int(row["height"]), int(row["width"]), CHANNELS)
        start = int(row["offset"])
        return self._pixels[start : start + shape[0] * shape[1] * CHANNELS].reshape(shape)


def packed_index(listing: Listing, sizes: Sequence[tuple[int, int]], short_side: int | None) -> np.ndarray:
    """Where every image goes and how large it will be.

    Args:
        listing: The examples.
        sizes: Height and width of each.
        short_side: The side to reduce to; by default nothing is reduced if all images have one size, and otherwise 288.
            No image is enlarged.
    """
    index = np.zeros(len(listing.examples), INDEX)
    index["original_height"], index["original_width"] = np.array(sizes).T
    short = np.array(sizes).min(axis=1)
    if short_side is None and len(set(sizes)) > 1:
        short_side = SHORT_SIDE
    scale = np.minimum(1.0, short_side / short) if short_side else np.ones(len(short))
    for side in ("height", "width"):
        index[side] = np.maximum(1, np.rint(index[f"original_{side}"] * scale))
    lengths = index["height"].astype(np.int64) * index["width"] * CHANNELS
    index["offset"] = np.cumsum(lengths) - lengths
    return index


def write_pack(
    listing: Listing,
    card: Card,
    target: Path,
    *,
    content: str = "",
    short_side: int | None = None,
    skip_refused: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Refused]:
    """Packs a dataset; interrupted, it continues where it was, unless the files are others now.

    Args:
        listing: The examples.
        card: What the pack will say of itself; its counts become those of what was packed.
        target: The pack's folder, which appears when it is whole.
        content: The fingerprint of the files.
        short_side: See `packed_index`.
        skip_refused: Go on without images that cannot be read.
        on_progress: Called with the images done and all images.

    Returns:
        The images that were left out.

    Raises:
        DataError: Images cannot be read and are not to be skipped, the disk is full, or somebody else is packing this.
    """
    with sole_writer(target) as unfinished, _threads() as threads:
        sizes = list(threads.map(image_size, [one.path for one in listing.examples]))
        refused = [size for size in sizes if isinstance(size, Refused)]
        some_size = next((size for size in sizes if isinstance(size, tuple)), (2, 2))  # what is refused changes nothing
        index = packed_index(listing, [size if isinstance(size, tuple) else some_size for size in sizes], short_side)
        bad_headers = {one.path for one in refused}
        refused += _decode_all(unfinished, listing, content, index, bad_headers, threads, on_progress)
        if refused and not skip_refused:
            raise DataError(_refusal(refused, unfinished / REFUSED))
        (unfinished / REFUSED).unlink(missing_ok=True)
        if refused:
            _refusal(refused, unfinished / REFUSED)
            bad = {one.path for one in refused}
            good = np.array([one.path not in bad for one in listing.examples])
            kept = [one for one in listing.examples if one.path not in bad]
            empty = sorted(set(listing.domains) - {one.domain for one in kept})
            if empty:
                raise DataError(f"None of the images of domain '{empty[0]}' can be read; repair them or remove it.")
            (unfinished / JOURNAL).unlink()  # from here on the blocks are not where it says
            index = _close_gaps(unfinished / "pixels.u8", index, good)
            listing = Listing.of(kept, listing.domains, listing.classes)
        _describe(unfinished, index, card, listing)
    return refused


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """One thread a core: Pillow decodes outside the interpreter. Interrupted, they drop what waits."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Journal:
    """Which blocks of a pack are on disk, and what was refused in them.

    Args:
        path: The journal's file.
        plan: Identifies what is being packed; the journal of another plan is thrown away.
    """

    def __init__(self, path: Path, plan: str) -> None:
        self.blocks: set[int] = set()
        self.refused: list[Refused] = []
        lines = path.read_text().splitlines() if path.exists() else []
        if lines[:1] != [plan]:
            path.write_text(f"{plan}\n")
        for line in lines[1:] if lines[:1] == [plan] else []:
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a crash
                break
            self.blocks.add(entry["block"])
            self.refused += [Refused(Path(bad), why) for bad, why in entry["refused"]]
        self._file = path.open("a")
        self._waiting: list[bytes] = []
        self._last = time.monotonic()

    def add(self, block: int, refused: list[Refused], pixels: int, at_once: bool) -> None:
        """Notes a block; notes are written after the pixels are, every few seconds and when asked."""
        self.blocks.add(block)
        self.refused += refused
        self._waiting.append(canonical({"block": block, "refused": [[str(bad.path), bad.why] for bad in refused]}))
        if at_once or time.monotonic() - self._last > SYNC_SECONDS:
            os.fsync(pixels)
            self._file.write("".join(f"{line.decode()}\n" for line in self._waiting))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._waiting, self._last = [], time.monotonic()

    def close(self) -> None:
        """Closes the file; what is not written is packed again."""
        self._file.close()


def _decode_all(
    folder: Path,
    listing: Listing,
    content: str,
    index: np.ndarray,
    known_bad: set[Path],
    threads: ThreadPoolExecutor,
    on_progress: Callable[[int, int], None],
) -> list[Refused]:
    """Decodes every block that the journal does not list; returns what was refused in any of them."""
    paths = [one.path for one in listing.examples]
    pixels, fresh = _allocate(folder / "pixels.u8", int(index["offset"][-1] + _lengths(index)[-1]))
    if fresh:
        (folder / JOURNAL).unlink(missing_ok=True)
    journal = _Journal(folder / JOURNAL, digest([content, [str(path) for path in paths], index.tolist()]))

    def decode_block(block: int) -> tuple[int, list[Refused]]:
        refused = []
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(paths))):
            if paths[i] in known_bad:
                continue
            image = decode(paths[i], int(index["height"][i]), int(index["width"][i]))
            if isinstance(image, Refused):
                refused.append(image)
            else:
                _write_at(pixels, image, int(index["offset"][i]))
        _start_writing(pixels)
        return block, refused

    waiting = [block for block in range(-(-len(paths) // BLOCK)) if block not in journal.blocks]
    on_progress(len(paths) - sum(min(BLOCK, len(paths) - block * BLOCK) for block in waiting), len(paths))
    try:
        for number, (block, refused) in enumerate(threads.map(decode_block, waiting), start=1):
            journal.add(block, refused, pixels, at_once=number == len(waiting))
            left = sum(min(BLOCK, len(paths) - later * BLOCK) for later in waiting[number:])
            on_progress(len(paths) - left, len(paths))
    finally:
        threads.shutdown(cancel_futures=True)  # no thread writes into a closed file
        os.close(pixels)
        journal.close()
    return journal.refused


def _lengths(index: np.ndarray) -> np.ndarray:
    return index["height"].astype(np.int64) * index["width"] * CHANNELS


def _write_at(file: int, image: np.ndarray, offset: int) -> None:
    """Writes an image's bytes; a full disk is an error here, where a memory map would end the process."""
    if os.pwrite(file, np.ascontiguousarray(image).data, offset) < image.size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _start_writing(file: int) -> None:
    """Has the system write to the disk what it holds of a file while others decode: nothing waits at the end."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _allocate(path: Path, size: int) -> tuple[int, bool]:
    """Opens a file of the final size to write into, and says whether it is new.

    Raises:
        DataError: The disk is too small, which is noticed before work is done.
    """
    have = path.stat().st_size if path.exists() else 0
    free = shutil.disk_usage(path.parent).free
    if size - have > free:
        needs = f"{size / 1e6:,.1f} MB and {path.parent} has {free / 1e6:,.1f} MB free"
        raise DataError(f"The disk is too small: the pack needs {needs}; make room or choose another SHIFTBED_DATA.")
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    os.truncate(file, size)
    return file, have != size


def _close_gaps(path: Path, index: np.ndarray, good: np.ndarray) -> np.ndarray:
    """Moves images down over those that were left out; returns the index of the others."""
    kept = index[good].copy()
    lengths = _lengths(kept)
    kept["offset"] = np.cumsum(lengths) - lengths
    pixels = np.memmap(path, np.uint8, "r+")
    for old, new, length in zip(index[good]["offset"], kept["offset"], lengths, strict=True):
        pixels[new : new + length] = pixels[old : old + length].copy()
    pixels.flush()
    os.truncate(path, int(lengths.sum()))
    return kept


def _describe(folder: Path, index: np.ndarray, card: Card, listing: Listing) -> None:
    """Writes what is known of the images, and removes what only the writing needed."""
    save_array(folder / "index.npy", index)
    class_numbers = {name: number for number, name in enumerate(listing.classes)}
    save_array(folder / "labels.npy", np.array([class_numbers[one.label] for one in listing.examples], np.int64))
    named = {name: number for number, name in enumerate(sorted({one.group for one in listing.examples if one.group}))}
    if named:  # an example without a group is one of its own
        groups = [named[one.group] if one.group else len(named) + i for i, one in enumerate(listing.examples)]
        save_array(folder / "groups.npy", np.array(groups, np.int64))
    (folder / FILES).write_text(json.dumps(_names(listing)), encoding="utf-8")
    domains = np.array([listing.domains.index(one.domain) for one in listing.examples])
    counts, sizes = {}, {}
    for number, name in enumerate(listing.domains):
        rows = index[domains == number]
        shapes = set(zip(rows["height"].tolist(), rows["width"].tolist(), strict=True))
        counts[name], sizes[name] = len(rows), shapes.pop() if len(shapes) == 1 else None
    described = card.model_copy(update={"domains": counts})
    if card.input_shape is not None:  # which images that were reduced do not have
        all_shapes = set(zip(index["height"].tolist(), index["width"].tolist(), strict=True))
        shape = (CHANNELS, *all_shapes.pop()) if len(all_shapes) == 1 else None
        described = described.model_copy(update={"input_shape": shape})
    write_description(folder, "images", described, sizes=sizes)
    (folder / JOURNAL).unlink(missing_ok=True)


def _names(listing: Listing) -> list[str]:
    """What the files are called, from the folder on that all lie in."""
    top = os.path.commonpath([one.path.parent for one in listing.examples])
    return [one.path.relative_to(top).as_posix() for one in listing.examples]


def has_names_of(folder: Path, listing: Listing) -> bool:
    """Whether a pack knows its files by the names that they have now; those that were left out are not compared."""
    bad = {one.path for one in read_refused(folder)}
    kept = [one for one in listing.examples if one.path not in bad]
    packed = [name for names in file_names(folder).values() for name in names]
    return packed == _names(Listing(listing.domains, listing.classes, tuple(kept)))


def read_refused(folder: Path) -> list[Refused]:
    """The images that a pack was made without."""
    report = folder / REFUSED
    lines = report.read_text().splitlines() if report.exists() else []
    return [Refused(Path(path), why) for path, _, why in (line.partition("\t") for line in lines)]


def _refusal(refused: list[Refused], report: Path) -> str:
    report.write_text("".join(f"{one.path}\t{one.why}\n" for one in refused))
    shown = "; ".join(f"{one.path}: {one.why}" for one in refused[:SHOWN])
    more = f"; all are listed in {report}" if len(refused) > SHOWN else ""
    return (
        f"{plural(len(refused), 'image')} cannot be packed ({shown}{more}); repair or remove what is damaged, or "
        "run `shiftbed prepare` with --skip-corrupt."
    )


def read_card(folder: Path) -> Card:
    """The card of a pack."""
    return Card(**_read_description(folder)["card"])


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "pack.json").read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder} is not a pack; `shiftbed prepare` makes one.") from None
    except ValueError as error:
        raise _not_whole(folder, "pack.json") from error
    if content["format"] > FORMAT:
        raise DataError(f"The pack {folder} was written by a newer shiftbed; update shiftbed or prepare it again.")
    return content


def _not_whole(folder: Path, what: str) -> NotWholeError:
    return NotWholeError(
        f"The pack {folder} is not whole ({what.rstrip('.')}); copy it again, or make it again with `shiftbed prepare`."
    )


def read_pack(folder: Path) -> MultiDomainDataset:
    """Opens a pack; no image is read until it is asked for.

    Raises:
        DataError: The folder is no pack, or one of a newer shiftbed.
        NotWholeError: A part of it is missing.
    """
    content = _read_description(folder)
    card = Card(**content["card"])
    if content["kind"] == "arrays":
        try:
            return MultiDomainDataset(card, tuple(read_arrays(folder, card.domains)))
        except (FileNotFoundError, EOFError, ValueError) as error:
            raise _not_whole(folder, str(error)) from error
    try:
        index, labels, groups = (_map(folder / f"{name}.npy") for name in ("index", "labels", "groups"))
        pixels = np.memmap(folder / "pixels.u8", np.uint8, "r")
    except (FileNotFoundError, EOFError, ValueError) as error:
        raise _not_whole(folder, str(error)) from error
    if index is None or labels is None:
        raise _not_whole(folder, "index.npy or labels.npy")
    if len(pixels) != index["offset"][-1] + _lengths(index[-1:])[0]:
        raise _not_whole(folder, "pixels.u8")
    domains, start = [], 0
    for name, count in card.domains.items():
        here = slice(start, start + count)
        images: np.ndarray | RaggedImages = RaggedImages(pixels, index[here])
        if content["sizes"][name] is not None:
            shape = (count, *content["sizes"][name], CHANNELS)
            first = int(index["offset"][start])
            images = pixels[first : first + math.prod(shape)].reshape(shape)
        domains.append(Domain(name, images, labels[here], None if groups is None else groups[here]))
        start += count
    return MultiDomainDataset(card, tuple(domains))


def file_names(folder: Path) -> dict[str, list[str]]:
    """Of every domain of a pack of images, the files they came from; nothing for a pack of arrays."""
    path = folder / FILES
    if not path.exists():
        return {}
    names = iter(json.loads(path.read_bytes()))
    return {domain: list(islice(names, count)) for domain, count in read_card(folder).domains.items()}


def _map(path: Path) -> np.ndarray | None:
    return np.load(path, mmap_mode="r") if path.exists() else None
