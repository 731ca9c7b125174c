"""Tables against numbers computed by hand."""

import csv
import io
import math

import pytest

from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.tables import AVERAGE, Estimate, as_csv, as_rows, as_text, make_tables

DOMAINS = ("north", "south", "far-away-island")


def record(algorithm, tested, trial, draw, validation, reported, revision=1, held_out=None, setting="one"):
    splits = []
    for domain in DOMAINS:
        test = domain == tested
        splits.append({"name": f"{domain}/in", "domain": domain, "part": "in", "role": "test" if test else "train"})
        splits.append(
            {"name": f"{domain}/out", "domain": domain, "part": "out", "role": "test" if test else "validation"}
        )
    held_out = reported if held_out is None else held_out
    shown = {
        ("test", "in"): reported,
        ("test", "out"): held_out,
        ("validation", "out"): validation,
        ("train", "in"): 1.0,
    }
    values = {s["name"]: {"count": 10, "accuracy": shown[s["role"], s["part"]]} for s in splits}
    about = {
        "id": f"{algorithm}-{tested}-{trial}-{draw}-{revision}",
        "dataset": "Toy",
        "version": 3,
        "algorithm": algorithm,
        "revision": revision,
        "test_domains": [tested],
        "task": {"kind": "leave-out"},
        "trial": trial,
        "draw": draw,
        "hparams": {"lr": 0.1},
        "recipe": {"name": "quick", "steps": 10, "evaluate_every": 10},
        "overrides": {},
        "own_overrides": {},
        "setting": setting,
        "splits": splits,
    }
    return JobRecords(about, "done", [{"step": 10, "splits": values}])


def only(domain):
    """The column of a domain that is tested alone."""
    return ((domain,), domain)


def full_sweep():
    jobs = []
    for trial in (0, 1, 2):
        for i, domain in enumerate(DOMAINS):
            jobs.append(record("ERM", domain, trial, 0, 0.9, 0.1 * i + 0.01 * trial))
            jobs.append(record("ERM", domain, trial, 1, 0.1, 1.0))
            jobs.append(record("CORAL", domain, trial, 0, 0.9, 0.5))
            jobs.append(record("CORAL", domain, trial, 1, 0.8, 0.0))
    return jobs


def table_of(jobs, rule="training-domain-validation"):
    (table,) = make_tables(jobs, [SELECTIONS[rule]])
    return table


def test_an_estimate_is_the_mean_with_the_sample_standard_error():
    estimate = Estimate.of([1.0, 2.0, 6.0])
    assert estimate.mean == 3 and estimate.n == 3
    assert estimate.standard_error == pytest.approx(math.sqrt(7) / math.sqrt(3))
    assert Estimate.of([5.0]).standard_error is None
    assert Estimate.of([]) is None


def test_cells_and_averages():
    table = table_of(full_sweep())
    assert table.columns == tuple(only(name) for name in DOMAINS), "the dataset's order"
    assert table.algorithms == ["ERM", "CORAL"]
    south = table.estimate("ERM", only("south"))
    assert south.mean == pytest.approx(11) and south.n == 3
    assert south.standard_error == pytest.approx(1 / math.sqrt(3))
    average = table.estimate("ERM", AVERAGE)
    assert average.mean == pytest.approx(11)
    assert average.standard_error == pytest.approx(1 / math.sqrt(3)), "over trial means, not over all cells"


def test_the_oracle_marks_its_numbers_wherever_they_are():
    table = table_of(full_sweep(), "oracle")
    assert table.estimate("ERM", only("north")).mean == 100
    rows = [line for line in as_text(table).splitlines() if line.startswith(("ERM", "CORAL"))]
    assert all(line.count("†") == 4 for line in rows)
    assert "† Oracle: chosen with the test domain's labels" in as_text(table)
    assert all(row["oracle"] for row in as_rows([table]))


def test_a_missing_cell_is_shown_and_not_averaged_over():
    jobs = [job for job in full_sweep() if job.description["test_domains"] != ["south"]]
    jobs.append(record("ERM", "south", 0, 0, 0.9, 0.2))
    table = table_of(jobs)
    assert table.estimate("CORAL", only("south")) is None
    assert table.estimate("CORAL", AVERAGE) is None
    assert table.estimate("ERM", AVERAGE).n == 1, "only trial 0 has every domain"
    assert "–" in as_text(table)


def test_unequal_draws_are_called_unfair():
    jobs = [job for job in full_sweep() if not job.id.startswith("CORAL-north-2-1")]
    assert "CORAL 1 to 2, ERM 2" in " ".join(as_text(table_of(jobs)).split())
    assert "Not yet fair" not in as_text(table_of(full_sweep()))


def test_the_order_of_jobs_changes_no_byte():
    jobs = full_sweep()
    texts = {as_text(table_of(order)) + as_csv([table_of(order)]) for order in (jobs, jobs[::-1], jobs[7:] + jobs[:7])}
    assert len(texts) == 1


def test_revisions_of_an_algorithm_are_not_mixed():
    jobs = [*full_sweep(), record("ERM", "north", 0, 0, 0.9, 0.3, revision=2)]
    assert table_of(jobs).algorithms == ["ERM (1)", "ERM (2)", "CORAL"]


def test_an_algorithm_s_own_hyperparameters_set_by_hand_make_another_row():
    other = record("CORAL", "north", 0, 0, 0.9, 0.3, revision=1)
    other.description.update(id="by hand", own_overrides={"mmd_gamma": 3.0})
    assert table_of([*full_sweep(), other]).algorithms == ["ERM", "CORAL", "CORAL (mmd_gamma = 3.0)"]


def test_settings_are_not_mixed():
    other = record("ERM", "north", 0, 0, 0.9, 0.3, setting="two")
    other.description["overrides"] = {"lr": 0.5}
    first, second = make_tables([*full_sweep(), other], [SELECTIONS["oracle"]])
    assert "lr = 0.5" in as_text(second) and "lr" not in as_text(first)


def test_what_is_reported_is_the_larger_part_whoever_chose():
    jobs = [record("ERM", "north", 0, 0, 0.9, 0.3, held_out=0.7), record("ERM", "north", 0, 1, 0.8, 0.4, held_out=0.6)]
    for rule in ("training-domain-validation", "oracle"):
        assert table_of(jobs, rule).estimate("ERM", only("north")).mean == pytest.approx(30)


def test_what_was_planned_and_has_not_finished_is_shown_as_missing():
    jobs = [job for job in full_sweep() if job.description["test_domains"] != ["south"] and job.id.startswith("ERM")]
    plan = [{**job.description, "id": job.id} for job in full_sweep()]
    (table,) = make_tables(jobs, [SELECTIONS["oracle"]], plan)
    assert table.columns == tuple(only(name) for name in DOMAINS)
    assert table.algorithms == ["ERM", "CORAL"]
    assert table.estimate("ERM", AVERAGE) is None, "no average over fewer domains than were asked for"
    assert table.estimate("CORAL", only("north")) is None
    assert table.missing == 24 and "24 planned jobs have not finished" in as_text(table)


def test_a_table_with_no_number_at_all_can_be_printed():
    job = record("ERM", "north", 0, 0, 0.9, 0.3)
    job.rows.clear()
    assert "–" in as_text(table_of([job]))


def test_unequal_intervals_are_named():
    jobs = full_sweep()
    jobs[0].description["recipe"] = {**jobs[0].description["recipe"], "evaluate_every": 5}
    assert "every 5 and 10 steps" in " ".join(as_text(table_of(jobs)).split())


def test_a_domain_may_be_called_avg():
    global DOMAINS
    before, DOMAINS = DOMAINS, ("Avg", "other")
    try:
        jobs = [record("ERM", name, 0, 0, 0.9, value) for name, value in (("Avg", 0.2), ("other", 0.4))]
        table = table_of(jobs)
        assert table.estimate("ERM", only("Avg")).mean == pytest.approx(20)
        assert table.estimate("ERM", AVERAGE).mean == pytest.approx(30)
    finally:
        DOMAINS = before


def test_text_fits_eighty_columns_with_many_domains():
    names = [f"a-long-domain-name-{i}" for i in range(12)]
    global DOMAINS
    before, DOMAINS = DOMAINS, tuple(names)
    try:
        jobs = [record("ERM", name, trial, 0, 0.9, 0.5) for name in names for trial in (0, 1)]
        text = as_text(table_of(jobs))
    finally:
        DOMAINS = before
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("ERM") > 1, "it continues below"


def test_csv_names_the_chosen_jobs():
    rows = list(csv.DictReader(io.StringIO(as_csv([table_of(full_sweep())]))))
    assert len(rows) == 2 * (3 + 1)
    south = next(row for row in rows if (row["algorithm"], row["test"]) == ("CORAL", "south"))
    assert south["jobs"] == "CORAL-south-0-0-1 CORAL-south-1-0-1 CORAL-south-2-0-1"
    assert (float(south["accuracy"]), south["n"], south["draws"]) == (50.0, "3", "0 0 0")
    assert (south["least_draws"], south["most_draws"]) == ("2", "2")


def joint(trial, accuracies, kind="leave-out"):
    """A job that tests two domains together; accuracies and counts of each."""
    job = record("ERM", "north", trial, 0, 0.9, 0.0)
    job.description["test_domains"] = ["north", "south"]
    job.description["task"] = {"kind": kind}
    for split in job.description["splits"]:
        if split["domain"] == "south":
            split["role"] = "test"
    for domain, (accuracy, count) in accuracies.items():
        job.rows[0]["splits"][f"{domain}/in"] = {"accuracy": accuracy, "count": count}
    return job


def test_domains_tested_together_have_a_column_each():
    table = table_of([joint(0, {"north": (0.2, 10), "south": (0.6, 30)})])
    assert [table.heading(column) for column in table.columns] == ["north", "south"]
    together = ("north", "south")
    assert table.estimate("ERM", (together, "north")).mean == pytest.approx(20)
    assert table.estimate("ERM", (together, "south")).mean == pytest.approx(60)
    assert table.estimate("ERM", AVERAGE).mean == pytest.approx(40), "unweighted over domains"


def test_flexible_settings_report_overall_accuracy_alone():
    table = table_of([joint(0, {"north": (0.2, 10), "south": (0.6, 30)}, kind="flexible")])
    assert [table.heading(column) for column in table.columns] == ["overall"]
    assert table.estimate("ERM", table.columns[0]).mean == pytest.approx(50), "weighted by images"
