"""Registries: the only lists of algorithms, datasets, networks, protocols, selections and recipes there are."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Generic, TypeVar

from shiftbed.errors import DataError, ShiftbedError, UnknownNameError

Entry = TypeVar("Entry")
SHOWN = 12


class Registry(Generic[Entry]):
    """Names and what stands behind them.

    Entries register themselves when their module is imported, so a registry imports every module of its room
    before it answers: a new file in the room is found without being listed anywhere.

    Args:
        noun: What an entry is called in messages ("algorithm").
        room: The module or package whose modules register entries.
    """

    modules: ClassVar[set[str]] = set()  # whose classes and functions are registered, in any registry

    def __init__(self, noun: str, room: str) -> None:
        self.noun = noun
        self.room = room
        self._entries: dict[str, Entry] = {}
        self._filled = False
        self._filling = RLock()  # the modules of a room ask their registry too

    def add(self, name: str, entry: Entry) -> None:
        """Registers an entry; registering a name again replaces it (a user's file may be loaded twice)."""
        self._entries[name] = entry
        Registry.modules.add(getattr(entry, "__module__", ""))

    def named(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator form of `add`."""

        def register(entry: Entry) -> Entry:
            self.add(name, entry)
            return entry

        return register

    def registered(self, name: str) -> Entry | None:
        """The entry of this exact name so far, without looking for more."""
        return self._entries.get(name)

    def __getitem__(self, name: str) -> Entry:
        return self._all()[self.canonical_name(name)]

    def canonical_name(self, name: str) -> str:
        """The registered spelling of a name.

        Raises:
            UnknownNameError: There is no such entry; the message suggests the nearest names.
        """
        if name in self._all():
            return name
        by_lower = {known.lower(): known for known in self._all()}
        if name.lower() in by_lower:
            return by_lower[name.lower()]
        raise UnknownNameError(f"There is no {self.noun} '{name}'.{did_you_mean(name, list(self))}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def _all(self) -> dict[str, Entry]:
        with self._filling:  # another thread waits until all names are there
            if not self._filled:
                self._filled = True
                room = importlib.import_module(self.room)
                for module in pkgutil.iter_modules(getattr(room, "__path__", [])):
                    importlib.import_module(f"{self.room}.{module.name}")
        return self._entries


def one_of(value: Any, allowed: Iterable[str], noun: str) -> Any:
    """A value that must be one of a few words, or None.

    Raises:
        ShiftbedError: It is not.
    """
    known = list(allowed)
    if value is not None and value not in known:
        choice = ", ".join(known[:-1]) + " or " * (len(known) > 1) + known[-1]
        raise ShiftbedError(f"There is no {noun} '{value}'; choose {choice}.")
    return value


def whole_names(parts: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names from text that was divided at commas, of which a known name may have some itself.

    Args:
        parts: What stood between the commas.
        known: The names there are.
    """
    whole = {",".join(part.strip() for part in name.split(",")): name for name in known}
    left, found = list(parts), []
    while left:
        taken = next((end for end in range(len(left), 0, -1) if ",".join(left[:end]) in whole), 1)
        name = ",".join(left[:taken])
        found.append(whole.get(name, name))
        left = left[taken:]
    return found


def listed(names: Any) -> list[str]:
    """Names as a list: one may stand alone, and a number be the name of a domain."""
    return [str(names)] if isinstance(names, str | int | Path) else [str(name) for name in names]


def refuse_unknown(
    noun: str, names: Iterable[str], known: Iterable[str], where: str, error: type[ShiftbedError] = DataError
) -> None:
    """Refuses a name that something does not have, naming the nearest."""
    there = list(known)
    for name in names:
        if name not in there:
            raise error(f"{where} has no {noun} '{name}'.{did_you_mean(name, there)}")


def did_you_mean(name: str, known: list[str]) -> str:
    """The sentence that follows an unknown name: the nearest names, or some of all there are."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if near:
        return f" Did you mean {' or '.join(near)}?"
    if len(known) == 1:
        return f" There is only {known[0]}."
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f" There are {', '.join(sorted(known)[:SHOWN])}{more}." if known else ""
