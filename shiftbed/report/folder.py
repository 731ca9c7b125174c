"""What lies in a folder of results beside a sweep's records: where the demo puts it, and figures and pages find it."""

from pathlib import Path
from typing import Any

from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.training.store import read_json as read_json
from shiftbed.training.store import write_json as write_json

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
