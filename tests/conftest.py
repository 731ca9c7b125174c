import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from shiftbed.algorithms import ALGORITHMS
from shiftbed.protocols import LeaveOut
from shiftbed.training.job import Job, make_job
from shiftbed.training.recipes import recipe

torch.set_num_threads(1)


def tiny_job(algorithm: str, *, draw: int = 0, trial: int = 0, steps: int = 6, every: int = 2, **overrides) -> Job:
    """A job of a fraction of a second that passes IRM's annealing between two checkpoints."""
    how = recipe("quick", "ColoredDigits", steps=steps, evaluate_every=every)
    values = {"batch_size": 4, **overrides}
    if algorithm == "IRM":
        values.setdefault("irm_penalty_anneal_iters", 3)
    return make_job("ColoredDigits", algorithm, LeaveOut(("-90%",)), how, draw, trial, values)


@pytest.fixture(autouse=True)
def registered_algorithms_stay_as_they_are():
    """What a test registers, no other test sees."""
    before = {name: ALGORITHMS[name] for name in ALGORITHMS}
    yield
    ALGORITHMS._entries.clear()
    ALGORITHMS._entries.update(before)
