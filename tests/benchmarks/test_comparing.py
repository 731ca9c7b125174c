"""Our numbers beside the paper's: what is looked up, and when a difference is printed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shiftbed.benchmarks import find, narrowed
from shiftbed.benchmarks.comparing import beside, compare, differing, paper_board, ranks_beside, scores_beside
from shiftbed.benchmarks.spec import parse
from shiftbed.benchmarks.views import numbers
from shiftbed.errors import ShiftbedError
from shiftbed.selection import SELECTIONS
from shiftbed.tables import Leaderboard, as_text, make_tables
from shiftbed.tables.grids import grid_text
from shiftbed.tables.missing import MissingJob
from tests.made_records import made_job

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
RECIPE = {
    "name": "domainbed",
    "steps": 4000,
    "evaluate_every": 300,
    "network": "resnet50",
    "initial_weights": "resnet50.tv_in1k",
}


def pacs_table(selection="training-domain-validation", algorithms=("ERM",), trials=3, draws=20, recipe=RECIPE, **about):
    """Every model has 80.0 % in trial 0, 81.0 in trial 1, 82.0 in trial 2, on every test domain."""
    jobs = []
    for tested in DOMAINS:
        for algorithm in algorithms:
            for trial in range(trials):
                values = {f"{name}/{part}": 0.8 + trial / 100 for name in DOMAINS for part in ("in", "out")}
                jobs += [
                    made_job(
                        draw,
                        [(4000, values)],
                        tested=(tested,),
                        domains=DOMAINS,
                        algorithm=algorithm,
                        trial=trial,
                        dataset="PACS",
                        recipe=recipe,
                        **about,
                    )
                    for draw in range(draws)
                ]
    return make_tables(jobs, [SELECTIONS[selection]])[0]


DOMAINBED = find("domainbed")
PACS = next(part for part in DOMAINBED.parts if part.dataset == "PACS")


def rows_of(grid):
    return {(row["algorithm"], row["domain"]): row for row in grid.data}


def test_the_difference_is_printed_where_both_experiments_are_the_same():
    grid = compare(DOMAINBED, PACS, pacs_table())
    row = rows_of(grid)["ERM", "cartoon"]
    # Appendix B.4 prints 77.9 ± 1.3; ours is 81 with a deviation of 1 over 3 trials.
    assert (row["published"], row["published_spread"], row["differs"]) == (77.9, 1.3, {})
    assert row["ours"] == pytest.approx(81) and row["difference"] == pytest.approx(81 - 77.9)
    text = as_text(grid)
    assert "+3.1 ±1.4" in text  # √(1/3 + 1.3²) = 1.42
    assert "No difference" not in text


def test_oracle_numbers_are_marked_the_paper_s_too():
    lines = as_text(compare(DOMAINBED, PACS, pacs_table("oracle"))).splitlines()
    shown = [line for line in lines if line.startswith(("ERM", "  paper"))]
    assert len(shown) == 4  # five columns of text continue below
    assert all(cell.endswith("†") for line in shown for cell in line.split()[1:] if not cell.startswith("±"))


def test_the_average_is_that_of_the_paper_s_main_table():
    row = rows_of(compare(DOMAINBED, PACS, pacs_table()))["ERM", ""]
    assert (row["published"], row["published_in"]) == (85.7, "domainbed/table-4")


@pytest.mark.parametrize(
    "change, fact, words",
    [
        ({"recipe": {**RECIPE, "steps": 300}}, "steps", "300 here, 4000 in the paper"),
        ({"recipe": {**RECIPE, "network": "resnet18"}}, "backbone", "resnet18 here, resnet50 in the paper"),
        ({"recipe": {**RECIPE, "initial_weights": None}}, "weights", "random here, resnet50.tv_in1k in the paper"),
        ({"trials": 2}, "trials", "2 here, 3 in the paper"),
        ({"draws": 5}, "draws", "5 here, 20 in the paper"),
        ({"version": 2}, "version", "2 here, 1 in the paper"),
    ],
)
def test_no_difference_is_printed_where_something_differs(change, fact, words):
    grid = compare(DOMAINBED, PACS, pacs_table(**change))
    assert all(row["difference"] is None and row["published"] is not None for row in grid.data)
    assert grid.data[0]["differs"] == {fact: words}
    text = as_text(grid)
    assert f"No difference is shown: {fact}: {words}." in " ".join(text.split())
    assert f"paper, other {fact}" in text


def test_a_selection_that_the_paper_does_not_have_has_no_published_number():
    grid = compare(DOMAINBED, PACS, pacs_table("worst-domain-validation"))
    assert all(row["published"] is None and row["difference"] is None for row in grid.data)


def test_numbers_that_a_paper_took_from_elsewhere_never_compare():
    whole = find("domainbed-v2-supervised")
    part = next(part for part in whole.parts if part.dataset == "PACS")
    grid = compare(whole, part, pacs_table("training-domain-validation-pooled"))
    assert "DomainBed's leaderboard" in grid.data[0]["differs"]["source"]


def test_a_row_with_fewer_trials_in_one_cell_has_no_difference():
    whole, fewer = pacs_table(trials=3), pacs_table(trials=1)
    assert all(row["difference"] is not None for row in compare(DOMAINBED, PACS, whole).data if row["published"])
    name, column = "ERM", next(iter(whole.chosen["ERM"]))
    chosen = {**whole.chosen, name: {**whole.chosen[name], column: fewer.chosen[name][column]}}
    mixed = compare(DOMAINBED, PACS, replace(whole, chosen=chosen))
    assert all(row["difference"] is None for row in mixed.data if row["row"] == name)


def test_what_a_paper_does_not_state_is_not_known_to_be_equal():
    whole = find("nico-table-4")
    part = next(part for part in whole.parts if part.dataset == "PACS")
    differs = compare(whole, part, pacs_table()).data[0]["differs"]
    assert differs["selection"] == "training-domain-validation here, not stated in the paper"


def test_facts_that_are_equal_do_not_differ():
    assert differing({"steps": 1, "weights": None}, {"steps": 1, "weights": None}) == {}


def test_a_successor_stands_for_a_dataset_that_can_no_longer_be_had():
    asked = narrowed(DOMAINBED, ["TerraIncognita-24330"])
    assert [(part.name, part.dataset) for part in asked.parts] == [("TerraIncognita", "TerraIncognita-24330")]


def test_the_paper_s_leaderboard_has_its_averages():
    table = pacs_table(algorithms=("CORAL", "ERM", "IRM"))
    board = paper_board(DOMAINBED, Leaderboard.of([table]), [(PACS, table)])
    # Table 4, training-domain validation, PACS.
    assert board.averages == {"ERM": 85.7, "CORAL": 86.0, "IRM": 84.4}
    changes = {row["algorithm"]: row["change_of_rank"] for row in Leaderboard.of([table]).grid(board).data}
    assert changes == {"CORAL": 0, "ERM": 1, "IRM": 2}  # here all three are equal


def test_changes_of_rank_say_in_what_the_experiments_differ():
    same = pacs_table(algorithms=("CORAL", "ERM"))
    assert not any(
        "experiment" in note for note in ranks_beside(DOMAINBED, Leaderboard.of([same]), [(PACS, same)]).notes
    )
    other = pacs_table(algorithms=("CORAL", "ERM"), trials=1, draws=3)
    notes = ranks_beside(DOMAINBED, Leaderboard.of([other]), [(PACS, other)]).notes
    assert "Not the paper's experiment: other draws, trials." in notes


def test_ranking_scores_stand_beside_the_paper_s():
    for name, kind in (("ood-bench/table-1", "diversity"), ("ood-bench/table-2", "correlation")):
        grid = scores_beside(Leaderboard.published(name), [name], "DIR")
        assert grid.columns[-1] == "paper" and len(grid.data) == 16
        assert all(row[kind] == row["published"] for row in grid.data), "from the paper's accuracies come its scores"
    table = pacs_table(algorithms=("ERM", "RSC", "MLDG"))
    grid = scores_beside(Leaderboard.of([table]), ["ood-bench/table-1"], "DIR")
    assert "paper" not in grid.columns, "its scores are of four datasets, not of one"
    assert "The paper's scores are of Camelyon17, OfficeHome, PACS, TerraIncognita together." in grid.notes
    assert scores_beside(Leaderboard.of([table]), ["domainbed/table-4"], "DIR") is None
    assert scores_beside(Leaderboard.of([pacs_table(trials=1)]), ["ood-bench/table-1"], "DIR") is None


def fixed_table(selection="training-domain-validation"):
    """One model tested on two domains together: 60 % of 10 images of c, 80 % of 30 of d."""
    splits = [
        {"name": "a/in", "domain": "a", "part": "in", "role": "train"},
        {"name": "a/out", "domain": "a", "part": "out", "role": "validation"},
        {"name": "c/all", "domain": "c", "part": "all", "role": "test"},
        {"name": "d/all", "domain": "d", "part": "all", "role": "test"},
    ]
    rows = [(10, {"a/out": 0.5, "c/all": 0.7, "d/all": 0.9}), (20, {"a/out": 0.9, "c/all": 0.6, "d/all": 0.8})]
    job = made_job(0, rows, tested=("c", "d"), splits=splits, counts={"c/all": 10, "d/all": 30})
    return make_tables([job], [SELECTIONS[selection]])[0]


def shown(table, view):
    return {number.column: number.estimate.mean for number in numbers(table, view) if number.estimate}


def test_the_view_of_spread_has_nico_s_three_numbers():
    # Mean 70; 60·¼ + 80·¾ = 75; deviation 10 with the divisor of its tables.
    assert shown(fixed_table(), "spread") == pytest.approx({"c": 60, "d": 80, "Avg": 70, "Ova": 75, "Std": 10})


def test_sets_of_domains_that_are_tested_by_turns_have_a_row_each_in_the_view_of_spread():
    tested = {("a", "b"): (0.2, 0.4), ("c", "d"): (0.6, 0.8), ("e",): (0.9,)}
    jobs = []
    for some, values in tested.items():
        rows = {f"{name}/{part}": 0.5 for name in "abcde" for part in ("in", "out")}
        rows |= {f"{name}/in": value for name, value in zip(some, values, strict=True)}
        jobs.append(made_job(0, [(10, rows)], tested=some, domains="abcde", setting="one"))
    (table,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]])
    found = {(one.row, one.column): one.estimate.mean for one in numbers(table, "spread")}
    assert found["ERM, a, b", "Avg"] == pytest.approx(30) and found["ERM, c, d", "Avg"] == pytest.approx(70)
    assert found["ERM, c, d", "Std"] == pytest.approx(10)
    assert found["ERM", "e"] == pytest.approx(90), "one domain has no deviation, and needs none"
    assert {column for row, column in found if row == "ERM"} == {"e"}
    averages = [one.labels["domain"] for one in numbers(table, "spread") if one.column == "Avg"]
    assert averages == ["a, b", "c, d"], "the paper's average is over all of its domains"


def test_the_view_of_variance_compares_the_chosen_epoch_with_the_best_one():
    # Chosen 60 and 80, best 70 and 90: a gap of 10; over the two records deviations of √50.
    assert shown(fixed_table(), "variance") == pytest.approx({"epoch": 50**0.5, "gap": 10})


def test_what_test_labels_are_needed_for_is_marked_in_every_view():
    """NICO++'s gap, and the rows of an oracle that sees K domains; the paper's too."""
    whole = find("nico-table-4")
    grid = compare(whole, whole.parts[-1], fixed_table())
    (ours, theirs) = ([entry.text for entry in entries] for _, entries in grid.rows)
    assert [text.endswith("†") for text in ours] == [False, False, True]  # epoch, seed and gap
    assert [text.endswith("†") for text in theirs] == [False, False, True]
    assert [row["oracle"] for row in grid.data] == [False, False, True]
    leak = find("domainbed-v2-table-4")
    table = make_tables(nico_block(), [SELECTIONS["training-domain-validation-pooled"]])[0]
    for marked in (grid, compare(leak, leak.parts[1], table)):
        assert sum(note.startswith("† Oracle: chosen with the test domain's labels.") for note in marked.notes) == 1


@pytest.mark.parametrize(("view", "averages"), [("spread", {"Avg", "Ova", "Std"}), ("groups", {"All", "g"})])
def test_a_row_that_lacks_jobs_has_no_number_over_several_domains_in_any_view(view, averages, monkeypatch):
    monkeypatch.setattr("shiftbed.tables.spreads.card", lambda _: SimpleNamespace(clusters={"g": ["c", "d"]}))
    table = replace(fixed_table(), missing=(MissingJob("ERM", ("c", "d"), 0, 1),)).whole_trials()
    assert "Jobs are missing of ERM: no average." in table.notes()
    assert not averages & set(shown(table, view)) and averages <= set(shown(fixed_table(), view))


def nico_block():
    """Draws A, B, C of the published block: C is best on validation."""
    domains = ("autumn", "rock", "dim")
    splits = [{"name": "grass/out", "domain": "grass", "part": "out", "role": "validation"}]
    splits += [{"name": f"{name}/all", "domain": name, "part": "all", "role": "test"} for name in domains]
    draws = [(0.90, (79.44, 79.58, 71.42)), (0.91, (78.40, 79.08, 72.58)), (0.95, (78.94, 79.26, 71.94))]
    return [
        made_job(
            draw,
            [(10, {"grass/out": score, **{f"{n}/all": v / 100 for n, v in zip(domains, values, strict=True)}})],
            tested=domains,
            splits=splits,
            dataset="NICO++-public",
        )
        for draw, (score, values) in enumerate(draws)
    ]


def test_the_view_of_leakage_reproduces_a_published_block_to_the_last_digit():
    whole = find("domainbed-v2-table-4")
    table = make_tables(nico_block(), [SELECTIONS["training-domain-validation-pooled"]])[0]
    grid = compare(whole, whole.parts[1], table)
    compared = [row for row in grid.data if row["published"] is not None]
    assert len(compared) == 4 * 4 + 3  # three domains and their mean for no oracle and K = 1, 2, 3; and three leakages
    for row in compared:
        assert row["ours"] == pytest.approx(row["published"], abs=0.006), row


def test_the_view_of_leakage_counts_the_trials_that_the_table_counts():
    first, again = nico_block(), nico_block()
    for job in again:
        job.description.update(id=f"{job.id}, again", trial=1)
        job.rows[0]["splits"]["autumn/all"]["accuracy"] = 0.5
    rule = [SELECTIONS["training-domain-validation-pooled"]]
    table = make_tables([*first, *again], rule)[0]
    lost = MissingJob("ERM", ("autumn", "rock", "dim"), 1, 3)
    whole = replace(table, missing=(lost,)).whole_trials()
    assert shown(whole, "leakage") == shown(make_tables(first, rule)[0], "leakage") != shown(table, "leakage")


def test_the_view_of_leakage_shows_rows_with_values_set_by_hand():
    plain, by_hand = nico_block(), nico_block()
    for job in by_hand:
        job.description.update(id=f"{job.id}, by hand", own_overrides={"lr": 0.5})
        job.rows[0]["splits"]["autumn/all"]["accuracy"] = 0.5
    table = make_tables([*plain, *by_hand], [SELECTIONS["training-domain-validation-pooled"]])[0]
    found = {one.row: one.estimate for one in numbers(table, "leakage") if one.column == "Avg"}
    alone = {one.row: one.estimate for one in numbers(make_tables(plain, [table.selection])[0], "leakage")}
    assert all(found.values()) and len(found) == 2 * len(alone)
    other = next(row for row in found if "lr = 0.5" in row)
    assert found[other].mean < found[other.replace(" (lr = 0.5)", "")].mean


MINE = """
name: mine
version: 1
kind: sweep
summary: Mine
every: {recipe: quick}
parts:
  - {datasets: [ColoredDigits, RotatedDigits], algorithms: [ERM]}
"""


def test_anyone_s_file_is_a_benchmark():
    assert [part.name for part in parse(MINE, "mine.yaml").parts] == ["ColoredDigits", "RotatedDigits"]


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("kind: sweep", "kind: sweeps", "must be one of sweep, shift, accuracy"),
        ("algorithms: [ERM]", "algorithms: [ERN]", "There is no algorithm 'ERN'"),
        ("recipe: quick", "recipe: quik", "There is no recipe 'quik'"),
        ("algorithms: [ERM]", "algorithms: [ERM], protocol: leave-none", "There is no protocol 'leave-none'"),
        ("algorithms: [ERM]", "algorithms: [ERM], selections: [best]", "There is no selection 'best'"),
        ("algorithms: [ERM]", "algorithms: [ERM], steps: 5", "has 'steps', which is no field there; remove it"),
        ("RotatedDigits", "ColoredDigits", "Two parts of benchmark 'mine' are called ColoredDigits"),
        ("RotatedDigits", "RotatedDigit", "There is no dataset 'RotatedDigit'"),
        ("algorithms: [ERM]", "algorithms: [ERM], published: {tables: [a/b]}", "There is no published table 'a/b'"),
        ("parts:", "pieces:", "needs a list called parts"),
        ("name: mine", "name: [", "is not YAML"),
        ("version: 1", "version: 0", "wrong 'version': it should be greater than or equal to 1"),
        ("{recipe: quick}", "{recipe: quick, search: {draws: 0}}", "wrong 'search.draws'"),
        ("{recipe: quick}", "", "mine.yaml needs 'recipe'"),
        ("{recipe: quick}", "quick", "every and each of its parts must be names with values"),
        ("  - {datasets: [ColoredDigits, RotatedDigits], algorithms: [ERM]}", "  - PACS", "each of its parts must be"),
        ("[ColoredDigits, RotatedDigits]", "ColoredDigits", "wrong 'datasets': it must be a list, as in [ColoredDi"),
        ("kind: sweep", "kind: [sweep]", "must be one of sweep, shift, accuracy"),
    ],
)
def test_a_wrong_file_gets_one_sentence(old, new, words):
    with pytest.raises(ShiftbedError, match=r"^mine\.yaml") as caught:
        parse(MINE.replace(old, new), "mine.yaml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_which_nothing_was_measured_says_so():
    benchmark = find("nico-table-1")
    said = grid_text(beside(benchmark, benchmark.parts[1], "title", "ours and the paper's", [], {}))
    assert said.startswith("title\nnothing of it was measured here\n")
