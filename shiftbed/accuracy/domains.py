"""Where domains come from: a run's held-out images, their corruptions, folders, and datasets."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shiftbed.accuracy.extraction import AnyModel, DomainImages, Images, content_id
from shiftbed.data import card, card_if_known, load
from shiftbed.data.cifar import STANDARD
from shiftbed.data.corruptions import CORRUPTIONS, corrupt
from shiftbed.data.dataset import Card, Domain
from shiftbed.data.examples import images_below
from shiftbed.data.images import decode_image, readable
from shiftbed.errors import DataError, UnknownNameError
from shiftbed.hashing import digest
from shiftbed.registry import refuse_unknown
from shiftbed.training.job import Job
from shiftbed.training.model import Model, job_of

SEVERITIES = (1, 3, 5)
MOST = 500  # source images: more make the corrupted domains slower and the prediction hardly better
CLEAN = "clean"
Seen = Collection[tuple[str, str]]  # datasets and domains whose labels must not be used


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


def of_one_size(source: DomainImages, model: AnyModel) -> DomainImages:
    """The same images where they are of one size, else at the one that a model takes: corruptions take one."""
    images = source.images()
    if isinstance(images, np.ndarray) or not isinstance(model, Model):
        return source
    key = digest([source.id, *model.about["input_shape"]])[:32]
    return DomainImages(source.name, key, partial(model.resized, images), source.labels, source.group)


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
    name = f"the held-out images of {', '.join(split.domain for split in splits)}"
    return _together(name, [(data[split.domain], split.indices) for split in splits], most)


def tested(job: Job, domain: str) -> DomainImages:
    """The labelled images of a domain that a job tests: all, unless it learned from the others."""
    data = load(job.dataset)
    places = np.concatenate([split.indices for split in job.task.of_role("test") if split.domain == domain])
    if len(places) == len(data[domain]):  # under its own name, as other verbs keep what is said of it
        (whole,) = of_dataset(f"{job.dataset}/{domain}", data.card.classes)
        return whole
    return _together(domain, [(data[domain], np.sort(places))])


def asked_about(where: str) -> set[tuple[str, str]]:
    """The datasets and domains whose labels must not be used where `DATASET/DOMAIN` or a folder is asked about.

    A folder `…/my-images/site-c`, what is below it, or the whole of `my-images`, is taken for what it was when
    `my-images` was prepared: a pack does not say where its files lay.
    """
    found = _domains_along(Path(where).parts)
    folder = Path(where)
    if folder.is_dir():
        for path in (folder.absolute(), folder.resolve()):
            found |= _domains_along(path.parts)
            inside = card_if_known(path.name)
            if inside is not None:
                found |= {(inside.name, domain) for domain in inside.domains if (path / domain).is_dir()}
    return found


def _domains_along(parts: Sequence[str]) -> set[tuple[str, str]]:
    """Every dataset in a path that is followed by one of its domains."""
    pairs = [(card_if_known(dataset), domain) for dataset, domain in pairwise(parts)]
    return {(known.name, domain) for known, domain in pairs if known is not None and domain in known.domains}


def others_than(target: DomainImages, domains: Iterable[DomainImages]) -> list[DomainImages]:
    """The domains that have images which the target does not have: labels of the target's are never fitted on.

    Images are compared one by one, as files or as arrays of the same size, and only until one differs.
    """
    known: dict[int, set[str]] = {}  # by channels: files become what they are compared with

    def differs(domain: DomainImages) -> bool:
        images = domain.images()
        channels = _pixels(images[0], 3).shape[-1] if len(images) else 3
        if channels not in known:
            known[channels] = {content_id([_pixels(image, channels)]) for image in target.images()}
        return any(content_id([_pixels(image, channels)]) not in known[channels] for image in images)

    return [domain for domain in domains if differs(domain)]


def _pixels(image: Any, channels: int) -> np.ndarray:
    """An image H×W×C, whether it is a file or an array."""
    if not isinstance(image, str | Path):
        return np.asarray(image)
    with Image.open(image) as opened:
        picture = decode_image(opened)
    return np.asarray(picture.convert("L"))[..., None] if channels == 1 else np.asarray(picture)


def share_images(domains: Iterable[DomainImages]) -> bool:
    """Whether domains are corruptions, which show the images of one source; `clean` are these themselves."""
    return all(one.name == CLEAN or _corruption(one.name) != one.name for one in domains)


def trained_on(folders: Iterable[Path]) -> Seen:
    """The datasets and domains that jobs were trained on, as their folders say."""
    jobs = [about for folder in folders if (about := job_of(folder)) is not None]
    return {(job["dataset"], split["domain"]) for job in jobs for split in job["splits"] if split["role"] == "train"}


def of_dataset(name: str, classes: Sequence[str]) -> Iterator[DomainImages]:
    """The labelled domains of a dataset, or with `DATASET/DOMAIN` one of them; images stay where they are.

    Raises:
        DataError: Its classes are not the model's, or there is no such domain.
    """
    known, wanted = _named(name)
    if tuple(known.classes) != tuple(classes):
        raise DataError(
            f"The classes of {known.name} ({', '.join(known.classes)}) are not the model's ({', '.join(classes)}); its "
            "labels cannot be compared."
        )
    refuse_unknown("domain", [wanted] if wanted else (), known.domains, known.name)
    groups = {domain: cluster for cluster, members in known.clusters.items() for domain in members}
    for domain in load(known.name).domains:
        if domain.name == wanted or not wanted:
            identity = digest([known.name, known.version, domain.name, len(domain)])[:32]
            group = groups.get(domain.name) or _corruption(domain.name)
            yield DomainImages(domain.name, identity, partial(_images, domain), np.asarray(domain.labels), group)


def unseen(name: str, classes: Sequence[str], seen: Seen = ()) -> list[DomainImages]:
    """The labelled domains of a dataset that models can be judged on.

    Those that one of them has seen are left out, and unless they are named those that are there to train on.

    Args:
        name: DATASET, or DATASET/DOMAIN.
        classes: The models'.
        seen: What models were trained on, and what they are asked about.

    Raises:
        DataError: None is left.
    """
    known, wanted = _named(name)
    without_test = [] if wanted else [split for split in known.splits.values() if not split.test]
    out = {*seen, *((known.name, domain) for split in without_test for domain in split.train)}
    found = [domain for domain in of_dataset(name, classes) if (known.name, domain.name) not in out]
    if not found:
        raise DataError(
            f"Nothing is left of {name}: it was trained on, or it is what is asked about; name other labelled data."
        )
    return found


def labelled_source(name: str, classes: Sequence[str], seen: Seen = ()) -> DomainImages:
    """The images of a dataset's domains that no model was trained on, together.

    Raises:
        DataError: Models were trained on all of them, or classes differ.
    """
    known, _ = _named(name)
    data = load(known.name)
    domains = [data[domain.name] for domain in unseen(name, classes, seen)]
    return _together(name, [(domain, np.arange(len(domain))) for domain in domains])


def sampled(source: DomainImages, most: int = MOST) -> DomainImages:
    """Some labelled images, at random but always the same; all where there are no more."""
    if source.labels is None or len(source.labels) <= most:
        return source
    images, kept = source.images(), _chosen(len(source.labels), most)
    some = images[kept] if isinstance(images, np.ndarray) else [images[place] for place in kept]
    return DomainImages.of(source.name, some, source.labels[kept])


def target(where: str, classes: Sequence[str], skip_corrupt: bool = False) -> DomainImages:
    """The images to predict the accuracy on, without labels: a folder of image files, or DATASET/DOMAIN.

    Args:
        where: The folder or name.
        classes: The model's classes.
        skip_corrupt: Leave out files that cannot be read.

    Raises:
        DataError: There are no images, or some cannot be read.
    """
    folder = Path(where)
    if folder.is_dir():
        return DomainImages.of(str(folder), readable(images_below(folder), skip_corrupt))
    if folder.suffix and not folder.exists() and "/" not in where:
        raise DataError(f"There is no folder {where}.")
    try:
        _named(where)
    except UnknownNameError as error:
        raise type(error)(f"{where} is no folder of images, and no DATASET/DOMAIN either: {error}") from error
    except DataError as error:  # of a folder that is there, or a file, which is no dataset
        raise DataError(f"There is no folder {where}; name a folder of images, or DATASET/DOMAIN.") from error
    found = list(of_dataset(where, classes))
    if len(found) > 1:
        names = ", ".join(domain.name for domain in found[:5])
        raise DataError(f"{where} has {len(found)} domains ({names}, …); name one of them as {where}/{found[0].name}.")
    return DomainImages(where, found[0].id, found[0].images)


def _named(name: str) -> tuple[Card, str]:
    """The dataset and, maybe, the domain of `DATASET/DOMAIN`."""
    dataset, _, domain = name.partition("/")
    return card(dataset), domain


def _corruption(domain: str) -> str:
    """The severities of a corruption belong together; any other domain stands alone."""
    stem, _, _ = domain.rpartition("-")
    return stem if stem in CORRUPTIONS else domain


def _images(domain: Domain) -> Images:
    return domain.inputs


def _chosen(count: int, most: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _together(name: str, parts: Sequence[tuple[Domain, np.ndarray]], most: int | None = None) -> DomainImages:
    """Images of several domains, or a sample of them; those of one size become one array."""
    places = [(domain, place) for domain, indices in parts for place in indices]
    if most is not None and len(places) > most:
        places = [places[one] for one in _chosen(len(places), most)]
    images = [np.asarray(domain.inputs[place]) for domain, place in places]
    of_one_size = len({image.shape for image in images}) == 1
    labels = np.array([domain.labels[place] for domain, place in places])
    return DomainImages.of(name, np.stack(images) if of_one_size else images, labels)
