"""Augmenting a batch of 96 at 224 px: against torchvision's pipeline image by image, and against a bare gather.

Run: python perf/augment.py
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

from shiftbed.training.augment import SCHEMES, augment, augmentation_words

BATCH = 96
PACKED = 288
IMAGES = 400
STEPS = 64
REPEATS = 5


class Counted(TorchDispatchMode):
    """Counts the operations that are dispatched, and those of them that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatched = self.computing = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Runs and counts one operation."""
        self.dispatched += 1
        self.computing += not func.is_view
        return func(*args, **(kwargs or {}))


def milliseconds(works: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """The median time of each work, done in turn; a GPU is waited for."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS + 1):
        for name, work in works.items():
            wait()
            started = time.perf_counter()
            work()
            wait()
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(spent[1:]) for name, spent in times.items()}  # the first is to warm up


def study(device: str) -> None:
    """Prints the times on one kind of device."""
    scheme = SCHEMES["domainbed"]
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand((IMAGES, 3, 9, 9), generator=generator)
    images = torch.nn.functional.interpolate(coarse, (PACKED, PACKED), mode="bicubic").mul(255).clamp(0, 255).byte()
    images = images.to(device)
    chosen = torch.randint(IMAGES, (BATCH,), generator=generator).to(device)
    sizes = np.full((STEPS * BATCH, 2), PACKED)
    uploaded = scheme.draw(augmentation_words(0, 0, STEPS * BATCH), sizes).to(device)[:BATCH]
    pipeline = v2.Compose(
        [
            v2.RandomResizedCrop(scheme.size, scheme.scale, scheme.ratio, antialias=True),
            v2.RandomHorizontalFlip(scheme.flip),
            v2.ColorJitter(*scheme.jitter),
            v2.RandomGrayscale(scheme.grayscale),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    works: dict[str, Callable[[], object]] = {
        "gather": lambda: images[chosen, :, :224, :224].float().div_(255),
        "ours": lambda: augment(images[chosen], uploaded),
        "torchvision": lambda: torch.stack([pipeline(image) for image in images[chosen]]),
        "drawing": lambda: scheme.draw(augmentation_words(0, 0, STEPS * BATCH), sizes).to(device),
    }
    if device == "cuda":
        compiled = torch.compile(augment)
        works["compiled"] = lambda: compiled(images[chosen], uploaded)
    times = milliseconds(works, device)
    few = images[chosen[:4]]  # so few that a CPU takes them at once
    with Counted() as counted:
        augment(few, uploaded[:4])
    ours = times["ours"]
    plus = f" ({times['compiled']:.2f} ms compiled)" if device == "cuda" else ""
    print(
        f"{device}, {torch.get_num_threads()} threads: "
        f"a batch of {BATCH} at {scheme.size} px takes {ours:.2f} ms{plus}; "
        f"torchvision {times['torchvision']:.1f} ms, {times['torchvision'] / ours:.1f} times ours; "
        f"a bare gather {times['gather']:.2f} ms, ours {ours / times['gather']:.1f} times that; "
        f"drawing {STEPS} steps' parameters {times['drawing']:.1f} ms; "
        f"{counted.dispatched} operations dispatched, {counted.computing} of them compute"
    )


def main() -> None:
    """Prints the times on the CPU and, if there is one, on the GPU."""
    study("cpu")
    if torch.cuda.is_available():
        study("cuda")


if __name__ == "__main__":
    main()
