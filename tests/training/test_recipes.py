"""Recipes: what the papers say, dataset by dataset."""

import pytest

from shiftbed.data import DATASETS
from shiftbed.errors import HparamError, ShiftbedError
from shiftbed.protocols import LeaveOut
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.verbs import train
from shiftbed.training.job import make_job
from shiftbed.training.recipes import _recipe_file, recipe, recipe_names
from shiftbed.training.trainer import Trainer


def test_recipes_name_datasets_that_exist():
    assert {name for one in recipe_names() for name in _recipe_file(one).get("datasets", {})} <= set(DATASETS)


def test_draws_of_two_search_spaces_do_not_stand_in_one_table():
    own = recipe("domainbed", "PACS")
    other = recipe("domainbed", "PACS", space="domainbed-v2")
    assert own.space == "domainbed-paper" and own.setting != other.setting
    assert b"space" not in own.setting + recipe("quick", "PACS").setting, "tables of before stay whole"
    quick, drawn_elsewhere = recipe("quick", "PACS"), recipe("quick", "PACS", space="domainbed-v2")
    assert b'"space"' in drawn_elsewhere.setting
    assert quick.identity == drawn_elsewhere.identity, "the values that are drawn are in the job's id"
    assert own.model_copy(update={"name": "mine"}).setting != own.setting, "no file: its space is not the usual one"


# Steps and the interval of evaluations, by hand from the papers and DomainBed's repository.
@pytest.mark.parametrize(
    ("name", "dataset", "steps", "every"),
    [
        ("domainbed", "RotatedMNIST", 10_000, 100),
        ("domainbed", "PACS", 4000, 300),
        ("domainbed", "DomainNet", 5001, 1000),
        ("domainbed-head", "ColoredMNIST", 5001, 100),
        ("domainbed-head", "SVIRO", 5001, 300),
        ("domainbed-head", "FMoW", 5001, 100),
        ("domainbed-head", "Camelyon17", 5001, 100),
        ("domainbed-head", "SpawriousM2M_hard", 5001, 100),
        ("domainbed-head", "DomainNet", 5001, 1000),
        ("ood-bench", "ColoredMNIST-OoD-Bench", 5001, 500),
        ("ood-bench", "CelebA", 2001, 200),
        ("ood-bench", "NICO", 5001, 200),
        ("ood-bench", "Camelyon17", 5001, 1000),
        ("domainbed-v2", "PACS", 5000, 300),
        ("domainbed-v2-vit", "NICO++-public", 10_000, 600),
        ("domainbed-v2-supervised", "DomainNet", 15_000, 1000),
        ("domainbed-v2-scratch", "DomainNet", 60_000, 3000),
    ],
)
def test_steps_and_evaluations_are_those_of_the_papers(name, dataset, steps, every):
    how = recipe(name, dataset)
    assert (how.steps, how.evaluate_every) == (steps, every)


@pytest.mark.parametrize("every", [1, 2, 3, 6, 7, 20])
@pytest.mark.parametrize("first", [False, True])
def test_evaluations_are_counted_as_they_come(every, first):
    how = recipe("quick", "ColoredDigits", steps=7, evaluate_every=every, evaluate_first=first)
    due = [step for step in range(1, 8) if how.is_due(step)]
    assert how.evaluations == len(due) and due[-1] == 7 and (1 in due) == (first or every == 1)


def test_who_trains_by_domainbed_s_loop_evaluates_after_the_first_update():
    looking = {name for name in recipe_names() if recipe(name, "PACS").evaluate_first}
    assert looking == {
        *("domainbed", "domainbed-head", "ood-bench", "cifar-10-w"),
        *("domainbed-v2", "domainbed-v2-vit", "domainbed-v2-supervised", "domainbed-v2-scratch"),
    }


def test_a_field_that_no_recipe_has_is_one_plain_sentence():
    with pytest.raises(ShiftbedError, match="'quick' for PACS has 'stepz', which is no field there"):
        recipe("quick", "PACS", stepz=3)


def test_spawrious_is_not_cropped_by_domainbed_s_repository():
    cropped, whole = (recipe("domainbed-head", name).augmentation for name in ("PACS", "SpawriousO2O_easy"))
    assert cropped.scale == (0.7, 1.0) and whole == cropped.model_copy(update={"scale": None})


FACTS = [  # recipe, dataset, what its paper or its code says of it
    ("domainbed", "PACS", {"network": "resnet50", "batch_norm": "frozen-statistics", "holdout": 0.2}),
    ("domainbed", "RotatedMNIST", {"network": "mnist-convnet", "augmentation": {}, "initial_weights": None}),
    ("domainbed-head", "PACS", {"batch_norm": "trained", "augment_validation": True, "holdout": 0.2}),
    ("ood-bench", "ColoredMNIST-OoD-Bench", {"network": "mlp-390", "holdout": 0.1, "initial_weights": None}),
    ("ood-bench", "PACS", {"network": "resnet18", "batch_norm": "trained", "fixed": {"lr": 3e-5}}),
    ("ood-bench", "NICO", {"initial_weights": None, "fixed": {}}),
    ("nico", "NICO++", {"optimizer": "sgd", "schedule": "drop", "drop_at": 0.5, "initial_weights": "resnet50.tv_in1k"}),
    ("nico-scratch", "NICO++", {"optimizer": "sgd", "schedule": "cosine", "initial_weights": None}),
    ("domainbed-v2", "PACS", {"initial_weights": "moco-v2", "batch_norm": "frozen-statistics", "schedule": "cosine"}),
    ("domainbed-v2-vit", "PACS", {"network": "vit_base_patch16_224", "initial_weights": "moco-v3"}),
    ("domainbed-v2-supervised", "PACS", {"network": "resnet50", "initial_weights": "resnet50.tv_in1k"}),
    ("domainbed-v2-scratch", "PACS", {"initial_weights": None, "batch_norm": "trained", "schedule": "cosine"}),
    ("cifar-10-w", "CIFAR-10-W", {"network": "resnet18", "fixed": {"lr": 5e-5, "batch_size": 32}}),
]


@pytest.mark.parametrize(("name", "dataset", "facts"), FACTS)
def test_recipes_train_as_their_papers_say(name, dataset, facts):
    made = recipe(name, dataset).model_dump()
    shown = {field: made[field] for field in facts}
    if "augmentation" in facts:
        shown["augmentation"] = recipe(name, dataset).augmentation.model_dump(exclude_defaults=True)
    assert shown == facts


def test_rates_of_nico_are_those_of_its_paper():
    assert recipe("nico", "NICO++").fixed == {"lr": 2e-3, "weight_decay": 1e-3, "batch_size": 32, "resnet_dropout": 0.0}
    scratch = recipe("nico-scratch", "NICO++").fixed
    assert (scratch["lr"], scratch["weight_decay"], scratch["batch_size"]) == (2e-2, 1e-4, 32)


@pytest.mark.parametrize(
    ("name", "dataset", "crop", "jitter", "grey"),
    [
        ("domainbed", "PACS", (0.7, 1.0), (0.3, 0.3, 0.3, 0.3), 0.1),
        ("ood-bench", "PACS", (0.8, 1.0), (0.4, 0.4, 0.4, 0.4), 0.1),
        ("ood-bench", "CelebA", (0.7, 1.0), (0.3, 0.3, 0.3, 0.0), 0.0),
        ("nico", "NICO++", (0.8, 1.0), (0.0, 0.0, 0.0, 0.0), 0.3),
    ],
)
def test_images_are_changed_as_the_papers_say(name, dataset, crop, jitter, grey):
    made = recipe(name, dataset).augmentation
    assert (tuple(made.scale), tuple(made.jitter), made.grayscale) == (crop, jitter, grey)


def test_a_recipe_of_ones_own_says_what_is_different(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("include: domainbed\nnetwork: resnet18\ninitial_weights: null\nfixed: {lr: 0.001}\n")
    own, usual = recipe(str(file), "PACS"), recipe("domainbed", "PACS")
    changed = {"name": "mine", "summary": "your own", "paper": "", "network": "resnet18", "initial_weights": None}
    assert own.model_dump() == usual.model_dump() | changed | {"fixed": {"lr": 0.001}}
    assert recipe(str(file), "ColoredMNIST").network == "resnet18", "it stands above what is included for a size"
    file.write_text("include: quick\nsmall: {steps: 30}\ndatasets: {RotatedDigits: {steps: 40}}\n")
    assert [recipe(str(file), name).steps for name in ("ColoredDigits", "RotatedDigits", "PACS")] == [30, 40, 200]
    file.write_text("include: domainbed-head\naugmentation: nico\n")  # over a table, which Spawrious has there
    assert recipe(str(file), "SpawriousO2O_easy").augmentation == recipe("nico", "PACS").augmentation


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("mine.yaml", None, "cannot be read"),
        ("mine.yaml", "a: [", "not YAML"),
        ("mine.yaml", "quick", "not a table of fields"),
        ("mine.yaml", "include: quikc", "mine.yaml includes 'quikc'.*Did you mean quick"),
        ("mine.yaml", "include: [quick]", "mine.yaml has a wrong 'include'"),
        ("mine.yaml", "include: quick\nlarge: 5", "mine.yaml has a wrong 'large'"),
        ("mine.yaml", "include: quick\ndatasets: {PACS: }", "mine.yaml has a wrong 'datasets.PACS'"),
        ("mine.yaml", "1: 2", "mine.yaml has a wrong '1'"),
        ("mine.yaml", b"summary: caf\xe9", "mine.yaml is not a text file in UTF-8; save it as UTF-8"),
        ("mine.yaml", "include: quick\nimage_size: -3", "has a wrong 'image_size'"),
        (
            "mine.yaml",
            "include: quick\nnetwrk: small",
            "has 'netwrk', which is no field there; remove it. Did you mean network",
        ),
        ("quick.yaml", "include: quick\nsteps: 3", "There is a recipe 'quick' already"),
    ],
)
def test_a_file_that_is_no_recipe_says_why(tmp_path, name, text, why):
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ShiftbedError, match=why):
        recipe(str(file), "")


def test_numbers_of_ones_own_are_numbers_as_people_write_them(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("include: quick\nfixed: {lr: 5e-5, weight_decay: 1.E-4}\n")  # for YAML words
    assert recipe(str(file), "PACS").fixed | {"lr": 5e-5, "weight_decay": 1e-4} == recipe(str(file), "PACS").fixed


def test_a_whole_number_may_be_written_with_a_point(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("include: quick\nsteps: 2\nfixed: {batch_size: 4.0, frozen_stages: 1.0, lr: 1}\n")
    job = make_job("ColoredDigits", "FrozenStages", LeaveOut(("-90%",)), recipe(str(file), "ColoredDigits"))
    assert [job.hparams[name] for name in ("batch_size", "frozen_stages", "lr")] == [4, 1, 1]
    assert type(job.hparams["frozen_stages"]) is int
    assert Trainer(job).advance()["loss"] > 0


@pytest.mark.parametrize(
    ("fixed", "why"),
    [("lrr: 1", "'mine' fixes 'lrr', .* Did you mean lr"), ("lr: fast", "lr must be a number of at least 0")],
)
def test_what_a_recipe_of_ones_own_fixes_is_checked_before_anything_is_trained(tmp_path, fixed, why):
    file = tmp_path / "mine.yaml"
    file.write_text(f"include: quick\nfixed: {{{fixed}}}\n")
    with pytest.raises(HparamError, match=why):
        plan(Request("ColoredDigits", "ERM", recipe=str(file)))
    with pytest.raises(HparamError, match=why):
        train("ColoredDigits", "ERM", "-90%", tmp_path / "out", recipe=str(file))
    assert not (tmp_path / "out").exists()
