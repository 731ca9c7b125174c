"""From a model and images to outputs, computed once: they are kept under the model's and the domain's ids."""

import hashlib
import io
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.accuracy.outputs import Outputs
from shiftbed.errors import DataError, StoreError
from shiftbed.training.device import one_thread
from shiftbed.training.model import Model
from shiftbed.training.store import Store

Images = np.ndarray | Sequence[Any]  # an array N×H×W×C, or image files, or arrays of any sizes
AnyModel = Model | Callable[[Images], Any]  # a function gives logits, or logits and features


@dataclass(frozen=True)
class DomainImages:
    """The images of a domain, maybe with labels.

    Attributes:
        name: The domain's name.
        id: A hash of the images.
        images: Makes the images: what is cached already is never made.
        labels: Their classes, or None.
        group: What is left out together with it when a predictor is judged.
    """

    name: str
    id: str
    images: Callable[[], Images]
    labels: np.ndarray | None = None
    group: str = ""

    @classmethod
    def of(cls, name: str, images: Images, labels: np.ndarray | None = None, group: str = "") -> "DomainImages":
        """A domain of images that are at hand."""
        return cls(name, content_id(images), lambda: images, labels, group or name)


def content_id(images: Images) -> str:
    """A hash of what images contain, whatever they are called."""
    found = hashlib.sha256()
    for image in [images] if isinstance(images, np.ndarray) else images:
        if isinstance(image, str | Path):
            found.update(Path(image).read_bytes())
        else:
            values = np.ascontiguousarray(image)
            found.update(str((values.shape, values.dtype)).encode() + values.tobytes())
    return found.hexdigest()[:32]


class Extractor:
    """Asks a model for its outputs, or a store that remembers them.

    Args:
        model: A loaded model, or a function from images to logits, or to logits and features.
        store: Where outputs are kept, under the job and step of a loaded model; None keeps nothing.
    """

    def __init__(self, model: AnyModel, store: Store | None = None) -> None:
        self._model = model
        about = model.about if isinstance(model, Model) else {}
        self._store = store if "job" in about else None
        self._model_id = f"{about.get('job')}-{about.get('step')}"
        self.computed = 0

    def __call__(self, domain: DomainImages) -> Outputs:
        """The outputs of a domain, with its labels.

        Raises:
            DataError: There are fewer than two images, or outputs are not finite or not of the labels' classes.
        """
        key = f"outputs/{self._model_id}/{domain.id}.npz"
        logits, features = self._remembered(key) or self._compute(domain, key)
        return Outputs(logits, features, domain.labels, name=domain.name)

    def _remembered(self, key: str) -> tuple[np.ndarray, np.ndarray | None] | None:
        data = self._store.get(key) if self._store is not None else None
        if data is None:
            return None
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return arrays["logits"], arrays.get("features")
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
            return None  # cut off: computed again

    def _compute(self, domain: DomainImages, key: str) -> tuple[np.ndarray, np.ndarray | None]:
        images = domain.images()
        if len(images) < 2:
            have = "There are no images" if len(images) == 0 else "There is one image"
            raise DataError(f"{have} in {domain.name}; an accuracy is predicted from two images or more.")
        with one_thread():  # sums in one order everywhere, and small networks run no slower
            given = self._model.outputs(images) if isinstance(self._model, Model) else self._model(images)
        logits, features = given if isinstance(given, tuple) else (given, None)
        logits = np.asarray(logits, np.float32)
        self.computed += 1
        if self._store is not None:
            buffer = io.BytesIO()
            np.savez(buffer, logits=logits, **({} if features is None else {"features": features}))
            with suppress(StoreError):  # a model on a disk that is full or read-only still answers, each time anew
                self._store.put_atomic(key, buffer.getvalue())
        return logits, features
