"""Flags and YAML plans say the same words."""

import inspect
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from shiftbed import cli
from shiftbed.cli.sweeps import sweep
from shiftbed.errors import HparamError
from shiftbed.sweeps.plan import Request
from shiftbed.sweeps.plan import plan as make_plan
from shiftbed.sweeps.words import SweepWords, command_alone, sweep_words, train_command

PLAN = """
datasets: [RotatedDigits, ColoredDigits]
algorithms: ERM
out: here
draws: 4
test: [0, "-90%"]
set: {lr: 1e-3, batch_size: 16}
selection: [oracle]
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def test_a_plan_and_flags_make_the_same_request(plan):
    flags = {
        "datasets": "RotatedDigits,ColoredDigits",
        "algorithms": ["ERM"],
        "out": "here",
        "draws": 4,
        "test": "0,-90%",
        "set": ["lr=1e-3", "batch_size=16"],
        "selection": ["oracle"],
    }
    request = sweep_words({}, plan).request()
    assert request == sweep_words(flags).request()
    assert request == Request(
        ("RotatedDigits", "ColoredDigits"),
        ("ERM",),
        draws=4,
        test_domains=("0", "-90%"),
        fields={"steps": None},
        overrides={"lr": 1e-3, "batch_size": 16},
        selections=("oracle",),
    )


def test_flags_go_before_the_plan(plan):
    words = sweep_words({"draws": 2, "algorithms": ["IRM", "SD,MMD"]}, plan)
    assert (words.draws, words.algorithms, words.test) == (2, ("IRM", "SD", "MMD"), ("0", "-90%"))


def test_every_word_is_a_flag():
    flags = set(inspect.signature(sweep).parameters) - {"plan", "dry_run", "probe", "as_json"}
    assert {"set" if name == "overrides" else name for name in flags} == set(SweepWords.model_fields)


@pytest.mark.parametrize(
    ("design", "extra", "numbers"),
    [
        ("redraw", {}, (1, 1)),
        ("redraw", {"budget": "1h"}, (20, 1)),
        ("search-once", {}, (10, 3)),
        ("fixed", {"trials": 5}, (1, 5)),
        ("groups", {"group": ["lr=1e-3", "lr=1e-4,batch_size=8"]}, (2, 3)),
    ],
)
def test_designs_bring_their_own_numbers(design, extra, numbers):
    request = sweep_words({"datasets": "ColoredDigits", "algorithms": "ERM", "out": "x", "design": design, **extra})
    made = request.request()
    assert (made.draws, made.trials) == numbers
    if "group" in extra:
        assert made.groups == ({"lr": 1e-3}, {"lr": 1e-4, "batch_size": 8})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAN + "drawz: 3", "plan.yaml has no 'drawz'. Did you mean draws"),
        (PLAN + "trials: 0", "plan.yaml has a wrong 'trials': it should be greater than or equal to 1"),
        ("datasets: ColoredDigits\nalgorithms: []", "plan.yaml has no 'algorithms'; name at least one"),
        (PLAN + "on: rai", "plan.yaml has a wrong 'on': it should be 'local', 'ray' or 'slurm'"),
        ("algorithms: ERM", "plan.yaml needs 'datasets'"),
        ("- a\n- b", "is not a table of words"),
        ("a: [", "is not YAML"),
        (b"\xff: 1", "is not a text file in UTF-8; save it as UTF-8"),
    ],
)
def test_what_is_wrong_in_a_plan_is_one_sentence(plan, text, words):
    plan.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HparamError, match=words):
        sweep_words({}, plan)


@pytest.mark.parametrize("given, jobs", [(4, 4), ("4", 4), ("auto", None)])
def test_jobs_per_device_are_a_number_or_auto(given, jobs):
    words = {"datasets": "PACS", "algorithms": "ERM", "out": "x", "jobs_per_device": given}
    assert sweep_words(words).jobs_per_device == jobs
    for wrong in ("many", 0, 1.5):
        with pytest.raises(HparamError, match="a number from 1 on, or auto"):
            sweep_words({**words, "jobs_per_device": wrong})


def test_a_plan_that_is_not_there(tmp_path):
    with pytest.raises(HparamError, match=r"nothing\.yaml cannot be read"):
        sweep_words({}, tmp_path / "nothing.yaml")


def test_a_job_of_a_sweep_as_a_command(monkeypatch):
    asked = Request("ColoredDigits", ["IRM"], draws=2, overrides={"lr": 1e-3, "irm_lambda": 3.0}, adapt=0.1)
    job = make_plan(replace(asked, fields={"steps": 7}))[-1]
    command = train_command(job, Path("my sweep"), [Path("mine.py")], keep="logits", deterministic=True)
    said = "ColoredDigits IRM --test=-90% --draw=1 --trial=0 --recipe=quick --steps=7 --precision=float32"
    more = "--keep=logits --adapt=0.1 --deterministic --set=lr=0.001 --set=irm_lambda=3.0 --code=mine.py"
    assert command == f"shiftbed train {said} {more} '--out=my sweep'"
    run = {}
    monkeypatch.setattr("shiftbed.sweeps.verbs.train", lambda *names, **options: run.update(options, names=names))
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit):
        cli.main()
    assert (run["draw"], run["steps"], run["overrides"]) == (1, 7, {"lr": 1e-3, "irm_lambda": 3.0})
    assert run["keep"] == "logits" and run["deterministic"]


def test_a_job_of_a_blind_sweep_is_not_trained_where_its_test_would_show():
    words = sweep_words({"datasets": "ColoredDigits", "algorithms": "ERM", "out": "x", "steps": 3, "blind": True})
    (job, *_) = make_plan(words.request())
    assert command_alone(job, words, draws=1).startswith("shiftbed sweep ColoredDigits ")


def test_a_job_of_a_recipe_of_ones_own_is_run_alone_by_the_recipes_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("include: quick\nsteps: 3\n")
    words = sweep_words({"datasets": "ColoredDigits", "algorithms": "ERM", "out": "x", "recipe": str(file)})
    (job, *_) = make_plan(words.request())
    assert f"--recipe={file}" in shlex.split(command_alone(job, words, draws=1))


def test_a_job_that_train_has_no_words_for_is_a_sweep_of_one(monkeypatch):
    words = sweep_words(
        {"datasets": "EmojiStyles", "algorithms": "ERM,IRM", "protocol": "leave-one-domain-out-grouped", "out": "x"}
        | {
            "test": "twemoji,emojione",
            "set": "lr=1e-3",
            "code": ["a.py", "b.py"],
            "budget": "1h",
            "steps": 7,
            "blind": True,
            "deterministic": True,
        }
    )
    job = make_plan(replace(words.request(), draws=2))[-1]
    assert train_command(job, words.out) is None
    command = command_alone(job, words, draws=2)
    asked = {}
    monkeypatch.setattr("shiftbed.sweeps.verbs.sweep", lambda *given, **options: asked.update(options, given=given))
    monkeypatch.setattr("shiftbed.cli.sweeps._report", lambda *_: None)
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit):
        cli.main()
    assert asked["only"] == (job.id,) and asked["deterministic"] and asked["code"] == (Path("a.py"), Path("b.py"))
    assert job.id in {one.id for one in make_plan(asked["given"][0])}
