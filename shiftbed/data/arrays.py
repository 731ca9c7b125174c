"""Packs of arrays: domains that are made from other data, kept as memory-mapped NumPy files."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.data.dataset import Card, Domain

FORMAT = 1


def write_description(folder: Path, kind: str, card: Card, **more: Any) -> None:
    """Writes `pack.json`; the order of the card's domains is that of their data, so keys are not sorted."""
    content = {"format": FORMAT, "kind": kind, "card": card.model_dump(mode="json"), **more}
    (folder / "pack.json").write_text(json.dumps(content), encoding="utf-8")


def write_arrays(domains: list[Domain], card: Card, target: Path) -> None:
    """Saves domains under their card; the folder appears when it is whole."""
    unfinished = target.with_name(f"{target.name}.partial-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number, domain in enumerate(domains):
        np.save(unfinished / f"inputs-{number}.npy", np.asarray(domain.inputs))
        np.save(unfinished / f"labels-{number}.npy", domain.labels)
        if domain.groups is not None:
            np.save(unfinished / f"groups-{number}.npy", domain.groups)
    write_description(unfinished, "arrays", card)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


def read_arrays(folder: Path, names: list[str]) -> list[Domain]:
    """The domains of a pack of arrays; nothing is read until it is asked for."""

    def array(what: str, number: int) -> Any:
        path = folder / f"{what}-{number}.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    return [
        Domain(name, array("inputs", number), array("labels", number), array("groups", number))
        for number, name in enumerate(names)
    ]
