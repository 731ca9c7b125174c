"""ARM and MTL, whose predictions look at the rest of a batch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Batches
from tests.algorithms.common import build, largest_difference, make_batches, train

# The features and labels of algorithms.md, section 12.
Z1 = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 1]], dtype=torch.float64)
Z2 = torch.tensor([[1, 0], [2, 1], [0, 3], [2, 2]], dtype=torch.float64)
Y1, Y2 = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 1])


def test_arm_shows_images_to_its_context_network_as_they_are():
    algorithm, batches, seen = build("ARM", shape=(3, 8, 8)), make_batches(0, shape=(3, 8, 8)), []
    algorithm.context_net.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    algorithm.update(batches)
    algorithm.eval().predict(batches.x)
    assert len(seen) == 2 and all(torch.equal(images, batches.x) for images in seen)


def test_arm_s_images_see_the_mean_context_of_their_domain():
    algorithm = build("ARM").eval()
    batches = make_batches(0, (2, 5, 3))
    losses = []
    for x, y in batches:
        context = algorithm.context_net(x).mean(0, keepdim=True).expand(len(x), -1, -1, -1)
        losses.append(F.cross_entropy(algorithm.network(torch.cat([x, context], 1)), y, reduction="none"))
    loss, _ = algorithm.objective(batches, 0)
    assert loss.item() == pytest.approx(torch.cat(losses).mean().item(), abs=1e-12)


def test_arm_predicts_in_groups_of_the_batch_size():
    algorithm = build("ARM", batch_size=4).eval()
    x = make_batches(0, (8,)).x
    with torch.no_grad():
        groups = torch.cat([algorithm.predict(x[:4]), algorithm.predict(x[4:])])
        assert torch.allclose(algorithm.predict(x), groups, atol=1e-12)


def test_arm_takes_the_whole_batch_where_groups_do_not_fit():
    algorithm, wide = build("ARM", batch_size=4).eval(), build("ARM", batch_size=6).eval()
    x = make_batches(0, (6,)).x
    with torch.no_grad():
        assert torch.allclose(algorithm.predict(x), wide.predict(x), atol=1e-12)


def test_arm_s_prediction_changes_with_batch_mates_but_not_with_their_order():
    algorithm = build("ARM", batch_size=6).eval()
    x, others = make_batches(0, (6,)).x, make_batches(1, (6,)).x
    with torch.no_grad():
        usual = algorithm.predict(x)[0]
        assert torch.allclose(algorithm.predict(x[[0, 3, 5, 1, 4, 2]])[0], usual, atol=1e-12)
        assert (algorithm.predict(torch.cat([x[:1], 3 * others[1:]]))[0] - usual).abs().max() > 1e-6


def test_arm_trains_its_context_network():
    algorithm = build("ARM")
    optimized = {id(p) for group in algorithm.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in algorithm.parameters()}
    before = [parameter.clone() for parameter in algorithm.context_net.parameters()]
    train(algorithm, 2, sizes=(2, 2, 2))
    for now, then in zip(algorithm.context_net.parameters(), before, strict=True):
        assert not torch.equal(now, then)


def test_arm_that_does_not_look_at_the_context_is_erm():
    algorithm, erm = build("ARM"), build("ERM")
    first = next(module for module in algorithm.featurizer.modules() if isinstance(module, nn.Conv2d))
    others = dict(erm.named_parameters())
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if name in others:
                parameter[:, :3].copy_(others[name]) if parameter is first.weight else parameter.copy_(others[name])
        first.weight[:, 3] = 0
    batches = make_batches(0)
    assert algorithm.objective(batches, 0)[0].item() == pytest.approx(erm.objective(batches, 0)[0].item(), abs=1e-12)
    assert largest_difference(algorithm, erm) < 1e-12
    train(algorithm, 2, sizes=(2, 2, 2))
    train(erm, 2, sizes=(2, 2, 2))
    assert largest_difference(algorithm, erm) > 1e-3


def test_arm_s_batches_are_small_on_large_datasets():
    space = ALGORITHMS["ARM"].space("PACS", "large")
    assert [space.draw(draw, 0) for draw in range(3)] == [{"batch_size": 8}] * 3
    assert ALGORITHMS["ARM"].space("ColoredMNIST", "small").draw(1, 0) == {}


def on_features(ema):
    """MTL whose inputs are the features themselves, with a linear head from a fixed seed."""
    algorithm = build("MTL", domains=2, mtl_ema=ema)
    algorithm.featurizer = nn.Identity()
    torch.manual_seed(3)
    algorithm.classifier = nn.Linear(4, 3).double()
    algorithm.embeddings = torch.tensor([[1.0, 1.0], [-2.0, 0.0]], dtype=torch.float64)
    return algorithm


def test_mtl_s_embeddings_weigh_the_new_mean_by_ema():
    _, metrics = on_features(0.9).objective(Batches.of([(Z1, Y1), (Z2, Y2)]), 0)
    expected = torch.tensor([[0.9 * 2.25 + 0.1, 0.9 * 3.25 + 0.1], [0.9 * 1.25 - 0.2, 0.9 * 1.5]])
    assert torch.allclose(metrics["embeddings"].detach(), expected.double(), atol=1e-12)


def test_mtl_s_loss_is_the_sum_of_the_domains_risks():
    algorithm = on_features(1.0)
    loss, _ = algorithm.objective(Batches.of([(Z1, Y1), (Z2[:2], Y2[:2])]), 0)
    expected = 0.0
    for z, y in ((Z1, Y1), (Z2[:2], Y2[:2])):
        expected += F.cross_entropy(algorithm.classifier(torch.cat([z, z.mean(0).expand_as(z)], 1)), y).item()
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_mtl_s_gradient_flows_through_the_new_mean_only():
    algorithm = on_features(0.5)
    z1, z2 = Z1.clone().requires_grad_(), Z2.clone().requires_grad_()
    loss, _ = algorithm.objective(Batches.of([(z1, Y1), (z2, Y2)]), 0)
    loss.backward()

    def risk(z):
        embedding = 0.5 * z.mean(0) + 0.5 * algorithm.embeddings[0]
        return F.cross_entropy(algorithm.classifier(torch.cat([z, embedding.expand_as(z)], 1)), Y1)

    z = Z1.clone().requires_grad_()
    risk(z).backward()
    assert torch.allclose(z1.grad, z.grad, atol=1e-12)
    assert not algorithm.embeddings.requires_grad


def test_mtl_remembers_the_embeddings_of_its_domains():
    algorithm = build("MTL", mtl_ema=0.5)
    train(algorithm, 1)
    assert algorithm.embeddings.abs().sum(1).min() > 0
    first = build("MTL", mtl_ema=0.5)
    features = first.featurizer(make_batches(0).x).detach()
    expected = 0.5 * torch.stack([part.mean(0) for part in features.split(6)])
    assert torch.allclose(algorithm.embeddings, expected, atol=1e-12)


def test_mtl_predicts_the_same_twice_and_looks_at_the_batch():
    algorithm = build("MTL")
    train(algorithm, 2)
    x = make_batches(0, (6,)).x
    with torch.no_grad():
        usual = algorithm.eval().predict(x)
        assert torch.equal(algorithm.predict(x), usual)
        assert (algorithm.predict(x[:3])[0] - usual[0]).abs().max() > 1e-6
        features = algorithm.featurizer(x)
        inputs = torch.cat([features, features.mean(0).expand_as(features)], 1)
        assert torch.allclose(usual, algorithm.classifier(inputs), atol=1e-12)


def test_mtl_that_does_not_look_at_the_embedding_has_the_summed_risk_of_erm():
    algorithm, erm = build("MTL"), build("ERM")
    with torch.no_grad():
        algorithm.classifier.weight[:, :128] = erm.classifier.weight
        algorithm.classifier.weight[:, 128:] = 0
        algorithm.classifier.bias.copy_(erm.classifier.bias)
    assert largest_difference(algorithm, erm) < 1e-12
    batches = make_batches(0)
    loss, _ = algorithm.objective(batches, 0)
    assert loss.item() == pytest.approx(3 * erm.objective(batches, 0)[0].item(), abs=1e-12)
    train(algorithm, 3)
    train(erm, 3)
    assert largest_difference(algorithm, erm) > 1e-3


@pytest.mark.parametrize("name", ["ARM", "MTL"])
def test_saved_and_loaded_it_continues_as_if_it_was_not(name):
    one, two = build(name), build(name, seed=1)
    train(one, 2, sizes=(2, 2, 2))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for algorithm in (one, two):
        train(algorithm, 2, first=2, sizes=(2, 2, 2))
    assert largest_difference(one, two) == 0


@pytest.mark.parametrize("name", ["ARM", "MTL"])
def test_unequal_batches_and_single_examples_are_learned_from(name):
    algorithm = build(name)
    for metrics in train(algorithm, 2, sizes=(1, 4, 2)):
        assert torch.isfinite(metrics["loss"])
