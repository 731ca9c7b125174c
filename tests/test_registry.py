import subprocess
import sys

import pytest

from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import DATASETS
from shiftbed.errors import UnknownNameError
from shiftbed.registry import did_you_mean, whole_names


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no algorithm 'COARL'. Did you mean CORAL"):
        ALGORITHMS["COARL"]


def test_a_name_like_no_other_shows_some_that_there_are():
    with pytest.raises(UnknownNameError, match=r"There are ADRMX, ANDMask, ARM, .* and \d+ more\."):
        ALGORITHMS["zzz"]
    assert did_you_mean("zzz", ["alone"]) == " There is only alone."
    assert did_you_mean("zzz", [f"name{i:02}" for i in range(20)]).endswith("name10, name11 and 8 more.")


def test_case_does_not_matter():
    assert ALGORITHMS.canonical_name("groupdro") == "GroupDRO"


def test_the_issue_s_names_are_registered():
    assert {"ERM", "CORAL", "GroupDRO", "IRM", "Mixup"} <= set(ALGORITHMS)
    assert {"EmojiStyles", "ColoredDigits", "RotatedDigits"} <= set(DATASETS)


def test_names_with_commas_are_whole_again():
    known = ["Lab 3, north", "Lab 3", "site-b"]
    assert whole_names(["Lab 3", "north", "site-b"], known) == ["Lab 3, north", "site-b"]
    assert whole_names(["Lab 3", "site-b", "nowhere"], known) == ["Lab 3", "site-b", "nowhere"]
    assert whole_names([], known) == []


def test_threads_that_ask_first_all_find_what_there_is():
    """All but the first met a registry that was still being filled, without a single dataset."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor; from shiftbed.data import card; "
        "print(*ThreadPoolExecutor(4).map(lambda _: card('ColoredDigits').name, range(4)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["ColoredDigits"] * 4
