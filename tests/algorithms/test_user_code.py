"""Users' files: what registering one does to names and revisions."""

import os
import random
import subprocess
import sys

import pytest

from shiftbed.algorithms import ALGORITHMS, load_code
from shiftbed.errors import AlgorithmError

MINE = """
from shiftbed.algorithms import register
from shiftbed.algorithms.alignment import CORAL
{imports}

@register()
class Mine(CORAL):
    pass
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def revision_of(path):
    load_code(path)
    return ALGORITHMS["Mine"].revision


def test_a_change_of_the_file_is_another_revision(write):
    first = revision_of(write("mine.py", MINE.format(imports="")))
    assert first == revision_of(write("mine.py", MINE.format(imports="")))
    assert first != revision_of(write("mine.py", MINE.format(imports="# changed")))


def test_a_change_of_a_helper_beside_it_is_another_revision(write, monkeypatch):
    path = write("mine.py", MINE.format(imports="from my_helper import weight"))
    write("my_helper.py", "def weight(): return 1")
    first = revision_of(path)
    write("my_helper.py", "def weight(): return 2")
    monkeypatch.delitem(sys.modules, "my_helper")
    assert first != revision_of(path)
    monkeypatch.delitem(sys.modules, "my_helper")


def test_a_change_of_what_it_builds_on_is_another_revision(write):
    path = write("mine.py", MINE.format(imports=""))
    first = revision_of(path)
    ALGORITHMS.add("CORAL", ALGORITHMS["CORAL"]._replace(revision=99))
    assert first != revision_of(path)


def test_a_file_may_be_called_like_a_standard_module(write):
    load_code(write("random.py", MINE.format(imports="")))
    import random as again

    assert again is random and hasattr(again, "Random")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "registers no algorithm; write @register"),
        ("def broken(:", "cannot be run: SyntaxError"),
        ("from domainbed.lib import misc", "No module named 'domainbed'; `from shiftbed.algorithms.domainbed import"),
        (
            MINE.format(imports="").replace("Mine", "ERM"),
            "ERM is an algorithm of shiftbed; give your class another name",
        ),
        (
            "from shiftbed.algorithms import register\n@register()\nclass Mine:\n    pass",
            "Mine builds on no Algorithm; let it build on Algorithm or ERM",
        ),
        *(
            (f"from shiftbed.algorithms import *\n@register(space={space})\nclass Mine(ERM):\n    pass", words)
            for space, words in (
                (
                    "Space(weight=lambda r: 10 ** r.uniform(-1, 3))",
                    r"mine\.py: The hyperparameter weight must be drawn by",
                ),
                (
                    "Space(weight=log_uniform(-1, 3, default=1.0))",
                    "the bounds themselves, above 0: 1e-1 and 1e3, not -1",
                ),
                ("{'weight': 1.0}", r"takes a Space, or a function that makes one, not \{'weight': 1.0\}"),
            )
        ),
    ],
)
def test_files_that_cannot_be_used(write, text, words):
    with pytest.raises(AlgorithmError, match=words):
        load_code(write("mine.py", text))
    assert ALGORITHMS["ERM"].cls.__module__ == "shiftbed.algorithms.base"


def test_a_function_that_makes_no_space_is_told_so(write):
    space = "lambda dataset, size_class: {'weight': 1.0}"
    load_code(
        write("mine.py", f"from shiftbed.algorithms import *\n@register(space={space})\nclass Odd(ERM):\n    pass")
    )
    with pytest.raises(AlgorithmError, match=r"of Odd must return a Space, not \{'weight': 1.0\}\.$"):
        ALGORITHMS["Odd"].space("ColoredDigits", "small")


TYPED = """
import shiftbed
from shiftbed.algorithms import ALGORITHMS, register
from shiftbed.algorithms import ERM

def halved(loss):
    return loss / 2

seen = []

def typed(sign):
    @register()
    class Typed(ERM):
        sizes = [sign, {1, 2}]

        def objective(self, batches, step):
            loss, metrics = super().objective(batches, step)
            seen.append(step)
            return halved(loss) * self.sizes[0], metrics

def revisions():
    return ALGORITHMS["Typed"].revision, ALGORITHMS["SWAD(Typed)"].revision

typed(1)
first = revisions()
job = shiftbed.train("ColoredDigits", "Typed", "-90%", out="out", steps=2)
typed(1)
assert revisions() == first, "typed again as it was, and having noted what it saw"
typed(-1)
other = revisions()
assert not {*first} & {*other}
assert ALGORITHMS["SWAD(Typed)"].cls.inner_class is ALGORITHMS["Typed"].cls
assert shiftbed.train("ColoredDigits", "Typed", "-90%", out="out", steps=2).id != job.id

def halved(loss):
    return loss / 3

assert not {*revisions()} & {*first, *other}
print(*first)
"""


@pytest.mark.parametrize("way", [["-c", TYPED], ["-"]], ids=["notebook", "input"])
def test_a_class_in_no_file_is_another_algorithm_when_it_is_typed_anew(tmp_path, way):
    """In notebooks `__main__` has no file: a changed cell had the numbers of the class that stood there before."""
    said = []
    for seed in ("1", "2"):  # another process, which has other hashes of names, knows it again
        ended = subprocess.run(
            [sys.executable, *way],
            input=TYPED,
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stdout)
    assert said[0] == said[1]


def test_a_wrapper_follows_the_class_inside_that_is_registered_again(write):
    revision_of(write("mine.py", MINE.format(imports="")))
    first = ALGORITHMS["SWAD(Mine)"]
    revision_of(write("mine.py", MINE.format(imports="# changed")))
    assert ALGORITHMS["SWAD(Mine)"].revision != first.revision
    assert ALGORITHMS["SWAD(Mine)"].cls.inner_class is ALGORITHMS["Mine"].cls
