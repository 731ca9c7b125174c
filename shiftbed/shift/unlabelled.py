"""Images without labels as one more domain: measures that need no labels compare it with the others."""

from pathlib import Path

import numpy as np

from shiftbed.data import Domain, MultiDomainDataset
from shiftbed.data.examples import images_below
from shiftbed.data.images import Refused, decode, read_image
from shiftbed.errors import DataError


def with_unlabelled(dataset: MultiDomainDataset, folder: str | Path) -> MultiDomainDataset:
    """A dataset with one more domain, the image files in a folder and below it, whose labels nobody knows.

    They are brought to the size of the dataset's images, if these have one.

    Raises:
        DataError: There is no folder, or no image in it, one cannot be read, or the dataset is not of colour images.
    """
    if not Path(folder).is_dir():
        raise DataError(f"There is no folder {folder}; name a folder of images.")
    shape = dataset.card.input_shape or _shape_of_all(dataset)
    if shape and (len(shape) != 3 or shape[0] != 3):
        raise DataError(
            f"The inputs of {dataset.card.name} are no colour images, which files could join; choose another dataset."
        )
    made = []
    for path in images_below(Path(folder)):
        image = decode(path, *shape[1:]) if shape else read_image(path)
        if isinstance(image, Refused):
            raise DataError(f"{path} is {image.why}; remove it from the folder.")
        made.append(image)
    inputs = np.stack(made) if len({image.shape for image in made}) == 1 else made
    name = Path(folder).resolve().name
    if name in {domain.name for domain in dataset.domains}:
        name = f"{name} (not labelled)"
    domain = Domain(name, inputs, np.full(len(made), -1))
    counts = {**dataset.card.domains, name: len(made)}
    return MultiDomainDataset(dataset.card.model_copy(update={"domains": counts}), (*dataset.domains, domain))


def _shape_of_all(dataset: MultiDomainDataset) -> tuple[int, ...] | None:
    """Channels, height and width, if all images have the same; the card of own folders does not say so."""
    shapes = {one.inputs.shape[1:] if isinstance(one.inputs, np.ndarray) else None for one in dataset.domains}
    first = shapes.pop()
    return None if shapes or first is None else (first[2], first[0], first[1])
