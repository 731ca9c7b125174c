"""The matrix of all pairs, what it shares, and the pictures that come of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.data.dataset import Card, Domain, MultiDomainDataset
from shiftbed.errors import DataError, StoreError, UnknownNameError
from shiftbed.published.plane import plane as published_plane
from shiftbed.shift import concept, pictures
from shiftbed.shift.duplicates import note_of_shared, shared_examples
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.matrix import REST, Cell, ShiftMatrix, matrix
from shiftbed.shift.measures import MEASURES, Settings, take
from shiftbed.shift.nico import TRAINED_ON, covariate_and_concept, draw, nico_table_1, run
from shiftbed.shift.samples import Sample, sample, union

QUICK = Settings(most=100, steps=20)
MEANS = {"a": 0.0, "b": 0.1, "c": 3.0}


@pytest.fixture
def samples() -> dict[str, Sample]:
    random = np.random.default_rng(0)
    return {name: sample(name, random.normal(size=(90, 3)) + mean, np.arange(90) % 2) for name, mean in MEANS.items()}


def small_dataset(domains: int = 4, classes: int = 6, n: int = 60) -> MultiDomainDataset:
    random = np.random.default_rng(0)
    names = [f"d{i}" for i in range(domains)]
    made = [Domain(name, random.normal(size=(n, 4)).astype(np.float32) + i, np.arange(n) % classes)
            for i, name in enumerate(names)]  # fmt: skip
    card = Card(
        name="Made",
        version=1,
        summary="made",
        domains=dict.fromkeys(names, n),
        classes=tuple(f"class ${i}$" for i in range(classes)),
        input_shape=(4,),
        size_class="small",
        licence="none",
        source="made",
        citation="none",
    )
    return MultiDomainDataset(card, tuple(made))


def test_every_pair_and_every_domain_against_the_rest_is_what_the_measure_alone_gives(samples):
    found = matrix(samples, ["frechet", "mmd"], QUICK)
    assert found.names == ["frechet", "mmd"] and len(found.cells) == 2 * (3 + 3)
    assert found.estimate("mmd", "c", "a") == take("mmd", samples["a"], samples["c"], QUICK)[0]
    rest = union([samples["a"], samples["c"]], REST)
    assert found.against_the_rest("frechet")["b"] == take("frechet", samples["b"], rest, QUICK)[0]


def test_the_values_are_symmetric_with_zeros_between_a_domain_and_itself(samples):
    values = matrix(samples, ["frechet"], QUICK).values("frechet")
    assert (values == values.T).all() and (np.diag(values) == 0).all()
    assert values[0, 1] < values[0, 2]


def test_of_two_domains_the_other_is_the_rest(samples):
    found = matrix({name: samples[name] for name in "ab"}, ["mmd"], QUICK)
    assert len(found.cells) == 1 and found.against_the_rest("mmd") == {}


def test_without_labels_in_one_domain_the_others_are_measured_and_reasons_given(samples, tmp_path):
    samples["c"] = sample("c", samples["c"].inputs)
    found = matrix(samples, ["ni", "mmd"], QUICK)
    assert np.isnan(found.values("ni")[0, 2]) and np.isfinite(found.values("ni")[0, 1])
    assert np.isfinite(found.values("mmd")).all()
    assert any("ni needs the labels of 'c'" in line for line in found.missing)
    assert is_drawn(pictures.heat_map(found, "ni", tmp_path / "ni.png"))


def test_a_heat_map_of_no_shift_at_all_is_drawn_without_a_warning(tmp_path, recwarn):
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    cells = tuple(Cell(*pair, "m", (ShiftEstimate("m", 0.0),)) for pair in pairs)
    assert is_drawn(pictures.heat_map(ShiftMatrix(("a", "b", "c"), cells), "m", tmp_path / "heat.png"))
    assert not recwarn.list


def test_other_groups_are_other_examples(samples, tmp_path):
    saved = tmp_path / "kept.json"
    grouped = {name: replace(one, groups=np.arange(90) // 2) for name, one in samples.items()}
    apart = [matrix(each, ["a-distance"], QUICK, saved=saved) for each in (samples, grouped)]
    assert apart[1] == matrix(grouped, ["a-distance"], QUICK) != apart[0]


def test_a_domain_that_cannot_be_compared_leaves_its_cells_empty(samples):
    samples["d"] = sample("d", samples["a"].inputs[:12])
    samples["e"] = sample("e", np.zeros((90, 4)))
    found = matrix(samples, ["mmd"], QUICK)
    assert np.isfinite(found.values("mmd")[:3, :3]).all() and np.isnan(found.values("mmd")[3:, :3]).all()
    assert any("'d' has 12 examples, and with fewer than 20" in line for line in found.missing)
    assert any("'e' 4; bring them to one size" in line for line in found.missing)


def test_the_labelling_function_of_a_domain_is_learned_once_for_all_pairs(samples, monkeypatch):
    learned = []
    learn = concept.learn_labels
    monkeypatch.setattr(concept, "learn_labels", lambda *args: learned.append(args) or learn(*args))
    matrix(samples, ["concept"], QUICK)
    assert len(learned) == 2 * (3 + 3)  # twins of every domain and of every rest, not of 6 pairs of sides


def test_a_matrix_that_was_interrupted_goes_on(samples, tmp_path, monkeypatch):
    saved = tmp_path / "new" / "matrix.json"

    def stop(what: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        matrix(samples, ["mmd"], QUICK, saved=saved, on_progress=stop)
    taken = []
    from shiftbed.shift import matrix as module

    monkeypatch.setattr(module, "take", lambda *args: taken.append(args) or take(*args))
    whole = matrix(samples, ["mmd"], QUICK, saved=saved)
    assert len(taken) == 2 and whole == matrix(samples, ["mmd"], QUICK)
    taken.clear()
    matrix(samples, ["mmd"], Settings(most=80), saved=saved)
    assert len(taken) == 6  # other settings are measured anew


def test_a_damaged_file_is_one_sentence(samples, tmp_path):
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(StoreError, match=r"m.json is damaged; remove it"):
        matrix(samples, ["mmd"], QUICK, saved=tmp_path / "m.json")


def test_a_matrix_is_json_for_machines(samples):
    read = json.loads(json.dumps(matrix(samples, ["mmd"], QUICK).as_json()))
    assert read["domains"] == ["a", "b", "c"] and read["cells"][0]["estimates"][0]["name"] == "mmd"


def test_one_domain_and_unknown_measures_are_refused(samples):
    with pytest.raises(DataError, match="the one domain 'a', and a shift is between two"):
        matrix({"a": samples["a"]})
    with pytest.raises(UnknownNameError, match="Did you mean mmd"):
        matrix(samples, ["mdm"])


# --- pictures


def is_drawn(path) -> bool:
    """Whether a file is a picture with something on it."""
    with Image.open(path) as picture:
        return min(picture.size) > 200 and len(picture.convert("RGB").getcolors(10**7)) > 10


def test_every_picture_is_drawn(samples, tmp_path):
    dataset = small_dataset()
    found = matrix(samples, ["mmd"], QUICK)
    here, there = ShiftEstimate("diversity", 0.3, 0.1, (0.1, 0.5)), ShiftEstimate("correlation", 0.2)
    grid = np.array([[0.0, 1.0], [np.nan, 0.5]])
    drawn = [
        pictures.heat_map(found, "mmd", tmp_path / "heat.png"),
        pictures.plane({"mine": (here, there)}, tmp_path / "plane.png"),
        pictures.grids({"a": grid}, {"a": ("rows", [1, 2], "columns", [3, 4])}, tmp_path / "grids.png"),
        pictures.class_balance(dataset, tmp_path / "new" / "classes.png"),
        pictures.duplicates(dataset, tmp_path / "duplicates.png"),
        pictures.embedding(samples, ("x", "y"), tmp_path / "embedding.png"),
    ]
    assert all(map(is_drawn, drawn))


def test_class_balance_counts_labelled_examples_only(tmp_path, monkeypatch):
    dataset = small_dataset(2, 2, 10)
    dataset.domains[1].labels[:4] = [-1, -1, 1, 1]
    shown = []
    monkeypatch.setattr(pictures, "_numbers", lambda axis, values, *rest: shown.append(values))
    pictures.class_balance(dataset, tmp_path / "classes.png")
    assert shown[0].tolist() == [[50, 50], [37.5, 62.5]]  # of eight, three and five


def test_domains_that_are_near_stand_side_by_side(tmp_path, monkeypatch):
    cells = []
    names = ("a", "far", "b")
    near = {("a", "b"): 0.1, ("a", "far"): 1.0, ("far", "b"): 0.9}
    for (first, second), value in near.items():
        cells.append(Cell(first, second, "m", (ShiftEstimate("m", value),)))
    shown = []
    monkeypatch.setattr(pictures, "_ticks", lambda axis, columns, rows: shown.append(columns))
    pictures.heat_map(ShiftMatrix(names, tuple(cells)), "m", tmp_path / "heat.png")
    order = shown[0]
    assert abs(order.index("a") - order.index("b")) == 1 and order.index("far") in (0, 2)


def test_a_picture_in_a_format_that_is_not_known_is_refused(samples, tmp_path):
    with pytest.raises(DataError, match=r"which .*plane.docx cannot be; name one that ends in .png, .pdf or .svg"):
        pictures.plane({}, tmp_path / "plane.docx")


def test_examples_that_two_domains_share_are_counted():
    dataset = small_dataset(domains=3)
    first, second, third = dataset.domains
    second.inputs[:5] = first.inputs[:5]
    third.inputs[1] = third.inputs[0]
    counts = shared_examples(dataset)
    assert counts.tolist() == [[0, 5, 0], [5, 0, 0], [0, 0, 1]]
    (said,) = note_of_shared(dataset, counts)
    assert said.startswith("Of 'd0', 5 examples lie in 'd1' too")
    assert note_of_shared(dataset, np.diag([0, 0, 1])) == []
    assert note_of_shared(dataset, np.eye(3, k=1, dtype=int))[0].startswith("Of 'd0', 1 example lies in 'd1' too")


def test_the_published_plane_is_that_of_the_authors():
    places = {place.dataset: place for place in published_plane()}
    assert places["PACS"].diversity == 0.6715 and places["ColoredMNIST-OoD-Bench"].correlation == 0.5468
    assert len(published_plane("paper")) == 11 and len(published_plane("later")) == 13
    for place in (*published_plane("paper"), *published_plane("later")):
        assert 0 <= place.diversity <= 1 and 0 <= place.correlation <= 1


def test_the_page_lists_every_measure_as_it_is_registered():
    page = (Path(__file__).parents[2] / "docs" / "measures-of-shift.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    assert len(rows) == len(list(MEASURES))
    for name in MEASURES:
        one = MEASURES[name]
        highest = "from 0" if one.highest is None else f"0 to {one.highest:g}"
        assert f"| `{name}` | {one.summary} | {'yes' if one.needs else 'no'} | {highest} |" in rows


# --- NICO++'s Table 1


def test_two_and_two_domains_and_five_classes_are_drawn_without_overlap():
    dataset = small_dataset(6, 8)
    drawn = [draw(dataset, run) for run in range(30)]
    for one in drawn:
        assert len({*one.train, *one.test}) == 4 and len(set(one.classes)) == 5
    assert len({one.train for one in drawn}) > 10 and len({one.classes for one in drawn}) > 10
    assert draw(dataset, 3) == drawn[3]
    assert len(draw(small_dataset(4, 3), 0).classes) == 3


def test_too_few_domains_are_refused():
    with pytest.raises(DataError, match="Made has 3 domains, and 2 training and 2 test domains are drawn; draw fewer"):
        draw(small_dataset(3), 0)


def test_the_protocol_runs_and_runs_again_from_what_it_kept(tmp_path):
    dataset = small_dataset(4, 3)
    found = nico_table_1(dataset, 2, saved=tmp_path / "kept.json", epochs=30)
    assert list(found) == ["covariate shift", "concept shift (min)", "concept shift (max)", TRAINED_ON]
    runs = [covariate_and_concept(dataset, run, epochs=30) for run in range(2)]
    assert found["covariate shift"].value == pytest.approx(np.mean([of_run[0].value for of_run in runs]))
    assert found["covariate shift"].standard_error == pytest.approx(abs(runs[0][0].value - runs[1][0].value) / 2)
    assert nico_table_1(dataset, 2, saved=tmp_path / "kept.json", epochs=30) == found
    assert found["concept shift (min)"].value <= found["concept shift (max)"].value
    assert sum("against" in note for note in found["covariate shift"].notes) == 2


def test_the_networks_of_the_protocol_choose_between_the_classes_as_the_paper_s_do(monkeypatch):
    asked = []
    monkeypatch.setattr("shiftbed.shift.nico.take", lambda name, p, q, settings: asked.append((name, settings)) or [])
    covariate_and_concept(small_dataset(4, 6), 0)
    assert [(name, settings.outputs) for name, settings in asked] == [("covariate", 5), ("concept", 5)]


def test_runs_that_learned_nothing_do_not_count_and_the_table_says_so(tmp_path, monkeypatch):
    def one_run(dataset, run, **options):
        error = 0.01 if run > 0 else None  # the first learns nothing
        return [
            ShiftEstimate("covariate", 0.3 * run, error, details={"on_training_examples": 0.4 * (run > 0)}),
            ShiftEstimate("concept-min", 0.1 * run, 0.01),
            ShiftEstimate("concept-max", 0.1 * run, error),
        ]

    class Part:
        dataset = "PACS"
        runs = 3

        def options(self):
            return {"": {"training_domains": 2, "test_domains": 2, "classes": 5}}

    monkeypatch.setattr("shiftbed.shift.nico.open_dataset", lambda name: small_dataset(4, 3))
    monkeypatch.setattr("shiftbed.shift.nico.covariate_and_concept", one_run)
    found = {one["labels"]["measure"]: one for one in run(Part(), tmp_path)}
    assert found["covariate shift"]["mean"] == pytest.approx(0.45) and found["covariate shift"]["n"] == 2
    assert found["covariate shift"]["differs"] == {"runs": "2 here that learned anything, 3 in the paper"}
    assert found["concept shift (min)"]["mean"] == pytest.approx(0.1) and found["concept shift (min)"]["n"] == 3
    assert found["concept shift (max)"]["mean"] == pytest.approx(0.15) and found["concept shift (max)"]["n"] == 2
    assert found[TRAINED_ON]["mean"] == pytest.approx(0.4)
    monkeypatch.setattr("shiftbed.shift.nico.covariate_and_concept", lambda dataset, run, **_: one_run(dataset, 0))
    assert "covariate shift" not in nico_table_1(small_dataset(4, 3), 2)


def test_a_benchmark_s_part_gives_numbers_with_the_paper_s_labels(tmp_path, monkeypatch):
    from shiftbed.shift import nico

    class Part:
        dataset = "PACS"
        runs = 1

        def options(self):
            return {"": {"training_domains": 1, "test_domains": 1, "classes": 2}}

    asked = []
    one = ShiftEstimate("covariate shift", 0.5, 0.1, details={"runs": 1})
    monkeypatch.setattr(nico, "nico_table_1", lambda *args, **options: asked.append(options) or {one.name: one})
    (number,) = run(Part(), tmp_path)
    assert number["labels"] == {"dataset": "PACS", "setting": "", "measure": "covariate shift"}
    assert (number["mean"], number["spread"], number["n"], number["differs"]) == (0.5, 0.1, 1, {})
    assert asked[0]["train"] == 1 and asked[0]["classes"] == 2
