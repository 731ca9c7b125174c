"""The other sources: spaces, splits, variance, rankings, duplicates, imported sweeps, and the command line."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from shiftbed.audit.boards import ranking, ranking_against
from shiftbed.audit.completeness import draws
from shiftbed.audit.duplicates import twins
from shiftbed.audit.oracle import joint_leakage, oracle_gap
from shiftbed.audit.queries import query_budget
from shiftbed.audit.spaces import _distribution, search_spaces
from shiftbed.audit.splits import augmented_validation, initial_weights, training_labels
from shiftbed.audit.subject import METRICS, Subject
from shiftbed.audit.variance import variance
from shiftbed.audit.verbs import audit_sweep
from shiftbed.cli import app
from shiftbed.data.dataset import Domain
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.hparams import constant, log_uniform, uniform
from shiftbed.report.figures import figure
from shiftbed.selection import tasks_of
from shiftbed.sweeps.domainbed_format import export_domainbed, import_domainbed
from shiftbed.tables import read_tables
from shiftbed.tables.views import boards_against
from tests.audit.made_sweeps import write_sweep
from tests.made_records import made_job


def subject(jobs, plan=()):
    return Subject("DIR", tasks_of(jobs, METRICS), plan)


# --- Search spaces ---------------------------------------------------------------------------------------------------

LR = log_uniform(1e-5, 1e-3, default=5e-5)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([1e-4], "fixed at 0.0001"),
        ([2e-3, 1e-4], "outside the registered range"),
        (list(np.geomspace(1.0e-4, 1.2e-4, 8)), "narrowed"),
        ([*np.geomspace(4e-4, 9e-4, 12), 5e-5, 2e-5], "shifted"),
        (list(np.geomspace(1.1e-5, 9e-4, 12)), None),
        ([1e-4, 3e-4], None),  # two values say nothing
    ],
)
def test_values_are_told_from_their_prior(values, what):
    assert _distribution(values, LR)[0] == what


def test_draws_from_the_prior_itself_are_hardly_ever_called_otherwise():
    random = np.random.RandomState(1)
    for prior in (LR, uniform(0, 1, default=0.5)):
        found = [_distribution([prior.sample(random) for _ in range(20)], prior)[0] for _ in range(200)]
        assert sum(one is not None for one in found) <= 2


def test_a_constant_set_to_something_else_is_fixed():
    assert _distribution([0.1], constant(0.0))[0] == "fixed at 0.1"


def test_small_values_of_a_range_that_starts_at_zero_are_inside_it():
    """Of 4,001 draws the least is about 1/4001, and one in 67 sets of 60 others has a smaller one."""
    prior = uniform(0, 1, 0.5)
    assert _distribution([1e-6, 0.3, 0.6, 0.999999], prior)[0] is None
    assert _distribution([-0.01, 0.3, 0.6, 0.9], prior)[0] == _distribution([0.1, 0.3, 1.01], prior)[0]
    assert _distribution([-0.01, 0.3, 0.6, 0.9], prior)[0] == "outside the registered range"


def test_what_is_set_by_hand_is_reported(tmp_path):
    write_sweep(tmp_path, algorithms=("ERM",), draws=2, trials=1, overrides={"lr": 1e-4})
    found = search_spaces(Subject.read(tmp_path))
    assert found.verdict == "alarm" and "lr of ERM fixed by hand" in found.sentence


def test_the_winner_of_a_search_keeps_its_values_in_other_trials(tmp_path):
    """In a design with two stages the values of all trials are the first one's draws."""
    write_sweep(tmp_path, algorithms=("ERM",), draws=3, trials=1)
    one = Subject.read(tmp_path)
    abouts = [{**about, "trial": 1} for about in one.abouts if about["draw"] == 1]
    plan = [{**row, "design": "search-once"} for row in one.plan]
    jobs = [made_job(about["draw"], [], **{k: v for k, v in about.items() if k != "draw"}) for about in abouts]
    both = Subject("DIR", [*one.tasks, *tasks_of(jobs, METRICS)], plan)
    assert search_spaces(both).verdict == "clear"
    assert draws(both).verdict == "clear"
    assert search_spaces(Subject("DIR", both.tasks, one.plan)).verdict == "alarm"  # of another trial's draws


# --- Splits and recipes ----------------------------------------------------------------------------------------------


def test_adaptation_is_named_and_target_trained_references_are_no_alarm():
    splits = [
        {"name": "a/in", "domain": "a", "part": "in", "role": "train"},
        {"name": "b/rest", "domain": "b", "part": "rest", "role": "unlabelled"},
        {"name": "b/in", "domain": "b", "part": "in", "role": "test"},
    ]
    task = {"kind": "leave-out", "test": ["b"], "adapt": 0.2}
    found = training_labels(subject([made_job(0, [], tested=("b",), splits=splits, task=task)]))
    assert found.verdict == "exposed" and "0.2 of their test domains" in found.sentence
    splits = [{"name": f"a/{p}", "domain": "a", "part": p, "role": r} for p, r in (("in", "train"), ("rest", "test"))]
    job = made_job(0, [], tested=("a",), splits=splits, task={"kind": "target-trained", "domains": ["a"]})
    assert training_labels(subject([job])).verdict == "clear"


def test_initial_weights_expose():
    recipe = {"name": "quick", "steps": 30, "evaluate_every": 10, "initial_weights": "imagenet"}
    found = initial_weights(subject([made_job(0, [], recipe=recipe)]))
    assert found.verdict == "exposed" and "imagenet" in found.sentence
    assert found.commands[0][1] == "shiftbed audit DIR --run"


# --- Variance and rankings -------------------------------------------------------------------------------------------


def rows(*accuracies):
    """Records of a job, validated ever better: honest selection takes the last."""
    return [(10 * n, {"a/out": n / 10, "b/out": n / 10, "c/in": a, "c/out": a}) for n, a in enumerate(accuracies, 1)]


def test_the_gains_of_picking_the_best_checkpoint_and_seed_by_hand():
    jobs = [made_job(0, rows(0.5, 0.9, 0.7), trial=0), made_job(0, rows(0.5, 0.6, 0.6), trial=1)]
    found = variance(subject(jobs))
    (row,) = found.grids[0].data
    assert row["best_checkpoint"] == pytest.approx(10.0)  # 20 and 0 points
    assert row["best_seed"] == pytest.approx(5.0)  # 70 over the mean of 70 and 60
    assert row["seed"] == pytest.approx(np.std([70, 60], ddof=1))
    assert row["checkpoint"] == pytest.approx((np.std([50, 90, 70], ddof=1) + np.std([50, 60, 60], ddof=1)) / 2)


def test_variance_exposes_where_it_exceeds_the_lead_of_the_winner():
    jobs = [made_job(0, rows(0.5, 0.9, 0.7), algorithm="ERM"), made_job(0, rows(0.6, 0.6, 0.65), algorithm="CORAL")]
    assert "more than the 5.0 points" in variance(subject(jobs)).sentence
    jobs[1] = made_job(0, rows(0.1, 0.1, 0.1), algorithm="CORAL")
    assert variance(subject(jobs)).verdict == "clear"


def exposed_on(dataset, lead):
    """Two algorithms on a dataset: checkpoints that gain 5 points, and this lead of the first."""
    return [
        made_job(0, rows(0.5, 0.75, 0.7), algorithm="ERM", dataset=dataset),
        made_job(0, rows(0.1, 0.1, 0.7 - lead), algorithm="CORAL", dataset=dataset),
    ]


def test_a_larger_gain_on_another_dataset_hides_no_exposure():
    large = [
        made_job(0, rows(0.5, 0.9, 0.7), algorithm="ERM", dataset="Large"),  # 20 points, with a lead of 50
        made_job(0, rows(0.1, 0.1, 0.2), algorithm="CORAL", dataset="Large"),
    ]
    small = exposed_on("Small", lead=0.01)
    assert variance(subject(large)).verdict == "clear" and variance(subject(small)).verdict == "exposed"
    found = variance(subject([*large, *small]))
    assert found.verdict == "exposed" and "gain 5.0 points (ERM on Small), more than the 1.0" in found.sentence
    alone = [made_job(0, rows(0.5, 0.6, 0.58), dataset="Alone")]  # one algorithm has no lead: any gain exposes
    assert variance(subject(alone)).verdict == variance(subject([*large, *alone])).verdict == "exposed"


def test_a_ranking_that_oracle_selection_turns_around_is_exposed():
    jobs = [
        made_job(0, rows(0.5, 0.6), algorithm="ERM"),
        made_job(0, rows(0.5, 0.5), algorithm="CORAL"),
        made_job(1, [(10, {"a/out": 0.0, "b/out": 0.0, "c/in": 0.8, "c/out": 0.8})], algorithm="CORAL"),
    ]
    found = ranking(subject(jobs))
    assert found.verdict == "exposed" and "ERM is first" in found.sentence and "CORAL in oracle" in found.sentence
    assert [row["change_of_rank"] for row in found.grids[0].data] == [1, -1]


def test_references_that_were_trained_on_the_test_domains_are_in_no_comparison(tmp_path):
    for references in ("target-trained", "target-trained-per-domain"):
        folder = tmp_path / references
        write_sweep(folder, algorithms=("ERM", "CORAL"), draws=2, seed=2)
        checks = (oracle_gap, joint_leakage, query_budget, variance, ranking)
        before = [check(Subject.read(folder)) for check in checks]
        board = [grid.rows for grid in boards_against(*[read_tables(folder, ["oracle"])] * 2)]
        write_sweep(folder, algorithms=("ERM",), draws=2, seed=3, protocol=references)
        after = [check(Subject.read(folder)) for check in checks]
        assert [one.as_dict() for one in after] == [one.as_dict() for one in before]
        assert [grid.rows for grid in boards_against(*[read_tables(folder, ["oracle"])] * 2)] == board


def test_two_sweeps_stand_side_by_side():
    one = subject([made_job(0, rows(0.6), algorithm="ERM"), made_job(0, rows(0.5), algorithm="CORAL")])
    other = subject([made_job(0, rows(0.4), algorithm="ERM"), made_job(0, rows(0.5), algorithm="CORAL")])
    assert ranking_against(one, one).verdict == "clear"
    found = ranking_against(one, other)
    assert found.verdict == "exposed" and "-1.00" in found.sentence


# --- Duplicates ------------------------------------------------------------------------------------------------------


def domain(name, images):
    return Domain(name, np.stack(images), np.zeros(len(images), np.int64))


def test_flat_images_and_small_ones_are_twins_only_pixel_by_pixel():
    random = np.random.default_rng(0)
    flat = np.full((48, 48, 3), 200, np.uint8)
    assert twins([domain("a", [flat]), domain("b", [flat - 1])]) == []
    (pair,) = twins([domain("a", [flat]), domain("b", [flat])])
    assert pair.identical
    small = random.integers(0, 256, (16, 16, 1), np.uint8)
    assert twins([domain("a", [small]), domain("b", [np.minimum(small, 250)])]) == []


def test_another_colour_is_another_image():
    random = np.random.default_rng(0)
    image = np.kron(random.integers(40, 200, (6, 6, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
    noisy = np.clip(image.astype(int) + random.normal(0, 3, image.shape), 0, 255).astype(np.uint8)
    recoloured = (image + np.array([30, -30, 0])).astype(np.uint8)  # as bright as before
    assert len(twins([domain("a", [image]), domain("b", [noisy])])) == 1
    assert twins([domain("a", [image]), domain("b", [recoloured])]) == []


# --- Whole sweeps ----------------------------------------------------------------------------------------------------


def test_an_imported_sweep_is_audited_as_far_as_it_allows(tmp_path):
    write_sweep(tmp_path / "ours", algorithms=("ERM", "Mixup"), draws=3, trials=1)
    export_domainbed(tmp_path / "ours", tmp_path / "theirs")
    import_domainbed(tmp_path / "theirs", tmp_path / "imported")
    found = audit_sweep(tmp_path / "imported")
    assert {one.source for one in found.findings if one.verdict == "unknown"} >= {"pretraining", "augmented validation"}
    assert found["oracle selection"].grids and found["query budget"].grids
    assert "DomainBed's records do not say" in found["pretraining"].sentence


def test_looks_through_every_verb_but_the_audit_count_and_the_verdict_says_so(tmp_path):
    write_sweep(tmp_path / "s", algorithms=("ERM", "Mixup"), draws=3, trials=1)
    for _ in range(2):
        assert "no look at a test domain" in audit_sweep(tmp_path / "s")["query budget"].sentence
    figure("leaderboard", tmp_path / "s", tmp_path / "f.png", selection="oracle")
    said = audit_sweep(tmp_path / "s")["query budget"].sentence
    assert "looks at test domains in" in said
    assert "looks through the verbs of shiftbed are counted, but not those of audits" in said


def test_domainbed_s_augmentation_of_validation_images_is_an_alarm():
    job = made_job(0, rows(0.5), revision="domainbed", hparams={"data_augmentation": True})
    assert augmented_validation(subject([job])).verdict == "alarm"
    job = made_job(0, rows(0.5), revision="domainbed", hparams={"data_augmentation": False})
    assert augmented_validation(subject([job])).verdict == "clear"


def test_losing_draws_that_were_removed_are_missed_in_every_row_of_an_algorithm():
    by_hand = [{}, {"mmd_gamma": 3.0}]
    made = [
        made_job(draw, [(10, {"a/out": 0.5, "c/in": 0.5})], algorithm="CORAL", own_overrides=own, id=f"{draw}{own}")
        for own in by_hand
        for draw in range(3)
    ]
    assert draws(subject(made)).verdict == "clear"
    found = draws(subject([job for job in made if job.id != f"1{by_hand[1]}"]))
    assert found.verdict == "alarm" and "a draw is missing (CORAL on c: trial 0, draw 1)" in found.sentence


def test_draws_that_have_the_values_of_another_are_not_missed(tmp_path):
    asked = {"algorithms": ("ERM", "ADRMX"), "draws": 10, "trials": 1, "test_domains": ("-90%",)}
    write_sweep(tmp_path / "one", **asked, overrides={"lr": 1e-3, "batch_size": 8})  # and mlp_depth has three values
    found = draws(Subject.read(tmp_path / "one"))
    assert found.verdict == "clear"
    for path in (tmp_path / "one").glob("jobs/*/job.json"):
        about = json.loads(path.read_text())
        if (about["algorithm"], about["hparams"].get("mlp_depth")) == ("ADRMX", 8):
            shutil.rmtree(path.parent)
    assert draws(Subject.read(tmp_path / "one")).verdict == "alarm"


def test_an_evenly_unfinished_sweep_is_unknown_and_a_cut_job_an_alarm():
    jobs = [made_job(draw, rows(0.5, 0.6), algorithm=name) for draw in (0, 1) for name in ("ERM", "CORAL")]
    assert draws(subject(jobs)).verdict == "clear"
    assert draws(subject(jobs, [{"id": "more", "algorithm": "ERM", "setting": "x"}])).verdict == "unknown"
    found = draws(subject([*jobs[:3], made_job(1, rows(0.9), algorithm="CORAL")]))
    assert found.verdict == "alarm" and "fewer records" in found.sentence
    found = draws(subject(jobs[:3]))
    assert found.verdict == "alarm" and "CORAL on c: trial 0, draw 1" in found.sentence


def test_a_sweep_without_records_says_so(tmp_path):
    jobs = [made_job(draw, [], algorithm=name, status="diverged") for draw in (0, 1) for name in ("ERM", "CORAL")]
    words = "no job has records: 4 of 4 diverged before the first evaluation."
    for check in (draws, oracle_gap, variance):
        assert (check(subject(jobs)).verdict, check(subject(jobs)).sentence) == ("unknown", words)
    assert query_budget(Subject(str(tmp_path), subject(jobs).tasks)).grids == []  # no images, no epsilon
    assert draws(Subject("DIR", tasks_of(jobs, ()))).sentence == words  # in a blind audit, too
    assert draws(subject([*jobs, made_job(2, rows(0.5), algorithm="ERM")])).sentence != words


def test_records_without_a_held_out_part_have_no_privacy(tmp_path):
    lean = [made_job(draw, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": 0.5})]) for draw in (0, 1)]
    found = query_budget(Subject(str(tmp_path), subject(lean).tasks))
    assert [grid.title for grid in found.grids if grid.title.startswith("Laplace")] == []


def test_the_example_of_the_docs_has_the_verdicts_of_such_a_sweep(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(CLEAR|EXPOSED|ALARM|UNKNOWN) +([^:]+): ", page, re.MULTILINE)
    write_sweep(tmp_path, algorithms=("ERM", "CORAL", "Mixup"), draws=3, trials=2)
    found = {one.source: one.verdict.upper() for one in audit_sweep(tmp_path).findings}
    assert [source for _, source in lines] == list(found)
    by_accuracy = ("variance", "ranking")  # their verdicts are those of the trained models
    printed = {source: verdict for verdict, source in lines if source not in by_accuracy}
    assert printed == {source: verdict for source, verdict in found.items() if source not in by_accuracy}


def test_with_one_draw_the_json_is_valid_and_the_page_has_no_nan(tmp_path):
    write_sweep(tmp_path / "sweep", algorithms=("ERM", "Mixup"), draws=1, trials=1, test_domains=("-90%",))
    printed = CliRunner().invoke(app, ["audit", str(tmp_path / "sweep"), "--json"]).output

    def refused(constant):
        raise AssertionError(f"{constant} is not JSON")

    findings = {one["source"]: one for one in json.loads(printed, parse_constant=refused)["findings"]}
    (row,) = findings["query budget"]["tables"][1]["rows"]
    assert row["swap"] is None
    assert "nan" not in CliRunner().invoke(app, ["audit", str(tmp_path / "sweep")]).output.split()


def test_the_command_prints_a_page_or_json(tmp_path):
    write_sweep(tmp_path / "sweep", algorithms=("ERM", "Mixup"), draws=2, trials=1, test_domains=("-90%",))
    page = CliRunner().invoke(app, ["audit", str(tmp_path / "sweep")])
    assert page.exit_code == 0 and "search space:" in page.output and "Next: shiftbed audit" in page.output
    brief = CliRunner().invoke(app, ["audit", str(tmp_path / "sweep"), "--brief"])
    assert len(brief.output) < len(page.output)
    printed = CliRunner().invoke(app, ["audit", str(tmp_path / "sweep"), "--json"])
    assert json.loads(printed.stdout)["jobs"] == 4


def test_wrong_inputs_get_a_sentence(tmp_path):
    with pytest.raises(StoreError, match="no finished job"):
        audit_sweep(tmp_path)
    write_sweep(tmp_path / "sweep", algorithms=("ERM",), draws=1, trials=1, test_domains=("-90%",))
    (tmp_path / "table.json").write_text("{}")
    with pytest.raises(StoreError, match="is no table of a sweep"):
        audit_sweep(tmp_path / "sweep", table=tmp_path / "table.json")
    with pytest.raises(StoreError, match=r"missing\.json cannot be read \(No such file or directory\); `shift"):
        audit_sweep(tmp_path / "sweep", table=tmp_path / "missing.json")
    row = {
        "selection": "oracle",
        "algorithm": "ERM",
        "test": "-90%",
        "tested_together": 1,
        "accuracy": 50,
        "chosen": [],
    }
    for wrong, says in (
        ({"accuracy": "high"}, "could not convert"),
        ({"selection": "nobody's"}, "no row has a selection"),
        ({"chosen": [{"trial": 0, "accuracy": 50}]}, "a row has no 'job'"),
    ):
        (tmp_path / "table.json").write_text(json.dumps([row | wrong]))
        with pytest.raises(StoreError, match=f"is no table of a sweep .{says}"):
            audit_sweep(tmp_path / "sweep", table=tmp_path / "table.json")
    for key in ("algorithm", "test", "tested_together"):
        (tmp_path / "table.json").write_text(json.dumps([{name: row[name] for name in row if name != key}]))
        with pytest.raises(StoreError, match=f"is no table of a sweep .a row has no '{key}'"):
            audit_sweep(tmp_path / "sweep", table=tmp_path / "table.json")
    (tmp_path / "table.json").write_text('[{"selection": "oracle", "accuracy": "high", "chosen": []}]')
    with pytest.raises(StoreError, match="is no table of a sweep"):
        audit_sweep(tmp_path / "sweep", table=tmp_path / "table.json")


def test_what_needs_test_accuracies_is_refused_where_they_are_not_looked_at(tmp_path):
    write_sweep(tmp_path / "sweep", algorithms=("ERM",), draws=1, trials=1, test_domains=("-90%",))
    said = CliRunner().invoke(app, ["audit", str(tmp_path / "sweep"), "--blind", "--table", "t", "--against", "s"])
    assert said.exit_code and "which --table and --against need" in str(said.exception or said.output)
    for option in ("table", "against"):
        with pytest.raises(ShiftbedError, match=f"which --{option} needs; leave --blind or --{option} out"):
            audit_sweep(tmp_path / "sweep", blind=True, **{option: tmp_path / "missing"})
    (tmp_path / "sweep" / "blind.json").write_text("{}")
    for option in ("table", "against"):
        with pytest.raises(StoreError, match="are sealed"):
            audit_sweep(tmp_path / "sweep", **{option: tmp_path / "missing"})
