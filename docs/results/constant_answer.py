"""What a model that always gives the same answer is worth on OoD-Bench's ColoredMNIST, if data are drawn anew.

    python docs/results/constant_answer.py MNIST_FOLDER --out docs/results/constant-answer/numbers.json

MMD, as the oracle chooses it, is such a model. Its answer is the label that is more frequent in training. Colours,
label noise and the order of images are drawn for every job of three trials of 20 draws, as `ood_bench_alone.py` draws
them; nothing is trained.
"""

import argparse
import json
import runpy
from pathlib import Path

import numpy as np
import torch

TRIALS = 3
ALONE = runpy.run_path(str(Path(__file__).with_name("ood_bench_alone.py")))


def constant(data: tuple[torch.Tensor, torch.Tensor], trial: int, draw: int) -> dict:
    """Accuracy of the constant answer on a tenth of the test domain and on the rest."""
    first, second, test = ALONE["coloured"](*data, ALONE["seed_of"]("ColoredMNIST_IRM", "MMD", [2], draw, trial))
    answer = int(torch.cat([first[1], second[1]]).float().mean() > 0.5)
    order = list(range(len(test[1])))
    np.random.RandomState(ALONE["seed_of"](trial, 2)).shuffle(order)
    right = (test[1] == answer).float()[torch.tensor(order)]
    tenth = len(order) // 10
    return {"trial": trial, "draw": draw, "out": float(right[:tenth].mean()), "in": float(right[tenth:].mean())}


def page(file: Path) -> str:
    """Per trial the mean over draws, and what the oracle finds if all of its draws end so."""
    jobs = json.loads(file.read_bytes())
    lines = ["| trial | a job, mean and deviation | the oracle's of 20 |", "| ---: | ---: | ---: |"]
    for trial in range(TRIALS):
        own = [job for job in jobs if job["trial"] == trial]
        shares = [100 * job["in"] for job in own]
        best = max(own, key=lambda job: (job["out"], job["draw"]))
        lines.append(f"| {trial} | {np.mean(shares):.2f}, {np.std(shares, ddof=1):.2f} | {100 * best['in']:.1f}† |")
    return "\n".join([*lines, "", "† Oracle: chosen with the test domain's labels."])


def main() -> None:
    """Draws the data of all jobs and writes what the answer is worth."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = ALONE["mnist"](options.mnist)
    jobs = [constant(data, trial, draw) for trial in range(TRIALS) for draw in range(ALONE["DRAWS"])]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(jobs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
