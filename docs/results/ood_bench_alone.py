"""OoD-Bench's ColoredMNIST by a loop of its own, with nothing of ShiftBed: is it our code, or the data?

    python docs/results/ood_bench_alone.py MNIST_FOLDER --algorithm VREx --data anew --out vrex.json

`anew` draws colours, label noise and the order of images for every job, from the seed that OoD-Bench gives it; `once`
draws them a single time for all jobs, as ShiftBed does. A run that was stopped goes on where it was.
"""

import argparse
import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

DRAWS, STEPS, EVERY = 20, 5001, 500
BANDWIDTHS = torch.tensor([1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3])

Pair = Sequence[torch.Tensor]


def variance_of_risks(features: Pair, logits: Pair, labels: Pair) -> torch.Tensor:
    """VREx's penalty."""
    risks = torch.stack([F.cross_entropy(s, y) for s, y in zip(logits, labels, strict=True)])
    return ((risks - risks.mean()) ** 2).mean()


def gradients_of_scale(features: Pair, logits: Pair, labels: Pair) -> torch.Tensor:
    """IRM's penalty: the gradient of a scale of the logits on even examples times that on odd ones."""

    def gradient(s: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((s.softmax(1) - F.one_hot(y, 2)) * s).sum(1).mean()

    each = [gradient(s[::2], y[::2]) * gradient(s[1::2], y[1::2]) for s, y in zip(logits, labels, strict=True)]
    return torch.stack(each).mean()


def moments(features: Pair, logits: Pair, labels: Pair) -> torch.Tensor:
    """CORAL's penalty: between means, and between covariances."""
    first, second = features
    return ((first.mean(0) - second.mean(0)) ** 2).mean() + ((first.T.cov() - second.T.cov()) ** 2).mean()


def kernel_means(features: Pair, logits: Pair, labels: Pair) -> torch.Tensor:
    """MMD's penalty: seven Gaussian kernels, each example's kernel with itself among them."""

    def mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        squares = ((a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T).clamp(min=1e-30)
        return sum(torch.exp(-g * squares).mean() for g in BANDWIDTHS)

    first, second = features
    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


class Method(NamedTuple):
    """A penalty, its weight's name, default and range of powers of ten, and whether the weight is 1 at first."""

    penalty: Callable[[Pair, Pair, Pair], torch.Tensor]
    name: str
    default: float
    powers: tuple[int, int]
    anneals: bool


METHODS = {
    "VREx": Method(variance_of_risks, "vrex_lambda", 10.0, (-1, 5), True),
    "IRM": Method(gradients_of_scale, "irm_lambda", 100.0, (-1, 5), True),
    "CORAL": Method(moments, "mmd_gamma", 1.0, (-1, 1), False),
    "MMD": Method(kernel_means, "mmd_gamma", 1.0, (-1, 1), False),
}


def seed_of(*words) -> int:
    """DomainBed's seed of some words."""
    return int(hashlib.md5(str(words).encode()).hexdigest(), 16) % 2**31


def hyperparameters(algorithm: str, draw: int, trial: int) -> dict:
    """DomainBed's values for MNIST; the first draw is its defaults. A weight that does not wait holds from step 0."""
    method = METHODS[algorithm]
    if draw == 0:
        return {"weight": method.default, "anneal": 500 if method.anneals else 0, "lr": 1e-3, "batch": 64}
    seed = seed_of(draw, trial)

    def uniform(name: str, low: float, high: float) -> float:
        return np.random.RandomState(seed_of(seed, name)).uniform(low, high)

    anneal = int(10 ** uniform(f"{algorithm.lower()}_penalty_anneal_iters", 0, 4)) if method.anneals else 0
    return {
        "weight": 10 ** uniform(method.name, *method.powers),
        "anneal": anneal,
        "lr": 10 ** uniform("lr", -4.5, -2.5),
        "batch": int(2 ** uniform("batch_size", 3, 9)),
    }


def mnist(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """MNIST's training images and digits."""
    raw = [gzip.decompress((folder / f"train-{n}-ubyte.gz").read_bytes()) for n in ("images-idx3", "labels-idx1")]
    images = torch.from_numpy(np.frombuffer(raw[0], np.uint8, offset=16).reshape(-1, 28, 28).copy())
    return images, torch.from_numpy(np.frombuffer(raw[1], np.uint8, offset=8).copy())


def coloured(images: torch.Tensor, digits: torch.Tensor, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two training domains and the one where colour points the wrong way."""
    torch.manual_seed(seed)
    order = torch.randperm(len(images))
    domains = []
    for flip, part in ((0.1, slice(0, 50_000, 2)), (0.2, slice(1, 50_000, 2)), (0.9, slice(50_000, None))):
        grey, low = images[order][part][:, ::2, ::2], digits[order][part] < 5
        labels = low ^ (torch.rand(len(low)) < 0.25)
        colours = labels ^ (torch.rand(len(low)) < flip)
        x = torch.stack([grey * ~colours[:, None, None], grey * colours[:, None, None]], 1)
        domains.append((x.float() / 255, labels.long()))
    return domains


def trained(data: tuple[torch.Tensor, torch.Tensor], algorithm: str, anew: bool, trial: int, draw: int) -> list[dict]:
    """One job: at every evaluation accuracy on a tenth of the test domain and on the rest."""
    how, penalty = hyperparameters(algorithm, draw, trial), METHODS[algorithm].penalty
    seed = seed_of("ColoredMNIST_IRM", algorithm, [2], draw, trial)
    domains = coloured(*data, seed if anew else 0)
    torch.manual_seed(seed + 1)
    held, rest = [], []
    for i, (x, y) in enumerate(domains):
        order = list(range(len(x)))
        np.random.RandomState(seed_of(trial, i)).shuffle(order)
        tenth, others = torch.tensor(order[: len(x) // 10]), torch.tensor(order[len(x) // 10 :])
        held.append((x[tenth], y[tenth]))
        rest.append((x[others], y[others]))
    hidden = [nn.Linear(392, 390), nn.Linear(390, 390)]
    for layer in hidden:
        nn.init.xavier_uniform_(layer.weight, gain=2**0.5)
        nn.init.zeros_(layer.bias)
    featurizer = nn.Sequential(nn.Flatten(), hidden[0], nn.ReLU(), hidden[1], nn.ReLU())
    network = nn.Sequential(featurizer, nn.Linear(390, 2))
    rows = []
    for step in range(STEPS):
        if step in (0, how["anneal"]):
            optimizer = torch.optim.Adam(network.parameters(), lr=how["lr"], fused=True)
        picks = [(x[some], y[some]) for x, y in rest[:2] for some in [torch.randint(len(x), (how["batch"],))]]
        labels = [y for _, y in picks]
        features = featurizer(torch.cat([x for x, _ in picks]))
        logits = network[1](features).chunk(2)
        weight = how["weight"] if step >= how["anneal"] else 1.0
        loss = F.cross_entropy(torch.cat(logits), torch.cat(labels))
        loss = loss + weight * penalty(features.chunk(2), logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step and step % EVERY == 0:
            with torch.no_grad():
                right = [float((network(x).argmax(1) == y).float().mean()) for x, y in (held[2], rest[2])]
            rows.append({"step": step, "out": round(right[0], 4), "in": round(right[1], 4)})
    return rows


def page(folder: Path) -> str:
    """What the oracle finds, had training ended at some steps, as Markdown; only of trials with all draws."""
    steps = (1000, 2000, 3000, 4000, 4500, 5000)
    lines = ["| algorithm | data | trials | " + " | ".join(f"{step:,} steps" for step in steps) + " |"]
    lines.append("| --- | --- | ---: |" + " ---: |" * len(steps))
    for file in sorted(folder.glob("*-*.json")):
        jobs = json.loads(file.read_bytes())
        trials = range(len(jobs) // DRAWS)
        cells = [_mean([_oracle(jobs, trial, step) for trial in trials]) for step in steps if trials]
        if cells:
            lines.append(" | ".join([f"| {file.stem.replace('-', ' | ')} | {len(trials)}", *cells]) + " |")
    return "\n".join([*lines, "", "† Oracle: chosen with the test domain's labels."])


def _oracle(jobs: Sequence[dict], trial: int, step: int) -> float:
    """Accuracy in percent of the draw that is best on a tenth of the test domain at a step, on the rest of it."""
    rows = [(row, job["draw"]) for job in jobs if job["trial"] == trial for row in job["rows"] if row["step"] == step]
    return 100 * max((row["out"], draw, row["in"]) for row, draw in rows)[2]


def _mean(found: Sequence[float]) -> str:
    error = f" ±{np.std(found, ddof=1) / len(found) ** 0.5:.1f}" if len(found) > 1 else ""
    return f"{np.mean(found):.1f}†{error}"


def main() -> None:
    """Trains all jobs and writes what their evaluations found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--algorithm", choices=METHODS, default="VREx")
    parser.add_argument("--data", choices=("anew", "once"), default="anew")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = mnist(options.mnist)
    jobs = json.loads(options.out.read_bytes()) if options.out.exists() else []
    for trial, draw in [(trial, draw) for trial in range(options.trials) for draw in range(DRAWS)][len(jobs) :]:
        rows = trained(data, options.algorithm, options.data == "anew", trial, draw)
        jobs.append({"trial": trial, "draw": draw, "rows": rows})
        options.out.write_text(json.dumps(jobs))


if __name__ == "__main__":
    main()
