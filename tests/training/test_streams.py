import random

import numpy as np
import pytest
import torch

from shiftbed.training.streams import Stream, philox_key, reseed
from tests.conftest import tiny_job


@pytest.mark.parametrize("sampling", ["with-replacement", "epochs"])
def test_a_position_does_not_depend_on_how_it_is_reached(sampling):
    stream = Stream(philox_key("a"), np.arange(100, 137), sampling)
    whole = stream.take(0, 500)
    pieces = np.concatenate([stream.take(start, 25) for start in range(0, 500, 25)])
    assert np.array_equal(whole, pieces)
    assert np.array_equal(stream.take(123, 50), whole[123:173])
    assert set(whole) <= set(range(100, 137))


def test_with_replacement_is_uniform():
    drawn = Stream(philox_key("b"), np.arange(10), "with-replacement").take(0, 20_000)
    counts = np.bincount(drawn, minlength=10)
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_square < 27.9, "99.9 % of uniform samples stay below"


def test_an_epoch_shows_every_example_once_and_the_next_in_another_order():
    stream = Stream(philox_key("c"), np.arange(50), "epochs")
    first, second = stream.take(0, 50), stream.take(50, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert not np.array_equal(first, second)


def test_known_positions():
    """Golden: a change here changes every result and must raise the id schema."""
    stream = Stream(philox_key("golden", 1), np.arange(1000), "with-replacement")
    assert stream.take(0, 8).tolist() == GOLDEN_REPLACEMENT
    assert Stream(philox_key("golden", 1), np.arange(8), "epochs").take(8, 8).tolist() == GOLDEN_EPOCH


GOLDEN_REPLACEMENT = [602, 591, 546, 218, 777, 627, 255, 624]
GOLDEN_EPOCH = [0, 1, 3, 5, 4, 2, 6, 7]


def test_all_algorithms_and_draws_of_a_cell_see_the_same_examples():
    cells = [tiny_job(name, draw=draw).cell for name in ("ERM", "CORAL") for draw in (0, 1)]
    assert all(cell == cells[0] for cell in cells)
    assert tiny_job("ERM", trial=1).cell != cells[0]


def test_reseeding_fixes_every_default_generator():
    def draws(step):
        generator = reseed("job", step, "update")
        return [torch.rand(1).item(), np.random.rand(), random.random(), generator.random()]

    first = draws(3)
    assert draws(4) != first
    assert draws(3) == first
    torch.manual_seed(philox_key("job", 3, "update") % 2**63)  # as every job before was seeded
    assert torch.rand(1).item() == first[0]


@pytest.mark.parametrize(
    ("moment", "awake", "seeded"), [("weights", False, 1), ("update", True, 1), ("update", False, 0)]
)
def test_gpus_are_seeded_where_a_class_may_draw_on_them(monkeypatch, moment, awake, seeded):
    seeds = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: awake)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    reseed("job", 0, moment)
    assert seeds == [torch.default_generator.initial_seed()] * seeded
