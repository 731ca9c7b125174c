"""Where published datasets keep their images: one function for each layout on disk.

A layout gets the folder of the unpacked files (or of the user's copy) and the dataset's card, and lists the examples.
Domains, classes and their order are the card's, never the disk's. What is unpacked may lie at any depth, because every
mirror wraps its files in other folders.
"""

import csv
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shiftbed.data.dataset import Card
from shiftbed.data.examples import Example, Listing, images_in, subfolders, walk_images
from shiftbed.data.finding import (
    class_folders,
    domain_folders,
    existing,
    find_file,
    find_folders,
    lines_of,
    listing_of,
    names_below,
    read_json,
    required_file,
    rows_of,
    without_listed,
)
from shiftbed.errors import DataError

SPAWRIOUS_SHARES = (0.97, 0.87)
UNIQUE_FOLDER = "unique"


def folders(
    raw: Path,
    card: Card,
    *,
    folders: Mapping[str, str] | None = None,
    numbered: bool = False,
    leave_out: str | None = None,
    ignore_other_classes: Sequence[str] = (),
) -> Listing:
    """`domain/class/image`, the layout of most datasets.

    Args:
        raw: The unpacked files.
        card: The dataset's card.
        folders: Patterns of the folder names of those domains whose folder is not called as the domain is.
        numbered: Class folders may be called by the class's number instead of its name.
        leave_out: A file that lists images to leave out, one `domain/class/image` a line.
        ignore_other_classes: Domains whose folder has more classes than the dataset.

    Raises:
        DataError: A domain is missing or there twice, a folder is no class, or the list is needed and missing.
    """
    labels = {name: name for name in card.classes}
    if numbered:
        labels |= {str(number): name for number, name in enumerate(card.classes)}
    examples: list[Example] = []
    for domain, folder in domain_folders(raw, card, card.domains, labels, folders or {}).items():
        examples += class_folders(card, domain, folder, labels, strict=domain not in ignore_other_classes)
    if leave_out:
        examples = without_listed(raw, card, examples, leave_out)
    return listing_of(card, examples)


def camera_traps(raw: Path, card: Card, *, annotations: str, locations: Mapping[str, str]) -> Listing:
    """Terra Incognita: a folder of images, and COCO annotations that say where each was taken and what it shows.

    As DomainBed has it, an image with animals of two classes is an example of each. The annotations are of more images
    than the archive has; those that are not there are left out. Bursts of the camera (`seq_id`) are groups. A copy that
    DomainBed sorted into folders `location_38/bird` needs no annotations.

    Args:
        raw: The unpacked files.
        card: The dataset's card.
        annotations: Pattern of the annotation file's name.
        locations: The camera's location of each domain.
    """
    file = find_file(raw, annotations)
    if file is None:
        return folders(raw, card, folders={domain: f"location_{place}" for domain, place in locations.items()})
    content = read_json(file)
    domains = {place: domain for domain, place in locations.items()}
    images = {image["id"]: image for image in content["images"] if str(image["location"]) in domains}
    labels = {category["id"]: category["name"] for category in content["categories"]}
    on_disk = {path.name: path for path in walk_images(raw)}
    examples = {}
    for annotation in content["annotations"]:
        image, label = images.get(annotation["image_id"]), labels[annotation["category_id"]]
        path = on_disk.get(Path(image["file_name"]).name) if image and label in card.classes else None
        if image and path:
            burst = image.get("seq_id")
            group = None if burst is None else str(burst)
            examples[path, label] = Example(path, domains[str(image["location"])], label, group)
    return listing_of(card, examples.values())


def camelyon17(raw: Path, card: Card) -> Listing:
    """Camelyon17 of WILDS: `metadata.csv` names hospital, slide and label of every patch; slides are groups."""
    file = required_file(raw, card, "metadata.csv")
    examples = []
    for row in rows_of(file, "patient", "node", "x_coord", "y_coord", "tumor", "center", "slide"):
        node = f"patient_{int(row['patient']):03d}_node_{row['node']}"
        path = file.parent / "patches" / node / f"patch_{node}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        label = card.classes[int(row["tumor"])]
        examples.append(Example(path, f"hospital_{row['center']}", label, group=row["slide"]))
    return listing_of(card, existing(card, examples))


def fmow(raw: Path, card: Card, *, periods: Mapping[str, Mapping[str, Sequence]]) -> Listing:
    """FMoW of WILDS: row k of `rgb_metadata.csv` describes `images/rgb_img_k.png`.

    Args:
        raw: The unpacked files.
        card: The dataset's card.
        periods: For each domain its first and last year, and which of the original parts belong to it.
    """
    file = required_file(raw, card, "rgb_metadata.csv")
    examples = []
    for number, row in enumerate(rows_of(file, "timestamp", "split", "category")):
        year = int(row["timestamp"][:4])
        for domain, period in periods.items():
            if period["years"][0] <= year <= period["years"][1] and row["split"] in period["parts"]:
                path = file.parent / "images" / f"rgb_img_{number}.png"
                examples.append(Example(path, domain, row["category"], split=row["split"]))
    return listing_of(card, existing(card, examples))


def nico_splits(raw: Path, card: Card, *, splits: Mapping[str, str], lists: str) -> Listing:
    r"""NICO as OoD-Bench divides it: lists of `bear\on_snow\0.jpg,bear,on_snow,animal` beside `animal` and `vehicle`.

    OoD-Bench's repository has two sets of lists under the same names, and in the first one images are trained on and
    tested.

    Args:
        raw: The unpacked files.
        card: The dataset's card.
        splits: The name of each domain's list.
        lists: The folder of the right lists, where there are others.

    Raises:
        DataError: Files are missing, or the lists are the first ones.
    """
    roots = find_folders(raw, lambda folder, children: set(card.classes) <= set(children))
    if not roots:
        raise DataError(f"{card.name} needs the folders {' and '.join(card.classes)}, and {raw} has none.")
    examples = []
    right = {name: find_file(raw, f"{lists}/{name}") for name in splits.values()}
    for domain, name in splits.items():
        for row in csv.reader(lines_of(right[name] or required_file(raw, card, name))):
            inside, superclass = Path(*row[0].split("\\")), row[3]
            examples.append(Example(roots[0] / superclass / "images" / inside, domain, superclass))
    (fixed,) = card.splits.values()
    trained = {one.path for one in examples if one.domain in fixed.train}
    leaked = [one.path for one in examples if one.domain in fixed.test and one.path in trained]
    if leaked and not all(right.values()):
        raise DataError(f"The lists of {card.name} both train on and test {leaked[0]}; take those of {lists} instead.")
    return listing_of(card, existing(card, examples))


def celeba_splits(raw: Path, card: Card, *, splits: Mapping[str, str], attribute: int) -> Listing:
    """CelebA as OoD-Bench divides it: lists of image names with their 40 attributes, beside `img_align_celeba`.

    Args:
        raw: The unpacked files.
        card: The dataset's card.
        splits: The name of each domain's list.
        attribute: The number of the attribute that is the class, 0 or 1.
    """
    name = "img_align_celeba"
    images = find_folders(raw, lambda folder, children: folder.name == name and name not in children)
    if not images:
        raise DataError(f"{card.name} needs the folder {name} of CelebA's aligned images, and {raw} has none.")
    examples = []
    for domain, file in splits.items():
        for row in rows_of(required_file(raw, card, file), "", str(attribute)):
            examples.append(Example(images[0] / row[""], domain, card.classes[int(row[str(attribute)])]))
    return listing_of(card, existing(card, examples))


def spawrious(
    raw: Path,
    card: Card,
    *,
    train: Mapping[str, Sequence[str]],
    test: Mapping[str, Sequence[str]],
    filler: str | None = None,
) -> Listing:
    """Spawrious: `0/desert/bulldog/image`, in two halves 0 and 1; a challenge says where each breed is seen.

    One to one (with a filler): training group k takes 97 % and 87 % of half k from the breed's place and the rest from
    the filler's, first images by name. Many to many: group k has the breed in its k-th place, all of half 0.

    Args:
        raw: The unpacked files.
        card: The dataset's card: the test domain and two training groups.
        train: The two places of each class, one a training group.
        test: The two places of each class in the test domain.
        filler: The place that weakens the correlation.
    """
    halves = find_folders(raw, lambda folder, children: folder.name == "0" and bool(set(train) & names_below(folder)))
    if not halves:
        raise DataError(f"{card.name} needs folders like 0/desert/{card.classes[0]}, and {raw} has none.")
    tested, *groups = card.domains
    examples: list[Example] = []

    def take(domain: str, half: int, place: str, label: str, rows: slice = slice(None)) -> int:
        folder = halves[0].parent / str(half if filler else 0) / place / label
        images = images_in(folder) if folder.is_dir() else []
        if not images:
            raise DataError(f"{card.name} needs the images of {folder}, and there are none.")
        examples.extend(Example(image, domain, label) for image in images[rows])
        return len(images)

    for label in card.classes:
        for k, domain in enumerate(groups):
            take(tested, k, test[label][k], label)
            if filler is None:
                take(domain, k, train[label][k], label)
                continue
            whole = len(images_in(halves[0].parent / str(k) / train[label][k] / label))
            most = int(SPAWRIOUS_SHARES[k] * whole)
            take(domain, k, train[label][k], label, slice(most))
            take(domain, k, filler, label, slice(whole - most))
    return listing_of(card, examples)


def nico_plus_plus(raw: Path, card: Card) -> Listing:
    """NICO++: common domains as `domain/class/image`, a class's unique ones as `unique/class/domain/image`.

    The paper lists the unique domains of a class by falling size, and so they are numbered here: `uni_1` of a class is
    its largest.
    """
    labels = {name: name for name in card.classes}
    unique = [domain for domain in card.domains if domain.startswith("uni_")]
    common = [domain for domain in card.domains if domain not in unique]
    where = domain_folders(raw, card, [*common, UNIQUE_FOLDER], labels, {})
    root = where.pop(UNIQUE_FOLDER)
    examples: list[Example] = []
    for domain, folder in where.items():
        examples += class_folders(card, domain, folder, labels)
    for label in card.classes:
        images = {folder.name: images_in(folder) for folder in subfolders(root / label)}
        if len(images) != len(unique):
            raise DataError(f"{root / label} has {len(images)} folders; {card.name} has {len(unique)} a class there.")
        by_size = sorted(images.items(), key=lambda item: (-len(item[1]), item[0]))
        for domain, (_, found) in zip(unique, by_size, strict=True):
            examples += [Example(image, domain, label) for image in found]
    return listing_of(card, examples)


def warehouse(raw: Path, card: Card, *, groups: Mapping[str, str]) -> Listing:
    """CIFAR-10-W: a folder with class folders is a domain wherever it sits; its path says which source it is from.

    Not all of the sets can be downloaded: what is missing is said, and the rest is used.

    Args:
        raw: The unpacked files.
        card: The dataset's card, whose clusters are the sources; a domain of no cluster stands for itself.
        groups: For each source, and each domain of no cluster, a pattern to search in the path; the first that fits.
    """
    known = set(card.classes)
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in find_folders(raw, lambda _, children: len(known.intersection(children)) > len(known) // 2):
        path = folder.relative_to(raw).as_posix()
        group = next((name for name, pattern in groups.items() if re.search(pattern, path, re.IGNORECASE)), None)
        if group is None:
            raise DataError(f"{folder} has the classes of {card.name} but is of none of its sources; move it away.")
        found[group].append(folder)
    examples: list[Example] = []
    for group, places in found.items():
        names = card.clusters.get(group, (group,))
        if len(places) > len(names):
            many = f"{raw} has {len(places)} domains of {group} and {card.name} has {len(names)}"
            raise DataError(f"{many}; move away those that are there twice.")
        for name, folder in _numbered(names, places).items():
            examples += class_folders(card, name, folder, {label: label for label in card.classes})
    there = {example.domain for example in examples}
    if not there:
        raise DataError(f"{raw} has no folder with the classes of {card.name} ({', '.join(card.classes)}).")
    _say_missing(card, there)
    return Listing.of(examples, [name for name in card.domains if name in there], card.classes)


def _numbered(names: Sequence[str], places: Sequence[Path]) -> dict[str, Path]:
    """Folders by domain name: by the number that ends the folder's name where that is possible, else in order."""
    numbers = [re.search(r"(\d+)$", place.name) for place in places]
    chosen = [int(match[1]) - 1 if match else -1 for match in numbers]
    if len(set(chosen)) < len(chosen) or not all(0 <= number < len(names) for number in chosen):
        chosen = list(range(len(places)))
    return {names[number]: place for number, place in sorted(zip(chosen, places, strict=True))}


def _say_missing(card: Card, there: set[str]) -> None:
    clustered = [name for names in card.clusters.values() for name in names]
    alone = [name for name in card.domains if name not in clustered]
    if len(there) == len(card.domains):
        return
    parts = {group: sum(name in there for name in names) for group, names in card.clusters.items()}
    sizes = {group: len(names) for group, names in card.clusters.items()}
    less = [f"{group} {n} of {sizes[group]}" for group, n in parts.items() if n < sizes[group]]
    less += [f"{name} missing" for name in alone if name not in there]
    warnings.warn(
        f"{sum(parts.values())} of {len(clustered)} test domains of {card.name} found, and "
        f"{sum(name in there for name in alone)} of {len(alone)} training domains ({', '.join(less)}).",
        stacklevel=2,
    )


LAYOUTS: dict[str, Callable[..., Listing]] = {
    layout.__name__: layout
    for layout in (
        *(folders, camera_traps, camelyon17, fmow, nico_splits),
        *(celeba_splits, spawrious, nico_plus_plus, warehouse),
    )
}
