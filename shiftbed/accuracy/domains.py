"""Where domains come from: a run's held-out images, their corruptions, folders, and datasets."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from shiftbed.accuracy.extraction import DomainImages, Images
from shiftbed.data import card, load
from shiftbed.data.corruptions import CORRUPTIONS, corrupt
from shiftbed.data.dataset import Domain
from shiftbed.data.finding import walk_images
from shiftbed.errors import DataError, ShiftbedError
from shiftbed.hashing import digest
from shiftbed.training.job import Job
from shiftbed.training.model import job_of

STANDARD = tuple(name for name in CORRUPTIONS if CORRUPTIONS[name].family != "bar")
SEVERITIES = (1, 3, 5)
MOST = 500  # source images: more make the corrupted domains slower and the prediction hardly better
CLEAN = "clean"


def corrupted(
    source: DomainImages,
    names: Sequence[str] = STANDARD,
    severities: Sequence[int] = SEVERITIES,
) -> list[DomainImages]:
    """The source, and its images under every corruption: labelled domains to fit on when there are no others.

    The severities of a corruption are one group. An image is corrupted only if the model has not seen it yet.

    Args:
        source: Labelled images of one size, uint8 with one or three channels.
        names: Corruptions.
        severities: From 1 to 5.

    Raises:
        DataError: The images cannot be corrupted.
    """
    images = source.images()
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise DataError(
            f"{source.name} cannot be corrupted, which takes images of one size with one or three channels; give "
            "labelled domains to fit on."
        )
    made = [
        DomainImages(
            f"{name}-{severity}",
            digest([source.id, name, severity])[:32],
            partial(corrupt, images, name, severity),
            source.labels,
            name,
        )
        for name in names
        for severity in severities
    ]
    return [DomainImages(CLEAN, source.id, source.images, source.labels, CLEAN), *made]


def held_out(run: Path, most: int = MOST) -> DomainImages:
    """The images of the training domains that a run's job was validated on: labelled, and never trained on.

    Args:
        run: The folder of a job, with its `job.json`.
        most: How many are taken, at random but always the same.

    Raises:
        DataError: The run says nothing of its data, or the data are not here.
    """
    about = job_of(run)
    if about is None:
        raise DataError(f"{run} does not say which images its model was validated on; name a labelled source dataset.")
    job = Job.from_description(about)
    trained = set(job.task.train_domains)
    splits = [split for split in job.task.of_role("validation") if split.domain in trained]
    if not splits:
        raise DataError(f"The job in {run} held out no images of its training domains; name a labelled source dataset.")
    data = load(job.dataset)
    parts = [_some(data[split.domain], split.indices) for split in splits]
    name = f"the held-out images of {', '.join(split.domain for split in splits)}"
    return _sampled(name, [one for images, _ in parts for one in images], np.concatenate([y for _, y in parts]), most)


def of_dataset(name: str, classes: Sequence[str], most: int | None = None) -> Iterator[DomainImages]:
    """The labelled domains of a dataset, or with `DATASET/DOMAIN` one of them.

    Raises:
        DataError: Its classes are not the model's, or there is no such domain.
    """
    dataset, _, wanted = name.partition("/")
    known = card(dataset)
    if tuple(known.classes) != tuple(classes):
        raise DataError(
            f"The classes of {known.name} ({', '.join(known.classes)}) are not the model's ({', '.join(classes)}); its "
            "labels cannot be compared."
        )
    if wanted and wanted not in known.domains:
        raise DataError(f"{known.name} has no domain '{wanted}'; it has {', '.join(known.domains)}.")
    groups = {domain: cluster for cluster, members in known.clusters.items() for domain in members}
    for domain in load(known.name).domains:
        if domain.name == wanted or not wanted:
            images, labels = _some(domain, np.arange(len(domain)))
            found = _sampled(domain.name, images, labels, most or len(labels))
            yield DomainImages(found.name, found.id, found.images, found.labels, groups.get(domain.name, domain.name))


def target(where: str, classes: Sequence[str]) -> DomainImages:
    """The images to predict the accuracy on, without labels: a folder of image files, or DATASET/DOMAIN.

    Raises:
        DataError: There are no images.
    """
    folder = Path(where)
    if folder.is_dir():
        files = sorted(walk_images(folder))
        if not files:
            raise DataError(f"There are no images in {folder} or the folders below it.")
        return DomainImages.of(str(folder), files)
    if folder.suffix and not folder.exists() and "/" not in where:
        raise DataError(f"There is no folder {where}.")
    try:
        found = list(of_dataset(where, classes))
    except ShiftbedError as error:
        raise type(error)(f"{where} is no folder of images, and no DATASET/DOMAIN either: {error}") from error
    if len(found) > 1:
        names = ", ".join(domain.name for domain in found[:5])
        raise DataError(f"{where} has {len(found)} domains ({names}, …); name one of them as {where}/{found[0].name}.")
    return DomainImages(where, found[0].id, found[0].images)


def _some(domain: Domain, places: np.ndarray) -> tuple[Images, np.ndarray]:
    """Images and labels of a domain at these places; images of one size stay one array."""
    inputs = domain.inputs
    images = inputs[places] if isinstance(inputs, np.ndarray) else [np.asarray(inputs[place]) for place in places]
    return images, np.asarray(domain.labels)[places]


def _sampled(name: str, images: Images, labels: np.ndarray, most: int) -> DomainImages:
    if len(labels) > most:
        kept = np.sort(np.random.default_rng(0).choice(len(labels), most, replace=False))
        images = images[kept] if isinstance(images, np.ndarray) else [images[place] for place in kept]
        labels = labels[kept]
    if not isinstance(images, np.ndarray) and len({np.shape(image) for image in images}) == 1:
        images = np.stack(images)
    return DomainImages.of(name, images, labels)
