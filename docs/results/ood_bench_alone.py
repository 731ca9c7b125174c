"""VREx on OoD-Bench's ColoredMNIST by a loop of its own, with nothing of ShiftBed: is it our code?

    python docs/results/ood_bench_alone.py MNIST_FOLDER --out vrex.json

Colours, label noise and the order of images are drawn anew for every job, from the seed that OoD-Bench gives it.
"""

import argparse
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TRIALS, DRAWS, STEPS, EVERY = 3, 20, 5001, 500


def seed_of(*words) -> int:
    """DomainBed's seed of some words."""
    return int(hashlib.md5(str(words).encode()).hexdigest(), 16) % 2**31


def hyperparameters(draw: int, trial: int) -> dict:
    """DomainBed's values for MNIST; the first draw is its defaults."""
    if draw == 0:
        return {"weight": 10.0, "anneal": 500, "lr": 1e-3, "batch": 64}
    seed = seed_of(draw, trial)

    def uniform(name: str, low: float, high: float) -> float:
        return np.random.RandomState(seed_of(seed, name)).uniform(low, high)

    return {
        "weight": 10 ** uniform("vrex_lambda", -1, 5),
        "anneal": int(10 ** uniform("vrex_penalty_anneal_iters", 0, 4)),
        "lr": 10 ** uniform("lr", -4.5, -2.5),
        "batch": int(2 ** uniform("batch_size", 3, 9)),
    }


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


def trained(data: tuple[torch.Tensor, torch.Tensor], trial: int, draw: int) -> list[dict]:
    """One job: at every evaluation accuracy on a tenth of the test domain and on the rest."""
    seed, how = seed_of("ColoredMNIST_IRM", "VREx", [2], draw, trial), hyperparameters(draw, trial)
    domains = coloured(*data, seed)
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
    network = nn.Sequential(nn.Flatten(), hidden[0], nn.ReLU(), hidden[1], nn.ReLU(), nn.Linear(390, 2))
    rows = []
    for step in range(STEPS):
        if step in (0, how["anneal"]):
            optimizer = torch.optim.Adam(network.parameters(), lr=how["lr"], fused=True)
        picks = [(x[some], y[some]) for x, y in rest[:2] for some in [torch.randint(len(x), (how["batch"],))]]
        logits = network(torch.cat([x for x, _ in picks])).chunk(2)
        risks = torch.stack([F.cross_entropy(s, y) for s, (_, y) in zip(logits, picks, strict=True)])
        weight = how["weight"] if step >= how["anneal"] else 1.0
        loss = risks.mean() + weight * ((risks - risks.mean()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step and step % EVERY == 0:
            with torch.no_grad():
                right = [float((network(x).argmax(1) == y).float().mean()) for x, y in (held[2], rest[2])]
            rows.append({"step": step, "out": round(right[0], 4), "in": round(right[1], 4)})
    return rows


def page(file: Path) -> str:
    """What the oracle finds, had training ended at some steps, as Markdown."""
    lines = ["| steps | " + " | ".join(f"trial {trial}" for trial in range(TRIALS)) + " | mean |"]
    lines.append("| ---: |" + " ---: |" * (TRIALS + 1))
    jobs = json.loads(file.read_bytes())
    for step in (1000, 2000, 3000, 4000, 4500, 5000):
        at = [
            (row["out"], job["draw"], row["in"], job["trial"])
            for job in jobs
            for row in job["rows"]
            if row["step"] == step
        ]
        found = [100 * max(one for one in at if one[3] == trial)[2] for trial in range(TRIALS)]
        error = np.std(found, ddof=1) / TRIALS**0.5
        lines.append(
            f"| {step:,} | {' | '.join(f'{one:.1f}†' for one in found)} | {np.mean(found):.1f}† ±{error:.1f} |"
        )
    return "\n".join([*lines, "", "† Oracle: chosen with the test domain's labels."])


def main() -> None:
    """Trains all jobs and writes what their evaluations found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = [options.mnist / f"train-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1")]
    raw = [gzip.decompress(file.read_bytes()) for file in files]
    images = torch.from_numpy(np.frombuffer(raw[0], np.uint8, offset=16).reshape(-1, 28, 28).copy())
    digits = torch.from_numpy(np.frombuffer(raw[1], np.uint8, offset=8).copy())
    jobs = []
    for trial in range(TRIALS):
        for draw in range(DRAWS):
            jobs.append({"trial": trial, "draw": draw, "rows": trained((images, digits), trial, draw)})
            options.out.write_text(json.dumps(jobs))


if __name__ == "__main__":
    main()
