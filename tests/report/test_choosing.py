"""From a sweep to a model of all domains, and what it says of a new one."""

from dataclasses import replace

import numpy as np
import pytest

import shiftbed
from shiftbed.audit.ledger import queries_of
from shiftbed.audit.verbs import audit_sweep
from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.report import choosing
from shiftbed.report.choosing import best, best_everywhere
from shiftbed.sweeps.blind import seal
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.files import JobFiles, Result
from shiftbed.training.job import Job
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from tests.conftest import tiny_job
from tests.sweeps.finished import finish

DOMAINS = ("+90%", "+80%", "-90%")
# By algorithm and draw, what held-out images say for each test domain: ERM's second draw is the best in the mean, its
# first the best of all in one place, and IRM is worse than either.
VALIDATION = {
    ("ERM", 0): (0.9, 0.5, 0.5),
    ("ERM", 1): (0.8, 0.8, 0.8),
    ("IRM", 0): (0.6, 0.6, 0.6),
    ("IRM", 1): (0.1, 0.1, 0.1),
}
TESTED = {"+90%": 0.7, "+80%": 0.6, "-90%": 0.2}


def made_sweep(folder, left_out=()):
    store = LocalStore(folder)
    fields = {"steps": 4, "evaluate_every": 2}
    for job in plan(Request("ColoredDigits", ["ERM", "IRM"], draws=2, fields=fields)):
        (test,) = job.task.test_domains
        if (job.algorithm, job.draw, test) not in left_out:
            validation = VALIDATION[job.algorithm, job.draw][DOMAINS.index(test)]
            finish(store, job, validation=validation, test=TESTED[test])
    return store


def test_a_model_learns_from_all_domains_with_the_values_that_are_best_in_the_mean(tmp_path):
    made_sweep(tmp_path / "sweep")
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert (made.job.algorithm, made.job.draw, made.job.task.train_domains) == ("ERM", 1, DOMAINS)
    assert made.job.task.test_domains == () and made.elsewhere == TESTED
    assert "learned from all 3 domains (+90%, +80%, -90%), with the values of draw 1" in made.words
    # The mean of 70, 60 and 20, its standard error √(700 / 3), and the deviation of one more √(700 + 700 / 3).
    assert "Expect 50.0 % at a new domain, give or take 30.6" in made.words and "20.0 % on -90%" in made.words
    assert "mean over 3 domains, known to ± 15.3 (its standard error), and the standard deviation" in made.words
    model, domain = shiftbed.load(made.weights), shiftbed.data.load("ColoredDigits")["-90%"]
    held_out = next(split for split in made.job.task.splits if split.name == "-90%/out")
    assert held_out.role == "validation"
    said = model.predict(domain.inputs[held_out.indices]).argmax(1)
    assert 0 < np.mean(said == domain.labels[held_out.indices]) < 1
    before = made.weights.read_bytes()
    assert best_everywhere(tmp_path / "sweep", tmp_path / "model").choice == made.choice, "it is not trained twice"
    assert made.weights.read_bytes() == before


def test_what_to_expect_of_a_model_of_all_domains_is_of_all_trials_of_its_values_not_of_the_luckiest(tmp_path):
    store = LocalStore(tmp_path / "sweep")
    for job in plan(Request("ColoredDigits", "ERM", draws=1, trials=2, fields={"steps": 4, "evaluate_every": 2})):
        (test,) = job.task.test_domains
        luck = (-0.1, 0.1)[job.trial]
        finish(store, job, validation=0.7 + luck, test=TESTED[test] + luck)
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert made.elsewhere == pytest.approx(TESTED) and made.job.trial == 0
    assert made.tested["-90%"] == pytest.approx([0.1, 0.3])
    # Of one model: √(700 + 700 / 3) between the domains' means, and half the trials' variance of 200 that means hide.
    assert "Expect 50.0 % at a new domain, give or take 32.1" in made.words
    assert "20.0 % on -90%; means over 2 models)" in made.words


def test_a_model_of_all_domains_in_the_folder_of_its_sweep_changes_no_number_and_no_choice(tmp_path):
    made_sweep(tmp_path)
    before, audited = shiftbed.read_tables(tmp_path), audit_sweep(tmp_path, blind=True).as_dict()
    chosen = best(tmp_path, tmp_path / "model").choice
    assert best_everywhere(tmp_path, tmp_path).elsewhere == TESTED
    after = shiftbed.read_tables(tmp_path)
    assert [table.estimates for table in after] == [table.estimates for table in before]
    assert [table.draws for table in after] == [table.draws for table in before]
    assert audit_sweep(tmp_path, blind=True).as_dict() == audited
    assert best(tmp_path, tmp_path / "model").choice == chosen
    (domain,) = best(tmp_path, tmp_path / "model").job.description["test_domains"]
    assert best(tmp_path, tmp_path / "model", test=domain).choice == chosen, "one domain may stand alone"
    said = shiftbed.predictions(tmp_path / "model" / "jobs" / chosen.job_id, domains=domain)
    assert {line.split(",")[0] for line in said.splitlines()[1:]} == {domain}
    assert best_everywhere(tmp_path, tmp_path / "model").elsewhere == TESTED


def test_a_model_that_comes_out_otherwise_than_its_record_says_by_how_much(tmp_path):
    made_sweep(tmp_path / "sweep")
    made = best(tmp_path / "sweep", tmp_path / "model")
    model, apart = shiftbed.load(made.weights), []
    for split in Job.from_description(made.job.description).task.splits:
        if split.role in ("validation", "test"):
            domain = shiftbed.data.load("ColoredDigits")[split.domain]
            right = model.predict(domain.inputs[split.indices]).argmax(1) == domain.labels[split.indices]
            apart.append(abs(right.mean() - made.job.rows[-1]["splits"][split.name]["accuracy"]))
    assert made.apart == pytest.approx(max(apart)) and not made.facts["same"]
    assert f"another model than in the sweep (accuracies differ by {100 * max(apart):.1f} points" in made.words


def test_the_chosen_job_is_made_again_with_kernels_that_repeat_themselves(tmp_path, monkeypatch):
    made_sweep(tmp_path / "sweep")
    seen, trainer = [], choosing.Trainer
    monkeypatch.setattr(choosing, "Trainer", lambda job, runtime: seen.append(runtime) or trainer(job, runtime))
    best(tmp_path / "sweep", tmp_path / "model")
    assert [runtime.deterministic for runtime in seen] == [True]


def test_what_compares_says_that_a_model_of_all_domains_tests_none(tmp_path):
    made_sweep(tmp_path / "sweep")
    model = tmp_path / "model"
    best_everywhere(tmp_path / "sweep", model)
    verbs = (shiftbed.read_tables, audit_sweep, lambda folder: best(folder, tmp_path / "again"))
    for verb in verbs:
        with pytest.raises(StoreError, match="learned from all domains and test none; name the folder of their sweep"):
            verb(model)
    with pytest.raises(StoreError, match=r"learned from all domains, and have seen all; add --on FOLDER"):
        shiftbed.predict_sweep(model)


def test_of_another_algorithm_and_with_labels_of_the_test_domains_it_says_so(tmp_path):
    made_sweep(tmp_path / "sweep")
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model", algorithm="IRM", selection="oracle")
    assert made.job.algorithm == "IRM" and "chosen with labels there" in made.words


def test_what_an_oracle_looked_at_for_a_model_is_written_down_and_nothing_of_other_rules(tmp_path):
    sweep, model = tmp_path / "sweep", tmp_path / "model"
    store = made_sweep(sweep)
    about = {job.id: job.description for job in finished_jobs(store)}

    def looked_at():
        found = queries_of(store)
        assert {(one.rule, one.step) for one in found} <= {("oracle", 4)}
        return sorted((one.algorithm, about[one.job]["draw"], *one.tested) for one in found)

    best(sweep, model)
    best_everywhere(sweep, model)
    assert looked_at() == []
    best(sweep, model, selection="oracle", algorithm="IRM", test=["-90%"])
    assert looked_at() == [("IRM", 0, "-90%"), ("IRM", 1, "-90%")]
    best_everywhere(sweep, model, selection="oracle", algorithm="ERM")
    of_erm = sorted(("ERM", draw, test) for draw in (0, 1) for test in DOMAINS)
    assert looked_at() == [*of_erm, ("IRM", 0, "-90%"), ("IRM", 1, "-90%")]
    best(sweep, model, selection="oracle")
    everything = queries_of(store)
    assert len(everything) == len(about) == 12
    shiftbed.read_tables(sweep, ["oracle"])
    assert queries_of(store) == everything, "tables ask the same"


def test_lean_jobs_without_what_a_rule_reads_are_told(tmp_path):
    store = made_sweep(tmp_path / "sweep")
    for job in plan(Request("ColoredDigits", ["ERM", "IRM"], fields={"steps": 4, "evaluate_every": 2})):
        (test,) = job.task.test_domains
        rows = [{"step": 4, "splits": {f"{test}/in": {"accuracy": 1.0, "count": 480}}}]
        store.put_atomic(JobFiles(job.id).job, canonical(job.describe() | {"lean": ["training-domain-validation"]}))
        (store.root / JobFiles(job.id).done).unlink()
        Result.of("done", 4, rows, list(rows[0]["splits"])).write(store, job.id)
    told = "left out: 6 jobs with lean records for other selections"
    made = best(tmp_path / "sweep", tmp_path / "model", selection="oracle")
    assert made.job.description["draw"] == 1 and told in made.words and made.facts["unrecorded"] == 6
    everywhere = best_everywhere(tmp_path / "sweep", tmp_path / "model", selection="oracle")
    assert told in everywhere.words and everywhere.facts["unrecorded"] == 6
    assert len(queries_of(store)) == 6, "no look at what was not recorded"
    found = {one.source: one for one in audit_sweep(tmp_path / "sweep").findings}
    assert "but the oracle chose among fewer draws" in found["oracle selection"].sentence
    assert any(told in note for note in found["oracle selection"].grids[0].notes)
    assert any(told in note for note in found["query budget"].grids[0].notes)


def test_values_that_were_not_tried_for_every_test_domain_do_not_compete(tmp_path):
    made_sweep(tmp_path / "sweep", [("ERM", 1, "-90%")])
    assert best_everywhere(tmp_path / "sweep", tmp_path / "model").job.draw == 0
    made_sweep(tmp_path / "other", [("ERM", 1, "-90%"), ("ERM", 0, "+90%")])
    with pytest.raises(StoreError, match=r"No draw of ERM in .*other was trained for every test domain"):
        best_everywhere(tmp_path / "other", tmp_path / "model")


def test_of_a_sealed_sweep_no_test_number_is_told(tmp_path):
    seal(LocalStore(tmp_path / "sweep"))
    made_sweep(tmp_path / "sweep")
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert made.elsewhere == {} and "Expect" not in made.words


def test_one_left_out_domain_gives_no_error(tmp_path):
    made_sweep(tmp_path / "sweep")
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert "Expect 20.0 % at a new domain" in made._replace(tested={"-90%": [0.2]}).words


def test_what_keeps_a_rule_from_choosing_is_said(tmp_path):
    made_sweep(tmp_path / "sweep")
    with pytest.raises(StoreError, match=r"No finished job in \S+ is of EMR\. Did you mean ERM\?"):
        best(tmp_path / "sweep", tmp_path / "model", algorithm="EMR", test=["-90%"])
    with pytest.raises(
        StoreError, match=r"No finished job in \S+ is of ERM and tests \+90% and -90%; `shiftbed status"
    ):
        best(tmp_path / "sweep", tmp_path / "model", algorithm="ERM", test=["+90%", "-90%"])
    with pytest.raises(StoreError, match=r"No finished job in \S+ tests \+90% and -90%; "):
        best(tmp_path / "sweep", tmp_path / "model", test=["+90%", "-90%"])
    lean = replace(tiny_job("ERM"), lean=("training-domain-validation",))
    run_job(lean, LocalStore(tmp_path / "lean"))
    with pytest.raises(StoreError, match=r"oracle reads test/out/accuracy, which no job in \S+ recorded"):
        best(tmp_path / "lean", tmp_path / "model", selection="oracle")


def test_jobs_that_a_rule_lacks_are_named_by_a_command(tmp_path):
    made_sweep(tmp_path / "a sweep")
    with pytest.raises(StoreError, match=r"`shiftbed tables '\S+/a sweep' --selection domain-cross-validation` names"):
        best(tmp_path / "a sweep", tmp_path / "best", selection="domain-cross-validation")


def test_an_algorithm_that_was_named_is_not_said_to_be_the_best(tmp_path):
    made_sweep(tmp_path / "s")
    chosen = best(tmp_path / "s", tmp_path / "one").words
    assert "Of the algorithm that scores best over all test domains, it is the one with the best score." in chosen
    named = best(tmp_path / "s", tmp_path / "two", algorithm="IRM").words
    assert "Of IRM, which was named, it is the one with the best score." in named and "scores best" not in named


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_an_algorithm_with_values_set_by_hand_competes_as_the_row_of_a_table_that_it_is(tmp_path, weight):
    """Whatever their order: IRM as it is drawn and with two weights set by hand are three."""
    store, fields = made_sweep(tmp_path / "sweep"), {"steps": 4, "evaluate_every": 2}
    for own in (0.5, 2.0):
        asked = Request("ColoredDigits", ["IRM"], draws=2, fields=fields, overrides={"irm_lambda": own})
        for job in plan(asked):
            finish(store, job, validation=0.95 if own == weight else 0.3, test=0.5)
    assert best(tmp_path / "sweep", tmp_path / "one").job.description["hparams"]["irm_lambda"] == weight
    everywhere = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert everywhere.job.hparams["irm_lambda"] == weight and set(everywhere.elsewhere.values()) == {0.5}


def test_jobs_for_domain_cross_validation_serve_it_and_compete_with_none(tmp_path):
    """They learned from one domain less, and what they say of their two test domains is not what is reported."""
    store, fields = made_sweep(tmp_path / "sweep"), {"steps": 4, "evaluate_every": 2}
    both = ("training-domain-validation", "domain-cross-validation")
    for job in plan(Request("ColoredDigits", ["ERM", "IRM"], draws=2, fields=fields, selections=both)):
        if len(job.task.test_domains) == 2:
            finish(store, job, validation=0.99, test=0.4 if (job.algorithm, job.draw) == ("IRM", 1) else 0.01)
    assert best(tmp_path / "sweep", tmp_path / "one").job.description["test_domains"] in [[name] for name in DOMAINS]
    everywhere = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert (everywhere.job.algorithm, everywhere.job.draw, everywhere.elsewhere) == ("ERM", 1, TESTED)
    left_out_too = best(tmp_path / "sweep", tmp_path / "two", selection="domain-cross-validation")
    assert (left_out_too.job.description["algorithm"], left_out_too.choice.draw) == ("IRM", 1)
    asked_for = best(tmp_path / "sweep", tmp_path / "three", test=["+90%", "+80%"])
    assert asked_for.job.description["test_domains"] == ["+90%", "+80%"]


def test_references_that_learned_from_the_domains_they_test_compete_with_no_result(tmp_path):
    store, fields = made_sweep(tmp_path / "sweep"), {"steps": 4, "evaluate_every": 2}
    asked = Request("ColoredDigits", ["IRM"], draws=2, fields=fields, protocol="target-trained-per-domain")
    for folder in (store, LocalStore(tmp_path / "alone")):
        for job in plan(asked):
            finish(folder, job, validation=0.99, test=0.99)
    assert best(tmp_path / "sweep", tmp_path / "one").job.description["algorithm"] == "ERM"
    everywhere = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert (everywhere.job.algorithm, everywhere.elsewhere) == ("ERM", TESTED)
    assert best(tmp_path / "alone", tmp_path / "two").job.description["algorithm"] == "IRM", "nothing else is there"


def test_nothing_is_expected_elsewhere_of_references_that_learned_from_the_domains_they_test(tmp_path):
    store, fields = LocalStore(tmp_path / "sweep"), {"steps": 4, "evaluate_every": 2}
    for job in plan(Request("ColoredDigits", ["ERM"], fields=fields, protocol="target-trained-per-domain")):
        finish(store, job, validation=0.99, test=0.99)
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert made.elsewhere == {} and "Expect" not in made.words


def test_what_is_expected_of_a_model_says_that_others_saw_unlabelled_images_there(tmp_path):
    """The model of all domains has no new one's images to adapt to."""
    store, fields = LocalStore(tmp_path / "sweep"), {"steps": 4, "evaluate_every": 2}
    for job in plan(Request("ColoredDigits", ["DANN"], fields=fields, adapt=0.25)):
        finish(store, job, validation=0.8, test=TESTED[job.task.test_domains[0]])
    made = best_everywhere(tmp_path / "sweep", tmp_path / "model")
    assert not made.job.task.of_role("unlabelled") and made.facts["adaptation"] == 0.25
    assert "did not learn, but saw 0.25 of the images unlabelled, as this one will not (" in made.words


def test_a_folder_that_cannot_be_written_is_noticed_before_the_training(tmp_path, monkeypatch):
    made_sweep(tmp_path / "sweep")
    monkeypatch.setattr(choosing, "retrained", lambda *_: pytest.fail("trained in vain"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file is not a folder; choose another folder"):
        best(tmp_path / "sweep", tmp_path / "file")


def test_weights_of_a_sealed_sweep_never_lie_anywhere_without_their_mark(tmp_path, monkeypatch):
    seal(LocalStore(tmp_path / "sweep"))
    made_sweep(tmp_path / "sweep")

    def weights(_):
        assert list(tmp_path.glob("model/jobs/*/blind.json")), "written when the weights are"
        return b""

    monkeypatch.setattr(choosing, "encode_weights", weights)
    best(tmp_path / "sweep", tmp_path / "model")


def test_looks_that_cannot_be_written_down_are_not_taken_and_honest_rules_are_named(tmp_path):
    made_sweep(tmp_path)
    (tmp_path / "ledger").touch()  # as where a colleague's folder may only be read
    with pytest.raises(StoreError, match=r"What oracle asks of test domains is written down .* --selection training-"):
        shiftbed.read_tables(tmp_path)
    assert shiftbed.read_tables(tmp_path, ["training-domain-validation"])
