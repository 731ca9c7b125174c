"""From results to a model: the job that a rule chooses, trained again to its step, and what it predicts."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shiftbed.data import MultiDomainDataset, example_names
from shiftbed.data import load as load_dataset
from shiftbed.data.examples import images_in
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.hashing import canonical
from shiftbed.selection import SELECTIONS, Choice, JobRecords
from shiftbed.sweeps.blind import is_sealed, refuse_sealed
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.device import find_runtime
from shiftbed.training.job import Job
from shiftbed.training.model import Model, encode_weights, job_of, load, weights_file
from shiftbed.training.run import JobFiles, one_thread
from shiftbed.training.store import LocalStore, read_json
from shiftbed.training.trainer import Trainer

OF_BLIND = "blind.json"  # beside a model that was chosen from a sealed sweep: where that is


class Best(NamedTuple):
    """The model that was chosen and made: whose it is, why it was chosen, and whether its record came out the same."""

    job: JobRecords
    choice: Choice
    weights: Path
    same: bool


def best(
    folder: str | Path,
    out: str | Path,
    *,
    selection: str = "training-domain-validation",
    algorithm: str | None = None,
    test: Sequence[str] = (),
    device: str | None = None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> Best:
    """Trains the job that a selection rule prefers to the step it prefers, and keeps its weights.

    A sweep keeps no weights; jobs repeat themselves to the bit, so the chosen one can be made again.

    Args:
        folder: The sweep's folder.
        out: The folder for the model.
        selection: The rule; its score decides among all jobs that compete.
        algorithm: Only jobs of this algorithm.
        test: Only jobs that test these domains.
        device: Where to train.
        on_step: Called after every update with the step and the number of steps.

    Raises:
        StoreError: No finished job competes; or the rule reads test numbers, and the sweep is sealed.
    """
    rule = SELECTIONS[selection]
    if rule.reads_test:
        refuse_sealed(folder)
    jobs = [
        job
        for job in finished_jobs(LocalStore(Path(folder)))
        if algorithm in (None, job.description["algorithm"]) and set(test) <= set(job.description["test_domains"])
    ]

    def cell(job: JobRecords) -> tuple[Any, ...]:
        about = job.description
        return about["setting"], about["algorithm"], tuple(about["test_domains"]), about["trial"]

    if algorithm is not None and not jobs:
        raise StoreError(f"No finished job in {folder} is of {algorithm} and tests these domains.")
    by_id = {job.id: job for job in jobs}
    choices = [rule.choose(list(group)) for _, group in groupby(sorted(jobs, key=cell), cell)]
    found = [choice for choice in choices if choice is not None]
    if not found:
        raise StoreError(
            f"No finished job in {folder} competes under {selection}; `shiftbed status {folder}` shows them."
        )
    choice = _best_of(found, {choice.job_id: cell(by_id[choice.job_id]) for choice in found})
    trainer = retrained(Job.from_description(by_id[choice.job_id].description), choice.step, device, on_step)
    recorded = next(row for row in by_id[choice.job_id].rows if row["step"] == choice.step)
    with one_thread():
        made = trainer.evaluate()["splits"]  # first, since an algorithm may decide here with which weights it predicts
    store, files = LocalStore(Path(out)), JobFiles(choice.job_id)
    store.put_atomic(files.weights, encode_weights(trainer))
    store.put_atomic(files.job, canonical(by_id[choice.job_id].description))  # which images it never saw
    if is_sealed(LocalStore(Path(folder))):
        store.put_atomic(f"{Path(files.job).parent}/{OF_BLIND}", canonical({"sweep": str(Path(folder).resolve())}))
    same = {name: made[name] for name in recorded["splits"] if name in made} == recorded["splits"]
    return Best(by_id[choice.job_id], choice, Path(out) / files.weights, same)


def _best_of(choices: Sequence[Choice], cells: Mapping[str, tuple[Any, ...]]) -> Choice:
    """The best choice of the algorithm that scores best in the mean over the tasks that all algorithms have.

    Scores of different tasks are of other images, so that one of them alone says little about an algorithm.
    """
    scores: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = defaultdict(dict)
    for choice in choices:
        setting, algorithm, *task = cells[choice.job_id]
        scores[setting, algorithm][tuple(task)] = choice.score
    common = set.intersection(*(set(found) for found in scores.values()))
    means = {who: np.mean([found[task] for task in common or found]) for who, found in scores.items()}
    return max(choices, key=lambda one: (means[cells[one.job_id][:2]], one.score, one.job_id))


def retrained(job: Job, step: int, device: str | None, on_step: Callable[[int, int], None]) -> Trainer:
    """A trainer that has made the first steps of a job again, evaluations included: some algorithms learn from them."""
    with one_thread():
        trainer = Trainer(job, find_runtime(device))
        while trainer.step < step:
            trainer.advance()
            on_step(trainer.step, step)
            if trainer.step % job.recipe.evaluate_every == 0 and trainer.step < step:
                trainer.evaluate()
    return trainer


def predictions(run: str | Path, dataset: str | None = None, domains: Sequence[str] = ()) -> str:
    """What a model says of every example of a dataset, as CSV: domain, path, label, prediction, confidence, role.

    The role is what the example was to the model, where it belongs to the dataset that it learned from: train,
    validation or test, and nothing elsewhere. On what it learned from, a model is better than it will be.

    Args:
        run: The folder of a trained model.
        dataset: The dataset, by default the one that it was trained on; or a folder of images without labels.
        domains: Its domains; all by default.

    Raises:
        StoreError: The folder does not say what the model was trained on, and no dataset is named.
    """
    model, folder = load(run), weights_file(Path(run)).parent
    files = images_in(Path(dataset)) if dataset is not None and Path(dataset).is_dir() else []
    if files and domains:
        raise ShiftbedError(f"{dataset} is a folder of images, which has no domains; leave them out.")
    rows = _of_files(model, files) if files else _of_dataset(model, folder, dataset or _trained_on(folder), domains)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["domain", "path", "label", "prediction", "confidence", "role"])
    writer.writerows(rows)
    return text.getvalue()


Said = tuple[str, str | Path, str, str, str, str]  # a row: domain, path, label, prediction, confidence, role


def _of_files(model: Model, files: Sequence[Path]) -> Iterator[Said]:
    """What a model says of image files, of whose labels nothing is known."""
    for path, (said, confidence) in zip(files, _says(model, files), strict=True):
        yield path.parent.name, path.name, "", said, confidence, ""


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
    for name in domains:
        if name not in known:
            raise ShiftbedError(f"{dataset} has no domain '{name}'; it has {', '.join(known)}.")
    _refuse_sealed_test(folder, domains or known)
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


def _refuse_sealed_test(folder: Path, domains: Sequence[str]) -> None:
    """Does not set the labels of a test domain beside the predictions of a model whose sweep is sealed."""
    of_blind, job = folder / OF_BLIND, job_of(folder)
    if of_blind.exists() and job is not None and set(job["test_domains"]) & set(domains):
        refuse_sealed(read_json(of_blind)["sweep"])


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
