from pathlib import Path

import pytest

from shiftbed.audit.findings import Audit, Finding
from shiftbed.report.page_words import advice, best_published, dominant, headline, listed, next_steps, verdict
from shiftbed.selection import SELECTIONS
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.sweeps.records import Status
from shiftbed.tables import make_tables
from tests.made_records import made_job

RULE = [SELECTIONS["training-domain-validation"]]
TRIALS = 6


def table_of(levels, trials=TRIALS, dataset="Toy"):
    """A table of algorithms with these accuracies on c; a trial adds a hundredth, for all of them alike."""
    jobs = [
        made_job(
            0, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": level + 0.01 * trial})],
            algorithm=name, trial=trial, dataset=dataset,
        )
        for name, level in levels.items()
        for trial in range(trials)
    ]  # fmt: skip
    (table,) = make_tables(jobs, RULE)
    return table


def test_a_leader_is_better_only_if_chance_is_unlikely_with_all_comparisons_allowed_for():
    two = verdict(table_of({"ERM": 0.5, "CORAL": 0.6}))
    assert two.leader == "CORAL" and two.better  # six pairs of one sign: p = 2 / 2⁶ = 0.031
    assert "+10.0 points against ERM: more than chance would give (p = 0.031 with 1 comparison" in two.sentence
    three = verdict(table_of({"ERM": 0.5, "CORAL": 0.6, "IRM": 0.4}))
    assert three.leader == "CORAL" and not three.better
    assert "which chance explains as well (p = 0.062 with 2 comparisons allowed for, 6 pairs)" in three.sentence


def test_the_leader_is_named_with_its_number_and_doubt():
    # 60, 61, …, 65: mean 62.5, standard error sqrt(3.5 / 6) = 0.76
    assert "Toy: CORAL is first with 62.5 ± 0.8 % (n = 6)" in verdict(table_of({"ERM": 0.5, "CORAL": 0.6})).sentence


def test_erm_in_front_or_missing_is_said():
    assert "nothing is better than plain ERM" in verdict(table_of({"ERM": 0.6, "CORAL": 0.5})).sentence
    alone = verdict(table_of({"CORAL": 0.5}, trials=1))
    assert not alone.better and "without ERM beside it, that says little" in alone.sentence
    assert "±" not in alone.sentence  # one trial has no standard error


def test_the_headline_names_who_is_better_and_where():
    better = verdict(table_of({"ERM": 0.5, "CORAL": 0.6}, dataset="One"))
    other = verdict(table_of({"ERM": 0.5, "IRM": 0.6}, dataset="Two"))
    unsure = verdict(table_of({"ERM": 0.5, "IRM": 0.6}, dataset="Three", trials=2))
    assert headline([better]) == "CORAL is better than ERM by more than chance."
    assert headline([better, other]) == "Better than ERM by more than chance: CORAL on One and IRM on Two."
    assert headline([better, unsure]) == "Better than ERM by more than chance: CORAL on One."
    assert headline([unsure]) == "No algorithm is better than ERM by more than chance here."


@pytest.mark.parametrize(
    ("diversity", "correlation", "kind"),
    [
        ((0.6, (0.5, 0.7)), (0.1, (0.05, 0.15)), "diversity"),
        ((0.1, (0.05, 0.15)), (0.6, (0.5, 0.7)), "correlation"),
        ((0.3, (0.1, 0.5)), (0.2, (0.05, 0.35)), None),  # the intervals overlap
        ((0.04, (0.03, 0.05)), (0.0, (0.0, 0.01)), None),  # little of both
        ((0.3, None), (0.2, None), "diversity"),
    ],
)
def test_a_kind_of_shift_dominates_only_beyond_its_interval(diversity, correlation, kind):
    one = ShiftEstimate("diversity", diversity[0], interval=diversity[1])
    assert dominant(one, ShiftEstimate("correlation", correlation[0], interval=correlation[1])) == kind


def test_published_winners_are_those_of_the_papers_tables():
    assert best_published("diversity") == (
        "under diversity shift, OoD-Bench scored MMD (+2), RSC (+2) and SagNet (+1) above ERM, of 16 algorithms"
    )
    assert "GroupDRO (+1) and VREx (+1)" in best_published("correlation")


def test_advice_joins_the_shift_the_papers_and_the_sweep():
    point = (ShiftEstimate("diversity", 0.0, interval=(0, 0.01)), ShiftEstimate("correlation", 0.6, interval=(0.5, 0.7)))
    said = advice("Toy", point, [verdict(table_of({"ERM": 0.5, "CORAL": 0.6}))])
    assert said.startswith("Toy: correlation shift dominates; the same inputs go with other labels. Under correlation")
    assert said.endswith("In this sweep CORAL is first.")
    unsure = advice("Toy", point, [verdict(table_of({"ERM": 0.5, "CORAL": 0.6}, trials=2))])
    assert unsure.endswith("In this sweep CORAL is first, not by more than chance over plain ERM.")


def test_without_a_measurement_the_card_is_believed_or_nothing_said():
    assert "diversity shift dominates, as OoD-Bench measured it" in advice("PACS", None, [])
    assert advice("Toy", None, []) is None
    small = ShiftEstimate("diversity", 0.01)
    assert "little of either kind" in advice("Toy", (small, small), [])


def test_what_to_do_next_begins_with_what_is_pressing():
    table = verdict(table_of({"ERM": 0.5, "CORAL": 0.6}, trials=2))
    alarm = Audit("DIR", 1, [Finding("duplicates", "alarm", "…")])
    status = Status({}, {}, {"x": "no memory"}, None)
    steps = next_steps(Path("a folder"), [table], status, alarm, [], False)
    words = [what for what, _ in steps]
    assert "1 job failed" in words[0] and "duplicates" in words[1] and "Measure how far apart" in words[2]
    assert dict(steps)["Explain what the audit found (duplicates) before showing the numbers."] == (
        "shiftbed audit 'a folder'"
    )
    calm = next_steps(Path("d"), [table], Status({}, {}, {}, None), Audit("d", 1, []), ["Toy"], True)
    assert [command for _, command in calm] == ["--trials 5", "shiftbed best d --out model"]


def test_names_are_listed_as_a_person_lists_them():
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
