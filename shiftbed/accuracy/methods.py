"""The methods: each gives a domain one score, from a model's outputs there and, where it needs one, a source.

A score that is itself an accuracy is called direct; any score becomes one through a line fitted on labelled domains.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.special import rel_entr

from shiftbed.accuracy.agreement import OnTheLine, mean_agreement, on_the_line
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.reference import Reference, required_features
from shiftbed.accuracy.transport import transported_probability
from shiftbed.errors import DataError
from shiftbed.registry import Registry
from shiftbed.shift.comparison import frechet_distances, moments

Need = Literal["source", "features", "pool"]
Score = Callable[[Outputs, Reference], float]
LOW_ENTROPY = 0.3  # of the entropy of a uniform guess


class Method(NamedTuple):
    """A registered method.

    Attributes:
        name: Its name.
        score: The function of a domain's outputs and the source.
        label: How the CIFAR-10-W paper calls it in its tables.
        paper: Whose it is.
        needs: What it reads beside the logits: the source's labels, features, a pool of other models.
        direct: Whether the score is an estimate of the accuracy itself.
        summary: What the score is.
    """

    name: str
    score: Score
    label: str
    paper: str
    needs: tuple[Need, ...]
    direct: bool
    summary: str

    def missing(self, domain: Outputs) -> tuple[Need, ...]:
        """What it needs of the model's outputs and does not find there."""
        lacks = {"features": domain.features is None, "pool": domain.pool is None, "source": False}
        return tuple(need for need in self.needs if lacks[need])


METHODS: Registry[Method] = Registry("accuracy method", "shiftbed.accuracy.methods")


def method(name: str, label: str, paper: str, *needs: Need, direct: bool = False) -> Callable[[Score], Score]:
    """Registers a score; its docstring is its summary."""
    assert set(needs) <= set(get_args(Need))

    def wrap(score: Score) -> Score:
        METHODS.add(name, Method(name, score, label, paper, needs, direct, (score.__doc__ or "").strip()))
        return score

    return wrap


@method("average-confidence", "AC", "Guillory et al., 2021", direct=True)
def average_confidence(domain: Outputs, source: Reference) -> float:
    """The mean probability of the predicted class."""
    return float(domain.confidence.mean())


def _above(level: float) -> Score:
    def prediction_score(domain: Outputs, source: Reference) -> float:
        return float((domain.confidence > level).mean())

    prediction_score.__doc__ = f"The share of images whose predicted class has a probability above {level}."
    return prediction_score


for _level in (0.7, 0.8, 0.9):
    method(f"prediction-score-{_level}", f"Pred. score ({_level})", "Hendrycks and Gimpel, 2017")(_above(_level))


@method("entropy", "Entropy", "Guillory et al., 2021")
def entropy(domain: Outputs, source: Reference) -> float:
    """The mean entropy of the predicted probabilities."""
    return float(domain.entropy.mean())


@method("low-entropy", "Entropy (share)", "Guillory et al., 2021")
def low_entropy(domain: Outputs, source: Reference) -> float:
    """The share of images whose entropy is below 0.3 of a uniform guess's."""
    return float((domain.entropy < LOW_ENTROPY * np.log(domain.classes)).mean())


@method("atc-mc", "ATC-MC", "Garg et al., 2022", "source", direct=True)
def atc_confidence(domain: Outputs, source: Reference) -> float:
    """The share of images at least as confident as a threshold that as many source images fall below as are wrong."""
    return source.confidence_threshold.share_above(domain.confidence)


@method("atc-ne", "ATC-NE", "Garg et al., 2022", "source", direct=True)
def atc_negentropy(domain: Outputs, source: Reference) -> float:
    """As atc-mc, with negative entropy for confidence."""
    return source.negentropy_threshold.share_above(-domain.entropy)


@method("doc", "DoC", "Guillory et al., 2021", "source", direct=True)
def difference_of_confidences(domain: Outputs, source: Reference) -> float:
    """The source's accuracy, less what is lost in mean confidence."""
    return source.accuracy + float(domain.confidence.mean() - source.outputs.confidence.mean())


@method("nuclear-norm", "Nuclear norm", "Deng et al., 2023")
def nuclear_norm(domain: Outputs, source: Reference) -> float:
    """The sum of the singular values of the matrix of probabilities: confident and spread over classes; at most 1."""
    gram = domain.probabilities.T @ domain.probabilities
    singular = np.sqrt(np.linalg.eigvalsh(gram).clip(min=0))
    return float(singular.sum() / np.sqrt(min(len(domain), domain.classes) * len(domain)))


@method("frechet-distance", "FD", "Deng and Zheng, 2021", "features", "source")
def frechet(domain: Outputs, source: Reference) -> float:
    """The Fréchet distance between the features here and on the source, as of normal distributions."""
    return frechet_distances(source.moments, [moments(required_features(domain))])[0]


@method("bop-js", "BoP", "Tu et al., 2023", "features", "source")
def bag_of_prototypes(domain: Outputs, source: Reference) -> float:
    """The Jensen-Shannon divergence of which prototypes of the source images are nearest to, here and there."""
    here, there = source.bag(required_features(domain)), source.own_bag
    middle = (here + there) / 2
    return float((rel_entr(here, middle) + rel_entr(there, middle)).sum() / 2)


@method("ms-aol", "MS-AoL", "Sun et al., 2024, after Baek et al., 2022", "pool")
def agreement(domain: Outputs, source: Reference) -> float:
    """The mean share of images on which the model agrees with each other model of a pool."""
    return mean_agreement(domain.predictions, _pool(domain))


@method("aline-s", "ALine-S", "Baek et al., 2022", "pool", "source", direct=True)
def agreement_on_the_line(domain: Outputs, source: Reference) -> float:
    """The accuracy where the line of the pool's agreements, here against the source, puts the model."""
    return float(_on_the_line(domain, source).simple[0])


@method("aline-d", "ALine-D", "Baek et al., 2022", "pool", "source", direct=True)
def agreement_by_pairs(domain: Outputs, source: Reference) -> float:
    """The model's accuracy where those of each two models leave the line as far as their agreement does."""
    return float(_on_the_line(domain, source).paired[0])


@method("cot", "COT", "Lu et al., 2023", "source", direct=True)
def confidence_optimal_transport(domain: Outputs, source: Reference) -> float:
    """The mean probability of labels with the source's class shares, dealt to the images as well as possible."""
    return transported_probability(domain.probabilities, source.shares)


def _on_the_line(domain: Outputs, source: Reference) -> OnTheLine:
    """For the model, first, and its pool."""
    here, there = (np.vstack([one.predictions, _pool(one)]) for one in (domain, source.outputs))
    labels = source.outputs.labels
    assert labels is not None
    return on_the_line(there, labels, here)


def _pool(domain: Outputs) -> np.ndarray:
    if domain.pool is None or len(domain.pool) == 0:
        raise DataError(
            f"The agreement on {domain.name} needs a pool of models, and there is only one; train more, or choose a "
            "method that needs one model, such as atc-mc."
        )
    return domain.pool
