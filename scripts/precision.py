"""Does bfloat16 leave accuracy unchanged? Writes docs/precision.md; needs a GPU.

    python scripts/precision.py --mnist FOLDER [--store DIR] [--workers N]

ERM on three trials of two datasets in float32, tf32 and bf16, everything else equal: the same splits, weights, batches.
"""

import argparse
import os
from collections import defaultdict
from pathlib import Path

import numpy as np

import shiftbed
from shiftbed.data.prepare import prepare
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.store import LocalStore

TRIALS = 3
PRECISIONS = ("float32", "tf32", "bf16")
REQUESTS = [
    shiftbed.Request("RotatedMNIST", "ERM", trials=TRIALS, test_domains=["0"], recipe="domainbed-head"),
    shiftbed.Request("EmojiStyles", "ERM", trials=TRIALS, test_domains=["noto"], fields={"steps": 1000}),
]


def main() -> None:
    """Trains, and writes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mnist", type=Path, required=True, help="the folder of MNIST's IDX files")
    parser.add_argument("--store", type=Path, default=Path("shiftbed-precision"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, default=Path("docs/precision.md"))
    options = parser.parse_args()
    os.environ["SHIFTBED_DATA"] = str(options.store / "data")
    prepare("RotatedMNIST", options.mnist)
    for precision in PRECISIONS:
        shiftbed.sweep(REQUESTS, options.store / "sweep", workers=options.workers, precision=precision)
    accuracies: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for job in finished_jobs(LocalStore(options.store / "sweep")):
        about = job.description
        (test,) = [split["name"] for split in about["splits"] if split["role"] == "test" and split["part"] == "in"]
        accuracy = 100 * job.rows[-1]["splits"][test]["accuracy"]
        accuracies[about["dataset"], about["recipe"]["precision"]][about["trial"]] = accuracy
    options.out.write_text(page(accuracies), encoding="utf-8")
    print(options.out.read_text())


def page(accuracies: dict[tuple[str, str], dict[int, float]]) -> str:
    """The page as Markdown: accuracies on the test domain, and the difference from float32 of the same trial."""
    lines = [
        "# Does the arithmetic change accuracy?",
        "",
        "Made by `python scripts/precision.py`: ERM's accuracy (%) on the test domain after the last step in each of",
        f"{TRIALS} trials, and the mean difference from float32 over trials with its standard error.",
        "",
        "| dataset | arithmetic | trials | difference |",
        "| --- | --- | ---: | ---: |",
    ]
    for dataset, precision in accuracies:
        trials = accuracies[dataset, precision]
        values = np.array([trials[trial] for trial in sorted(trials)])
        exact = np.array([accuracies[dataset, "float32"][trial] for trial in sorted(trials)])
        differences = values - exact
        error = differences.std(ddof=1) / len(differences) ** 0.5
        shown = " ".join(f"{value:.1f}" for value in values)
        difference = "" if precision == "float32" else f"{differences.mean():+.2f} ± {error:.2f}"
        lines.append(f"| {dataset} | {precision} | {shown} | {difference} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
