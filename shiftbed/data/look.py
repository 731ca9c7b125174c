"""Contact sheets: what a dataset looks like, domains by classes."""

from pathlib import Path
from textwrap import fill

import numpy as np
from PIL import Image

from shiftbed.data.dataset import Domain, MultiDomainDataset
from shiftbed.data.load import load
from shiftbed.drawing import write
from shiftbed.errors import DataError

MOST_CLASSES = 12
MOST_DOMAINS = 24
THUMBNAIL = 90  # pixels of the longer side
CELL = 102
DOTS_PER_INCH = 120
LETTERS_PER_INCH, LETTERS_PER_CELL = 12, 15


def look(dataset: str, out: str | Path | None = None) -> Path:
    """Draws a contact sheet of a dataset by name: domains by classes.

    Args:
        dataset: The dataset's name.
        out: The PNG file; by default one of its name, here.

    Returns:
        The file.

    Raises:
        DataError: It cannot be a PNG file, or the dataset is not here or not one of images.
    """
    found = load(dataset)
    return contact_sheet(found, Path(out or f"{found.card.name}.png"))


def contact_sheet(dataset: MultiDomainDataset, path: Path) -> Path:
    """Draws one example of every class of every domain (of the first, where they are many) as a PNG.

    Args:
        dataset: A dataset of images.
        path: Where to write it; its folder is made.

    Returns:
        The path.

    Raises:
        DataError: The path cannot be a PNG file, or the dataset is not one of images.
    """
    if path.suffix.lower() != ".png" or path.is_dir():
        raise DataError(f"A contact sheet is a PNG file, which {path} cannot be; name one that ends in .png.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    classes = dataset.card.classes[:MOST_CLASSES]
    domains = dataset.domains[:MOST_DOMAINS]
    sheet = montage(domains, len(classes))
    size = (sheet.shape[1] / DOTS_PER_INCH, sheet.shape[0] / DOTS_PER_INCH)
    figure = Figure(figsize=size, dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.imshow(sheet, interpolation="none")
    axis.xaxis.tick_top()
    names = [fill(name, LETTERS_PER_CELL) for name in classes]
    axis.set_xticks(CELL * (np.arange(len(classes)) + 0.5), names, fontsize=8)
    axis.set_yticks(CELL * (np.arange(len(domains)) + 0.5), [domain.name for domain in domains], fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    title = f"{dataset.card.name}: {dataset.card.summary}"
    axis.set_title(fill(title, max(40, int(LETTERS_PER_INCH * size[0]))), fontsize=9)
    for text in (axis.title, *axis.get_xticklabels(), *axis.get_yticklabels()):
        text.set_parse_math(False)  # a name may have dollar signs in it
    return write(figure, path)


def montage(domains: tuple[Domain, ...], classes: int) -> np.ndarray:
    """One picture of thumbnails, domains by classes; a class that a domain lacks stays white."""
    sheet = np.full((CELL * len(domains), CELL * classes, 3), 255, np.uint8)
    for row, domain in enumerate(domains):
        labels = np.asarray(domain.labels)
        for column in range(classes):
            examples = np.flatnonzero(labels == column)
            if len(examples):
                small = thumbnail(domain, int(examples[len(examples) // 2]))
                top, left = CELL * row + (CELL - small.shape[0]) // 2, CELL * column + (CELL - small.shape[1]) // 2
                sheet[top : top + small.shape[0], left : left + small.shape[1]] = small
    return sheet


def thumbnail(domain: Domain, index: int) -> np.ndarray:
    """An example as a small RGB image; one channel is grey, two are red and green.

    Raises:
        DataError: It is not an image.
    """
    image = np.asarray(domain.inputs[index])
    if image.ndim != 3 or image.shape[-1] not in (1, 2, 3) or image.dtype != np.uint8:
        raise DataError(f"The examples of domain '{domain.name}' are not images, so there is nothing to look at.")
    if image.shape[-1] == 2:
        image = np.concatenate([image, np.zeros_like(image[..., :1])], axis=-1)
    picture = Image.fromarray(np.broadcast_to(image, (*image.shape[:2], 3)).copy())
    scale = THUMBNAIL / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return np.asarray(picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS))
