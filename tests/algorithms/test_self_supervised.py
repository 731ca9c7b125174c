"""JiGen: its puzzles and its loss, in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from shiftbed.algorithms import Batches
from shiftbed.algorithms.self_supervised import ORDERS, shuffle_tiles
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train


def test_there_are_thirty_orders_and_the_identity_and_no_two_agree_twice():
    assert ORDERS.shape == (31, 9)
    assert ORDERS[0].tolist() == list(range(9))
    assert (np.sort(ORDERS, axis=1) == np.arange(9)).all()
    distances = (ORDERS[:, None] != ORDERS[None]).sum(2)
    assert distances[~np.eye(31, dtype=bool)].min() == 8


def test_every_tile_comes_to_every_place():
    assert all(set(ORDERS[:, place]) == set(range(9)) for place in range(9))


def test_a_place_gets_the_tile_that_the_order_names():
    order = torch.tensor([[4, 0, 8, 1, 2, 3, 5, 7, 6]])
    image = torch.arange(9.0).view(1, 1, 3, 3)
    assert shuffle_tiles(image, order).flatten().tolist() == order[0].tolist()
    image = torch.arange(36.0).view(1, 1, 6, 6)
    assert shuffle_tiles(image, order)[0, 0, :2, :4].tolist() == [[14, 15, 0, 1], [20, 21, 6, 7]]


def test_pixels_beyond_a_multiple_of_three_stay():
    image = torch.arange(20.0).view(1, 1, 4, 5)
    shuffled = shuffle_tiles(image, torch.tensor([[8, 7, 6, 5, 4, 3, 2, 1, 0]]))
    assert torch.equal(shuffled[..., 3, :], image[..., 3, :]) and torch.equal(shuffled[..., 3:], image[..., 3:])
    assert shuffled[0, 0, :3, :3].tolist() == [[12, 11, 10], [7, 6, 5], [2, 1, 0]]


@settings(max_examples=30)
@given(height=st.integers(3, 20), width=st.integers(3, 20), seed=st.integers(0, 1000))
def test_the_inverse_order_restores_an_image(height, width, seed):
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.random((4, 2, height, width)))
    orders = ORDERS[random.integers(31, size=4)]
    shuffled = shuffle_tiles(x, torch.from_numpy(orders))
    assert torch.equal(shuffle_tiles(shuffled, torch.from_numpy(orders.argsort(1))), x)
    assert torch.equal(x.flatten(1).sort(1).values, shuffled.flatten(1).sort(1).values)


class Draws:
    """A generator whose draws a test chooses."""

    def __init__(self, orders, uniform):
        self.orders, self.uniform = np.array(orders), np.array(uniform)

    def integers(self, high, size):
        assert high == 31
        return self.orders.copy()

    def random(self, size):
        return self.uniform


def test_jigen_s_loss_is_the_formula_and_shuffled_images_do_not_count_for_the_classes():
    algorithm, batches = build("JiGen", jigen_alpha=0.6, jigen_beta=0.5), make_batches(0, (2, 2))
    algorithm.rng = Draws([7, 0, 3, 30], [0.49, 0.9, 0.5, 0.9])  # the first is forced whole, the second is by chance
    loss, metrics = algorithm.objective(batches, 0)
    x = batches.x.clone()
    for i, order in ((2, 3), (3, 30)):
        x[i] = shuffle_tiles(x[i : i + 1], torch.from_numpy(ORDERS[order : order + 1]))[0]
    features = algorithm.featurizer(x)
    risk = F.cross_entropy(algorithm.classifier(features[:2]), batches.y[:2])
    puzzle = F.cross_entropy(algorithm.jigsaw(features), torch.tensor([0, 0, 3, 30]))
    assert metrics["risk"].item() == pytest.approx(risk.item(), abs=1e-12)
    assert loss.item() == pytest.approx((risk + 0.6 * puzzle).item(), abs=1e-12)


def test_a_step_without_a_whole_image_learns_the_puzzle_alone():
    algorithm = build("JiGen", jigen_beta=0.5)
    algorithm.rng = Draws([1, 2, 3, 4], [0.9] * 4)
    loss, metrics = algorithm.objective(make_batches(0, (2, 2)), 0)
    assert metrics["risk"].item() == 0
    assert loss.item() == pytest.approx(0.7 * metrics["puzzle"].item(), abs=1e-12)


def test_jigen_switched_off_is_erm_and_by_default_it_is_not():
    assert_same_as_erm(build("JiGen", jigen_alpha=0.0, jigen_beta=1.0))
    jigen, erm = build("JiGen"), build("ERM")
    train(jigen, 2)
    train(erm, 2)
    assert largest_difference(jigen, erm) > 1e-4


def test_the_jigsaw_head_learns_and_prediction_takes_whole_images():
    algorithm = build("JiGen")
    before = algorithm.jigsaw.weight.clone()
    train(algorithm, 1)
    assert not torch.equal(algorithm.jigsaw.weight, before)
    x = make_batches(1).x
    assert torch.equal(algorithm.predict(x), algorithm.classifier(algorithm.featurizer(x)))


def test_unequal_single_and_one_sided_batches_train():
    for batches in (make_batches(0, (1, 7, 3)), make_batches(0, (1,))):
        one_class = Batches(batches.x, torch.zeros_like(batches.y), batches.sizes)
        for given_batches in (batches, one_class):
            assert math.isfinite(build("JiGen", domains=len(batches)).update(given_batches)["loss"])
