"""What lies in a folder of results beside a sweep's records: where the demo puts it, and figures and pages find it."""

import json
from pathlib import Path
from typing import Any

from shiftbed.errors import StoreError
from shiftbed.shift.estimates import ShiftEstimate

SHIFT = "shift"  # `shiftbed shift NAME --out DIR/shift` writes NAME.json there, and NAME-matrix.json with --matrix
ACCURACY = "accuracy"  # `shiftbed accuracy RUNS --out DIR/accuracy` writes study.json there
PREDICTIONS = "predictions.json"  # in ACCURACY: accuracies that were predicted without labels, beside the true ones
MATRIX = "-matrix.json"


def shift_points(folder: Path) -> dict[str, tuple[ShiftEstimate, ShiftEstimate]]:
    """By dataset, the diversity and correlation shift that were measured."""
    found = {}
    for path in sorted((folder / SHIFT).glob("*.json")):
        if not path.name.endswith(MATRIX):
            read = read_json(path)
            if "diversity" in read:
                both = (ShiftEstimate.from_json(read[name]) for name in ("diversity", "correlation"))
                found[read["dataset"]] = tuple(both)
    return found  # type: ignore[return-value]  # each is a pair


def predictions(folder: Path) -> list[dict[str, Any]]:
    """Accuracies predicted without labels, one row each.

    A row has dataset, domain, algorithm, job, method, accuracy (as predicted), low, high, level, true, images, trust.
    """
    path = folder / ACCURACY / PREDICTIONS
    return read_json(path) if path.exists() else []


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path} is damaged; remove it and make it again.") from error


def write_json(content: Any, path: Path) -> None:
    """Writes a JSON file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
    unfinished.replace(path)
