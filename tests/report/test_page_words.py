from pathlib import Path

import pytest

from shiftbed.audit.findings import Audit, Finding
from shiftbed.report.page_shift import advice, best_published
from shiftbed.report.page_words import headline, listed, next_steps, verdict, verdicts
from shiftbed.selection import SELECTIONS
from shiftbed.shift.estimates import WIDE, ShiftEstimate, dominant
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
    assert two.leader == "CORAL" and two.better == ("CORAL",)  # six pairs of one sign: p = 2 / 2⁶ = 0.031
    assert "+10.0 points against ERM: more than chance would give (p = 0.031 with 1 comparison" in two.sentence
    three = verdict(table_of({"ERM": 0.5, "CORAL": 0.6, "IRM": 0.4}))
    assert three.leader == "CORAL" and not three.better
    assert "from too few pairs to tell it from chance (p = 0.062 with 2 comparisons" in three.sentence
    seven = verdict(table_of({"ERM": 0.5, "CORAL": 0.6, "IRM": 0.4}, trials=7))
    assert seven.better == ("CORAL",)  # 2 × 2 / 2⁷ = 0.031


def test_a_difference_that_changes_its_sign_is_chance():
    levels = {"ERM": 0.5, "CORAL": 0.5}
    jobs = [
        made_job(0, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": level + wave})], algorithm=name, trial=trial)
        for name, level in levels.items()
        for trial in range(8)
        for wave in [(0.02 if trial % 2 else -0.015) if name == "CORAL" else 0.0]
    ]
    (table,) = make_tables(jobs, RULE)
    found = verdict(table)
    assert found.leader == "CORAL" and not found.better
    assert "which chance explains as well" in found.sentence


def test_whoever_is_better_is_named_though_another_leads():
    jobs = [
        made_job(0, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": level})], algorithm=name, trial=trial)
        for trial in range(8)
        for name, level in (("ERM", 0.5), ("CORAL", 0.52), ("IRM", 0.9 if trial < 2 else 0.45))
    ]
    (table,) = make_tables(jobs, RULE)
    found = verdict(table)
    assert found.leader == "IRM" and found.better == ("CORAL",)
    assert headline([found]) == "CORAL is better than ERM by more than chance."


def test_a_leader_without_a_trial_in_common_with_erm_is_not_compared():
    """As where all draws of the one diverged in one trial, and those of the other in the other."""
    jobs = [
        made_job(0, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": level})], algorithm=name, trial=trial)
        for name, level, trial in (("ERM", 0.5, 0), ("CORAL", 0.6, 1))
    ]
    (table,) = make_tables(jobs, RULE)
    found = verdict(table)
    assert found.leader == "CORAL" and "shares no trial with ERM" in found.sentence
    assert headline([found]) == "There are too few trials to tell any algorithm from ERM."


def test_the_leader_is_named_with_its_number_and_doubt():
    # 60, 61, …, 65: mean 62.5, standard error sqrt(3.5 / 6) = 0.76
    assert "Toy: CORAL is first with 62.5 ± 0.8 % (n = 6)" in verdict(table_of({"ERM": 0.5, "CORAL": 0.6})).sentence


def test_erm_in_front_or_missing_is_said():
    assert "nothing is better than plain ERM" in verdict(table_of({"ERM": 0.6, "CORAL": 0.5})).sentence
    alone = verdict(table_of({"CORAL": 0.5}, trials=1))
    assert headline([alone]) == "There is no ERM to compare with."
    assert not alone.better and "without ERM beside it, that says little" in alone.sentence
    assert "±" not in alone.sentence  # one trial has no standard error


@pytest.mark.parametrize("trials", [1, 6])
def test_of_one_algorithm_alone_no_comparison_is_told(trials):
    alone = verdict(table_of({"ERM": 0.6}, trials=trials))
    assert headline([alone]) == "ERM alone was trained: there is nothing to compare it with."
    assert "ERM is alone with 6" in alone.sentence and "better" not in alone.sentence
    steps = next_steps(Path("d"), [alone], Status({}, {}, {}, None), Audit("d", 1, []), ["Toy"], True)
    assert not [words for words, _ in steps if "difference" in words]
    # A card's kind of shift is told, and of the sweep nothing: neither ERM alone nor CORAL alone beat anything.
    for name in ("ERM", "CORAL"):
        said = advice("PACS", None, [verdict(table_of({name: 0.6}, dataset="PACS", trials=trials))])
        assert said.endswith("of 16 algorithms.")


def test_algorithms_whose_numbers_print_alike_are_level_and_erm_stands_first_among_them():
    found = verdict(table_of({"ERM": 0.5, "CORAL": 0.5002, "IRM": 0.4}, trials=1))
    assert found.leader == "ERM"
    assert found.sentence == "Toy: ERM and CORAL are level with 50.0 % (n = 1); nothing is better than plain ERM."
    steps = next_steps(Path("d"), [found], Status({}, {}, {}, None), Audit("d", 1, []), ["Toy"], True)
    assert "--trials=2" in dict(steps)["Toy: more trials would tell a difference from chance."]


def test_the_headline_names_who_is_better_and_where():
    better = verdict(table_of({"ERM": 0.5, "CORAL": 0.6}, dataset="One"))
    other = verdict(table_of({"ERM": 0.5, "IRM": 0.6}, dataset="Two"))
    unsure = verdict(table_of({"ERM": 0.5, "IRM": 0.6}, dataset="Three", trials=2))
    assert headline([better]) == "CORAL is better than ERM by more than chance."
    assert headline([better, other]) == "Better than ERM by more than chance: CORAL on One and IRM on Two."
    assert headline([better, unsure]) == "Better than ERM by more than chance: CORAL on One."
    assert headline([unsure]) == "There are too few trials to tell any algorithm from ERM."
    worse = verdict(table_of({"ERM": 0.5, "IRM": 0.4}))
    assert headline([worse, unsure]) == "No algorithm is better than ERM by more than chance here."


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
    point = (
        ShiftEstimate("diversity", 0.0, interval=(0, 0.01)),
        ShiftEstimate("correlation", 0.6, interval=(0.5, 0.7)),
    )
    said = advice("Toy", point, [verdict(table_of({"ERM": 0.5, "CORAL": 0.6}))])
    assert said.startswith("Toy: correlation shift dominates; the same inputs go with other labels. Under correlation")
    assert said.endswith("In this sweep CORAL is first.")
    level = advice("Toy", point, [verdict(table_of({"ERM": 0.5, "CORAL": 0.5}))])
    assert level.endswith("In this sweep nothing is better than plain ERM.")
    unsure = advice("Toy", point, [verdict(table_of({"ERM": 0.5, "CORAL": 0.6}, trials=2))])
    assert unsure.endswith("In this sweep CORAL is first, though not by more than chance above ERM.")


def test_without_a_measurement_the_card_is_believed_or_nothing_said():
    assert "diversity shift dominates, as its card says" in advice("PACS", None, [])
    assert advice("Toy", None, []) is None
    small = ShiftEstimate("diversity", 0.01)
    assert "little of either kind" in advice("Toy", (small, small), [])
    wide = ShiftEstimate("correlation", 0.5, interval=(0.2, 0.8), notes=(f"the interval is {WIDE}",))
    assert advice("Toy", (small, wide), []) == f"Toy: an interval is {WIDE}."


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
    more = "shiftbed sweep Toy --algorithms=CORAL,ERM --test=c --draws=1 --trials=4 --recipe=quick --steps=30 --out=DIR"
    assert [command for _, command in calm] == [more, "shiftbed best d --out model"]


def test_names_are_listed_as_a_person_lists_them():
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_the_commands_to_come_have_what_they_need():
    def offered(dataset, algorithm="CORAL"):
        table = verdict(table_of({"ERM": 0.5, algorithm: 0.6}, trials=2, dataset=dataset))
        return next_steps(Path("d"), [table], Status({}, {}, {}, None), Audit("d", 1, []), [], False)

    shifts = [command for _, command in offered("PACS") if " shift " in command]
    assert shifts == ["shiftbed shift PACS --size=64 --out d/shift"], "its images differ in size"
    assert "shiftbed shift ColoredDigits --out d/shift" in dict(offered("ColoredDigits")).values()
    words = {command: what for what, command in offered("ColoredDigits", "PastedOne")}
    assert words["shiftbed best d --out model"].endswith("to be loaded (with --code and the file of PastedOne).")
    assert "--code" not in " ".join(what for what, _ in offered("ColoredDigits"))


def test_tables_of_one_dataset_are_told_apart_and_references_are_no_results():
    def jobs(kind, better):
        return [
            made_job(
                0, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": level})], algorithm=name, trial=trial, setting=kind,
                task={"kind": kind, "domains": ["c"], "test": ["c"], "compositional": False},
            )
            for name, level in {"ERM": 0.5, better: 0.6}.items()
            for trial in range(TRIALS)
        ]  # fmt: skip

    own, reference = jobs("leave-out", "CORAL"), jobs("target-trained", "IRM")
    (found,) = verdicts(make_tables([*own, *reference], RULE))
    assert headline([found]) == "CORAL is better than ERM by more than chance."
    assert found.sentence.startswith("Toy: CORAL is first")
    (only,) = verdicts(make_tables(reference, RULE))
    assert only.leader == "IRM", "of references alone something is said"
    both = verdicts(make_tables([*own, *jobs("flexible", "IRM")], RULE))
    assert len({one.sentence.partition(": ")[0] for one in both}) == 2
    assert sum("flexible-random" in one.name for one in both) == 1
    point = (
        ShiftEstimate("diversity", 0.6, interval=(0.5, 0.7)),
        ShiftEstimate("correlation", 0.0, interval=(0, 0.01)),
    )
    assert "flexible-random, IRM is first." in advice("Toy", point, both)
