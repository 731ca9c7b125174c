"""VREx on OoD-Bench's ColoredMNIST by a loop of its own, with nothing of ShiftBed: is it our code?

    python docs/results/ood_bench_alone.py MNIST_FOLDER --trials 0,1,2 [--ten-bits] --out vrex.json

Colours, label noise and the order of images are drawn anew for every job, from the seed that OoD-Bench gives it.
`--ten-bits` rounds what is multiplied to ten bits of mantissa, as TF32 does by default on GPUs of that time.
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

DRAWS, STEPS, EVERY = 20, 5001, 500


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


def ten_bits(values: torch.Tensor) -> torch.Tensor:
    """Rounded to ten bits of mantissa."""
    return ((values.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class TenBitProduct(torch.autograd.Function):
    """A linear layer whose three products take rounded factors."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        """The product, and its factors kept as they were taken."""
        x, weight = ten_bits(x), ten_bits(weight)
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx, gradient):
        """The gradients of both factors and of the bias."""
        x, weight = ctx.saved_tensors
        rounded = ten_bits(gradient)
        return rounded @ weight if ctx.needs_input_grad[0] else None, rounded.t() @ x, gradient.sum(0)


class TenBitLinear(nn.Linear):
    """A linear layer in TF32's arithmetic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As of any linear layer."""
        return TenBitProduct.apply(x, self.weight, self.bias)


def trained(data, trial: int, draw: int, linear: type[nn.Linear]) -> list[dict]:
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
    hidden = [linear(392, 390), linear(390, 390)]
    for layer in hidden:
        nn.init.xavier_uniform_(layer.weight, gain=2**0.5)
        nn.init.zeros_(layer.bias)
    network = nn.Sequential(nn.Flatten(), hidden[0], nn.ReLU(), hidden[1], nn.ReLU(), linear(390, 2))
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
            rows.append({"step": step, "out": right[0], "in": right[1]})
    return rows


def main() -> None:
    """Trains all jobs and writes what their evaluations found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--trials", default="0,1,2")
    parser.add_argument("--ten-bits", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    raw = [gzip.open(options.mnist / f"train-{name}-ubyte.gz").read() for name in ("images-idx3", "labels-idx1")]
    images = torch.from_numpy(np.frombuffer(raw[0], np.uint8, offset=16).reshape(-1, 28, 28).copy())
    digits = torch.from_numpy(np.frombuffer(raw[1], np.uint8, offset=8).copy())
    linear = TenBitLinear if options.ten_bits else nn.Linear
    jobs = []
    for trial in map(int, options.trials.split(",")):
        for draw in range(DRAWS):
            jobs.append({"trial": trial, "draw": draw, "rows": trained((images, digits), trial, draw, linear)})
            options.out.write_text(json.dumps(jobs))


if __name__ == "__main__":
    main()
