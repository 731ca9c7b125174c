"""The guide for those who come from DomainBed: each class as published and as moved over does the same."""

import re
from pathlib import Path

import pytest
import torch

from shiftbed.algorithms import ALGORITHMS, load_code
from shiftbed.algorithms.state import unsaved
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from tests.algorithms.common import CLASSES, SHAPE, default_hparams, largest_difference, train
from tests.algorithms.test_conformance import HostReads
from tests.conftest import tiny_job

PAGE = Path(__file__).parents[2] / "docs" / "moving-from-domainbed.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
SHAPES = {"SmoothLabels": BLOCKS[0:2], "Critic": BLOCKS[2:4], "ClassMeans": BLOCKS[4:6]}


def loaded(name, text, folder):
    """The class of a block, registered."""
    path = folder / "my_algorithms.py"
    path.write_text(text)
    load_code(path)
    return ALGORITHMS[name].cls


def built(cls, name):
    torch.manual_seed(0)
    return cls(SHAPE, CLASSES, 3, default_hparams(name))


@pytest.mark.parametrize("name", SHAPES)
def test_published_and_moved_over_they_train_alike(name, tmp_path):
    published, moved = (built(loaded(name, text, tmp_path), name) for text in SHAPES[name])
    one, two = (train(algorithm, 5, dtype=torch.float32) for algorithm in (published, moved))
    assert [float(metrics["loss"]) for metrics in one] == [float(metrics["loss"]) for metrics in two]
    assert largest_difference(published, moved) == 0


@pytest.mark.parametrize("name", SHAPES)
def test_moved_over_no_step_waits_and_all_is_saved(name, tmp_path):
    algorithm = built(loaded(name, SHAPES[name][1], tmp_path), name)
    train(algorithm, 1, dtype=torch.float32)
    reads = HostReads()
    for optimizer in (value for value in vars(algorithm).values() if isinstance(value, torch.optim.Optimizer)):
        optimizer.register_step_pre_hook(reads.pause)
        optimizer.register_step_post_hook(reads.go_on)
    with reads:
        train(algorithm, 1, first=1, dtype=torch.float32)
    assert reads.count == 0
    assert not unsaved(algorithm)


@pytest.mark.parametrize("version", ["published", "moved"])
@pytest.mark.parametrize("name", SHAPES)
def test_interrupted_they_end_the_same(name, version, tmp_path):
    loaded(name, SHAPES[name][version == "moved"], tmp_path)
    job = tiny_job(name)
    whole, broken = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "broken")
    assert run_job(job, whole, keep="final") == "done"
    asked = iter([False, False, True])
    assert run_job(job, broken, should_stop=lambda: next(asked, True)) == "stopped"
    assert run_job(job, broken, keep="final") == "done"
    for file in ("records.jsonl", "weights.safetensors", "done.json"):
        key = f"jobs/{job.id}/{file}"
        assert whole.get(key) == broken.get(key), file


@pytest.mark.parametrize("name", SHAPES)
def test_wrappers_go_around_published_classes(name, tmp_path):
    loaded(name, SHAPES[name][0], tmp_path)
    algorithm = built(ALGORITHMS[f"EoA({name})"].cls, f"EoA({name})")
    assert all(torch.isfinite(torch.as_tensor(metrics["loss"])) for metrics in train(algorithm, 2, dtype=torch.float32))
