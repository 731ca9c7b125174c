"""The pretraining study: what accuracy comes from the initial weights (Yu et al., 2024, section 2.1).

Everything from the whole network (fine-tuning) to the head alone (linear probe) is trained, with more and more stages
frozen, from several initial weights. Models are selected on held-out images of the training domains.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shiftbed.audit.probing import Features, extract, probe, records, still
from shiftbed.data import card
from shiftbed.hashing import canonical
from shiftbed.hparams import Value
from shiftbed.networks import NETWORKS
from shiftbed.protocols import LeaveOut
from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.shift.comparison import frechet_distance_of_samples
from shiftbed.training.batches import TaskData
from shiftbed.training.device import Runtime
from shiftbed.training.files import JobFiles, Result
from shiftbed.training.job import Job, make_job
from shiftbed.training.recipes import Recipe
from shiftbed.training.store import Store
from shiftbed.training.trainer import Trainer

RULE = "training-domain-validation"
NOTHING = "none"  # the name of random weights


class Arm(NamedTuple):
    """How much of a network is trained, and from what.

    Attributes:
        weights: The name or file of the initial weights, or `NOTHING`.
        frozen: How many stages stay as they were; 0 is fine-tuning.
        probe: Whether the head alone is trained: all stages are frozen, and what comes after them.
    """

    weights: str
    frozen: int
    probe: bool

    @property
    def algorithm(self) -> str:
        """The algorithm that trains it."""
        return "LinearProbe" if self.probe else "FrozenStages" if self.frozen else "ERM"


def arms(weights: Sequence[str], stages: int) -> list[Arm]:
    """All arms of a study: for every initial weights, fine-tuning, each number of frozen stages, the linear probe."""
    last = max(stages, 1)
    return [Arm(name, frozen, frozen == last) for name in weights for frozen in range(last + 1)]


def stages_of(dataset: str, how: Recipe) -> int:
    """How many stages the network of a recipe has."""
    job = make_job(dataset, "ERM", LeaveOut((next(iter(card(dataset).domains)),)), how)
    return len(NETWORKS[how.network](TaskData(job).input_shape, {}).stages)


def plan(
    dataset: str,
    how: Recipe,
    arm: Arm,
    tests: Sequence[str] = (),
    draws: int = 1,
    trials: Sequence[int] = (0,),
    overrides: Mapping[str, Value] | None = None,
) -> list[Job]:
    """The jobs of an arm: every test domain alone, every draw and trial.

    Args:
        dataset: The dataset's name.
        how: The recipe, whose initial weights the arm replaces.
        arm: The arm.
        tests: The test domains; all by default.
        draws: Draws of the hyperparameters.
        trials: The repetitions.
        overrides: Hyperparameters set by hand.
    """
    fields: dict[str, Any] = {"initial_weights": None if arm.weights == NOTHING else arm.weights}
    if arm.weights == NOTHING:
        fields["batch_norm"] = "trained"  # there are no statistics worth keeping
    if arm.probe:
        fields |= {"augmentation": still(how.augmentation), "augment_validation": False}
    recipe = how.model_copy(update=fields)
    given = {**(overrides or {}), **({"frozen_stages": arm.frozen} if arm.algorithm == "FrozenStages" else {})}
    return [
        make_job(dataset, arm.algorithm, LeaveOut((test,)), recipe, draw, trial, given)
        for trial in trials
        for test in tests or card(dataset).domains
        for draw in range(draws)
    ]


def run_here(
    jobs: Sequence[Job], store: Store, runtime: Runtime, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Trains jobs one after another in this process, probes on cached features; what is done is not done again."""
    cache: Features = {}
    for job in jobs:
        if should_stop():
            return
        if Result.read(store, job.id) is None:
            rows = probe(job, runtime, cache) if job.algorithm == "LinearProbe" else records(Trainer(job, runtime))
            last = rows[-1]["step"] if rows else 0
            status = "done" if last == job.recipe.steps else "diverged"
            tests = [split.name for split in job.task.of_role("test")]
            store.put_atomic(JobFiles(job.id).job, canonical(job.describe()))
            Result.of(status, last, rows, tests).write(store, job.id)


def finished(jobs: Sequence[Job], store: Store) -> list[JobRecords]:
    """Those of the jobs that have ended, with their records."""
    found = []
    for job in jobs:
        result = Result.read(store, job.id)
        if result is not None:
            ended = result.parsed(job.id)
            found.append(JobRecords(job.describe(), ended["status"], ended["records"]))
    return found


class Accuracy(NamedTuple):
    """The accuracy of an arm on a test domain, in percent.

    Attributes:
        error: Its standard error: over trials, or with a single one that of a share of `images`.
        trials: How many trials it is the mean of.
        images: How many images are reported.
    """

    mean: float
    error: float
    trials: int
    images: int


def accuracies(jobs: Sequence[JobRecords]) -> dict[str, Accuracy]:
    """Per test domain, the accuracy of the jobs of an arm, selected on validation and averaged over trials."""
    cells: dict[tuple[str, int], list[JobRecords]] = defaultdict(list)
    for job in jobs:
        cells[job.description["test_domains"][0], job.description["trial"]].append(job)
    values: dict[str, list[float]] = defaultdict(list)
    images: dict[str, int] = {}
    for (test, _), members in cells.items():
        choice = SELECTIONS[RULE].choose(members)
        if choice is not None:
            job = next(one for one in members if one.id == choice.job_id)
            row = job.row(choice.step)
            reported = row["splits"][f"{test}/in"]
            values[test].append(100 * reported["accuracy"])
            images[test] = int(reported["count"])
    return {test: _accuracy(found, images[test]) for test, found in values.items()}


def _accuracy(values: Sequence[float], images: int) -> Accuracy:
    mean = float(np.mean(values))
    by_images = float(np.sqrt(max(mean * (100 - mean), 0) / images))
    error = by_images if len(values) == 1 else float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return Accuracy(mean, error, len(values), images)


def relative_gap(probe: float, fine_tuned: float) -> float:
    """How much better a linear probe is than fine-tuning, as a share of the latter; not a number where that is 0."""
    return (probe - fine_tuned) / fine_tuned if fine_tuned else math.nan


def distances(job: Job, stand_in: str, runtime: Runtime) -> dict[str, float]:
    """The Fréchet distance of every domain to a domain that stands in for the pretraining data, in initial features.

    The stand-in is compared with itself in two halves. All samples have one size, since the distance depends on it.

    Args:
        job: A linear probe, whose initial featurizer is used.
        stand_in: A domain of the job's dataset.
        runtime: The device.
    """
    trainer = Trainer(job, runtime)
    features, pool = extract(trainer).cpu().numpy(), trainer.data.pool
    bounds = [*pool.starts.values(), len(features)]
    parts = {name: features[bounds[i] : bounds[i + 1]] for i, name in enumerate(pool.starts)}
    reference = parts[stand_in][::2]
    parts[stand_in] = parts[stand_in][1::2]
    random, size = np.random.default_rng(0), min(len(reference), *(len(part) for part in parts.values()))
    reference = reference[random.permutation(len(reference))[:size]]
    samples = {name: part[random.permutation(len(part))[:size]] for name, part in parts.items()}
    return {name: frechet_distance_of_samples(reference, part, runtime.device) for name, part in samples.items()}
