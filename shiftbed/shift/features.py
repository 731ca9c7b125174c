"""What is measured: the examples of a dataset's domains as samples, raw or as features of any network."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from shiftbed.data import DATASETS, Domain, MultiDomainDataset, load
from shiftbed.data.load import note_of_change
from shiftbed.data.roots import prepared_names
from shiftbed.errors import DataError
from shiftbed.networks import Featurizer
from shiftbed.registry import refuse_unknown
from shiftbed.shift.samples import Sample, sample, union
from shiftbed.training.batches import as_model_input
from shiftbed.training.device import torch_defaults
from shiftbed.training.streams import seeded

BATCH = 256


def open_dataset(
    dataset: str | Path | MultiDomainDataset,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> MultiDomainDataset:
    """A dataset by its name; a folder or manifest, which is packed once; or one that is open already."""
    if isinstance(dataset, MultiDomainDataset):
        return dataset
    known = {*DATASETS, *prepared_names()}  # a name comes before a folder that happens to be called so
    if str(dataset) not in known and Path(dataset).exists():
        from shiftbed.data.prepare import prepare

        return load(prepare(str(dataset), on_progress=on_progress).card.name)
    if note := note_of_change(str(dataset)):
        warnings.warn(note, stacklevel=2)
    return load(str(dataset))


@torch_defaults()
def samples_of(
    dataset: MultiDomainDataset,
    domains: Sequence[str] = (),
    *,
    classes: Sequence[str] = (),
    size: int | None = None,
    network: str | None = None,
    weights: str | None = None,
    device: str = "cpu",
) -> dict[str, Sample]:
    """The examples of each domain: images N×C×H×W in [0, 1], other inputs as they are, or a network's features N×d.

    Args:
        dataset: Labels below 0 mean that an example is not labelled.
        domains: Only these domains; by default all.
        classes: Only these classes; by default all.
        size: Bring images to this side.
        network: A fixed network (one of ours or of timm) whose features are taken instead of the inputs.
        weights: The network's initial weights, by name or file; random ones if None.
        device: Where the network runs.

    Raises:
        DataError: There is no such domain or class, or its examples cannot be compared.
    """
    refuse_unknown("domain", domains, [one.name for one in dataset.domains], dataset.card.name)
    refuse_unknown("class", classes, dataset.card.classes, dataset.card.name)
    numbers = [dataset.card.classes.index(name) for name in classes]
    made: dict[str, Sample] = {}
    extract: Callable[[torch.Tensor], torch.Tensor] | None = None
    for domain in [dataset[name] for name in domains] or dataset.domains:
        inputs, labels, groups = _inputs(domain, size), _numbers(domain), domain.groups
        if classes:
            if (labels < 0).all():
                raise DataError(f"Nobody knows which images of '{domain.name}' are of these classes; name no classes.")
            kept = np.isin(labels, numbers)
            inputs, labels, groups = inputs[kept], labels[kept], None if groups is None else groups[kept]
        if network is not None:
            extract = extract or _extractor(tuple(inputs.shape[1:]), network, weights, device)
            values = torch.cat([extract(batch) for batch in torch.from_numpy(inputs).split(BATCH)]).numpy()
        else:
            values = inputs.astype(np.float32) / np.float32(255) if inputs.dtype == np.uint8 else inputs
        known = None if (labels < 0).any() else labels
        made[domain.name] = sample(domain.name, values, known, groups, dataset.card.classes)
    return made


def _numbers(domain: Domain) -> np.ndarray:
    """The labels as torch takes them for places; own arrays have bytes, or floats.

    Raises:
        DataError: They are no numbers of classes.
    """
    given = np.asarray(domain.labels)
    if given.dtype.kind not in "biuf" or (given.dtype.kind == "f" and not (given == np.round(given)).all()):
        raise DataError(
            f"The labels of '{domain.name}' are {given.dtype} and no numbers of classes; give the place of each in "
            "the list of classes, from 0."
        )
    return given.astype(np.int64)


def sides_of(
    samples: Mapping[str, Sample], train: Sequence[str] = (), test: Sequence[str] = ()
) -> tuple[Sample, Sample]:
    """The two sides that are compared: training domains together, and test domains together.

    Args:
        samples: Every domain's examples.
        train: The domains of the one side; by default all that are not tested.
        test: The domains of the other side; by default the last.

    Raises:
        DataError: The domains do not make two sides.
    """
    train, test = named_sides(list(samples), train, test)
    p, q = (
        samples[side[0]] if len(side) == 1 else union([samples[name] for name in side], " + ".join(side))
        for side in (train, test)
    )
    return p, q


def named_sides(names: Sequence[str], train: Sequence[str], test: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which domains are on either side; arguments as of `sides_of`, with the names of all domains.

    Raises:
        DataError: The domains do not make two sides.
    """
    if len(names) < 2:
        raise DataError(f"There is the one domain '{names[0]}', and a shift is between two; add another.")
    refuse_unknown("domain", [*train, *test], names, "This dataset")
    test = list(test) or [name for name in names if name not in train][-1:]
    train = list(train) or [name for name in names if name not in test]
    twice = sorted(set(train) & set(test))
    if twice or not train or not test:
        raise DataError(
            f"'{twice[0]}' cannot be on both sides; take it out of --train or --test."
            if twice
            else "All domains are on one side; leave one of them to the other."
        )
    return train, test


def standardised(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both sides with zero mean and unit variance in every coordinate of their pool; constant coordinates are 0."""
    pool = np.concatenate([first, second])
    centre, deviation = pool.mean(0), pool.std(0)
    # What rounding leaves of a constant is no variation.
    scale = np.where(deviation > 1e-12 * np.abs(pool).max(0, initial=0), deviation, np.inf)
    return (first - centre) / scale, (second - centre) / scale


def _inputs(domain: Domain, size: int | None) -> np.ndarray:
    """All inputs of a domain, images with their channels first."""
    ragged = not isinstance(domain.inputs, np.ndarray)
    if not ragged and np.asarray(domain.inputs).dtype != np.uint8:
        return np.asarray(domain.inputs)
    if size is not None:
        return np.concatenate([_resized_bytes(np.asarray(image), size) for image in domain.inputs])
    if ragged and len({np.shape(image) for image in domain.inputs}) > 1:
        raise DataError(f"The images of '{domain.name}' differ in size; bring them to one with --size, such as 64.")
    return np.ascontiguousarray(np.asarray(domain.inputs).transpose(0, 3, 1, 2))


def _resized_bytes(image: np.ndarray, side: int) -> np.ndarray:
    pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None].float()
    return resized(pixels, side).round().clamp(0, 255).byte().numpy()


def resized(images: torch.Tensor, side: int) -> torch.Tensor:
    """Images N×C×H×W at another side, smoothed before they are reduced."""
    return F.interpolate(images, size=(side, side), mode="bilinear", antialias=True)


def _extractor(
    shape: tuple[int, ...], network: str, weights: str | None, device: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The features of a fixed network; random weights are always the same."""
    with seeded(0):
        featurizer = Featurizer(shape, {"network": network, "initial_weights": weights}).to(device).eval()

    @torch.no_grad()
    def extract(batch: torch.Tensor) -> torch.Tensor:
        return featurizer(as_model_input(batch.to(device))).float().cpu()

    return extract
