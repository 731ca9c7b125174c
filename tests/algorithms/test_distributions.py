"""CausIRL and RDM against golden values, samples written out in NumPy, and their ablations, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Batches
from shiftbed.algorithms.alignment import random_piles, variance_among
from shiftbed.hashing import seed_hash
from shiftbed.hparams import shared_space
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, train

S1 = torch.tensor([[2, 0, -1], [0.5, 1, 0], [-1, 0, 1], [0, 0, 0]], dtype=torch.float64)
S2 = torch.tensor([[1, 1, 0], [0, -2, 1], [3, 0, 0], [0.2, 0.4, -0.6]], dtype=torch.float64)
Y1, Y2 = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 1])
Z1 = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 1]], dtype=torch.float64)
Z2 = torch.tensor([[1, 0], [2, 1], [0, 3], [2, 2]], dtype=torch.float64)
MEAN_RISK = 0.5555770511
GOLDEN = {"CausIRL_CORAL": 23.34201389, "CausIRL_MMD": 2.31280617}


class Cuts:
    """A generator whose next integers are known."""

    def __init__(self, *cuts):
        self.cuts = list(cuts)

    def integers(self, size):
        assert 0 <= self.cuts[0] < size
        return self.cuts.pop(0)


def on_features(name, *cuts, **hparams):
    """An algorithm whose inputs are the features, whose risk is log 3, and whose cuts are known."""
    algorithm = build(name, **hparams)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 3, dtype=torch.float64)
    nn.init.zeros_(algorithm.classifier.weight)
    nn.init.zeros_(algorithm.classifier.bias)
    algorithm.rng = Cuts(*cuts)
    return algorithm


def labelled(*domains, unlabeled=()):
    return Batches.of([(z, torch.arange(len(z)) % 3) for z in domains], unlabeled)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_piles_are_first_parts_and_second_parts_of_all_domains(name):
    algorithm = on_features(name, 4, 0, mmd_gamma=2.0)
    batches = labelled(torch.cat([Z1, Z2[:1]]), Z2[1:])  # cut after 4 and after 0: one pile is Z1 and the other Z2
    loss, metrics = algorithm.objective(batches, 0)
    assert metrics["penalty"].item() == pytest.approx(GOLDEN[name], abs=1e-8)
    assert loss.item() == pytest.approx(np.log(3) + 2 * GOLDEN[name], abs=1e-7)


@pytest.mark.parametrize("name", GOLDEN)
def test_unlabelled_domains_are_cut_and_mixed_too(name):
    algorithm = on_features(name, 4, 0)
    _, metrics = algorithm.objective(labelled(torch.cat([Z1, Z2[:1]]), unlabeled=[Z2[1:]]), 0)
    assert metrics["penalty"].item() == pytest.approx(GOLDEN[name], abs=1e-8)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("cuts", [(0, 0), (1, 0), (0, 1)])
def test_a_pile_of_fewer_than_two_examples_is_not_compared(name, cuts):
    loss, metrics = on_features(name, *cuts).objective(labelled(Z1, Z2), 0)
    assert metrics["penalty"].item() == 0
    assert loss.item() == pytest.approx(np.log(3), abs=1e-12)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_piles_hold_every_example_once_and_the_second_never_lacks_a_domain(seed, sizes):
    whole = torch.arange(sum(sizes))
    batches = Batches(whole, whole, sizes)
    rows, piles = random_piles(whole, batches, np.random.default_rng(seed))
    assert sorted(rows.tolist()) == whole.tolist() and len(piles) == 2
    second = batches.domains[rows[piles.sizes[0] :]]
    assert set(second.tolist()) == set(range(len(sizes)))


def test_cuts_differ_from_step_to_step():
    whole = torch.arange(12)
    batches, rng = Batches(whole, whole, (6, 6)), np.random.default_rng(0)
    assert len({tuple(random_piles(whole, batches, rng)[0].tolist()) for _ in range(20)}) > 5


@pytest.mark.parametrize("name", GOLDEN)
def test_without_its_weight_causirl_is_erm_and_with_it_not(name):
    assert_same_as_erm(build(name, mmd_gamma=0.0))
    erm, causirl = build("ERM"), build(name)
    train(erm, 5)
    train(causirl, 5)
    assert largest_difference(erm, causirl) > 1e-5


@pytest.mark.parametrize("name", GOLDEN)
def test_the_distance_s_gradient_reaches_both_piles(name):
    algorithm = on_features(name, 2, 2)
    z1, z2 = Z1.clone().requires_grad_(), Z2.clone().requires_grad_()
    algorithm.objective(labelled(z1, z2), 0)[1]["penalty"].backward()
    assert z1.grad.abs().sum(1).min() > 0 and z2.grad.abs().sum(1).min() > 0


def on_logits(**hparams):
    """RDM with the logits as inputs."""
    algorithm = build("RDM", rdm_penalty_anneal_iters=0, **hparams)
    algorithm.network = nn.Identity()
    return algorithm


def test_rdm_on_known_losses():
    algorithm = on_logits(rdm_lambda=2.0, variance_weight=3.0)
    loss, metrics = algorithm.objective(Batches.of([(S1, Y1), (S2, Y2)]), 0)
    assert metrics["penalty"].item() == pytest.approx(0.2336761399, abs=1e-9)  # domain 1 is the worse one
    assert metrics["variance"].item() == pytest.approx(0.2847775865, abs=1e-9)  # 0.1259013648 of all, 0.1588762217
    assert loss.item() == pytest.approx(MEAN_RISK + 2 * 0.2336761399 + 3 * 0.2847775865, abs=1e-8)


def mmd_of_samples(one, two):
    def mean_kernel(a, b):
        return sum(np.exp(-(10.0**power) * (a[:, None] - b) ** 2).mean() for power in range(-4, 4))

    return mean_kernel(one, one) + mean_kernel(two, two) - 2 * mean_kernel(one, two)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_rdm_compares_the_worst_domain_with_all_whatever_their_sizes(seed, sizes):
    random = np.random.default_rng(seed)
    logits, y = (
        torch.from_numpy(random.normal(size=(sum(sizes), 3))),
        torch.from_numpy(random.integers(3, size=sum(sizes))),
    )
    loss, metrics = on_logits(rdm_lambda=2.0, variance_weight=3.0).objective(Batches(logits, y, sizes), 0)

    losses = (torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y]).numpy()
    domains = np.split(losses, np.cumsum(sizes)[:-1])
    worst = max(domains, key=np.mean)
    distance = mmd_of_samples(worst, losses)
    spread = sum(sample.var(ddof=1) if len(sample) > 1 else 0 for sample in (worst, losses))
    assert metrics["penalty"].item() == pytest.approx(distance, abs=1e-12)
    risk = np.mean([domain.mean() for domain in domains])
    assert loss.item() == pytest.approx(risk + 2 * distance + 3 * spread, abs=1e-10)


def test_the_variance_of_chosen_values_and_its_gradient():
    values = torch.tensor([1.0, 2, 4, 100], dtype=torch.float64, requires_grad=True)
    chosen = torch.tensor([1.0, 1, 1, 0], dtype=torch.float64)
    assert variance_among(values, chosen).item() == pytest.approx(7 / 3)
    assert torch.autograd.gradcheck(variance_among, (values, chosen))
    alone = variance_among(values, torch.tensor([0.0, 0, 0, 1], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(alone, values)
    assert alone.item() == 0 and gradient.abs().max() == 0


def test_rdm_penalises_both_samples_of_losses_with_a_gradient():
    """Finite differences of the whole objective in the logits, the worst domain staying the worst."""
    algorithm = on_logits(rdm_lambda=2.0, variance_weight=0.5)
    logits = torch.cat([S1, S2]).requires_grad_()
    y = torch.cat([Y1, Y2])
    assert torch.autograd.gradcheck(lambda s: algorithm.objective(Batches(s, y, (4, 4)), 0)[0], (logits,))


def test_rdm_is_erm_up_to_its_annealing_step_and_not_after_it():
    assert_same_as_erm(build("RDM"))
    assert_same_as_erm(build("RDM", rdm_penalty_anneal_iters=0, rdm_lambda=0.0, variance_weight=0.0, rdm_lr=1e-3))
    for change in ({"rdm_lambda": 0.0}, {"variance_weight": 0.0}):
        erm, rdm = build("ERM"), build("RDM", rdm_penalty_anneal_iters=0, rdm_lr=1e-3, **change)
        train(erm, 5)
        train(rdm, 5)
        assert largest_difference(erm, rdm) > 1e-5


def test_rdm_restarts_its_optimizer_with_its_own_learning_rate():
    algorithm = build("RDM", rdm_penalty_anneal_iters=2, weight_decay=0.1)
    seen = []
    for step in range(4):
        train(algorithm, 1, first=step)
        (group,) = algorithm.optimizer.param_groups
        count = next(iter(algorithm.optimizer.state.values()))["step"].item()
        seen.append((count, group["lr"], group["weight_decay"]))
    assert seen == [(1, 1e-3, 0.1), (2, 1e-3, 0.1), (1, 1.5e-5, 0.1), (2, 1.5e-5, 0.1)]


def test_under_autocast_rdm_s_kernel_keeps_float32():
    algorithm = on_logits().float()
    batches = Batches.of([(S1.float(), Y1), (S2.float(), Y2)])
    with torch.autocast("cpu", torch.bfloat16):
        _, metrics = algorithm.objective(batches, 0)
    assert metrics["penalty"].dtype == torch.float32
    assert metrics["penalty"].item() == pytest.approx(0.2336761399, abs=1e-5)


# (dataset, hyperparameter): (default, the draw from a RandomState), as DomainBed's registry has them.
HEAD = {
    ("DomainNet", "rdm_lambda"): (0.5, lambda r: r.uniform(0.1, 1.0)),
    ("PACS", "rdm_lambda"): (5.0, lambda r: r.uniform(1.0, 10.0)),
    ("TerraIncognita-24330", "rdm_lambda"): (5.0, lambda r: r.uniform(1.0, 10.0)),
    ("VLCS", "rdm_lambda"): (5.0, lambda r: r.uniform(0.1, 10.0)),
    ("DomainNet", "rdm_penalty_anneal_iters"): (2400, lambda r: int(r.uniform(1500, 3000))),
    ("PACS", "rdm_penalty_anneal_iters"): (1500, lambda r: int(r.uniform(800, 2700))),
    ("OfficeHome", "variance_weight"): (0.0, lambda r: 0.0),
    ("TerraIncognita", "variance_weight"): (0.0, lambda r: 0.0),
    ("DomainNet", "variance_weight"): (0.0, lambda r: 0.0),
    ("VLCS", "variance_weight"): (0.004, lambda r: r.uniform(0.001, 0.007)),
    ("VLCS", "rdm_lr"): (1.5e-5, lambda r: r.uniform(8e-6, 2e-5)),
    ("DomainNet", "batch_size"): (40, lambda r: int(r.uniform(30, 60))),
    ("TerraIncognita", "batch_size"): (40, lambda r: int(r.uniform(30, 60))),
    ("PACS", "batch_size"): (88, lambda r: int(r.uniform(70, 100))),
}


@pytest.mark.parametrize(("dataset", "name"), HEAD, ids=str)
def test_rdm_draws_as_domainbed_does(dataset, name):
    default, rule = HEAD[dataset, name]
    space = shared_space("large", dataset) | ALGORITHMS["RDM"].space(dataset, "large")
    assert space.draw(0, 0)[name] == default
    for draw, trial in ((1, 0), (7, 2), (19, 1)):
        assert space.draw(draw, trial)[name] == rule(np.random.RandomState(seed_hash(seed_hash(draw, trial), name)))
    assert "batch_size" not in ALGORITHMS["RDM"].space("ColoredMNIST", "small")
