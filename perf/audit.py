"""How much faster a linear probe is on cached features than stepping through the backbone, extraction included.

Same job, un-augmented data, steps and evaluations. Stepping is measured on a few steps and one evaluation, and
multiplied; `--whole` steps to the end and compares accuracies, too.

Run: python perf/audit.py [--dataset EmojiStyles --network resnet18 --image-size 64 --weights FILE --steps 5001]
"""

import argparse
import time

from shiftbed.audit import study
from shiftbed.audit.probing import probe, records
from shiftbed.audit.study import NOTHING, Arm
from shiftbed.data import card
from shiftbed.training.device import default_precision, find_runtime, one_thread
from shiftbed.training.recipes import recipe
from shiftbed.training.trainer import Trainer

WARM_UP = 2


def main() -> None:
    """Times both and prints their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="EmojiStyles")
    parser.add_argument("--test", default="")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--weights", default=NOTHING)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5001)
    parser.add_argument("--every", type=int, default=300)
    parser.add_argument("--measured", type=int, default=5)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--device")
    options = parser.parse_args()
    runtime = find_runtime(options.device)
    how = recipe(
        "quick", options.dataset, network=options.network, image_size=options.image_size, steps=options.steps,
        evaluate_every=options.every, precision=default_precision(runtime),
    )  # fmt: skip
    test = options.test or next(iter(card(options.dataset).domains))
    # DomainBed's usual batch of large images; a rate that a head learns at.
    values = {"batch_size": 32, "lr": 1e-3}
    (job,) = study.plan(options.dataset, how, Arm(options.weights, 1, True), [test], overrides=values)
    Trainer(job, runtime)  # data and libraries are loaded for both
    started = time.perf_counter()
    cached = probe(job, runtime)
    quick = time.perf_counter() - started

    with one_thread():
        started = time.perf_counter()
        trainer = Trainer(job, runtime)
        building = time.perf_counter() - started
        if options.whole:
            stepped = records(trainer)
            slow, how_known = time.perf_counter() - started, "measured"
            worst = max(_differences(cached[-1], stepped[-1]))
            print(f"largest difference of final accuracies: {worst:.2f} standard errors")
        else:
            step = _mean_time(lambda: trainer.advance()["loss"], options.measured)
            evaluation = _mean_time(trainer.evaluate, 1)
            slow = building + options.steps * step + len(cached) * evaluation
            how_known = f"from {options.measured} steps of {1000 * step:.1f} ms and evaluations of {evaluation:.2f} s"
    print(f"{options.network} on {options.dataset}, {options.steps} steps on {runtime.device}")
    print(f"cached {quick:.1f} s, stepping {slow:.1f} s ({how_known}): {slow / quick:.0f} × (at least 30 ×)")


def _mean_time(action, count: int) -> float:  # type: ignore[no-untyped-def]
    for _ in range(WARM_UP if count > 1 else 0):
        action()
    started = time.perf_counter()
    for _ in range(count):
        last = action()
    float(last if not isinstance(last, dict) else 0)  # waits for the device
    return (time.perf_counter() - started) / count


def _differences(one: dict, other: dict) -> list[float]:
    found = []
    for name, numbers in other["splits"].items():
        error = max((numbers["accuracy"] * (1 - numbers["accuracy"]) / numbers["count"]) ** 0.5, 1e-9)
        found.append(abs(one["splits"][name]["accuracy"] - numbers["accuracy"]) / error)
    return found


if __name__ == "__main__":
    main()
