import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from shiftbed.algorithms import ALGORITHMS
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.protocols import LeaveOut
from shiftbed.training.job import Job, make_job
from shiftbed.training.recipes import recipe

torch.set_num_threads(1)
# A machine with other work draws examples slowly; no test is about time.
settings.register_profile("shiftbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shiftbed")


def tiny_job(algorithm: str, *, draw: int = 0, trial: int = 0, steps: int = 6, every: int = 2, **overrides) -> Job:
    """A job of a fraction of a second that passes IRM's annealing between two checkpoints."""
    how = recipe("quick", "ColoredDigits", steps=steps, evaluate_every=every)
    values = {"batch_size": 4, **overrides}
    if algorithm == "IRM":
        values.setdefault("irm_penalty_anneal_iters", 3)
    return make_job("ColoredDigits", algorithm, LeaveOut(("-90%",)), how, draw, trial, values)


def write_tiny_dataset(root: Path) -> None:
    """A dataset of a few colour images under a data root: three domains, two classes, 20×20."""
    random = np.random.default_rng(0)
    names = ("one", "two", "three")
    labels = np.arange(12) % 2
    domains = [
        Domain(
            name, (random.random((12, 20, 20, 3)) * 155 + 100 * labels[:, None, None, None]).astype(np.uint8), labels
        )
        for name in names
    ]
    card = Card(
        name="TinyColours",
        version=1,
        summary="A few colour images",
        classes=("dark", "light"),
        domains=dict.fromkeys(names, 12),
        input_shape=(3, 20, 20),
        size_class="small",
        licence="none",
        citation="none",
        source="made",
    )
    write_arrays(domains, card, root / "packs" / card.name)


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory) -> Path:
    """A data root with the tiny dataset."""
    root = tmp_path_factory.mktemp("data-root")
    write_tiny_dataset(root)
    return root


@pytest.fixture
def tiny_colours(tiny_root, monkeypatch) -> str:
    """The name of the tiny dataset, which this test finds."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tiny_root))
    return "TinyColours"


def augmented_job(algorithm: str, *, steps: int = 4, every: int = 2, **overrides) -> Job:
    """A job on the tiny dataset whose images are cropped, mirrored and recoloured."""
    how = recipe("quick", "TinyColours", steps=steps, evaluate_every=every, augmentation=SMALL_CROPS)
    values = {"batch_size": 4, **overrides}
    if algorithm == "IRM":
        values.setdefault("irm_penalty_anneal_iters", 3)
    return make_job("TinyColours", algorithm, LeaveOut(("three",)), how, overrides=values)


@pytest.fixture
def memory_folder(tmp_path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of real fsyncs would take minutes."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


SMALL_CROPS = {"scheme": "domainbed", "size": 16}


@pytest.fixture(autouse=True)
def registered_algorithms_stay_as_they_are():
    """What a test registers, no other test sees."""
    before = {name: ALGORITHMS[name] for name in ALGORITHMS}
    yield
    ALGORITHMS._entries.clear()
    ALGORITHMS._entries.update(before)
