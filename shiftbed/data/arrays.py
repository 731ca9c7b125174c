"""Packs of arrays: domains that are made from other data, kept as memory-mapped NumPy files."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.data.dataset import Card, Domain
from shiftbed.data.writing import sole_writer
from shiftbed.errors import DataError

FORMAT = 1


def check_counts(card: Card, found: Mapping[str, int]) -> None:
    """Compares what was found with what the card says; a domain whose count the card does not know may have any.

    Raises:
        DataError: Names every domain that differs.
    """
    known = {name: count for name, count in card.domains.items() if count}
    wrong = [f"{name} {found.get(name, 0)} (should be {n})" for name, n in known.items() if found.get(name, 0) != n]
    unknown = [f"{name} (unknown)" for name in found if name not in card.domains]
    if wrong or unknown:
        differences = ", ".join([*wrong, *unknown])
        raise DataError(f"The files of {card.name} version {card.version} are not as its card says: {differences}.")


def write_description(folder: Path, kind: str, card: Card, **more: Any) -> None:
    """Writes `pack.json`; the order of the card's domains is that of their data, so keys are not sorted."""
    content = {"format": FORMAT, "kind": kind, "card": card.model_dump(mode="json"), **more}
    (folder / "pack.json").write_text(json.dumps(content), encoding="utf-8")


def write_arrays(
    domains: Iterable[Domain],
    card: Card,
    target: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Saves domains as they come, under their card; the folder appears when it is whole and is what the card says.

    Raises:
        DataError: The domains are not those of the card, or somebody else is writing them.
    """
    with sole_writer(target) as unfinished:
        try:
            _save_all(domains, card, unfinished, on_progress)
        except BaseException:  # it cannot be continued, so nothing of it stays
            shutil.rmtree(unfinished)
            raise


def _save_all(domains: Iterable[Domain], card: Card, folder: Path, on_progress: Callable[[int, int], None]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    counts: dict[str, int] = {}
    for number, domain in enumerate(domains):
        counts[domain.name] = len(domain)
        np.save(folder / f"inputs-{number}.npy", np.asarray(domain.inputs))
        np.save(folder / f"labels-{number}.npy", domain.labels)
        if domain.groups is not None:
            np.save(folder / f"groups-{number}.npy", domain.groups)
        on_progress(number + 1, len(card.domains))
    check_counts(card, counts)
    write_description(folder, "arrays", card.model_copy(update={"domains": counts}))


def read_arrays(folder: Path, names: list[str]) -> list[Domain]:
    """The domains of a pack of arrays; nothing is read until it is asked for."""

    def array(what: str, number: int) -> Any:
        path = folder / f"{what}-{number}.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    return [
        Domain(name, array("inputs", number), array("labels", number), array("groups", number))
        for number, name in enumerate(names)
    ]
