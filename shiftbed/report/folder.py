"""What lies in a folder of results beside a sweep's records: where the demo puts it, and figures and pages find it."""

from pathlib import Path
from typing import Any

from shiftbed.shift.kept import MATRIX as MATRIX
from shiftbed.shift.kept import SHIFT as SHIFT
from shiftbed.shift.kept import shift_points as shift_points
from shiftbed.training.store import read_json as read_json
from shiftbed.training.store import write_json as write_json

ACCURACY = "accuracy"  # `shiftbed accuracy RUNS --out DIR/accuracy` writes study.json there
PREDICTIONS = "predictions.json"  # in ACCURACY: accuracies that were predicted without labels, beside the true ones


def predictions(folder: Path) -> list[dict[str, Any]]:
    """Accuracies predicted without labels, one row each.

    A row has dataset, domain, algorithm, job, method, accuracy (as predicted), low, high, level, true, images, trust.
    """
    path = folder / ACCURACY / PREDICTIONS
    return read_json(path) if path.exists() else []
