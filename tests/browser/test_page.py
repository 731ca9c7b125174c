"""The page as a reader has it before them: opened from disk, in a browser without a network."""

import json
import re

import pytest

from shiftbed.algorithms.alignment import CORAL
from shiftbed.report.page import write_page
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from tests.audit.made_sweeps import write_sweep
from tests.report.reading import csv_rows, printed
from tests.report.test_page import ALSO_EVIL, EVIL, evil_dataset, shift_json

__all__ = ["evil_dataset"]  # a fixture
pytestmark = pytest.mark.browser

RULES = ("training-domain-validation", "oracle")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A made sweep of two datasets with a measured shift, and its page."""
    folder = tmp_path_factory.mktemp("swept")
    for dataset, seed in (("ColoredDigits", 0), ("RotatedDigits", 1)):
        write_sweep(folder, dataset=dataset, algorithms=("ERM", "CORAL", "IRM"), draws=3, trials=3, seed=seed)
    (folder / "shift").mkdir()
    (folder / "shift" / "ColoredDigits.json").write_text(json.dumps(shift_json("ColoredDigits", 0.01, 0.6)))
    return folder, write_page(folder)


def choose(page, rule):
    page.get_by_role("radio", name=rule).check()


def shown_table(page, kind, rule, dataset):
    return page.locator(f'table[data-table="{kind}"][data-rule="{rule}"][data-dataset="{dataset}"]')


def texts(table):
    """The cells that a reader sees, by algorithm and column."""
    heads = [text.strip() for text in table.locator("thead th").all_inner_texts()]
    found = {}
    for row in table.locator("tbody tr").all():
        name, *cells = [" ".join(text.split()) for text in row.locator("th, td").all_inner_texts()]
        found |= {(name, head): text for head, text in zip(heads[1:], cells, strict=True)}
    return found


def test_there_is_no_network_to_ask(swept, open_page):
    page = open_page(swept[1])
    assert page.evaluate("navigator.onLine") is False


def test_every_leaderboard_cell_is_that_of_the_tables_command(swept, open_page):
    import subprocess
    import sys

    folder, path = swept
    command = [sys.executable, "-m", "shiftbed", "tables", str(folder), "--format", "csv"]
    rows = csv_rows(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    page = open_page(path)
    compared = 0
    for rule in RULES:
        choose(page, rule)
        for dataset in ("ColoredDigits", "RotatedDigits"):
            board = texts(shown_table(page, "leaderboard", rule, dataset))
            domains = texts(shown_table(page, "domains", rule, dataset))
            for row in rows:
                if (row["selection"], row["dataset"]) == (rule, dataset):
                    column = "Avg" if row["test"] == "average" else row["test"]
                    assert domains[row["algorithm"], column] == printed(row)
                    compared += 1
                    if column == "Avg":
                        assert board[row["algorithm"], "accuracy"] == printed(row)
    assert compared == len(rows) == 2 * 3 * (3 + 1 + 6 + 1)


def test_switching_the_selection_shows_its_numbers_and_hides_the_others(swept, open_page):
    page = open_page(swept[1])
    for rule, other in (RULES, RULES[::-1], RULES):
        choose(page, rule)
        assert shown_table(page, "leaderboard", rule, "ColoredDigits").is_visible()
        assert not shown_table(page, "leaderboard", other, "ColoredDigits").is_visible()


def test_the_keyboard_switches_selections_too(swept, open_page):
    page = open_page(swept[1])
    page.get_by_role("radio", name=RULES[0]).focus()
    page.keyboard.press("ArrowRight")
    assert shown_table(page, "leaderboard", "oracle", "ColoredDigits").is_visible()


def test_a_heading_sorts_its_column_both_ways_and_says_so(swept, open_page):
    page = open_page(swept[1])
    table = shown_table(page, "domains", RULES[0], "RotatedDigits")
    heading = table.locator("thead th").nth(2)

    def values():
        return [float(text.split()[0]) for text in table.locator("tbody tr td:nth-child(3)").all_inner_texts()]

    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert values() == sorted(values(), reverse=True)
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(values())
    table.locator("thead th").first.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") is None
    assert table.locator("tbody th").all_inner_texts() == ["CORAL", "ERM", "IRM"]


def test_a_number_says_what_it_rests_on_to_mouse_and_keyboard(swept, open_page):
    page = open_page(swept[1])
    table = shown_table(page, "domains", RULES[0], "ColoredDigits")
    table.locator("tbody tr").first.locator("td").first.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert len(re.findall(r"trial \d: job [0-9a-f]{20}, draw \d, step \d+", tip.inner_text())) == 3
    assert "n = 3, training-domain-validation, of 3 draws" in tip.inner_text()
    cells = table.locator(".cell")
    cells.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    assert table.locator("tbody tr").nth(1).locator("td").nth(1).evaluate("cell => cell === document.activeElement")
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_charts_answer_the_mouse(swept, open_page):
    page = open_page(swept[1])
    page.locator("#shift").scroll_into_view_if_needed()
    point = page.locator('[data-chart="plane"] .scatterlayer .trace').nth(1).locator("path.point")
    point.wait_for()
    point.hover(force=True)
    page.wait_for_function("document.querySelector('[data-chart=plane] .hoverlayer').textContent.length > 0")
    said = page.locator('[data-chart="plane"] .hoverlayer').text_content()
    assert "ColoredDigits" in said and "0.600" in said


def test_curves_follow_the_selection(swept, open_page):
    page = open_page(swept[1])
    page.locator("#training").scroll_into_view_if_needed()
    page.locator('[data-chart="curves-0"] .scatterlayer .trace').first.wait_for()
    read = "document.querySelector('[data-chart=curves-0]').data.map(trace => [...trace.y])"
    before = page.evaluate(read)
    choose(page, "oracle")
    assert page.evaluate(read) != before


def test_hyperparameters_can_be_chosen(swept, open_page):
    page = open_page(swept[1])
    page.locator("#draws").scroll_into_view_if_needed()
    page.locator('[data-chart="draws"] .scatterlayer .trace').first.wait_for()
    count = "document.querySelector('[data-chart=draws]').data.map(trace => trace.x.length).reduce((a, b) => a + b)"
    assert page.evaluate(count) == 3 * 3 * 3 * 3  # algorithms × draws × trials × domains
    page.locator("#draws-tested").select_option("-90%")
    assert page.evaluate(count) == 3 * 3 * 3
    page.locator("#draws-name").select_option("mmd_gamma")
    title = "document.querySelector('[data-chart=draws]').layout.xaxis.title.text"
    assert page.evaluate(title) == "mmd_gamma"
    assert page.evaluate(count) == 3 * 3  # which CORAL alone has


def test_all_numbers_can_be_listed_filtered_and_saved(swept, open_page):
    page = open_page(swept[1])
    page.locator("#numbers summary").click()
    page.locator("#numbers-filter").fill("oracle IRM average")
    rows = page.locator("#numbers-table tbody tr")
    assert rows.count() == 2  # datasets
    with page.expect_download() as download:
        page.locator("#save").click()
    saved = csv_rows(download.value.path().read_text())
    assert len(saved) == 66


def test_the_page_is_light_dark_and_fits_a_phone(swept, open_page):
    for scheme, lighter in (("light", True), ("dark", False)):
        page = open_page(swept[1], color_scheme=scheme, viewport={"width": 390, "height": 844}, is_mobile=True)
        brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        assert (sum(page.evaluate(brightness)) > 3 * 128) is lighter
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # draws all charts
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#theme").click()
        assert (sum(page.evaluate(brightness)) > 3 * 128) is not lighter


def test_names_that_are_markup_do_nothing(evil_dataset, tmp_path, open_page):
    write_sweep(tmp_path / "sweep", dataset=evil_dataset, algorithms=("ERM", "IRM"), draws=2, trials=2)
    page = open_page(write_page(tmp_path / "sweep"))
    opened = []
    page.on("dialog", lambda dialog: opened.append(dialog.message) or dialog.dismiss())
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.locator("#numbers summary").click()
    page.locator('table[data-table="domains"] .cell:visible').first.hover()
    page.wait_for_timeout(300)
    heads = shown_table(page, "domains", RULES[0], evil_dataset).locator("thead th").all_inner_texts()
    assert [" ".join(head.split()) for head in heads] == [
        "algorithm",
        EVIL,
        " ".join(ALSO_EVIL.split()),
        "plain",
        "Avg",
    ]
    assert page.locator("script").count() == 3
    page.locator("#draws-tested").select_option(EVIL)
    assert not opened


def train(folder):
    """A small real sweep, in this process."""
    store = LocalStore(folder)
    jobs = plan(Request(["ColoredDigits"], ["ERM", "CORAL"], trials=2, test_domains=["+90%"], fields={"steps": 60}))
    remember_plan(jobs, store)
    for job in jobs:
        run_job(job, store)
    return write_page(folder)


def test_a_broken_coral_changes_the_page(tmp_path, open_page, monkeypatch):
    before = open_page(train(tmp_path / "right"))
    broken = CORAL.objective

    def backwards(self, batches, step):
        loss, metrics = broken(self, batches, step)
        return -loss, metrics  # climbs instead of descending

    monkeypatch.setattr(CORAL, "objective", backwards)
    after = open_page(train(tmp_path / "broken"))
    one, other = (texts(shown_table(page, "leaderboard", RULES[0], "ColoredDigits")) for page in (before, after))
    assert one["ERM", "accuracy"] == other["ERM", "accuracy"]
    assert float(other["CORAL", "accuracy"].split()[0]) < float(one["CORAL", "accuracy"].split()[0]) - 5
    assert "nothing is better than plain ERM" in after.locator("#summary").inner_text()
