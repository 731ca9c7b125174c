"""Networks that measures train from scratch: one loop, and the scale of what they see."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from shiftbed.networks import MLP, Classifier, Featurizer
from shiftbed.shift.measures import Settings
from shiftbed.shift.samples import Sample
from shiftbed.training.device import default_precision, find_runtime, numerics
from shiftbed.training.streams import seeded

BATCH = 512
WIDTH = 64
ATTEMPTS, SLOWER = 3, 10  # if training comes to nothing: how often, each time so much slower


@dataclass(frozen=True)
class Scale:
    """Brings feature vectors to zero mean and unit deviation; images stay as they are, for networks expect [0, 1]."""

    centre: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray) -> "Scale":
        """The scale of these examples; a coordinate that does not vary is not stretched."""
        if inputs.ndim > 2:
            return cls(np.zeros(1, np.float32), np.ones(1, np.float32))
        deviation = inputs.std(axis=0)
        return cls(inputs.mean(axis=0), np.where(deviation > 0, deviation, 1.0))

    def __call__(self, inputs: np.ndarray, device: str) -> torch.Tensor:
        """The examples as a network sees them."""
        return torch.from_numpy(((inputs - self.centre) / self.deviation).astype(np.float32)).to(device)


def make_network(inputs: np.ndarray | torch.Tensor, outputs: int, settings: Settings) -> nn.Module:
    """A network with random weights for these examples: for images the one that is named, else a perceptron."""
    shape = tuple(inputs.shape[1:])
    if len(shape) == 1 or settings.network is None:
        perceptron = MLP(math.prod(shape), outputs, {"mlp_width": WIDTH, "mlp_depth": 3})
        return nn.Sequential(nn.Flatten(), perceptron).to(settings.device)
    featurizer = Featurizer(shape, {"network": settings.network})
    network = nn.Sequential(ChannelsLast(), featurizer, Classifier(featurizer.n_outputs, outputs))
    return network.to(settings.device).to(memory_format=torch.channels_last)


class ChannelsLast(nn.Module):
    """Images as convolutions take them fastest; nothing else changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same images, a pixel's channels beside each other."""
        return x.contiguous(memory_format=torch.channels_last)


def train(
    networks: Sequence[nn.Module],
    objective: Callable[..., torch.Tensor],
    counts: Sequence[int],
    settings: Settings,
    seed: int,
) -> None:
    """Minimizes an objective over random batches.

    Args:
        networks: What learns; afterwards in evaluation mode.
        objective: The loss of a batch, given the chosen rows of each sample.
        counts: How many examples each sample has.
        settings: Steps, batch, optimizer, rate.
        seed: Decides the batches.
    """
    parameters = [parameter for network in networks for parameter in network.parameters()]
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, settings.rate, fused=True)
    else:
        optimizer = torch.optim.SGD(parameters, settings.rate, momentum=0.9)
    random = np.random.default_rng(seed)
    rows = [torch.from_numpy(random.integers(n, size=(settings.steps, settings.batch_size))) for n in counts]
    on_device = [one.to(settings.device) for one in rows]
    runtime = find_runtime(settings.device)
    # A backbone learns in half precision, where that is fast; its softmax and losses stay in float32.
    precision = "tf32" if settings.network is None else default_precision(runtime)
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * (1 + math.cos(math.pi * step / settings.steps)) / 2
        with numerics(precision, runtime):  # anew for every step: it remembers weights in half precision until it ends
            loss = objective(*(one[step] for one in on_device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for network in networks:
        network.eval()


def ever_slower(settings: Settings) -> Iterator[Settings]:
    """The settings, and the same at lower rates, for when training came to nothing."""
    return (replace(settings, rate=settings.rate / SLOWER**attempt) for attempt in range(ATTEMPTS))


@torch.no_grad()
def in_batches(function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """A function of all examples, a few hundred at a time."""
    return torch.cat([function(batch) for batch in inputs.split(BATCH)])


@dataclass(frozen=True, eq=False)
class Labeller:
    """What the labels of a sample teach: from an example to its class.

    Attributes:
        gain: By how much it is right more often than the most frequent class, on the examples that it learned from.
    """

    network: nn.Module
    scale: Scale
    classes: np.ndarray
    device: str
    gain: float

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The class that each example would have in the domain this was learned on."""
        logits = in_batches(self.network, self.scale(inputs, self.device))
        return self.classes[logits.argmax(1).cpu().numpy()]


def learn_labels(sample: Sample, settings: Settings, seed: int) -> Labeller:
    """Learns the labels of a sample with a network from scratch; again at a lower rate, if it learned nothing."""
    scale = Scale.of(sample.inputs)
    x = scale(sample.inputs, settings.device)
    y = torch.from_numpy(np.searchsorted(sample.classes, np.asarray(sample.labels))).to(settings.device)
    most = float(y.bincount().max() / len(y))
    for attempt in ever_slower(settings):
        with seeded(seed):
            network = make_network(sample.inputs, len(sample.classes), settings)

            def objective(rows: torch.Tensor, network: nn.Module = network) -> torch.Tensor:
                return nn.functional.cross_entropy(network(x[rows]), y[rows])

            train([network], objective, [len(x)], attempt, seed)
        gain = float((in_batches(network, x).argmax(1) == y).float().mean()) - most
        if gain > 0:
            break
    return Labeller(network, scale, sample.classes, settings.device, gain)
