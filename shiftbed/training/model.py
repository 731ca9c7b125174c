"""A trained model as a file anyone can load, and the verb `load` that makes it predict."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shiftbed.algorithms import ALGORITHMS, Algorithm
from shiftbed.algorithms.base import looks_around
from shiftbed.data.images import Refused, decode_image, read_image
from shiftbed.data.pack import RaggedImages
from shiftbed.errors import DataError, StoreError
from shiftbed.hashing import canonical
from shiftbed.networks import FeaturizerModule, stride_first
from shiftbed.training.augment import Augmentation, augment, padded
from shiftbed.training.batches import as_model_input
from shiftbed.training.device import numerics, torch_defaults
from shiftbed.training.files import JobFiles
from shiftbed.training.recipes import domainbed_names
from shiftbed.training.store import read_json
from shiftbed.training.streams import reseed
from shiftbed.training.trainer import TRANSDUCTIVE_BATCH, Trainer, cpu_evaluation_batch

BATCH = 256
SHOWN = 8  # images that a model and its copy must predict alike


def encode_weights(trainer: Trainer) -> bytes:
    """The weights of a trainer as safetensors, with what is needed to build the network again."""
    from safetensors.torch import save

    job = trainer.job
    about = {
        "job": job.id,
        "algorithm": job.algorithm,
        "input_shape": trainer.data.input_shape,
        "classes": trainer.classes,
        "domains": len(job.task.train_domains),
        "unlabeled_domains": len(trainer.data.unlabelled),
        "hparams": dict(job.hparams),
        "recipe": job.recipe.name,
        "network": job.recipe.for_networks(),
        "preprocessing": job.recipe.model_dump(include={"image_size", "augmentation"}),
        "step": trainer.step,
    }
    early = [name for name, module in trainer.algorithm.named_modules() if getattr(module, "strides_first", False)]
    if early:  # initial weights had the network changed, which its own weights do not tell
        about["strides_first"] = early
    weights = trainer.weights()
    if not _is_whole(trainer, about, weights):
        about["whole"] = False
    # One entry: several are written in no fixed order, and equal jobs have equal files.
    return save(weights, {"shiftbed": canonical(about).decode()})


@torch.no_grad()
def _is_whole(trainer: Trainer, about: dict[str, Any], weights: dict[str, torch.Tensor]) -> bool:
    """Whether a new object with these weights predicts alike; a pasted class may keep more than weights."""
    algorithm = trainer.algorithm
    classes = [type(module) for module in algorithm.modules() if isinstance(module, Algorithm)]
    if all(cls.__module__.startswith("shiftbed.") for cls in classes):
        return True
    split, mode = trainer.job.task.of_role("test")[0], algorithm.training
    x = trainer.data.evaluation_inputs(trainer.data.pool.places(split)[:SHOWN])
    outputs = []
    try:
        for one in (algorithm, _rebuilt(about, weights).to(x.device)):
            reseed(trainer.job.id, trainer.step, "evaluation")
            with numerics("float32", trainer.runtime):
                outputs.append(one.eval().predict(x).float())
    except Exception:  # what was built in training may be missing in many ways
        return False
    finally:
        algorithm.train(mode)
    trained, again = outputs
    return torch.allclose(trained, again, rtol=1e-3, atol=1e-3)


def encode_logits(trainer: Trainer) -> bytes:
    """The logits of the tested images as safetensors, one tensor a split, in the order of the task's indices."""
    from safetensors.torch import save

    return save({name: values.cpu().contiguous() for name, values in trainer.logits().items()})


class Model:
    """A trained model, ready to predict.

    Attributes:
        classes: The names of the classes, in the order of the columns of `predict`.
        about: What it is: algorithm, job, step, hyperparameters, recipe.
    """

    def __init__(self, algorithm: Algorithm, classes: Sequence[str], about: dict[str, Any]) -> None:
        self.algorithm = algorithm.eval()
        self.classes = tuple(classes)
        self.about = about
        self._augmentation = Augmentation(**about["preprocessing"]["augmentation"])
        some = min(BATCH, cpu_evaluation_batch(about["input_shape"]))
        self._batch = TRANSDUCTIVE_BATCH if looks_around(type(algorithm)) else some

    def predict(self, images: np.ndarray | Sequence[Any]) -> np.ndarray:
        """The probability of every class for each image.

        Args:
            images: Arrays H×W×C of uint8, PIL images or paths of image files, of any sizes; or an array of inputs as
                the network takes them, where the dataset was not of images. An algorithm that looks at the images that
                come with an image looks at 64 in a row. Packed images are cut as they were evaluated, by their original
                sizes.

        Raises:
            DataError: They are of another kind or shape, or cannot be read.

        Returns:
            One row per image, one column per class.
        """
        return torch.from_numpy(self.outputs(images)[0]).double().softmax(1).numpy()

    @torch_defaults()
    @torch.inference_mode()
    def outputs(self, images: np.ndarray | Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
        """The logits of each image, and the features that the network makes of it on the way.

        Args:
            images: As for `predict`.

        Returns:
            One row per image, one column per class; one row per image, or None for an algorithm without a featurizer.
        """
        rows, features, seen = [], [], []
        featurizers = [module for module in self.algorithm.modules() if isinstance(module, FeaturizerModule)]
        hooks = [one.register_forward_hook(lambda _, __, output: seen.append(output)) for one in featurizers]
        try:
            for start in range(0, len(images), self._batch):
                logits = self.algorithm.predict(self._inputs(images[start : start + self._batch]))
                rows.append(logits.float().cpu().numpy())
                features += [output.float().cpu().numpy() for output in seen[-1:] if len(output) == len(logits)]
                seen.clear()
        finally:
            for hook in hooks:
                hook.remove()
        if not rows:
            return np.empty((0, len(self.classes)), np.float32), None
        return np.concatenate(rows), np.concatenate(features) if len(features) == len(rows) else None

    def _inputs(self, images: np.ndarray | Sequence[Any]) -> torch.Tensor:
        device = next(self.algorithm.parameters()).device
        shape = tuple(self.about["input_shape"])
        if all(isinstance(one, np.ndarray) and one.dtype != np.uint8 and one.shape == shape for one in images):
            images = np.asarray(images)  # rows of an array, as whoever takes some of a dataset's inputs has them
        if isinstance(images, np.ndarray) and images.dtype != np.uint8:
            if images.shape[1:] != shape:
                given = f"{images.dtype} of shape {images.shape[1:]}"
                raise DataError(f"The model takes inputs of shape {shape} or images H×W×C of uint8, not {given}.")
            return torch.from_numpy(images).float().to(device)
        if isinstance(images, np.ndarray) and self._augmentation.size is None:  # of one size: all at once
            _refuse_others(images[0], shape[0])
            together = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
            return as_model_input(self._resized(together).to(device))
        arrays = self._arrays(images)
        if self._augmentation.size is not None:
            sizes = np.array([array.shape[:2] for array in arrays])
            original = images.original_sizes if isinstance(images, RaggedImages) else sizes
            return augment(padded(arrays).to(device), self._augmentation.evaluation(original, sizes).to(device))
        return as_model_input(self._together(arrays).to(device))

    def _arrays(self, images: np.ndarray | Sequence[Any]) -> list[np.ndarray]:
        channels = self.about["input_shape"][0]
        arrays = [_as_array(image, channels) for image in images]
        for array in arrays:
            _refuse_others(array, channels)
        return arrays

    def resized(self, images: Sequence[Any]) -> np.ndarray:
        """Images of any sizes as bytes N×H×W×C, at the size that the network was trained on."""
        return self._together(self._arrays(images)).permute(0, 2, 3, 1).contiguous().numpy()

    def _together(self, arrays: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.cat([self._resized(torch.from_numpy(array).permute(2, 0, 1)[None]) for array in arrays])

    def _resized(self, images: torch.Tensor) -> torch.Tensor:
        """Images of the size that the network was trained on, made as those were."""
        size = tuple(self.about["input_shape"][1:])
        if images.shape[2:] == size:
            return images
        return torch.nn.functional.interpolate(images.float(), size=size, mode="area").round().byte()


def _refuse_others(array: np.ndarray, channels: int) -> None:
    """Refuses what is no image of bytes: shares of 1, taken for bytes, would be black."""
    if array.dtype != np.uint8:
        raise DataError(f"The model takes images H×W×C of uint8, 0 to 255, and these are {array.dtype}.")
    given = array.shape[2] if array.ndim == 3 else 0
    if given != channels:
        raise DataError(f"The model takes images H×W×C of {channels} channels, and these have {given or 'none'}.")


def _as_array(image: Any, channels: int) -> np.ndarray:
    """An image H×W×C as bytes; files and PIL images are read as `prepare` reads them, grey for one channel."""
    from PIL import Image

    if isinstance(image, str | Path):
        image = Image.fromarray(_read(Path(image)))
    elif isinstance(image, Image.Image):
        try:
            image = decode_image(image)
        except Exception as error:  # whatever Pillow raises of a damaged file
            raise DataError(f"A PIL image that was given cannot be read: {error}.") from error
    if isinstance(image, Image.Image):
        return np.array(image.convert("L"))[..., None] if channels == 1 else np.array(image)
    return np.require(image, requirements=["C", "W"])  # torch warns of arrays that it might but must not write to


def _read(path: Path) -> np.ndarray:
    image = read_image(path)
    if isinstance(image, Refused):
        why = f"it is {image.why}" if path.is_file() else "No such file"
        raise DataError(f"The image {path} cannot be read: {why}.")
    return image


@torch_defaults()
def load(run: str | Path, device: str = "cpu") -> Model:
    """The model that `shiftbed train` or `shiftbed best` left behind.

    Args:
        run: The run's folder, a job's folder in it, or the weights file itself.
        device: Where it predicts.

    Raises:
        StoreError: There are no weights there, or those of several jobs.
    """
    from safetensors import SafetensorError, safe_open

    path = weights_file(Path(run))
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except SafetensorError as error:
        raise StoreError(f"{path} is no file of weights, or a damaged one: {error}.") from error
    if "shiftbed" not in metadata:
        raise StoreError(f"{path} was not written by shiftbed, or by a version before models could be loaded.")
    about = json.loads(metadata["shiftbed"])
    name = about["algorithm"]
    if not about.get("whole", True):
        raise StoreError(
            f"{name} predicts with more than the parameters and buffers that {path} holds; register what it keeps "
            "besides as buffers, in its constructor, and train again."
        )
    try:
        algorithm = _rebuilt(about, tensors)
    except RuntimeError as error:  # torch's word for tensors of other shapes
        raise StoreError(f"{path} belongs to another version of {name}: {' '.join(str(error).split())}") from error
    return Model(algorithm.to(device), about["classes"], about)


def _rebuilt(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Algorithm:
    """A new object of an algorithm's class with the tensors of a trained one.

    Raises:
        RuntimeError: Its parameters are others.
    """
    shape, classes = tuple(about["input_shape"]), about["classes"]
    unlabelled = {"unlabeled_domains": about.get("unlabeled_domains", 0)}
    names = domainbed_names(about["network"]["network"], Augmentation(**about["preprocessing"]["augmentation"]))
    hparams = {**names, **about["hparams"], **about["network"], **unlabelled, "initial_weights": None}
    algorithm = ALGORITHMS[about["algorithm"]].cls(shape, len(classes), about["domains"], hparams)
    missing, _ = algorithm.load_state_dict(tensors, strict=False)
    lost = [name for name in missing if name in dict(algorithm.named_parameters())]
    if lost:
        raise RuntimeError(f"it lacks {', '.join(lost[:3])}.")
    _as_initial_weights_had_it(algorithm, tensors, about.get("strides_first", []))
    return algorithm


def _as_initial_weights_had_it(algorithm: Algorithm, tensors: dict[str, torch.Tensor], early: Sequence[str]) -> None:
    """What a network owes to its initial weights, which may be gone by now, besides its parameters.

    That is the normalisation of images, which is in buffers that no state has but the file does, and the place of a
    ResNet's strides.
    """
    for name, buffer in algorithm.named_buffers():
        if name in tensors:
            buffer.copy_(tensors[name])
    for name, module in algorithm.named_modules():
        if name in early and isinstance(module, FeaturizerModule):
            stride_first(module)


def job_of(folder: Path) -> dict[str, Any] | None:
    """What the job whose weights are in a folder was, as its `job.json` says; None if it says nothing."""
    about = folder / "job.json"
    return read_json(about) if about.exists() else None


def last_weights(sweep: Path, job_id: str) -> Path:
    """Where the weights that a job of a sweep kept would be; of those of every evaluation the last."""
    kept = sweep / JobFiles(job_id).weights
    every = [] if kept.exists() else kept.parent.glob("weights-*.safetensors")
    return max(every, key=lambda file: int(file.stem.removeprefix("weights-")), default=kept)


def weights_file(run: Path) -> Path:
    """The weights in a run's folder, in a job's folder, or the file itself.

    Raises:
        StoreError: There are none, or those of several jobs.
    """
    if run.is_file():
        return run
    files = [*run.glob("weights.safetensors"), *run.glob("jobs/*/weights.safetensors")]
    if len(files) == 1:
        return files[0]
    steps = sorted([*run.glob("weights-*.safetensors"), *run.glob("jobs/*/weights-*.safetensors")])
    if steps and not files:
        raise StoreError(f"There are the weights of {len(steps)} steps in {run}; name a file, such as {steps[0]}.")
    if not files:
        raise StoreError(
            f"There are no weights in {run}; `shiftbed train` keeps them, `shiftbed best` makes them again."
        )
    raise StoreError(
        f"There are the weights of {len(files)} jobs in {run}; name one of them, such as {files[0].parent}."
    )
