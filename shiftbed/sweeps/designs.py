"""Search designs: how hyperparameters are searched, what the winner is trained on again, and its spread."""

from typing import Literal, NamedTuple

from shiftbed.registry import Registry

Spread = Literal["standard error", "standard deviation"]


class Design(NamedTuple):
    """One way to search.

    Attributes:
        name: The design's name.
        summary: What it does.
        draws: How many draws its authors take.
        trials: How many trials its authors run.
        two_stages: Only the first trial searches; its winner is then trained in the other trials, with the same values.
        stated: There is nothing to search: values are stated.
        spread: What stands behind the ± of a mean over trials.
    """

    name: str
    summary: str
    draws: int
    trials: int
    two_stages: bool = False
    stated: bool = False
    spread: Spread = "standard error"


DESIGNS: Registry[Design] = Registry("search design", "shiftbed.sweeps.designs")
REDRAW = "redraw"

for _design in (
    Design(REDRAW, "Every trial draws anew and has its own winner (DomainBed, OoD-Bench).", 20, 3),
    Design("search-once", "The winner of one search is trained twice more (DomainBed-v2).", 10, 3, two_stages=True),
    Design("fixed", "Stated values, several seeds (NICO++).", 1, 3, stated=True),
    Design(
        "groups",
        "The best of a few settings is trained in every trial (CIFAR-10-Warehouse).",
        3,
        3,
        two_stages=True,
        spread="standard deviation",
    ),
):
    DESIGNS.add(_design.name, _design)
