"""The lists of mutants against the code they mutate: one whose text is gone is never applied, and proves nothing."""

from pathlib import Path

import pytest
import yaml

from shiftbed.algorithms import ALGORITHMS

REPOSITORY = Path(__file__).parent.parent
LISTS = sorted((REPOSITORY / "scripts" / "mutants").glob("*.yaml"))
MUTANTS = {path.stem: yaml.safe_load(path.read_text()) for path in LISTS}


@pytest.mark.parametrize("family", MUTANTS)
def test_every_mutant_can_be_applied_and_its_test_exists(family):
    for mutant in MUTANTS[family]:
        assert (REPOSITORY / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant
        assert mutant["new"] != mutant["old"], mutant
        for place in (word for word in mutant["tests"].split() if word.startswith("tests/")):
            file, _, test = place.partition("::")
            text = (REPOSITORY / file).read_text()
            assert not test or f"def {test.partition('[')[0]}(" in text, mutant


def test_every_file_of_algorithms_has_mutants():
    mutated = {mutant["file"] for mutants in MUTANTS.values() for mutant in mutants}
    modules = {ALGORITHMS[name].cls.__module__ for name in ALGORITHMS if "(" not in name}
    ours = {f"{module.replace('.', '/')}.py" for module in modules if module.startswith("shiftbed.algorithms.")}
    assert ours <= mutated
