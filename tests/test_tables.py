"""Tables against numbers computed by hand."""

import csv
import io
import json
import math
import shlex
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from scipy import stats

from shiftbed.errors import UnknownNameError
from shiftbed.hashing import canonical, digest
from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.sweeps.designs import DESIGNS
from shiftbed.tables import (
    AVERAGE,
    Estimate,
    as_csv,
    as_rows,
    as_text,
    make_tables,
    paired_permutation_test,
    read_tables,
    render,
)
from shiftbed.tables.grids import Entry, Grid, command_lines, grid_text, latex_escaped
from shiftbed.tables.missing import MissingJob, sweep_command
from shiftbed.training.recipes import recipe
from shiftbed.training.store import LocalStore
from tests.made_records import made_job

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
    assert len(table.missing) == 24 and "24 planned jobs have not finished" in as_text(table)


def test_a_table_with_no_number_at_all_can_be_printed():
    job = record("ERM", "north", 0, 0, 0.9, 0.3)
    job.rows.clear()
    assert "–" in as_text(table_of([job]))


def test_unequal_intervals_are_named():
    jobs = full_sweep()
    jobs[0].description["recipe"] = {**jobs[0].description["recipe"], "evaluate_every": 5}
    assert "every 5 steps or every 10 steps, so" in " ".join(as_text(table_of(jobs)).split())
    jobs[0].description["recipe"] |= {"evaluate_every": 10, "evaluate_first": True}
    assert "every 10 steps or every 10 steps and after the first, so" in " ".join(as_text(table_of(jobs)).split())
    for rule in ("oracle", "last-step"):  # which look at the last step, whatever was seen before it
        assert "Not quite fair" not in as_text(table_of(jobs, rule))


def test_a_trial_that_is_not_chosen_from_says_nothing_of_the_others():
    jobs = full_sweep()
    for job in jobs:
        if job.description["trial"] == 2:
            job.description["recipe"] = {**job.description["recipe"], "evaluate_first": True}
    pairs = [job for job in pairs_of(jobs, lambda job: 0.5) if job.description["trial"] < 2]
    (table,) = make_tables([*jobs, *pairs], [SELECTIONS["domain-cross-validation"]])
    assert table.estimate("ERM", only("north")).n == 2
    assert table.draws == {"ERM": (2, 2), "CORAL": (2, 2)}
    assert "fair" not in as_text(table)


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


WORDS = st.text("abc -", max_size=90)


@settings(max_examples=200)
@given(
    st.integers(1, 9).flatmap(
        lambda columns: st.tuples(
            st.lists(WORDS, min_size=columns, max_size=columns),
            st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=columns, max_size=columns)), min_size=1, max_size=3),
        )
    ),
    WORDS,
)
def test_text_never_has_more_than_eighty_columns_and_loses_nothing(parts, corner):
    columns, rows = parts
    entries = [(name, [Entry(text) for text in texts]) for name, texts in rows]
    lines = grid_text(Grid("title", "caption", corner, columns, entries)).splitlines()
    assert max(map(len, lines)) <= 80
    letters = "".join(lines[2:]).replace("─", "")
    for letter in "abc":
        shown = sum(text.count(letter) for text in [*columns, *(text for _, texts in rows for text in texts)])
        blocks = sum(set(line) == {"─"} for line in lines)
        repeated = blocks * (corner.count(letter) + sum(name.count(letter) for name, _ in rows))
        assert letters.count(letter) == shown + repeated


def test_names_in_wide_letters_stand_above_their_columns():
    columns = ["カメラ5", "札幌市立病院放射線科", "site-a"]
    rows = [(name, [Entry("50.0"), Entry("60.0"), Entry("70.0")]) for name in ("方法", "ERM")]
    heading, *others = grid_text(Grid("title", "caption", "algorithm", columns, rows)).splitlines()[-4:]
    assert {cell_len(line) for line in (heading, *others)} == {cell_len(heading)}


def test_neither_signs_nor_equations_are_broken():
    grid = Grid(
        "t", "c", "x", ["-90%", "emojione-mono"], [("row", [Entry("1"), Entry("2")])], ["a" * 74 + " n = 9 − 1."]
    )
    lines = grid_text(grid).splitlines()
    assert any("-90%" in line for line in lines) and "n = 9 − 1." in lines


def test_a_long_first_column_does_not_push_the_others_over_the_edge():
    # Seven columns of 16 need twice the 60 that are left beside 20, but four of them do not fit into 60.
    grid = Grid("t", "c", "x" * 20, [f"{n}" * 14 for n in range(7)], [("row", [Entry("1" * 14)] * 7)])
    assert [len(line) for line in grid_text(grid).splitlines() if "─" in line] == [68, 68, 36]


def test_many_algorithms_are_compared_with_erm_in_few_words():
    names = [f"A{number}" for number in range(9)]
    made = {name: place / 10 for place, name in enumerate(["ERM", *names])}
    jobs = [record(name, d, t, 0, 0.9, test) for name, test in made.items() for d in DOMAINS for t in range(4)]
    (note,) = (note for note in table_of(jobs).notes() if note.startswith("Against ERM"))
    assert note.startswith(
        "Against ERM, in points (permutation test of pairs of trial and domain; n = 12 unless said, p"
    )
    assert "A8 +90.0 (p = 0.00" in note and note.index("A8 ") < note.index("A0 ")
    few = [job for job in jobs if job.description["algorithm"] in ("ERM", "A0")]
    (note,) = (note for note in table_of(few).notes() if note.startswith("Against ERM"))
    assert ", n = " in note


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
    job.description["task"] = {"kind": kind, "compositional": False}
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


def test_domains_that_a_model_is_tested_on_together_are_one_pair():
    """Six pairs of a domain each would be p = 0.03 for three models with a lucky seed."""
    ours = [joint(trial, {"north": (0.6, 10), "south": (0.7, 10)}) for trial in range(3)]
    theirs = [joint(trial, {"north": (0.5, 10), "south": (0.4, 10)}) for trial in range(3)]
    for job in ours:
        job.description.update(algorithm="CORAL", id=job.id.replace("ERM", "CORAL"))
    found = table_of([*ours, *theirs])
    assert found.comparison("CORAL").difference == pytest.approx(20)
    assert (found.comparison("CORAL").p, found.comparison("CORAL").n) == (0.25, 3)
    assert "permutation test of pairs of trial and domains tested together" in " ".join(found.notes())


def test_flexible_settings_report_overall_accuracy_alone():
    table = table_of([joint(0, {"north": (0.2, 10), "south": (0.6, 30)}, kind="flexible")])
    assert [table.heading(column) for column in table.columns] == ["overall"]
    assert table.estimate("ERM", table.columns[0]).mean == pytest.approx(50), "weighted by images"


def test_the_population_s_standard_error_is_domainbed_s():
    assert Estimate.of([1.0, 2.0, 6.0], "population").standard_error == pytest.approx(math.sqrt(14 / 3 / 3))
    (table,) = make_tables(full_sweep(), [SELECTIONS["oracle"]], se="population")
    by_hand = math.sqrt(2 / 3) / math.sqrt(3)  # 0, 1 and 2 points apart
    assert table.estimate("ERM", only("south")).standard_error == pytest.approx(0)
    (table,) = make_tables(full_sweep(), [SELECTIONS["training-domain-validation"]], se="population")
    assert table.estimate("ERM", only("south")).standard_error == pytest.approx(by_hand)
    assert "population" in as_text(table) and "population" not in as_text(table_of(full_sweep()))


def three_rows():
    shown = {"ERM": 0.5, "CORAL": 0.7, "IRM": 0.6, "VREx": 0.6}
    return [record(name, domain, 0, 0, 0.9, value) for name, value in shown.items() for domain in DOMAINS]


def test_the_best_is_bold_and_the_second_underlined_in_every_format():
    table = table_of(three_rows())
    rows = {
        line.split()[0]: line.split()[1:] for line in as_text(table).splitlines() if line[:3] in ("ERM", "COR", "IRM")
    }
    assert rows == {"ERM": ["50.0"] * 4, "CORAL": ["*70.0*"] * 4, "IRM": ["_60.0_"] * 4}
    assert "| CORAL | **70.0** |" in render([table], "markdown") and "| IRM | <u>60.0</u> |" in render(
        [table], "markdown"
    )
    assert r"CORAL & \textbf{70.0} &" in render([table], "latex") and r"VREx & \underline{60.0}" in render(
        [table], "latex"
    )
    assert "<th>CORAL</th><td><b>70.0</b></td>" in render([table], "html")


def test_of_two_rows_the_other_is_no_second_and_one_row_is_not_the_best():
    two = as_text(table_of([job for job in three_rows() if job.id.startswith(("ERM", "IRM"))]))
    assert "*60.0*" in two and "_50.0_" not in two and "second" not in two
    assert "*" not in as_text(table_of([job for job in three_rows() if job.id.startswith("ERM")]))


def strange_names():
    jobs = [record("ERM", "north", 0, 0, 0.9, 0.3), record("CORAL", "north", 0, 0, 0.9, 0.4)]
    for job in jobs:
        job.description["dataset"] = r"My_data <b> & 50% #1 ~^\{x}"
    return table_of(jobs)


def test_latex_has_no_letter_that_its_fonts_lack():
    assert latex_escaped("λ = 1, é, 中, a\tb, ≥ …") == r"$\lambda$ = 1, é, \texttt{U+4E2D}, a b, $\geq$ \ldots{}"
    assert latex_escaped("[5pt] *") == "{[}5pt{]} {*}", "no option of the row before"
    assert latex_escaped("ς ό") == r"\texttt{U+03C2} \texttt{U+03CC}"


@pytest.mark.skipif(not (shutil.which("pdflatex") or shutil.which("tectonic")), reason="no LaTeX here")
def test_latex_compiles(tmp_path):
    body = render([strange_names()], "latex")
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\n\\end{document}\n"
    (tmp_path / "tables.tex").write_text(text, encoding="utf-8")
    program = shutil.which("pdflatex")
    words = [program, "-halt-on-error", "tables.tex"] if program else [shutil.which("tectonic"), "tables.tex"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)


def test_latex_is_escaped_and_balanced():
    text = render([strange_names()], "latex")
    assert r"My\_data \textless{}b\textgreater{} \& 50\% \#1 \textasciitilde{}\textasciicircum{}" in text
    assert r"\textbackslash{}\{x\}" in text
    body = text.replace(r"\{", "").replace(r"\}", "")
    assert body.count("{") == body.count("}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in rows} == {2}
    for command in ("toprule", "midrule", "bottomrule", "begin{table}", "end{table}"):
        assert text.count("\\" + command) == 1


def test_html_and_markdown_are_escaped():
    page = render([strange_names()], "html")
    assert "My_data &lt;b&gt; &amp; 50%" in page and "<b> &" not in page
    assert r"My\_data \<b\> & 50%" in render([strange_names()], "markdown")


def test_json_and_csv_hold_the_same_cells():
    table = table_of(full_sweep())
    rows = json.loads(render([table], "json"))
    assert rows == as_rows([table])
    read = list(csv.DictReader(io.StringIO(render([table], "csv"))))
    assert [float(row["accuracy"]) for row in read] == pytest.approx([row["accuracy"] for row in rows])
    assert rows[0]["chosen"][0]["hparams"] == {"lr": 0.1}


def test_an_unknown_format_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean markdown"):
        render([table_of(full_sweep())], "markdwn")


def test_missing_jobs_are_named_with_the_command_that_runs_them():
    jobs = [job for job in full_sweep() if job.id not in ("CORAL-south-1-0-1", "CORAL-south-1-1-1")]
    plan = [{**job.description, "id": job.id} for job in full_sweep()]
    (table,) = make_tables(jobs, [SELECTIONS["oracle"]], plan, folder="my sweep")
    text = " ".join(as_text(table).replace("\\\n", "").split())
    assert "2 planned jobs have not finished (CORAL on south: trial 1, draws 0 to 1); to run them:" in text
    command = (
        "shiftbed sweep Toy --algorithms=CORAL --test=south --draws=2 --trials=2 --recipe=quick --steps=10 "
        "'--out=my sweep'"
    )
    assert command in text
    assert table.estimate("CORAL", only("south")).n == 2 and "(2)" in as_text(table)
    assert max(map(len, as_text(table).splitlines())) <= 80


def test_every_empty_cell_says_why():
    plan = [{**job.description, "id": job.id} for job in full_sweep()]
    finished = [
        job for job in full_sweep() if job.id.startswith("ERM") and job.description["test_domains"] != ["south"]
    ]
    finished[0].rows.clear()
    finished[1].rows.clear()
    finished = [job for job in finished if job.description["trial"] == 0]
    (table,) = make_tables(finished, [SELECTIONS["oracle"]], plan)
    why = {(row["algorithm"], row["test"]): row["why_empty"] for row in as_rows([table])}
    assert why["ERM", "south"] == "not finished: ERM on south: trials 0 to 2, draws 0 to 1"
    assert why["ERM", "far-away-island"] == ""
    assert why["CORAL", "north"].startswith("not finished: CORAL on north")
    (alone,) = make_tables(finished, [SELECTIONS["oracle"]])
    assert alone.why_empty("ERM", only("north")) == "no finished job competes"


def test_a_column_that_was_not_recorded_is_not_called_a_missing_job():
    table = table_of(full_sweep(), "ood-validation")
    assert table.is_empty and not table.missing
    assert "reads validation/all/accuracy, which these jobs do not have" in " ".join(as_text(table).split())
    assert table.why_empty("ERM", AVERAGE) == "not recorded: validation/all/accuracy"


def test_lean_jobs_for_other_selections_are_told_and_are_no_draws_of_this_one():
    jobs = full_sweep()
    for job in jobs:
        if job.description["draw"] == 0:
            job.description["lean"] = ["training-domain-validation"]
            job.rows[-1]["splits"].pop(f"{job.description['test_domains'][0]}/out")
    told = "left out: 18 jobs with lean records for other selections; a sweep into another folder records it."
    oracle, other = table_of(jobs, "oracle"), table_of(jobs)
    assert told in " ".join(as_text(oracle).split()) and oracle.draws["ERM"] == (1, 1)
    assert "lean" not in as_text(other) and other.draws["ERM"] == (2, 2)


@pytest.mark.parametrize("rule", ["training-domain-validation", "oracle", "worst-domain-validation"])
def test_jobs_that_all_diverged_before_a_record_are_called_that(rule):
    jobs = [replace(record("ERM", "north", 0, draw, 0, 0), status="diverged", rows=[]) for draw in range(2)]
    table = table_of(jobs, rule)
    assert table.is_empty and not table.lacking
    assert "No number: no finished job competes; those that diverged do not." in " ".join(as_text(table).split())
    assert table_of(jobs, "external-dataset").is_empty


def test_a_row_without_a_number_says_that_its_jobs_diverged():
    diverged = [replace(record("CORAL", "north", 0, draw, 0, 0), status="diverged", rows=[]) for draw in range(2)]
    whole = [record("ERM", "north", 0, draw, 0.5, 0.5) for draw in range(2)]
    said = " ".join(as_text(table_of([*whole, *diverged], "training-domain-validation")).split())
    assert "No number of CORAL where no finished job competes; those that diverged do not." in said
    assert "No number" not in as_text(table_of(whole, "training-domain-validation"))


def test_what_was_never_planned_is_not_said_to_have_diverged():
    whole = [record("ERM", domain, 0, 0, 0.5, 0.5) for domain in DOMAINS]
    table = table_of([*whole, record("CORAL", "north", 0, 0, 0.5, 0.5)])
    assert table.why_empty("CORAL", only("south")) == "never planned"
    assert "No number" not in as_text(table)


def test_a_row_without_the_same_draws_on_another_dataset_is_not_said_to_have_diverged():
    def job(algorithm, dataset):
        return made_job(0, [(30, {f"{d}/{part}": 0.5 for d in "abc" for part in ("in", "out")})],
                        algorithm=algorithm, dataset=dataset)  # fmt: skip

    jobs = [job("ERM", "Toy"), job("ERM", "Other"), job("CORAL", "Toy")]
    table = next(one for one in make_tables(jobs, [SELECTIONS["external-dataset"]]) if one.dataset == "Toy")
    assert not table.is_empty and table.estimates["CORAL", table.columns[0]] is None
    said = " ".join(table.notes())
    assert "needs the same draws on another dataset" in said and "diverged" not in said


def pairs_of(jobs, value):
    """For every job those that test one more domain."""
    made = {}
    for job in jobs:
        about = job.description
        for other in set(DOMAINS) - set(about["test_domains"]):
            both = sorted((*about["test_domains"], other), key=DOMAINS.index)
            pair = record(about["algorithm"], other, about["trial"], about["draw"], 0, 0)
            pair.description.update(id=f"{about['algorithm']}-{both}-{about['trial']}-{about['draw']}")
            pair.description.update(test_domains=both, setting="pairs")
            for split in pair.description["splits"]:
                split["role"] = "test" if split["domain"] in both else split["role"]
                pair.rows[0]["splits"][split["name"]] = {"accuracy": value(job), "count": 10}
            made[pair.id] = pair
    return list(made.values())


def test_domain_cross_validation_reads_pairs_which_have_no_table_of_their_own():
    jobs = full_sweep()
    pairs = pairs_of(jobs, lambda job: 0.1 + 0.5 * job.description["draw"])
    (table,) = make_tables([*jobs, *pairs], [SELECTIONS["domain-cross-validation"]])
    assert table.estimate("ERM", only("north")).mean == 100, "draw 1, which training-domain validation refuses"
    beside = as_rows([table])[0]["chosen"][0]["beside"]
    assert len(beside) == 2
    assert not table.needed


def test_steps_that_pairs_alone_have_are_named():
    jobs = full_sweep()
    pairs = pairs_of(jobs, lambda job: 0.5)
    for job in pairs:
        job.description["recipe"] |= {"evaluate_first": True}
        job.rows.insert(0, {**job.rows[0], "step": 1})
    words = "every 10 steps, those that the selection reads beside them every 10 steps and after the first: only steps"
    (table,) = make_tables([*jobs, *pairs], [SELECTIONS["domain-cross-validation"]])
    assert words in " ".join(as_text(table).split())
    (other,) = make_tables([*jobs, *pairs], [SELECTIONS["oracle"]])
    assert "beside them" not in as_text(other)
    for job in jobs:
        job.description["recipe"] |= {"evaluate_first": True}
    (alike,) = make_tables([*jobs, *pairs], [SELECTIONS["domain-cross-validation"]])
    assert "beside them" not in as_text(alike)


def test_missing_pairs_are_named_with_the_protocol_that_runs_them():
    table = table_of(full_sweep(), "domain-cross-validation")
    assert len(table.needed) == 2 * 3 * 3 * 2
    text = " ".join(as_text(table).replace("\\\n", "").split())
    assert "36 needed jobs have not finished (CORAL on north and far-away-island: trials 0 to 2, draws 0 to 1;" in text
    assert "--protocol=leave-pair-out" in text
    assert table.why_empty("ERM", AVERAGE).startswith("not run: ")


def test_pairs_that_nobody_asked_for_are_not_to_be_had_by_the_same_command_alone():
    jobs = full_sweep()
    for job in jobs:
        job.description["recipe"] |= {"name": "mine"}
    text = " ".join(as_text(table_of(jobs, "domain-cross-validation")).split())
    assert "36 needed jobs have not finished" in text
    assert text.count("run the same command again with --selection domain-cross-validation.") == 1


def test_draws_that_lack_a_pair_are_not_counted_nor_their_trial_where_another_is_whole():
    jobs = full_sweep()
    pairs = pairs_of(jobs, lambda job: 0.5)
    lost = next(job for job in pairs if job.description["algorithm"] == "ERM" and job.description["draw"] == 1)
    (table,) = make_tables([*jobs, *(job for job in pairs if job is not lost)], [SELECTIONS["domain-cross-validation"]])
    assert table.draws == {"ERM": (1, 2), "CORAL": (2, 2)}
    assert "unequal numbers of draws (CORAL 2, ERM 1 to 2)" in " ".join(as_text(table).split())
    assert table.estimate("ERM", AVERAGE) is not None
    whole = table.whole_trials()
    assert whole.uncounted == {"ERM": {lost.description["trial"]}} and not whole.unaveraged
    assert whole.draws == {"ERM": (2, 2), "CORAL": (2, 2)}
    by_lost = {column: column[1] in lost.description["test_domains"] for column in whole.columns}
    assert {column: whole.estimate("ERM", column).n for column in whole.columns} == {
        column: 2 if is_tested else 3 for column, is_tested in by_lost.items()
    }
    assert whole.estimate("ERM", AVERAGE).n == 2 and whole.estimate("CORAL", AVERAGE).n == 3
    text = " ".join(as_text(whole).split())
    assert "Not counted, since jobs of them are missing: ERM (trial 0)." in text and "Not yet fair" not in text
    of_erm = [job for job in pairs if job.description["algorithm"] == "ERM"]
    (alone,) = make_tables([*jobs, *of_erm], [SELECTIONS["domain-cross-validation"]])
    assert alone.draws["CORAL"] == (0, 0) and "CORAL 0" not in as_text(alone)
    (other,) = make_tables([*jobs, *pairs[:-1]], [SELECTIONS["training-domain-validation"]])
    assert other.draws == {"ERM": (2, 2), "CORAL": (2, 2)} and not other.whole_trials().unaveraged


def test_a_row_without_a_whole_trial_has_its_cells_and_no_average():
    table = table_of([job for job in full_sweep() if job.description["trial"] == 0])
    lacking = replace(table, missing=(MissingJob("ERM", ("north",), 0, 2),)).whole_trials()
    assert lacking.estimate("ERM", only("north")) == table.estimate("ERM", only("north"))
    assert lacking.estimate("ERM", AVERAGE) is None and not lacking.uncounted
    assert lacking.estimate("CORAL", AVERAGE) == table.estimate("CORAL", AVERAGE)
    assert "Jobs are missing of ERM: no average." in lacking.notes()


def test_leaks_and_incomplete_algorithms_are_marked():
    text = as_text(table_of(full_sweep(), "worst-domain-validation"))
    assert "ERM ‡" in text and "CORAL ‡" not in text and "‡ Leaks: the selection uses domain labels" in text
    assert "Registered without a selection of their own, which DomainBed asks for: all rows." in text
    both = [record(name, "north", 0, 0, 0.9, 0.3) for name in ("EoA", "ERM")]
    assert "which DomainBed asks for: ERM." in as_text(table_of(both))
    more = [*both, record("IRM", "north", 0, 0, 0.9, 0.3)]
    assert "which DomainBed asks for: all rows but EoA." in " ".join(as_text(table_of(more)).split())
    jobs = [record("EoA", "north", 0, 0, 0.9, 0.3)]
    assert "Registered without" not in as_text(table_of(jobs))


def command_of(*changes, own="", dataset="ColoredDigits", algorithm="IRM"):
    """The command that runs a missing job of a setting with such changes of its description."""
    how = recipe("quick", "ColoredDigits", steps=20).model_dump()
    about = {"dataset": dataset, "recipe": how, "overrides": {}, "task": {"kind": "leave-out", "test": ["-90%"]}}
    for path, value in changes:
        place = about
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
    jobs = [MissingJob(algorithm, ("-90%",), 0, 1, own), MissingJob("ERM", ("-90%",), 0, 1)]
    return sweep_command(about, jobs, "DIR", DESIGNS["redraw"], "oracle")


def test_the_command_for_missing_jobs_says_all_that_was_set_by_hand():
    words = shlex.split(command_of())
    assert not [word for word in words if word.startswith(("--set", "--adapt", "--selection"))]
    words = shlex.split(command_of((["overrides", "lr"], 0.1), (["task", "adapt"], 0.3), own='{"irm_lambda":5.0}'))
    assert {"--set=lr=0.1", "--set=irm_lambda=5.0", "--adapt=0.3"} <= set(words)


def test_there_is_no_command_where_the_sweep_has_no_words_for_it():
    assert command_of((["recipe", "network"], "resnet18")) is None
    assert command_of((["overrides", "irm_lambda"], 1.0), own='{"irm_lambda":5.0}') is None
    assert command_of((["recipe", "name"], "mine")) is None, "where the recipe's file lies nobody knows"
    assert command_of(algorithm="OfMyOwnFile") is None, "without --code nobody knows it"


def test_a_comparison_with_erm_has_its_p_value_and_n():
    assert "CORAL +39.0 (p = 0.0039, n = 9)" in " ".join(as_text(table_of(full_sweep())).split())
    assert "Against ERM" not in as_text(table_of([job for job in full_sweep() if job.id.startswith("CORAL")]))


def test_the_permutation_test_by_hand():
    found = paired_permutation_test([2.0, 3.0, 1.0], [1.0, 1.0, 1.5])
    # The differences 1, 2, -0.5 sum to 2.5; of the 8 signs, 2.5, 3.5 and their mirror images are at least as large.
    assert (found.difference, found.p, found.n) == (pytest.approx(2.5 / 3), 0.5, 3)
    assert paired_permutation_test([1.0], [0.0]).p == 1, "one pair proves nothing"
    assert paired_permutation_test([], []) is None
    assert paired_permutation_test([1.0] * 4, [1.0] * 4).p == 1
    assert paired_permutation_test([0.1, 0.2, 0.3, -0.6], [0.0] * 4).p == 1, "no mean is smaller than none"


def test_the_permutation_test_of_many_pairs_draws_signs():
    random = np.random.default_rng(1)
    ours = random.normal(0, 1, 60)
    found = paired_permutation_test(ours, np.zeros(60))
    exact = stats.ttest_1samp(ours, 0).pvalue
    assert found.p == pytest.approx(exact, abs=0.02)
    assert paired_permutation_test(ours + 5, np.zeros(60)).p == 1 / 10_000, "never 0: what was seen is possible"


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=8), st.randoms())
def test_the_permutation_test_does_not_depend_on_order_or_direction(pairs, shuffle):
    ours, theirs = zip(*pairs, strict=True)
    found = paired_permutation_test(ours, theirs)
    mirrored = paired_permutation_test(theirs, ours)
    assert (mirrored.p, mirrored.difference) == (found.p, -found.difference)
    shuffle.shuffle(pairs)
    again = paired_permutation_test(*zip(*pairs, strict=True))
    assert again.p == pytest.approx(found.p) and 0 < found.p <= 1


def stored(jobs, path):
    store = LocalStore(path)
    for job in jobs:
        store.put_atomic(f"jobs/{job.id}/job.json", json.dumps(job.description).encode())
        done = {"status": "done", "step": 10, "records": job.rows}
        store.put_atomic(f"jobs/{job.id}/done.json", json.dumps(done).encode())


@pytest.mark.parametrize(("draws", "trials"), [(1, None), (None, 1), (1, 2), (9, 9)])
def test_fewer_draws_and_trials_are_as_if_no_others_had_been_asked_for(tmp_path, draws, trials):
    jobs = full_sweep()
    stored(jobs, tmp_path / "all")
    few = [job for job in jobs if job.description["draw"] < (draws or 2) and job.description["trial"] < (trials or 3)]
    stored(few, tmp_path / "few")
    found = read_tables(tmp_path / "all", ["oracle"], draws=draws, trials=trials)
    assert as_csv(found) == as_csv(read_tables(tmp_path / "few", ["oracle"]))
    assert found[0].draws["ERM"] == (min(draws or 2, 2),) * 2


def test_draws_and_trials_that_are_not_asked_for_are_not_missing(tmp_path):
    jobs = three_rows()
    stored(jobs, tmp_path)
    plan = [
        {**jobs[0].description, "id": f"{draw}-{trial}", "draw": draw, "trial": trial}
        for draw, trial in ((7, 0), (0, 7))
    ]
    (tmp_path / "plans").mkdir()
    lines = b"".join(canonical(row) + b"\n" for row in plan)
    (tmp_path / "plans" / f"{digest(plan)[:20]}.jsonl").write_bytes(lines)
    for asked, count in (({}, 2), ({"draws": 7}, 1), ({"trials": 7}, 1), ({"draws": 7, "trials": 7}, 0)):
        assert len(read_tables(tmp_path, ["oracle"], **asked)[0].missing) == count


def test_asking_for_nothing_shows_the_usual_selections_that_the_jobs_allow(tmp_path):
    stored(three_rows(), tmp_path)
    assert [table.selection.name for table in read_tables(tmp_path)] == ["training-domain-validation", "oracle"]
    assert {table.selection.name for table in read_tables(tmp_path, ["all"])} == set(SELECTIONS)
    assert [table.selection.name for table in read_tables(tmp_path, ["ood-validation"])] == ["ood-validation"]


@given(st.permutations(range(36)), st.permutations(range(3)))
@settings(max_examples=25)
def test_neither_the_order_of_jobs_nor_the_numbering_of_trials_matters(places, trials):
    expected = table_of(full_sweep())
    jobs = full_sweep()
    for job in jobs:
        job.description["trial"] = trials[job.description["trial"]]
    table = table_of([jobs[place] for place in places])
    for cell, estimate in expected.estimates.items():
        assert table.estimates[cell].mean == pytest.approx(estimate.mean)
        assert table.estimates[cell].standard_error == pytest.approx(estimate.standard_error)


def planned(jobs, design):
    return [
        {
            key: job.description[key]
            for key in ("id", "dataset", "algorithm", "test_domains", "draw", "trial", "setting")
        }
        | {"design": design}
        for job in jobs
    ]


def searched_once():
    """Three draws in trial 0, of which draw 1 wins, and draw 1 in trials 1 and 2."""
    jobs = [record("ERM", "north", 0, draw, 0.5 + 0.1 * (draw == 1), 0.6) for draw in range(3)]
    return [*jobs, *(record("ERM", "north", trial, 1, 0.5, 0.6 + 0.1 * trial) for trial in (1, 2))]


def test_a_winner_that_is_only_repeated_is_no_unfair_cell():
    jobs = searched_once()
    (table,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]], planned(jobs, "search-once"))
    assert table.draws == {"ERM": (3, 3)}
    assert table.estimates["ERM", AVERAGE].mean == pytest.approx(70)
    assert "Not yet fair" not in as_text(table) and "Search design search-once" in as_text(table)
    (redrawn,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]], planned(jobs, "redraw"))
    assert "Not yet fair" in as_text(redrawn)


@pytest.mark.parametrize("design", ["search-once", "groups"])
def test_a_rule_reports_its_own_winner_in_every_trial_of_two_stages(design):
    # Validation chooses draw 1 and the oracle draw 2. In the other trials draw 2 validates better: it must not count.
    search = [record("ERM", "north", 0, d, 0.5 + 0.1 * (d == 1), 0.6, held_out=0.6 + 0.2 * (d == 2)) for d in range(3)]
    again = [record("ERM", "north", t, d, 0.4 + 0.2 * d, 0.3 * d, held_out=0.9) for t in (1, 2) for d in (1, 2)]
    rules = [SELECTIONS["training-domain-validation"], SELECTIONS["oracle"]]
    jobs = [*search, *again]
    tables = make_tables(jobs, rules, planned(jobs, design))
    draws = [[one.choice.draw for one in table.chosen["ERM"][("north",)].values()] for table in tables]
    assert draws == [[1, 1, 1], [2, 2, 2]]
    assert not any(table.needed for table in tables)


def test_a_rule_whose_winner_was_not_trained_again_has_one_trial_and_says_what_it_needs():
    search = [record("ERM", "north", 0, d, 0.5 + 0.1 * (d == 1), 0.6, held_out=0.6 + 0.2 * (d == 2)) for d in range(3)]
    jobs = [*search, *(record("ERM", "north", trial, 1, 0.5, 0.6) for trial in (1, 2))]
    (table,) = make_tables(jobs, [SELECTIONS["oracle"]], planned(jobs, "search-once"))
    assert table.estimate("ERM", only("north")).n == 1
    text = " ".join(as_text(table).replace("\\\n", "").split())
    assert "2 needed jobs have not finished (ERM on north: trials 1 to 2, draw 2)" in text
    assert "--design=search-once --selection=oracle" in text


def test_a_winner_of_an_earlier_and_smaller_search_no_longer_counts():
    jobs = [*searched_once(), record("ERM", "north", 0, 3, 0.9, 0.6)]  # which wins now, and was not trained again
    (table,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]], planned(jobs, "search-once"))
    assert [one.choice.draw for one in table.chosen["ERM"][("north",)].values()] == [3]


def test_trials_that_repeat_the_winner_of_a_search_that_is_not_over_are_not_whole_either():
    jobs, more = searched_once(), record("ERM", "north", 0, 3, 0.9, 0.6)
    (table,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]], planned([*jobs, more], "search-once"))
    whole = table.whole_trials()
    assert whole.estimate("ERM", only("north")).n == 3 and not whole.uncounted
    assert whole.estimate("ERM", AVERAGE) is None
    (redrawn,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]], planned([*jobs, more], "redraw"))
    assert redrawn.whole_trials().uncounted == {"ERM": {0}}


def test_groups_print_a_standard_deviation():
    jobs = searched_once()
    (table,) = make_tables(jobs, [SELECTIONS["training-domain-validation"]], planned(jobs, "groups"))
    text = as_text(table)
    assert "mean ± standard deviation" in text and "70.0 ±10.0" in text  # of 60, 70, 80


def test_a_command_of_several_lines_is_the_same_command_when_it_is_pasted():
    words = [
        "shiftbed",
        "sweep",
        "my-images",
        "--test=Köln,Site A,gray site",
        "--out=a folder/with 'quotes'",
        "--x" * 30,
    ]
    for width in (20, 40, 78):
        lines = command_lines(shlex.join(words), width)
        assert len(lines) > 1 and all(line.endswith(" \\") for line in lines[:-1])
        shown = "\n  ".join(lines)
        told = subprocess.run(["bash", "-c", f"printf '%s\\n' {shown}"], capture_output=True, text=True, check=True)
        assert told.stdout.splitlines() == words


@pytest.mark.parametrize("rule", ["training-domain-validation", "oracle"])
def test_without_the_trial_that_searches_no_rule_has_a_winner(rule):
    """Trials 1 and 2 repeat the winners of several rules: which is whose, only trial 0 can say."""
    jobs = [record("ERM", "north", t, d, 0.4 + 0.2 * d, 0.3 * d, held_out=0.9) for t in (1, 2) for d in (1, 2)]
    search = [record("ERM", "south", 0, 0, 0.5, 0.6)]  # of another task
    (table,) = make_tables([*jobs, *search], [SELECTIONS[rule]], planned([*jobs, *search], "search-once"))
    assert table.estimates["ERM", only("north")] is None
    assert table.estimates["ERM", only("south")].mean == pytest.approx(60)


def test_a_chosen_record_without_test_accuracy_is_no_number():
    """The test splits of a record may be lost: they are kept in a file of their own."""
    jobs = full_sweep()
    for job in jobs:
        about = job.description
        if (about["algorithm"], about["trial"], about["test_domains"]) == ("CORAL", 2, ["north"]):
            del job.rows[0]["splits"]["north/in"]
    table = table_of(jobs)
    assert [table.estimates["CORAL", only(name)].n for name in DOMAINS] == [2, 3, 3]
    assert table.estimates["CORAL", AVERAGE].n == 2
    assert "nan" not in as_text(table) and "NaN" not in render([table], "json")
    for job in jobs:
        job.rows[0]["splits"] = {n: v for n, v in job.rows[0]["splits"].items() if n.endswith("/out")}
    table = table_of(jobs)
    assert table.is_empty and table.why_empty("ERM", only("north")) == "not recorded: test/in/accuracy"


def test_tables_that_would_have_one_title_say_in_what_they_differ():
    jobs = []
    for setting, fields in (("a", {"network": "small"}), ("b", {"network": "large"}), ("c", {"steps": 20})):
        job = record("ERM", "north", 0, 0, 0.9, 0.5, setting=setting)
        job.description["id"] += setting
        job.description["recipe"] = {**job.description["recipe"], "network": "small", "optimizer": "adam", **fields}
        jobs.append(job)
    tables = make_tables(jobs, [SELECTIONS["training-domain-validation"]])
    begin = "Toy (version 3), recipe quick,"
    titles = [f"{begin} 10 steps, network = small", f"{begin} 10 steps, network = large", f"{begin} 20 steps"]
    assert [table.title for table in tables] == titles
    rows = csv.DictReader(io.StringIO(render(tables, "csv")))
    assert [row["fields"] for row in rows] == ["network=small"] * 2 + ["network=large"] * 2 + [""] * 2


def test_csv_of_any_grid_has_single_values_and_one_line_a_row():
    """A benchmark prints grids, of which those without published numbers have the rows of a table."""
    table = table_of(full_sweep())
    assert render([table.grid()], "csv") + "\n" == as_csv([table]) == render([table], "csv") + "\n"
    assert "{" not in as_csv([table])


def test_rows_for_machines_name_the_company_of_a_domain():
    rows = as_rows([table_of([joint(0, {"north": (0.2, 10), "south": (0.6, 30)})])])
    company = [(row["test"], row["tested_with"]) for row in rows]
    assert company == [("north", ["south"]), ("south", ["north"]), ("average", [])]
