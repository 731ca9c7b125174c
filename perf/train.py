"""One job against a bare loop in the same run: `python perf/train.py [--quick]`, on a CPU or a GPU.

Both are timed alternately five times; medians and raw numbers are printed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from bare_loop import bare_steps_per_second

from shiftbed import networks
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.protocols import LeaveOut
from shiftbed.training.device import Runtime, default_precision, find_runtime, one_thread
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer

REPEATS = 5


def our_steps_per_second(trainer: Trainer, steps: int) -> float:
    """Steps a second of a trainer that has already warmed up."""
    synchronise = torch.cuda.synchronize if trainer.runtime.on_gpu else lambda: None
    synchronise()
    start = time.perf_counter()
    for _ in range(steps):
        trainer.advance()
    synchronise()
    return steps / (time.perf_counter() - start)


def compare(what: str, bare, ours) -> float:
    """Prints the ratio of two rates, measured alternately; returns the first."""
    pairs = [(bare(), ours()) for _ in range(REPEATS)]
    bare_rate = statistics.median(b for b, _ in pairs)
    ratio = statistics.median(o for _, o in pairs) / bare_rate
    raw = " ".join(f"{b:.1f}/{o:.1f}" for b, o in pairs)
    print(f"{what}: {ratio:.2f} × the bare loop (bare/ours steps per second: {raw})", flush=True)
    return bare_rate


def whole_job(job, folder: Path, runtime: Runtime, bare_rate: float) -> None:
    """A job from its data to its last record against as many steps of the bare loop, and when compiling pays."""
    start = time.perf_counter()
    run_job(job, LocalStore(folder / "whole"), runtime=runtime)
    seconds, steps = time.perf_counter() - start, job.recipe.steps
    ratio = steps / bare_rate / seconds
    print(
        f"a whole job of {steps:,} steps with its evaluations: {seconds:.1f} s, {ratio:.2f} × the bare loop", flush=True
    )
    trainers = [Trainer(job, replace(runtime, accelerate=accelerate)) for accelerate in (True, False)]
    fixed, rates = [], []
    for trainer in trainers:
        start = time.perf_counter()
        our_steps_per_second(trainer, 20)
        fixed.append(time.perf_counter() - start)
        rates.append(our_steps_per_second(trainer, 50))
    saved = 1 / rates[1] - 1 / rates[0]
    cost = (fixed[0] - 20 / rates[0]) - (fixed[1] - 20 / rates[1])
    pays = f"after {cost / saved:.0f} steps" if saved > 0 else "never"
    print(f"compiling and capturing (cache warm, {cost:.1f} s more than plain steps) pays {pays}", flush=True)


def against_bare(what, job, runtime: Runtime, steps: int, *, bare_precision: str, compiled: bool) -> float:
    """Training steps of a job against the bare loop with its network and batch; returns the bare loop's rate."""
    trainer = Trainer(job, runtime)
    for _ in range(20):
        trainer.advance()
    batch = trainer.data.batches(*trainer.data.step_inputs(0))
    hparams = {**job.hparams, **job.recipe.for_networks()}
    featurizer = networks.Featurizer(trainer.data.input_shape, hparams)
    bare_network = torch.nn.Sequential(featurizer, torch.nn.Linear(featurizer.n_outputs, 10)).to(runtime.device)
    x = batch.x.detach().clone()
    if compiled and x.dim() == 4:
        bare_network = bare_network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    bare_network.train()
    if compiled:
        bare_network.compile()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = bare_precision != "float32"
    torch.backends.cudnn.benchmark = True
    bare_autocast = bare_precision == "bf16"
    y = batch.y % 10
    return compare(
        what,
        lambda: bare_steps_per_second(bare_network, x, y, steps, bare_autocast),
        lambda: our_steps_per_second(trainer, steps),
    )


def made_dataset(root: Path, name: str, domains: int, count: int, side: int, channels: int, classes: int) -> None:
    """A dataset of random images, of the size of a real one: only time is measured on it."""
    random = np.random.default_rng(0)
    card = Card(
        name=name, version=1, summary="random images", classes=tuple(str(i) for i in range(classes)),
        domains={str(d): count for d in range(domains)}, input_shape=(channels, side, side),
        size_class="small" if side <= 32 else "large", licence="none", citation="none", source="made",
    )  # fmt: skip
    parts = [
        Domain(
            str(d),
            random.integers(0, 256, (count, side, side, channels), dtype=np.uint8),
            random.integers(0, classes, count),
        )
        for d in range(domains)
    ]
    write_arrays(parts, card, root / "packs" / name)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--device")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    runtime = find_runtime(options.device)
    precision = default_precision(runtime)
    kind = torch.cuda.get_device_name() if runtime.on_gpu else "CPU, 1 thread a job"
    print(f"torch {torch.__version__}, {kind}, {precision}", flush=True)

    def job(dataset, **fields):
        how = recipe("domainbed-head", dataset, precision=precision, **fields)
        how = how.model_copy(update={"initial_weights": None, "augment_validation": False})
        return make_job(dataset, "ERM", LeaveOut(("0",)), how)

    with tempfile.TemporaryDirectory() as folder, one_thread():
        os.environ["SHIFTBED_DATA"] = folder
        made_dataset(Path(folder), "MadeMNIST", 6, 11667, 28, 1, 10)
        scale = 0.2 if options.quick else 1.0
        wanted = lambda word: not options.only or word in options.only  # noqa: E731
        if wanted("mnist"):
            small = job("MadeMNIST")
            steps = int(scale * (500 if runtime.on_gpu else 20))
            against_bare(
                "MNIST ConvNet, 5 × 64", small, runtime, steps,
                bare_precision="tf32" if runtime.on_gpu else "float32", compiled=False,
            )  # fmt: skip
        if wanted("job") and runtime.on_gpu:
            for repeat in range(2):
                start = time.perf_counter()
                run_job(job("MadeMNIST"), LocalStore(Path(folder) / f"run{repeat}"), runtime=runtime)
                print(f"a whole job of 5,001 steps: {time.perf_counter() - start:.2f} s (run {repeat + 1})", flush=True)
        if wanted("resnet"):
            made_dataset(Path(folder), "MadePACS", 4, 2498, 227, 3, 7)
            large = job("MadePACS")
            steps = int(scale * (100 if runtime.on_gpu else 1)) or 1
            bare_rate = against_bare(
                "ResNet-50, 224 px, 3 × 32, augmented", large, runtime, steps,
                bare_precision=precision, compiled=runtime.on_gpu,
            )  # fmt: skip
            if runtime.on_gpu:
                torch._dynamo.reset()
                shorter = job("MadePACS", steps=1000)
                whole_job(shorter, Path(folder), runtime, bare_rate)
        if wanted("memory"):
            host_memory(folder, options.device)
    if wanted("start"):
        first_step(options.device)


MEMORY = """
import sys, torch
from shiftbed import networks
from shiftbed.data import load
from shiftbed.training.device import find_runtime
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.trainer import Trainer
from shiftbed.protocols import LeaveOut
runtime = find_runtime(sys.argv[2] or None)
how = recipe("domainbed-head", "MadeMNIST", steps=10)
job = make_job("MadeMNIST", "ERM", LeaveOut(("0",)), how)
with one_thread():
    if sys.argv[1] == "ours":
        trainer = Trainer(job, runtime)
        for _ in range(10):
            trainer.advance()
        trainer.evaluate()
    else:  # the same data and model, and the bare loop
        inputs = [torch.from_numpy(domain.inputs[:]).to(runtime.device) for domain in load("MadeMNIST").domains[1:]]
        features = networks.Featurizer((1, 28, 28), {**job.hparams, **job.recipe.for_networks()})
        network = torch.nn.Sequential(features, torch.nn.Linear(features.n_outputs, 10)).to(runtime.device)
        optimizer = torch.optim.Adam(network.parameters())
        for step in range(10):
            x = torch.cat([one[64 * step : 64 * step + 64] for one in inputs]).permute(0, 3, 1, 2) / 255
            torch.nn.functional.cross_entropy(network(x), torch.zeros(len(x), dtype=int, device=x.device)).backward()
            optimizer.step()
# Not ru_maxrss, which a process inherits from the one that started it.
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) // 1024)
"""


def host_memory(folder: str, device: str | None) -> None:
    """Peak memory of a job's process beyond that of a bare one with the same data and model."""
    peaks = {}
    for who in ("bare", "ours"):
        command = [sys.executable, "-c", MEMORY, who, device or ""]
        out = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
        peaks[who] = int(out.stdout.split()[-1])
    print(f"peak host memory of a job: {peaks['ours']} MB, {peaks['ours'] - peaks['bare']} MB beyond a bare process")


def first_step(device: str | None) -> None:
    """Seconds from `shiftbed train` to the end of one step on built-in data."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shiftbed", "train", "ColoredDigits", "ERM", "--test=-90%"]
        start = time.perf_counter()
        subprocess.run([*command, "--steps", "1", "--out", folder], check=True, stdout=subprocess.DEVNULL)
        print(f"from the command to the end of the first step: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
