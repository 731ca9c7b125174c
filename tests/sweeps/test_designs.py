"""The four search designs: which jobs they have, and who is trained again."""

from dataclasses import replace

import pytest

from shiftbed.errors import HparamError, StoreError
from shiftbed.sweeps.designs import DESIGNS
from shiftbed.sweeps.plan import Request, plan, planned, planned_designs, remember_plan
from shiftbed.sweeps.stages import most_reruns, second_stage
from shiftbed.training.store import LocalStore
from tests.sweeps.finished import finish

SEARCH = Request("ColoredDigits", ["ERM", "IRM"], draws=3, trials=3, test_domains=["-90%"], design="search-once")


def test_the_designs_are_the_papers():
    known = {name: DESIGNS[name] for name in DESIGNS}
    assert {name: (one.draws, one.trials) for name, one in known.items()} == {
        "redraw": (20, 3),
        "search-once": (10, 3),
        "fixed": (1, 3),
        "groups": (3, 3),
    }
    assert [name for name, one in known.items() if one.spread == "standard deviation"] == ["groups"]


def test_a_search_once_is_made_of_the_first_trial_of_a_redraw():
    redraw = plan(replace(SEARCH, design="redraw"))
    assert {job.id for job in plan(SEARCH)} == {job.id for job in redraw if job.trial == 0}


def test_the_winner_of_each_cell_is_trained_twice_more_with_its_values(memory_folder):
    store = LocalStore(memory_folder)
    best = {"ERM": 2, "IRM": 1}
    for job in plan(SEARCH):
        finish(store, job, validation=0.9 if job.draw == best[job.algorithm] else 0.6)
    winners = {job.algorithm: job for job in plan(SEARCH) if job.draw == best[job.algorithm]}
    again = second_stage(SEARCH, store)
    assert sorted((job.algorithm, job.draw, job.trial) for job in again) == [
        ("ERM", 2, 1),
        ("ERM", 2, 2),
        ("IRM", 1, 1),
        ("IRM", 1, 2),
    ]
    assert all(dict(job.hparams) == dict(winners[job.algorithm].hparams) for job in again)
    assert most_reruns(SEARCH) == len(again)
    assert len({job.setting for job in [*again, *plan(SEARCH)]}) == 1, "they stand in one table"
    redrawn = {job.id for job in plan(replace(SEARCH, design="redraw"))}
    assert not redrawn & {job.id for job in again}, "another trial would have drawn other values"


def test_no_winner_before_all_draws_have_ended(memory_folder):
    store = LocalStore(memory_folder)
    erm = [job for job in plan(SEARCH) if job.algorithm == "ERM"]
    for job in erm[:-1]:
        finish(store, job)
    assert second_stage(SEARCH, store) == []
    finish(store, erm[-1], status="diverged")
    assert {job.algorithm for job in second_stage(SEARCH, store)} == {"ERM"}


def test_draws_of_an_earlier_and_larger_search_do_not_compete(memory_folder):
    store = LocalStore(memory_folder)
    for job in plan(SEARCH):
        finish(store, job, validation=0.6 + 0.1 * job.draw)
    for draws in (2, 3):
        again = second_stage(replace(SEARCH, draws=draws), store)
        assert {job.draw for job in again} == {draws - 1}, "as tables of so many draws choose"
        assert {job.trial for job in again} == {1, 2}


def test_each_selection_has_its_winner_and_cross_validation_its_pairs(memory_folder):
    request = replace(
        SEARCH,
        algorithms=["ERM"],
        draws=2,
        trials=2,
        selections=["training-domain-validation", "oracle", "domain-cross-validation"],
    )
    store = LocalStore(memory_folder)
    for job in plan(request):
        # Draw 1 is better on the training domains, draw 0 on test domains: also on those of the pairs.
        finish(store, job, validation=0.9 if job.draw else 0.6, test=0.6 if job.draw else 0.9)
    again = sorted((job.spec.test, job.draw, job.trial) for job in second_stage(request, store))
    pairs = [("+80%", "-90%"), ("+90%", "-90%")]
    expected = [(("-90%",), 0, 1), (("-90%",), 1, 1), *((pair, 0, 1) for pair in pairs)]
    assert again == sorted(expected)
    assert most_reruns(request) == 3 + 2, "three winners, and the pairs of one of them"


def test_groups_compete_with_the_values_that_are_stated():
    groups = [{"lr": 1e-4}, {"lr": 1e-3}, {"lr": 1e-2, "irm_lambda": 7}]
    request = replace(SEARCH, design="groups", groups=groups)
    jobs = plan(request)
    assert [(job.algorithm, job.draw, job.hparams["lr"]) for job in jobs if job.algorithm == "ERM"] == [
        ("ERM", 0, 1e-4),
        ("ERM", 1, 1e-3),
        ("ERM", 2, 1e-2),
    ]
    assert [job.hparams["irm_lambda"] for job in jobs if job.algorithm == "IRM"] == [100.0, 100.0, 7.0]
    assert len({job.setting for job in jobs}) == 1, "settings compete in one table"
    assert not any(job.overrides for job in jobs)


def test_fixed_has_stated_values_and_seeds():
    jobs = plan(replace(SEARCH, design="fixed", draws=1, overrides={"lr": 2e-3}))
    assert [(job.algorithm, job.trial, job.hparams["lr"]) for job in jobs] == [
        (name, trial, 2e-3) for trial in range(3) for name in ("ERM", "IRM")
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"design": "search-twice"}, "no search design 'search-twice'. Did you mean search-once"),
        ({"design": "fixed"}, "states its values, so it has one draw, not 3"),
        ({"groups": [{"lr": 1.0}] * 3}, "Only the design groups has stated settings"),
        ({"design": "groups", "groups": [{"lr": 1.0}]}, "1 settings are stated, so there are as many draws, not 3"),
        ({"design": "groups", "groups": [{"lrr": 1.0}] * 3}, "no hyperparameter 'lrr' here. Did you mean lr"),
        ({"selections": ["external-dataset"]}, "external-dataset needs redraw"),
    ],
)
def test_what_a_design_cannot_do_is_one_sentence(changes, words):
    with pytest.raises(Exception, match=words) as found:
        plan(replace(SEARCH, **changes))
    assert isinstance(found.value, HparamError) or "no search design" in words


def test_two_designs_that_would_mix_in_one_table_need_two_folders(memory_folder):
    store = LocalStore(memory_folder)
    remember_plan(plan(SEARCH), store, "search-once")
    remember_plan(plan(SEARCH), store, "search-once")
    assert set(planned_designs(planned(store).values()).values()) == {"search-once"}
    with pytest.raises(StoreError, match=r"ColoredDigits with the design search-once.* use another folder"):
        remember_plan(plan(replace(SEARCH, design="redraw", draws=4)), store)
    remember_plan(plan(replace(SEARCH, design="redraw", fields={"steps": 3})), store)
    remember_plan(plan(SEARCH)[:1], store)  # a job of it alone changes nothing
    assert planned_designs(planned(store).values())[plan(SEARCH)[0].setting] == "search-once"
