import pytest

from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import DATASETS
from shiftbed.errors import UnknownNameError


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no algorithm 'COARL'. Did you mean CORAL"):
        ALGORITHMS["COARL"]


def test_a_name_like_no_other_lists_all():
    with pytest.raises(UnknownNameError, match=r"There are: ColoredDigits, .*EmojiStyles, .*RotatedMNIST"):
        DATASETS["zzz"]


def test_case_does_not_matter():
    assert ALGORITHMS.canonical_name("groupdro") == "GroupDRO"


def test_the_issue_s_names_are_registered():
    assert {"ERM", "CORAL", "GroupDRO", "IRM", "Mixup"} <= set(ALGORITHMS)
    assert {"EmojiStyles", "ColoredDigits", "RotatedDigits"} <= set(DATASETS)
