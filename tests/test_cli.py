"""The command line, as a person meets it."""

import html
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import shiftbed as package
from shiftbed import cli, load
from shiftbed.algorithms import ALGORITHMS, load_code
from shiftbed.cli.notes import best_command
from shiftbed.cli.overview import SECTIONS
from shiftbed.cli.shared import say
from shiftbed.data import DATASETS, card
from shiftbed.data import load as load_dataset
from shiftbed.errors import DataError
from shiftbed.protocols import LeaveOut
from shiftbed.report import show
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe as find_recipe
from shiftbed.training.recipes import recipe_names
from shiftbed.training.store import LocalStore
from tests.conftest import tiny_job
from tests.made_records import made_folder
from tests.sweeps.finished import finish

PYTHON = {  # where a verb has another name there, which is that of a part of the package here
    "tables": "read_tables",
    "report": "write_page",
    "shift": "measure_shift",
    "audit": "audit_sweep",
    "predict": "predict_accuracy",
    "accuracy": "judge_methods",
    "diff": "compare",
    "import-domainbed": "import_domainbed",
    "export-domainbed": "export_domainbed",
}


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def shiftbed(monkeypatch, capsys, tmp_path):
    """Runs a command in a temporary folder; gives its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.console, "_width", 80, raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["shiftbed", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
        return Result(code, *capsys.readouterr())

    return run


def test_verbs_of_the_command_line_are_verbs_of_python():
    others = {*SECTIONS["Start"], *SECTIONS["What there is"], "compact"}
    for name in {command for found in SECTIONS.values() for command in found} - others:
        assert callable(getattr(package, PYTHON.get(name, name))), name


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["look", "Emojistyle"], "There is no dataset 'Emojistyle'. Did you mean EmojiStyles?"),
        (["train", "EmojiStyles", "EMR", "--test", "noto"], "There is no algorithm 'EMR'. Did you mean ERM"),
        (["train", "EmojiStyles", "ERM", "--test", "note"], "EmojiStyles has no domain 'note'. Did you mean noto"),
        (["train", "EmojiStyles", "ERM", "--test", "noto", "--recipe", "slow"], "There is no recipe 'slow'."),
        (
            ["train", "EmojiStyles", "ERM", "--test", "noto", "--set", "lrr=1"],
            "no hyperparameter 'lrr' here. Did you mean lr",
        ),
        (["train", "EmojiStyles", "ERM", "--test", "noto", "--set", "lr"], "--set takes name=value, not 'lr'."),
        (["train", "EmojiStyles", "ERM", "--test", "noto", "--code", "no.py"], "There is no Python file at no.py"),
        (["tables", "nowhere"], "There is no finished job in nowhere"),
        (["compact", "nowhere"], "There is no finished job in nowhere"),
        (["merge", ".", "--out", "all"], "There is no finished job in .; `shiftbed sweep"),
        (["status", "nowhere"], "There is no sweep in nowhere"),
        (["tables", "x", "--groups", "near-far"], "--groups goes with --view groups, which is not asked for; ask"),
        (["tables", "x", "--view", "eoa", "--against", "y"], "--against goes with the usual tables, which"),
        (["audit", "x", "--stand-in", "photo"], "--stand-in goes with --run, which is not asked for"),
        (["audit", "x", "--trials", "3"], "ask for it or leave --trials out."),
        (["shift", "RotatedDigits", "--weights", "none"], "--weights goes with --features, which"),
        (["shift", "RotatedDigits", "--calibrate"], "--calibrate goes with --method kde, which"),
        (["predict", "x", "--fit", "y"], "--fit goes with --on (a folder of images, or DATASET/DOMAIN), which"),
        (["benchmark", "nico-table-1", "--device", "cpu"], "--device goes with a benchmark that trains models, which"),
    ],
)
def test_a_wrong_word_is_one_sentence(shiftbed, command, words):
    code, out, err = shiftbed(*command)
    assert code == 1
    assert err.startswith("shiftbed: ") and words in err
    assert len(err.splitlines()) == 1 and "Traceback" not in out + err


def test_an_unwritable_folder_is_one_sentence(shiftbed, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps", "2", "--out", "file/inside")
    assert code == 1
    assert err.startswith("shiftbed: Cannot write file/inside")


def test_debug_shows_the_traceback(shiftbed):
    from shiftbed.errors import UnknownNameError

    with pytest.raises(UnknownNameError):
        shiftbed("look", "nothing", "--debug")


def test_the_version_needs_no_command(shiftbed):
    code, out, _ = shiftbed("--version")
    assert code == 0
    assert out == f"{version('shiftbed')}\n"


def test_the_short_help_is_the_long_one(shiftbed):
    for command in ([], ["train"]):
        short, long = shiftbed(*command, "-h"), shiftbed(*command, "--help")
        assert short == long
        assert short.code == 0


def test_the_help_tells_every_command_once_with_its_whole_first_sentence(shiftbed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = shiftbed("--help")
    listed = [name for names in SECTIONS.values() for name in names]
    registered = [command.name or command.callback.__name__ for command in cli.app.registered_commands]
    assert code == 0 and sorted(listed) == sorted(registered)
    assert max(map(len, out.splitlines())) <= 80
    assert "How well accuracy is predicted: every method on every model and domain" in " ".join(out.split())
    assert out.index(" demo ") < out.index(" prepare ") < out.index(" sweep ") < out.index(" report ")


@pytest.mark.parametrize("command", ["datasets", "algorithms", "recipes"])
def test_lists_fit_eighty_columns_and_end_with_the_next_command(shiftbed, command):
    code, out, _ = shiftbed(command)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "\nNext: shiftbed " in out


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("datasets", "PACS"), ["photo 1,670", "&confirm=t"]),
        (("datasets", "SVIRO"), ["aclass ?", "Next: shiftbed prepare SVIRO"]),
        (("datasets", "ColoredDigits"), ["+90% 599", "Next: shiftbed look ColoredDigits"]),
        (("algorithms", "IRM"), ["Departures from the paper", "domain labels", "irm_lambda", "100.0; 10^U(-1, 5)"]),
        (("algorithms", "swad(coral)"), ["SWAD(CORAL)", "last-step", "swad_n_converge", "mmd_gamma"]),
        (("recipes", "domainbed"), ["resnet50", "frozen-statistics", "evaluate first", "4,000"]),
        (("recipes", "domainbed", "--dataset=coloredmnist"), ["mnist-convnet", "10,000"]),
        (("benchmarks", "ood-bench-correlation"), ["ERDG", "oracle, ood-validation", "960"]),
        (("benchmarks", "domainbed"), ["those of its", "DomainNet", "first public code are taken. "]),
    ],
)
def test_one_of_a_list_is_shown_whole_in_eighty_columns(shiftbed, words, known):
    code, out, _ = shiftbed(*words)
    assert code == 0 and "…" not in out and "\nNext: shiftbed " in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert all(word in out for word in known)
    rows = json.loads(shiftbed(*words, "--json").out)
    assert [row["name"].lower() for row in rows] == [words[1].lower()]


@pytest.mark.parametrize("command", ["datasets", "algorithms", "recipes", "benchmarks"])
def test_one_that_is_not_in_a_list_is_one_sentence(shiftbed, command):
    code, _, err = shiftbed(command, "nothing-like-it")
    assert code and err.startswith("shiftbed: There is no ") and "Traceback" not in err


def test_every_entry_of_every_list_can_be_shown():
    tables = [show.algorithm_card(name) for name in ALGORITHMS]
    tables += [show.recipe_card(name, dataset) for name in recipe_names() for dataset in ("", "ColoredMNIST", "PACS")]
    assert all(table.row_count > 5 for table in tables)


def test_who_names_no_test_domain_is_told_which_there_are(shiftbed):
    code, _, err = shiftbed("train", "ColoredDigits", "ERM")
    assert (
        code == 1
        and err.strip()
        == "shiftbed: A job tests at least one domain: name it with --test; ColoredDigits has +90%, +80%, -90%."
    )


def test_tables_take_json_as_all_others_do(shiftbed):
    assert shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps=1", "--out=run").code == 0
    assert shiftbed("tables", "run", "--json").out == shiftbed("tables", "run", "--format=json").out
    assert "recipe quick, 1 step\n" in shiftbed("tables", "run").out
    assert "\nNext: python -m domainbed" in shiftbed("export-domainbed", "run", "--out=there").out
    adapting = ("train", "ColoredDigits", "DANN", "--test=-90%", "--steps=1", "--adapt=0.3", "--out=adapts")
    assert shiftbed(*adapting).code == 0
    nothing = shiftbed("export-domainbed", "adapts", "--out=empty").out
    assert "1 job left out" in nothing and "Next:" not in nothing, "there is no folder to collect from"


def test_what_differs_ends_with_what_to_look_at_next(shiftbed):
    assert "\nNext: shiftbed recipes domainbed\n" in shiftbed("diff", "domainbed", "nico").out


def test_weights_that_were_not_kept_can_be_made_by_the_next_command(shiftbed):
    train = ("train", "ColoredDigits", "ERM", "--test=-90%", "--steps=1", "--out=run")
    assert "Next: shiftbed best run" in shiftbed(*train, "--keep=none").out
    again = shiftbed(*train, "--keep=final").out
    assert "the weights were not kept" in again and "Next: shiftbed best run" in again, "it was done before"


def test_recipes_are_listed_by_names_that_can_be_copied(shiftbed):
    out = shiftbed("recipes").out
    for name in recipe_names():
        assert f" {name} " in out
    assert "…" not in out
    assert "shiftbed train EmojiStyles ERM --test noto --recipe quick" in out, "one that runs here, in seconds"


def test_lists_for_machines(shiftbed):
    assert {card["name"] for card in json.loads(shiftbed("datasets", "--json")[1])} >= {"EmojiStyles"}
    algorithms = {row["name"]: row for row in json.loads(shiftbed("algorithms", "--json")[1])}
    assert algorithms["SWAD"]["selection"] == "last-step" and algorithms["ERM"]["selection"] is None
    assert algorithms["MLDG"]["needs"] == ["domain labels", "two domains"]


def test_the_sweep_that_train_names_next_keeps_the_recipe(shiftbed):
    _, out, _ = shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps=1", "--recipe=domainbed")
    assert "--algorithms ERM,CORAL --recipe domainbed --out my-sweep" in out


def test_train_prints_every_split_and_says_what_is_next(shiftbed, tmp_path):
    arguments = ["train", "ColoredDigits", "IRM", "--test=-90%", "--steps", "4", "--set", "batch_size=4"]
    code, out, _ = shiftbed(*arguments)
    assert code == 0
    for split in ("+90%/out", "+80%/out", "-90%/in", "-90%/out"):
        assert split in out
    assert "Next: shiftbed sweep ColoredDigits --algorithms ERM,IRM,CORAL --out my-sweep" in out
    (folder,) = (tmp_path / "shiftbed-run" / "jobs").iterdir()
    assert {path.name for path in folder.iterdir()} >= {
        "job.json",
        "records.jsonl",
        "weights.safetensors",
        "times.json",
    }
    code, out, _ = shiftbed(*arguments, "--json")
    assert json.loads(out)["records"][-1]["step"] == 4


def test_a_dry_run_counts_and_writes_nothing(shiftbed, tmp_path):
    code, out, _ = shiftbed(
        "sweep", "ColoredDigits", "--algorithms", "ERM,IRM", "--draws", "3", "--out", "s", "--dry-run"
    )
    assert code == 0 and "18 jobs, 0 of them done" in out
    assert not (tmp_path / "s").exists()


def test_own_images_from_a_folder_to_a_trained_model(shiftbed, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    for place in (f"mine/{site}/{label}/{i}.png" for site in "ab" for label in "xy" for i in range(6)):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / place)
    code, out, err = shiftbed("prepare", "mine")
    assert code == 0, err
    assert "mine: 24 images of 2 classes in 2 domains (a 12, b 12)" in out
    assert "Next: shiftbed look mine" in out
    code, out, _ = shiftbed("datasets", "mine")
    assert code == 0 and "a 12, b 12" in out
    code, out, _ = shiftbed("datasets")
    assert code == 0 and "packed" in out
    code, out, err = shiftbed("train", "mine", "ERM", "--test", "a", "--steps", "2", "--set", "batch_size=4")
    assert code == 0 and "a/in" in out, err
    assert "is not prepared" in shiftbed("train", "./mine", "ERM", "--test", "a")[2]


@pytest.mark.parametrize(
    ("dataset", "test", "has_auroc"), [("ColoredDigits", "-90%", True), ("RotatedDigits", "0", False)]
)
def test_a_trained_model_shows_how_its_errors_are_spread(shiftbed, dataset, test, has_auroc):
    out = shiftbed("train", dataset, "ERM", f"--test={test}", "--steps", "2").out
    spread = out.partition("How the errors are spread")[2]
    heads = " ".join(spread.split("┡")[0].replace("┃", " ").split())
    assert all(word in heads for word in ("balanced", "worst class", "macro-F1", "calibration"))
    assert ("AUROC" in heads) == has_auroc
    (record,) = json.loads(shiftbed("train", dataset, "ERM", f"--test={test}", "--steps", "2", "--json").out)["records"]
    for name, result in record["splits"].items():
        numbers = next(line for line in spread.splitlines() if f" {name} " in line).split("│")[2:-1]
        shown = ["balanced_accuracy", "worst_class", "macro_f1", *(["auroc"] * has_auroc), "calibration_error"]
        assert [cell.strip() for cell in numbers] == [f"{100 * result[one]:.1f}" for one in shown]


def test_a_dataset_is_packed_under_the_root_that_is_named(shiftbed, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    for place in (f"mine/{site}/{label}/{i}.png" for site in "ab" for label in "xy" for i in range(2)):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), len(place), np.uint8)).save(tmp_path / place)
    (tmp_path / "mine" / "a" / "x" / "2.png").write_bytes(b"no image")
    made = json.loads(shiftbed("prepare", "mine", "--root", "else where", "--skip-corrupt", "--json").out)
    assert made["pack"] == str(tmp_path / "else where" / "packs" / "mine") and not (tmp_path / "data").exists()
    assert made["card"]["domains"] == {"a": 4, "b": 4} and len(made["duplicates"]) == 1
    assert [bad["path"] for bad in made["left_out"]] == ["mine/a/x/2.png"]
    out = shiftbed("prepare", "mine", "--root", "else where", "--skip-corrupt").out
    assert f"`export SHIFTBED_DATA='{tmp_path / 'else where'}'`" in " ".join(out.split())


def test_what_moves_sweeps_answers_machines(shiftbed, tmp_path):
    made_folder(tmp_path / "mine", plan(Request("ColoredDigits", "ERM", draws=2)), lambda *_: 0.5)
    jobs = json.loads(shiftbed("compact", "mine", "--json").out)["jobs"]
    assert json.loads(shiftbed("bundle", "mine", "--json").out) == {"jobs": jobs, "file": "mine.zip"}
    merged = json.loads(shiftbed("merge", "mine.zip", "--out", "both", "--json").out)
    assert merged == {"jobs": jobs, "new": jobs, "differing": []}
    assert json.loads(shiftbed("export-domainbed", "mine", "--out", "theirs", "--json").out)["jobs"] == jobs
    assert json.loads(shiftbed("import-domainbed", "theirs", "--out", "back", "--json").out)["jobs"] == jobs


def test_doctor_shows_where_things_are(shiftbed, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    code, out, _ = shiftbed("doctor")
    assert code == 0
    found = json.loads(shiftbed("doctor", "--json").out)
    for word in ("data root", "free disk", "torch", "workers", "python"):
        assert word in out and word in found


PASTED = '''
import torch
import torch.nn.functional as F
from shiftbed.algorithms import ERM, Space, log_uniform, register


@register(space=Space(my_lambda=log_uniform(1e-1, 1e5, default=1e1)), paper="Somebody, 2021")
class MyVREx(ERM):
    """Equal risks, as a class of DomainBed's shape writes it."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(MyVREx, self).__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("update_count", torch.tensor([0]))

    def update(self, minibatches, unlabeled=None):
        all_x = torch.cat([x for x, y in minibatches])
        all_logits = self.network(all_x)
        all_logits_idx = 0
        losses = torch.zeros(len(minibatches))
        for i, (x, y) in enumerate(minibatches):
            logits = all_logits[all_logits_idx : all_logits_idx + x.shape[0]]
            all_logits_idx += x.shape[0]
            losses[i] = F.cross_entropy(logits, y)
        mean = losses.mean()
        penalty = ((losses - mean) ** 2).mean()
        loss = mean + self.hparams["my_lambda"] * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.update_count += 1
        return {"loss": loss.item(), "penalty": penalty.item()}
'''


def test_a_class_in_domainbed_s_style_trains_in_a_sweep_and_appears_in_the_table(shiftbed, tmp_path):
    (tmp_path / "mine.py").write_text(PASTED)
    sweep = ["sweep", "ColoredDigits", "--algorithms", "ERM,MyVREx", "--trials", "2", "--test=-90%", "--steps", "6"]
    code, out, err = shiftbed(*sweep, "--out", "s", "--code", "mine.py", "--workers", "2")
    assert code == 0, err
    code, out, _ = shiftbed("tables", "s")
    assert code == 0
    assert sum(line.startswith("MyVREx") for line in out.splitlines()) == 2, "once for each selection"
    code, out, _ = shiftbed("tables", "s", "--format", "json", "--selection", "oracle")
    row = next(row for row in json.loads(out) if row["algorithm"] == "MyVREx" and row["test"] == "-90%")
    assert row["n"] == 2 and row["chosen"][0]["hparams"]["my_lambda"] == 10
    code, out, _ = shiftbed("status", "s", "--json")
    assert set(json.loads(out)["states"].values()) == {"done"}
    assert shiftbed("tables", "s", "--format", "pdf")[2].startswith("shiftbed: There is no format 'pdf'")


def test_draws_and_trials_that_leave_no_job_are_told_instead_of_an_empty_page(shiftbed, tmp_path):
    jobs = plan(Request("ColoredDigits", ["ERM"], draws=2, trials=2, test_domains=["-90%"]))
    made_folder(tmp_path / "later", [job for job in jobs if job.trial], lambda *_: 0.5)
    code, out, err = shiftbed("tables", "later", "--trials", "1", "--draws", "2")
    assert (code, out) == (1, "")
    assert err.startswith("shiftbed: With --draws 2 and --trials 1 no finished job of later is left; give a larger")
    assert "50.0" in shiftbed("tables", "later", "--trials", "2").out


def test_from_a_sweep_to_a_model_and_its_predictions(shiftbed, tmp_path):
    sweep, best = str(tmp_path / "sweep"), str(tmp_path / "best")
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM,SD", "--test=-90%", "--steps", "4", "--out", sweep)
    assert shiftbed(*command).code == 0
    made = shiftbed("best", sweep, "--out", best)
    assert "training-domain-validation chose" in made.out and "came out" not in made.out, "to the bit"
    rows = shiftbed("predictions", best, "--on", "ColoredDigits", "--domains=-90%").out.splitlines()
    assert rows[0] == "domain,path,label,prediction,confidence,role" and len(rows) == 600
    assert {row.rsplit(",", 1)[1] for row in rows[1:]} == {"test"}
    assert "There is no folder nowhere" in shiftbed("predictions", best, "--csv", "nowhere/p.csv").err
    assert rows[1].startswith("-90%,-90%/0,")
    assert len(shiftbed("predictions", best).out.splitlines()) > 2 * len(rows), "of all domains it knows"
    foreseen = json.loads(shiftbed("predict", best, "--on", "ColoredDigits/-90%", "--json").out)
    assert foreseen["low"] <= foreseen["accuracy"] <= foreseen["high"], "from its own held-out images"
    assert "no domain '+70%'" in shiftbed("predictions", best, "--on", "ColoredDigits", "--domains=+70%").err
    assert "No finished job" in shiftbed("best", sweep, "--algorithm", "IRM").err
    named = json.loads(shiftbed("best", sweep, "--algorithm", "SD", "--out", str(tmp_path / "sd"), "--json").out)
    assert (named["algorithm"], named["selection"], named["oracle"]) == ("SD", "training-domain-validation", False)
    assert load(named["weights"]).algorithm is not None
    everywhere = shiftbed("best", sweep, "--all-domains", "--out", best)
    assert "learned from all 3 domains" in everywhere.out and "at a new domain" in everywhere.out.replace("\n", " ")
    assert "--test" in shiftbed("best", sweep, "--all-domains", "--test=-90%").err


def test_a_pasted_class_becomes_a_model_and_every_step_s_weights_load(shiftbed, tmp_path):
    code = tmp_path / "mine.py"
    code.write_text("from shiftbed.algorithms import ERM, register\n@register()\nclass Mine(ERM):\n    '''My own.'''\n")
    run = str(tmp_path / "run")
    train = ("train", "ColoredDigits", "Mine", "--test=-90%", "--steps", "2", "--out", run, "--code", str(code))
    assert "Records and weights" in shiftbed(*train, "--keep", "all").out
    assert "There are the weights of 1 steps" in shiftbed("predictions", run).err
    (weights,) = (tmp_path / "run").rglob("weights-2.safetensors")
    rows = shiftbed("predictions", str(weights), "--code", str(code)).out.splitlines()
    assert len(rows) > 1000
    best = shiftbed("best", run, "--out", str(tmp_path / "best"), "--code", str(code))
    assert "chose Mine" in best.out and f"--code {code}" in best.out.replace("\n", " ")
    audited = shiftbed("audit", run, "--brief", "--code", str(code)).out
    assert f"shiftbed audit {run} --run --code {code}" in audited, "what follows knows the class, too"


@pytest.mark.parametrize(("options", "again"), [((), "starts anew"), (("--all-domains",), "goes on from its last")])
def test_a_model_that_is_stopped_says_what_the_same_command_does(shiftbed, monkeypatch, options, again):
    from shiftbed.report import choosing

    def stop(*_, **__):
        raise KeyboardInterrupt

    for verb in ("best", "best_everywhere"):
        monkeypatch.setattr(choosing, verb, stop)
    found = shiftbed("best", "sweep", *options)
    assert found.code == 130 and f"Stopped; the same command {again}" in found.out


@pytest.mark.slow
def test_a_model_is_exported_to_onnx(shiftbed, tmp_path):
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    sweep, best = tmp_path / "sweep", tmp_path / "best"
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%", "--steps", "4", "--out", str(sweep))
    assert shiftbed(*command).code == 0
    assert shiftbed("best", str(sweep), "--out", str(best), "--export", "onnx").code == 0
    (written,) = best.rglob("*.onnx")
    model = load(best)
    x = np.random.default_rng(0).random((3, *model.about["input_shape"]), dtype=np.float32)
    exported = evaluator(str(written))
    (logits,) = exported.run(None, {exported.input_names[0]: x})
    with torch.no_grad():
        assert np.allclose(logits, model.algorithm.eval().predict(torch.from_numpy(x)), atol=1e-5)


def test_what_differs_between_two_recipes_and_two_jobs(shiftbed, tmp_path):
    found = json.loads(shiftbed("diff", "domainbed", "domainbed-head", "--json").out)
    assert {"field": "batch_norm", "one": "frozen-statistics", "two": "trained"} in found
    for algorithm in ("ERM", "SD"):
        shiftbed("train", "ColoredDigits", algorithm, "--test=-90%", "--steps", "1", "--out", str(tmp_path / algorithm))
    found = json.loads(shiftbed("diff", str(tmp_path / "ERM"), str(tmp_path / "SD"), "--json").out)
    fields = {row["field"] for row in found}
    assert fields == {"algorithm", "hparams.sd_reg", "id"}
    (tmp_path / "mine.yaml").write_text("include: quick\nsteps: 20\n")
    named = (
        package.compare(tmp_path / "mine.yaml", "quick"),
        package.compare(str(tmp_path / "mine.yaml"), Path("quick")),
    )
    assert named[0] == named[1] and named[0].kind == "recipe", "paths are names too"
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    for folder, draws in ((one, "1"), (two, "2")):
        command = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%,+90%", "--steps", "2")
        shiftbed(*command, "--draws", draws, "--out", folder)
    fields = {row["field"] for row in json.loads(shiftbed("diff", one, two, "--json").out)}
    cells = ["ColoredDigits / training-domain-validation / ERM / " + test for test in ("-90%", "+90%", "average")]
    assert {f"{cell}.most_draws" for cell in cells} <= fields, "every domain's cell, and the average"
    lines = shiftbed("diff", one, two).out.splitlines()
    (draws,) = ([part.strip() for part in line.split("│")] for line in lines if "most draws" in line)
    assert draws[1:4] == ["most draws", "1", "2"], "how they were made is one row for all cells"
    assert any("† Oracle: chosen" in line for line in lines) and not any("hparams" in line for line in lines)
    assert "no recipe" in shiftbed("diff", "domainbed", "nowhere").err
    several = str(tmp_path / "several")
    sweep = ("sweep", "ColoredDigits", "--algorithms", "ERM,SD", "--test=-90%", "--steps", "2", "--out", several)
    assert shiftbed(*sweep).code == 0
    beside = json.loads(shiftbed("diff", several, str(tmp_path / "ERM"), "--json").out)
    of_sd = [row["field"] for row in beside if "training-domain-validation / SD / -90%" in row["field"]]
    assert len(of_sd) == 1, "one job is a sweep beside a sweep, and a cell that is not in both is one difference"
    assert "…" not in shiftbed("diff", several, str(tmp_path / "ERM")).out, "no name is cut at 80 columns"
    assert "compare two of a kind" in shiftbed("diff", "domainbed", str(tmp_path / "ERM")).err


def test_the_card_of_every_dataset_is_shown(shiftbed):
    for name in DATASETS:
        shown = shiftbed("datasets", name)
        assert shown.code == 0 and "licence" in shown.out and card(name).citation.split(",")[0] in shown.out, shown.err
    assert "input shape" in shiftbed("datasets", "EmojiStyles").out


def test_hyperparameters_of_a_draw_are_those_a_job_gets(shiftbed):
    asked = ("hparams", "irm", "--dataset", "ColoredMNIST", "--draw", "1")
    shown = json.loads(shiftbed(*asked, "--space", "domainbed-head", "--json").out)
    assert shown["batch_size"] == 372 and shown["irm_penalty_anneal_iters"] == 2
    assert "10^U(-1, 5)" in shiftbed("hparams", "IRM").out
    assert "give --recipe or --space, not both" in shiftbed(*asked, "--space", "ood-bench", "--recipe", "quick").err


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ((), "quick"),
        (("--recipe", "ood-bench"), "ood-bench"),
        (("--space", "ood-bench"), "ood-bench"),
        (("--space", "domainbed-head"), "domainbed-head"),
    ],
)
def test_the_values_of_a_draw_are_those_that_the_next_command_trains(shiftbed, given, recipe):
    asked = ("hparams", "IRM", "--dataset", "ColoredDigits", "--draw", "3", "--trial", "1", *given)
    values, out = json.loads(shiftbed(*asked, "--json").out), shiftbed(*asked).out
    assert out.endswith(f"Next: shiftbed train ColoredDigits IRM --test=+90% --recipe {recipe} --draw 3 --trial 1\n")
    job = make_job("ColoredDigits", "IRM", LeaveOut(("+90%",)), find_recipe(recipe, "ColoredDigits"), 3, 1)
    assert values == job.hparams
    assert ("fixed by recipe quick" in out) == (recipe == "quick")


def test_devices_and_precisions_that_do_not_exist(shiftbed):
    train = ("train", "ColoredDigits", "ERM", "--test=-90%")
    assert "mps" in shiftbed(*train, "--device", "mps").err
    assert "One job runs on one GPU" in shiftbed(*train, "--device", "cuda:0,cuda:1").err
    assert "There is no device 'tpu'" in shiftbed(*train, "--device", "tpu").err
    assert "There is no precision 'half'" in shiftbed(*train, "--precision", "half").err


def test_lean_records_serve_the_named_selection_and_say_what_others_lack(shiftbed, tmp_path):
    command = (
        "sweep",
        "ColoredDigits",
        "--algorithms",
        "ERM",
        "--test=-90%",
        "--steps",
        "2",
        "--out",
        str(tmp_path / "s"),
    )
    assert "name at least one" in shiftbed(*command, "--records", "lean").err
    assert shiftbed(*command, "--records", "lean", "--selection", "training-domain-validation").code == 0
    record = next(tmp_path.glob("s/jobs/*/records.jsonl")).read_text().splitlines()[-1]
    assert set(json.loads(record)["splits"]) == {"+90%/out", "+80%/out"}
    tested = json.loads(next(tmp_path.glob("s/jobs/*/test-*.json")).read_text())["records"][-1]
    assert set(tested["splits"]) == {"-90%/in"}
    assert "ERM" in shiftbed("tables", str(tmp_path / "s"), "--selection", "training-domain-validation").out
    lacking = shiftbed("tables", str(tmp_path / "s"), "--selection", "oracle").out
    assert "test/out/accuracy, which these jobs do not have" in lacking


def test_a_sweep_travels_as_one_file_and_is_not_trained_again(shiftbed, tmp_path):
    sweep, other, copy = str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "both")
    command = ("sweep", "ColoredDigits", "--test=-90%", "--steps", "2")
    assert shiftbed(*command, "--algorithms", "ERM", "--out", sweep).code == 0
    assert shiftbed(*command, "--algorithms", "SD", "--out", other).code == 0
    assert "1 job in 1 new part." in shiftbed("compact", sweep).out
    assert "1 job in" in shiftbed("bundle", sweep, "--out", str(tmp_path / "one.zip")).out
    assert "2 of them new" in shiftbed("merge", str(tmp_path / "one.zip"), other, "--out", copy).out
    table = shiftbed("tables", copy, "--selection", "training-domain-validation").out
    assert "ERM" in table and "SD" in table
    dry = shiftbed(*command, "--algorithms", "ERM,SD", "--out", copy, "--dry-run").out
    assert "2 jobs, 2 of them done already." in dry
    assert not list((tmp_path / "both").glob("jobs/*/checkpoint.pt"))
    assert shiftbed(*command, "--algorithms", "ERM,SD", "--out", copy).code == 0
    assert not list((tmp_path / "both").glob("jobs/*/times.json")), "nothing was trained"


def test_sweeps_with_a_dot_in_their_names_have_bundles_of_their_own(shiftbed, tmp_path, monkeypatch):
    for name in ("lr0.1", "lr0.01"):
        finish(LocalStore(tmp_path / name), tiny_job("ERM"))
        assert shiftbed("bundle", name).code == 0
    assert sorted(path.name for path in tmp_path.glob("*.zip")) == ["lr0.01.zip", "lr0.1.zip"]
    finish(LocalStore(tmp_path / "here"), tiny_job("ERM"))
    monkeypatch.chdir(tmp_path / "here")
    assert shiftbed("bundle", ".").code == 0 and (tmp_path / "here.zip").is_file()


def test_a_bundle_is_known_as_one(shiftbed, tmp_path):
    finish(LocalStore(tmp_path / "s"), tiny_job("ERM"))
    assert shiftbed("bundle", "s", "--out", "a b.zip").code == 0
    said = "shiftbed: a b.zip is a bundle; `shiftbed merge 'a b.zip' --out DIR` opens it.\n"
    for command in (["audit"], ["tables"], ["report"], ["status"], ["best"], ["compact"], ["figure", "leaderboard"]):
        assert shiftbed(*command, "a b.zip").err == said
    assert shiftbed("diff", "s", "a b.zip").err == said
    (tmp_path / "file").write_text("no zip")
    assert shiftbed("tables", "file").err == "shiftbed: file is a file, not the folder of a sweep; name a folder.\n"


def test_commands_for_a_pasted_class_name_its_file(shiftbed, tmp_path):
    code = tmp_path / "mine.py"
    code.write_text("from shiftbed.algorithms import ERM, register\n@register()\nclass Mine(ERM):\n    'My own.'\n")
    load_code(code)
    store, jobs = LocalStore(tmp_path / "s"), plan(Request("ColoredDigits", ["Mine"], test_domains=["-90%"]))
    remember_plan(jobs, store)
    finish(store, jobs[0])
    assert "shiftbed best s   # with --code and the file of Mine\n" in shiftbed("tables", "s").out
    assert best_command(tmp_path / "s", code=[code]).endswith(f"s --code {code}")


def test_numbers_in_a_comparison_have_their_doubt_and_the_oracle_s_their_mark(shiftbed, tmp_path):
    for folder, level in (("one", 0.5), ("two", 0.25)):
        for trial in (0, 1):
            finish(LocalStore(tmp_path / folder), tiny_job("ERM", trial=trial), test=level + 0.02 * trial)
    lines = [line.split("│") for line in shiftbed("diff", "one", "two").out.splitlines() if "±" in line and "│" in line]
    numbers = {tuple(part.strip() for part in line[2:4]) for line in lines}
    assert numbers == {("51.0 ±1.0 (2)", "26.0 ±1.0 (2)"), ("51.0† ±1.0 (2)", "26.0† ±1.0 (2)")}
    assert len(lines) == 4, "of two rules, a domain and the average"


@pytest.mark.parametrize("protocol", ["k-sources:1", "leave-pair-out"])
def test_a_difference_in_any_setting_or_company_of_a_domain_is_told(shiftbed, tmp_path, protocol):
    """Cells of one name were one cell, that of the last setting: sweeps that differ elsewhere did not differ."""
    jobs = plan(Request("ColoredDigits", ["ERM"], protocol=protocol))
    for number, other in enumerate(jobs):
        for folder, level in (("one", 0.5), (f"two{number}", 0.25)):
            for job in jobs:
                finish(LocalStore(tmp_path / folder), job, test=level if job is other else 0.5)
        differing = json.loads(shiftbed("diff", "one", f"two{number}", "--json").out)
        tested = len(other.describe()["test_domains"])
        assert len(differing) >= tested and {(row["one"], row["two"]) for row in differing} >= {(50.0, 25.0)}
        assert shiftbed("diff", "one", f"two{number}").out.count("25.0") >= tested


def test_a_measurement_that_could_not_be_written_is_not_made(shiftbed, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.shift, "_two_sides", lambda *_: pytest.fail("measured in vain"))
    (tmp_path / "afile").touch()
    assert "afile cannot be read or written" in shiftbed("shift", "ColoredDigits", "--out", "afile").err


def test_a_sweep_goes_to_domainbed_s_format_and_back(shiftbed, tmp_path):
    sweep, theirs, back = (str(tmp_path / name) for name in ("sweep", "theirs", "back"))
    command = ("sweep", "ColoredDigits", "--algorithms", "ERM,SD", "--steps", "2", "--draws", "2", "--out", sweep)
    assert shiftbed(*command).code == 0
    assert "12 runs in" in shiftbed("export-domainbed", sweep, "--out", theirs).out
    assert "12 jobs in" in shiftbed("import-domainbed", theirs, "--out", back).out
    rows = [
        {
            (row["algorithm"], row["test"]): row["accuracy"]
            for row in json.loads(shiftbed("tables", folder, "--format", "json").out)
        }
        for folder in (sweep, back)
    ]
    assert rows[0] == pytest.approx(rows[1])
    differing = json.loads(shiftbed("diff", sweep, back, "--json").out)
    assert differing and all(one["field"].endswith((".recipe", ".job")) for one in differing), "the numbers are equal"
    said = shiftbed("status", back).err
    assert f"{back} has finished jobs and no plan" in said and f"`shiftbed tables {back}` shows them" in said


def test_a_place_that_cannot_be_written_is_one_sentence(shiftbed, tmp_path):
    (tmp_path / "afile").touch()
    shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps", "1", "--out", "run")
    unwritable = "cannot be read or written"
    for command, words in (
        (("predictions", "run", "--csv", "afile/x.csv"), "There is no folder afile for x.csv"),
        (("predictions", "run", "--csv", "nowhere/x.csv"), "There is no folder nowhere for x.csv"),
        (("predictions", "run", "--csv", str(tmp_path)), "choose another file with --csv"),
        (("predictions", "run", "--csv", "/dev/full"), "No space left on device; choose another file with --csv"),
        (("shift", "ColoredDigits", "--measures", "mmd", "--most", "40", "--runs", "1", "--out", "afile"), unwritable),
    ):
        said = shiftbed(*command)
        assert said.code == 1 and words in said.err and "Error in" not in said.err


def test_a_model_says_what_it_cannot_look_at(shiftbed, tmp_path):
    shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps", "1", "--out", "run")
    assert "are not the model's" in shiftbed("predictions", "run", "--on", "RotatedDigits").err
    with pytest.raises(DataError, match="takes images H×W×C of 2 channels, and these have 3"):
        load(tmp_path / "run").predict(np.zeros((2, 8, 8, 3), np.uint8))
    (tmp_path / "empty").touch()
    assert "is no file of weights, or a damaged one" in shiftbed("predictions", "empty").err


def test_names_with_markup_and_spaces_are_shown_and_can_be_pasted(shiftbed, tmp_path):
    for domain in ("[red]c[bold]", "a b"):
        for label in ("x", "y"):
            folder = tmp_path / "my images" / domain / label
            folder.mkdir(parents=True)
            for i in range(8):
                Image.fromarray(np.full((8, 8, 3), 20 * i, np.uint8)).save(folder / f"{i}.png")
    prepared = shiftbed("prepare", "my images")
    assert "shiftbed look 'my images'" in prepared.out and "--test '[red]c[bold]'" in prepared.out
    trained = shiftbed("train", "my images", "ERM", "--test", "[red]c[bold]", "--steps", "1", "--set", "batch_size=4")
    assert "[red]c[bold]/in" in trained.out and "shiftbed sweep 'my images'" in trained.out


def test_the_oracle_s_model_is_marked(shiftbed, tmp_path):
    sweep = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%", "--steps", "2", "--out", "s")
    assert shiftbed(*sweep).code == 0
    said = shiftbed("best", "s", "--selection", "oracle", "--out", "m").out
    assert "†). † chosen with the test domain's labels." in " ".join(said.split())
    assert "keep it too" in shiftbed("bundle", "s", "--metrics", "loss", "--out", "s.zip").err


def test_images_without_labels_are_predicted_file_by_file(shiftbed, tmp_path):
    run, folder = str(tmp_path / "run"), tmp_path / "unlabelled"
    assert shiftbed("train", "RotatedDigits", "ERM", "--test", "0", "--steps", "3", "--out", run).code == 0
    folder.mkdir()
    Image.fromarray(load_dataset("RotatedDigits")["0"].inputs[0][..., 0]).save(folder / "first.png")
    known = shiftbed("predictions", run, "--domains", "0").out.splitlines()[1].split(",")
    header, row = shiftbed("predictions", run, "--on", str(folder)).out.splitlines()
    assert header == "domain,path,label,prediction,confidence,role"
    assert row.split(",") == ["unlabelled", "first.png", "", *known[3:5], ""]
    assert "which has no domains" in shiftbed("predictions", run, "--on", str(folder), "--domains", "0").err
    (folder / "monday").mkdir()
    (folder / "first.png").rename(folder / "monday" / "first.png")  # found where `predict` finds it
    below = shiftbed("predictions", run, "--on", str(folder)).out.splitlines()[1]
    assert below.split(",") == ["unlabelled", "monday/first.png", "", *known[3:5], ""]
    (folder / "monday" / "first.png").unlink()
    assert "There are no images in unlabelled or the" in shiftbed("predictions", run, "--on", "unlabelled").err


def test_a_domain_with_a_comma_is_named_as_it_is(shiftbed, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    for site in ("Lab 3, north", "site b", "site-c"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "pets" / site / kind
            folder.mkdir(parents=True)
            for number in range(24):
                Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    assert shiftbed("prepare", "pets").code == 0
    both = "--test=Lab 3, north,site b"
    assert shiftbed("train", "pets", "ERM", "--test", "Lab 3, north", "--steps", "1").code == 0
    assert "2 jobs done" in shiftbed("sweep", "pets", "--algorithms", "ERM", both, "--steps", "1", "--out", "s").out
    assert shiftbed("best", "s", "--test", "Lab 3, north", "--out", "m").code == 0
    said = shiftbed("predictions", "m", "--domains", "Lab 3, north").out
    assert '"Lab 3, north"' in said and "site b" not in said
    made = shiftbed("shift", "pets", "--test", "Lab 3, north", "--runs", "1", "--no-baseline", "--json").out
    assert json.loads(made)["test"] == "Lab 3, north"


def test_prose_ends_its_lines_between_words(shiftbed, capsys):
    say("Rely on it with care. " * 6 + "/a/long/path-" + "x" * 80)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1]) and not any(line != line.rstrip() for line in lines)
    assert lines[-1] == "/a/long/path-" + "x" * 80, "a path stays whole"


def test_a_command_in_a_message_runs_when_the_folder_s_name_has_a_space(shiftbed, tmp_path):
    with_space = [
        ("tables", "my sweep"),
        ("status", "my sweep"),
        ("unblind", "my sweep"),
        ("figure", "leaderboard", "my sweep", "--out", "a.png"),
        ("figure", "shift-plane", "my folder", "--out", "a.png"),
    ]
    (tmp_path / "my folder").mkdir()
    for command in with_space:
        said = shiftbed(*command).err
        inside = said.partition("`")[2].partition("`")[0]
        assert "'my " in inside, said


def test_an_error_in_a_pasted_class_names_its_line(shiftbed, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from shiftbed.algorithms import ERM, register\n\n\n"
        "@register()\nclass Typo(ERM):\n    def objective(self, batches, step):\n"
        "        return self.netwrk(batches.x), {}\n\n\n"
        "@register()\nclass Alone(ERM):\n    def objective(self, batches, step):\n"
        "        return self.network(batches.x).square().mean()\n\n\n"
        "@register()\nclass Listed(ERM):\n    def objective(self, batches, step):\n"
        "        return self.network(batches.x).square().mean(), []\n\n\n"
        "@register()\nclass Item(ERM):\n    def objective(self, batches, step):\n"
        "        loss = self.network(batches.x).square().mean()\n        return loss, {'penalty': loss.item()}\n\n\n"
        "@register()\nclass Number(ERM):\n    def objective(self, batches, step):\n"
        "        return self.network(batches.x).square().mean().item(), {}\n\n\n"
        "@register()\nclass Each(ERM):\n    def objective(self, batches, step):\n"
        "        return self.network(batches.x).square().mean(1), {}\n"
    )
    pasted = ("--test=-90%", "--steps", "1", "--code", "mine.py")
    assert "AttributeError in mine.py line 7" in shiftbed("train", "ColoredDigits", "Typo", *pasted).err
    for name, wrong in {
        "Alone": "must return a loss and a dict",
        "Listed": "must return a loss and a dict",
        "Item": "returned penalty as a float; it must be a tensor, without .item().",
        "Number": "returned loss as a float; it must be a tensor, without .item().",
        "Each": "returned a loss of shape (64,); it must be one number, such as its mean.",
    }.items():
        assert f"{name}.objective() {wrong}" in shiftbed("train", "ColoredDigits", name, *pasted).err


def test_a_pasted_predict_that_returns_no_logits_is_named(shiftbed, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from shiftbed.algorithms import ERM, register\n\n\n"
        "@register()\nclass Squeezed(ERM):\n    def predict(self, x):\n"
        "        return self.network(x)[:, :1].squeeze()\n\n\n"
        "@register()\nclass Twice(ERM):\n    def predict(self, x):\n"
        "        logits = self.network(x)\n        return logits if self.training else (logits, x)\n\n\n"
        "@register()\nclass Features(ERM):\n    def predict(self, x):\n        return self.featurizer(x)\n"
    )
    pasted = ("--test=-90%", "--steps", "1", "--code", "mine.py")
    said = shiftbed("train", "ColoredDigits", "Squeezed", *pasted).err
    assert "Squeezed.predict() returned a tensor of (64,) for 64 examples; it must return their logits" in said
    assert "Twice.predict() returned a tuple for" in shiftbed("train", "ColoredDigits", "Twice", *pasted).err
    wide = shiftbed("train", "ColoredDigits", "Features", *pasted).err  # the label is among its columns too
    assert "Features.predict() returned a tensor of (" in wide and ", 2)." in wide


def test_a_pasted_class_is_missed_with_its_remedy(shiftbed, tmp_path):
    (tmp_path / "my code.py").write_text(
        "from shiftbed.algorithms import ERM, register\n\n\n@register()\nclass Mine(ERM):\n    pass\n"
    )
    pasted = ("--test=-90%", "--steps", "1", "--code", "my code.py", "--out", "s")
    assert "--code 'my code.py'" in shiftbed("train", "ColoredDigits", "Mine", *pasted).out
    ALGORITHMS._entries.pop("Mine")  # another process does not know it
    assert "name its file with --code" in shiftbed("best", "s").err
    assert "There is no finished job in nowhere" in shiftbed("best", "nowhere").err


def test_jobs_of_a_pasted_class_that_has_changed_since_are_told_apart(shiftbed, tmp_path):
    mine = "from shiftbed.algorithms import ERM, register\n\n\n@register()\nclass Mine(ERM):\n    rate = {}\n\n"
    mine += "    def objective(self, batches, step):\n        return super().objective(batches, 1 // self.rate)\n"
    sweep = ("sweep", "ColoredDigits", "--algorithms", "Mine", "--draws", "1", "--trials", "1", "--test=-90%")
    sweep += ("--steps", "1", "--workers", "1", "--code", "mine.py", "--out", "s")
    (tmp_path / "mine.py").write_text(mine.format(0))
    assert shiftbed(*sweep).code == 1
    again = "the same command finishes the 1 job left."
    assert again in " ".join(shiftbed("status", "s").out.split()), "nothing has changed yet"
    ALGORITHMS._entries.pop("Mine")
    (tmp_path / "mine.py").write_text(mine.format(1))
    assert shiftbed(*sweep).code == 0

    remedy = "the same command{} with the source of Mine as it was planned"
    status = " ".join(shiftbed("status", "s").out.split())
    assert remedy.format(" finishes the 1 job left,") in status and status.count("Mine (source") == 2
    for said in (shiftbed("tables", "s"), shiftbed("audit", "s", "--brief")):
        assert remedy.format(" again,") in " ".join(said.out.split())
    assert shiftbed("report", "s").code == 0
    assert "own command tries again, with the source of Mine" in html.unescape((tmp_path / "s/report.html").read_text())


def test_next_commands_can_be_pasted(shiftbed):
    assert (
        "train ColoredDigits IRM --test=+90% --recipe quick --draw 3"
        in shiftbed("hparams", "IRM", "--dataset", "ColoredDigits", "--draw", "3").out
    )
    assert (
        "--address is a Ray cluster's"
        in shiftbed("sweep", "ColoredDigits", "--algorithms", "ERM", "--address", "x", "--out", "s").err
    )


def test_a_folder_that_is_not_here_is_named_as_one(shiftbed, tmp_path):
    for command in (("prepare", "no pets"), ("shift", "no pets"), ("look", "no pets")):
        assert f"If it is a folder of yours, it is not in {tmp_path}." in shiftbed(*command).err
    (tmp_path / "no pets").mkdir()
    assert "`shiftbed prepare 'no pets'`" in shiftbed("look", "no pets").err


def test_the_accuracy_of_one_model_has_its_standard_error(shiftbed):
    made = shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps", "1", "--out", "one").out
    (record,) = json.loads(
        shiftbed("train", "ColoredDigits", "ERM", "--test=-90%", "--steps", "1", "--out", "one", "--json").out
    )["records"]
    found = record["splits"]["-90%/in"]
    error = (found["accuracy"] * (1 - found["accuracy"]) / found["count"]) ** 0.5
    assert f"{100 * found['accuracy']:.1f} ±{100 * error:.1f}" in made


def test_the_class_of_a_figure_has_one_name_on_the_command_line(shiftbed, tmp_path):
    said = shiftbed("figure", "leaderboard", str(tmp_path), "--class", "cat").err
    assert "The figure leaderboard has no option 'class'; it has dataset, selection." in said
    options = {row["figure"]: row["options"] for row in json.loads(shiftbed("figures", "--json").out)}
    assert options["tsne"] == ["dataset", "class"]


def test_two_formats_at_once_are_refused(shiftbed, tmp_path):
    for command in (["tables", str(tmp_path)], ["benchmark", "builtin"]):
        told = shiftbed(*command, "--format", "csv", "--json")
        assert told.code == 1
        assert "--json and --format csv are two formats; leave one of them out." in told.err


def test_predict_without_images_knows_a_model_from_a_sweep(shiftbed, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.safetensors").write_bytes(b"")
    assert "model is a model and no sweep; name its images with --on" in shiftbed("predict", "model").err


def test_refusals_are_sentences_whatever_the_number(shiftbed):
    train = ("train", "ColoredDigits", "ERM", "--test=-90%")
    assert "choose none, final, best, all or logits." in shiftbed(*train, "--keep", "some").err
    assert "There is no tracker 'foo'. There are mlflow, tensorboard, wandb." in shiftbed(*train, "--track", "foo").err
    assert "a share between 0 and 1 of every test domain, not 2." in shiftbed(*train, "--adapt", "2").err
    sweep = ("sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%", "--out", "s")
    once = shiftbed(*sweep, "--design", "search-once", "--draws", "2", "--trials", "2", "--dry-run", "--no-probe")
    assert "Then at most 1 job to train the winners again." in once.out
    pairs = shiftbed(*sweep, "--protocol", "leave-pair-out")
    assert "tests -90% alone; name all domains of one of its tasks" in pairs.err


def test_a_shell_completes_the_names_of_commands_and_options(shiftbed, monkeypatch):
    for typed, completed in (("shiftbed tr", "train"), ("shiftbed train --rec", "--recipe")):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        monkeypatch.setenv("_SHIFTBED_COMPLETE", "complete_bash")
        assert shiftbed().out.split() == [completed]
