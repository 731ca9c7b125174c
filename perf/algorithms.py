"""What an update of each algorithm costs against ERM's: `python perf/algorithms.py [--out docs/costs.md]`.

Same network, batch and arithmetic, in one run: on a GPU ResNet-50 with 3 × 32 images of 224 px in bfloat16, elsewhere
the network of the built-in data. Updates run plainly, neither compiled nor captured.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from shiftbed.algorithms import ALGORITHMS, Batches, TrainingPlan, call_hook
from shiftbed.hparams import shared_space

ROUNDS = 3
STARTS = ("eoa_start", "iters", "linear_steps")  # of EoA, TRM and ERMPlusPlus


class Examples:
    """All training examples, for algorithms that look at them: here one batch."""

    def __init__(self, batches: Batches) -> None:
        self.whole = batches

    def __len__(self) -> int:
        return len(self.whole.y)

    def batches(self, size: int):
        """The examples in parts."""
        yield from zip(self.whole.x.split(size), self.whole.y.split(size), strict=True)


class Timed:
    """An algorithm and its milliseconds a step; one whole cycle of its networks' turns at a time."""

    def __init__(self, name: str, batches: Batches, network: str, size_class: str, device: str) -> None:
        torch.manual_seed(0)
        space = shared_space(size_class) | ALGORITHMS[name].space("", size_class)
        shape = tuple(batches.x.shape[1:])
        # Annealed penalties are on from the start: that is what most of a run costs.
        early = {key: 0 for key in space if "anneal" in key or "burnin" in key or key in STARTS}
        hparams = {**space.draw(0, 0), **early, "network": network, "batch_size": batches.sizes[0]}
        self.algorithm = ALGORITHMS[name].cls(shape, 7, len(batches), hparams).to(device)
        if device != "cpu":
            self.algorithm.to(memory_format=torch.channels_last)
        self.algorithm.rng = np.random.default_rng(0)
        call_hook(self.algorithm, "start", TrainingPlan(steps=5000, steps_per_epoch=100, seed=0))
        call_hook(self.algorithm, "epoch", Examples(batches))
        self.algorithm.train()
        self.batches = batches
        self.device = device

    def milliseconds(self, steps: int) -> float:
        """Of one step, the mean over at least so many."""
        synchronise = torch.cuda.synchronize if self.device != "cpu" else lambda: None
        steps = -(-steps // self.algorithm.cycle) * self.algorithm.cycle
        synchronise()
        start = time.perf_counter()
        for _ in range(steps):
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
                self.algorithm.update(self.batches)
        synchronise()
        return 1000 * (time.perf_counter() - start) / steps


def main() -> None:
    """Prints the table, and writes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    side, size, network = (224, 32, "resnet50") if gpu else (32, 16, "small")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if not gpu:
        torch.set_num_threads(1)
    x = torch.rand(3 * size, 3, side, side, device=device)
    if gpu:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.arange(3 * size, device=device) % 7
    batches = Batches(x, y, [size] * 3, torch.arange(3 * size, device=device))
    what = torch.cuda.get_device_name() if gpu else "one CPU core"
    lines = [
        "# What an update costs",
        "",
        f"Made by `python perf/algorithms.py` on {what}, torch {torch.__version__}: {network}, 3 × {size} images of",
        f"{side} px, {'bfloat16' if gpu else 'float32'}, plain updates, median of {ROUNDS} rounds, each beside ERM's.",
        "",
        "| algorithm | ms a step | × ERM |",
        "| --- | ---: | ---: |",
    ]
    erm = Timed("ERM", batches, network, "large" if gpu else "small", device)
    for name in ALGORITHMS:
        one = Timed(name, batches, network, "large" if gpu else "small", device)
        one.milliseconds(2), erm.milliseconds(2)
        pairs = [(one.milliseconds(6), erm.milliseconds(6)) for _ in range(ROUNDS)]
        own = statistics.median(pair[0] for pair in pairs)
        lines.append(f"| {name} | {own:.1f} | {statistics.median(a / b for a, b in pairs):.2f} |")
        print(lines[-1], flush=True)
        del one
        if gpu:
            torch.cuda.empty_cache()
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
