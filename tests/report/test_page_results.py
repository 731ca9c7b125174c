import pytest

from shiftbed.audit.subject import Subject
from shiftbed.data.dataset import Domain
from shiftbed.report import page_results
from shiftbed.report.page_charts import _beside, curve_chart, look, plane, prediction_chart
from shiftbed.report.page_data import GAP, SIDE, strip
from shiftbed.report.page_results import Results, Scale, by_selection, curves, draws, numbers
from shiftbed.selection import tasks_of
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.tables import Estimate
from tests.made_records import made_job

METRICS = ("accuracy", "count", "loss")


def subject_of(jobs):
    return Subject("DIR", tasks_of(jobs, METRICS))


def rows(*levels, validation=(0.5, 0.6, 0.7)):
    """Records at steps 10, 20, …: these test accuracies, and these on what validates."""
    kept = zip(levels, validation, strict=False)
    return [(10 * i, {"a/out": v, "b/out": v, "c/in": t, "c/out": 0.3}) for i, (t, v) in enumerate(kept, 1)]


def test_a_curve_is_the_mean_of_the_chosen_jobs_at_the_steps_all_have():
    jobs = [made_job(0, rows(0.1, 0.2, 0.3)), made_job(0, rows(0.3, 0.6), trial=1)]
    (table,) = subject_of(jobs).tables("training-domain-validation")
    (curve,) = curves(table)
    assert curve == {
        **{"algorithm": "ERM", "steps": [10, 20], "jobs": 2},
        **{"test": [20.0, 40.0], "validation": [50.0, 60.0]},
    }


def test_a_single_record_is_no_curve():
    (table,) = subject_of([made_job(0, rows(0.1))]).tables("training-domain-validation")
    assert curves(table) == []


def test_a_point_is_a_job_at_its_best_validation_step():
    jobs = [made_job(0, rows(0.1, 0.2, 0.3, validation=(0.5, 0.9, 0.7))), made_job(1, rows(0.4, 0.5, 0.6))]
    subject = subject_of(jobs)
    found = draws(subject, subject.tables("oracle")[0])
    assert [(point["draw"], point["accuracy"]) for point in found["points"]] == [(0, 20.0), (1, 60.0)]
    assert found["names"] == ["lr"] and found["points"][1]["values"] == {"lr": pytest.approx(0.2)}


def test_values_that_never_vary_are_not_offered():
    jobs = [made_job(draw, rows(0.1), hparams={"lr": 0.1, "depth": draw}) for draw in (0, 1)]
    subject = subject_of(jobs)
    assert draws(subject, subject.tables("oracle")[0])["names"] == ["depth"]


def test_of_very_many_jobs_some_are_shown(monkeypatch):
    monkeypatch.setattr(page_results, "MOST_POINTS", 4)
    subject = subject_of([made_job(draw, rows(0.1)) for draw in range(10)])
    found = draws(subject, subject.tables("oracle")[0])
    assert found["all"] == 10 and [point["draw"] for point in found["points"]] == [0, 3, 6, 9]


def test_rows_are_numbered_as_their_numbers_are_listed():
    jobs = [
        made_job(0, rows(level), algorithm=name, trial=trial)
        for name, level in (("ERM", 0.5), ("CORAL", 0.7))
        for trial in (0, 1)
    ]
    results = Results.of(subject_of(jobs))
    listed = numbers(results)
    for one in by_selection(results):
        for row in one["tables"][0]["rows"]:
            for cell in (*row["cells"], row["average"]):
                found = listed[cell["number"]]
                assert (found["algorithm"], found["selection"]) == (row["name"], one["rule"].name)
                assert found["accuracy"] == cell["value"]


def test_the_best_row_is_first_and_an_empty_one_last():
    jobs = [made_job(0, rows(level), algorithm=name) for name, level in (("ERM", 0.5), ("CORAL", 0.7))]
    jobs.append(made_job(0, [], algorithm="IRM"))
    shown = by_selection(Results.of(subject_of(jobs)))[0]["tables"][0]["rows"]
    assert [row["name"] for row in shown] == ["CORAL", "ERM", "IRM"]
    assert shown[-1]["bar"] is None and shown[-1]["average"]["why"]


def test_honest_selections_come_first():
    results = Results.of(subject_of([made_job(0, rows(0.5))]), ["oracle", "last-step"])
    assert [rule.name for rule in results.selections] == ["last-step", "oracle"]


def test_a_scale_holds_all_error_bars_and_places_them():
    scale = Scale.of([Estimate(40.0, 2.0, 3), Estimate(46.2, None, 1)])
    assert (scale.low, scale.high) == (37.0, 47.0)
    assert scale.bar(Estimate(40.0, 2.0, 3)) == {"mean": 30.0, "low": 10.0, "high": 50.0}
    assert Scale.of([Estimate(100.0, 0.5, 2)]).high == 100.0
    assert Scale.of([]) == Scale(0, 100)


def test_every_algorithm_has_a_look_of_its_own():
    looks = look([f"a{i}" for i in range(60)])
    assert len({tuple(one.items()) for one in looks.values()}) == 60


def test_labels_of_the_plane_do_not_cover_each_other():
    sides = _beside([("one", 0.5, 0.5), ("two", 0.54, 0.5)], [])
    assert sides == ["middle left", "middle right"]
    assert _beside([("here", 0.5, 0.5)], [("mine", 0.51, 0.48)]) == ["middle left"]
    assert _beside([("a long name at the edge", 1.0, 0.5)], []) == ["middle left"]


def test_whiskers_of_the_plane_end_where_the_intervals_do():
    one = ShiftEstimate("diversity", 0.5, interval=(0.2, 0.6), count=10)
    other = ShiftEstimate("correlation", 0.1, count=10)
    point = plane({"Mine": (one, other)})["traces"][1]
    assert point["error_x"]["array"] == pytest.approx([0.1])
    assert point["error_x"]["arrayminus"] == pytest.approx([0.3])
    assert point["error_y"] == {"visible": False}


def test_curves_beyond_the_first_few_wait_in_the_legend():
    found = [
        {"algorithm": f"a{i}", "steps": [1, 2], "test": [0, i], "validation": [1, 1], "jobs": 1} for i in range(10)
    ]
    traces = curve_chart(found, look([one["algorithm"] for one in found]))["traces"]
    hidden = {trace["name"] for trace in traces if trace["visible"] == "legendonly"}
    assert hidden == {"a8", "a9"}  # the first in the list of looks are the best


def test_predictions_stand_over_their_truth_with_their_intervals():
    row = {"algorithm": "ERM", "dataset": "D", "domain": "d", "method": "m"}
    chart = prediction_chart([{**row, "accuracy": 0.5, "low": 0.4, "high": 0.7, "true": 0.6}], look(["ERM"]))
    point = chart["traces"][1]
    assert (point["x"], point["y"]) == ([60.0], [50.0])
    assert point["error_y"]["array"] == pytest.approx([20.0])
    assert point["error_y"]["arrayminus"] == pytest.approx([10.0])
    assert chart["layout"]["range_x"] == chart["layout"]["range_y"] == pytest.approx([35.0, 75.0])


def test_a_strip_has_one_picture_a_class_and_a_gap_for_what_is_missing():
    import base64
    import io

    import numpy as np
    from PIL import Image

    domain = Domain("d", np.full((3, 8, 8, 3), 200, np.uint8), np.array([0, 0, 2]))
    kind, _, content = strip(domain, 3).partition(",")
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA"))
    assert kind == "data:image/webp;base64"
    assert picture.shape == (SIDE, 3 * SIDE + 2 * GAP, 4)
    middle = picture[SIDE // 2, [SIDE // 2, SIDE + GAP + SIDE // 2, 2 * (SIDE + GAP) + SIDE // 2]]
    assert middle[:, 3].tolist() == [255, 0, 255]
    assert abs(int(middle[0, 0]) - 200) < 5
