"""Every draw of every algorithm against DomainBed's rule, written down here a second time; and the named spaces."""

import hashlib

import numpy as np
import pytest

from shiftbed.algorithms import ALGORITHMS
from shiftbed.errors import HparamError
from shiftbed.hashing import seed_hash
from shiftbed.hparams import NAMED_SPACES, shared_space, with_named_space

# (algorithm, hyperparameter): (default, the draw from a RandomState), as DomainBed's registry has them at b93c22a.
HEAD = {
    ("IRM", "irm_lambda"): (1e2, lambda r: 10 ** r.uniform(-1, 5)),
    ("IRM", "irm_penalty_anneal_iters"): (500, lambda r: int(10 ** r.uniform(0, 4))),
    ("Mixup", "mixup_alpha"): (0.2, lambda r: 10 ** r.uniform(-1, 1)),
    ("GroupDRO", "groupdro_eta"): (1e-2, lambda r: 10 ** r.uniform(-3, -1)),
    ("MMD", "mmd_gamma"): (1.0, lambda r: 10 ** r.uniform(-1, 1)),
    ("CORAL", "mmd_gamma"): (1.0, lambda r: 10 ** r.uniform(-1, 1)),
    ("MLDG", "mldg_beta"): (1.0, lambda r: 10 ** r.uniform(-1, 1)),
    ("MLDG", "n_meta_test"): (2, lambda r: r.choice([1, 2])),
    ("MTL", "mtl_ema"): (0.99, lambda r: r.choice([0.5, 0.9, 0.99, 1.0])),
    ("VREx", "vrex_lambda"): (1e1, lambda r: 10 ** r.uniform(-1, 5)),
    ("VREx", "vrex_penalty_anneal_iters"): (500, lambda r: int(10 ** r.uniform(0, 4))),
    ("SD", "sd_reg"): (0.1, lambda r: 10 ** r.uniform(-5, -1)),
    ("ANDMask", "tau"): (1, lambda r: r.uniform(0.5, 1.0)),
    ("IGA", "penalty"): (1000, lambda r: 10 ** r.uniform(1, 5)),
    ("SagNet", "sag_w_adv"): (0.1, lambda r: 10 ** r.uniform(-2, 1)),
    ("RSC", "rsc_f_drop_factor"): (1 / 3, lambda r: r.uniform(0, 0.5)),
    ("RSC", "rsc_b_drop_factor"): (1 / 3, lambda r: r.uniform(0, 0.5)),
    ("Fishr", "lambda"): (1000.0, lambda r: 10 ** r.uniform(1.0, 4.0)),
    ("Fishr", "penalty_anneal_iters"): (1500, lambda r: int(r.uniform(0.0, 5000.0))),
    ("Fishr", "ema"): (0.95, lambda r: r.uniform(0.90, 0.99)),
    ("EQRM", "eqrm_quantile"): (0.75, lambda r: r.uniform(0.5, 0.99)),
    ("EQRM", "eqrm_burnin_iters"): (2500, lambda r: 10 ** r.uniform(2.5, 3.5)),
    ("EQRM", "eqrm_lr"): (1e-6, lambda r: 10 ** r.uniform(-7, -5)),
    ("Fish", "meta_lr"): (0.5, lambda r: r.choice([0.05, 0.1, 0.5])),
    ("SANDMask", "tau"): (1.0, lambda r: r.uniform(0.0, 1.0)),
    ("SANDMask", "k"): (1e1, lambda r: 10 ** r.uniform(-3, 5)),
    ("TRM", "cos_lambda"): (1e-4, lambda r: 10 ** r.uniform(-5, 0)),
    ("TRM", "iters"): (200, lambda r: int(10 ** r.uniform(0, 4))),
    ("TRM", "groupdro_eta"): (1e-2, lambda r: 10 ** r.uniform(-3, -1)),
    ("IB_ERM", "ib_lambda"): (1e2, lambda r: 10 ** r.uniform(-1, 5)),
    ("IB_ERM", "ib_penalty_anneal_iters"): (500, lambda r: int(10 ** r.uniform(0, 4))),
    ("IB_IRM", "irm_lambda"): (1e2, lambda r: 10 ** r.uniform(-1, 5)),
    ("IB_IRM", "irm_penalty_anneal_iters"): (500, lambda r: int(10 ** r.uniform(0, 4))),
    ("IB_IRM", "ib_lambda"): (1e2, lambda r: 10 ** r.uniform(-1, 5)),
    ("IB_IRM", "ib_penalty_anneal_iters"): (500, lambda r: int(10 ** r.uniform(0, 4))),
    ("URM", "urm_adv_lambda"): (0.1, lambda r: r.uniform(0, 0.2)),
    ("URM", "urm_discriminator_hidden_layers"): (1, lambda r: int(r.choice([1, 2, 3]))),
    ("ERMPlusPlus", "linear_lr"): (5e-5, lambda r: 10 ** r.uniform(-5, -3.5)),
    ("ERMPlusPlus", "linear_steps"): (500, lambda r: 500),
}
ADVERSARIAL = {
    "lambda": (1.0, lambda r: 10 ** r.uniform(-2, 2)),
    "weight_decay_d": (0.0, lambda r: 10 ** r.uniform(-6, -2)),
    "d_steps_per_g_step": (1, lambda r: int(2 ** r.uniform(0, 3))),
    "grad_penalty": (0.0, lambda r: 10 ** r.uniform(-2, 1)),
    "beta1": (0.5, lambda r: r.choice([0.0, 0.5])),
    "mlp_width": (256, lambda r: int(2 ** r.uniform(6, 10))),
    "mlp_depth": (3, lambda r: int(r.choice([3, 4, 5]))),
    "mlp_dropout": (0.0, lambda r: r.choice([0.0, 0.1, 0.5])),
}
HEAD |= {(name, key): rule for name in ("DANN", "CDANN") for key, rule in ADVERSARIAL.items()}
BY_SIZE = {
    ("small", "lr_g"): (1e-3, lambda r: 10 ** r.uniform(-4.5, -2.5)),
    ("small", "lr_d"): (1e-3, lambda r: 10 ** r.uniform(-4.5, -2.5)),
    ("small", "weight_decay_g"): (0.0, lambda r: 0.0),
    ("large", "lr_g"): (5e-5, lambda r: 10 ** r.uniform(-5, -3.5)),
    ("large", "lr_d"): (5e-5, lambda r: 10 ** r.uniform(-5, -3.5)),
    ("large", "weight_decay_g"): (0.0, lambda r: 10 ** r.uniform(-6, -2)),
}


def check(prior_space, name, default, rule):
    assert prior_space.draw(0, 3)[name] == default
    for draw, trial in ((1, 0), (7, 2), (19, 1)):
        random = np.random.RandomState(seed_hash(seed_hash(draw, trial), name))
        assert prior_space.draw(draw, trial)[name] == pytest.approx(rule(random), rel=1e-9), (draw, trial)


@pytest.mark.parametrize(("algorithm", "name"), HEAD, ids=lambda value: str(value))
def test_draws_are_domainbeds(algorithm, name):
    for size_class in ("small", "large"):
        check(ALGORITHMS[algorithm].space("PACS", size_class), name, *HEAD[algorithm, name])


@pytest.mark.parametrize(("size_class", "name"), BY_SIZE, ids=lambda value: str(value))
def test_draws_that_depend_on_the_size_of_images(size_class, name):
    for algorithm in ("DANN", "CDANN"):
        check(ALGORITHMS[algorithm].space("", size_class), name, *BY_SIZE[size_class, name])


@pytest.mark.parametrize(
    ("size_class", "default", "low", "high"), [("small", 1e-3, -5.5, -3.5), ("large", 5e-5, -6, -4.5)]
)
def test_draws_of_urms_discriminator_depend_on_the_size_of_images(size_class, default, low, high):
    space = ALGORITHMS["URM"].space("", size_class)
    check(space, "urm_discriminator_lr", default, lambda r: 10 ** r.uniform(low, high))


def test_batches_of_arm_and_of_domainnet():
    assert (shared_space("large") | ALGORITHMS["ARM"].space("PACS", "large")).draw(5, 0)["batch_size"] == 8
    assert "batch_size" not in ALGORITHMS["ARM"].space("ColoredMNIST", "small")
    largest = max(shared_space("large", "DomainNet").draw(draw, 0)["batch_size"] for draw in range(1, 200))
    assert largest < 32 < max(shared_space("large", "PACS").draw(draw, 0)["batch_size"] for draw in range(1, 200))


def named(space, algorithm, name, dataset="", size_class="large"):
    whole = shared_space(size_class, dataset) | ALGORITHMS[algorithm].space(dataset, size_class)
    return with_named_space(whole, space, algorithm, dataset, size_class)[name].text


@pytest.mark.parametrize(
    ("space", "algorithm", "name", "dataset", "size_class", "text"),
    [
        ("domainbed-paper", "ERM", "lr", "", "small", "10^U(-4.5, -3.5)"),
        ("domainbed-paper", "ERM", "lr", "", "large", "10^U(-5, -3.5)"),
        ("domainbed-paper", "ERM", "batch_size", "DomainNet", "large", "2^U(3, 5.5), integer"),
        ("domainbed-paper", "Mixup", "mixup_alpha", "", "large", "10^U(0, 4)"),
        ("domainbed-paper", "SWAD(Mixup)", "mixup_alpha", "", "large", "10^U(0, 4)"),
        ("domainbed-paper", "GroupDRO", "groupdro_eta", "", "large", "10^U(-1, 1)"),
        ("domainbed-head", "GroupDRO", "groupdro_eta", "", "large", "10^U(-3, -1)"),
        ("ood-bench", "ERM", "resnet_dropout", "", "large", "fixed"),
        ("ood-bench", "Mixup", "mixup_alpha", "", "large", "one of [0.1]"),
        ("ood-bench", "VREx", "vrex_penalty_anneal_iters", "CelebA", "large", "10^U(0, 3.5), integer"),
        ("ood-bench", "ERM", "batch_size", "CelebA", "large", "2^U(4.5, 6), integer"),
        ("ood-bench", "ARM", "batch_size", "CelebA", "large", "fixed"),
        ("domainbed-v2", "IRM", "irm_lambda", "", "large", "10^U(-5, -1)"),
        ("domainbed-v2", "MMD", "mmd_gamma", "", "large", "10^U(-2, 0)"),
        ("domainbed-v2", "CORAL", "mmd_gamma", "", "large", "10^U(-1, 1)"),
        ("domainbed-v2", "ERM", "batch_size", "", "large", "fixed"),
        ("domainbed-v2-scratch", "ERM", "lr", "", "large", "10^U(-4.5, -3)"),
    ],
)
def test_named_spaces_are_what_their_sources_say(space, algorithm, name, dataset, size_class, text):
    assert named(space, algorithm, name, dataset, size_class) == text


def ood_bench_draw(draw, trial, name, low, high):
    """10^U(low, high) by the rule of the repositories: the name of a value is a part of its seed."""

    def seed(*words):
        return int(hashlib.md5(str(words).encode()).hexdigest(), 16) % 2**31

    return 10 ** np.random.RandomState(seed(seed(draw, trial), name)).uniform(low, high)


def test_erdg_and_mixup_have_ood_bench_s_points():
    space = with_named_space(ALGORITHMS["ERDG"].space(), "ood-bench", "ERDG", "", "small")
    ranges = {"lr_d": (-5, -3.5), "lr_c": (-6, -4.5), "lr_cp": (-6, -4.5)}
    ranges |= {"lbd_d": (-2, 0), "lbd_c": (-3, -1), "lbd_cp": (-4, -1)}
    for draw, trial in ((1, 0), (7, 2)):
        points = {name: ood_bench_draw(draw, trial, name, *bounds) for name, bounds in ranges.items()}
        assert space.draw(draw, trial) == pytest.approx(points)
    defaults = {"lr_d": 5e-5, "lr_c": 5e-6, "lr_cp": 5e-6, "lbd_d": 0.5, "lbd_c": 0.05, "lbd_cp": 0.01}
    assert space.draw(0, 0) == defaults
    mixup = with_named_space(ALGORITHMS["Mixup"].space(), "ood-bench", "Mixup", "", "small")
    assert [mixup.draw(draw, 0) for draw in (0, 1, 2)] == [{"mixup_alpha": alpha} for alpha in (0.2, 0.1, 0.1)]


def test_a_named_space_adds_no_hyperparameter():
    for space in NAMED_SPACES:
        whole = shared_space("large") | ALGORITHMS["ERM"].space()
        assert set(with_named_space(whole, space, "ERM", "CelebA", "large")) == set(whole)
    with pytest.raises(HparamError, match=r"no search space 'domainbed-heat'\. Did you mean domainbed-head"):
        with_named_space(shared_space("large"), "domainbed-heat", "ERM", "", "large")
