"""The images that a model is least sure of, to be looked at."""

import csv
from pathlib import Path

import numpy as np

from shiftbed.accuracy.domains import target
from shiftbed.accuracy.extraction import Extractor
from shiftbed.accuracy.outputs import Outputs
from shiftbed.training.model import load, weights_file
from shiftbed.training.store import LocalStore

COUNT = 32
COLUMNS = 8


def sample_scores(outputs: Outputs) -> dict[str, np.ndarray]:
    """Per image how sure the model is: confidence, margin to the second class, entropy."""
    return {"confidence": outputs.confidence, "margin": outputs.margin, "entropy": outputs.entropy}


def least_sure(outputs: Outputs, count: int = COUNT) -> np.ndarray:
    """The places of the images that the model is least sure of, the least sure first."""
    return np.argsort(outputs.confidence, kind="stable")[:count]


def write_least_sure(
    run: Path, on: str, where: Path, device: str = "cpu", skip_corrupt: bool = False
) -> tuple[Path, Path]:
    """Writes all images, the least sure first, as a CSV, and the first of them as a picture.

    Args:
        run: The folder of a trained model.
        on: A folder of images, or DATASET/DOMAIN.
        where: The files' name without its ending.
        device: Where the model predicts.
        skip_corrupt: Leave out files that cannot be read.

    Returns:
        The picture and the CSV.
    """
    model = load(run, device)
    domain = target(on, model.classes, skip_corrupt)
    outputs = Extractor(model, LocalStore(weights_file(run).parent))(domain)
    images, scores = domain.images(), sample_scores(outputs)
    order = least_sure(outputs, len(outputs))
    table = where.with_suffix(".csv")
    where.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "prediction", *scores])
        for place in order:
            named = images[place] if isinstance(images[place], str | Path) else place
            sure = [f"{values[place]:.4f}" for values in scores.values()]
            writer.writerow([named, model.classes[outputs.predictions[place]], *sure])
    from shiftbed.accuracy.pictures import image_sheet

    words = [f"{model.classes[outputs.predictions[place]]} {outputs.confidence[place]:.0%}" for place in order[:COUNT]]
    return image_sheet([images[place] for place in order[:COUNT]], words, where.with_suffix(".png"), COLUMNS), table
