"""How many operations an update dispatches: on small networks this is what a step costs."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.algorithms.common import build, make_batches, train

SIZES = (8, 8, 8)


class Dispatched(TorchDispatchMode):
    """Counts the operations that reach a kernel or a view."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operations(name):
    """The operations of one update, with the Adam that torch chooses on a GPU."""
    algorithm = build(name, dtype=torch.float32)
    for group in algorithm.optimizer.param_groups:
        group["foreach"] = True
    train(algorithm, 2, sizes=SIZES, dtype=torch.float32)
    with Dispatched() as dispatched:
        algorithm.update(make_batches(3, SIZES, dtype=torch.float32))
    return dispatched.counts.total()


@pytest.mark.parametrize("name", ["CORAL", "MMD", "IRM", "VREx", "GroupDRO", "SD", "IB_ERM", "IB_IRM"])
def test_a_penalty_at_most_doubles_the_operations_of_erm(name):
    assert operations(name) <= 2.1 * operations("ERM")


@pytest.mark.parametrize("name", ["CORAL", "MMD"])
def test_the_number_of_operations_does_not_grow_with_the_pairs_of_domains(name):
    def of(domains):
        algorithm = build(name, domains, dtype=torch.float32)
        with Dispatched() as dispatched:
            algorithm.update(make_batches(0, (8,) * domains, dtype=torch.float32))
        return dispatched.counts.total()

    assert of(6) == of(2)


@pytest.mark.parametrize(
    ("name", "forwards"),
    [
        *((name, 1) for name in ("CORAL", "MMD", "CausIRL_CORAL", "CausIRL_MMD", "GroupDRO", "EQRM", "MTL", "Mixup")),
        ("ERDG", 1),  # for both of its phases
        ("Transfer", 3),  # for the risk, for the gap, and for the adversarial head
    ],
)
def test_all_domains_share_a_forward(name, forwards):
    algorithm, seen = build(name, shape=(3, 8, 8)), []
    algorithm.featurizer.register_forward_hook(lambda module, given, out: seen.append(len(out)))
    algorithm.update(make_batches(0, shape=(3, 8, 8)))
    assert seen == [18] * forwards
