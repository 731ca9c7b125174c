"""Leakage by the number of test domains, against DomainBed-v2's tables, by hand, and by what must always hold."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shiftbed import published
from shiftbed.audit.oracle import Leakage, cells_tested_jointly, joint_leakage, leakage, luck, oracle_gap
from shiftbed.audit.queries import _oracle_grid
from shiftbed.audit.subject import Subject
from shiftbed.selection import SELECTIONS, JobRecords, tasks_of
from shiftbed.tables import make_tables
from shiftbed.tables.estimates import paired_permutation_test, smallest_p
from shiftbed.tables.grids import grid_text
from tests.made_records import made_job

TABLE = "domainbed-v2/table-4"
HONEST = SELECTIONS["training-domain-validation"]
# Three draws that reproduce the published block of NICO++ (autumn, rock, dim) to the last digit; the last is honest.
DRAWS = np.array([[79.44, 79.58, 71.42], [78.40, 79.08, 72.58], [78.94, 79.26, 71.94]])


def test_the_published_block_of_nico_is_reproduced_to_the_last_digit():
    found = leakage(DRAWS, chosen=2)
    expected = [[79.44, 79.58, 72.58], [78.92, 79.33, 72.58], [79.44, 79.58, 71.42]]
    np.testing.assert_allclose(found.oracle, expected, atol=0.005)
    np.testing.assert_allclose(found.leakage, [0.49, 0.23, 0.10], atol=0.005)
    assert [round(100 * share) for share in found.change] == [0, -53, -79]


def published_blocks():
    groups = {}
    for cell in published.cells(TABLE):
        group, _, k = cell.setting.removeprefix("tested on ").partition("; K=")
        groups.setdefault((cell.dataset, group), {}).setdefault(int(k or 0), []).append(cell)
    return groups


@pytest.mark.parametrize("block", published_blocks().values(), ids=lambda block: block[0][0].setting)
def test_the_percents_of_table_4_follow_from_its_accuracies(block):
    accuracy = {k: np.array([c.mean for c in cells if c.domain]) for k, cells in block.items()}
    found = Leakage(accuracy[0], np.stack([accuracy[k] for k in (1, 2, 3)]))
    for k in (1, 2, 3):
        printed = {cell.measure: cell.mean for cell in block[k] if not cell.domain}
        assert found.leakage[k - 1] == pytest.approx(printed["leakage"], abs=0.006)
        assert round(100 * found.change[k - 1]) == printed["change of leakage in percent"]


matrices = st.tuples(st.integers(1, 5), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0, 100, width=32))
)


@settings(max_examples=50)
@given(matrices, st.integers(0, 4), st.floats(-10, 10))
def test_leakage_never_grows_with_k_and_is_never_negative(accuracy, chosen, shift):
    found = leakage(accuracy, chosen % len(accuracy))
    assert (np.diff(found.leakage) <= 1e-9).all() and found.leakage[-1] >= -1e-9
    moved = accuracy + shift * np.arange(accuracy.shape[1])  # a constant for each domain
    np.testing.assert_allclose(leakage(moved, chosen % len(accuracy)).leakage, found.leakage, atol=1e-4)
    assert leakage(accuracy[:1], 0).leakage == pytest.approx(0)


def test_luck_is_what_shuffled_accuracies_give():
    # Two draws, two domains: shuffled, the columns agree half of the time. K = 1 always finds 10 over a mean of 5;
    # K = 2 finds 10 if they agree and 5 if not, against a random draw's 5.
    accuracy = np.array([[0.0, 0.0], [10.0, 10.0]])
    assert luck(accuracy, chosen=0) == pytest.approx([5.0, 2.5], abs=1.0)
    assert leakage(accuracy, chosen=0).leakage == pytest.approx([10.0, 10.0])


def jobs(tested, domains="abcde"):
    """Three draws, the honest one is the last (validation 0.9)."""
    made = []
    for draw, (accuracies, validation) in enumerate(zip(DRAWS / 100, (0.5, 0.6, 0.9), strict=True)):
        splits = {f"{name}/out": validation for name in domains if name not in tested}
        splits |= {f"{name}/in": float(value) for name, value in zip(tested, accuracies, strict=False)}
        splits |= {f"{name}/out": float(value) for name, value in zip(tested, accuracies, strict=False)}
        made.append(made_job(draw, [(10, splits)], tested=tuple(tested), domains=tuple(domains)))
    return made


def subject(made):
    return Subject("DIR", tasks_of(made, ["accuracy", "count", "loss", "half_accuracy"]))


def test_the_records_of_a_sweep_give_the_same_table():
    found = joint_leakage(subject(jobs("abc")))
    (grid,) = found.grids
    assert [row["leakage"] for row in grid.data] == pytest.approx([0.49, 0.23, 0.10], abs=0.005)
    assert "0.49 points" in found.sentence and "0.10" in found.sentence
    ((cell, accuracy, chosen),) = cells_tested_jointly(subject(jobs("abc")).tasks[0], HONEST)
    assert (cell.variant.algorithm, cell.trial, chosen) == ("ERM", 0, 2)
    np.testing.assert_allclose(accuracy, DRAWS)


@pytest.mark.parametrize("rule", ["training-domain-validation", "training-domain-validation-pooled", "validation-loss"])
def test_the_honest_draw_is_the_one_of_the_table(rule):
    made = jobs("abc")
    for job, numbers in zip(made, ((0.9, 0.5, 2.0), (0.7, 0.7, 1.0), (0.7, 0.7, 1.0)), strict=True):
        first, second, loss = numbers  # the other two draws are equal, and better where `e` has most of the images
        for name, accuracy, count in (("d/out", first, 10), ("e/out", second, 12)):
            job.rows[0]["splits"][name] = {"accuracy": accuracy, "count": count, "loss": loss}
    (table,) = make_tables(made, [SELECTIONS[rule]])
    ((_, _, chosen),) = cells_tested_jointly(subject(made).tasks[0], SELECTIONS[rule])
    assert chosen == table.chosen["ERM"]["a", "b", "c"][0].choice.draw


def test_of_jobs_that_diverged_before_they_were_evaluated_nothing_can_be_told():
    diverged = [JobRecords(job.description, "diverged", []) for job in jobs("abc")]
    assert joint_leakage(subject(diverged)).verdict == "unknown"


def test_without_three_jointly_tested_domains_the_plan_is_printed():
    made = [
        made_job(0, [(10, {"15/out": 0.5, "0/in": 0.5})], tested=("0",), domains=("0", "15"), dataset="RotatedDigits")
    ]
    found = joint_leakage(subject(made))
    assert found.verdict == "unknown"
    ((_, command),) = found.commands
    assert "sweep RotatedDigits" in command and "--protocol=k-sources:3" in command


def test_the_plan_keeps_the_recipe_and_what_was_set_by_hand_and_names_the_files_of_pasted_classes():
    rows = [(10, {"15/out": 0.5, "0/in": 0.5})]
    made = made_job(0, rows, tested=("0",), domains=("0", "15"), dataset="RotatedDigits")
    recipe = {**made.description["recipe"], "name": "domainbed"}
    made.description.update(recipe=recipe, overrides={"batch_size": 16}, revision="source a")
    ((what, command),) = joint_leakage(subject([made])).commands
    assert "--recipe=domainbed" in command and "--set=batch_size=16" in command
    assert "(with --code and the file of" in what


def test_the_gap_is_oracle_minus_honest_and_exposed_only_beyond_chance():
    found = oracle_gap(subject(jobs("a")))
    (row,) = found.grids[0].data
    assert row["gap"] == pytest.approx(79.44 - 78.94) and row["n"] == 1
    assert found.verdict == "unknown" and "too few trials and test domains" in found.sentence  # one pair may be chance


def test_a_gap_that_rounds_to_nothing_has_no_minus(monkeypatch):
    (row,) = oracle_gap(subject(jobs("a"))).grids[0].data
    monkeypatch.setattr("shiftbed.audit.oracle._gaps", lambda *_: [{**row, "gap": -0.04}])
    found = oracle_gap(subject(jobs("a")))
    assert "+0.0 points" in found.sentence
    ((_, entries),) = found.grids[0].rows
    assert entries[2].text.startswith("+0.0")


def test_the_table_of_oracles_tells_over_how_many_trials_it_is():
    """Its means are over whole trials and those of gaps over pairs, so that one selection has two numbers."""
    rows = {"b": {"a/out": 0.5, "c/out": 0.5, "b/in": 0.9, "b/out": 0.9}, "c": {"a/out": 0.5, "b/out": 0.5}}
    rows["c"] |= {"c/in": 0.3, "c/out": 0.3}
    made = [
        made_job(0, [(10, rows[test])], tested=(test,), trial=trial, setting="one")
        for test, trial in (("b", 0), ("c", 0), ("b", 1))
    ]
    found = subject(made)
    ((_, entries),), (row,) = _oracle_grid(found).rows, _oracle_grid(found).data
    assert row["training-domain-validation"] == pytest.approx(60) and entries[-1].text == "1"
    assert row["n"] == {"training-domain-validation": 1, "oracle": 1, "oracle-laplace": 1, "oracle-thresholdout": 0}
    (gap,) = oracle_gap(found).grids[0].data
    assert gap["honest"] == pytest.approx(70) and gap["n"] == 3


def test_where_nothing_leaks_the_change_is_none():
    equal = {f"{name}/{part}": 0.5 for name in "abcde" for part in ("in", "out")}
    made = [made_job(draw, [(10, equal)], tested=tuple("abc"), domains=tuple("abcde")) for draw in (0, 1)]
    (grid,) = joint_leakage(subject(made)).grids
    assert [row["change"] for row in grid.data] == [None] * 3
    assert "nan" not in json.dumps(grid.data).lower() and "nan" not in grid_text(grid)


@pytest.mark.parametrize("n", [1, 2, 6, 12, 13, 14, 20, 60])
def test_the_smallest_p_is_that_of_equal_differences_and_nothing_is_below(n):
    assert smallest_p(n) == paired_permutation_test([1.0] * n, [0.0] * n).p
    random = np.random.default_rng(n)
    others = [paired_permutation_test(random.normal(2, 1, n), [0.0] * n).p for _ in range(20)]
    assert min(others) >= smallest_p(n)
    if n <= 12:
        assert smallest_p(n) == 2 / 2**n


def test_the_smallest_p_of_many_pairs_is_one_of_the_drawn_signs():
    assert smallest_p(60) == 1 / 10_000  # what was seen; no other draw of 60 signs is all alike


def with_gaps(trials, gaps):
    """Jobs of so many trials, in the first of which the draw that the oracle takes is better by 10 points."""
    made = []
    for trial in range(trials):
        better = 0.8 if trial < gaps else 0.7
        for draw, (test, validation) in enumerate(((better, 0.5), (0.7, 0.9))):
            splits = {"a/out": validation, "b/out": validation, "c/in": test, "c/out": test}
            made.append(made_job(draw, [(10, splits)], trial=trial))
    return made


def test_many_equal_gaps_are_more_than_chance():
    found = oracle_gap(subject(with_gaps(10, 10)))
    assert found.verdict == "exposed" and "+10.0 points" in found.sentence


@pytest.mark.parametrize(
    ("trials", "gaps", "verdict"), [(5, 5, "unknown"), (6, 6, "exposed"), (6, 1, "clear"), (2, 0, "clear")]
)
def test_too_few_pairs_leave_a_gap_unknown_and_not_clear(trials, gaps, verdict):
    assert oracle_gap(subject(with_gaps(trials, gaps))).verdict == verdict  # 2 ** (1 - n) is below 0.05 from n = 6
