"""Estimates in a file: interrupted and run again, a long measurement goes on where it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shiftbed.errors import StoreError
from shiftbed.hashing import digest
from shiftbed.shift.estimates import ShiftEstimate


class Kept:
    """Estimates by what they were measured on; without a file, nothing is kept.

    Raises:
        StoreError: The file is there but is not one of ours.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        if path is not None and path.exists():
            try:
                self._found = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise StoreError(f"{path} is damaged; remove it, and what it kept is measured again.") from error

    def get(self, key: list[Any], make: Callable[[], list[ShiftEstimate]]) -> list[ShiftEstimate]:
        """The estimates of this key, measured if they are not there."""
        name = digest(key)[:20]
        if name not in self._found:
            self._found[name] = [one.as_json() for one in make()]
            self._write()
        return [ShiftEstimate.from_json(one) for one in self._found[name]]

    def _write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self._path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(self._found), encoding="utf-8")
            unfinished.replace(self._path)
