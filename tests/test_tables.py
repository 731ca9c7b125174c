"""Tables against numbers computed by hand."""

import csv
import io
import math

import pytest

from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.tables import AVERAGE, Figure, as_csv, as_rows, as_text, make_tables

DOMAINS = ("north", "south", "far-away-island")


def record(algorithm, tested, trial, draw, validation, reported, revision=1):
    splits = []
    for domain in DOMAINS:
        test = domain == tested
        splits.append({"name": f"{domain}/in", "domain": domain, "part": "in", "role": "test" if test else "train"})
        splits.append(
            {"name": f"{domain}/out", "domain": domain, "part": "out", "role": "test" if test else "validation"}
        )
    values = {s["name"]: {"accuracy": reported if s["role"] == "test" else validation} for s in splits}
    about = {
        "id": f"{algorithm}-{tested}-{trial}-{draw}-{revision}",
        "dataset": "Toy",
        "version": 3,
        "algorithm": algorithm,
        "revision": revision,
        "test_domains": [tested],
        "trial": trial,
        "draw": draw,
        "hparams": {"lr": 0.1},
        "recipe": {"name": "quick", "steps": 10},
        "splits": splits,
    }
    return JobRecords(about, "done", [{"step": 10, "splits": values}])


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


def test_a_figure_is_the_mean_with_the_sample_standard_error():
    figure = Figure.of([1.0, 2.0, 6.0])
    assert figure.mean == 3 and figure.n == 3
    assert figure.standard_error == pytest.approx(math.sqrt(7) / math.sqrt(3))
    assert Figure.of([5.0]).standard_error is None
    assert Figure.of([]) is None


def test_cells_and_averages():
    table = table_of(full_sweep())
    assert table.columns == tuple((name,) for name in DOMAINS), "the dataset's order"
    assert table.algorithms == ["ERM", "CORAL"]
    south = table.figure("ERM", ("south",))
    assert south.mean == pytest.approx(11) and south.n == 3
    assert south.standard_error == pytest.approx(1 / math.sqrt(3))
    average = table.figure("ERM", AVERAGE)
    assert average.mean == pytest.approx(11)
    assert average.standard_error == pytest.approx(1 / math.sqrt(3)), "over trial means, not over all cells"


def test_the_oracle_marks_its_numbers_wherever_they_are():
    table = table_of(full_sweep(), "oracle")
    assert table.figure("ERM", ("north",)).mean == 100
    rows = [line for line in as_text(table).splitlines() if line.startswith(("ERM", "CORAL"))]
    assert all(line.count("†") == 4 for line in rows)
    assert "† Oracle: chosen with the test domain's labels" in as_text(table)
    assert all(row["oracle"] for row in as_rows([table]))


def test_a_missing_cell_is_shown_and_not_averaged_over():
    jobs = [job for job in full_sweep() if job.description["test_domains"] != ["south"]]
    jobs.append(record("ERM", "south", 0, 0, 0.9, 0.2))
    table = table_of(jobs)
    assert table.figure("CORAL", ("south",)) is None
    assert table.figure("CORAL", AVERAGE) is None
    assert table.figure("ERM", AVERAGE).n == 1, "only trial 0 has every domain"
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
    assert table_of(jobs).algorithms == ["CORAL", "ERM (1)", "ERM (2)"]


def test_recipes_are_not_mixed():
    other = record("ERM", "north", 0, 0, 0.9, 0.3)
    other.description["recipe"] = {"name": "quick", "steps": 99}
    assert len(make_tables([*full_sweep(), other], [SELECTIONS["oracle"]])) == 2


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
