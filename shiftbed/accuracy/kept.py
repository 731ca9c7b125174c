"""Where predicted accuracies lie in a folder of results, and how they are read again."""

from pathlib import Path
from typing import Any

from shiftbed.training.store import read_json

ACCURACY = "accuracy"  # `shiftbed accuracy RUNS --out DIR/accuracy` writes study.json there
PREDICTIONS = "predictions.json"  # in ACCURACY: accuracies that were predicted without labels, beside the true ones


def predictions(folder: Path) -> list[dict[str, Any]]:
    """Accuracies predicted without labels, one row each.

    A row has dataset, domain, algorithm, job, method, accuracy (as predicted), low, high, level, true, images, trust,
    and from `predict_sweep` also the method that was asked for (`asked`), what it was fitted on (`fitted_on`)
    and how predictions were made (`revision`).
    """
    path = folder / ACCURACY / PREDICTIONS
    return read_json(path) if path.exists() else []
