"""Packs of arrays: domains that are made from other data, kept as memory-mapped NumPy files."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.data.dataset import Card, Domain
from shiftbed.data.writing import save_array, sole_writer
from shiftbed.errors import DataError

FORMAT = 1


@dataclass(frozen=True)
class Pending:
    """A domain that takes long to make; an interrupted pack keeps those that it has.

    Attributes:
        name: The domain's name.
        origin: Identifies everything it is made from.
        make: Makes it.
    """

    name: str
    origin: str
    make: Callable[[], Domain]


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
    domains: Iterable[Domain | Pending],
    card: Card,
    target: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Saves domains as they come, under their card; the folder appears when it is whole and is what the card says.

    Interrupted at any point, it continues with the first pending domain that was not saved whole.

    Raises:
        DataError: The domains are not those of the card, or somebody else is writing them.
    """
    with sole_writer(target) as unfinished:
        try:
            _save_all(domains, card, unfinished, on_progress)
        except BaseException as error:
            if isinstance(error, DataError) or not any(unfinished.glob("origin-*")):
                shutil.rmtree(unfinished)  # there is nothing to continue
            raise


def _save_all(
    domains: Iterable[Domain | Pending], card: Card, folder: Path, on_progress: Callable[[int, int], None]
) -> None:
    counts: dict[str, int] = {}
    for number, domain in enumerate(domains):
        mark = folder / f"origin-{number}"  # written last: what it names is saved whole
        if isinstance(domain, Domain):
            mark.unlink(missing_ok=True)
            _save(domain, folder, number)
        elif not (mark.exists() and mark.read_text() == domain.origin):
            mark.unlink(missing_ok=True)
            _save(domain.make(), folder, number)
            mark.write_text(domain.origin)
        counts[domain.name] = len(np.load(folder / f"labels-{number}.npy", mmap_mode="r"))
        on_progress(number + 1, len(card.domains))
    check_counts(card, counts)
    whole = {f"{kind}-{number}.npy" for kind in ("inputs", "labels", "groups") for number in range(len(counts))}
    for left in folder.iterdir():
        if left.name not in whole:  # the marks, and what an interrupted writer of another version left
            left.unlink()
    write_description(folder, "arrays", card.model_copy(update={"domains": counts}))


def _save(domain: Domain, folder: Path, number: int) -> None:
    save_array(folder / f"inputs-{number}.npy", np.asarray(domain.inputs))
    save_array(folder / f"labels-{number}.npy", domain.labels)
    groups = folder / f"groups-{number}.npy"
    if domain.groups is None:
        groups.unlink(missing_ok=True)
    else:
        save_array(groups, domain.groups)


def read_arrays(folder: Path, counts: Mapping[str, int]) -> list[Domain]:
    """The domains of a pack of arrays, so many examples of each; nothing is read until it is asked for.

    Raises:
        FileNotFoundError: A file is missing.
        EOFError: A file is empty.
        ValueError: A file is cut off, or of another number of examples.
    """

    def array(what: str, number: int) -> Any:
        return np.load(folder / f"{what}-{number}.npy", mmap_mode="r")

    domains = []
    for number, (name, count) in enumerate(counts.items()):
        groups = array("groups", number) if (folder / f"groups-{number}.npy").exists() else None
        domain = Domain(name, array("inputs", number), array("labels", number), groups)
        if not len(domain.inputs) == len(domain) == count:
            raise ValueError(f"domain {name} has {len(domain)} examples and not {count}")
        domains.append(domain)
    return domains
