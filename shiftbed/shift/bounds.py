"""NICO++'s two bounds on the test error of a model, and what of their finite-sample terms can be computed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shiftbed.data import Domain, MultiDomainDataset
from shiftbed.errors import DataError
from shiftbed.shift.concept import disagreements, discrepancy, train_apart
from shiftbed.shift.fitting import BATCH, Scale, in_batches, make_network, train
from shiftbed.shift.measures import Settings
from shiftbed.shift.samples import Sample, comparable
from shiftbed.training.job import Job
from shiftbed.training.model import job_of, load, weights_file
from shiftbed.training.streams import seeded

DELTA = 0.05


@dataclass(frozen=True)
class Bounds:
    """Theorems 4.2 and 4.3 of NICO++ for one model and two domains, at 0-1 loss.

    Attributes:
        train_error: The model's error on the training domain.
        test_error: Its error on the test domain, which the bounds enclose (up to the error of what they are made of).
        covariate: The covariate shift.
        concept_min: The concept shift, the smaller value.
        concept_max: The larger value.
        floor: How often two labelling functions that were learned on halves of one domain disagree there, the larger
            of both: what is not more than that is no shift, and no ground for a lower bound.
    """

    train_error: float
    test_error: float
    covariate: float
    concept_min: float
    concept_max: float
    floor: float = 0.0

    @property
    def upper(self) -> float:
        """At most this is the test error (Theorem 4.2)."""
        return min(1.0, self.train_error + self.covariate + self.concept_min)

    @property
    def lower(self) -> float:
        """At least this is the test error (Theorem 4.3)."""
        return max(0.0, self.unavoidable - self.train_error)

    @property
    def unavoidable(self) -> float:
        """What a model without error on the training domain must still lose on the test domain."""
        return max(0.0, self.concept_max - self.floor - self.covariate)

    @property
    def slack(self) -> tuple[float, float]:
        """How far the test error lies above the lower and below the upper bound; negative where it is beyond."""
        return self.test_error - self.lower, self.upper - self.test_error

    @property
    def holds(self) -> bool:
        """Whether the test error lies between the bounds."""
        return min(self.slack) >= 0


def bounds_of(
    predict: Callable[[np.ndarray], np.ndarray], p: Sample, q: Sample, settings: Settings | None = None
) -> Bounds:
    """The bounds on the test error of a model that was trained on p and is tested on q.

    Args:
        predict: From inputs (as the samples hold them) to class numbers.
        p: The training domain: examples that the model has not learned from.
        q: The test domain.
        settings: How networks are trained for the measures.

    Raises:
        DataError: The model does not give one class for each example, a side has no labels, or the sides share fewer
            than two classes.
    """
    settings = settings or Settings()
    p, q, _ = comparable(p, q)
    errors = []
    for side in (p, q):
        predicted = np.asarray(predict(side.inputs))
        if predicted.shape != (len(side),):
            raise DataError(
                f"The model gives an array of shape {predicted.shape} for the {len(side)} examples of '{side.name}'; "
                "it must give one class number for each."
            )
        errors.append(float((predicted != side.labels).mean()))
    concept = disagreements(p, q, settings)
    found = discrepancy(p, q, settings)
    # Where networks learned nothing, the bounds hold with the most or the least that a shift can be.
    covariate = 1.0 if found.failed else max(0.0, found.value)
    least = min(1.0 if one.failed else one.value for one in concept)
    most = max(0.0 if one.failed else one.value for one in concept)
    floor = max(one.floor for one in concept)
    return Bounds(errors[0], errors[1], covariate, least, most, floor)


def unlearned(dataset: MultiDomainDataset, run: str | Path) -> MultiDomainDataset:
    """The dataset without the examples that a model learned from, where its folder says which these are.

    Of a test domain these are the images that it was given without labels.
    """
    job = job_of(weights_file(Path(run)).parent)
    if job is None or (job["dataset"], job["version"]) != (dataset.card.name, dataset.card.version):
        return dataset
    task = Job.from_description(job).task
    given = [*task.of_role("train"), *task.of_role("unlabelled")]
    learned = {split.domain: split.indices for split in given}
    domains = []
    for domain in dataset.domains:
        rest = np.setdiff1d(np.arange(len(domain)), learned.get(domain.name, ()))
        inputs = domain.inputs[rest] if isinstance(domain.inputs, np.ndarray) else [domain.inputs[i] for i in rest]
        groups = None if domain.groups is None else domain.groups[rest]
        domains.append(Domain(domain.name, inputs, domain.labels[rest], groups))
    return MultiDomainDataset(dataset.card, tuple(domains))


def predictor(run: str | Path, classes: Sequence[str], device: str = "cpu") -> Callable[[np.ndarray], np.ndarray]:
    """A trained model as what `bounds_of` takes: from inputs to numbers in this list of classes.

    Samples hold images N×C×H×W in [0, 1]; the model is given them as the bytes that they were.

    Raises:
        StoreError: There is no model there.
        DataError: It was trained on other classes.
    """
    model = load(run, device)
    unknown = [name for name in model.classes if name not in classes]
    if unknown:
        raise DataError(
            f"The model in {run} knows the class '{unknown[0]}', which the dataset has not; take the dataset that it "
            "was trained on."
        )
    numbers = np.array([list(classes).index(name) for name in model.classes])

    def predict(inputs: np.ndarray) -> np.ndarray:
        if inputs.ndim == 4:
            inputs = np.ascontiguousarray((255 * inputs).round().astype(np.uint8).transpose(0, 2, 3, 1))
        else:
            inputs = inputs.astype(np.float32)
        return numbers[model.predict(inputs).argmax(1)]

    return predict


@dataclass(frozen=True)
class FiniteSampleTerms:
    """What Theorems A.1 and A.2 of NICO++ add to the upper bound, and subtract from the lower, for finite samples.

    Attributes:
        deviation: The terms of order √(ln(1/δ)/n), exactly.
        pairs_train: The Rademacher complexity of differences of two networks on the training examples, at least.
        pairs_test: The same on the test examples.
        losses_train: The Rademacher complexity of the loss of one network on the training examples, at least.
    """

    deviation: float
    pairs_train: float
    pairs_test: float
    losses_train: float

    @property
    def total(self) -> float:
        """Their sum; from 1 on, the bounds for finite samples say nothing."""
        return self.deviation + self.pairs_train + self.pairs_test + self.losses_train


def deviation(train_count: int, test_count: int) -> float:
    """The deviation terms: 3 √(ln(6/δ) / 2n), twice for the training sample and once for the test sample.

    Each of three uniform bounds holds with probability 1 − δ/3: the discrepancy on either sample, and the error on
    the training sample.
    """
    terms = [3 * math.sqrt(math.log(6 / DELTA) / (2 * count)) for count in (train_count, train_count, test_count)]
    return sum(terms)


def finite_sample_terms(p: Sample, q: Sample, settings: Settings | None = None) -> FiniteSampleTerms:
    """The finite-sample terms of the bounds.

    The Rademacher complexity of networks, (2/n) E sup |Σ σᵢ g(xᵢ)|, has no known value. Networks that are trained on
    random signs σ reach some of the supremum, so that theirs is a lower estimate: if the terms are already too large to
    conclude with it, they are.
    """
    settings = settings or Settings()
    return FiniteSampleTerms(
        deviation(len(p), len(q)),
        _complexity(p, settings, of_pairs=True),
        _complexity(q, settings, of_pairs=True),
        _complexity(p, settings, of_pairs=False),
    )


def _complexity(sample: Sample, settings: Settings, of_pairs: bool) -> float:
    """(2/n) |Σ σᵢ g(xᵢ)| of what was trained to make it large: the difference of two networks, or one's loss."""
    x = Scale.of(sample.inputs)(sample.inputs, settings.device)
    random = np.random.default_rng(settings.seed)
    positive = torch.from_numpy(random.random(len(sample)) < 0.5).to(settings.device)
    outputs = max(2, len(sample.classes))
    if of_pairs:
        values = in_batches(train_apart(x[positive], x[~positive], outputs, settings, settings.seed), x)
    else:
        values = _losses_of_signs(sample, x, positive, outputs, settings)
    signs = torch.where(positive, 1.0, -1.0)
    return float(2 * (signs * values).sum().abs() / len(x))


def _losses_of_signs(
    sample: Sample, x: torch.Tensor, positive: torch.Tensor, outputs: int, settings: Settings
) -> torch.Tensor:
    """The losses ½|h(x) − y| = 1 − h_y(x) of a network that was trained to err where the sign is positive."""
    y = torch.from_numpy(np.searchsorted(sample.classes, np.asarray(sample.labels))).to(settings.device)
    signs = torch.where(positive, 1.0, -1.0)
    with seeded(settings.seed):
        network = make_network(x, outputs, settings)

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 1 - network(x).softmax(1).gather(1, y[:, None])[:, 0]

        train([network], lambda rows: -(signs[rows] * loss(x[rows], y[rows])).mean(), [len(x)], settings, settings.seed)
        network.eval()
    with torch.no_grad():
        return torch.cat([loss(*batch) for batch in zip(x.split(BATCH), y.split(BATCH), strict=True)])
