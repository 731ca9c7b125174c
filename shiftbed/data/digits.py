"""ColoredDigits and RotatedDigits: a correlation and a diversity shift made from scikit-learn's 1,797 digits.

The construction follows ColoredMNIST and RotatedMNIST of DomainBed, with a seed of its own: a dataset never depends on
the job that trains on it.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy  # its parts load when they are first used

from shiftbed.data.dataset import Card, Domain, register
from shiftbed.data.mnist import ANGLES, CONSTRUCTION_SEED, DOMAINBED_FLIPS, colour

SOURCE = "scikit-learn's digits (UCI ML hand-written digits, test part)"
LICENCE = "CC-BY-4.0"
CITATION = "Alpaydin, E. and Kaynak, C. (1998). Optical Recognition of Handwritten Digits. UCI."


def shuffled_digits(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The digits as uint8 N×8×8 with their labels, in random order."""
    rows = generator.permutation(_digits())
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return pixels, rows[:, -1].astype(np.int64)


def _digits() -> np.ndarray:
    """Rows of 64 pixels and a label: scikit-learn's file, since to import scikit-learn for it takes a second."""
    found = find_spec("sklearn")
    folders = (found and found.submodule_search_locations) or [""]
    file = Path(folders[0], "datasets", "data", "digits.csv.gz")
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # a version that keeps it elsewhere

    return np.column_stack(load_digits(return_X_y=True))


@register(
    Card(
        name="ColoredDigits",
        version=1,
        summary="Small digits below five or not, whose colour agrees with the label in training and not in the test",
        domains={"+90%": 599, "+80%": 599, "-90%": 599},
        classes=("five to nine", "zero to four"),
        input_shape=(2, 8, 8),
        size_class="small",
        shift="correlation",
        licence=LICENCE,
        source=SOURCE,
        citation=CITATION,
    )
)
def colored_digits() -> list[Domain]:
    """Label = (digit < 5) flipped with 0.25; colour = label flipped with 0.1, 0.2 or 0.9; the other channel is zero."""
    generator = np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED))
    images, digits = shuffled_digits(generator)
    return [
        colour(name, images[i::3], digits[i::3], flip, generator)
        for i, (name, flip) in enumerate(DOMAINBED_FLIPS.items())
    ]


@register(
    Card(
        name="RotatedDigits",
        version=1,
        summary="Small digits, each domain turned by another angle",
        domains={"0": 300, "15": 300, "30": 300, "45": 299, "60": 299, "75": 299},
        classes=tuple(str(digit) for digit in range(10)),
        input_shape=(1, 16, 16),
        size_class="small",
        shift="diversity",
        licence=LICENCE,
        source=SOURCE,
        citation=CITATION,
    )
)
def rotated_digits() -> list[Domain]:
    """Digits enlarged to 16×16 (at 8×8 a turn destroys them), turned counter-clockwise, every digit in one domain."""
    generator = np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED))
    images, digits = shuffled_digits(generator)
    large = scipy.ndimage.zoom(images.astype(np.float64), (1, 2, 2), order=1, grid_mode=True, mode="grid-constant")
    domains = []
    for i, angle in enumerate(ANGLES):
        turned = scipy.ndimage.rotate(large[i :: len(ANGLES)], angle, axes=(2, 1), reshape=False, order=1)
        inputs = np.rint(turned.clip(0, 255)).astype(np.uint8)[..., None]
        domains.append(Domain(str(angle), inputs, digits[i :: len(ANGLES)]))
    return domains
