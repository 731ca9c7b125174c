"""Recipes: what the papers say, dataset by dataset."""

import pytest

from shiftbed.data import DATASETS
from shiftbed.training.recipes import _recipe_file, recipe, recipe_names


def test_recipes_name_datasets_that_exist():
    assert {name for one in recipe_names() for name in _recipe_file(one).get("datasets", {})} <= set(DATASETS)


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


def test_spawrious_is_not_cropped_by_domainbed_s_repository():
    cropped, whole = (recipe("domainbed-head", name).augmentation for name in ("PACS", "SpawriousO2O_easy"))
    assert cropped.scale == (0.7, 1.0) and whole == cropped.model_copy(update={"scale": None})
