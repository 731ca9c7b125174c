"""RSC and SagNet against their mathematics and against step-by-step loops of it, in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import Batches
from shiftbed.algorithms.features import content_and_style, in_style, percentile
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import build, largest_difference, make_batches, train

# RSC


@settings(max_examples=60)
@given(
    count=st.integers(1, 70),
    factor=st.sampled_from([0, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5, 1]),
    kind=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 1000),
)
def test_percentiles_divide_values_as_numpy_s_do(count, factor, kind, seed):
    values = np.random.default_rng(seed).normal(size=(3, count)).astype(kind)
    expected = values < np.percentile(values, (1 - factor) * 100, axis=1)[:, None]
    found = torch.from_numpy(values) < percentile(torch.from_numpy(values), 1 - factor)[:, None]
    assert np.array_equal(expected, found.numpy())


def test_rsc_s_feature_mask_is_the_golden_one():
    gradients = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    threshold = percentile(gradients, 1 - 0.5)
    assert threshold.item() == pytest.approx(0.25, abs=1e-15)
    assert (gradients < threshold[:, None]).tolist() == [[True, False, True, False]]


def masked_features(algorithm, batches):
    """What the classifier was shown last, as a share of the features: 0 where they were muted."""
    shown = []
    handle = algorithm.classifier.register_forward_hook(lambda module, inputs, output: shown.append(inputs[0]))
    algorithm.objective(batches, 0)
    handle.remove()
    return shown[-1].detach() / algorithm.featurizer(batches.x).detach()


def positive_features(**hparams):
    """An RSC whose features are positive, so that a zero is a muted one."""
    algorithm = build("RSC", **hparams)
    algorithm.featurizer = nn.Sequential(nn.Flatten(), nn.Linear(768, 10).double(), nn.Softplus())
    algorithm.classifier = nn.Linear(10, 3).double()
    return algorithm


def test_rsc_mutes_the_heaviest_weights_of_the_true_class_in_a_third_of_the_examples():
    algorithm, batches = positive_features(rsc_f_drop_factor=0.4, rsc_b_drop_factor=1 / 3), make_batches(0)
    mask = masked_features(algorithm, batches)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    muted = (mask == 0).any(1)
    assert muted.sum() == 6, "18 examples, 12 spared"
    for row, label in zip(mask[muted], batches.y[muted], strict=True):
        heaviest = algorithm.classifier.weight[label].topk(4).indices
        assert sorted(heaviest.tolist()) == (row == 0).nonzero().flatten().tolist()


def test_rsc_at_zero_still_mutes_one_feature_of_one_example():
    algorithm = positive_features(rsc_f_drop_factor=0.0, rsc_b_drop_factor=0.0)
    assert (masked_features(algorithm, make_batches(0)) == 0).sum() == 1


def test_rsc_at_one_shows_challenged_examples_nothing():
    algorithm = positive_features(rsc_f_drop_factor=1.0, rsc_b_drop_factor=1.0)
    assert (masked_features(algorithm, make_batches(0)) == 0).all()


@pytest.mark.parametrize("factor", ["rsc_f_drop_factor", "rsc_b_drop_factor"])
def test_rsc_refuses_to_mute_more_than_there_is(factor):
    with pytest.raises(AlgorithmError, match=rf"^RSC's {factor} is 1\.5; set a share from 0 to 1\.$"):
        build("RSC", **{factor: 1.5})


def test_rsc_follows_its_loop_step_by_step():
    algorithm, reference = build("RSC", rsc_f_drop_factor=0.3), build("ERM")
    train(algorithm, 4)
    for step in range(4):
        batches = make_batches(step)
        one_hot = F.one_hot(batches.y, 3)
        z = reference.featurizer(batches.x)
        s = reference.classifier(z)
        (g,) = torch.autograd.grad((s * one_hot).sum(), z, retain_graph=True)
        mask_f = g < torch.from_numpy(np.percentile(g.numpy(), (1 - 0.3) * 100, axis=1))[:, None]
        p, p_muted = ((out.softmax(1) * one_hot).sum(1) for out in (s, reference.classifier(z * mask_f)))
        change = (p - p_muted).detach()
        mask_b = change < np.percentile(change.numpy(), (1 - 1 / 3) * 100)
        loss = F.cross_entropy(reference.classifier(z * (mask_f | mask_b[:, None])), batches.y)
        reference.optimizer.zero_grad()
        loss.backward()
        reference.optimizer.step()
    assert largest_difference(algorithm, reference) < 1e-9


def test_rsc_predicts_with_all_features_and_is_not_erm():
    rsc, erm = build("RSC"), build("ERM")
    assert largest_difference(rsc, erm) == 0
    train(rsc, 2)
    train(erm, 2)
    assert largest_difference(rsc, erm) > 1e-4


# SagNet


def test_the_style_of_a_vector_is_the_golden_one():
    content, mean, variance = content_and_style(torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64))
    assert mean.item() == pytest.approx(3, abs=1e-12)
    assert variance.item() == pytest.approx(4.66666667, abs=1e-8)
    assert content[0, 3].item() == pytest.approx(3 / math.sqrt(4.66666667 + 1e-5), abs=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_content_in_its_own_style_is_the_vector_itself(seed):
    features = torch.from_numpy(np.random.default_rng(seed).normal(1, 2, (4, 7)))
    assert torch.allclose(in_style(*content_and_style(features)), features, atol=1e-12)


class Draws:
    """A generator that keeps all shares at 1, or reverses the examples."""

    def random(self, size):
        return np.ones(size)

    def permutation(self, count):
        return np.arange(count)[::-1].copy()


def test_a_full_share_of_the_own_style_is_the_identity():
    algorithm = build("SagNet")
    algorithm.rng = Draws()
    features = torch.randn(5, 6, dtype=torch.float64)
    assert torch.allclose(algorithm.mixed_styles(features), features, atol=1e-12)


def test_swapped_contents_keep_the_style_and_let_no_gradient_into_the_content():
    algorithm = build("SagNet")
    algorithm.rng = Draws()
    features = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    swapped = algorithm.swapped_contents(features)
    content, mean, variance = content_and_style(features)
    assert torch.allclose(swapped, in_style(content.flip(0), mean, variance), atol=1e-14)
    assert torch.allclose(swapped.mean(1), features.mean(1), atol=1e-12)
    (gradient,) = torch.autograd.grad(swapped.sum(), features)
    assert torch.allclose(gradient, torch.ones_like(features), atol=1e-10), "only the mean reaches the sum"


def domainbed_step(nets, optimizers, rng, batches, weight):
    """The three steps as their authors' loop takes them: three forwards, gradients everywhere, cleared when needed."""
    (f, c, s), (opt_f, opt_c, opt_s) = nets, optimizers

    def randomize(z, what):
        mean, variance = z.mean(1, keepdim=True), z.var(1, keepdim=True)
        content = (z - mean) / (variance + 1e-5).sqrt()
        alpha = torch.from_numpy(rng.random((len(z), 1))) if what == "style" else None
        swap = torch.from_numpy(rng.permutation(len(z)))
        if what == "style":
            mean = alpha * mean + (1 - alpha) * mean[swap]
            variance = alpha * variance + (1 - alpha) * variance[swap]
        else:
            content = content[swap].detach()
        return content * (variance + 1e-5).sqrt() + mean

    opt_f.zero_grad()
    opt_c.zero_grad()
    F.cross_entropy(c(randomize(f(batches.x), "style")), batches.y).backward()
    opt_f.step()
    opt_c.step()
    opt_s.zero_grad()
    F.cross_entropy(s(randomize(f(batches.x), "content")), batches.y).backward()
    opt_s.step()
    opt_f.zero_grad()
    (-s(randomize(f(batches.x), "content")).log_softmax(1).mean(1).mean() * weight).backward()
    opt_f.step()


def test_sagnet_follows_the_loop_of_three_steps():
    algorithm, reference = build("SagNet", sag_w_adv=2.0), build("SagNet")
    train(algorithm, 4)
    nets = (reference.network_f, reference.network_c, reference.network_s)
    optimizers = (reference.optimizer_f, reference.optimizer_c, reference.optimizer_s)
    for step in range(4):
        domainbed_step(nets, optimizers, np.random.default_rng(step), make_batches(step), 2.0)
    assert largest_difference(algorithm, reference) < 1e-9
    assert torch.allclose(algorithm.network_s.weight, reference.network_s.weight, atol=1e-9)


def test_the_adversary_moves_the_features_alone_and_leaves_no_gradient_behind():
    weak, strong = build("SagNet", sag_w_adv=1e-2), build("SagNet", sag_w_adv=1e1)
    train(weak, 1)
    train(strong, 1)
    for part in ("network_c", "network_s"):
        for one, two in zip(getattr(weak, part).parameters(), getattr(strong, part).parameters(), strict=True):
            assert torch.equal(one, two) and torch.equal(one.grad, two.grad)
    assert not torch.equal(weak.network_f.features[0].weight, strong.network_f.features[0].weight)


def test_the_style_head_s_step_and_the_adversary_share_a_forward():
    algorithm, forwards = build("SagNet"), []
    algorithm.network_f.register_forward_hook(lambda *_: forwards.append(1))
    train(algorithm, 1)
    assert len(forwards) == 2


def test_the_adversary_s_loss_of_a_uniform_style_head_is_log_c():
    algorithm = build("SagNet", sag_w_adv=0.3, lr=0.0)
    with torch.no_grad():
        algorithm.network_s.weight.zero_()
        algorithm.network_s.bias.zero_()
    assert train(algorithm, 1)[0]["adversary_loss"].item() == pytest.approx(0.3 * math.log(3), abs=1e-12)


def test_sagnet_s_three_optimizers_hold_every_parameter_once():
    algorithm = build("SagNet")
    optimizers = (algorithm.optimizer_f, algorithm.optimizer_c, algorithm.optimizer_s)
    held = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in algorithm.parameters())


def test_sagnet_s_optimizers_are_of_the_recipe_s_kind():
    algorithm = build("SagNet", optimizer="sgd", lr=0.25)
    for optimizer in (algorithm.optimizer_f, algorithm.optimizer_c, algorithm.optimizer_s):
        assert isinstance(optimizer, torch.optim.SGD)
        assert optimizer.param_groups[0]["lr"] == 0.25 and optimizer.param_groups[0]["momentum"] == 0.9
    assert isinstance(build("SagNet").optimizer_s, torch.optim.Adam)


def test_sagnet_without_styles_and_adversary_is_erm_and_by_default_it_is_not():
    # Plain gradient descent: Adam moves the features on its moments even where the adversary's gradient is 0.
    def sgd(part):
        return torch.optim.SGD(part.parameters(), lr=0.1)

    sagnet, erm = build("SagNet", sag_w_adv=0.0), build("ERM")
    assert largest_difference(sagnet, erm) == 0
    sagnet.optimizer_f, sagnet.optimizer_c, erm.optimizer = (
        sgd(part) for part in (sagnet.network_f, sagnet.network_c, erm)
    )
    for step in range(5):
        sagnet.rng = Draws()
        sagnet.update(make_batches(step))
        erm.update(make_batches(step))
    assert largest_difference(sagnet, erm) < 1e-9
    sagnet, erm = build("SagNet"), build("ERM")
    train(sagnet, 2)
    train(erm, 2)
    assert largest_difference(sagnet, erm) > 1e-4


@pytest.mark.parametrize("name", ["RSC", "SagNet"])
def test_unequal_single_and_one_sided_batches_train(name):
    for batches in (make_batches(0, (1, 7, 3)), make_batches(0, (1, 1, 1)), make_batches(0, (1,))):
        one_class = Batches(batches.x, torch.zeros_like(batches.y), batches.sizes)
        for given_batches in (batches, one_class):
            assert math.isfinite(build(name, domains=len(batches)).update(given_batches)["loss"])
