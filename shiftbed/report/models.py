"""What a trained model says: of every image of a dataset or a folder, and as ONNX to others."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shiftbed.data import DATASETS, MultiDomainDataset, example_names
from shiftbed.data import load as load_dataset
from shiftbed.data.examples import images_below, images_in
from shiftbed.data.images import readable
from shiftbed.data.roots import prepared_names
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.registry import listed, refuse_unknown, whole_names
from shiftbed.sweeps.blind import refuse_sealed_test
from shiftbed.training.job import Job
from shiftbed.training.model import Model, job_of, load, weights_file


def predictions(
    run: str | Path, dataset: str | None = None, domains: Sequence[str] = (), skip_corrupt: bool = False
) -> str:
    """What a model says of every example of a dataset, as CSV: domain, path, label, prediction, confidence, role.

    The role is what the example was to the model, where it belongs to the dataset that it learned from: train,
    validation, test or unlabelled, and nothing elsewhere. On what it learned from, a model is better than it will be.

    Args:
        run: The folder of a trained model.
        dataset: The dataset, by default the one that it was trained on; or a folder of images without labels, which may
            lie in folders below it.
        domains: Its domains; all by default.
        skip_corrupt: Leave out files of a folder that cannot be read.

    Raises:
        DataError: There are no images in a folder, or some cannot be read.
        StoreError: The folder does not say what the model was trained on, and no dataset is named.
    """
    model, folder = load(run), weights_file(Path(run)).parent
    if dataset is not None and _is_folder(dataset):
        if domains:
            raise ShiftbedError(f"{dataset} is a folder of images, which has no domains; leave them out.")
        rows = _of_files(model, Path(dataset), skip_corrupt)
    else:
        rows = _of_dataset(model, folder, dataset or _trained_on(folder), domains)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["domain", "path", "label", "prediction", "confidence", "role"])
    writer.writerows(rows)
    return text.getvalue()


Said = tuple[str, str | Path, str, str, str, str]  # a row: domain, path, label, prediction, confidence, role


def _is_folder(name: str) -> bool:
    """Whether a name is a folder of images; that of a dataset is the dataset, though its own folder may lie here."""
    folder = Path(name)
    return folder.is_dir() and bool(images_in(folder) or name not in {*DATASETS, *prepared_names()})


def _of_files(model: Model, folder: Path, skip_corrupt: bool) -> Iterator[Said]:
    """What a model says of the image files in a folder and below it, of whose labels nothing is known."""
    files = readable(images_below(folder), skip_corrupt)
    for path, (said, confidence) in zip(files, _says(model, files), strict=True):
        yield folder.resolve().name, path.relative_to(folder).as_posix(), "", said, confidence, ""


def _of_dataset(model: Model, folder: Path, dataset: str, domains: Sequence[str]) -> Iterator[Said]:
    """What a model says of a dataset."""
    data = load_dataset(dataset)
    roles = _roles(folder, data)
    other = [name for name in data.card.classes if name not in model.classes]
    if other or len(data.card.classes) != len(model.classes):
        raise ShiftbedError(
            f"The classes of {dataset} ({_some(data.card.classes)}) are not the model's ({_some(model.classes)}); "
            "name a dataset of the same classes."
        )
    known = [domain.name for domain in data.domains]
    domains = whole_names(listed(domains), known)
    refuse_unknown("domain", domains, known, dataset)
    refuse_sealed_test(folder, domains or known)
    for domain in (domain for domain in data.domains if not domains or domain.name in domains):
        labels = [data.card.classes[label] if label >= 0 else "" for label in domain.labels]
        played = roles.get(domain.name, [""] * len(labels))
        says = _says(model, domain.inputs)
        for path, label, said, role in zip(example_names(dataset, domain.name), labels, says, played, strict=True):
            yield domain.name, path, label, *said, role


def _says(model: Model, images: Any) -> Iterator[tuple[str, str]]:
    """The class that a model chooses for each image, and how sure it is."""
    for shares in model.predict(images):
        yield model.classes[shares.argmax()], f"{shares.max():.4f}"


def _roles(folder: Path, data: MultiDomainDataset) -> dict[str, list[str]]:
    """By domain, what each example was to a model, where its folder knows these very examples."""
    job = job_of(folder)
    if job is None or (job["dataset"], job["version"]) != (data.card.name, data.card.version):
        return {}
    roles = {domain.name: [""] * len(domain) for domain in data.domains}
    for split in Job.from_description(job).task.splits:
        for index in split.indices:
            roles[split.domain][index] = split.role
    return roles


def _some(names: Sequence[str]) -> str:
    """The first names, and whether there are more."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _trained_on(folder: Path) -> str:
    job = job_of(folder)
    if job is None:
        raise StoreError(f"{folder} does not say which dataset its model was trained on; name one with --on.")
    return job["dataset"]


def export_onnx(model: Model, path: Path) -> None:
    """Writes the network as ONNX: from inputs as the network takes them to logits.

    Raises:
        ShiftbedError: torch's exporter is not installed.
    """
    import torch

    shape = (1, *model.about["input_shape"])
    try:
        batch = torch.export.Dim("batch")
        torch.onnx.export(
            _Logits(model), (torch.zeros(shape),), str(path), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
        )
    except ImportError as error:
        raise ShiftbedError(f"Exporting to ONNX needs `pip install onnx onnxscript` ({error}).") from error


def _Logits(model: Model) -> Any:  # noqa: N802
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.algorithm = model.algorithm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.algorithm.predict(x)

    return Logits().eval()
