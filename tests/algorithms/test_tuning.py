"""Linear probing, probing and then fine-tuning, and frozen stages."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import ALGORITHMS, ERM, Algorithm, Batches, TrainingPlan
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import (
    CLASSES,
    SHAPE,
    assert_same_as_erm,
    build,
    default_hparams,
    largest_difference,
    make_batches,
    train,
)


def around(name, inner, **hparams):
    """A wrapper around a class of the test, in float64."""
    cls = type(f"{name}({inner.__name__})", (ALGORITHMS[name].cls,), {"inner_class": inner})
    return cls(SHAPE, CLASSES, 3, default_hparams(name, **hparams)).double()


class Normed(ERM):
    """ERM with a featurizer that has batch norm and dropout."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.featurizer = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.BatchNorm1d(8), nn.Dropout())
        self.classifier = nn.Linear(8, num_classes)
        self.network = nn.Sequential(self.featurizer, self.classifier)
        self.optimizer = self.make_optimizer()


class Bare(Algorithm):
    """An algorithm without a featurizer."""


def test_linear_probe_is_a_linear_model_on_fixed_features():
    probe = build("LinearProbe", weight_decay=0.01)
    start = copy.deepcopy(probe.inner)
    head = copy.deepcopy(probe.inner.classifier)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(5):
        batches = make_batches(step)
        with torch.no_grad():
            features = start.featurizer(batches.x)
        optimizer.zero_grad()
        F.cross_entropy(head(features), batches.y).backward()
        optimizer.step()
    train(probe, 5)
    assert torch.allclose(probe.inner.classifier.weight, head.weight, atol=1e-12)
    for now, then in zip(probe.inner.featurizer.parameters(), start.featurizer.parameters(), strict=True):
        assert torch.equal(now, then) and not now.requires_grad
    assert not torch.equal(probe.inner.classifier.weight, start.classifier.weight)


def test_linear_probe_differs_from_erm():
    probe, erm = build("LinearProbe"), build("ERM")
    train(probe, 5)
    train(erm, 5)
    assert largest_difference(probe, erm) > 1e-3


@pytest.mark.parametrize("name", ["LinearProbe", "SWAD(LinearProbe)"])
def test_a_frozen_featurizer_stays_in_evaluation_mode(name):
    probe = build(name).train()
    inner = probe.inner if name == "LinearProbe" else probe.inner.inner
    assert not any(module.training for module in inner.featurizer.modules())
    assert inner.classifier.training


def test_linear_probe_keeps_the_statistics_of_batch_norm():
    probe = around("LinearProbe", Normed)
    before = copy.deepcopy(probe.inner.featurizer.state_dict())
    train(probe, 3)
    for key, value in probe.inner.featurizer.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_lpft_probes_for_its_share_of_the_steps_and_then_trains_everything():
    algorithm, probe = build("LPFT", lpft_share=0.1), build("LinearProbe")  # of 60 steps
    train(algorithm, 6)
    train(probe, 6)
    assert largest_difference(algorithm, probe) == 0
    before = [parameter.clone() for parameter in algorithm.inner.parameters()]
    train(algorithm, 1, first=6)
    for now, then in zip(algorithm.inner.parameters(), before, strict=True):
        assert not torch.equal(now, then)


def test_lpft_fine_tunes_with_a_fresh_optimizer():
    algorithm = build("LPFT", lpft_share=0.1)
    train(algorithm, 6)
    start = copy.deepcopy(algorithm.inner)
    for parameter in start.parameters():
        parameter.requires_grad_(True)
    start.optimizer = start.make_optimizer()
    for step in range(6, 9):
        train(algorithm, 1, first=step)
        start.train().update(make_batches(step))
    assert largest_difference(algorithm, start) < 1e-12


def test_lpft_gives_optimizers_in_lists_and_dicts_new_moments_too():
    class Several(ERM):
        def __init__(self, input_shape, num_classes, num_domains, hparams):
            super().__init__(input_shape, num_classes, num_domains, hparams)
            del self.optimizer
            self.optimizers = [torch.optim.Adam(self.classifier.parameters())]
            self.by_name = {"featurizer": torch.optim.Adam(self.featurizer.parameters())}

        def update(self, minibatches, unlabeled=None):
            loss, _ = self.objective(Batches.of(minibatches), self.step)
            loss.backward()
            for optimizer in (*self.optimizers, *self.by_name.values()):
                optimizer.step()
                optimizer.zero_grad()
            return {"loss": loss.detach()}

    algorithm = around("LPFT", Several, lpft_share=0.1)
    algorithm.start(TrainingPlan(steps=20, steps_per_epoch=10, seed=0))
    train(algorithm, 3)
    for optimizer in (*algorithm.inner.optimizers, *algorithm.inner.by_name.values()):
        assert {int(state["step"]) for state in optimizer.state.values()} == {1}


def test_lpft_wakes_batch_norm_and_dropout_when_probing_ends():
    algorithm = around("LPFT", Normed, lpft_share=0.1)
    algorithm.start(TrainingPlan(steps=20, steps_per_epoch=10, seed=0))
    train(algorithm, 2)
    assert not algorithm.inner.featurizer[2].training
    train(algorithm, 1, first=2)
    assert algorithm.inner.featurizer[2].training and algorithm.inner.featurizer[2].num_batches_tracked == 1


def test_lpft_without_probing_is_erm():
    assert_same_as_erm(build("LPFT", lpft_share=0.0))


def test_lpft_only_probing_is_the_linear_probe():
    algorithm, probe = build("LPFT", lpft_share=1.0), build("LinearProbe")
    train(algorithm, 5)
    train(probe, 5)
    assert largest_difference(algorithm, probe) == 0


def test_lpft_leaves_frozen_what_was_frozen_before():
    algorithm = build("LPFT(FrozenStages)", lpft_share=0.02, frozen_stages=2)
    train(algorithm, 3)
    first, *_, last = algorithm.inner.inner.featurizer.parameters()
    assert last.requires_grad and not first.requires_grad


@pytest.mark.parametrize(
    "name", ["LinearProbe(LPFT)", "FrozenStages(SWAD(LPFT(IRM)))", "LPFT(ERMPlusPlus)", "LinearProbe(ERMPlusPlus(SD))"]
)
def test_what_would_be_set_free_again_is_not_frozen(name):
    with pytest.raises(AlgorithmError, match=r"(LPFT|ERMPlusPlus) sets free in the end .* or leave one of them out\.$"):
        ALGORITHMS[name]


@pytest.mark.parametrize("name", ["LPFT(LinearProbe)", "ERMPlusPlus(LinearProbe)", "EoA(LPFT(FrozenStages))"])
def test_what_is_frozen_inside_stays_frozen(name):
    algorithm = build(name, lpft_share=0.02, linear_steps=1, frozen_stages=2)
    first = next(algorithm.parameters())
    before = first.detach().clone()
    train(algorithm, 4)
    assert torch.equal(first, before) and not first.requires_grad


def test_lpft_must_know_the_number_of_steps():
    algorithm = ALGORITHMS["LPFT"].cls(SHAPE, CLASSES, 3, default_hparams("LPFT"))
    with pytest.raises(AlgorithmError, match="start"):
        algorithm.update(make_batches(0, dtype=torch.float32))


@pytest.mark.parametrize("saved_at", [3, 6, 8])
def test_lpft_saved_anywhere_continues_as_if_it_was_not(saved_at):
    one, two = build("LPFT(IRM)"), build("LPFT(IRM)", seed=1)
    train(one, saved_at)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for algorithm in (one, two):
        train(algorithm, 10 - saved_at, first=saved_at)
    assert largest_difference(one, two) == 0


def test_frozen_stages_do_not_move_and_the_rest_does():
    algorithm = build("FrozenStages", frozen_stages=2)
    featurizer = algorithm.inner.featurizer
    frozen = {id(p) for p in featurizer.parameters() if not p.requires_grad}
    before = {id(p): p.clone() for p in algorithm.inner.parameters()}
    train(algorithm, 2)
    first, second, third = (module for module in featurizer.modules() if isinstance(module, nn.Conv2d))
    assert {id(first.weight), id(second.weight)} <= frozen and id(third.weight) not in frozen
    for parameter in algorithm.inner.parameters():
        assert torch.equal(parameter, before[id(parameter)]) == (id(parameter) in frozen)


def test_no_frozen_stages_are_erm():
    assert_same_as_erm(build("FrozenStages", frozen_stages=0))


def test_frozen_stages_differ_from_erm():
    algorithm, erm = build("FrozenStages"), build("ERM")
    train(algorithm, 5)
    train(erm, 5)
    assert largest_difference(algorithm, erm) > 1e-3


def test_no_more_stages_are_frozen_than_there_are():
    with pytest.raises(AlgorithmError, match="stages"):
        build("FrozenStages", frozen_stages=9)


@pytest.mark.parametrize("name", ["LinearProbe", "LPFT", "FrozenStages"])
def test_an_algorithm_without_a_featurizer_is_refused(name):
    with pytest.raises(AlgorithmError, match="Bare has no"):
        around(name, Bare)


def test_a_network_whose_stages_are_unknown_is_refused():
    with pytest.raises(AlgorithmError, match="not Sequential"):
        around("FrozenStages", Normed)


@pytest.mark.parametrize("name", ["LinearProbe", "LPFT", "FrozenStages"])
def test_sagnet_s_featurizer_is_frozen_under_both_of_its_heads(name):
    algorithm = build(f"{name}(SagNet)", lpft_share=0.05)  # of 60 steps
    before = copy.deepcopy(algorithm.inner)

    def moved(part):
        pairs = zip(getattr(algorithm.inner, part).parameters(), getattr(before, part).parameters(), strict=True)
        return [not torch.equal(now, then) for now, then in pairs]

    train(algorithm, 3)
    assert all(moved("network_c")) and all(moved("network_s"))
    assert not moved("network_f")[0] and any(moved("network_f")) == (name == "FrozenStages")
    train(algorithm, 1, first=3)
    assert moved("network_f")[0] == (name == "LPFT")


def test_probing_reaches_through_other_wrappers():
    algorithm = build("LinearProbe(EoA(CORAL))")
    before = [parameter.clone() for parameter in algorithm.inner.inner.featurizer.parameters()]
    train(algorithm, 2)
    for now, then in zip(algorithm.inner.inner.featurizer.parameters(), before, strict=True):
        assert torch.equal(now, then)
