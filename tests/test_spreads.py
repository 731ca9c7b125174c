"""Spreads over domains, groups, checkpoints and trials against NICO++'s tables and numbers computed by hand."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from shiftbed import published
from shiftbed.cli import app
from shiftbed.data import card
from shiftbed.errors import ShiftbedError
from shiftbed.report.compare import Comparison, _cells
from shiftbed.selection import SELECTIONS
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.matrix import Cell, ShiftMatrix
from shiftbed.shift.near_far import near_and_far
from shiftbed.sweeps.plan import Request, plan
from shiftbed.tables import (
    domain_summary,
    group_grid,
    improvements,
    make_tables,
    read_groups,
    render,
    spread_grid,
    thirds,
    variance_grid,
    view_tables,
)
from shiftbed.training.store import write_json
from tests.made_records import leave_out, made_folder, made_job


def test_nico_s_printed_deviations_divide_by_the_number_of_domains():
    domains, printed = defaultdict(dict), {}
    for cell in published.table("nico-plus-plus/table-2"):
        row = (cell.algorithm, cell.setting)
        if cell.domain and cell.measure == "accuracy":
            domains[row][cell.domain] = cell.mean
        if cell.measure == "standard deviation over domains":
            printed[row] = cell.mean
    assert len(printed) == 34
    for row, accuracies in domains.items():
        counts = dict.fromkeys(accuracies, 1)
        assert domain_summary(accuracies, counts, ddof=0)["deviation"] == pytest.approx(printed[row], abs=0.0101)
        assert domain_summary(accuracies, counts)["deviation"] > printed[row] + 0.02, "the formula divides by K - 1"


def test_average_overall_and_deviation_by_hand():
    found = domain_summary({"a": 60.0, "b": 80.0}, {"a": 30, "b": 10})
    assert found == {"average": 70, "overall": 65, "deviation": pytest.approx(math.sqrt(200)), "worst": 60}
    with pytest.raises(ShiftbedError, match="One test domain has no deviation"):
        domain_summary({"a": 60.0}, {"a": 30})


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6), st.integers(1, 50))
def test_with_equal_counts_average_and_overall_are_the_same(values, count):
    accuracies = {str(i): value for i, value in enumerate(values)}
    found = domain_summary(accuracies, dict.fromkeys(accuracies, count))
    assert found["overall"] == pytest.approx(found["average"])
    assert min(values) - 1e-9 <= found["overall"] <= max(values) + 1e-9
    if len(set(values)) == 1:
        assert found["deviation"] == pytest.approx(0, abs=1e-9)


def many_domains(algorithm, trial, accuracies, counts=None, rows=()):
    """A job that trains on s and tests all others together."""
    tested = tuple(accuracies)
    names = {f"{name}/in": value for name, value in accuracies.items()}
    held_out = {f"{name}/out": value for name, value in accuracies.items()}
    return made_job(
        0,
        [*rows, (30, {"s/out": 0.9, **names, **held_out})],
        tested=tested,
        domains=("s", *tested),
        algorithm=algorithm,
        trial=trial,
        counts={f"{name}/in": count for name, count in (counts or {}).items()},
    )


def table_of(jobs, rule="training-domain-validation"):
    (table,) = make_tables(jobs, [SELECTIONS[rule]])
    return table


def test_a_table_of_one_model_on_several_domains():
    counts = {"p": 30, "q": 10}
    jobs = [many_domains("ERM", 0, {"p": 0.6, "q": 0.8}, counts), many_domains("ERM", 1, {"p": 0.7, "q": 0.7}, counts)]
    (grid,) = spread_grid(table_of(jobs))
    (row,) = grid.data
    assert (row["p"], row["q"], row["n"]) == (pytest.approx(65), pytest.approx(75), 2)
    assert row["overall"] == pytest.approx((65 + 70) / 2) and row["average"] == pytest.approx(70)
    assert row["deviation"] == pytest.approx(math.sqrt(200) / 2), "of each model, then over trials"
    assert "divisor K − 1, as in NICO++'s formula; its tables divide by K" in " ".join(render([grid]).split())
    (as_printed,) = spread_grid(table_of(jobs), ddof=0)
    assert as_printed.data[0]["deviation"] == pytest.approx(10 / 2)


def test_models_tested_on_one_domain_have_no_deviation():
    with pytest.raises(ShiftbedError, match="tested on one domain each"):
        spread_grid(table_of([made_job(0, [(30, {"a/out": 1, "b/out": 1, "c/in": 1})])]))


def test_a_domain_with_the_name_of_a_number_over_domains_keeps_its_own():
    domains = ("a", "average", "n", "overall")
    row = (30, {"a/out": 0.9, "average/in": 0.2, "n/in": 0.4, "overall/in": 0.9})
    (grid,) = spread_grid(table_of([made_job(0, [row], tested=domains[1:], domains=domains)]))
    ((_, entries),) = grid.rows
    assert list(grid.columns[:3]) == list(domains[1:])
    assert [entry.text for entry in entries[:5]] == ["20.00", "40.00", "90.00", "50.00", "50.00"]
    (said,) = grid.data
    assert (said["domain average"], said["average"], said["domain n"], said["n"]) == pytest.approx((20, 50, 40, 1))


def test_of_a_domain_called_average_two_sweeps_differ_too():
    def cells(accuracy):
        rows = [(30, {"a/out": 0.9, "q/out": 0.9, "average/in": accuracy})]
        return [table_of([made_job(0, rows, tested=("average",), domains=("a", "average", "q"))])]

    (differing, _) = Comparison("sweep", *_cells(cells(0.2), cells(0.3))).rows()
    assert differing == ("Toy / training-domain-validation / ERM / domain average", "20.0 (1)", "30.0 (1)")


def test_groups_weigh_their_domains_equally_and_show_the_deviation_of_runs():
    counts = {"p": 1000, "q": 1, "r": 5}
    jobs = [
        many_domains("ERM", trial, {"p": 0.2 + shift, "q": 0.4 + shift, "r": 0.9}, counts)
        for trial, shift in enumerate((0.0, 0.1))
    ]
    grid = group_grid(table_of(jobs), {"first": ["p", "q"], "other": ["r"], "trained on": ["s"]})
    rows = {row["group"]: row for row in grid.data}
    assert rows["first"]["accuracy"] == pytest.approx(35) and rows["first"]["deviation"] == pytest.approx(math.sqrt(50))
    assert rows["All"]["accuracy"] == pytest.approx((20 + 40 + 90 + 30 + 50 + 90) / 6)
    assert {"first: p, q.", "trained on: none."} <= set(grid.notes)
    assert rows["trained on"]["accuracy"] is None and rows["first"]["n"] == 2
    by_hand = group_grid(replace(table_of(jobs), se="population"), {"first": ["p", "q"]})
    assert by_hand.data[0]["deviation"] == pytest.approx(5) and "runs (population's, as" in by_hand.caption
    with pytest.raises(ShiftbedError):
        group_grid(table_of(jobs))


def test_a_group_called_all_is_of_the_domains_that_it_names():
    grid = group_grid(table_of([many_domains("ERM", 0, {"p": 0.2, "q": 0.4})]), {"All": ["p"], "other": ["q"]})
    assert "All: p." in grid.notes and [row["accuracy"] for row in grid.data] == pytest.approx([20, 40])


def test_a_group_that_names_no_domain_of_the_dataset_is_refused():
    """Its mean would be over the others, and look like one over all."""
    tables = [table_of([many_domains("ERM", 0, {"photo": 0.2, "paint": 0.4})])]
    with pytest.raises(ShiftbedError, match=r"Toy has no domain 'piant', which the group first names\. Did you mean"):
        view_tables(tables, "groups", {"first": ["photo", "piant"]})


def test_near_and_far_are_thirds_of_the_distance():
    distances = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 9.0, "e": 8.0, "f": 7.0}
    assert thirds(distances) == {"near": ["b", "c"], "middle": ["a", "f"], "far": ["e", "d"]}


def test_near_and_far_are_told_by_the_stored_distance_to_the_training_domains(tmp_path):
    far = {"p": (1, 9), "q": (2, 2), "r": (8, 8)}  # from s and t, which train: in the mean p is between q and r
    splits = leave_out("pqrst", "pqr")
    job = made_job(
        0, [(30, {"s/out": 1, "t/out": 1, "p/in": 1, "q/in": 1, "r/in": 1})], tested=tuple("pqr"), splits=splits
    )
    with pytest.raises(ShiftbedError, match="shift Toy --matrix --measures=frechet --out="):
        near_and_far(table_of([job]), tmp_path)
    cells = [
        Cell(domain, other, "frechet", (ShiftEstimate("frechet", value),))
        for domain, both in far.items()
        for other, value in zip("st", both, strict=True)
    ]
    write_json(ShiftMatrix(tuple("pqrst"), tuple(cells)).as_json(), tmp_path / "shift" / "Toy-matrix.json")
    groups = near_and_far(table_of([job]), tmp_path)
    assert groups == {"near": ["q"], "middle": ["p"], "far": ["r"]}
    assert "near: q." in group_grid(table_of([job]), groups).notes


def test_groups_are_not_told_where_classes_have_test_domains_of_their_own(tmp_path):
    rows = [(10, {"a/out": 0.9, "c/in": 0.6, "d/in": 0.5})]
    flexible = {"kind": "flexible", "compositional": False}
    table = table_of([made_job(0, rows, tested=("c", "d"), domains=("a", "c", "d"), task=flexible)])
    with pytest.raises(ShiftbedError, match="accuracy is that over all images, not by groups"):
        group_grid(table, {"one": ["c"], "two": ["d"]})
    with pytest.raises(ShiftbedError, match="accuracy is that over all images, not by groups"):
        near_and_far(table, tmp_path)


def test_near_and_far_leave_out_the_tables_whose_distances_are_not_known(tmp_path):
    for dataset in ("RotatedDigits", "ColoredDigits"):
        request = Request((dataset,), ("ERM",), test_domains=tuple(card(dataset).domains)[:1])
        made_folder(tmp_path, plan(request), lambda job, split, step: 0.5)
    domains = tuple(card("RotatedDigits").domains)
    cells = [Cell(domains[0], other, "frechet", (ShiftEstimate("frechet", 1.0),)) for other in domains[1:]]
    write_json(ShiftMatrix(domains, tuple(cells)).as_json(), tmp_path / "shift" / "RotatedDigits-matrix.json")
    words = ["tables", str(tmp_path), "--view=groups", "--groups=near-far", "--selection=oracle"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.exception
    assert "RotatedDigits" in found.output and "ColoredDigits" not in found.output


def test_improvements_over_erm_against_erm_s_accuracy():
    jobs = [many_domains(name, 0, {"p": p, "q": 0.5}) for name, p in (("ERM", 0.4), ("CORAL", 0.6))]
    first, second = improvements(table_of(jobs))
    assert (first["algorithm"], first["test"], first["n"]) == ("CORAL", "p", 1)
    assert (first["baseline"], first["improvement"]) == (pytest.approx(40), pytest.approx(20))
    assert second["improvement"] == 0 and second["standard_error"] is None
    jobs += [many_domains(name, 1, {"p": p, "q": 0.5}) for name, p in (("ERM", 0.4), ("CORAL", 0.8))]
    first, _ = improvements(table_of(jobs))
    assert (first["improvement"], first["standard_error"], first["n"]) == (pytest.approx(30), pytest.approx(10), 2)


def test_an_improvement_without_erm_gets_one_sentence():
    tables = [table_of([many_domains("CORAL", 0, {"p": 0.4, "q": 0.5})])]
    assert improvements(tables[0]) == []
    with pytest.raises(ShiftbedError, match="An improvement over ERM needs ERM"):
        view_tables(tables, "improvement")


def test_a_domain_has_an_improvement_in_each_of_its_companies():
    """The one in the last company stood for all."""
    jobs = []
    for tested, gain in ((("a", "b"), 0.2), (("a", "c"), 0.1), (("b", "c"), 0.0)):
        for algorithm, more in (("ERM", 0.0), ("CORAL", gain)):
            values = {f"{name}/{part}": 0.5 + more for name in "abc" for part in ("in", "out")}
            jobs.append(made_job(0, [(30, values)], tested=tested, algorithm=algorithm))
    (grid,) = view_tables([table_of(jobs)], "improvement")
    shown = {name: entries[1].text for name, entries in grid.rows}
    assert shown == {
        "a (with b)": "+20.0", "a (with c)": "+10.0", "b (with a)": "+20.0",
        "b (with c)": "+0.0", "c (with a)": "+10.0", "c (with b)": "+0.0",
    }  # fmt: skip


def test_erm_s_own_accuracy_is_over_all_of_its_trials_whatever_the_others_have():
    jobs = [many_domains("ERM", trial, {"p": p, "q": 0.5}) for trial, p in enumerate((0.2, 0.4))]
    jobs += [many_domains("CORAL", 0, {"p": 0.5, "q": 0.5})]
    (grid,) = view_tables([table_of(jobs)], "improvement")
    assert [entry.text for entry in dict(grid.rows)["p"]] == ["30.0", "+30.0"]  # of ERM 20 and 40, of trial 0 50 - 20


def test_deviations_of_oracle_numbers_are_marked():
    jobs = [many_domains("ERM", trial, {"p": p, "q": 0.5}) for trial, p in enumerate((0.2, 0.4))]
    grid = variance_grid(table_of(jobs, "oracle"))
    assert all(entry.text.endswith("†") or entry.text == "–" for _, entries in grid.rows for entry in entries)
    assert any(note.startswith("† Oracle") for note in grid.notes)
    assert "†" not in "".join(entry.text for entry in variance_grid(table_of(jobs)).rows[0][1])


def test_the_variance_study_by_hand():
    def record(step, validation, tested):
        return step, {"a/out": validation, "b/out": validation, "c/in": tested, "c/out": tested}

    jobs = [
        made_job(0, [record(10, 0.1, 0.1), record(20, 0.9, 0.4), record(30, 0.8, 0.6)], trial=0),
        made_job(0, [record(10, 0.1, 0.1), record(20, 0.9, 0.5), record(30, 0.8, 0.5)], trial=1),
    ]
    grid = variance_grid(table_of(jobs), table_of(jobs, "oracle"), last=2)
    (row,) = grid.data
    assert row["epoch"] == pytest.approx((math.sqrt(200) + 0) / 2), "over the last two records, mean over trials"
    assert row["seed"] == pytest.approx(math.sqrt(50))
    assert row["gap"] == pytest.approx(((60 - 40) + (50 - 50)) / 2)
    assert "†" in " ".join(grid.notes) and "last 2 records" in grid.notes[0]
    assert "last 3 records" in variance_grid(table_of(jobs)).notes[0], "there are no more"
    (row,) = variance_grid(table_of(jobs), last=2).data
    assert row["gap"] == pytest.approx(((60 - 40) + (50 - 50)) / 2), "the best record of each job, by the test domain"


def test_the_best_record_is_best_in_what_is_reported_of_it():
    def record(step, validation, c, d):
        return step, {"a/out": validation, "c/in": c, "d/in": d}

    counts, flexible = {"c/in": 30, "d/in": 10}, {"kind": "flexible", "compositional": True}
    rows = [record(10, 0.9, 0.6, 0.5), record(20, 0.8, 0.5, 0.7)]  # 57.5 and 55 % of all images, in the mean 55 and 60
    job = made_job(0, rows, tested=("c", "d"), domains=("a", "c", "d"), counts=counts, task=flexible)
    (row,) = variance_grid(table_of([job])).data
    assert row["gap"] == 0, "no record is better on all test images than the chosen one"


def test_views_by_name(tmp_path):
    jobs = [many_domains(name, 0, {"p": p, "q": 0.5, "r": 0.9}) for name, p in (("ERM", 0.4), ("CORAL", 0.6))]
    tables = [table_of(jobs)]
    (grid,) = view_tables(tables, "improvement")
    assert [name for name, _ in grid.rows] == ["p", "q", "r"], "the hardest domain first"
    assert [entry.text for entry in grid.rows[0][1]] == ["40.0", "+20.0"]
    assert view_tables(tables, "spread")[0].columns[-1] == "worst"
    (tmp_path / "distances.yaml").write_text("p: 7.5\nq: 5e-1\nr: 2\n")
    (grid,) = view_tables(tables, "groups", read_groups(tmp_path / "distances.yaml"))
    assert grid.columns == ["near", "middle", "far", "All"]
    assert [entry.text for entry in grid.rows[1][1]] == ["50.00", "90.00", "60.00", "66.67"]
    (tmp_path / "groups.yaml").write_text("first: [p, q]\n")
    assert read_groups(tmp_path / "groups.yaml") == {"first": ["p", "q"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "must hold lists of domains") for text in (b"[1, 2]", b"a: b", b"")),
        (b"a: [", "is not YAML"),
        (b"a: [\xff]", "is not a text file in UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_groups_gets_one_sentence(tmp_path, text, why):
    if text is not None:
        (tmp_path / "groups.yaml").write_bytes(text)
    with pytest.raises(ShiftbedError, match=why):
        read_groups(tmp_path / "groups.yaml")


def test_a_view_that_does_not_exist_gets_one_sentence():
    with pytest.raises(ShiftbedError, match="There is no view 'group'"):
        view_tables([], "group")
    with pytest.raises(ShiftbedError, match="compares several datasets"):
        view_tables([], "ranking")
