"""Speed and memory of accuracy prediction: all methods, and the agreement of a pool.

    python perf/accuracy.py [--domains 180]

Targets, on two cores: all methods on 180 domains of 3,000 images, 10 classes and 64 features in 30 s; the agreement of
70 models on 180 domains in 10 s and 2 GB. Memory must not grow with the number of domains.
"""

import argparse
import resource
import time
from collections.abc import Iterator

import numpy as np

from shiftbed.accuracy.agreement import agreement_matrix
from shiftbed.accuracy.methods import METHODS
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.reference import Reference

IMAGES, CLASSES, FEATURES, MODELS = 3000, 10, 64, 70


def domains(count: int, pool: int = 10) -> Iterator[Outputs]:
    """Domains that are less and less like the source, one at a time."""
    for number in range(count):
        random = np.random.default_rng(number)
        labels = random.integers(0, CLASSES, IMAGES)
        easy = 6 * (1 - number / count)
        logits = (random.normal(size=(IMAGES, CLASSES)) * 2 + easy * np.eye(CLASSES)[labels]).astype(np.float32)
        logits[:, 0] += 2 * number / count
        features = random.normal(size=(IMAGES, FEATURES)).astype(np.float32)
        features[:, :CLASSES] += logits
        others = np.where(random.random((pool, IMAGES)) < 0.8, labels, random.integers(0, CLASSES, (pool, IMAGES)))
        yield Outputs(logits, features, labels, others, f"domain {number}")


def peak() -> float:
    """The most memory this process has used, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=180)
    count = parser.parse_args().domains
    source = Reference(next(domains(1)))
    seconds = dict.fromkeys(METHODS, 0.0)
    memory = []
    for number, domain in enumerate(domains(count)):
        for name in METHODS:
            started = time.process_time()
            METHODS[name].score(domain, source)
            seconds[name] += time.process_time() - started
        if number in (count // 2, count - 1):
            memory.append(peak())
    for name, spent in sorted(seconds.items(), key=lambda one: -one[1]):
        print(f"{name:22s} {spent:6.2f} s")
    total = sum(seconds.values())
    print(f"all methods, {count} domains: {total:.1f} s of processor time, target 30 s for 180")
    print(f"memory after half of the domains {memory[0]:.2f} GB, after all {memory[-1]:.2f} GB")
    spent = 0.0
    for number in range(count):
        predictions = np.random.default_rng(number).integers(0, CLASSES, (MODELS, IMAGES)).astype(np.uint8)
        started = time.process_time()
        agreement_matrix(predictions)
        spent += time.process_time() - started
    pairs = MODELS * (MODELS - 1) // 2
    print(
        f"agreement of {pairs} pairs on {count} domains: {spent:.1f} s, target 10 s; peak {peak():.2f} GB, target 2 GB"
    )


if __name__ == "__main__":
    main()
