import base64
import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

from shiftbed.audit.ledger import queries_of
from shiftbed.cli import app
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.data.load import forget
from shiftbed.errors import StoreError, UnknownNameError
from shiftbed.hashing import canonical
from shiftbed.report import page_charts, page_results
from shiftbed.report.page import write_page
from shiftbed.report.page_html import finite, signed, ticked
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.matrix import REST, Cell, ShiftMatrix
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.domainbed_format import import_domainbed
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.tables import as_csv, read_tables
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore
from tests.audit.made_sweeps import write_sweep
from tests.report.reading import Reader, csv_rows, printed
from tests.sweeps.finished import finish
from tests.sweeps.test_domainbed_format import line, write_run

MOST_BYTES = 8_000_000
EVIL = "<script>alert(1)<!--"
ALSO_EVIL = "\"><img src=x onerror=alert(2)> & 'quotes' {{ 7 * 7 }}"


def shift_json(name, diversity, correlation):
    def estimate(kind, value):
        interval = [value - 0.01, value + 0.01]
        return {
            **{"name": kind, "value": value, "standard_error": 0.005, "interval": interval, "count": 300},
            **{"notes": [], "details": {}},
        }

    both = {"diversity": estimate("diversity", diversity), "correlation": estimate("correlation", correlation)}
    return {"dataset": name, "train": "a", "test": "b", **both}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A made sweep with everything a page can show, and its page."""
    folder = tmp_path_factory.mktemp("swept")
    write_sweep(folder, algorithms=("ERM", "CORAL", "IRM"), draws=3, trials=3)
    (folder / "shift").mkdir()
    (folder / "shift" / "ColoredDigits.json").write_text(json.dumps(shift_json("ColoredDigits", 0.01, 0.6)))
    cells = (Cell("a", "b", "mmd", (ShiftEstimate("mmd", 0.25),)), Cell("a", REST, "mmd", (ShiftEstimate("mmd", 9.0),)))
    matrix = ShiftMatrix(("a", "b", "c"), cells)
    (folder / "shift" / "ColoredDigits-matrix.json").write_text(json.dumps(matrix.as_json()))
    (folder / "accuracy").mkdir()
    row = {
        **{"dataset": "ColoredDigits", "domain": "-90%", "algorithm": "ERM", "job": "x", "method": "atc-mc"},
        **{"accuracy": 0.5, "low": 0.4, "high": 0.65, "level": 0.9, "true": 0.61, "images": 100, "trust": "Near."},
    }
    (folder / "accuracy" / "predictions.json").write_text(json.dumps([row]))
    write_page(folder)
    return folder, Reader((folder / "report.html").read_text())


def test_every_number_of_the_tables_is_on_the_page(swept):
    folder, page = swept
    rows = csv_rows(as_csv(read_tables(folder)))
    assert {row["selection"] for row in rows} == {"training-domain-validation", "oracle"}
    for row in rows:
        domains = page.cells("domains", row["selection"], row["dataset"])
        column = "Avg" if row["test"] == "average" else row["test"]
        assert domains[row["algorithm"], column] == printed(row)
        if row["test"] == "average":
            board = page.cells("leaderboard", row["selection"], row["dataset"])
            assert board[row["algorithm"], "accuracy"] == printed(row)
            assert board[row["algorithm"], "n"] == row["n"]


def test_the_page_s_own_csv_is_that_of_the_tables(swept):
    folder, page = swept
    assert json.loads(page.scripts[0])["csv"] == as_csv(read_tables(folder))


def test_each_cell_is_numbered_as_the_row_of_its_provenance(swept):
    _, page = swept
    numbers = json.loads(page.scripts[0])["numbers"]
    cells = [about for tag, about in page.elements if "data-number" in about]
    assert len({about["data-number"] for about in cells}) == len(numbers)
    for about in cells:
        assert float(about["data-value"]) == numbers[int(about["data-number"])]["accuracy"]
    for row in numbers:
        assert row["test"] == "average" or len(row["chosen"]) == row["n"] == 3


def test_all_sections_are_there_when_their_data_are(swept):
    _, page = swept
    assert {"datasets", "shift", "leaderboards", "domains", "training", "draws", "audit", "prediction"} <= page.ids
    assert {"failures", "provenance", "cite"} <= page.ids
    assert "correlation shift dominates" in page.text
    charts = json.loads(page.scripts[0])["charts"]
    assert {"plane", "matrix-0", "curves-0", "predictions"} <= set(charts)
    assert "-11.0" in page.text.replace("−", "-")  # predicted 50, true 61


def test_sections_without_data_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("shiftbed.report.page_shift.shift_kind", lambda dataset: "unknown")  # as of an own dataset
    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)
    page = Reader(write_page(tmp_path, tmp_path / "sub" / "page.html").read_text())
    assert not {"shift", "prediction", "cost"} & page.ids
    assert "#shift" not in [about.get("href") for _, about in page.elements]
    assert "All jobs have the same hyperparameters" in page.text
    assert "Measure how far apart the domains of ColoredDigits are." in page.text


def test_the_page_is_one_small_file_that_asks_for_nothing(swept):
    folder, page = swept
    assert (folder / "report.html").stat().st_size < MOST_BYTES
    for tag, about in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "srcset"):
            assert about.get(name, "#").startswith(("#", "data:"))
    styles = re.search(r"<style>(.*?)</style>", (folder / "report.html").read_text(), re.DOTALL)
    assert "url(" not in styles[1] and "@import" not in styles[1]


def test_only_the_page_s_own_scripts_may_run(swept):
    _, page = swept
    (policy,) = [about["content"] for _, about in page.elements if about.get("http-equiv")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert "default-src 'none'" in policy
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_equal_folders_make_equal_pages(swept):
    folder, _ = swept
    again = write_page(folder, folder / "again.html").read_text()
    assert write_page(folder, folder / "third.html").read_text() == again
    rule = "training-domain-validation"
    one, listed = (write_page(folder, folder / "one.html", selections=some).read_text() for some in (rule, [rule]))
    assert one == listed, "a selection may stand alone"


def test_what_the_oracle_looked_at_is_written_down(tmp_path):
    store = write_sweep(tmp_path, algorithms=("ERM",), draws=2, trials=1)
    assert not queries_of(store)
    write_page(tmp_path)
    found = queries_of(store)
    assert len(found) == 3 * 2  # domains × draws
    assert {query.rule for query in found} == {"oracle"}


@pytest.fixture
def evil_dataset(tmp_path, monkeypatch):
    """A dataset whose names are markup."""
    random = np.random.default_rng(0)
    names = (EVIL, ALSO_EVIL, "plain")
    labels = np.arange(20) % 2
    domains = [Domain(name, random.integers(0, 255, (20, 8, 8, 3), dtype=np.uint8), labels) for name in names]
    card = Card(
        name="Evil",
        version=1,
        summary=f"Images {EVIL}",
        classes=(f"<b>{EVIL}</b>", ALSO_EVIL),
        domains=dict.fromkeys(names, 20),
        input_shape=(3, 8, 8),
        size_class="small",
        licence="</style><script>alert(3)</script>",
        citation="`</script>`",
        source="made",
    )
    write_arrays(domains, card, tmp_path / "root" / "packs" / card.name)
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "root"))
    forget()
    yield card.name
    forget()


def test_names_that_are_markup_are_text(evil_dataset, tmp_path):
    folder = tmp_path / "<i>sweep"
    write_sweep(folder, dataset=evil_dataset, algorithms=("ERM", "IRM"), draws=2, trials=2)
    text = write_page(folder).read_text()
    page = Reader(text)
    assert len(page.scripts) == 3
    assert sum(tag == "img" for tag, _ in page.elements) == 3  # one strip of pictures a domain
    assert not [about for _, about in page.elements for name in about if name.startswith("on")]
    (heads,) = {tuple(t["rows"][0]) for t in page.tables if t["about"].get("data-table") == "domains"}
    assert heads == ("algorithm", EVIL, ALSO_EVIL, "plain", "Avg")
    for name in (f"<b>{EVIL}</b>", ALSO_EVIL, "<i>sweep"):
        assert " ".join(name.split()) in page.text
    data = json.loads(page.scripts[0])
    assert data["draws"][0]["tested"] == [EVIL, ALSO_EVIL, "plain"]
    assert EVIL not in page.scripts[0]  # it stands there escaped


def test_names_in_charts_are_escaped_for_plotly(tmp_path, swept):
    estimate = ShiftEstimate("diversity", 0.5, interval=(0.4, 0.6), count=3)
    drawn = json.dumps(page_charts.plane({EVIL: (estimate, estimate)})["traces"])
    assert "&lt;script&gt;" in drawn and "<script" not in drawn
    assert "<script" not in json.dumps(page_charts.heat_map([EVIL, "b"], [[0, 1], [1, 0]], EVIL)["traces"])


def test_failed_diverged_and_unfinished_jobs_are_named(tmp_path):
    store = LocalStore(tmp_path)
    jobs = plan(Request(["ColoredDigits"], ["ERM"], draws=2, test_domains=["-90%"], trials=2))
    remember_plan(jobs, store)
    finish(store, jobs[0], seconds=36.0)
    finish(store, jobs[1], status="diverged", seconds=36.0)
    store.put_atomic(JobFiles(jobs[2].id).failure, json.dumps({"why": f"no memory {EVIL}"}).encode())
    page = Reader(write_page(tmp_path).read_text())
    assert "1 failed, 1 diverged, 1 not finished of 4 planned." in page.text
    assert f"{jobs[2].id} failed: no memory {EVIL}" in page.text
    assert f"{jobs[1].id} diverged: ERM on ColoredDigits" in page.text
    assert "0.02 device-hours in all" in page.text  # two jobs of 36 s
    assert "shiftbed sweep ColoredDigits --algorithms=ERM" in page.text


def test_a_sweep_whose_jobs_all_diverged_has_a_page_that_says_so(tmp_path):
    store = LocalStore(tmp_path)
    jobs = plan(Request(["ColoredDigits"], ["ERM", "IRM"], test_domains=["-90%"]))
    remember_plan(jobs, store)
    for job in jobs:
        store.put_atomic(JobFiles(job.id).job, canonical(job.describe()))
        store.put_atomic(JobFiles(job.id).done, canonical({"status": "diverged", "step": 1, "records": []}))
    page = Reader(write_page(tmp_path).read_text())
    assert "There is no full comparison yet." in page.text
    assert "0 failed, 2 diverged, 0 not finished of 2 planned." in page.text
    assert "so there is no curve" in page.text and "Train the chosen model again" not in page.text
    assert set(page.cells("leaderboard", "training-domain-validation", "ColoredDigits").values()) >= {"–"}


def test_very_many_numbers_are_left_to_the_command(tmp_path, monkeypatch):
    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)
    monkeypatch.setattr(page_results, "MOST_ROWS", 3)
    page = Reader(write_page(tmp_path).read_text())
    assert "numbers" not in page.ids
    assert f"shiftbed tables {tmp_path} --format csv" in page.text


def test_the_page_is_written_without_a_network(tmp_path, monkeypatch):
    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)

    def refuse(*_):
        raise AssertionError("a page needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    write_page(tmp_path)


def test_other_selections_can_be_shown(tmp_path):
    write_sweep(tmp_path, algorithms=("ERM",), draws=2, trials=1)
    page = Reader(write_page(tmp_path, selections=["last-step", "validation-loss"]).read_text())
    offered = [about["value"] for tag, about in page.elements if tag == "input" and about.get("name") == "selection"]
    assert offered == ["last-step", "validation-loss"]


def test_a_folder_without_a_finished_job_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"There is no finished job in .*; `shiftbed sweep"):
        write_page(tmp_path)


def test_an_unknown_selection_is_one_sentence(tmp_path):
    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)
    with pytest.raises(UnknownNameError, match=r"There is no selection 'orcale'\. Did you mean oracle"):
        write_page(tmp_path, selections=["orcale"])


@pytest.mark.parametrize(
    "how",
    [
        {"protocol": "leave-pair-out"},
        {"protocol": "k-sources:1"},
        {"design": "search-once"},
        {"adapt": 0.5},
        {"overrides": {"lr": 0.01}},
        {"algorithms": ("ERM", "SWAD(CORAL)")},
    ],
    ids=str,
)
def test_every_kind_of_sweep_has_a_page_with_its_numbers(tmp_path, how):
    write_sweep(tmp_path, **{"algorithms": ("ERM", "IRM"), "draws": 2, "trials": 2, **how})
    page = Reader(write_page(tmp_path).read_text())
    tables = read_tables(tmp_path)
    for rule in {table.selection.name for table in tables}:
        mine = [table.grid() for table in tables if table.selection.name == rule]
        for grid, (_, shown) in zip(mine, page.all_cells("domains", rule), strict=True):
            for name, entries in grid.rows:
                assert [shown[name, heading] for heading in grid.columns] == [entry.text for entry in entries]


def test_a_compacted_folder_has_the_same_numbers_on_its_page(tmp_path):
    store = write_sweep(tmp_path, algorithms=("ERM", "IRM"), draws=2, trials=2)
    before = Reader(write_page(tmp_path).read_text())
    compact(store)
    shutil.rmtree(tmp_path / "jobs")
    after = Reader(write_page(tmp_path).read_text())
    assert json.loads(after.scripts[0]) == json.loads(before.scripts[0])


def test_a_sweep_of_domainbed_has_a_page(tmp_path):
    for seed in (0, 1):
        accuracies = {f"env{env}_{part}_acc": 0.5 + 0.1 * env for env in range(4) for part in ("in", "out")}
        lines = [line(step, seed=seed, **accuracies) for step in (0, 300)]
        write_run(tmp_path / "theirs", f"run-{seed}", lines)
    import_domainbed(tmp_path / "theirs", tmp_path / "ours")
    page = Reader(write_page(tmp_path / "ours").read_text())
    (column,) = [c for c in page.cells("domains", "training-domain-validation", "PACS") if c[1] not in ("Avg",)][:1]
    assert page.cells("domains", "training-domain-validation", "PACS")[column] == "60.0"
    assert "No pictures: PACS is not prepared here" in page.text


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Cannot write .*page.html: .*file is not a folder; choose another folder."):
        write_page(tmp_path, tmp_path / "file" / "page.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"Cannot write .*folder: it is a folder; name a file."):
        write_page(tmp_path, tmp_path / "folder")
    assert not list(tmp_path.glob("*folder?*")), "a page is large, and nobody looks for it there"


def test_a_damaged_measurement_is_one_sentence(tmp_path):
    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)
    (tmp_path / "shift").mkdir()
    (tmp_path / "shift" / "ColoredDigits.json").write_text("{")
    with pytest.raises(StoreError, match="is damaged; remove it"):
        write_page(tmp_path)


def test_pairs_of_domains_fill_both_halves_of_the_heat_map_and_leave_gaps(swept):
    chart = json.loads(swept[1].scripts[0])["charts"]["matrix-0"]
    assert chart["traces"][0]["z"] == [[0.0, 0.25, None], [0.25, 0.0, None], [None, None, 0.0]]
    assert chart["traces"][0]["x"] == ["a", "b", "c"]
    assert "ColoredDigits: mmd between domains" in swept[1].text


def test_the_command_names_the_page(tmp_path):
    from typer.testing import CliRunner

    write_sweep(tmp_path, algorithms=("ERM",), draws=1, trials=1)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["page"] == str(tmp_path / "report.html") and 1e6 < said["bytes"] < MOST_BYTES
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "other.html")])
    assert "other.html" in done.output.replace("\n", "") and "Next: " in done.output


def test_the_help_does_not_import_plotly_or_jinja():
    code = (
        "import sys, shiftbed.cli\nsys.argv = ['shiftbed', 'report', '--help']\n"
        "try:\n    shiftbed.cli.main()\nexcept SystemExit:\n    pass\n"
        "assert not {'plotly', 'jinja2', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_difference_that_rounds_to_nothing_has_no_minus_as_in_tables():
    assert [signed(number) for number in (-0.04, 0.04, -1.26)] == ["+0.0", "+0.0", "−1.3"]


def test_words_between_backticks_are_code_and_still_text():
    assert ticked("run `a <b>` & <i>") == "run <code>a &lt;b&gt;</code> &amp; &lt;i&gt;"
    assert ticked("one ` <i>") == "one ` &lt;i&gt;"


def test_what_is_no_finite_number_is_nothing():
    assert finite({"a": [1.5, float("nan"), (float("inf"), "text")], "b": 2}) == {
        "a": [1.5, None, [None, "text"]],
        "b": 2,
    }
