"""The paper's 70 classifiers, and ours beside them."""

import csv
from importlib.resources import files
from typing import NamedTuple

# Those whose errors the paper prints one by one, by its names. It does not say which width of ShuffleNetV2 it means.
SINGLE = {
    "ResNet44": "cifar-resnet44",
    "RepVGG-A0": "cifar-repvgg-a0",
    "ShuffleNetV2": "cifar-shufflenetv2-1",
    "VGG13": "cifar-vgg13",
}


class Classifier(NamedTuple):
    """A row of the paper's table 5.

    Attributes:
        name: As printed: an architecture and a seed.
        network: Our network of that architecture.
        seed: The paper's seed; here it is a trial.
        in_the_40: Whether it is among the first 40, whose average the paper's table 2 has.
        note: What else is to be said.
    """

    name: str
    network: str
    seed: int
    in_the_40: bool
    note: str


def classifiers() -> list[Classifier]:
    """The 70 classifiers in the order of the table."""
    text = (files("shiftbed.accuracy") / "classifiers.csv").read_text(encoding="utf-8")
    return [
        Classifier(row["name"], row["network"], int(row["seed"]), row["in_the_40"] == "yes", row["note"])
        for row in csv.DictReader(text.splitlines())
    ]
