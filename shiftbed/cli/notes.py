"""What a person should know before a command runs: what a recipe does to large images, which file a class is in."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from shiftbed.cli.shared import with_files, word

GROUPED = "leave-one-domain-out-grouped"
FOR_LARGE = "domainbed-head"  # starts from ImageNet weights, at 224 px


def training_notes(recipe: str, datasets: Iterable[str], protocol: str = "") -> list[str]:
    """Says what is not as one may think: a folder that is not what was packed, images reduced much, groups divided.

    Args:
        recipe: The recipe's name.
        datasets: The names of the datasets that it is to train on.
        protocol: The protocol's name; without one a single job is trained, whose splits do not look at groups.
    """
    from shiftbed.data import card
    from shiftbed.data.load import note_of_change

    names = dict.fromkeys(card(name).name for name in datasets)
    found = [
        note for name in names for note in (note_of_change(name), _note(recipe, name), _group_note(name, protocol))
    ]
    return list(dict.fromkeys(note for note in found if note))


def _group_note(dataset: str, protocol: str) -> str:
    """For own images: whether some that belong together may be both learned from and tested."""
    from shiftbed.data import card, load

    if protocol.startswith(GROUPED) or card(dataset).ran_on != "own":
        return ""
    groups = [domain.groups for domain in load(dataset).domains if domain.groups is not None]
    if not groups or np.unique(np.concatenate(groups)).size == sum(map(len, groups)):
        return ""
    where = f"protocol {protocol}" if protocol else "a single job"
    return (
        f"{dataset} has groups, which {where} divides: images of one are learned from and held out. A sweep with "
        f"--protocol {GROUPED} keeps them together."
    )


def _note(recipe: str, dataset: str) -> str:
    from shiftbed.data import card
    from shiftbed.training.recipes import recipe as find_recipe

    known, how = card(dataset), find_recipe(recipe, dataset)
    shape = known.input_shape
    side = min(shape[-2:]) if shape else None  # None where images differ in size
    if how.image_size is None or known.ran_on == "built in" or (shape is not None and len(shape) != 3):
        return ""
    if side is not None and side <= how.image_size:
        return ""
    start = "random weights" if how.initial_weights is None else f"the weights {how.initial_weights}"
    note = f"Recipe {how.name} brings images to {how.image_size} px and starts from {start}"
    if known.size_class == "small":  # other recipes have small networks for them, too
        return f"{note}."
    other = find_recipe(FOR_LARGE, dataset)
    size, steps = other.augmentation.size, f"{other.steps:,} steps, for a GPU"
    return f"{note}; --recipe {other.name} is for large images ({other.network}, ImageNet weights, {size} px, {steps})."


def best_command(folder: Path, options: str = "", code: Sequence[Path] = ()) -> str:
    """The command that makes a sweep's model, with the files of pasted classes, or a word about those not known."""
    from shiftbed.report.page_words import listed, pasted
    from shiftbed.sweeps.plan import planned
    from shiftbed.training.store import LocalStore

    command = f"shiftbed best {word(folder)}{options}{with_files(list(code))}"
    needed = [] if code else pasted(row["algorithm"] for row in planned(LocalStore(folder)).values())
    return f"{command}   # with --code and the file of {listed(needed)}" if needed else command
