import numpy as np
import pytest

from shiftbed.algorithms import ALGORITHMS
from shiftbed.errors import HparamError
from shiftbed.hashing import seed_hash
from shiftbed.hparams import Space, constant, log_uniform, shared_space
from shiftbed.training.job import search_space


def test_draws_equal_domainbeds_on_large_images():
    values = shared_space("large").draw(1, trial=0)
    assert values["lr"] == pytest.approx(2.70289307e-05, rel=1e-8)
    assert values["weight_decay"] == pytest.approx(4.48328839e-04, rel=1e-8)
    assert values["batch_size"] == 39
    assert values["resnet_dropout"] == 0.5


def test_draws_equal_domainbeds_on_small_images():
    values = (shared_space("small") | ALGORITHMS["IRM"].space()).draw(1, trial=0)
    assert values["lr"] == pytest.approx(1.19061629e-04, rel=1e-8)
    assert values["batch_size"] == 372
    assert values["irm_lambda"] == pytest.approx(65030.522, abs=5e-4)
    assert values["irm_penalty_anneal_iters"] == 2
    assert values["weight_decay"] == 0
    second = shared_space("small").draw(2, trial=1)
    assert second["lr"] == pytest.approx(2.55219526e-03, rel=1e-8)
    assert second["batch_size"] == 61


@pytest.mark.parametrize(
    ("algorithm", "name", "low", "high", "default"),
    [
        ("CORAL", "mmd_gamma", -1, 1, 1.0),
        ("GroupDRO", "groupdro_eta", -3, -1, 0.01),
        ("IRM", "irm_lambda", -1, 5, 100.0),
        ("Mixup", "mixup_alpha", -1, 1, 0.2),
    ],
)
def test_an_algorithm_s_own_draws_follow_domainbed_s_rule(algorithm, name, low, high, default):
    prior = ALGORITHMS[algorithm].space()
    for draw, trial in ((1, 0), (7, 2)):
        random = np.random.RandomState(seed_hash(seed_hash(draw, trial), name))
        assert prior.draw(draw, trial)[name] == 10 ** random.uniform(low, high)
    assert prior.draw(0, 0)[name] == default


def test_values_set_by_hand_take_the_default_s_type():
    space = search_space("IRM", "ColoredDigits")
    assert repr(space.checked({"lr": 1, "batch_size": 8.0})) == "{'lr': 1.0, 'batch_size': 8}"


def test_a_word_may_be_written_in_digits():
    assert search_space("MixStyle", "ColoredDigits").checked({"mixstyle_layers": 12}) == {"mixstyle_layers": "12"}
    with pytest.raises(HparamError, match="mixstyle_layers must be a word, not True"):
        search_space("MixStyle", "ColoredDigits").checked({"mixstyle_layers": True})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("lr", "abc", "a number"),
        ("lr", float("nan"), "a number"),
        ("lr", -1, "at least 0"),
        ("lr", True, "a number"),
        ("batch_size", 1.5, "a whole number"),
        ("batch_size", -3, "a whole number"),
        ("nonlinear_classifier", "maybe", "true or false"),
    ],
)
def test_values_of_another_kind_are_refused(name, value, kind):
    with pytest.raises(HparamError, match=f"{name} must be {kind}|{name} must be a number of {kind}"):
        search_space("ERM", "ColoredDigits").checked({name: value})


def test_draw_zero_is_the_default_values_in_every_trial():
    space = search_space("GroupDRO", "ColoredDigits")
    assert space.draw(0, trial=0) == space.draw(0, trial=7)
    assert space.draw(0, trial=0)["groupdro_eta"] == 0.01
    assert space.draw(0, trial=0)["lr"] == 1e-3


def test_a_new_hyperparameter_changes_no_other_draw():
    alone = Space(a=log_uniform(1, 10, default=1)).draw(3, trial=1)
    more = Space(b=constant(2), a=log_uniform(1, 10, default=1), c=constant(3)).draw(3, trial=1)
    assert alone["a"] == more["a"]


def test_all_algorithms_share_the_learning_rate_of_a_draw():
    others = [name for name in ALGORITHMS if name != "ADRMX"]  # DomainBed gives it rates of its own
    rates = {search_space(name, "EmojiStyles").draw(5, trial=2)["lr"] for name in others}
    assert len(rates) == 1


def test_trials_draw_anew():
    space = search_space("ERM", "EmojiStyles")
    assert space.draw(1, trial=0)["lr"] != space.draw(1, trial=1)["lr"]


def test_a_typo_in_a_name_suggests_the_right_one():
    with pytest.raises(HparamError, match="Did you mean lr"):
        search_space("ERM", "ColoredDigits").checked({"lrr": 1e-3})
