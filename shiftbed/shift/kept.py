"""Estimates in a file: interrupted and run again, a long measurement goes on where it was."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shiftbed.errors import StoreError
from shiftbed.hashing import digest
from shiftbed.shift.estimates import ShiftEstimate, dominant
from shiftbed.training.store import read_json, write_json

SHIFT = "shift"  # `shiftbed shift NAME --out DIR/shift` writes NAME.json there, and NAME-matrix.json with --matrix
MATRIX = "-matrix.json"
Points = dict[str, tuple[ShiftEstimate, ShiftEstimate]]  # by dataset, diversity and correlation shift


class NotMeasuredError(StoreError):
    """An estimate is not there, and nothing was to be measured."""


class Kept:
    """Estimates by what they were measured on; without a file, nothing is kept.

    Args:
        path: The file.
        measure: Measure what is not there; without it `NotMeasuredError` is raised.

    Raises:
        StoreError: The file is there but is not one of ours.
    """

    def __init__(self, path: Path | None, measure: bool = True) -> None:
        self._path = path
        self._measures = measure
        self._found: dict[str, Any] = {}
        if path is not None and path.exists():
            self._found = read_json(path)

    def __contains__(self, key: list[Any]) -> bool:
        return digest(key)[:20] in self._found

    def get(self, key: list[Any], make: Callable[[], list[ShiftEstimate]]) -> list[ShiftEstimate]:
        """The estimates of this key, measured if they are not there."""
        return self.get_all({"": key}, lambda: {"": make()})[""]

    def get_all(
        self, keys: Mapping[str, list[Any]], make: Callable[[], Mapping[str, list[ShiftEstimate]]]
    ) -> dict[str, list[ShiftEstimate]]:
        """The estimates of several keys by their names, measured together if one of them is not there."""
        places = {name: digest(key)[:20] for name, key in keys.items()}
        missing = [name for name, place in places.items() if place not in self._found]
        if missing and not self._measures:
            raise NotMeasuredError(f"{self._path} does not have all that is asked for; measure it first.")
        if missing:
            made = make()
            self._found |= {places[name]: [one.as_json() for one in made[name]] for name in missing}
            if self._path is not None:
                write_json(self._found, self._path)
        return {name: [ShiftEstimate.from_json(one) for one in self._found[place]] for name, place in places.items()}


def shift_points(folder: str | Path) -> Points:
    """By dataset, the diversity and correlation shift that were measured beside a sweep's records."""
    return points_in(Path(folder) / SHIFT)


def points_in(folder: Path) -> Points:
    """By dataset, the diversity and correlation shift in a folder that `shiftbed shift` wrote."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        if not path.name.endswith(MATRIX):
            read = read_json(path)
            if "diversity" in read:
                both = (ShiftEstimate.from_json(read[name]) for name in ("diversity", "correlation"))
                found[read["dataset"]] = tuple(both)
    return found  # type: ignore[return-value]  # each is a pair


def shift_kinds(folder: str | Path) -> dict[str, str | None]:
    """By dataset that was measured beside a sweep's records, the kind of shift that dominates; None if neither does."""
    return {dataset: dominant(*both) for dataset, both in shift_points(folder).items()}
