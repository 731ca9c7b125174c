import numpy as np
import pytest

from shiftbed.data import card
from shiftbed.errors import DataError
from shiftbed.hashing import seed_hash
from shiftbed.protocols import PROTOCOLS, holdout, leave_out


def test_the_split_equals_domainbeds():
    inside, outside = holdout(10, 0.2, seed_hash(0, 0))
    assert [*outside, *inside] == [2, 3, 8, 1, 4, 5, 0, 9, 6, 7]
    assert len(outside) == 2


def test_leave_one_domain_out_tests_each_domain_once():
    tested = PROTOCOLS["leave-one-domain-out"](card("EmojiStyles"))
    assert tested == [(name,) for name in card("EmojiStyles").domains]


@pytest.mark.parametrize("tested", [("+90%",), ("+80%",), ("-90%",), ("+90%", "-90%")])
def test_splits_cover_every_example_once_with_the_right_role(tested):
    task = leave_out("ColoredDigits", tested, trial=1, fraction=0.2)
    for domain, count in card("ColoredDigits").domains.items():
        parts = [split for split in task.splits if split.domain == domain]
        assert sorted(np.concatenate([split.indices for split in parts])) == list(range(count))
        roles = {split.part: split.role for split in parts}
        expected = {"in": "test", "out": "test"} if domain in tested else {"in": "train", "out": "validation"}
        assert roles == expected
    assert task.train_domains == tuple(name for name in card("ColoredDigits").domains if name not in tested)


def test_every_domain_has_a_split_of_its_own():
    task = leave_out("ColoredDigits", ("-90%",), trial=3, fraction=0.2)
    for position, domain in enumerate(card("ColoredDigits").domains):
        inside, outside = holdout(599, 0.2, seed_hash(3, position))
        found = {split.part: split.indices for split in task.splits if split.domain == domain}
        assert np.array_equal(found["in"], inside) and np.array_equal(found["out"], outside)


def test_another_trial_splits_otherwise():
    first, second = (leave_out("ColoredDigits", ("-90%",), trial, 0.2) for trial in (0, 1))
    assert first.fingerprint != second.fingerprint


def test_a_domain_s_split_does_not_depend_on_which_domain_is_tested():
    first, second = (leave_out("ColoredDigits", (name,), 0, 0.2) for name in ("+90%", "-90%"))
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(first.splits, second.splits, strict=True))


def test_an_unknown_domain_suggests_the_nearest():
    with pytest.raises(DataError, match=r"EmojiStyles has no domain 'noto-v2'\. Did you mean noto-v1"):
        leave_out("EmojiStyles", ("noto-v2",), 0, 0.2)


def test_testing_everything_is_refused():
    with pytest.raises(DataError, match="leaves no domain to train on"):
        leave_out("ColoredDigits", ("+90%", "+80%", "-90%"), 0, 0.2)


def test_a_domain_too_small_to_split_is_refused():
    with pytest.raises(DataError, match="too few to hold out"):
        leave_out("ColoredDigits", ("+90%",), 0, 0.001)
