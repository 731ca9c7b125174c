"""MNIST-M: digits (or clothes) blended into photographs, as Ganin and Lempitsky do, one domain a photograph.

NICO++ takes the 200 training images of BSDS500, a domain each. Any other folder of photographs makes a dataset of the
same kind, which is called MNIST-M-like wherever its name appears and whose version is that of its photographs.
"""

import hashlib
from collections import defaultdict
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np

from shiftbed.data.dataset import DATASETS, Archive, Card, DatasetEntry, Domain, MultiDomainDataset
from shiftbed.data.examples import walk_images
from shiftbed.data.images import Refused, image_size, read_image
from shiftbed.data.mnist import CONSTRUCTION_SEED, SOURCES, idx_archives, pooled
from shiftbed.errors import DataError
from shiftbed.hashing import digest

SIDE = 28
BSDS500 = tuple((files("shiftbed.data") / "cards" / "bsds500_train.txt").read_text().split())
BSDS500_SIZES = {(321, 481), (481, 321)}
PER_DOMAIN = 350
GANIN = "Ganin, Y. and Lempitsky, V. (2015). Unsupervised domain adaptation by backpropagation. ICML"
BERKELEY = "Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz"


def blend(images: np.ndarray, photograph: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The absolute difference between each image N×28×28 and a patch of its own of the photograph H×W×3."""
    height, width, _ = photograph.shape
    top = random.integers(0, height - SIDE + 1, len(images))
    left = random.integers(0, width - SIDE + 1, len(images))
    patches = np.lib.stride_tricks.sliding_window_view(photograph, (SIDE, SIDE), axis=(0, 1))[top, left]
    return np.abs(np.moveaxis(patches, 1, -1).astype(np.int16) - images[..., None]).astype(np.uint8)


def find_photographs(folder: Path) -> dict[str, Path]:
    """BSDS500's training images by name, if they are there, and otherwise all images below a folder.

    Raises:
        DataError: There are fewer than two, or two have one name.
    """
    found = sorted(walk_images(folder))
    by_folder: dict[Path, dict[str, Path]] = defaultdict(dict)
    for path in found:
        by_folder[path.parent][path.stem] = path
    for here in by_folder.values():
        if set(here) == set(BSDS500) and {image_size(path) for path in here.values()} <= BSDS500_SIZES:
            return {name: here[name] for name in BSDS500}
    photographs: dict[str, Path] = {}
    for path in found:
        if path.stem in photographs:
            raise DataError(f"{photographs[path.stem]} and {path} would both be the domain '{path.stem}'; rename one.")
        photographs[path.stem] = path
    if len(photographs) < 2:
        raise DataError(f"{folder} has {len(photographs)} background images; put two or more beside the IDX files.")
    return photographs


def open_photograph(path: Path) -> np.ndarray:
    """A photograph H×W×3.

    Raises:
        DataError: It cannot be read, or is smaller than a digit.
    """
    photograph = read_image(path)
    if isinstance(photograph, Refused):
        raise DataError(f"The background {path} is {photograph.why}; get it again or remove it.")
    if min(photograph.shape[:2]) < SIDE:
        raise DataError(f"The background {path} is smaller than {SIDE}×{SIDE} pixels; remove it.")
    return photograph


def read(folder: Path, name: str) -> MultiDomainDataset:
    """Every N-th image of the pool on the N-th photograph; the folder has the IDX files and the photographs."""
    photographs = find_photographs(folder)
    random = np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED))
    images, classes = pooled(folder, random)
    domains = []
    for i, (domain, path) in enumerate(photographs.items()):
        inputs = blend(images[i :: len(photographs)], open_photograph(path), random)
        domains.append(Domain(domain, inputs, classes[i :: len(photographs)].astype(np.int64)))
    card = DATASETS[name].card
    if tuple(photographs) != BSDS500:
        card = _card_of_stand_in(card, photographs, domains)
    return MultiDomainDataset(card, tuple(domains))


def _card_of_stand_in(card: Card, photographs: dict[str, Path], domains: list[Domain]) -> Card:
    content = [[name, hashlib.sha256(path.read_bytes()).hexdigest()] for name, path in photographs.items()]
    return card.model_copy(
        update={
            "name": f"{card.name}-like",
            "version": digest([card.version, content])[:20],
            "summary": f"As {card.name}, on {len(photographs)} other photographs, one a domain",
            "domains": {domain.name: len(domain) for domain in domains},
            "source": card.source.replace("BSDS500's training images", "photographs of your own"),
            "archives": (),
        }
    )


for _source in SOURCES:
    _, _classes, _citation, _licence = SOURCES[_source]
    _card = Card(
        name=f"{_source}-M",
        version=1,
        summary=f"{'Digits' if _source == 'MNIST' else 'Clothes'} blended into 200 photographs, one a domain",
        domains=dict.fromkeys(BSDS500, PER_DOMAIN),
        classes=_classes,
        input_shape=(3, SIDE, SIDE),
        size_class="small",
        licence=f"{_licence}; BSDS500 for research use",
        source=f"{_source}, both official parts, and BSDS500's training images",
        citation=f"{GANIN}; {_citation}",
        archives=(
            *idx_archives(_source),
            Archive(
                file="BSR_bsds500.tgz",
                mirrors=(f"https://www2.eecs.berkeley.edu/{BERKELEY}", f"http://www.eecs.berkeley.edu/{BERKELEY}"),
            ),
        ),
        ran_on="made",
    )
    DATASETS.add(_card.name, DatasetEntry(_card, read=partial(read, name=_card.name)))
