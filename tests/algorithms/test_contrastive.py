"""CAD, CondCAD and ADRMX against losses summed pair by pair, and whose turn moves which weights, in float64."""

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
from shiftbed.algorithms.contrastive import supervised_contrast
from shiftbed.hashing import seed_hash
from tests.algorithms.common import CLASSES, assert_same_as_erm, build, largest_difference, make_batches, train

Z = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 1], [1, 0], [2, 1], [0, 3], [2, 2]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
PAIR = ["CAD", "CondCAD"]


def on_features(name, **hparams):
    """An algorithm whose inputs are the features and whose risk is log 3."""
    algorithm = build(name, **hparams)
    algorithm.featurizer, algorithm.classifier = nn.Identity(), nn.Linear(2, 3, dtype=torch.float64)
    nn.init.zeros_(algorithm.classifier.weight)
    nn.init.zeros_(algorithm.classifier.bias)
    return algorithm


def bottleneck(name, z=Z, y=Y, sizes=(4, 4), **hparams):
    _, metrics = on_features(name, **hparams).objective(Batches(z, y, sizes), 0)
    return metrics["penalty"]


# Sums over pairs, by hand: temperature, flipped, normalised, and both losses.
VALUES = [
    (2.0, True, False, 95.66080532533, 3.84842023050),
    (2.0, True, True, 16.14499882778, 9.66237917719),
    (2.0, False, False, -69.66426077189, -71.98255474672),
    (0.1, True, False, 99.87621561026, 1.621389258e-05),
    (0.1, True, True, 1.13290894209, 0.43122434233),
    (0.1, False, True, -1.47772543605, -1.86712275712),
]


@pytest.mark.parametrize(("temperature", "flipped", "normalized", "cad", "cond_cad"), VALUES)
def test_the_bottleneck_is_the_share_of_other_domains_in_a_softmax(temperature, flipped, normalized, cad, cond_cad):
    hparams = {"temperature": temperature, "is_flipped": flipped, "is_normalized": normalized}
    assert bottleneck("CAD", **hparams).item() == pytest.approx(cad, rel=1e-9)
    assert bottleneck("CondCAD", **hparams).item() == pytest.approx(cond_cad, rel=1e-9)


@pytest.mark.parametrize("name", PAIR)
def test_the_loss_is_the_risk_plus_the_weighted_bottleneck(name):
    loss, metrics = on_features(name, lmbda=0.5, temperature=2.0).objective(Batches(Z, Y, (4, 4)), 0)
    assert loss.item() == pytest.approx(math.log(3) + 0.5 * metrics["penalty"].item(), abs=1e-12)


@pytest.mark.parametrize("name", PAIR)
def test_without_its_weight_it_is_erm_and_with_it_not(name):
    assert_same_as_erm(build(name, lmbda=0.0))
    erm, cad = build("ERM"), build(name)
    train(erm, 5)
    train(cad, 5)
    assert largest_difference(erm, cad) > 1e-5


@pytest.mark.parametrize("name", PAIR)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_the_order_of_examples_within_a_domain_and_of_the_domains_says_nothing(name, seed):
    random = np.random.default_rng(seed)
    order = np.concatenate([*random.permutation(np.array_split(np.arange(8), 2))])
    order[:4], order[4:] = random.permutation(order[:4]), random.permutation(order[4:])
    assert bottleneck(name, Z[order], Y[order], temperature=2.0).item() == pytest.approx(
        bottleneck(name, temperature=2.0).item(), rel=1e-9
    )


@pytest.mark.parametrize("name", PAIR)
def test_of_one_domain_there_is_nothing_to_tell(name):
    assert bottleneck(name, sizes=(8,)).item() == 0


@pytest.mark.parametrize("name", PAIR)
def test_an_example_whose_class_nobody_shares_does_not_count(name):
    """Its row is out of the mean; in CAD it still stands among the others."""
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 2])
    z = Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(bottleneck(name, z, y, temperature=2.0), z)
    assert torch.isfinite(gradient).all()
    assert gradient[7].abs().max() > 0 if name == "CAD" else gradient[7].abs().max() == 0
    products = (Z @ Z.T / 2).exp().numpy()
    shares = []
    for i in range(7):
        whole = [j for j in range(8) if j != i and (name == "CAD" or y[i] == y[j])]
        part = [j for j in whole if (i < 4) != (j < 4)]
        shares.append(products[i, part].sum() / products[i, whole].sum())
    expected = -2 / 0.07 * np.log(shares).mean()
    assert bottleneck(name, Z, y, temperature=2.0).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", PAIR)
def test_where_no_example_counts_loss_and_gradient_are_those_of_the_risk(name):
    algorithm = on_features(name)
    z = Z[:3].clone().requires_grad_()
    loss, metrics = algorithm.objective(Batches(z, torch.arange(3), (2, 1)), 0)
    (gradient,) = torch.autograd.grad(metrics["penalty"], z)
    assert metrics["penalty"].item() == 0 and gradient.abs().max() == 0
    assert loss.item() == pytest.approx(math.log(3), abs=1e-12)


@pytest.mark.parametrize("name", PAIR)
@pytest.mark.parametrize("flipped", [True, False])
def test_the_bottleneck_s_gradient(name, flipped):
    algorithm = on_features(name, temperature=2.0, is_flipped=flipped)
    batches = Batches(Z, torch.tensor([0, 1, 2, 0, 1, 1, 0, 1]), (4, 4))
    assert torch.autograd.gradcheck(lambda z: algorithm.bottleneck(z, batches), (Z.clone().requires_grad_(),))


@pytest.mark.parametrize("name", PAIR)
def test_a_projection_is_trained_and_the_classifier_does_not_see_it(name):
    algorithm = build(name, is_project=True)
    assert algorithm.project[-1].out_features == 128
    before = copy.deepcopy(algorithm)
    train(algorithm, 1)
    for now, then in zip(algorithm.project.parameters(), before.project.parameters(), strict=True):
        assert not torch.equal(now, then)
    x = make_batches(3).x
    assert torch.equal(algorithm.predict(x), algorithm.classifier(algorithm.featurizer(x)))


def test_under_autocast_similarities_keep_float32():
    algorithm = on_features("CAD", temperature=2.0).float()
    with torch.autocast("cpu", torch.bfloat16):
        _, metrics = algorithm.objective(Batches(Z.float() + 0.01, Y, (4, 4)), 0)
    expected = bottleneck("CAD", Z + 0.01, temperature=2.0).item()
    assert metrics["penalty"].dtype == torch.float32
    assert metrics["penalty"].item() == pytest.approx(expected, rel=1e-5)


def test_the_supervised_contrast_pair_by_pair():
    assert supervised_contrast(Z, Y).item() == pytest.approx(2.10987104995, abs=1e-10)
    alone = torch.tensor([0, 1, 2, 0, 1, 2, 0, 3])  # the last one has no other of its class
    assert supervised_contrast(Z, alone).item() == pytest.approx(2.41703397414, abs=1e-10)
    z = Z.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: supervised_contrast(rows, alone), (z,))
    assert supervised_contrast(Z[:3], torch.arange(3)).item() == 0
    assert supervised_contrast(3 * Z, Y).item() == pytest.approx(2.10987104995, abs=1e-10)  # only angles count


@pytest.mark.parametrize(("steps", "turns"), [(1, "GDGD"), (2, "DGDDGD"), (3, "DDGDDDG")])
def test_adrmx_s_players_take_turns_and_move_only_their_own_weights(steps, turns):
    algorithm = build("ADRMX", d_steps_per_g_step=steps)
    assert algorithm.cycle == 1 + steps
    generator = {"featurizer_label", "featurizer_domain", "classifier_label_1", "classifier_label_2"}
    for step, turn in enumerate(turns):
        before = {key: value.clone() for key, value in algorithm.named_parameters()}
        metrics = train(algorithm, 1, first=step)[0]
        changed = {
            key.split(".")[0] for key, value in algorithm.named_parameters() if not torch.equal(value, before[key])
        }
        assert changed == (generator | {"classifier_domain"} if turn == "G" else {"discriminator"})
        assert (metrics["loss"] == metrics["disc_loss"]) == (turn == "D")


def test_adrmx_has_two_adams_without_weight_decay():
    algorithm = build("ADRMX", weight_decay=0.5, lr=0.1, beta1=0.25)
    assert algorithm.opt is algorithm.optimizer
    for optimizer in (algorithm.opt, algorithm.disc_opt):
        (group,) = optimizer.param_groups
        assert (group["lr"], group["betas"], group["weight_decay"]) == (0.1, (0.25, 0.9), 0)


@pytest.mark.parametrize("left", ["dclf_lambda", "rmxd_lambda", "cnt_lambda", "disc_lambda", None])
def test_adrmx_s_objective_term_by_term(left):
    weights = dict.fromkeys(("dclf_lambda", "rmxd_lambda", "cnt_lambda", "disc_lambda"), 0.0)
    if left:
        weights[left] = 0.3
    algorithm, batches = build("ADRMX", **weights), make_batches(0, (6, 4, 5))
    loss, metrics = algorithm.objective(batches, 0)
    label, domain = algorithm.featurizer_label(batches.x), algorithm.featurizer_domain(batches.x)
    invariant, y, d = label - domain, batches.y, torch.tensor([0] * 6 + [1] * 4 + [2] * 5)
    expected = F.cross_entropy(algorithm.classifier_label_1(label), y)
    expected += F.cross_entropy(algorithm.classifier_label_2(invariant), y)
    expected += weights["dclf_lambda"] * F.cross_entropy(algorithm.classifier_domain(domain), d)
    expected += weights["rmxd_lambda"] * metrics["remix"]
    expected += weights["cnt_lambda"] * (supervised_contrast(label, y) + supervised_contrast(invariant, y))
    expected -= weights["disc_lambda"] * F.cross_entropy(algorithm.discriminator(invariant), d)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)


def test_the_invariant_part_trains_both_featurizers():
    """With the domain head and the contrast silent, only the invariant part's losses reach the domain featurizer."""
    silent = dict.fromkeys(("dclf_lambda", "rmxd_lambda", "cnt_lambda"), 0.0)
    algorithm = build("ADRMX", **silent)
    algorithm.objective(make_batches(0), 0)[0].backward()
    assert all(p.grad.abs().max() > 0 for p in algorithm.featurizer_domain.parameters())


class Recorder(nn.Module):
    """A head that keeps what it was shown and is right about nothing."""

    def forward(self, features):
        self.shown = features
        return torch.zeros(len(features), CLASSES, dtype=features.dtype)


def test_a_remix_joins_two_examples_of_one_class():
    algorithm = build("ADRMX")
    algorithm.classifier_label_1 = Recorder()
    y = torch.tensor([2, 0, 0, 2, 2, 0, 1, 2])
    pairs = set()
    for seed in range(100):
        algorithm.rng = np.random.default_rng(seed)
        loss = algorithm.remix_loss(torch.eye(8, dtype=torch.float64), 10 * torch.eye(8, dtype=torch.float64), y)
        assert loss.item() == pytest.approx(2 * math.log(3) / 3)  # class 1 has one example, hence no pair
        for c in (0, 2):
            row = algorithm.classifier_label_1.shown[c]
            pairs.add(((row == 1).nonzero().item(), (row == 10).nonzero().item()))
    of_class = {0: (1, 2, 5), 2: (0, 3, 4, 7)}
    assert pairs == {(i, j) for members in of_class.values() for i in members for j in members if i != j}


def test_a_remix_is_classified_as_its_class():
    algorithm = build("ADRMX")
    algorithm.classifier_label_1 = nn.Identity()  # the remixed features are the logits
    invariant = torch.tensor([[1.0, 0, 0], [0, 2, 0], [3, 0, 0], [0, 4, 0]], dtype=torch.float64)
    domain = torch.tensor([[0.0, 0, 1], [0, 0, 2], [0, 0, 1], [0, 0, 2]], dtype=torch.float64)
    loss = algorithm.remix_loss(invariant, domain, torch.tensor([0, 1, 0, 1])).item()

    def risk(logit, style):
        return math.log(math.exp(logit) + math.exp(style) + 1) - logit

    assert any(loss == pytest.approx((risk(a, 1) + risk(b, 2)) / 3, abs=1e-12) for a in (1, 3) for b in (2, 4))


def test_without_its_terms_and_with_a_silent_second_head_a_step_of_adrmx_is_one_of_erm():
    silent = dict.fromkeys(("dclf_lambda", "rmxd_lambda", "cnt_lambda", "disc_lambda"), 0.0)
    algorithm = build("ADRMX", d_steps_per_g_step=1, **silent)
    nn.init.zeros_(algorithm.classifier_label_2[-1].weight)
    erm = build("ERM", nonlinear_classifier=True)
    erm.featurizer.load_state_dict(algorithm.featurizer_label.state_dict())
    erm.classifier.load_state_dict(algorithm.classifier_label_1.state_dict())
    erm.optimizer = torch.optim.Adam(erm.parameters(), lr=algorithm.hparams["lr"], betas=(0.5, 0.9))
    train(algorithm, 1)
    train(erm, 1)
    assert largest_difference(algorithm, erm) < 1e-12
    on = build("ADRMX", d_steps_per_g_step=1)
    train(on, 1)
    assert largest_difference(on, erm) > 1e-5


def test_the_discriminator_s_turn_needs_no_gradient_of_the_featurizers():
    algorithm = build("ADRMX")
    train(algorithm, 1)
    assert all(p.grad is None for p in algorithm.featurizer_label.parameters())
    assert all(p.grad is not None for p in algorithm.discriminator.parameters())


HEAD = {
    ("CAD", "lmbda"): (1e-1, lambda r: r.choice([1e-4, 1e-3, 1e-2, 1e-1, 1, 1e1, 1e2])),
    ("CAD", "temperature"): (0.1, lambda r: r.choice([0.05, 0.1])),
    ("CAD", "is_normalized"): (False, lambda r: False),
    ("CAD", "is_project"): (False, lambda r: False),
    ("CAD", "is_flipped"): (True, lambda r: True),
    ("ADRMX", "cnt_lambda"): (1.0, lambda r: 1.0),
    ("ADRMX", "dclf_lambda"): (1.0, lambda r: 1.0),
    ("ADRMX", "disc_lambda"): (0.75, lambda r: 0.75),
    ("ADRMX", "rmxd_lambda"): (1.0, lambda r: 1.0),
    ("ADRMX", "d_steps_per_g_step"): (2, lambda r: 2),
    ("ADRMX", "beta1"): (0.5, lambda r: 0.5),
    ("ADRMX", "mlp_width"): (256, lambda r: 256),
    ("ADRMX", "mlp_depth"): (9, lambda r: int(r.choice([8, 9, 10]))),
    ("ADRMX", "mlp_dropout"): (0.0, lambda r: 0),
    ("ADRMX", "lr"): (3e-5, lambda r: r.choice([2e-5, 3e-5, 4e-5, 5e-5])),
}
HEAD |= {("CondCAD", name): rule for (algorithm, name), rule in HEAD.items() if algorithm == "CAD"}


def check(space, name, default, rule):
    assert space.draw(0, 0)[name] == default
    for draw, trial in ((1, 0), (7, 2), (19, 1)):
        assert space.draw(draw, trial)[name] == rule(np.random.RandomState(seed_hash(seed_hash(draw, trial), name)))


@pytest.mark.parametrize(("algorithm", "name"), HEAD, ids=str)
def test_draws_are_domainbed_s(algorithm, name):
    space = ALGORITHMS[algorithm].space("PACS", "large")
    assert set(space) == {key for owner, key in HEAD if owner == algorithm}
    check(space, name, *HEAD[algorithm, name])


def test_on_small_images_adrmx_learns_faster():
    check(ALGORITHMS["ADRMX"].space("", "small"), "lr", 3e-3, lambda r: r.choice([5e-4, 1e-3, 2e-3, 3e-3]))
