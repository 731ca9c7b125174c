"""DANN, CDANN and ERDG: whose turn it is, what each loss is, and which weights it moves, in float64."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Batches
from shiftbed.algorithms.numerics import reverse_gradient, scale_gradient
from shiftbed.errors import AlgorithmError
from shiftbed.hashing import seed_hash
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, make_batches, train

Z = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 1], [1, 0], [2, 1], [0, 3], [2, 2]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
W = torch.tensor([[0.3, -0.2], [-0.1, 0.4]], dtype=torch.float64)
PLAYERS = ["DANN", "CDANN"]


def snapshot(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def moved(module, before):
    return any(not torch.equal(now, then) for now, then in zip(module.parameters(), before, strict=True))


def on_features(name, domains=2, **hparams):
    """An algorithm whose inputs are the features, with a linear discriminator of known weights and a risk of log 3."""
    algorithm = build(name, domains, **hparams)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 3, dtype=torch.float64)
    algorithm.discriminator = nn.Linear(2, algorithm.num_outputs, bias=False, dtype=torch.float64)
    nn.init.zeros_(algorithm.classifier.weight)
    nn.init.zeros_(algorithm.classifier.bias)
    with torch.no_grad():
        algorithm.discriminator.weight[:2].copy_(W)
    if name == "CDANN":
        algorithm.class_embeddings = nn.Embedding(3, 2, dtype=torch.float64)
    return algorithm


def domain_losses_and_slopes(z, weight, domains):
    """The cross-entropy of a linear discriminator and its derivative Wᵀ(p − e), in NumPy."""
    logits = z @ weight.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    targets = np.eye(len(weight))[domains]
    return -np.log((p * targets).sum(1)), (p - targets) @ weight


@settings(max_examples=10)
@given(factor=st.floats(-100, 100))
def test_a_scaled_gradient_leaves_the_features_as_they_are(factor):
    z = Z.clone().requires_grad_()
    out = scale_gradient(z, factor)
    assert torch.equal(out, z)
    (gradient,) = torch.autograd.grad(out.square().sum(), z)
    assert torch.allclose(gradient, factor * 2 * Z)
    (reversed_,) = torch.autograd.grad(reverse_gradient(z, factor).square().sum(), z)
    assert torch.equal(reversed_, -gradient)


@pytest.mark.parametrize(("steps", "turns"), [(1, "GDGDGD"), (2, "DGDDGD"), (3, "DDGDDDG")])
@pytest.mark.parametrize("name", PLAYERS)
def test_the_players_take_turns_and_move_only_their_own_weights(name, steps, turns):
    algorithm = build(name, d_steps_per_g_step=steps)
    assert algorithm.cycle == 1 + steps
    for step, turn in enumerate(turns):
        before = {key: value.clone() for key, value in algorithm.named_parameters()}
        train(algorithm, 1, first=step)
        changed = {
            key.split(".")[0] for key, value in algorithm.named_parameters() if not torch.equal(value, before[key])
        }
        theirs = {"discriminator", "class_embeddings"} if name == "CDANN" else {"discriminator"}
        assert changed == ({"featurizer", "classifier"} if turn == "G" else theirs)


@pytest.mark.parametrize("name", PLAYERS)
def test_with_lambda_0_the_generator_s_turns_are_steps_of_erm(name):
    algorithm, erm = build(name, **{"lambda": 0.0}), build("ERM")
    erm.optimizer = torch.optim.Adam(erm.parameters(), lr=1e-3, betas=(0.5, 0.9))
    train(algorithm, 6)
    for step in (0, 2, 4):
        train(erm, 1, first=step)
    assert largest_difference(algorithm, erm) < 1e-12


@pytest.mark.parametrize("name", PLAYERS)
def test_switched_on_it_is_not_erm(name):
    algorithm, off = build(name), build(name, **{"lambda": 0.0})
    train(algorithm, 5)
    train(off, 5)
    assert largest_difference(algorithm, off) > 1e-5


def test_each_player_has_its_own_adam():
    algorithm = build("CDANN", lr_g=0.1, lr_d=0.2, weight_decay_g=0.3, weight_decay_d=0.4, beta1=0.0)
    found = [
        (group["lr"], group["weight_decay"], group["betas"])
        for optimizer in (algorithm.gen_opt, algorithm.disc_opt)
        for group in optimizer.param_groups
    ]
    assert found == [(0.1, 0.3, (0.0, 0.9)), (0.2, 0.4, (0.0, 0.9)), (0.2, 0.4, (0.0, 0.9))]
    assert algorithm.gen_opt is algorithm.optimizer


def test_dann_s_losses_are_those_of_a_linear_discriminator():
    algorithm = on_features("DANN", grad_penalty=3.0, **{"lambda": 2.0})
    losses, slopes = domain_losses_and_slopes(Z.numpy(), W.numpy(), [0] * 4 + [1] * 4)
    expected = losses.mean() + 3 * (slopes**2).sum(1).mean()
    loss, metrics = algorithm.objective(Batches(Z, Y, (4, 4)), 0)
    assert metrics["disc_loss"].item() == pytest.approx(expected, abs=1e-12)
    assert loss.item() == pytest.approx(math.log(3) - 2 * expected, abs=1e-12)


@pytest.mark.parametrize("name", PLAYERS)
def test_the_gradient_penalty_trains_the_discriminator(name):
    algorithm = on_features(name, grad_penalty=10.0)
    batches = Batches(Z, Y, (4, 4))

    def loss(weight):
        algorithm.discriminator.forward = lambda z: z @ weight.T
        return algorithm.discriminator_loss(Z, Y, batches)

    assert torch.autograd.gradcheck(loss, (W.clone().requires_grad_(),))
    with_penalty, without = [], []
    for penalty, found in ((10.0, with_penalty), (0.0, without)):
        algorithm.hparams["grad_penalty"] = penalty
        weight = W.clone().requires_grad_()
        found.extend(torch.autograd.grad(loss(weight), weight))
    assert (with_penalty[0] - without[0]).abs().max() > 0.1


@pytest.mark.parametrize("name", PLAYERS)
def test_the_generator_feels_the_gradient_penalty(name):
    algorithm = on_features(name, grad_penalty=10.0)
    z = Z.clone().requires_grad_()

    def loss(features):
        return algorithm.discriminator_loss(features, Y, Batches(Z, Y, (4, 4)))

    assert torch.autograd.gradcheck(loss, (z,))


@pytest.mark.parametrize("name", PLAYERS)
def test_the_discriminator_s_turn_builds_no_graph_through_the_featurizer(name):
    algorithm = build(name, d_steps_per_g_step=3, grad_penalty=1.0)
    graphs = []
    algorithm.featurizer.register_forward_hook(lambda module, inputs, output: graphs.append(output.grad_fn is not None))
    metrics = train(algorithm, 3)
    assert graphs == [False, False, True]
    assert all(step["disc_loss"].ndim == 0 and "loss" in step for step in metrics)
    assert torch.equal(metrics[0]["loss"], metrics[0]["disc_loss"])


@pytest.mark.parametrize("name", PLAYERS)
def test_the_discriminator_s_turn_starts_from_no_gradient(name):
    """The generator's turn leaves gradients on the discriminator, with the sign turned round."""
    algorithm = build(name, lr_g=0.0, **{"lambda": 100.0})
    twin = copy.deepcopy(algorithm)
    train(algorithm, 2)
    twin.step = 1
    train(twin, 1, first=1)
    assert not moved(algorithm.discriminator, snapshot(twin.discriminator))


def test_cdann_weighs_the_classes_that_are_present_equally():
    algorithm = build("CDANN")
    for labels in ([0, 0, 1, 1, 1], [0, 0, 2, 2, 2]):  # DomainBed's weights sum to 2/3 for the second
        weights = [algorithm.balanced(row, torch.tensor(labels)).item() for row in torch.eye(5, dtype=torch.float64)]
        assert weights == pytest.approx([0.25, 0.25, 1 / 6, 1 / 6, 1 / 6], abs=1e-15)


def test_cdann_s_discriminator_sees_the_class_and_its_gradient_penalty_is_unweighted():
    algorithm = on_features("CDANN", grad_penalty=3.0)
    embedded = Z.numpy() + algorithm.class_embeddings.weight.detach().numpy()[Y]
    losses, slopes = domain_losses_and_slopes(embedded, W.numpy(), [0] * 4 + [1] * 4)
    means = [losses[Y.numpy() == label].mean() for label in range(3)]
    loss = algorithm.discriminator_loss(Z, Y, Batches(Z, Y, (4, 4)))
    assert loss.item() == pytest.approx(np.mean(means) + 3 * (slopes**2).sum(1).mean(), abs=1e-12)


def test_cdann_without_embeddings_on_balanced_classes_is_dann():
    conditional, plain = on_features("CDANN"), on_features("DANN")
    nn.init.zeros_(conditional.class_embeddings.weight)
    batches = Batches(Z[:6], torch.tensor([0, 1, 2, 0, 1, 2]), (3, 3))
    one, two = (a.discriminator_loss(Z[:6], batches.y, batches).item() for a in (conditional, plain))
    assert one == pytest.approx(two, abs=1e-14)


@pytest.mark.parametrize("name", PLAYERS)
def test_unlabelled_inputs_are_one_more_domain_for_the_discriminator(name):
    algorithm = on_features(name, unlabeled_domains=1)
    assert len(algorithm.discriminator.weight) == 3
    with torch.no_grad():
        algorithm.classifier.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))  # every prediction is class 2
    z3 = Z[:3] + 1
    loss, metrics = algorithm.objective(Batches(Z, Y, (4, 4), unlabeled=[z3]), 0)
    whole = Batches(torch.cat([Z, z3]), torch.cat([Y, torch.full((3,), 2)]), (4, 4, 3))
    expected = algorithm.discriminator_loss(whole.x, whole.y, whole)
    assert metrics["disc_loss"].item() == pytest.approx(expected.item(), abs=1e-14)
    _, without = algorithm.objective(Batches(Z, Y, (4, 4)), 0)
    assert metrics["disc_loss"].item() != pytest.approx(without["disc_loss"].item(), rel=1e-3)
    risk = F.cross_entropy(algorithm.classifier(Z), Y)
    assert (loss + metrics["disc_loss"]).item() == pytest.approx(risk.item(), abs=1e-12)


@pytest.mark.parametrize("name", PLAYERS)
def test_both_players_updates_take_unlabelled_inputs(name):
    with_them, without = (build(name, unlabeled_domains=1) for _ in range(2))
    for step in range(2):
        without.update(make_batches(step))
        metrics = with_them.update(make_batches(step), [make_batches(7).x[:5]])
        assert torch.isfinite(metrics["loss"])
    assert largest_difference(with_them, without) > 1e-6
    assert moved(with_them.discriminator, snapshot(without.discriminator))


def test_more_domains_than_the_discriminator_has_outputs_are_refused():
    with pytest.raises(AlgorithmError, match=r"DANN tells 3 domains apart but got 4; set unlabeled_domains"):
        build("DANN").update(make_batches(0), [make_batches(7).x])


@pytest.mark.parametrize("name", PLAYERS)
def test_under_autocast_the_discriminator_keeps_float32(name):
    algorithm = build(name, dtype=torch.float32, grad_penalty=1.0)
    kinds = []
    algorithm.discriminator.register_forward_hook(
        lambda module, inputs, out: kinds.append((inputs[0].dtype, out.dtype))
    )
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(2):
            algorithm.update(make_batches(step, dtype=torch.float32))
    assert kinds == [(torch.float32, torch.float32)] * 2


@pytest.mark.parametrize("name", PLAYERS)
def test_under_autocast_the_discriminator_s_gradients_keep_float32(name):
    gradients = []
    for autocast in (False, True):
        algorithm = build(name, dtype=torch.float32, grad_penalty=10.0)
        algorithm.featurizer = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(128))
        algorithm.step = 1  # the discriminator's turn
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            algorithm.update(make_batches(0, dtype=torch.float32))
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in algorithm.discriminator.parameters()]))
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_the_space_of_the_players_depends_on_the_size_of_images():
    space = ALGORITHMS["CDANN"].space
    small, large = space("", "small"), space("", "large")
    assert (small["lr_g"].default, small["lr_d"].default) == (1e-3, 1e-3)
    assert (large["lr_g"].default, large["lr_d"].default) == (5e-5, 5e-5)
    assert {small.draw(draw, 0)["weight_decay_g"] for draw in range(9)} == {0.0}

    def draw(name):
        return np.random.RandomState(seed_hash(seed_hash(1, 0), name)).uniform

    values = large.draw(1, 0)
    assert values["lr_d"] == 10 ** draw("lr_d")(-5, -3.5)
    assert values["weight_decay_g"] == 10 ** draw("weight_decay_g")(-6, -2)
    assert values["lambda"] == 10 ** draw("lambda")(-2, 2)
    assert values["d_steps_per_g_step"] == int(2 ** draw("d_steps_per_g_step")(0, 3))
    assert values["mlp_width"] == int(2 ** draw("mlp_width")(6, 10))


LAMBDAS = {"lbd_d": 0.7, "lbd_c": 0.5, "lbd_cp": 0.3}


def test_erdg_switched_off_is_erm_and_switched_on_is_not():
    assert_same_as_erm(build("ERDG", **dict.fromkeys(LAMBDAS, 0.0)))
    on, erm = build("ERDG"), build("ERM")
    train(on, 5)
    train(erm, 5)
    assert largest_difference(on, erm) > 1e-5


def test_erdg_s_first_phase_moves_its_classifiers_only_and_the_second_all_but_them():
    algorithm = build("ERDG", weight_decay=0.1)
    train(algorithm, 3)  # by now every moment differs from 0
    changed, before = [], {}

    def remember(*_):
        before.update({key: value.detach().clone() for key, value in algorithm.named_parameters()})

    def compare(*_):
        changed.append(
            {key.split(".")[0] for key, v in algorithm.named_parameters() if not torch.equal(v, before[key])}
        )

    algorithm.optimizer.register_step_pre_hook(remember)
    algorithm.optimizer.register_step_post_hook(compare)
    train(algorithm, 1, first=3)
    assert changed == [{"c_model"}, {"featurizer", "classifier", "discriminator", "cp_model"}]


def head_risk(heads, domain, features, y):
    """The risk of one domain's classifier, which is 3 rows of the joint layer."""
    rows = slice(3 * domain, 3 * domain + 3)
    return F.cross_entropy(features @ heads.weight[rows].T + heads.bias[rows], y)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 2, 3)])
def test_erdg_s_gradients_are_those_of_its_losses_domain_by_domain(sizes):
    algorithm = build("ERDG", lr_c=0.1, **LAMBDAS)
    twin = copy.deepcopy(algorithm)
    batches = make_batches(0, sizes)
    metrics = algorithm.update(batches)
    twin.c_model = algorithm.c_model  # the second phase sees what the first has learned

    features = [twin.featurizer(x) for x, _ in batches]
    labels = [y for _, y in batches]

    def others(values, i):
        return torch.cat([value for j, value in enumerate(values) if j != i])

    risk = F.cross_entropy(twin.classifier(torch.cat(features)), batches.y)
    domain = F.cross_entropy(twin.discriminator(torch.cat(features)), batches.domains)
    helped = sum(head_risk(twin.c_model, i, others(features, i), others(labels, i)) for i in range(3)) / 3
    fooled = sum(head_risk(twin.cp_model, i, features[i], labels[i]) for i in range(3)) / 3
    assert metrics["loss"].item() == pytest.approx((risk + domain + helped + fooled).item(), abs=1e-12)
    assert metrics["disc_loss"].item() == pytest.approx(domain.item(), abs=1e-12)

    for learner, loss in (
        ("featurizer", risk - 0.7 * domain + 0.5 * helped - 0.3 * fooled),
        ("classifier", risk),
        ("discriminator", domain),
        ("cp_model", fooled),
    ):
        expected = torch.autograd.grad(loss, list(getattr(twin, learner).parameters()), retain_graph=True)
        found = [parameter.grad for parameter in getattr(algorithm, learner).parameters()]
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, expected, strict=True)), learner


def test_erdg_s_classifiers_learn_their_own_domains():
    algorithm = build("ERDG", lr_c=0.05)
    twin = copy.deepcopy(algorithm)
    batches = make_batches(0, (5, 2, 3))
    algorithm.update(batches)
    own = sum(head_risk(twin.c_model, i, twin.featurizer(x).detach(), y) for i, (x, y) in enumerate(batches)) / 3
    own.backward()
    torch.optim.Adam(twin.c_model.parameters(), lr=0.05).step()
    assert torch.allclose(algorithm.c_model.weight, twin.c_model.weight, atol=1e-12)
    assert torch.allclose(algorithm.c_model.bias, twin.c_model.bias, atol=1e-12)


def test_erdg_s_networks_have_their_own_learning_rates_and_small_weights():
    algorithm = build("ERDG", lr=0.1, lr_d=0.2, lr_c=0.3, lr_cp=0.4, weight_decay=0.5)
    names = {id(value): key.split(".")[0] for key, value in algorithm.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in algorithm.optimizer.param_groups for p in group["params"]}
    assert rates == {"featurizer": 0.1, "classifier": 0.1, "discriminator": 0.2, "c_model": 0.3, "cp_model": 0.4}
    assert {group["weight_decay"] for group in algorithm.optimizer.param_groups} == {0.5}
    for heads in (algorithm.discriminator, algorithm.c_model, algorithm.cp_model):
        largest = heads.weight.abs().max().item()
        assert 0.9 < largest / (0.1 * math.sqrt(6 / (128 + 3))) <= 1
        assert not heads.bias.any()


@pytest.mark.parametrize("name", [*PLAYERS, "SWAD(DANN)"])
def test_one_domain_and_an_unlabelled_one_are_two(name):
    algorithm = build(name, 1, unlabeled_domains=1)
    metrics = algorithm.update(make_batches(0, (6,)), [make_batches(7).x[:5]])
    assert torch.isfinite(metrics["loss"])


@pytest.mark.parametrize("name", [*PLAYERS, "ERDG"])
def test_one_domain_is_refused(name):
    with pytest.raises(AlgorithmError, match="needs two or more training domains"):
        build(name, 1)
