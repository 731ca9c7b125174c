"""Linear probes on cached features: every image passes the frozen featurizer once, however long the head trains."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from shiftbed.algorithms.tuning import innermost
from shiftbed.errors import AlgorithmError
from shiftbed.networks import weights_digest
from shiftbed.training.augment import Augmentation
from shiftbed.training.capture import CapturedStep
from shiftbed.training.device import Runtime, numerics, one_thread, torch_defaults
from shiftbed.training.job import Job
from shiftbed.training.trainer import Trainer

IMAGES = 256  # that pass the featurizer together

Features = dict[Any, torch.Tensor]  # by what the featurizer is: jobs that start alike share them


def probe(job: Job, runtime: Runtime = Runtime(), cache: Features | None = None) -> list[dict[str, Any]]:  # noqa: B008
    """Trains a job of `LinearProbe` on cached features; returns its records, as stepping through the network would.

    The same batches, initial head, optimizer and evaluations: only rounding differs.

    Args:
        job: A job of `LinearProbe`, whose recipe augments nothing.
        runtime: The device.
        cache: Features of earlier jobs, to which this one's are added.

    Raises:
        AlgorithmError: The job learns more than a head, or its images are augmented.
    """
    if job.algorithm != "LinearProbe" or job.recipe.augmentation != still(job.recipe.augmentation):
        raise AlgorithmError(
            f"Cached features serve a LinearProbe on images that are not augmented, and this is {job.algorithm} with "
            f"recipe {job.recipe.name}; choose a recipe without augmentation."
        )
    with one_thread(), torch_defaults():
        trainer = Trainer(job, runtime)
        _use_features(trainer, {} if cache is None else cache)
    return records(trainer)


def still(augmentation: Augmentation) -> Augmentation:
    """An augmentation without its chance: training images are framed as evaluation images are."""
    chance = ("scale", "flip", "jitter", "grayscale")
    return augmentation.model_copy(update={name: Augmentation.model_fields[name].default for name in chance})


def records(trainer: Trainer) -> list[dict[str, Any]]:
    """Trains to the end, and evaluates when the recipe says so; what came after a bad loss is no record."""
    rows, recipe = [], trainer.job.recipe
    with one_thread(), torch_defaults():
        while trainer.step < recipe.steps:
            trainer.advance()
            if recipe.is_due(trainer.step):
                row = trainer.evaluate()
                if trainer.diverged_at() is not None:
                    break
                rows.append(row)
    return rows


def _use_features(trainer: Trainer, cache: Features) -> None:
    """Puts features in the place of images, and nothing in the place of the featurizer."""
    job, data = trainer.job, trainer.data
    algorithm = innermost(trainer.algorithm)
    digest = weights_digest(job.recipe.initial_weights, job.recipe.network)
    start = digest or job.cell  # random weights are drawn for each cell
    framing = job.recipe.image_size, job.recipe.augmentation
    key = repr((job.dataset, job.version, job.recipe.network, framing, start, job.recipe.precision))
    if key not in cache:
        cache[key] = extract(trainer)
    data.pool = replace(data.pool, resident=cache[key], hosted=())
    data.augmentation, data._fetcher = Augmentation(), None  # features are framed already, and lie on the device
    network = algorithm.get_submodule("network")
    assert isinstance(network, nn.Sequential)
    network[0] = nn.Identity()
    algorithm.add_module("featurizer", nn.Identity())
    if trainer.runtime.on_gpu:  # nothing but the head is left, whose step is always the same
        trainer._captured = CapturedStep(trainer.algorithm, trainer._make_step)


@torch.no_grad()
def extract(trainer: Trainer) -> torch.Tensor:
    """The features of all examples of a trainer's dataset, as its initial featurizer gives them."""
    featurizer = innermost(trainer.algorithm).get_submodule("featurizer").eval()
    places = np.arange(len(trainer.data.pool.labels))
    with numerics(trainer.job.recipe.precision, trainer.runtime):
        parts = [
            featurizer(trainer.data.evaluation_inputs(places[start : start + IMAGES])).float()
            for start in range(0, len(places), IMAGES)
        ]
    return torch.cat(parts)
