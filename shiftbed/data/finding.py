"""Finding images, folders and lists below a folder, at whatever depth a mirror has wrapped them."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from shiftbed.data.dataset import Card
from shiftbed.data.examples import Example, Listing, images_in, not_seen, subfolders
from shiftbed.errors import DataError


def domain_folders(
    raw: Path, card: Card, domains: Iterable[str], labels: Mapping[str, str], patterns: Mapping[str, str]
) -> dict[str, Path]:
    """The folder of every domain: one of the right name that has a class in it."""
    names = {domain: patterns.get(domain, escape(domain)).lower() for domain in domains}

    def fits(folder: Path, domain: str) -> bool:
        return fnmatchcase(folder.name.lower(), names[domain])

    # A class inside is not enough: NICO++ has a class `train` and keeps all its domains in a folder of that name.
    candidates = find_folders(
        raw, lambda folder, inside: any(fits(folder, one) for one in names) and any(name in labels for name in inside)
    )
    where = {domain: [folder for folder in candidates if fits(folder, domain)] for domain in names}
    twice = [domain for domain, fitting in where.items() if len(fitting) > 1]
    if twice:
        first, second, *_ = where[twice[0]]
        raise DataError(f"Domain '{twice[0]}' of {card.name} is there twice, {first} and {second}; move one away.")
    missing = [f"{one} (a folder {names[one]})" if one in patterns else one for one in names if not where[one]]
    if missing:
        raise DataError(
            f"{card.name} has the domains {', '.join(card.domains)}, but below {raw} there is no folder with its "
            f"classes for {', '.join(missing)} ({card.source})."
        )
    return {domain: fitting[0] for domain, fitting in where.items()}


def class_folders(
    card: Card, domain: str, folder: Path, labels: Mapping[str, str], strict: bool = True
) -> list[Example]:
    """The examples of one domain; a folder of images that is no class would be lost silently, and is refused."""
    examples: list[Example] = []
    for child in subfolders(folder):
        if child.name in labels:
            examples += [Example(image, domain, labels[child.name]) for image in images_in(child)]
        elif strict and images_in(child):
            raise DataError(f"{child} is in domain '{domain}' but no class of {card.name}; rename it or move it away.")
    return examples


def without_listed(raw: Path, card: Card, examples: list[Example], name: str) -> list[Example]:
    """Leaves out what a published list names; a copy that was cleaned before needs no list."""
    file = find_file(raw, name)
    if file is not None:
        listed = {line.strip() for line in lines_of(file)}
        return [one for one in examples if "/".join(one.path.parts[-3:]) not in listed]
    total = sum(card.domains.values())
    if len(examples) > total:
        raise DataError(
            f"{raw} has {len(examples):,} images and {card.name} has {total:,}: the list of those to leave out, "
            f"{name}, is not beside them; put it into {raw}."
        )
    return examples


def listing_of(card: Card, examples: Iterable[Example]) -> Listing:
    """Sorted as the card has it, after a look for domains and classes that the card lacks or the disk does."""
    found = list(examples)
    counts = Counter(one.domain for one in found)
    wrong = sorted({*counts} - {*card.domains}) or sorted({one.label for one in found} - {*card.classes})
    if wrong:
        raise DataError(f"The files of {card.name} name '{wrong[0]}', which its card does not have.")
    empty = [domain for domain in card.domains if not counts[domain]]
    if empty:
        raise DataError(f"The files of {card.name} have no image of domain '{empty[0]}'.")
    return Listing.of(found, tuple(card.domains), card.classes)


def existing(card: Card, examples: list[Example]) -> list[Example]:
    """The examples, after a look whether all their files are there."""
    missing = [one.path for one in examples if not one.path.is_file()]
    if missing:
        raise DataError(f"{len(missing):,} images that the lists of {card.name} name are missing, as {missing[0]}.")
    return examples


def names_below(folder: Path) -> set[str]:
    """The names two levels below a folder."""
    return {inner.name for child in subfolders(folder) for inner in subfolders(child)}


def find_folders(raw: Path, wanted: Callable[[Path, list[str]], bool]) -> list[Path]:
    """Every folder that is wanted, given its path and its subfolders' names; inside one there is no second search."""
    found, waiting, seen = [], [raw], {raw.resolve()}
    while waiting:
        folder = waiting.pop()
        children = subfolders(folder)
        if wanted(folder, [child.name for child in children]):
            found.append(folder)
        else:
            waiting += not_seen(children, seen)
    return sorted(found)


def find_file(raw: Path, pattern: str) -> Path | None:
    """The file of this name that is nearest to the top."""
    fitting = [path for path in raw.rglob(pattern) if path.is_file() and not path.name.startswith(".")]
    return min(fitting, key=lambda path: (len(path.parts), path), default=None)


def required_file(raw: Path, card: Card, name: str) -> Path:
    """The file of this name; that there is none is said with the dataset's source."""
    file = find_file(raw, name)
    if file is None:
        raise DataError(f"{card.name} needs the file {name}, and {raw} has none ({card.source}).")
    return file


def lines_of(file: Path) -> list[str]:
    """The lines of a text file."""
    return file.read_text(encoding="utf-8").splitlines()


def rows_of(file: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file that has at least these columns."""
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{file} has no column '{missing[0]}'; it is not the published file.")
        return list(reader)


def read_json(file: Path) -> dict[str, list[dict]]:
    """The content of a JSON file."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} cannot be read ({error}); get it again.") from error
