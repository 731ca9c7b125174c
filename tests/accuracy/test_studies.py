"""The tables of the studies against values by hand and against the paper's arithmetic."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from shiftbed.accuracy import pictures, studies
from shiftbed.accuracy.methods import METHODS
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.pool import classifiers
from shiftbed.accuracy.studies import Scores
from shiftbed.accuracy.study import MOST_REMOVED, reductions, write_cells, write_points, write_study
from shiftbed.errors import DataError
from shiftbed.networks import NETWORKS
from shiftbed.published import table as published_table


def made(random=None, classifiers=3, groups=8, each=3):
    random = random or np.random.default_rng(0)
    domains = groups * each
    accuracies = 0.5 + 0.1 * random.normal(size=(classifiers, domains)).clip(-3, 3)
    noise = random.normal(size=(2, classifiers, domains))
    return Scores(
        tuple(f"model {place}" for place in range(classifiers)),
        tuple(f"{group}-{number}" for group in range(groups) for number in range(each)),
        np.repeat([f"group {place}" for place in range(groups)], each),
        np.full(domains, 400),
        accuracies,
        {"atc-mc": accuracies + 0.01 * noise[0], "entropy": -accuracies + 0.1 * noise[1]},
    )


def test_a_column_is_the_mean_over_its_domains_of_one_regression():
    scores = made()
    table = studies.mae_table(scores, {"left": ["group 0", "group 1"], "right": [f"group {n}" for n in range(2, 8)]})
    assert [row["method"] for row in table] == ["atc-mc", "entropy", "mean of the others"]
    for row in table:
        assert row["all"] == pytest.approx((6 * row["left"] + 18 * row["right"]) / 24)
        assert row["all"] == pytest.approx(np.mean([row[name] for name in scores.classifiers]))
    assert table[0]["all"] < 1.5 < table[1]["all"]


def test_the_whole_table_has_methods_classifiers_and_groups(tmp_path):
    scores = made()
    write_cells(scores, tmp_path / "mae.csv")
    rows = list(csv.DictReader((tmp_path / "mae.csv").read_text().splitlines()))
    assert [(row["method"], row["classifier"]) for row in rows[2:4]] == [("atc-mc", "model 2"), ("entropy", "model 0")]
    errors = np.abs(scores.errors("atc-mc", by_group=False))[2]
    assert float(rows[2]["group 7"]) == pytest.approx(errors[-3:].mean(), abs=1e-3)
    assert float(rows[2]["all"]) == pytest.approx(errors.mean(), abs=1e-3)


def test_a_method_that_is_constant_but_for_two_groups_is_not_judged():
    scores = made(groups=4, each=1)
    rows = scores.values["entropy"].copy()
    rows[1] = (0.5, 0.5, 0.1, 0.9)
    assert list(replace(scores, values={**scores.values, "entropy": rows}).varying().values) == ["atc-mc"]
    rows[1] = (0.5, 0.4, 0.1, 0.9)
    assert list(replace(scores, values={**scores.values, "entropy": rows}).varying().values) == ["atc-mc", "entropy"]


def collapsed(scores, place):
    """The same with one classifier that says the same of all domains; how it agrees with others varies."""
    values = {name: rows.copy() for name, rows in scores.values.items()}
    values["ms-aol"] = scores.accuracies + 0.1
    for name in ("atc-mc", "entropy"):
        values[name][place] = 0.5
    return replace(scores, values=values)


def test_a_collapsed_classifier_is_left_out_and_takes_no_method_with_it():
    found = collapsed(made(), 1).varying()
    assert found.classifiers == ("model 0", "model 2")
    assert list(found.values) == ["atc-mc", "entropy", "ms-aol"]
    assert np.array_equal(found.accuracies, made().accuracies[[0, 2]])
    assert found.values["atc-mc"].shape == (2, 24)


def test_a_study_names_the_classifiers_it_leaves_out(tmp_path, monkeypatch):
    for name in ("scatter", "spread", "group_agreement", "errors_by_accuracy"):
        monkeypatch.setattr(pictures, name, lambda *_: None)  # they have a test of their own
    scores = collapsed(made(), 1)
    found = write_study(scores, tmp_path, scores)
    assert found["classifiers left out"] == ["model 1"]
    assert json.loads((tmp_path / "study.json").read_text())["classifiers left out"] == ["model 1"]
    assert set(found["mae"][0]) >= {"model 0", "model 2"} and "model 1" not in found["mae"][0]
    expected = studies.direct_table(scores.of(["model 0", "model 2"]))
    assert found["direct, calibrated"][0]["mae"] == pytest.approx(expected[0]["mae"])


def test_a_study_of_collapsed_classifiers_alone_is_refused(tmp_path):
    scores = made(classifiers=1)
    with pytest.raises(DataError, match="different things of the domains for model 0: such models answer"):
        write_study(collapsed(scores, 0), tmp_path, scores)


def test_a_study_of_few_groups_is_refused(tmp_path):
    scores = made(groups=3)
    with pytest.raises(DataError, match="of 3 groups; a study needs 4"):
        write_study(scores, tmp_path, scores)


def test_ours_stand_beside_the_paper_s():
    rows = studies.beside_paper([{"method": "atc-mc", "all": 3.2}, {"method": "cot", "all": 2.0}])
    assert rows[0]["paper, 40 classifiers"] == 3.74
    assert rows[0]["paper, single ones"] == "3.07 to 3.80"
    assert rows[1]["paper, 40 classifiers"] is None


def test_rank_agreement_of_methods_between_the_paper_s_testbeds():
    # RepVGG-A0 on CIFAR-10-Cs and on CIFAR-10-W; the paper prints 0.733.
    corrupted = (5.92, 4.81, 3.90, 5.81, 3.80, 5.23, 4.03, 5.53, 3.25, 3.86)
    warehouse = (6.47, 6.17, 5.64, 6.33, 5.49, 6.23, 5.17, 6.86, 4.66, 4.14)
    tables = [[{"method": str(n), "all": v} for n, v in enumerate(errors)] for errors in (corrupted, warehouse)]
    assert studies.rank_agreement(*tables) == pytest.approx(0.733, abs=1e-3)


def test_another_study_is_compared_by_its_errors_and_its_ranking():
    scores = made()
    worse = replace(scores, values={"atc-mc": scores.values["entropy"], "entropy": scores.values["atc-mc"]})
    same, other = studies.beside_table(scores, {"same": scores, "swapped": worse})
    assert (same["methods"], same["more than here"], same["kendall"]) == (2, 0, 1)
    assert other["kendall"] == -1
    assert other["mae"] == pytest.approx(same["mae"]), "the same two errors under other names"
    with pytest.raises(DataError, match="shares 0 methods"):
        studies.beside_table(scores, {"poor": replace(scores, values={"doc": scores.accuracies})})


def test_spread_and_difficulty_are_over_classifiers_and_methods():
    scores = made()
    table = studies.mae_table(scores)
    spread = studies.spread_table(scores)
    each = [table[0][name] for name in scores.classifiers]
    assert spread[0]["mae"] == pytest.approx(np.mean(each))
    assert spread[0]["deviation"] == pytest.approx(np.std(each, ddof=1))
    hardest = studies.difficulty_table(scores)[0]
    assert hardest["mae"] == pytest.approx(max(np.mean([row[n] for row in table[:2]]) for n in scores.classifiers))


def test_points_are_accuracy_and_what_was_predicted_of_it():
    rows = studies.points_table(made(), "atc-mc")
    assert len(rows) == 72
    assert all(row["error"] == pytest.approx(100 * abs(row["accuracy"] - row["predicted"])) for row in rows)


def test_changes_groups_sizes_and_direct_estimates():
    scores = made()
    same = studies.change_table(scores, {"nothing": scores})
    assert [row["nothing"] for row in same] == [0, 0]
    assert len(studies.group_agreement(scores)) == 28
    assert np.isnan(studies.size_effect(scores))  # all groups have as many images
    assert sum(row["images"] for row in studies.size_table(scores)) == scores.images.sum()
    direct = studies.direct_table(scores)
    assert [row["method"] for row in direct] == ["atc-mc"]
    assert direct[0]["mae"] == pytest.approx(100 * np.abs(scores.values["atc-mc"] - scores.accuracies).mean())
    assert studies.correlation_table(scores)[-1]["spearman"] < -0.5
    assert studies.fit_summary(scores, "atc-mc")["mae"] == pytest.approx(studies.mae_table(scores)[0]["all"])


def test_coverage_is_near_what_is_promised_and_its_interval_holds_it():
    (row,) = studies.coverage_table(made(groups=19, each=5), ["atc-mc"])
    assert row["predictions"] == 3 * 95
    assert row["low"] <= row["coverage"] <= row["high"]
    assert 0.85 <= row["coverage"] <= 1
    assert 2 < row["median width"] < 8  # two standard deviations of 1 point to each side, about


def test_a_coverage_of_all_is_not_certain():
    """Five groups are too few for an interval at 90 %: it goes from 0 to 1, holds everywhere, and that shows little."""
    (row,) = studies.coverage_table(made(groups=5, each=3), ["atc-mc"])
    assert (row["coverage"], row["low"], row["high"]) == (1, pytest.approx(0.4), 1)


def test_classifiers_are_scored_domain_by_domain():
    random = np.random.default_rng(0)
    seen = []

    def outputs(scale):
        def domains():
            for name in ("a-1", "a-2", "b-1", "c-1"):
                seen.append(name)
                yield Outputs(random.normal(size=(40, 3)) * scale, None, random.integers(0, 3, 40), name=name)

        return Outputs(random.normal(size=(40, 3)), None, random.integers(0, 3, 40)), domains()

    found = studies.score_classifiers(
        {"one": lambda: outputs(1.0), "two": lambda: outputs(2.0)}, {"a-1": "a", "a-2": "a"}, ["doc", "cot", "ms-aol"]
    )
    assert found.domains == ("a-1", "a-2", "b-1", "c-1")
    assert found.groups.tolist() == ["a", "a", "b-1", "c-1"]
    assert set(found.values) == {"doc", "cot"}  # there is no pool
    assert found.values["cot"].shape == (2, 4)
    assert len(seen) == 8


def test_calibrated_scores_are_those_of_divided_logits():
    random = np.random.default_rng(0)
    logits = random.normal(size=(4000, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(
        1
    )  # drawn from the softmax: at 5 ×, the model is too sure

    def outputs():
        return Outputs(5 * logits, None, labels), iter([Outputs(5 * logits[:900], None, labels[:900], name="part")])

    plain, calibrated = (
        studies.score_classifiers({"one": outputs}, {}, ["average-confidence"], how) for how in (False, True)
    )
    right = plain.accuracies[0, 0]
    assert plain.values["average-confidence"][0, 0] > right + 0.15
    assert calibrated.values["average-confidence"][0, 0] == pytest.approx(
        right, abs=3 * np.sqrt(right * (1 - right) / 900)
    )


def test_points_are_written_as_a_table(tmp_path):
    scores = made()
    write_points(scores, tmp_path / "points.csv")
    rows = list(csv.DictReader((tmp_path / "points.csv").read_text().splitlines()))
    assert len(rows) == 72
    assert float(rows[5]["accuracy"]) == pytest.approx(scores.accuracies[0, 5], rel=1e-4)
    predicted = float(rows[5]["atc-mc predicted"])
    assert predicted == pytest.approx(studies.points_table(scores, "atc-mc", True)[5]["predicted"], rel=1e-4)


def test_reduced_sets_have_their_own_accuracy():
    labels = np.array([0, 0, 1, 1, 2, 2])
    domain = Outputs(np.eye(3)[[0, 0, 1, 0, 0, 0]], labels=labels)
    assert studies.of_classes(domain, [2]).accuracy == 0.75
    assert studies.of_classes(domain, [1, 2]).accuracy == 1
    assert len(studies.of_size(domain, 4)) == 4
    assert np.array_equal(studies.of_size(domain, 4).labels, studies.of_size(domain, 4).labels)


def test_pictures_are_drawn(tmp_path):
    scores = made()
    scores.values["frechet-distance"] = 1 - scores.accuracies
    for path in (
        pictures.scatter(scores, tmp_path / "scatter.png", "model 0"),
        pictures.errors_by_accuracy(scores, tmp_path / "errors.png", "atc-mc"),
        pictures.accuracy_by_distance(scores, tmp_path / "distance.png", "model 1"),
        pictures.spread(scores, tmp_path / "spread.png"),
        pictures.changes(studies.change_table(scores, {"nothing": scores}), tmp_path / "changes.png"),
        pictures.group_agreement(studies.group_agreement(scores), tmp_path / "groups.png"),
        pictures.errors_by_images(studies.size_table(scores), tmp_path / "images.png"),
    ):
        assert np.asarray(Image.open(path).convert("L")).std() > 5
    assert pictures.text_table([{"a": 1.234, "b": None}]) == "a     b\n1.23  –"


def test_the_seventy_classifiers_are_ours():
    rows = classifiers()
    assert len({row.name for row in rows}) == 70
    assert sum(row.in_the_40 for row in rows) == 40
    assert {row.seed for row in rows} == {0, 42}
    assert all(row.network in NETWORKS for row in rows)
    assert [row.name for row in rows if row.note] == ["VGG19-42"]


def test_methods_the_paper_compares_have_its_labels():
    printed = {cell.algorithm for cell in published_table("cifar-10-w/table-2").cells} - {""}
    assert printed <= {METHODS[name].label for name in METHODS}


def test_sets_are_reduced_by_size_and_by_class_and_two_classes_stay():
    made = reductions(600, ("a", "b", "c"))
    assert list(made) == [
        *("100 images", "200 images", "500 images"),
        *("without a", "without b", "without c"),
    ], "of three classes no two may go"
    domain = Outputs(np.eye(3)[[0, 1, 2, 0]], None, np.array([0, 1, 2, 0]))
    assert list(made["without a"](domain).labels) == [1, 2]
    assert len(reductions(600, tuple("abcdefghijklmnop"))) == 3 + 2 * MOST_REMOVED
    assert "without a and b" in reductions(50, ("a", "b", "c", "d"))


def test_no_class_is_removed_without_which_a_domain_is_empty():
    labels = [np.array([0, 1, 2, 3] * 5), np.array([0, 0, 0, 1]), np.array([2, 3] * 5)]
    made = reductions(4, ("a", "b", "c", "d"), labels)
    assert list(made) == ["without b", "without c", "without d", "without b and c"]
