"""Streams: which example comes at which position, as a function and not as a loader.

Position k of a domain's stream is word k of a counter-based generator (Philox) under a key that holds the dataset, the
task, the trial and the domain, and nothing of the algorithm or its hyperparameters. So all algorithms of a cell see the
same stream, and resuming needs no state.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch

from shiftbed.hashing import canonical
from shiftbed.training.device import ALONE

Sampling = Literal["with-replacement", "epochs"]


def philox_key(*identity: Any) -> int:
    """A 128-bit key from what identifies a stream."""
    return int.from_bytes(hashlib.sha256(canonical(identity)).digest()[:16], "little")


class Stream:
    """The endless sequence of examples that one domain offers.

    Args:
        key: The stream's identity, from `philox_key`.
        indices: The examples to choose from.
        sampling: Independent draws with replacement, or one permutation of all examples after another.
    """

    def __init__(self, key: int, indices: np.ndarray, sampling: Sampling) -> None:
        self.key = key
        self.indices = indices
        self.sampling = sampling

    def take(self, start: int, count: int) -> np.ndarray:
        """The examples at positions `start` to `start + count`."""
        size = len(self.indices)
        if self.sampling == "with-replacement":
            # 53 bits make a float in [0, 1) that every machine computes alike.
            uniform = (self._words(start, count)[:, 0] >> np.uint64(11)) * 2.0**-53
            return self.indices[(uniform * size).astype(np.int64)]
        epochs = range(start // size, (start + count - 1) // size + 1)
        orders = np.concatenate([np.argsort(self._words(e * size, size)[:, 1], kind="stable") for e in epochs])
        offset = start - epochs[0] * size
        return self.indices[orders[offset : offset + count]]

    def _words(self, start: int, count: int) -> np.ndarray:
        """Four random words for each position; the first chooses examples, the second orders epochs."""
        return np.random.Philox(key=self.key, counter=start).random_raw(4 * count).reshape(count, 4)


def reseed(job_id: str, step: int, moment: Literal["weights", "epoch", "update", "evaluation"]) -> np.random.Generator:
    """Seeds the default generators for one moment of a job, so that any class resumes with no generator state saved.

    Returns:
        A generator of the same moment, for the algorithm's own draws.
    """
    key = philox_key(job_id, step, moment)
    seed = key % 2**63
    # As torch.manual_seed, which also writes down the stack for each kind of device that nobody uses: 0.25 ms a step.
    torch.default_generator.manual_seed(seed)
    if moment == "weights" or torch.cuda.is_initialized():  # a class may wake the GPU where it makes its networks
        torch.cuda.manual_seed_all(seed)
    np.random.seed(key % 2**32)
    random.seed(key)
    return np.random.Generator(np.random.Philox(key=key))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch draws from a seed, and afterwards as if it had not."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with ALONE, torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield
