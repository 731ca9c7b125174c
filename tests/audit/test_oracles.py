"""Oracles on a budget: what they answer, what it costs, and that an adaptive adversary gains nothing from the last."""

import math

import numpy as np
import pytest
import torch

from shiftbed.audit.ledger import asked, ledger_id, looked_at, note, queries_of, read_tables
from shiftbed.audit.oracles import SCALE, Held, Thresholdout, _held, between_halves, privacy, thresholdout_oracle
from shiftbed.audit.queries import _privacy, query_budget, swap_chance
from shiftbed.audit.subject import Subject
from shiftbed.errors import ShiftbedError
from shiftbed.selection import SELECTIONS, tasks_of
from shiftbed.selection.evidence import VALIDATION
from shiftbed.selection.rules import ORACLE_BUDGET
from shiftbed.sweeps.bundle import bundle, merge
from shiftbed.training.evaluation import split_metrics
from shiftbed.training.store import LocalStore
from tests.audit.made_sweeps import write_sweep
from tests.made_records import made_job

METRICS = ("accuracy", "count", "half_accuracy")


def task_of(accuracies, halves=None, count=200, lean=0):
    """A cell whose draws have these accuracies on the test domain's held-out images, after so many without them."""
    made = [made_job(draw, [(10, {"a/out": 0.5, "c/in": 0.5})]) for draw in range(lean)]
    for draw, accuracy in enumerate(accuracies, start=lean):
        held = {"accuracy": accuracy, "half_accuracy": halves[draw - lean] if halves else accuracy, "count": count}
        made.append(made_job(draw, [(10, {"a/out": 0.5, "c/in": accuracy, "c/out": held})]))
    (task,) = tasks_of(made, METRICS)
    return task


def chosen(rule, task):
    (choice,) = SELECTIONS[rule].choices(task).values()
    return choice


def test_oracles_answer_the_first_20_draws_of_a_cell():
    accuracies = [0.5] * 30
    accuracies[7], accuracies[25] = 0.7, 0.9
    task = task_of(accuracies)
    assert chosen("oracle", task).draw == 7
    assert chosen("oracle-laplace", task).draw == 7
    assert SELECTIONS["oracle-laplace"].spent(task) == list(range(ORACLE_BUDGET))
    assert len(list(asked(SELECTIONS["oracle"], task))) == ORACLE_BUDGET == 20


def test_draws_that_did_not_record_it_cost_an_oracle_no_look():
    task = task_of([0.5, 0.7], lean=ORACLE_BUDGET)
    for rule in ("oracle", "oracle-laplace", "oracle-thresholdout"):
        assert chosen(rule, task).draw > ORACLE_BUDGET - 1
        assert {query.job for query in asked(SELECTIONS[rule], task)} <= {about["id"] for about in task.abouts[-2:]}
    assert len(list(asked(SELECTIONS["oracle"], task))) == _privacy(task)["queries"] == 2


def test_noise_is_laplacian_and_the_same_question_has_the_same_answer():
    task = task_of([0.5] * 20)
    answers = [one.value for _, found in SELECTIONS["oracle-laplace"]._answered(task) for one in found]
    again = [one.value for _, found in SELECTIONS["oracle-laplace"]._answered(task) for one in found]
    assert answers == again and len(set(answers)) == 20
    noise = [
        SELECTIONS["oracle-laplace"].answers([Held(f"job {number}", 0.5, 0.5, 0.5, (200,))])[0].value - 0.5
        for number in range(2000)
    ]
    assert np.mean(np.abs(noise)) == pytest.approx(SCALE, rel=0.1)  # the mean of |Laplace(b)| is b
    assert np.mean(np.abs(noise) > SCALE * math.log(20)) == pytest.approx(0.05, abs=0.015)


def test_epsilon_is_that_of_a_mean_of_so_many_images():
    assert privacy([2000]) == pytest.approx(0.05)
    assert 20 * privacy([2000]) == pytest.approx(1.0)
    assert 20 * privacy([10_000]) == pytest.approx(0.2)
    assert privacy([1000, 4000]) == pytest.approx(0.05)  # the mean of two domains moves by half


def test_the_chance_of_a_swap_by_simulation():
    random = np.random.default_rng(0)
    for gap in (0.0, 0.01, 0.03):
        noise = random.laplace(0, SCALE, size=(2, 100_000))
        assert swap_chance(gap) == pytest.approx(np.mean(noise[1] - noise[0] > gap), abs=0.005)


def test_halves_that_agree_cost_nothing_and_those_that_do_not_are_answered_by_the_guarded_one():
    free = [Held(f"job {n}", 0.7, 0.7, 0.7, (2000,)) for n in range(30)]
    assert [(one.value, one.spent) for one in between_halves(free)] == [(0.7, False)] * 30
    apart = [Held(f"job {n}", 0.7, 0.9, 0.5, (2000,)) for n in range(30)]
    answers = between_halves(apart)
    assert sum(one.spent for one in answers) == ORACLE_BUDGET
    assert all(one.value == pytest.approx(0.5, abs=0.15) for one in answers[:ORACLE_BUDGET])
    assert all(one.value is None for one in answers[ORACLE_BUDGET:])  # the budget is spent


def test_between_halves_of_unequal_domains_chance_alone_spends_hardly_anything():
    """The mean over a domain of 20 images and one of 10,000 varies as the first does, and not as 10,020 together."""
    random = np.random.default_rng(0)
    counts = np.array([20, 10_000])
    free, guarded = random.binomial(counts // 2, 0.7, size=(2, 200, 2)) / (counts // 2)
    means = np.stack([(free + guarded) / 2, free, guarded]).mean(axis=2).T.tolist()
    answers = between_halves([Held(f"job {n}", *mean, tuple(counts.tolist())) for n, mean in enumerate(means)])
    assert sum(answer.spent for answer in answers) < 5 < ORACLE_BUDGET


def test_the_guarded_half_is_the_rest_of_the_images():
    task = task_of([0.6], [0.8], count=5)  # three images are free, two guarded: 3 of 5 right, 0.8 · 3 of them free
    assert _held(task)[0].guarded == pytest.approx((0.6 * 5 - 0.8 * 3) / 2)


def test_training_records_the_accuracy_of_every_other_example():
    logits = torch.eye(2)[[0, 0, 1, 0, 0]]
    found = split_metrics(logits, torch.tensor([0, 1, 1, 1, 1]))  # right: yes, no, yes, no, no
    assert float(found["accuracy"]) == pytest.approx(2 / 5)
    assert float(found["half_accuracy"]) == pytest.approx(2 / 3)


def test_records_without_halves_have_no_choice():
    made = [made_job(0, [(10, {"a/out": 0.5, "c/in": 0.5, "c/out": 0.5})])]
    (task,) = tasks_of(made, METRICS)
    assert SELECTIONS["oracle-thresholdout"].choices(task) == {}


def test_thresholdout_between_training_and_test_domains_is_refused_with_its_reason():
    with pytest.raises(ShiftbedError, match="two samples of one distribution"):
        thresholdout_oracle("mine", VALIDATION)


def adversary(says, train, signs):
    """Keeps attributes that agree on both samples, as the holdout says, and votes with their signs."""
    x, y = train
    weights = x.T.astype(np.float32) @ y / len(y)
    said = np.array([says(column, value) for column, value in enumerate(weights)])
    kept = np.flatnonzero((np.sign(said) == np.sign(weights)) & (np.abs(said) > 1 / np.sqrt(len(y))))
    best = kept[np.argsort(-np.abs(weights[kept]))[:signs]]
    vote = np.zeros(len(weights), np.float32)
    vote[best] = np.sign(weights[best])
    return vote


def test_an_adaptive_adversary_overfits_the_plain_holdout_and_not_this_one():
    random, n, attributes = np.random.default_rng(0), 3000, 3000
    samples = []
    for _ in range(3):  # train, holdout, fresh: pure noise
        x = random.choice(np.array([-1, 1], np.int8), size=(n, attributes))
        samples.append((x, random.choice(np.array([-1.0, 1.0], np.float32), size=n)))
    train, holdout, fresh = samples
    held = holdout[0].T.astype(np.float32) @ holdout[1] / n

    def accuracy(vote, sample):
        return float(np.mean(np.sign(sample[0].astype(np.float32) @ vote + 1e-6) == sample[1]))

    plain = adversary(lambda column, value: held[column], train, 300)
    assert accuracy(plain, holdout) > 0.6
    assert accuracy(plain, fresh) == pytest.approx(0.5, abs=0.03)

    deviation = 1 / np.sqrt(n)
    mechanism = Thresholdout(3 * deviation, deviation, 10**6, random)

    def guarded(column, value):
        return mechanism(value, held[column], random).value

    vote = adversary(guarded, train, 300)
    claimed = mechanism(accuracy(vote, train), accuracy(vote, holdout), random).value
    assert accuracy(vote, train) > 0.6  # it fooled itself on the training sample
    assert claimed == pytest.approx(0.5, abs=0.06)  # its noise alone is 0.02
    assert accuracy(vote, holdout) == pytest.approx(accuracy(vote, fresh), abs=0.04)


def test_the_thresholdout_oracle_is_not_won_by_the_luckiest_of_many_draws():
    """A thousand equal models: the plain oracle reports its luck as accuracy, this one hardly any."""
    random = np.random.default_rng(1)
    n, truth = 400, 0.7
    right = random.random((1000, n)) < truth
    halves, accuracies = right[:, ::2].mean(axis=1), right.mean(axis=1)
    rest = right[:, 1::2].mean(axis=1)
    asked_of = [
        Held(f"job {k}", a, f, g, (n,)) for k, (a, f, g) in enumerate(zip(accuracies, halves, rest, strict=True))
    ]
    answers = between_halves(asked_of)
    assert sum(one.spent for one in answers) < 20  # equal models: agreement is the rule
    values = np.array([np.nan if one.value is None else one.value for one in answers])
    best = int(np.nanargmax(values))
    assert accuracies.max() > truth + 0.05
    assert rest[best] == pytest.approx(truth, abs=0.08)


# --- The ledger ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(tmp_path):
    write_sweep(tmp_path / "sweep", algorithms=("ERM",), draws=3, trials=1, test_domains=("-90%",))
    return tmp_path / "sweep"


def looks(store):
    return sorted(looked_at(queries_of(store), {}).values())


def test_looks_are_counted_once_whoever_asks_again(sweep):
    store = LocalStore(sweep)
    read_tables(sweep, ["training-domain-validation"])
    assert queries_of(store) == [] and ledger_id(store) is None  # no look at the test domain
    read_tables(sweep, ["oracle"])
    assert looks(store) == [3]
    first = ledger_id(store)
    read_tables(sweep, ["oracle", "oracle-laplace"])
    assert looks(store) == [3]  # the same records
    assert ledger_id(store) == first


def test_a_bundle_or_a_merge_refunds_no_look(sweep, tmp_path):
    read_tables(sweep, ["oracle"])
    bundle(sweep, tmp_path / "sweep.zip")
    bundle(sweep, tmp_path / "few.zip", metrics=["accuracy", "count"])
    for number, source in enumerate((sweep, tmp_path / "sweep.zip", tmp_path / "few.zip")):
        copy = LocalStore(tmp_path / f"copy{number}")
        merge([source], copy.root)
        assert queries_of(copy) == queries_of(LocalStore(sweep)) and ledger_id(copy)
        assert "3 looks at test domains" in query_budget(Subject.read(copy.root)).sentence


def test_more_looks_than_allowed_are_an_alarm(sweep):
    read_tables(sweep, ["oracle"])
    (first, *_) = queries_of(LocalStore(sweep))
    note(LocalStore(sweep), [first._replace(step=step) for step in range(17)])
    assert query_budget(Subject.read(sweep)).verdict == "clear"
    note(LocalStore(sweep), [first._replace(step=17)])  # a copy of the sweep had other jobs
    found = query_budget(Subject.read(sweep))
    assert found.verdict == "alarm" and "at most 21 of 20" in found.sentence


def test_settings_in_one_folder_have_a_budget_each(tmp_path):
    """Two datasets, or two recipes, may share the names of domains; their cells are not one."""
    for steps in (100, 200):
        write_sweep(tmp_path, algorithms=("ERM",), draws=11, trials=1, test_domains=("-90%",), fields={"steps": steps})
    read_tables(tmp_path, ["oracle"])
    found = query_budget(Subject.read(tmp_path))
    assert found.verdict == "clear", found.sentence
    assert "22 looks at test domains in 2 cells, at most 11 of 20" in found.sentence
    assert "(ERM on -90% of ColoredDigits, trial 0)" in found.sentence


def test_looks_at_jobs_that_are_not_here_count_where_they_can_belong(sweep):
    read_tables(sweep, ["oracle"])
    queries = queries_of(LocalStore(sweep))
    gone = [queries[0]._replace(job=f"gone {number}") for number in range(18)]
    here = {query.job: "one" for query in queries}
    assert list(looked_at([*queries, *gone], here).values()) == [21]  # one setting has such a cell
    here[queries[0].job] = "another"
    assert sorted(looked_at([*queries, *gone], here).values()) == [1, 2, 18]
    note(LocalStore(sweep), gone)
    assert query_budget(Subject.read(sweep)).verdict == "alarm"


def test_thresholdout_counts_only_what_the_guarded_half_answers():
    agreeing, apart = task_of([0.5] * 4, [0.5] * 4, count=2000), task_of([0.5] * 4, [0.9] * 4, count=2000)
    rule = SELECTIONS["oracle-thresholdout"]
    assert len(list(asked(rule, agreeing))) <= 1  # noise alone crosses now and then
    assert len(list(asked(rule, apart))) == 4


def test_the_page_prints_scale_and_total_epsilon(sweep):
    note(LocalStore(sweep), [])
    privacy_grid = query_budget(Subject.read(sweep)).grids[1]
    (row,) = privacy_grid.data
    assert row["scale"] == SCALE
    assert row["total_epsilon"] == pytest.approx(3 / (row["images"][0] * SCALE))


def test_the_chance_of_a_swap_is_that_of_draws_within_the_budget():
    found = _privacy(task_of([0.6, 0.62] + [0.5] * 18 + [0.9, 0.9]))
    assert found["swap"] == pytest.approx(swap_chance(0.02)) and found["queries"] == ORACLE_BUDGET


def test_the_page_names_the_images_of_every_domain_that_one_answer_is_about(tmp_path):
    write_sweep(
        tmp_path, algorithms=("ERM",), draws=2, trials=1, protocol="leave-pair-out", test_domains=("-90%", "+80%")
    )
    (title, entries), *_ = query_budget(Subject.read(tmp_path)).grids[1].rows
    images, epsilon, *_ = (entry.text for entry in entries)
    assert (title, images) == ("ColoredDigits, +80% and -90%", "119 + 119")
    assert float(epsilon) == pytest.approx(1 / (2 * 119 * SCALE), rel=0.01)
