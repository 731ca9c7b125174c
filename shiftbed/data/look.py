"""Contact sheets: what a dataset looks like, domains by classes."""

from pathlib import Path

import numpy as np

from shiftbed.data.dataset import Domain, MultiDomainDataset
from shiftbed.errors import DataError

MOST_CLASSES = 12
MOST_DOMAINS = 24
THUMBNAIL = 128


def contact_sheet(dataset: MultiDomainDataset, path: Path) -> Path:
    """Draws one example of every class of every domain (of the first, where they are many) as a PNG.

    Args:
        dataset: A dataset of images.
        path: Where to write it; its folder is made.

    Returns:
        The path.

    Raises:
        DataError: The path cannot be a PNG file.
    """
    if path.suffix.lower() != ".png" or path.is_dir():
        raise DataError(f"A contact sheet is a PNG file, which {path} cannot be; name one that ends in .png.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    classes = dataset.card.classes[:MOST_CLASSES]
    domains = dataset.domains[:MOST_DOMAINS]
    rows, columns = len(domains), len(classes)
    figure = Figure(figsize=(1.6 + 0.85 * columns, 0.5 + 0.85 * rows), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, domain in enumerate(domains):
        for column, name in enumerate(classes):
            axis = axes[row, column]
            axis.set_xticks([])
            axis.set_yticks([])
            examples = np.flatnonzero(domain.labels == column)
            if len(examples):
                axis.imshow(viewable(domain, int(examples[len(examples) // 2])), cmap="gray", vmin=0, vmax=255)
            if row == 0:
                axis.set_title(name, fontsize=8)
        axes[row, 0].set_ylabel(domain.name, fontsize=8, rotation=0, ha="right", va="center")
    figure.suptitle(f"{dataset.card.name}: {dataset.card.summary}", fontsize=9)
    figure.tight_layout()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise DataError(f"Cannot write {path}: {error.strerror}; choose another file.") from error
    return path


def viewable(domain: Domain, index: int) -> np.ndarray:
    """An example as an image that can be drawn: one, two (red and green) or three channels."""
    image = np.asarray(domain.inputs[index])
    if max(image.shape[:2]) > THUMBNAIL:
        image = image[:: -(-image.shape[0] // THUMBNAIL), :: -(-image.shape[1] // THUMBNAIL)]
    if image.shape[-1] == 2:
        return np.concatenate([image, np.zeros_like(image[..., :1])], axis=-1)
    return image[..., 0] if image.shape[-1] == 1 else image
