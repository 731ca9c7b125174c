"""Selection rules against choices made by hand."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftbed.algorithms import ALGORITHMS
from shiftbed.errors import ShiftbedError
from shiftbed.hashing import seed_hash
from shiftbed.selection import SELECTIONS, Column, Evidence, Selection, TaskRecords
from tests.made_records import made_job

NAMES = ("a/out", "b/out", "c/in", "c/out")


def job(draw, rows, **about):
    """Rows are (step, accuracy on a/out, b/out, c/in, c/out)."""
    return made_job(draw, [(step, dict(zip(NAMES, values, strict=True))) for step, *values in rows], **about)


JOBS = [
    job(0, [(10, 0.5, 0.7, 0.1, 0.9), (20, 0.6, 0.8, 0.2, 0.8), (30, 0.6, 0.6, 0.3, 0.30)]),
    job(1, [(10, 0.9, 0.3, 0.4, 0.1), (20, 0.2, 0.2, 0.5, 0.1), (30, 0.6, 0.65, 0.6, 0.40)]),
    job(2, [(10, 0.1, 0.1, 0.7, 0.2), (20, 0.1, 0.1, 0.8, 0.2), (30, 0.1, 0.1, 0.9, 0.35)]),
]


def choose(rule, jobs, others=()):
    choice = SELECTIONS[rule].choose(jobs, others)
    return choice and (choice.draw, choice.step, pytest.approx(choice.score))


def test_training_domain_validation_takes_the_best_mean_over_domains_at_any_step():
    assert choose("training-domain-validation", JOBS) == (0, 20, 0.7)


def test_pooled_validation_weighs_domains_by_their_images():
    counts = {"a/out": 30, "b/out": 10}
    few = [job(0, [(10, 0.6, 0.9, 0, 0)], counts=counts), job(1, [(10, 0.7, 0.5, 0, 0)], counts=counts)]
    assert choose("training-domain-validation", few) == (0, 10, 0.75)
    assert choose("training-domain-validation-pooled", few) == (0, 10, 0.675)
    even = [job(2, [(10, 0.72, 0.6, 0, 0)], counts=counts)]
    assert choose("training-domain-validation-pooled", few + even) == (2, 10, 0.69)


def test_the_oracle_takes_the_best_last_step_on_held_out_test_images():
    assert choose("oracle", JOBS) == (1, 30, 0.4)


def test_last_step_takes_the_draw_whose_last_step_validates_best():
    assert choose("last-step", JOBS) == (1, 30, 0.625)


def test_worst_domain_validation_takes_the_best_of_the_worst():
    assert choose("worst-domain-validation", JOBS) == (1, 30, 0.6), "0.6 at draw 0 too, but the last of equals wins"
    better = job(3, [(10, 0.61, 0.62, 0, 0)])
    assert choose("worst-domain-validation", [*JOBS, better]) == (3, 10, 0.61)


def test_worst_domain_validation_leaks_to_algorithms_that_learn_without_domain_labels():
    rule = SELECTIONS["worst-domain-validation"]
    for name in ALGORITHMS:
        assert rule.leaks(name) == ("domain labels" not in ALGORITHMS[name].needs)
    assert rule.leaks("ERM") and not rule.leaks("nobody knows it")
    assert [name for name in SELECTIONS if SELECTIONS[name].leaks("ERM")] == ["predicted-accuracy", rule.name]


def test_validation_loss_takes_the_least():
    losses = [(0, 20, 0.4, 0.6), (1, 10, 0.3, 0.5), (2, 10, 0.2, 0.9)]
    jobs = [made_job(d, [(s, {"a/out": a, "b/out": b})], metric="loss") for d, s, a, b in losses]
    assert choose("validation-loss", jobs) == (1, 10, -0.4)


def whole_domain(draw, rows):
    splits = [
        {"name": "a/all", "domain": "a", "part": "all", "role": "train"},
        {"name": "b/all", "domain": "b", "part": "all", "role": "validation"},
        {"name": "c/all", "domain": "c", "part": "all", "role": "test"},
    ]
    return made_job(draw, [(step, {"b/all": b, "c/all": c}) for step, b, c in rows], splits=splits)


def test_ood_validation_reads_whole_domains_that_are_neither_trained_on_nor_tested():
    jobs = [whole_domain(0, [(10, 0.5, 0.9), (20, 0.7, 0.1)]), whole_domain(1, [(10, 0.6, 1.0)])]
    assert choose("ood-validation", jobs) == (0, 20, 0.7)
    assert choose("training-domain-validation", jobs) is None, "a validation domain is no training domain"
    assert choose("ood-validation", JOBS) is None


def pair(draw, rows, beside, **about):
    """A job that tests c and another domain; rows are (step, accuracy there, accuracy on c)."""
    domains = tuple(sorted((beside, "c")))
    return made_job(draw, [(s, {f"{beside}/in": v, "c/in": c}) for s, v, c in rows], tested=domains, **about)


PAIRS = [
    pair(0, [(10, 0.1, 1), (20, 0.9, 1), (30, 0.5, 1)], "a"),
    pair(0, [(10, 0.2, 1), (20, 0.1, 1), (30, 0.6, 1)], "b"),
    pair(1, [(10, 0.4, 1), (20, 0.5, 1), (30, 0.1, 1)], "a"),
    pair(1, [(10, 0.5, 1), (20, 0.7, 1), (30, 0.1, 1)], "b"),
    pair(2, [(10, 1.0, 1), (20, 1.0, 1), (30, 1.0, 1)], "a"),  # its other half is missing
]


def test_domain_cross_validation_scores_a_draw_and_step_where_another_domain_is_left_out_too():
    choice = SELECTIONS["domain-cross-validation"].choose(JOBS, PAIRS)
    assert (choice.draw, choice.step, choice.score) == (1, 20, pytest.approx(0.6))
    assert choice.job_id == JOBS[1].id, "what is reported is the job that tests one domain"
    assert choice.beside == (PAIRS[2].id, PAIRS[3].id)


def test_domain_cross_validation_without_all_pairs_chooses_nothing():
    assert choose("domain-cross-validation", JOBS) is None
    assert choose("domain-cross-validation", JOBS, PAIRS[:1]) is None
    assert choose("domain-cross-validation", JOBS, PAIRS[:2]) == (0, 30, 0.55)


def test_pairs_of_other_trials_algorithms_recipes_and_datasets_are_not_mixed_in():
    for other in (
        {"trial": 1},
        {"algorithm": "CORAL"},
        {"dataset": "Other"},
        {"recipe": {"name": "slow", "steps": 30}},
    ):
        strange = [pair(0, [(10, 0.5, 1)], name, **other) for name in "ab"]
        assert choose("domain-cross-validation", JOBS, strange) is None


def test_pairs_evaluated_at_other_steps_are_read_where_the_steps_are_equal():
    pairs = [pair(0, [(15, 1.0, 1), (30, 0.5, 1)], "a"), pair(0, [(10, 0.9, 1), (15, 1.0, 1), (30, 0.4, 1)], "b")]
    assert choose("domain-cross-validation", JOBS, pairs) == (0, 30, 0.45)


def test_external_dataset_takes_the_draw_that_is_best_elsewhere_and_its_best_step_here():
    there = [
        job(0, [(10, 0.1, 0.1, 0, 0), (20, 0.5, 0.5, 0, 0)], dataset="Other"),
        job(1, [(10, 0.9, 0.9, 0, 0), (20, 0.1, 0.1, 0, 0)], dataset="Other"),
        job(9, [(10, 1.0, 1.0, 0, 0)], dataset="Other"),  # not run here
    ]
    assert choose("external-dataset", JOBS, there) == (1, 30, 0.9)
    assert choose("external-dataset", JOBS) is None
    assert choose("external-dataset", JOBS, JOBS) is None, "the dataset itself is no other"


def test_another_dataset_counts_as_it_was_trained_here_and_not_in_other_ways():
    def there(scores, setting, **about):
        rows = [[(10, {"a/out": score, "b/out": score})] for score in scores]
        return [made_job(d, row, dataset="Other", setting=setting, **about) for d, row in enumerate(rows)]

    here = [made_job(draw, [(10, {"a/out": 0.5, "b/out": 0.5})]) for draw in range(2)]
    usual = there((0.9, 0.8), "as here")
    assert choose("external-dataset", here, usual)[0] == 0
    by_hand = there((0.1, 0.9), "by hand", overrides={"lr": 9.0})
    shorter = there((0.1, 0.9), "shorter", recipe={"name": "quick", "steps": 1, "evaluate_every": 1})
    for more in (by_hand, shorter):
        assert choose("external-dataset", here, [*usual, *more])[0] == 0
    assert choose("external-dataset", here, shorter)[0] == 1, "a recipe may take other steps on another dataset"
    assert choose("external-dataset", here, by_hand) is None


def test_own_follows_what_an_algorithm_registers(monkeypatch):
    monkeypatch.setitem(ALGORITHMS._entries, "SWAD", ALGORITHMS["SWAD"]._replace(selection="last-step"))
    rows = [(10, 0.9, 0.9, 0, 0), (30, 0.6, 0.6, 0, 0)]
    assert choose("own", [job(0, rows, algorithm="SWAD")]) == (0, 30, 0.6)
    assert choose("own", [job(0, rows, algorithm="ERM")]) == (0, 10, 0.9)
    assert choose("own", [job(0, rows, algorithm="unknown here")]) == (0, 10, 0.9)


def test_the_choice_names_draw_hyperparameters_step_and_job():
    choice = SELECTIONS["oracle"].choose(JOBS)
    assert (choice.job_id, choice.draw, choice.hparams, choice.step) == (JOBS[1].id, 1, {"lr": 0.2}, 30)


def test_ties_go_to_the_earliest_step_of_the_last_draw():
    rows = [(10, 0.5, 0.5, 0.1, 0.5), (20, 0.5, 0.5, 0.2, 0.5), (30, 0.4, 0.4, 0.3, 0.5)]
    assert choose("training-domain-validation", [job(1, rows), job(0, rows)]) == (1, 10, 0.5)
    assert choose("oracle", [job(1, rows), job(0, rows)]) == (1, 30, 0.5)


def test_what_is_not_a_number_loses():
    bad = job(1, [(10, float("nan"), 1, 1, 1), (20, 0.1, 0.1, 0, 0)])
    assert choose("training-domain-validation", [bad]) == (1, 20, 0.1)
    assert choose("training-domain-validation", [JOBS[0], bad]) == (0, 20, 0.7)


def test_a_job_that_diverged_has_no_last_step_but_its_good_records_compete():
    cut = job(5, [(10, 1, 1, 1, 1)], status="diverged")
    for rule in ("oracle", "last-step"):
        assert choose(rule, [*JOBS, cut]) == choose(rule, JOBS)
        assert choose(rule, [cut]) is None
    assert choose("training-domain-validation", [cut]) == (5, 10, 1)
    assert choose("training-domain-validation", [job(6, [])]) is None


def test_a_rule_cannot_read_what_it_does_not_declare():
    for name in SELECTIONS:
        evidence = Evidence(TaskRecords.of(JOBS, ["accuracy"]), SELECTIONS[name].columns)
        with pytest.raises(ShiftbedError, match="test/in/accuracy, which it does not declare"):
            evidence.mean(Column("test", "in", "accuracy"))


def test_only_the_oracle_reads_test_columns_that_need_labels():
    for name in SELECTIONS:
        rule = SELECTIONS[name]
        assert rule.oracle == any(column.role == "test" and column.metric != "confidence" for column in rule.columns)


def test_only_domain_cross_validation_needs_pairs():
    assert [name for name in SELECTIONS if SELECTIONS[name].needs_pairs] == ["domain-cross-validation"]
    assert [name for name in SELECTIONS if SELECTIONS[name].needs_other_datasets] == ["external-dataset"]


@st.composite
def sweeps(draw_from):
    """Jobs of a cell with their pairs and another dataset's, with few values, so that ties are frequent."""
    values = st.sampled_from([0.0, 0.25, 0.5, 1.0])

    def rows(names):
        metrics = ("accuracy", "loss", "confidence")
        return [(s, {n: {metric: draw_from(values) for metric in metrics} for n in names}) for s in (10, 20)]

    jobs, others = [], []
    for number in range(draw_from(st.integers(1, 4))):
        jobs.append(made_job(number, rows(NAMES)))
        others += [made_job(number, rows([f"{v}/in", "c/in"]), tested=(v, "c")) for v in "ab"]
        others.append(made_job(number, rows(NAMES), dataset="Other"))
    return jobs, others, draw_from(st.randoms(use_true_random=False))


# Every rule but those that need whole validation domains, and those of the audit, which answer through noise.
RULES = [name for name in SELECTIONS if name != "ood-validation" and type(SELECTIONS[name]) is Selection]


@given(sweeps())
def test_the_order_of_jobs_and_records_does_not_matter(made):
    jobs, others, shuffle = made
    expected = {rule: SELECTIONS[rule].choose(jobs, others) for rule in RULES}
    assert all(expected.values())
    for job_ in (*jobs, *others):
        shuffle.shuffle(job_.rows)
    shuffled = [shuffle.sample(some, len(some)) for some in (jobs, others)]
    assert {rule: SELECTIONS[rule].choose(*shuffled)._replace(row=0) for rule in RULES} == {
        rule: choice._replace(row=0) for rule, choice in expected.items()
    }


@given(sweeps())
def test_a_draw_that_is_worse_on_the_rule_s_own_columns_changes_nothing(made):
    jobs, others, _ = made
    bad = {"accuracy": -1.0, "loss": 9.0}
    rows = [(step, dict.fromkeys(("a/out", "b/out", "c/out"), bad) | {"c/in": 1.0}) for step in (10, 20)]
    pairs = [made_job(9, [(s, {f"{v}/in": bad, "c/in": 1.0}) for s in (10, 20)], tested=(v, "c")) for v in "ab"]
    worse = [*others, *pairs, made_job(9, rows, dataset="Other")]
    for rule in RULES:
        before = SELECTIONS[rule].choose(jobs, others)
        assert SELECTIONS[rule].choose([*jobs, made_job(9, rows)], worse) == before


def test_records_of_unequal_length_are_padded_and_never_chosen():
    jobs = [job(0, [(10, 0.5, 0.5, 0, 0)]), job(1, [(10, 0.1, 0.1, 0, 0), (20, 0.2, 0.2, 0, 0)])]
    task = TaskRecords.of(jobs, ["accuracy"])
    assert task.steps.tolist() == [[10, -1], [10, 20]]
    assert task.is_last.tolist() == [[True, False], [False, True]]
    assert np.isnan(task.values["accuracy"][0, 1]).all()
    assert choose("training-domain-validation", random.sample(jobs, 2)) == (0, 10, 0.5)


def test_the_oracle_looks_at_the_test_domain_twenty_times_and_no_more():
    def job(draw, accuracy, status="done"):
        return made_job(draw, [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": 0.5, "c/out": accuracy})], status=status)

    jobs = [job(draw, draw / 100) for draw in range(25)]
    assert SELECTIONS["oracle"].choose(jobs).draw == 19
    # A draw that diverged was not asked about.
    jobs[3] = job(3, 0.9, status="diverged")
    assert SELECTIONS["oracle"].choose(jobs).draw == 20


def test_the_budget_is_each_cell_s_own():
    rows = [(10, {"a/out": 0.5, "b/out": 0.5, "c/in": 0.5, "c/out": 0.5})]
    jobs = [made_job(draw, rows, algorithm=name) for name in ("ERM", "IRM") for draw in range(15)]
    task = TaskRecords.of(jobs, ["accuracy"])
    assert [choice.draw for choice in SELECTIONS["oracle"].choices(task).values()] == [14, 14]


# --- every rule, written plainly --------------------------------------------------------------------------------------


class Plain:
    """A record by loops: its mean over domains of a kind of split."""

    def __init__(self, job_, row):
        self.job, self.row, self.draw = job_, row, job_.description["draw"]

    def read(self, role, part, metric="accuracy"):
        names = [s["name"] for s in self.job.description["splits"] if (s["role"], s["part"]) == (role, part)]
        return np.array([self.row["splits"].get(name, {}).get(metric, np.nan) for name in names])

    def mean(self, *column):
        return np.mean(self.read(*column))

    def pooled(self):
        accuracies, counts = self.read("validation", "out"), self.read("validation", "out", "count")
        return (accuracies * counts).sum() / counts.sum()

    def halves(self):
        """On the free half of each test domain, and on the guarded one, in the mean over domains."""
        counts, free = self.read("test", "out", "count"), self.read("test", "out", "half_accuracy")
        guarded = (counts * self.read("test", "out") - np.ceil(counts / 2) * free) / np.floor(counts / 2)
        return free.mean(), guarded.mean()

    def crossed(self, others):
        """On each training domain in the job that tests it beside this one's."""
        (tested,) = self.job.description["test_domains"]
        found = []
        for domain in {"a", "b", "c", "d"} - {tested}:
            pairs = [o for o in others if {*o.description["test_domains"]} == {tested, domain}]
            rows = [r for o in pairs if o.description["draw"] == self.draw for r in o.rows]
            found += [r["splits"][f"{domain}/in"]["accuracy"] for r in rows if r["step"] == self.row["step"]]
        return np.mean(found) if len(found) == 3 else np.nan


def plain_thresholdout(asked):
    """Scores of the last records of jobs in order: Thresholdout of a mean over domains of unequal sizes."""
    variance = np.mean(1 / np.floor(asked[0].read("test", "out", "count") / 2)) / len(asked[0].read("test", "out"))
    deviation, budget, scores = np.sqrt(variance), 20, []
    first = np.random.default_rng(seed_hash(asked[0].job.id, "threshold")).normal(0, deviation)
    for one in asked:
        random_, (free, guarded) = np.random.default_rng(seed_hash(one.job.id, "thresholdout")), one.halves()
        compared, noise, moved = random_.normal(0, deviation, size=3)
        crosses = abs(guarded - free) > 3 * deviation + first + compared
        scores.append(np.nan if budget == 0 else guarded + noise if crosses else free)
        budget -= crosses and budget > 0
        first = moved if crosses else first
    return scores


def plainly(rule, jobs, others):
    """The draw and step that a rule chooses: of equal records of a draw the first, of equal draws the last."""
    records = [Plain(j, row) for j in jobs for row in sorted(j.rows, key=lambda row: row["step"])]
    ends = [Plain(j, max(j.rows, key=lambda row: row["step"])) for j in jobs if j.status == "done"]
    scored = {
        "training-domain-validation": lambda: [(one, one.mean("validation", "out")) for one in records],
        "training-domain-validation-pooled": lambda: [(one, one.pooled()) for one in records],
        "worst-domain-validation": lambda: [(one, one.read("validation", "out").min()) for one in records],
        "validation-loss": lambda: [(one, -one.mean("validation", "out", "loss")) for one in records],
        "last-step": lambda: [(one, one.mean("validation", "out")) for one in ends],
        "oracle": lambda: [(one, one.mean("test", "out")) for one in ends[:20]],
        "oracle-laplace": lambda: [
            (one, one.mean("test", "out") + np.random.default_rng(seed_hash(one.job.id, "laplace")).laplace(0, 0.01))
            for one in ends[:20]
        ],
        "oracle-thresholdout": lambda: list(zip(ends, plain_thresholdout(ends), strict=True)),
        "domain-cross-validation": lambda: [(one, one.crossed(others)) for one in records],
    }[rule]()
    best = {}
    for one, value in scored:
        if value > best.get(one.draw, (-np.inf, 0))[0]:
            best[one.draw] = value, one.row["step"]
    draw = max(sorted(best, reverse=True), key=lambda draw: best[draw][0])
    return draw, best[draw][1]


@pytest.mark.parametrize("tested", [("c",), ("a", "c")])
@pytest.mark.parametrize("grid", [[0.7], [0.25, 0.5, 1.0], list(np.linspace(0, 1, 101))], ids=["equal", "ties", "any"])
def test_every_rule_chooses_what_its_plain_version_does(grid, tested):
    chance, domains = np.random.default_rng(len(grid)), ("a", "b", "c", "d")
    counts = {f"{domain}/out": count for domain, count in zip(domains, (4, 4000, 40, 6), strict=True)}

    def split(name):
        accuracy, half = chance.choice(grid, 2)
        numbers = {"accuracy": accuracy, "half_accuracy": half, "loss": chance.choice(grid)}
        lost = {"accuracy": np.nan} if name[0] in "bd" and chance.random() < 0.02 else {}
        return {**numbers, "count": counts.get(name, 100), **lost}

    def made(draw, tests):
        names = [f"{domain}/{part}" for domain in domains for part in ("in", "out")]
        rows = [(step, {name: split(name) for name in names}) for step in (10, 20, 30)]
        status = "diverged" if draw > 1 and chance.random() < 0.1 else "done"
        return made_job(draw, rows, tested=tests, domains=domains, status=status)

    rules = [
        *("training-domain-validation", "training-domain-validation-pooled", "worst-domain-validation"),
        *("validation-loss", "last-step", "oracle", "oracle-laplace", "oracle-thresholdout"),
    ]
    if len(tested) == 1:
        rules.append("domain-cross-validation")
    for draws in (2, 25):
        jobs = [made(draw, tested) for draw in range(draws)]
        others = [made(draw, tuple(sorted(("c", other)))) for draw in range(draws) for other in "abd"]
        for rule in rules:
            choice = SELECTIONS[rule].choose(jobs, others)
            assert (choice.draw, choice.step) == plainly(rule, jobs, others), rule
