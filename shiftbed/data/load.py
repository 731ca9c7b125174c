"""Finding datasets by name: built in, or prepared on this machine."""

import os
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from shlex import quote

from shiftbed.data.dataset import DATASETS, Card, MultiDomainDataset
from shiftbed.data.pack import file_names, read_card, read_pack
from shiftbed.data.roots import VARIABLE, pack_folder, prepared_names
from shiftbed.data.staging import staged
from shiftbed.errors import DataError, ShiftbedError, UnknownNameError
from shiftbed.registry import did_you_mean


def card(name: str) -> Card:
    """The card of a dataset: the pack's, if it is prepared here, otherwise the registered one.

    Raises:
        UnknownNameError: No dataset has this name.
    """
    return _card(name, os.environ.get(VARIABLE))


def card_if_known(name: str) -> Card | None:
    """The card of a dataset that records speak of and that need not be here."""
    try:
        return card(name)
    except ShiftbedError:
        return None


@lru_cache(maxsize=256)
def _card(name: str, root: str | None) -> Card:
    if name not in prepared_names():
        with suppress(UnknownNameError):
            name = DATASETS.canonical_name(name)  # its pack has the registered spelling
    if name in prepared_names():
        packed = read_card(pack_folder(name))
        registered = DATASETS[name].card if name in DATASETS else packed
        if registered.version != packed.version:
            return packed
        # What else is known of this version (its splits, its groupings) may be newer than the pack.
        return registered.model_copy(update={"domains": packed.domains})
    try:
        return DATASETS[name].card
    except UnknownNameError:
        if Path(name).exists():
            command = f"shiftbed prepare {quote(name)}"
            raise DataError(f"{name} is not prepared; run `{command}` once, then use its name.") from None
        raise unknown_dataset(name) from None


def unknown_dataset(name: str) -> UnknownNameError:
    """The error of a name that no dataset has, and no folder here either: which of them was meant, nobody can tell."""
    known = sorted({*DATASETS, *prepared_names()})
    folder = f" If it is a folder of yours, it is not in {Path.cwd()}."
    return UnknownNameError(f"There is no dataset '{name}'.{did_you_mean(name, known)}{folder}")


def forget() -> None:
    """Looks at the data root anew, after something was prepared."""
    _card.cache_clear()
    _load.cache_clear()


def load(name: str) -> MultiDomainDataset:
    """Opens a dataset; what it contains depends on its name and version alone.

    Raises:
        UnknownNameError: No dataset has this name.
        DataError: It is not prepared here, or its domains are not what the card says.
    """
    return _load(name, os.environ.get(VARIABLE))


def example_names(name: str, domain: str) -> list[str]:
    """What to call the examples of a domain: the files they came from, or their places where there are none."""
    name = card(name).name
    known = file_names(pack_folder(name)) if name in prepared_names() else {}
    return known.get(domain) or [f"{domain}/{place}" for place in range(len(load(name)[domain]))]


def note_of_change(name: str) -> str:
    """What to know where files were added to the folder of a dataset, or taken out, since it was packed; or nothing."""
    folder, pack = Path(name), pack_folder(name) / "pack.json"
    if name in DATASETS or not folder.is_dir() or not pack.exists():
        return ""
    if all(Path(at).stat().st_mtime <= pack.stat().st_mtime for at, _, _ in os.walk(folder)):
        return ""
    return (
        f"The folder {name} has changed since it was prepared; '{name}' is what it was then, and `shiftbed prepare "
        f"{quote(name)}` packs it anew."
    )


@lru_cache(maxsize=4)
def _load(name: str, root: str | None) -> MultiDomainDataset:
    known = card(name)
    if known.name in prepared_names():
        return replace(read_pack(staged(pack_folder(known.name))), card=known)
    build = DATASETS[known.name].build
    if build is None:
        raise DataError(f"{known.name} is not prepared here; run `shiftbed prepare {known.name}` first.")
    domains = tuple(build())
    counts = {domain.name: len(domain) for domain in domains}
    if list(counts.items()) != list(known.domains.items()):
        raise DataError(
            f"{known.name} version {known.version} should have the domains {known.domains} but {counts} were found; "
            "reinstall shiftbed."
        )
    return MultiDomainDataset(known, domains)
