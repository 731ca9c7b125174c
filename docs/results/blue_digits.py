"""Why OoD-Bench's Table 3 has a diversity shift of 0.93 where digits turn blue: one factor at a time.

    python docs/results/blue_digits.py MNIST_FOLDER --out docs/results/blue-digits/numbers.json

No image of the one domain could be of the other, so that the exact value is 1. The paper's own formula, with kernel
densities, is taken with other numbers of images, and with other thresholds below which a density counts as none.
"""

import argparse
import json
from pathlib import Path

import torch

from shiftbed.shift.estimators import How, integrated
from shiftbed.shift.integration import Thresholds
from shiftbed.shift.studies import study

BLUE = {"rho_train": 0.1, "rho_test": 0.1, "blue_train": 0.0, "blue_test": 1.0, "blue_deviation": 0.1}
SIZES = (2_500, 5_000, 10_000, 30_000)
USUAL = Thresholds().diversity
THRESHOLDS = (1e-8, 1e-10, USUAL, 1e-14, 1e-16)


def measured(folder: Path, size: int) -> dict:
    """Diversity shift of five runs with at most so many images a domain, by every threshold."""
    found = study(BLUE, method="kde-paper", folder=folder, runs=5, most=size).found
    assert found.densities is not None
    made = {}
    for threshold in THRESHOLDS:
        how = How("kde-paper", thresholds=Thresholds(diversity=threshold))
        one = integrated(found.densities, how).diversity
        made[f"{threshold:.0e}"] = {"value": one.value, "standard_error": one.standard_error}
    return made


def page(file: Path) -> str:
    """The numbers as Markdown."""
    made = json.loads(file.read_bytes())
    lines = ["| images a domain | " + " | ".join(f"{one:.0e}" for one in THRESHOLDS) + " |"]
    lines.append("| ---: |" + " ---: |" * len(THRESHOLDS))
    for size, numbers in made.items():
        cells = [f"{one['value']:.3f} ±{one['standard_error']:.3f}" for one in numbers.values()]
        lines.append(f"| {int(size):,} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Columns are thresholds; ± is the standard error over five runs."])


def main() -> None:
    """Measures and writes the numbers; sizes that are in the file are not measured again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = json.loads(options.out.read_bytes()) if options.out.exists() else {}
    for size in SIZES:
        made[str(size)] = made.get(str(size)) or measured(options.mnist, size)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
