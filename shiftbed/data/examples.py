"""Examples on disk: a folder `domain/class/image`, or a manifest of paths, classes and domains."""

import csv
import hashlib
import json
import os
import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shiftbed.errors import DataError, plural
from shiftbed.hashing import digest

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
UNREAD_SUFFIXES = {
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jpx", ".jfif", ".jpe", ".tga", ".dcm", ".dicom", ".nii"),
    *(".svs", ".ndpi", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".psd", ".svg", ".eps", ".pdf"),
}  # of files that show pictures and are not read: that they are left out is said
COLUMNS = ("path", "class", "domain")
SHOWN = 64  # files between two looks at the progress, which cost as much as a small file
UNREADABLE = ""  # stands for the hash of a file that cannot be opened, which packing refuses


@dataclass(frozen=True)
class Example:
    """An image file with its class and domain; `group` is what a split may keep together, `split` an official part."""

    path: Path
    domain: str
    label: str
    group: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Listing:
    """All examples of a dataset in a fixed order: by domain, then class, then path.

    Attributes:
        domains: Names in order.
        classes: One list for the whole dataset: a domain that lacks a class keeps the others' numbers.
        examples: Sorted.
    """

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    examples: tuple[Example, ...]

    @classmethod
    def of(cls, examples: Iterable[Example], domains: Sequence[str] = (), classes: Sequence[str] = ()) -> "Listing":
        """Sorts examples; domains and classes are in alphabetical order unless given."""
        found = list(examples)
        domain_names = tuple(domains) or tuple(sorted({example.domain for example in found}))
        class_names = tuple(classes) or tuple(sorted({example.label for example in found}))
        domain_order = {name: i for i, name in enumerate(domain_names)}
        class_order = {name: i for i, name in enumerate(class_names)}
        found.sort(key=lambda one: (domain_order[one.domain], class_order[one.label], str(one.path)))
        return cls(domain_names, class_names, tuple(found))

    def content(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> "Content":
        """Reads every file once, for the fingerprint and the duplicates.

        Args:
            on_progress: Called with the files read and all files.
        """
        hashes = []
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for one in threads.map(_file_hash, [one.path for one in self.examples]):
                hashes.append(one)
                if len(hashes) % SHOWN == 0 or len(hashes) == len(self.examples):
                    on_progress(len(hashes), len(self.examples))
        return Content(self, tuple(hashes))


@dataclass(frozen=True)
class Content:
    """The SHA-256 of every file of a listing."""

    listing: Listing
    hashes: tuple[str, ...]

    def fingerprint(self) -> str:
        """Identifies what the dataset contains: every file's bytes with its class, domain, group and part."""
        pairs = zip(self.listing.examples, self.hashes, strict=True)
        rows = [[one.domain, one.label, one.group, one.split, content] for one, content in pairs]
        return digest([list(self.listing.domains), list(self.listing.classes), rows])[:20]

    def duplicates(self) -> list[list[Example]]:
        """Sets of equal files that lie in more than one domain or official part."""
        by_hash = defaultdict(list)
        for one, content in zip(self.listing.examples, self.hashes, strict=True):
            by_hash[content].append(one)
        by_hash.pop(UNREADABLE, None)
        return [same for same in by_hash.values() if len({(one.domain, one.split) for one in same}) > 1]


def _file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # a link that leads nowhere, say
        return UNREADABLE


def list_folder(folder: Path) -> Listing:
    """The examples of a folder `domain/class/image`.

    Raises:
        DataError: The folder is missing or empty, a domain has no image, or a class is in one domain only.
    """
    if folder.is_file():
        raise DataError(
            f"{folder} is a file; a dataset is a folder of domain/class/image files, or a manifest (.csv, .jsonl, "
            ".ndjson or .parquet)."
        )
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}; a dataset is a folder of domain/class/image files.")
    domains = subfolders(folder)
    if not domains:
        raise DataError(f"{folder} has no folders in it; a dataset is a folder of domain/class/image files.")
    examples, elsewhere, unread = [], images_in(folder), []
    for domain in domains:
        beside = images_in(domain)
        found, others, deeper = [], [], []
        for label in subfolders(domain):
            found += [Example(image, composed(domain.name), composed(label.name)) for image in images_in(label)]
            deeper += [image for inner in subfolders(label) for image in sorted(walk_images(inner))]
            others += files_of(label, UNREAD_SUFFIXES)
        if not found and others:
            raise DataError(
                f"Domain '{domain.name}' in {folder} has no images that are read, only files such as {others[0]}; save "
                "them as .jpg or .png."
            )
        if not found:
            has = "no images"
            if beside or deeper:
                where = "in no class" if beside else "in folders that are too deep"
                has = f"{plural(len(beside or deeper), 'image')} {where}, such as {(beside or deeper)[0]}"
            raise DataError(f"Domain '{domain.name}' in {folder} has {has}; they belong in {domain}/CLASS/.")
        examples += found
        elsewhere += beside + deeper
        unread += others
    if elsewhere:
        warnings.warn(
            f"Not used: {plural(len(elsewhere), 'image')} at another depth than domain/class/image, such as "
            f"{elsewhere[0]}.",
            stacklevel=4,
        )
    if unread:
        warnings.warn(
            f"Not used: {plural(len(unread), 'file')} of a kind that is not read, such as {unread[0]}; save them as "
            ".jpg or .png.",
            stacklevel=4,
        )
    listing = Listing.of(examples)
    _refuse_lone_classes(listing)
    return listing


def composed(name: str) -> str:
    """A name as keyboards write it: some file systems take letters and their accents apart."""
    return unicodedata.normalize("NFC", name)


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name; hidden ones and what archives of macOS add are left out."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _is(entry.is_dir)]
    return [folder / name for name in sorted(names) if not name.startswith((".", "__MACOSX"))]


def _is(question: Callable[[], bool]) -> bool:
    """What the system says of a file; of a link that leads to itself, or a name that is too long, it is no."""
    try:
        return question()
    except OSError:
        return False


def images_in(folder: Path) -> list[Path]:
    """The image files in a folder, by name."""
    return files_of(folder, IMAGE_SUFFIXES)


def files_of(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files in a folder whose names end so, by name; hidden ones are left out."""
    with os.scandir(folder) as entries:
        images = (entry for entry in entries if Path(entry.name).suffix.lower() in suffixes)
        names = [entry.name for entry in images if not entry.is_dir(follow_symlinks=False)]
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def walk_images(raw: Path) -> Iterator[Path]:
    """All images below a folder."""
    waiting, seen = [raw], {raw.resolve()}
    while waiting:
        folder = waiting.pop()
        yield from images_in(folder)
        waiting += not_seen(subfolders(folder), seen)


def images_below(folder: Path) -> list[Path]:
    """All images below a folder that someone named, in the order of their paths.

    Raises:
        DataError: There are none.
    """
    files = sorted(walk_images(folder))
    if not files:
        raise DataError(f"There are no images in {folder} or the folders below it; name a folder of images.")
    return files


def not_seen(folders: list[Path], seen: set[Path]) -> list[Path]:
    """Those that have not been looked into, which are noted: a link may lead back to where it lies."""
    fresh = {folder: folder.resolve() for folder in folders}
    left = [folder for folder, real in fresh.items() if real not in seen]
    seen.update(fresh.values())
    return left


def _refuse_lone_classes(listing: Listing) -> None:
    """A class of one domain is a misspelt folder more often than not, and no other domain could be trained for it."""
    where = defaultdict(set)
    for one in listing.examples:
        where[one.label].add(one.domain)
    lone = [(label, next(iter(domains))) for label, domains in where.items() if len(domains) == 1]
    if lone and len(listing.domains) > 1:
        label, domain = lone[0]
        raise DataError(
            f"Class '{label}' is in domain '{domain}' only, so no other domain can train or test it; rename it or "
            f"remove its images (the classes are {', '.join(sorted(where))})."
        )


def list_manifest(manifest: Path) -> Listing:
    """The examples of a manifest: CSV, JSON lines or Parquet with path, class, domain and optional group and split.

    Paths are relative to the manifest's folder, or absolute.

    Raises:
        DataError: A column or a file is missing, nothing is listed, or a class is in one domain only.
    """
    # Spreadsheets also write rows of empty cells.
    rows = [(number, row) for number, row in enumerate(_manifest_rows(manifest), start=1) if any(row.values())]
    if not rows:
        raise DataError(f"{manifest} lists no images.")
    columns = [str(name) for name in rows[0][1] if name]
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        apart = "; separate cells with commas" if len(columns) == 1 and re.search(r"[;\t|]", columns[0]) else ""
        needs = f"it needs {', '.join(COLUMNS)} and has {', '.join(columns)}{apart}"
        raise DataError(f"{manifest} has no column '{missing[0]}'; {needs}.")
    examples: list[Example] = []
    seen: dict[Example, int] = {}
    for number, row in rows:
        if None in row:  # where csv keeps what no column is for
            raise DataError(f"Row {number} of {manifest} has more cells than columns; put cells with commas in quotes.")
        values = {name: _cell(row.get(name), name) for name in (*COLUMNS, "group", "split")}
        if values["path"] is None or values["class"] is None or values["domain"] is None:
            empty = next(name for name in COLUMNS if values[name] is None)
            advice = "; leave images without labels out, and name their folder with --on" if empty == "class" else ""
            raise DataError(f"Row {number} of {manifest} has no {empty}{advice}.")
        # Absolute, so that those beside the manifest have a folder in common with those given in full; not resolved, so
        # that their order, and with it the dataset's version, stays what it was.
        path = (manifest.parent / values["path"]).absolute()
        if not _is(path.is_file):
            raise DataError(f"Row {number} of {manifest} names {values['path']}, which is not a file beside it.")
        one = Example(path, values["domain"], values["class"])
        if one in seen:  # a copy of it could be trained on and the other validated or tested
            rows_of_it = f"Rows {seen[one]} and {number} of {manifest}"
            raise DataError(f"{rows_of_it} list {values['path']} twice for its class and domain; remove one of them.")
        seen[one] = number
        examples.append(replace(one, group=values["group"], split=values["split"]))
    unused = [name for name in columns if name not in (*COLUMNS, "group", "split")]
    if unused:
        warnings.warn(
            f"Not used: the column{'s' if len(unused) > 1 else ''} {', '.join(unused)} of {manifest}; what says which "
            "images belong together, such as a patient, is named group.",
            stacklevel=4,
        )
    listing = Listing.of(examples)
    _refuse_lone_classes(listing)
    return listing


def _cell(value: object, column: str) -> str | None:
    """A manifest's cell as text, None where it is empty; space around a name is no part of it, in a path it may be."""
    text = "" if value is None else str(value)
    return (text if column == "path" else composed(text.strip())) or None


def _csv_rows(file: Iterable[str]) -> list[dict[str, Any]]:
    reader = csv.DictReader(file)
    names = [name.strip() for name in reader.fieldnames or []]  # as _cell takes space off names
    for name in (*COLUMNS, "group", "split"):
        if names.count(name) > 1:
            raise ValueError(f"it has two columns named {name}; rename or remove one of them")
    reader.fieldnames = names
    return list(reader)


def _parquet_rows(manifest: Path) -> list[dict[str, Any]]:
    import duckdb

    try:
        table = duckdb.connect().execute("select * from read_parquet(?)", [str(manifest)])
        names = [column[0] for column in table.description or []]
        return [dict(zip(names, row, strict=True)) for row in table.fetchall()]
    except duckdb.Error as error:
        raise DataError(f"{manifest} cannot be read: {error}.") from error


def _manifest_rows(manifest: Path) -> list[dict[str, Any]]:
    if not manifest.is_file():
        raise DataError(f"There is no manifest {manifest}.")
    try:
        kind = manifest.suffix.lower()
        if kind == ".csv":
            with manifest.open(newline="", encoding="utf-8-sig") as file:
                return _csv_rows(file)
        if kind in (".jsonl", ".ndjson"):
            lines = manifest.read_text(encoding="utf-8-sig").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
            for number, row in enumerate(rows, start=1):
                if not isinstance(row, dict):
                    raise DataError(f"Row {number} of {manifest} is no object of path, class and domain.")
            return rows
        if kind == ".parquet":
            return _parquet_rows(manifest)
    except UnicodeDecodeError as error:
        raise DataError(f"{manifest} is not in UTF-8; save it as UTF-8.") from error
    except (ValueError, csv.Error) as error:
        raise DataError(f"{manifest} cannot be read: {error}.") from error
    raise DataError(f"{manifest} is no manifest: it must end in .csv, .jsonl or .parquet.")
