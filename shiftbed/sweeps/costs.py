"""What jobs cost: seconds measured with a few steps, or taken from finished jobs; and what their records weigh."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from shiftbed.data import card
from shiftbed.errors import AlgorithmError, ShiftbedError, sentence
from shiftbed.sweeps.records import mean_seconds
from shiftbed.training.device import Runtime, one_thread, torch_defaults
from shiftbed.training.job import Job
from shiftbed.training.store import Store
from shiftbed.training.trainer import Trainer

WARM_UP, TIMED = 2, 5  # steps of a probe
SPLIT_BYTES, CLASS_BYTES = 400, 8  # of a record's split, and of each class in it
OTHER_BYTES = 12_000  # of a job's other files
PLAIN = "Steps were measured plainly; compiled and captured, as a sweep makes them on a GPU, most are faster."
Kind = tuple[str, str]  # dataset and algorithm


@dataclass(frozen=True)
class Cost:
    """Seconds of a kind of job.

    Attributes:
        once: To start.
        evaluation: For one evaluation.
        step: For one update, whatever its batch.
        example: For each example of a domain in a batch, on top.
    """

    once: float
    evaluation: float = 0.0
    step: float = 0.0
    example: float = 0.0

    def __call__(self, job: Job) -> float:
        """The seconds of a job."""
        batch = float(job.hparams.get("batch_size", 0))
        recipe = job.recipe
        return self.once + recipe.evaluations * self.evaluation + recipe.steps * (self.step + batch * self.example)


def kinds(jobs: Iterable[Job]) -> dict[Kind, list[Job]]:
    """Jobs by dataset and algorithm."""
    found: dict[Kind, list[Job]] = defaultdict(list)
    for job in jobs:
        found[job.dataset, job.algorithm].append(job)
    return found


def known_costs(jobs: Mapping[Kind, Sequence[Job]], store: Store) -> dict[Kind, Cost]:
    """The mean seconds of those of the jobs that are done, for the kinds that have some."""
    seconds = mean_seconds(store, {kind: [job.id for job in some] for kind, some in jobs.items()})
    return {kind: Cost(mean) for kind, mean in seconds.items()}


def measured_costs(
    jobs: Mapping[Kind, Sequence[Job]],
    runtime: Runtime,
    on_probe: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> tuple[dict[Kind, Cost], list[str]]:
    """Measures every kind of job with a few steps, in this process.

    Args:
        jobs: The jobs by kind.
        runtime: The device; steps run plainly, which on a GPU is slower than the compiled steps of a real job.
        on_probe: Told how many kinds are measured.

    Returns:
        The costs, and a sentence each if some could not be measured, and if jobs will be faster.
    """
    costs: dict[Kind, Cost] = {}
    missing: dict[str, str] = {}  # why, by dataset, or by algorithm and dataset
    for number, (kind, some) in enumerate(jobs.items()):
        on_probe("measuring steps", number, len(jobs))
        if kind[0] in missing:
            continue
        try:
            costs[kind] = _measured(some, Runtime(runtime.device, accelerate=False))
        except Exception as error:  # a bug in someone's algorithm hides no other's estimate
            of_all = isinstance(error, ShiftbedError) and not isinstance(error, AlgorithmError)
            missing[kind[0] if of_all else f"{kind[1]} on {kind[0]}"] = sentence(error)
    notes = [f"No estimate for {', '.join(missing)}: {next(iter(missing.values()))}"] if missing else []
    if runtime.on_gpu and costs:
        notes.append(PLAIN)
    return costs, notes


def _measured(jobs: Sequence[Job], runtime: Runtime) -> Cost:
    """Measures the smallest and the largest batch of some jobs: in between, seconds grow by the example."""
    by_batch = {job.hparams.get("batch_size", 0): job for job in jobs}
    sizes = sorted({min(by_batch), max(by_batch)})
    measured = [_seconds(by_batch[size], runtime) for size in sizes]
    once, evaluation = (statistics.fmean(values) for values in list(zip(*measured, strict=True))[:2])
    steps = [step for _, _, step in measured]
    if len(sizes) == 1:
        return Cost(once, evaluation, steps[0])
    slope = max(0.0, (steps[1] - steps[0]) / (float(sizes[1]) - float(sizes[0])))
    return Cost(once, evaluation, max(0.0, steps[0] - slope * float(sizes[0])), slope)


def _seconds(job: Job, runtime: Runtime) -> tuple[float, float, float]:
    """Seconds to start a job, for one evaluation, and for one step (the median of a few)."""

    def timed(action: Callable[[], object]) -> float:
        started = time.perf_counter()
        action()
        if runtime.on_gpu:
            torch.cuda.synchronize(runtime.device)
        return time.perf_counter() - started

    with one_thread(), torch_defaults():
        trainer = Trainer(job, runtime)
        for _ in range(WARM_UP):  # what a warm worker has loaded already counts for nothing
            trainer.advance()
        trainer.evaluate()
        once = timed(lambda: Trainer(job, runtime))
        return once, timed(trainer.evaluate), statistics.median(timed(trainer.advance) for _ in range(TIMED))


def disk_bytes(jobs: Iterable[Job]) -> int:
    """What the files of finished jobs need without weights: records and result, and the small files beside them."""
    total = 0
    for (dataset, _), some in kinds(jobs).items():
        known, recipe = card(dataset), some[0].recipe
        # One split of every training domain, in the records and in the result, and two of a test domain.
        splits = recipe.evaluations * 2 * len(known.domains)
        total += len(some) * (OTHER_BYTES + splits * (SPLIT_BYTES + CLASS_BYTES * len(known.classes)))
    return total
