"""The MNIST family: coloured and rotated digits (or clothes) from the original IDX files.

DomainBed makes these domains anew in every run, from the run's seed, so that algorithms and draws see different data.
Here a version is made once, with a seed of its own. `coloured_study` makes ColoredMNIST with other numbers.
"""

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import scipy  # its parts load when they are first used

from shiftbed.data.dataset import DATASETS, Archive, Card, DatasetEntry, Domain, FixedDomains, MultiDomainDataset
from shiftbed.errors import DataError
from shiftbed.hashing import digest

CONSTRUCTION_SEED = 0
LABEL_NOISE = 0.25
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 60_000),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 10_000),
}
DOMAINBED_FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
ANGLES = (0, 15, 30, 45, 60, 75)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """One IDX file, packed or not, anywhere below a folder.

    Raises:
        DataError: It is missing or is no IDX file.
    """
    found = sorted([*folder.rglob(name), *folder.rglob(f"{name}.gz")])
    if not found:
        raise DataError(f"There is no file {name} (or {name}.gz) below {folder}.")
    raw = found[0].read_bytes()
    try:
        data = gzip.decompress(raw) if found[0].suffix == ".gz" else raw
        zero, kind, dimensions = struct.unpack(">HBB", data[:4])
        shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
        if zero != 0 or kind != 8:
            raise ValueError("its header is another")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (ValueError, EOFError, struct.error, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{found[0]} is no IDX file of bytes ({error}); get it again.") from error


def read_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images N×28×28 and labels of the official training or test part.

    Raises:
        DataError: The number of images is not the official one.
    """
    image_file, label_file, count = FILES[part]
    images, labels = read_idx(folder, image_file), read_idx(folder, label_file)
    if len(images) != count or len(labels) != count:
        raise DataError(f"{image_file} below {folder} has {len(images)} images and {len(labels)} labels, not {count}.")
    return images, labels


def pooled(folder: Path, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Both official parts together in random order, as DomainBed pools them."""
    (images, labels), (more_images, more_labels) = read_part(folder, "train"), read_part(folder, "test")
    order = random.permutation(len(labels) + len(more_labels))
    return np.concatenate([images, more_images])[order], np.concatenate([labels, more_labels])[order]


def colour(
    name: str,
    grey: np.ndarray,
    classes: np.ndarray,
    flip: float,
    random: np.random.Generator,
    blue: tuple[float, float] | None = None,
) -> Domain:
    """A domain of coloured images: label = (class < 5) flipped with 0.25, colour = label flipped with `flip`.

    Args:
        name: The domain's name.
        grey: Images N×H×W.
        classes: Their ten-way classes.
        flip: How often the colour disagrees with the label.
        random: Where the flips come from.
        blue: Mean and deviation of a blue share (a normal truncated to [0, 1]), taken from the red or green.
    """
    labels = (classes < 5) ^ (random.random(len(grey)) < LABEL_NOISE)
    colours = (labels ^ (random.random(len(grey)) < flip)).astype(int)
    inputs = np.zeros((*grey.shape, 2 if blue is None else 3), np.uint8)
    share = np.zeros(len(grey))
    if blue is not None:
        mean, deviation = blue
        bounds = ((0 - mean) / deviation, (1 - mean) / deviation)
        share = scipy.stats.truncnorm.rvs(*bounds, mean, deviation, size=len(grey), random_state=random)
        inputs[..., 2] = np.rint(grey * share[:, None, None])
    inputs[np.arange(len(grey)), :, :, colours] = np.rint(grey * (1 - share)[:, None, None])
    return Domain(name, inputs, labels.astype(np.int64))


def coloured_as_domainbed(folder: Path) -> list[Domain]:
    """Three domains of every third image, whose colours disagree with the labels in 10, 20 and 90 % of cases."""
    random = np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED))
    images, classes = pooled(folder, random)
    return [
        colour(name, images[i::3], classes[i::3], flip, random)
        for i, (name, flip) in enumerate(DOMAINBED_FLIPS.items())
    ]


def coloured_as_ood_bench(folder: Path) -> list[Domain]:
    """Training images only, every second pixel: two training domains of 25,000, and the last 10,000 are tested."""
    random = np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED))
    images, classes = _small_training_images(folder, random)
    parts = (slice(0, 50_000, 2), slice(1, 50_000, 2), slice(50_000, None))
    flips = zip(DOMAINBED_FLIPS.items(), parts, strict=True)
    return [colour(name, images[part], classes[part], flip, random) for (name, flip), part in flips]


def _small_training_images(folder: Path, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    images, classes = read_part(folder, "train")
    order = random.permutation(len(classes))
    return images[order, ::2, ::2], classes[order]


def coloured_study(
    rhos: Sequence[float],
    blues: Sequence[tuple[float, float]] | None = None,
    folder: Path | None = None,
    seed: int = CONSTRUCTION_SEED,
) -> MultiDomainDataset:
    """ColoredMNIST with chosen correlations and colours, as OoD-Bench's studies of shift vary them.

    The images are those of ColoredMNIST-OoD-Bench, in equal shares: OoD-Bench does not say how many each domain has.
    `coloured_study((0.1, 0.9))` has a correlation shift, `coloured_study((0.1, 0.1), ((0, 0.1), (1, 0.1)))` a diversity
    shift.

    Args:
        rhos: How often the colour disagrees with the label, one number a domain.
        blues: Mean and deviation of the blue share, one pair a domain; without them there is no blue channel.
        folder: Where MNIST's IDX files are (or FashionMNIST's); by default they are downloaded to the data root.
        seed: Another seed is another draw of images, label noise and colours.

    Raises:
        DataError: A number is impossible, or the files are not there.
    """
    shades: Sequence[tuple[float, float] | None] = blues or [None] * len(rhos)
    possible = all(0 <= rho <= 1 for rho in rhos) and all(deviation > 0 for _, deviation in blues or ())
    if not rhos or len(shades) != len(rhos) or not possible:
        raise DataError("Each domain needs a rho between 0 and 1, and all or none a blue mean and deviation above 0.")
    if folder is None:
        from shiftbed.data.prepare import raw_files

        folder = raw_files(DATASETS["ColoredMNIST-OoD-Bench"].card)
    random = np.random.Generator(np.random.PCG64(seed))
    images, classes = _small_training_images(folder, random)
    domains = []
    for i, (rho, blue) in enumerate(zip(rhos, shades, strict=True)):
        name = f"{i}: rho {rho:g}" + (f", blue {blue[0]:g}±{blue[1]:g}" if blue else "")
        domains.append(colour(name, images[i :: len(rhos)], classes[i :: len(rhos)], rho, random, blue))
    card = DATASETS["ColoredMNIST-OoD-Bench"].card.model_copy(
        update={
            "name": "ColoredMNIST-study",
            "version": digest([list(rhos), blues and [list(blue) for blue in blues], seed])[:20],
            "summary": "ColoredMNIST with chosen correlations and blue shares",
            "domains": {domain.name: len(domain) for domain in domains},
            "input_shape": (3 if blues else 2, 14, 14),
            "splits": {},
        }
    )
    return MultiDomainDataset(card, tuple(domains))


def rotated(folder: Path) -> list[Domain]:
    """Six domains of every sixth image, turned counter-clockwise by 0 to 75 degrees (bilinear, as DomainBed's HEAD)."""
    random = np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED))
    images, classes = pooled(folder, random)
    domains = []
    for i, angle in enumerate(ANGLES):
        turned = scipy.ndimage.rotate(images[i::6].astype(np.float32), angle, axes=(2, 1), reshape=False, order=1)
        inputs = np.rint(turned.clip(0, 255)).astype(np.uint8)[..., None]
        domains.append(Domain(str(angle), inputs, classes[i::6].astype(np.int64)))
    return domains


SOURCES = {
    "MNIST": (
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        tuple(str(digit) for digit in range(10)),
        "LeCun, Y., Cortes, C. and Burges, C. (1998). The MNIST database of handwritten digits.",
        "CC-BY-SA-3.0",
    ),
    "FashionMNIST": (
        (
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
        ("top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
        "Xiao, H., Rasul, K. and Vollgraf, R. (2017). Fashion-MNIST.",
        "MIT",
    ),
}


CHECKSUMS = {  # of the files as their authors packed them, in the order of `FILES`
    "MNIST": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "FashionMNIST": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}


def idx_archives(source: str) -> tuple[Archive, ...]:
    """The four files of MNIST or FashionMNIST."""
    mirrors = SOURCES[source][0]
    names = [f"{name}.gz" for images, labels, _ in FILES.values() for name in (images, labels)]
    return tuple(
        Archive(file=name, mirrors=tuple(f"{address}/{name}" for address in mirrors), sha256=checksum)
        for name, checksum in zip(names, CHECKSUMS[source], strict=True)
    )


def _register(
    name: str,
    source: str,
    read: Callable[[Path], list[Domain]],
    summary: str,
    domains: dict[str, int],
    shape: tuple[int, int, int],
    splits: dict[str, FixedDomains] | None = None,
) -> None:
    _, classes, citation, licence = SOURCES[source]
    binary = shape[0] == 2
    card = Card(
        name=name,
        version=1,
        summary=summary,
        domains=domains,
        classes=(f"{classes[5]} to {classes[9]}", f"{classes[0]} to {classes[4]}") if binary else classes,
        input_shape=shape,
        size_class="small",
        licence=licence,
        source=f"{source}, both official parts" if shape[1] == 28 else f"{source}, the official training part",
        citation=citation,
        shift="correlation" if binary else "diversity",
        splits=splits or {},
        archives=idx_archives(source),
        ran_on="real",
    )
    DATASETS.add(name, DatasetEntry(card, read=read))


for _source in SOURCES:
    _register(
        f"Colored{_source}",
        _source,
        coloured_as_domainbed,
        "The first five classes or not, with a colour that agrees with the label in two domains and not in the third",
        {"+90%": 23_334, "+80%": 23_333, "-90%": 23_333},
        (2, 28, 28),
    )
    _register(
        f"Colored{_source}-OoD-Bench",
        _source,
        coloured_as_ood_bench,
        "As OoD-Bench makes it: 14×14, two training domains and a test domain",
        {"+90%": 25_000, "+80%": 25_000, "-90%": 10_000},
        (2, 14, 14),
        {"ood-bench": FixedDomains(train=("+90%", "+80%"), test=("-90%",))},
    )
    _register(
        f"Rotated{_source}",
        _source,
        rotated,
        "Each domain turned by another angle",
        {"0": 11_667, "15": 11_667, "30": 11_667, "45": 11_667, "60": 11_666, "75": 11_666},
        (1, 28, 28),
    )
