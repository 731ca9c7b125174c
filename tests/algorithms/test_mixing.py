"""Mixup, MixStyle and FACT against their papers' mathematics, in float64."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import Batches, TrainingPlan
from shiftbed.algorithms.mixing import mix_amplitudes, mix_styles, teacher_ramp
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import SHAPE, assert_same_as_erm, build, largest_difference, make_batches, train

S1 = torch.tensor([[2, 0, -1], [0.5, 1, 0], [-1, 0, 1], [0, 0, 0]], dtype=torch.float64)
S2 = torch.tensor([[1, 1, 0], [0, -2, 1], [3, 0, 0], [0.2, 0.4, -0.6]], dtype=torch.float64)
Y1, Y2 = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 1])


class Scripted:
    """A generator whose draws a test chooses: in turn where a list is given, else the same every time."""

    def __init__(self, **draws):
        self.draws = draws

    def __getattr__(self, name):
        draw = self.draws[name]
        return lambda *_, **__: draw.pop(0) if isinstance(draw, list) else draw


def images(count, seed=0, shape=SHAPE):
    return torch.from_numpy(np.random.default_rng(seed).random((count, *shape)))


# Mixup


def test_mixup_s_loss_is_the_golden_one():
    algorithm = build("Mixup", domains=2)
    algorithm.network = nn.Identity()
    algorithm.rng = Scripted(permutation=np.array([0, 1]), beta=np.array([0.3, 0.7]))
    loss, _ = algorithm.objective(Batches.of([(S1, Y1), (S2, Y2)]), 0)
    assert loss.item() == pytest.approx(0.93913671, abs=1e-8)


def test_mixup_of_one_domain_is_erm():
    mixup, erm = build("Mixup", domains=1), build("ERM", domains=1)
    train(mixup, 5, sizes=(18,))
    train(erm, 5, sizes=(18,))
    assert largest_difference(mixup, erm) < 1e-9


def test_mixup_s_pairs_go_through_the_network_at_once():
    algorithm, seen = build("Mixup"), []
    algorithm.network.register_forward_hook(lambda module, inputs, logits: seen.append(len(logits)))
    train(algorithm, 1, sizes=(4, 6, 6))
    assert seen == [4 + 4 + 6], "each pair as long as its shorter minibatch"


def test_mixup_of_three_domains_is_not_erm():
    mixup, erm = build("Mixup"), build("ERM")
    train(mixup, 2)
    train(erm, 2)
    assert largest_difference(mixup, erm) > 1e-4


# MixStyle


def test_a_mixed_style_is_the_one_computed_by_hand():
    # Means 1 and 13, deviations √2 and 3√2: a quarter of the own style gives mean 10 and deviation 2.5·√2.
    maps = torch.tensor([[[[0.0, 2.0]]], [[[10.0, 16.0]]]], dtype=torch.float64)
    mixed = mix_styles(maps, torch.tensor([1, 0]), torch.tensor([0.25, 1.0], dtype=torch.float64))
    assert mixed.flatten().tolist() == pytest.approx([7.5, 12.5, 10.0, 16.0], abs=1e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_the_statistics_of_a_mixed_map_are_the_mixed_statistics(seed, share):
    random = np.random.default_rng(seed)
    maps, partners = random.normal(2, 3, (5, 4, 6, 7)), random.permutation(5)
    mixed = mix_styles(torch.from_numpy(maps), torch.from_numpy(partners), torch.full((5,), share).double()).numpy()
    means, deviations = maps.mean((2, 3)), maps.std((2, 3), ddof=1)
    assert np.allclose(mixed.mean((2, 3)), share * means + (1 - share) * means[partners], atol=1e-10)
    expected = share * deviations + (1 - share) * deviations[partners]
    assert np.allclose(mixed.std((2, 3), ddof=1), expected, rtol=1e-5)


def test_a_style_of_one_s_own_changes_nothing():
    maps = images(5, shape=(4, 6, 6))
    assert torch.allclose(mix_styles(maps, torch.arange(5).flip(0), torch.ones(5).double()), maps, atol=1e-12)


def test_styles_are_constants_for_the_gradient():
    maps = images(4, shape=(2, 3, 3)).requires_grad_()
    partners, shares = torch.tensor([1, 0, 3, 2]), torch.tensor([0.2, 0.5, 0.9, 0.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(mix_styles(maps, partners, shares).square().sum() / 2, maps)
    deviation = (maps.var((2, 3), keepdim=True) + 1e-6).sqrt()
    own = shares.view(-1, 1, 1, 1)
    factor = (own * deviation + (1 - own) * deviation[partners]) / deviation
    assert torch.allclose(gradient, mix_styles(maps, partners, shares) * factor, atol=1e-12)


def test_half_precision_maps_come_back_as_such():
    maps = images(2, shape=(2, 3, 3)).to(torch.bfloat16)
    assert mix_styles(maps, torch.tensor([1, 0]), torch.ones(2)).dtype == torch.bfloat16


def test_mixstyle_that_is_never_active_is_erm_and_by_default_it_is_not():
    assert_same_as_erm(build("MixStyle", mixstyle_p=0.0))
    mixstyle, erm = build("MixStyle"), build("ERM")
    train(mixstyle, 3)
    train(erm, 3)
    assert largest_difference(mixstyle, erm) > 1e-4


def test_mixstyle_mixes_at_the_named_stages_in_training_only():
    algorithm = build("MixStyle", mixstyle_p=1.0, mixstyle_layers="23")
    batches, seen = make_batches(0), []
    for stage in algorithm.featurizer.stages:
        stage.register_forward_hook(lambda module, inputs, maps: seen.append(maps))
    changed = []
    for mode in (True, False):
        seen.clear()
        algorithm.train(mode)
        algorithm.objective(batches, 0)
        predicted = list(seen)
        seen.clear()
        algorithm.predict(batches.x)
        changed.append([not torch.equal(one, two) for one, two in zip(predicted, seen, strict=True)])
    assert changed == [[False, False, True], [False, False, False]], (
        "an earlier hook sees what stage 2 gives, not yet mixed"
    )


def test_each_stage_draws_whether_it_mixes():
    algorithm = build("MixStyle", mixstyle_p=0.5, mixstyle_mix="random")
    draws = {"beta": np.zeros(18), "permutation": np.arange(18)[::-1].copy()}
    losses = []
    for active in ([0.5, 0.5, 0.5], [0.49, 0.5, 0.5], [0.5, 0.5, 0.49]):
        algorithm.rng = Scripted(random=active, **draws)
        losses.append(algorithm.objective(make_batches(0), 0)[0].item())
        assert not active, "one draw a stage"
    erm = F.cross_entropy(algorithm.predict(make_batches(0).x), make_batches(0).y).item()
    assert losses[0] == erm and len(set(losses)) == 3


def test_mixstyle_leaves_no_hook_behind_even_when_a_forward_fails():
    algorithm = build("MixStyle", mixstyle_p=1.0)
    train(algorithm, 1)
    with pytest.raises(RuntimeError):
        algorithm.objective(make_batches(0, shape=(2, 16, 16)), 0)
    assert not any(module._forward_hooks for module in algorithm.modules())
    twin = copy.deepcopy(algorithm)
    train(algorithm, 2, first=1)
    train(twin, 2, first=1)
    assert largest_difference(algorithm, twin) == 0


PARTNERS = build("MixStyle")


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5), seed=st.integers(0, 1000))
def test_crossdomain_partners_are_of_another_domain(sizes, seed):
    PARTNERS.rng = np.random.default_rng(seed)
    domain = np.repeat(np.arange(len(sizes)), sizes)
    partners = PARTNERS.partners(sizes)
    assert (domain[partners] != domain).all()
    for number in range(len(sizes)):
        assert len(set(domain[partners[domain == number]])) == 1, "one domain's styles for each domain"


def test_two_domains_swap_their_halves_and_every_style_is_used():
    partners = PARTNERS.partners((4, 4))
    assert sorted(partners[:4]) == [4, 5, 6, 7] and sorted(partners[4:]) == [0, 1, 2, 3]


def test_all_pairs_of_domains_are_equally_likely():
    PARTNERS.rng = np.random.default_rng(0)
    pairs = [PARTNERS.partners((1, 1, 1))[0] for _ in range(600)]
    assert 250 < pairs.count(1) < 350


def test_one_domain_and_random_mixing_take_any_partner():
    random = build("MixStyle", mixstyle_mix="random")
    for partners in (PARTNERS.partners((6,)), random.partners((3, 3))):
        assert sorted(partners) == [0, 1, 2, 3, 4, 5]
    assert any((np.array(random.partners((3, 3)))[:3] < 3).any() for _ in range(5))


@pytest.mark.parametrize("wrong", [{"mixstyle_layers": "124"}, {"mixstyle_layers": "x"}, {"mixstyle_mix": "cross"}])
def test_mixstyle_refuses_stages_and_modes_that_do_not_exist(wrong):
    with pytest.raises(AlgorithmError, match=f"{next(iter(wrong.values()))}"):
        build("MixStyle", **wrong)


def test_mixstyle_refuses_maps_of_one_pixel():
    class OnePixel(nn.Sequential):
        @property
        def stages(self):
            return [self[0]] * 3

    algorithm = build("MixStyle", mixstyle_p=1.0)
    algorithm.featurizer = OnePixel(nn.Conv2d(3, 3, 16), nn.Flatten()).double()
    algorithm.network = algorithm.featurizer
    with pytest.raises(AlgorithmError, match="one pixel"):
        algorithm.objective(make_batches(0), 0)


# FACT


def numpy_amplitude_mix(image, partner, share):
    own, other = np.fft.fft2(image, axes=(1, 2)), np.fft.fft2(partner, axes=(1, 2))
    amplitude = (1 - share) * np.abs(own) + share * np.abs(other)
    return np.clip(np.fft.ifft2(amplitude * np.exp(1j * np.angle(own)), axes=(1, 2)).real, 0, 1)


@pytest.mark.parametrize("side", [15, 16])
def test_mixed_amplitudes_are_those_of_the_whole_spectrum(side):
    x = images(3, shape=(3, side, 16))
    mixed = mix_amplitudes(x, torch.tensor([1, 2, 0]), torch.tensor([0.3, 0.9, 0.0], dtype=torch.float64)).numpy()
    for i, (partner, share) in enumerate([(1, 0.3), (2, 0.9), (0, 0.0)]):
        assert np.allclose(mixed[i], numpy_amplitude_mix(x[i].numpy(), x[partner].numpy(), share), atol=1e-12)
    assert mixed.min() == 0 and mixed.max() == 1, "clipped"


def test_a_share_of_one_swaps_amplitudes_and_keeps_phases():
    x = 0.5 + 0.05 * images(2)  # no contrast to clip
    mixed = mix_amplitudes(x, torch.tensor([1, 0]), torch.ones(2).double())
    before, after = torch.fft.fft2(x), torch.fft.fft2(mixed)
    assert torch.allclose(after.abs(), before.abs().flip(0), atol=1e-10)
    assert torch.allclose(after / after.abs(), before / before.abs(), atol=1e-9)


def test_no_share_or_an_equal_partner_changes_no_image():
    x = images(2)
    assert torch.allclose(mix_amplitudes(x, torch.tensor([1, 0]), torch.zeros(2).double()), x, atol=1e-14)
    twins = x[[0, 0]]
    assert torch.allclose(mix_amplitudes(twins, torch.tensor([1, 0]), torch.ones(2).double()), twins, atol=1e-14)


def test_the_ramp_is_the_golden_one():
    assert teacher_ramp(0) == pytest.approx(0.00673795, abs=1e-8)
    assert teacher_ramp(2.5) == pytest.approx(0.28650480, abs=1e-8)
    assert teacher_ramp(5) == teacher_ramp(50) == 1


def test_fact_s_weight_follows_the_epochs_of_the_plan():
    algorithm = build("FACT", fact_lambda=3.0)  # ten steps an epoch
    for step, expected in [(0, 3 * 0.00673795), (25, 3 * 0.28650480), (50, 3), (500, 3)]:
        loss, metrics = algorithm.objective(make_batches(0), step)
        weight = (loss - metrics["risk"]) / metrics["consistency"]
        assert weight.item() == pytest.approx(expected, abs=1e-6)
    algorithm.start(TrainingPlan(steps=60, steps_per_epoch=5, seed=0))
    loss, metrics = algorithm.objective(make_batches(0), 25)
    assert ((loss - metrics["risk"]) / metrics["consistency"]).item() == pytest.approx(3, abs=1e-6)


def test_fact_does_not_work_from_minibatches_alone():
    algorithm = build("FACT")
    algorithm.steps_per_epoch = None
    with pytest.raises(AlgorithmError, match="start"):
        algorithm.update(make_batches(0))


class Fixed(nn.Module):
    """A network whose logits a test chooses."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x):
        return self.logits


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_fact_s_loss_is_the_formula():
    algorithm = build("FACT", domains=1)
    teacher = torch.stack([S1 + 1, 2 * S2]).flatten(0, 1).flip(1)
    algorithm.network, algorithm.teacher = Fixed(torch.cat([S1, S2])), Fixed(teacher)
    loss, _ = algorithm.objective(Batches(images(4), Y1, (4,)), 100)
    risk = -sum(log_softmax(s.numpy())[range(4), Y1].mean() for s in (S1, S2)) / 2
    student = [log_softmax(s.numpy() / 10) for s in (S1, S2)]
    taught = [log_softmax(s.numpy() / 10) for s in teacher.split(4)]
    divergences = [(np.exp(t) * (t - s)).sum(1).mean() for t, s in zip(taught, student[::-1], strict=True)]
    assert loss.item() == pytest.approx(risk + 2 * sum(divergences), rel=1e-12)
    loss.backward()
    assert algorithm.teacher.logits.grad is None


def test_teacher_and_student_agree_on_equal_views_at_the_start():
    _, metrics = build("FACT", fact_alpha=0.0).objective(make_batches(0), 0)
    assert metrics["consistency"].item() == pytest.approx(0, abs=1e-15)


def test_the_teacher_is_first_the_mean_and_then_a_slow_average_of_the_student():
    algorithm = build("FACT")

    def weights(network):
        return nn.utils.parameters_to_vector(network.parameters()).detach().clone()

    students = [weights(algorithm.network)]
    assert torch.equal(weights(algorithm.teacher), students[0])
    for step in range(3):
        train(algorithm, 1, first=step)
        students.append(weights(algorithm.network))
        assert torch.allclose(weights(algorithm.teacher), torch.stack(students).mean(0), atol=1e-14)
    algorithm.step, before = 10_000, weights(algorithm.teacher)
    train(algorithm, 1, first=3)
    expected = 0.9995 * before + 0.0005 * weights(algorithm.network)
    assert torch.allclose(weights(algorithm.teacher), expected, atol=1e-14)


def test_the_teacher_is_saved_but_neither_trained_nor_asked():
    algorithm = build("FACT")
    train(algorithm, 2)
    trained = {id(p) for group in algorithm.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in algorithm.parameters() if p.requires_grad}
    assert not any(p.requires_grad for p in algorithm.teacher.parameters())
    assert any(name.startswith("teacher.") for name in algorithm.state_dict())
    x = make_batches(1).x
    assert torch.equal(algorithm.predict(x), algorithm.network(x))
    assert not torch.equal(algorithm.predict(x), algorithm.teacher(x))


def test_fact_s_shares_reach_from_nothing_to_alpha():
    class Recording:
        def uniform(self, low, high, size):
            self.asked = (low, high, size)
            return np.full(size, high)

        def permutation(self, count):
            return np.arange(count)

    algorithm = build("FACT", fact_alpha=0.7)
    algorithm.rng = Recording()
    algorithm.objective(make_batches(0), 0)
    assert algorithm.rng.asked == (0, 0.7, 18)


def test_fact_switched_off_is_erm_and_by_default_it_is_not():
    assert_same_as_erm(build("FACT", fact_alpha=0.0, fact_lambda=0.0))
    fact, erm = build("FACT"), build("ERM")
    train(fact, 2)
    train(erm, 2)
    assert largest_difference(fact, erm) > 1e-4


@pytest.mark.parametrize("name", ["Mixup", "MixStyle", "FACT"])
def test_unequal_single_and_one_sided_batches_train(name):
    for batches in (make_batches(0, (1, 7, 3)), make_batches(0, (1, 1, 1)), make_batches(0, (5,))):
        one_class = Batches(batches.x, torch.zeros_like(batches.y), batches.sizes)
        for given_batches in (batches, one_class):
            assert math.isfinite(build(name, domains=len(batches)).update(given_batches)["loss"])
