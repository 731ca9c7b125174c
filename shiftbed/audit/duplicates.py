"""Images that lie in two domains, as they are or encoded anew: whoever trains on one has seen the other's label."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from shiftbed.audit.findings import Finding
from shiftbed.audit.subject import Subject
from shiftbed.data import card, load
from shiftbed.data.dataset import Domain, MultiDomainDataset
from shiftbed.data.load import example_names
from shiftbed.errors import ShiftbedError
from shiftbed.hashing import array_hash
from shiftbed.tables.grids import Entry, Grid

SOURCE = "duplicates"
SIDE = 32  # of the grey thumbnails that are compared
COARSE = 16  # of those that find candidates
SMALLEST = 24  # pixels: smaller images are compared as they are only, since any two digits look alike
ALIKE = 0.98  # the correlation of coarse thumbnails from which two images are compared closely
DIFFERENCE = 0.12  # of thumbnails, over their contrast, below which they are one image
COLOUR = 12.0  # grey levels by which the mean colours of one image may differ
CONTRAST = 4.0  # grey levels: flatter images are like any other flat one
MOST = 4000  # images of a domain, evenly spaced
NAMED = 5  # pairs of domains of which two files are named
WORRYING = 0.005  # the share of a domain from which duplicates are an alarm


class Twins(NamedTuple):
    """Two examples that are one image: domain and position of each, whether pixel by pixel, whether labelled alike."""

    one: tuple[str, int]
    other: tuple[str, int]
    identical: bool
    same_label: bool


def duplicates(subject: Subject) -> Finding:
    """Looks for images of the sweep's datasets that lie in more than one domain."""
    rows: list[dict[str, Any]] = []
    unknown, compared = [], 0
    for dataset in subject.datasets:
        versions = {str(about["version"]) for about in subject.abouts if about["dataset"] == dataset}
        try:
            if {str(card(dataset).version)} != versions:
                raise ShiftbedError("another version")
            data = load(dataset)
        except ShiftbedError:
            unknown.append(dataset)
            continue
        compared += sum(min(len(domain), MOST) for domain in data.domains)
        rows += _rows(data)
    missing = f" {' and '.join(unknown)} of this version is not on this machine." if unknown else ""
    if unknown and not compared:
        return Finding(SOURCE, "unknown", f"the images cannot be compared.{missing}")
    if not rows:
        anew = f"as it is or, from {SMALLEST} pixels a side on, encoded anew"
        sentence = f"none of {compared:,} images lies in two domains, {anew}.{missing}"
        return Finding(SOURCE, "clear", sentence)
    worst = max(rows, key=lambda row: row["share"])
    total = sum(row["images"] for row in rows)
    labelled = sum(row["same_label"] for row in rows)
    words = "1 image lies" if total == 1 else f"{total} images lie"
    sentence = (
        f"{words} in two domains, {labelled} with the same label; {100 * worst['share']:.1f} % of "
        f"{worst['smaller']} of {worst['dataset']} is in {worst['larger']} too.{missing}"
    )
    return Finding(SOURCE, "alarm" if worst["share"] >= WORRYING else "exposed", sentence, [_grid(rows)])


def _rows(data: MultiDomainDataset) -> Iterable[dict[str, Any]]:
    sizes = {domain.name: min(len(domain), MOST) for domain in data.domains}
    found: dict[tuple[str, str], list[Twins]] = defaultdict(list)
    for pair in twins(data.domains):
        found[pair.one[0], pair.other[0]].append(pair)
    for (one, other), pairs in found.items():
        smaller, larger = sorted((one, other), key=lambda name: sizes[name])
        side = 0 if smaller == one else 1
        count = len({pair[side] for pair in pairs})
        yield {
            "dataset": data.card.name,
            "smaller": smaller,
            "larger": larger,
            "images": count,
            "identical": len({pair[side] for pair in pairs if pair.identical}),
            "same_label": len({pair[side] for pair in pairs if pair.same_label}),
            "share": count / sizes[smaller],
            "example": [_named(data.card.name, *pair) for pair in pairs[0][:2]],
        }


def _named(dataset: str, domain: str, place: int) -> str:
    """What a person calls an example: its file, or its place in the domain."""
    return example_names(dataset, domain)[place]


def twins(domains: Sequence[Domain]) -> list[Twins]:
    """All pairs of examples of different domains that are one image."""
    places = {domain.name: _evenly(len(domain)) for domain in domains}
    looks = {domain.name: _Looks(domain, places[domain.name]) for domain in domains}
    found = []
    for one, other in combinations(domains, 2):
        mine, theirs = looks[one.name], looks[other.name]
        same = {(i, j) for i, key in enumerate(mine.hashes) for j in theirs.by_hash.get(key, ())}
        for i, j in sorted(same | set(mine.alike(theirs))):
            first, second = int(places[one.name][i]), int(places[other.name][j])
            labels = int(one.labels[first]) == int(other.labels[second])
            found.append(Twins((one.name, first), (other.name, second), (i, j) in same, labels))
    return found


def _evenly(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(int)) if count else np.arange(0)


class _Looks:
    """What the images of a domain look like: hashes of their pixels, and thumbnails of those that are large enough."""

    def __init__(self, domain: Domain, places: np.ndarray) -> None:
        self.hashes = []
        fine, colours = [], []
        self.large: list[int] = []  # which images have the thumbnails
        for number, place in enumerate(places):
            image = np.ascontiguousarray(domain.inputs[int(place)])
            self.hashes.append(array_hash(image))
            if image.dtype == np.uint8 and image.ndim == 3 and min(image.shape[:2]) >= SMALLEST:
                self.large.append(number)
                fine.append(_shrunk(image.mean(axis=2), SIDE))
                colours.append(np.resize(image.mean(axis=(0, 1)), 3))
        self.by_hash: dict[bytes, list[int]] = defaultdict(list)
        for number, key in enumerate(self.hashes):
            self.by_hash[key].append(number)
        self.fine = np.array(fine, np.float32).reshape(-1, SIDE, SIDE)
        self.colours = np.array(colours, np.float32).reshape(-1, 3)
        factor = SIDE // COARSE
        coarse = self.fine.reshape(-1, COARSE, factor, COARSE, factor).mean(axis=(2, 4)).reshape(-1, COARSE**2)
        centred = coarse - coarse.mean(axis=1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        self.directions = np.where(length > CONTRAST * COARSE, centred / np.maximum(length, 1e-6), 0)

    def alike(self, other: "_Looks") -> Iterable[tuple[int, int]]:
        """Pairs whose coarse thumbnails correlate, and whose fine ones then hardly differ."""
        for i, j in np.argwhere(self.directions @ other.directions.T > ALIKE):
            mine, theirs = self.fine[i], other.fine[j]
            contrast = np.linalg.norm(mine - mine.mean())
            close = np.linalg.norm(mine - theirs) < DIFFERENCE * contrast
            if close and np.abs(self.colours[i] - other.colours[j]).max() < COLOUR:
                yield self.large[i], other.large[j]


def _shrunk(grey: np.ndarray, side: int) -> np.ndarray:
    """An image averaged to a square, each pixel over the rows and columns that it covers."""
    for axis in (0, 1):
        edges = np.linspace(0, grey.shape[axis], side + 1)
        total = np.concatenate([np.zeros_like(grey.take([0], axis)), np.cumsum(grey, axis)], axis)
        low = np.minimum(edges.astype(int), grey.shape[axis] - 1)
        shape = [-1 if one == axis else 1 for one in (0, 1)]
        part = (edges - low).reshape(shape)
        at = total.take(low, axis) * (1 - part) + total.take(low + 1, axis) * part
        grey = np.diff(at, axis=axis) * side / grey.shape[axis]
    return grey


def _grid(rows: list[dict[str, Any]]) -> Grid:
    return Grid(
        title="Images that lie in two domains",
        caption="how many, how many of them pixel by pixel, and how many have the same label in both",
        corner="dataset, domains",
        columns=["images", "share", "identical", "same label"],
        rows=[
            (
                f"{row['dataset']}, {row['smaller']} and {row['larger']}",
                [Entry(str(row["images"])), Entry(f"{100 * row['share']:.1f} %")]
                + [Entry(str(row[key])) for key in ("identical", "same_label")],
            )
            for row in rows
        ],
        notes=[
            f"At most {MOST:,} images of a domain were compared. The share is that of the smaller domain.",
            *(f"Such as {row['example'][0]} and {row['example'][1]}." for row in rows[:NAMED]),
        ],
        data=rows,
    )
