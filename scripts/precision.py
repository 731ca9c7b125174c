"""Does bfloat16 leave accuracy unchanged? Writes docs/precision.md; needs a GPU.

    python scripts/precision.py --mnist FOLDER [--store DIR] [--workers N]

ERM on three trials of two datasets in float32, tf32 and bf16, everything else equal: the same splits, weights, batches.
"""

import argparse
import os
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

import shiftbed
from shiftbed.data.prepare import prepare
from shiftbed.selection import JobRecords
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.store import LocalStore

TRIALS = 3
PRECISIONS = ("float32", "tf32", "bf16")
LAST = 10  # evaluations
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
    accuracies: dict[tuple[str, str], dict[int, Accuracies]] = defaultdict(dict)
    for job in finished_jobs(LocalStore(options.store / "sweep")):
        about = job.description
        accuracies[about["dataset"], about["recipe"]["precision"]][about["trial"]] = Accuracies.of(job)
    options.out.write_text(page(accuracies), encoding="utf-8")
    print(options.out.read_text())


class Accuracies(NamedTuple):
    """Of one job, in percent: as a table has it, over the end of the training, and on held-out training images."""

    chosen: float
    last: float
    validation: float

    @classmethod
    def of(cls, job: JobRecords) -> "Accuracies":
        """From its records."""
        splits = job.description["splits"]

        def curve(role: str, part: str) -> np.ndarray:
            names = [split["name"] for split in splits if split["role"] == role and split["part"] == part]
            return np.array([[row["splits"][name]["accuracy"] for name in names] for row in job.rows]).mean(1)

        test, validation = 100 * curve("test", "in"), 100 * curve("validation", "out")
        return cls(test[validation.argmax()], test[-LAST:].mean(), validation.max())


def page(accuracies: dict[tuple[str, str], dict[int, Accuracies]]) -> str:
    """The page as Markdown: accuracies of each trial, and the mean difference from float32 of the same trials."""
    lines = [
        "# Does the arithmetic change accuracy?",
        "",
        f"Made by `python scripts/precision.py`: ERM's accuracy (%) in each of {TRIALS} trials from equal weights and",
        "batches, and its mean difference from float32 over trials with the standard error. *Chosen*: on the test",
        "domain at the step that training-domain validation chooses, which is what tables report. *Last*: on the test",
        f"domain, mean of the last {LAST} evaluations; single ones swing more than arithmetic does. *Validation*: on",
        "held-out images of the training domains, best step.",
        "",
        "| dataset | arithmetic | chosen | difference | last | difference | validation | difference |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for dataset, precision in product(dict.fromkeys(dataset for dataset, _ in accuracies), PRECISIONS):
        own, exact = (np.array([x for _, x in sorted(accuracies[dataset, p].items())]) for p in (precision, "float32"))
        cells = []
        for values, differences in zip(own.T, (own - exact).T, strict=True):
            error = differences.std(ddof=1) / len(differences) ** 0.5
            cells.append(" ".join(f"{value:.1f}" for value in values))
            cells.append("" if precision == "float32" else f"{differences.mean():+.2f} ± {error:.2f}")
        lines.append(f"| {dataset} | {precision} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
