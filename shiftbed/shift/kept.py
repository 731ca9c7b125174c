"""Estimates in a file: interrupted and run again, a long measurement goes on where it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shiftbed.hashing import digest
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.training.store import read_json, write_json


class Kept:
    """Estimates by what they were measured on; without a file, nothing is kept.

    Raises:
        StoreError: The file is there but is not one of ours.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        if path is not None and path.exists():
            self._found = read_json(path)

    def get(self, key: list[Any], make: Callable[[], list[ShiftEstimate]]) -> list[ShiftEstimate]:
        """The estimates of this key, measured if they are not there."""
        name = digest(key)[:20]
        if name not in self._found:
            self._found[name] = [one.as_json() for one in make()]
            if self._path is not None:
                write_json(self._found, self._path)
        return [ShiftEstimate.from_json(one) for one in self._found[name]]
