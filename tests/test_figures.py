"""Figures: what they are drawn from, what is refused, and how the files are made."""

import json
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import shiftbed
from shiftbed.accuracy.pictures import errors_by_accuracy, scatter
from shiftbed.accuracy.studies import Scores
from shiftbed.cli import app
from shiftbed.data.prepare import prepare
from shiftbed.drawing import COLOURS, MARKERS, blank, look, save
from shiftbed.errors import DataError, ShiftbedError, StoreError, UnknownNameError
from shiftbed.report.figures import FIGURES
from shiftbed.report.figures_drawn import density, frozen_stages, improvement, leaderboard, predictions
from shiftbed.selection import SELECTIONS
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.matrix import Cell, ShiftMatrix
from shiftbed.shift.pictures import embedding
from shiftbed.shift.samples import Sample
from shiftbed.tables import AVERAGE
from shiftbed.tables.estimates import Estimate

ESTIMATE = ShiftEstimate("mmd", 0.5, 0.1, (0.3, 0.7), 20, ("a note",), {"null": 0.0})


def measured(folder, name="mine"):
    both = {kind: ShiftEstimate(kind, 0.4, 0.1, (0.2, 0.6), 10).as_json() for kind in ("diversity", "correlation")}
    (folder / "shift").mkdir(parents=True, exist_ok=True)
    (folder / "shift" / f"{name}.json").write_text(json.dumps({"dataset": name, **both}))


def test_fonts_of_a_pdf_are_in_it_and_are_not_of_type_3(tmp_path):
    measured(tmp_path)
    data = shiftbed.figure("shift-plane", tmp_path, tmp_path / "plane.pdf").read_bytes()
    assert data.startswith(b"%PDF") and b"/FontFile2" in data and b"/Type3" not in data
    again = shiftbed.figure("shift-plane", tmp_path, tmp_path / "again.pdf").read_bytes()
    assert data == again, "equal figures are equal files"


def test_every_other_format_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(DataError, match=r"figure.docx cannot be; name one that ends in .png, .pdf or .svg"):
        save(blank(1, 1), tmp_path / "figure.docx")


def test_colours_come_back_with_other_markers():
    seen = {look(number) for number in range(len(COLOURS) * len(MARKERS))}
    assert len(seen) == len(COLOURS) * len(MARKERS)
    assert look(0)[0] == look(len(COLOURS))[0]


def test_names_with_dollars_are_text(tmp_path):
    rows = [{"algorithm": "$\\frac$", "test": "$a", "baseline": 40.0, "improvement": 1.0}]
    assert improvement(rows, "ERM", tmp_path / "figure.png").stat().st_size > 5000


def test_a_density_is_one():
    at, height = density(np.array([1.0, 2.0, 4.0, 8.0]))
    assert np.trapezoid(height, at) == pytest.approx(1, abs=0.01)
    at, height = density(np.array([3.0]))
    assert at[height.argmax()] == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("name", sorted(set(FIGURES) - {"class-counts", "tsne"}))
def test_an_empty_folder_names_the_command_that_fills_it(name, tmp_path):
    with pytest.raises(StoreError, match="`shiftbed"):
        shiftbed.figure(name, tmp_path, tmp_path / "figure.pdf")


def test_a_folder_that_a_measurement_wrote_is_a_folder_of_results(tmp_path):
    measured(tmp_path)
    cells = (Cell("a", "b", "mmd", (ESTIMATE,)),)
    (tmp_path / "shift" / "mine-matrix.json").write_text(json.dumps(ShiftMatrix(("a", "b"), cells).as_json()))
    for name in ("shift-plane", "shift-matrix"):
        there = shiftbed.figure(name, tmp_path, tmp_path / "there.pdf").read_bytes()
        assert shiftbed.figure(name, tmp_path / "shift", tmp_path / "itself.pdf").read_bytes() == there
    rows = [{"method": "doc", "mae": 1.0, "100 images": 1.0, "without a": 0.1}]
    (tmp_path / "judged").mkdir()
    (tmp_path / "judged" / "changes.json").write_text(json.dumps(rows))
    assert shiftbed.figure("set-size", tmp_path / "judged", tmp_path / "sizes.pdf").exists()


def test_unknown_figures_options_and_folders_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean leaderboard"):
        shiftbed.figure("leader", tmp_path, tmp_path / "figure.pdf")
    with pytest.raises(ShiftbedError, match="The figure shift-plane has no option 'dataset'; it has none"):
        shiftbed.figure("shift-plane", tmp_path, tmp_path / "figure.pdf", dataset="PACS")
    with pytest.raises(StoreError, match=r"There is no finished job in .*nowhere; `shiftbed sweep"):
        shiftbed.figure("leaderboard", tmp_path / "nowhere", tmp_path / "figure.pdf")
    with pytest.raises(StoreError, match=r"`shiftbed accuracy RUNS --out .*nowhere/accuracy` makes it"):
        shiftbed.figure("prediction-error", tmp_path / "nowhere", tmp_path / "figure.pdf")
    with pytest.raises(StoreError, match="name a dataset with --dataset"):
        shiftbed.figure("class-counts", tmp_path, tmp_path / "figure.pdf")


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "shift").mkdir()
    (tmp_path / "shift" / "mine.json").write_text("{")
    with pytest.raises(StoreError, match=r"mine.json is damaged"):
        shiftbed.figure("shift-plane", tmp_path, tmp_path / "figure.pdf")


def test_a_matrix_and_scores_survive_their_files(tmp_path):
    matrix = ShiftMatrix(("a", "b"), (Cell("a", "b", "mmd", (ESTIMATE,)), Cell("a", "b", "ni", why_not="no labels")))
    assert ShiftMatrix.from_json(json.loads(json.dumps(matrix.as_json()))) == matrix
    scores = Scores(
        ("m",), ("d", "e"), np.array(["g", "h"]), np.array([3, 4]), np.array([[0.5, 0.6]]), {"doc": np.ones((1, 2))}
    )
    read = Scores.from_json(json.loads(json.dumps(scores.as_json())))
    assert read.classifiers == scores.classifiers and read.domains == scores.domains
    for name in ("groups", "images", "accuracies"):
        np.testing.assert_array_equal(getattr(read, name), getattr(scores, name))
    np.testing.assert_array_equal(read.values["doc"], scores.values["doc"])


def test_the_measure_of_a_matrix_can_be_chosen(tmp_path):
    cells = tuple(Cell("a", "b", name, (ShiftEstimate(name, 0.5),)) for name in ("emd", "mmd"))
    (tmp_path / "shift").mkdir()
    file = tmp_path / "shift" / "mine-matrix.json"
    file.write_text(json.dumps(ShiftMatrix(("a", "b"), cells).as_json()))
    svg = shiftbed.figure("shift-matrix", tmp_path, tmp_path / "figure.svg", measure="mmd").read_text()
    assert "<svg" in svg
    with pytest.raises(DataError, match=r"has no measure 'mdm'. Did you mean mmd"):
        shiftbed.figure("shift-matrix", tmp_path, tmp_path / "figure.svg", measure="mdm")


def test_images_of_different_sizes_are_drawn_at_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    for domain in ("here", "there"):
        for number in range(20):  # as few as a sample may have
            path = tmp_path / "mine" / domain / "cat" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (20 + number, 30, 3), np.uint8)).save(path)
    prepare(str(tmp_path / "mine"))
    assert shiftbed.figure("tsne", tmp_path, tmp_path / "figure.png", dataset="mine").stat().st_size > 5000


def test_class_counts_print_every_count(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # letters stay letters
    svg = shiftbed.figure("class-counts", tmp_path, tmp_path / "counts.svg", dataset="ColoredDigits").read_text()
    from shiftbed.data import load

    for domain in load("ColoredDigits").domains:
        for count in np.bincount(domain.labels):
            assert re.search(rf">\s*{count}\s*<", svg)


def test_frozen_stages_has_a_panel_for_each_initial_weights(tmp_path):
    rows = [
        {
            "dataset": "D",
            "weights": weights,
            "frozen": frozen,
            "probe": frozen == 2,
            "test": test,
            "mean": 50.0,
            "error": 1.0,
        }
        for weights in ("none", "imagenet")
        for frozen in range(3)
        for test in ("a", "b")
    ]
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "study.json").write_text(json.dumps(rows))
    one = Image.open(frozen_stages(rows[:6], tmp_path / "one.png"))
    two = Image.open(shiftbed.figure("frozen-stages", tmp_path, tmp_path / "two.png"))
    assert two.width > 1.5 * one.width


def test_frozen_stages_of_two_datasets_names_every_domain_and_ends_each_panel_at_its_own_probe(tmp_path):
    both = (("Toy", 4, ("art", "photo")), ("Digits", 2, ("tilted",)))
    rows = [
        {"dataset": dataset, "weights": "none", "frozen": frozen, "test": test, "mean": 50.0, "error": 1.0}
        for dataset, last, tests in both
        for test in tests
        for frozen in range(last + 1)
    ]
    svg = frozen_stages(rows, tmp_path / "figure.svg").read_text()
    said = re.findall(r"<!-- (.*?) -->", svg)
    assert {"art", "photo", "tilted"} <= set(said)
    assert (svg.count("<!-- 4:"), svg.count("<!-- 2:")) == (1, 1)  # each panel's own probe


def test_predictions_with_infinite_intervals_are_drawn(tmp_path):
    row = {"domain": "a", "true": 0.5, "accuracy": 0.6, "low": 0.0, "high": 1.0}
    assert predictions([row], tmp_path / "figure.png").exists()


def test_a_method_that_is_not_defined_on_all_reduced_sets_is_left_open(tmp_path):
    rows = [
        {"method": "aline-s", "mae": 2.0, "without a": 0.5},
        {"method": "doc", "mae": 1.0, "without a": 0.1, "100 images": 1},
    ]
    (tmp_path / "accuracy").mkdir()
    (tmp_path / "accuracy" / "changes.json").write_text(json.dumps(rows))
    assert shiftbed.figure("set-size", tmp_path, tmp_path / "sizes.pdf").exists()
    (tmp_path / "accuracy" / "changes.json").write_text(json.dumps(rows[:1]))
    with pytest.raises(DataError, match="too few images"):
        shiftbed.figure("set-size", tmp_path, tmp_path / "sizes.pdf")


def test_the_matrix_that_the_command_line_writes_is_the_one_that_figures_read(tmp_path):
    done = CliRunner().invoke(
        app, ["shift", "ColoredDigits", "--matrix", "--measures", "ni", "--out", str(tmp_path / "shift")]
    )
    assert done.exit_code == 0, done.output
    found = ShiftMatrix.from_json(json.loads((tmp_path / "shift" / "ColoredDigits-matrix.json").read_text()))
    assert found.names == ["ni"] and found.domains == ("+90%", "+80%", "-90%")
    assert shiftbed.figure("shift-matrix", tmp_path, tmp_path / "figure.pdf", dataset="ColoredDigits").exists()


def test_predictions_are_missed_with_the_commands_that_make_them(tmp_path):
    with pytest.raises(StoreError, match=r"`shiftbed sweep ... --keep final`, then `shiftbed predict .*` makes it"):
        shiftbed.figure("predictions", tmp_path, tmp_path / "p.pdf")


@pytest.mark.filterwarnings("error")
def test_letters_that_no_font_has_are_no_warning_each(tmp_path):
    figure = blank(2, 2)
    figure.add_subplot().set_title("\ue123")  # of private use
    assert save(figure, tmp_path / "figure.png").exists()


def test_no_title_of_a_panel_runs_into_the_next(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("shiftbed.report.figures_drawn.save", lambda figure, path: drawn.append(figure) or path)
    names, rule = ("ColoredDigits", "EmojiStyles", "RotatedDigits"), SELECTIONS["training-domain-validation"]
    found = {("ERM", AVERAGE): Estimate(80.0, 1.0, 3)}
    leaderboard(
        [SimpleNamespace(algorithms=["ERM"], estimates=found, selection=rule, dataset=name) for name in names],
        tmp_path / "board.png",
    )
    drawn[0].canvas.draw()
    boxes = [axis.title.get_window_extent() for axis in drawn[0].axes]
    assert len(boxes) == 3
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_panels_of_one_dataset_say_what_tells_them_apart(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("shiftbed.report.figures_drawn.save", lambda figure, path: drawn.append(figure) or path)
    made = {"algorithms": ["ERM"], "estimates": {("ERM", AVERAGE): Estimate(80.0, 1.0, 3)}, "dataset": "RotatedDigits"}
    made["selection"] = SELECTIONS["training-domain-validation"]
    titles = [f"RotatedDigits (version 1), recipe quick, {steps} steps" for steps in (20, 100)]
    leaderboard([SimpleNamespace(title=title, **made) for title in titles], tmp_path / "board.png")
    drawn[0].canvas.draw()
    texts = [axis.title for axis in drawn[0].axes]
    assert [" ".join(text.get_text().split()) for text in texts] == [f"{title}, n = 3" for title in titles]
    one, other = (text.get_window_extent() for text in texts)
    assert one.x1 < other.x0


LONG = [f"hospital number {number} in a city with quite a long name, by night" for number in range(20)]


@pytest.mark.parametrize("kind", ["predictions", "errors", "scatter", "embedding"])
def test_a_legend_of_long_names_leaves_the_points_their_room(tmp_path, monkeypatch, kind):
    drawn = []
    for room in ("report.figures_drawn", "accuracy.pictures", "shift.pictures"):
        monkeypatch.setattr(f"shiftbed.{room}.save", lambda figure, path: drawn.append(figure) or path)
    random = np.random.default_rng(0)
    accuracies = random.uniform(0.4, 0.9, (20, 20))
    scores = Scores(tuple(LONG), tuple(LONG), np.array(LONG), np.full(20, 50), accuracies, {"doc": accuracies**2})
    if kind == "predictions":
        row = {"true": 0.5, "accuracy": 0.6, "low": 0.4, "high": 0.8}
        predictions([{"domain": name, **row} for name in LONG], tmp_path / "figure.png")
    elif kind == "errors":
        errors_by_accuracy(scores, tmp_path / "figure.png", "doc")
    elif kind == "scatter":
        scatter(scores, tmp_path / "figure.png", LONG[0])
    else:
        embedding({name: Sample(name, random.normal(size=(5, 4))) for name in LONG}, ["cat"], tmp_path / "figure.png")
    (figure,) = drawn
    figure.canvas.draw()
    (legend,) = [found for axis in figure.axes if (found := axis.get_legend())]
    assert [text.get_text() for text in legend.get_texts()] == LONG
    boxes = [axis.get_window_extent() for axis in figure.axes if axis.axison]
    assert all(box.width > 2 * figure.dpi and box.height > 1.5 * figure.dpi for box in boxes)
    assert legend.get_window_extent().x0 >= max(box.x1 for box in boxes)


@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
def test_a_full_disk_is_one_sentence_in_every_format(tmp_path, suffix):
    full = tmp_path / f"figure{suffix}"
    full.symlink_to("/dev/full")
    figure = blank(3, 3)
    figure.add_subplot().set_title("some words")  # whose font is more than a file keeps before it writes
    with pytest.raises(DataError, match=r"Cannot write .*figure.*: No space left on device; choose another file"):
        save(figure, full)
