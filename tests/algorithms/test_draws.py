"""What a step draws on the host: a replayed step must find it anew in the same tensors."""

import numpy as np
import pytest
import torch

from shiftbed.algorithms import ALGORITHMS, call_hook
from shiftbed.algorithms.draws import Tape
from tests.algorithms.common import Examples, build, make_batches

CAPTURABLE = [*(name for name in ALGORITHMS if ALGORITHMS[name].capturable), "SWAD(Mixup)"]


class Exhausted:
    """A generator of which nothing may be asked."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} is drawn while a step is captured")


def generator(seed):
    return np.random.Generator(np.random.Philox(seed))


def test_a_tape_notes_draws_and_fills_their_tensors_anew():
    tape, weight = Tape(), torch.zeros(1, dtype=torch.float32)
    order = tape.drawn(lambda rng: rng.permutation(5), generator(1), weight)
    share = tape.drawn(lambda rng: rng.beta(2.0, 2.0), generator(2), weight)
    assert order.dtype == torch.int64 and share.dtype == torch.float32 and share.shape == ()
    rng = generator(3)
    expected = rng.permutation(5).tolist(), float(np.float32(rng.beta(2.0, 2.0)))
    tape.draw(generator(3))
    assert (order.tolist(), float(share)) == expected
    with tape.fixed():
        assert tape.drawn(lambda rng: rng.permutation(5), Exhausted(), weight) is order
        assert tape.drawn(lambda rng: rng.beta(2.0, 2.0), Exhausted(), weight) is share
    tape.erase()
    tape.draw(Exhausted())


@pytest.mark.parametrize("name", CAPTURABLE)
def test_a_class_that_is_captured_draws_by_its_tape_alone(name):
    """As the engine does it: draws are noted in one step, made anew for the next, and no more are made within it."""
    plain, replayed = build(name), build(name)
    replayed.load_state_dict(plain.state_dict())
    for step in range(2 * plain.cycle + 1):
        batches = make_batches(step, sizes=(6, 6, 6))
        losses = []
        for algorithm in (plain, replayed):
            torch.manual_seed(step)
            algorithm.rng = generator(step)
            if algorithm is plain:
                losses.append(algorithm.update(batches)["loss"])
                continue
            tape = algorithm.tape = noted(algorithm, batches)
            tape.draw(algorithm.rng)
            algorithm.rng = Exhausted()
            torch.manual_seed(step)
            with tape.fixed():
                losses.append(algorithm.update(batches)["loss"])
        assert torch.equal(*losses)


def noted(algorithm, batches):
    """The tape of the same step with other draws, made by a copy."""
    name = type(algorithm).__name__
    other = build(name)
    other.load_state_dict(algorithm.state_dict())
    other.rng, other.tape = generator(99), Tape()
    call_hook(other, "epoch", Examples(batches))
    other.update(batches)
    return other.tape
