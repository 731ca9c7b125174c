"""Which domains models are judged by, and which they must not be."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shiftbed.accuracy import domains
from shiftbed.accuracy.domains import (
    asked_about,
    corrupted,
    labelled_source,
    of_dataset,
    of_one_size,
    others_than,
    sampled,
    share_images,
    trained_on,
    unseen,
)
from shiftbed.accuracy.extraction import DomainImages
from shiftbed.accuracy.predict import predict_accuracy
from shiftbed.data import card
from shiftbed.data.dataset import Domain, FixedDomains, MultiDomainDataset
from shiftbed.data.prepare import prepare
from shiftbed.errors import DataError
from shiftbed.training.model import Model
from tests.algorithms.common import build

ROOT = Path(__file__).parents[2]
CLASSES = ("0", "1")
NAMES = ("fog-1", "fog-2", "site-1", "flickr", "to-train-on")


@pytest.fixture
def made(monkeypatch):
    """A dataset of five domains, one of which is there to train on."""
    about = card("RotatedDigits").model_copy(
        update={
            "name": "made",
            "classes": CLASSES,
            "domains": dict.fromkeys(NAMES, 40),
            "clusters": {"web": ("flickr",)},
            "splits": {"sources": FixedDomains(train=("to-train-on",))},
        }
    )
    random = np.random.default_rng(0)
    found = [
        Domain(name, random.integers(0, 256, (40, 8, 8, 3)).astype(np.uint8), random.integers(0, 2, 40))
        for name in NAMES
    ]
    data = MultiDomainDataset(about, tuple(found))
    monkeypatch.setattr(domains, "card", lambda name: about)
    monkeypatch.setattr(domains, "card_if_known", lambda name: about)
    monkeypatch.setattr(domains, "load", lambda name: data)
    return data


def test_severities_of_a_corruption_are_one_group_and_clusters_another(made):
    found = {one.name: one.group for one in of_dataset("made", CLASSES)}
    assert found == dict(zip(NAMES, ("fog", "fog", "site-1", "web", "to-train-on"), strict=True))


def test_images_are_not_copied(made):
    for mine, domain in zip(of_dataset("made", CLASSES), made.domains, strict=True):
        assert mine.images() is domain.inputs
    assert len({one.id for one in of_dataset("made", CLASSES)}) == len(NAMES)


def test_what_was_trained_on_or_is_there_for_it_is_not_judged_by(made):
    seen = {("made", "fog-1"), ("other", "fog-2")}
    assert [one.name for one in unseen("made", CLASSES, seen)] == ["fog-2", "site-1", "flickr"]
    assert [one.name for one in unseen("made/to-train-on", CLASSES)] == ["to-train-on"]
    with pytest.raises(DataError, match="Nothing is left of made/fog-1"):
        unseen("made/fog-1", CLASSES, seen)


def test_a_source_is_all_that_was_not_trained_on_as_one_array(made):
    source = labelled_source("made", CLASSES, {("made", name) for name in NAMES[2:]})
    assert np.array_equal(source.images(), np.concatenate([domain.inputs for domain in made.domains[:2]]))
    assert np.array_equal(source.labels, np.concatenate([domain.labels for domain in made.domains[:2]]))


def test_a_sample_is_always_the_same_and_keeps_labels_with_images():
    images = np.arange(600, dtype=np.uint8).reshape(-1, 1, 1, 1)
    source = DomainImages.of("source", images, np.arange(600, dtype=np.uint8))
    some = sampled(source, 30)
    assert np.array_equal(some.images().ravel(), some.labels) and len(some.labels) == 30
    assert sampled(source, 30).id == some.id
    assert sampled(some, 30) is some


def test_jobs_say_what_they_were_trained_on(tmp_path):
    splits = [{"domain": "a", "role": "train"}, {"domain": "a", "role": "validation"}, {"domain": "b", "role": "test"}]
    (tmp_path / "job.json").write_text(json.dumps({"dataset": "made", "splits": splits}))
    assert trained_on([tmp_path, tmp_path / "says-nothing"]) == {("made", "a")}


def test_the_labels_of_the_domain_that_is_asked_about_are_not_fitted_on():
    random = np.random.default_rng(0)

    def model(images):
        return 3 * images.mean(axis=(1, 2)) / 255

    def some(noise):
        labels = random.integers(0, 2, 60)
        values = random.normal(100, noise, (60, 4, 4, 2)) + 30 * np.eye(2)[labels][:, None, None]
        return values.clip(0, 255).astype(np.uint8), labels

    labelled = {str(noise): some(noise) for noise in range(60, 240, 15)}
    made = predict_accuracy(model, labelled["90"][0], source=some(50), domains=labelled)
    assert made.domains == len(labelled) - 1


def test_the_source_itself_is_not_fitted_on_where_it_is_asked_about():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 40)
    shade = (90 + 60 * labels)[:, None, None, None] + random.normal(0, 40, (40, 16, 16, 3))
    source = shade.clip(0, 255).astype(np.uint8), labels

    def model(images):
        brightness = images.mean(axis=(1, 2, 3)) / 255 - 0.47
        return 10 * np.stack([-brightness, brightness], 1)

    others = predict_accuracy(model, random.permutation(source[0])[:30] // 2, source=source)
    assert predict_accuracy(model, source[0], source=source).domains == others.domains - 1


@pytest.fixture
def my_images(tmp_path, monkeypatch):
    """Own images of five sites in the working directory, prepared, and a model of their classes."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for site, brightness in zip("abcde", range(20, 120, 20), strict=True):
        for number, kind in enumerate("012"):
            for place in range(6):
                path = Path("my-images", f"site-{site}", kind, f"{place}.png")
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = random.normal(brightness + 30 * number, 15, (8, 8, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(path)
    prepare("my-images")
    about = {"input_shape": (3, 8, 8), "preprocessing": {"augmentation": {}}}
    return Model(build("ERM", shape=(3, 8, 8), dtype=torch.float32), tuple("012"), about)


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ("my-images/site-c", 4),
        ("./my-images/site-c/", 4),
        ("{here}/my-images/site-c", 4),
        ("linked", 4),
        ("my-images/site-c/0", 4),
        ("copied", 4),
        ("other-images", 5),
    ],
)
def test_a_labelled_folder_that_is_asked_about_is_not_fitted_on(my_images, tmp_path, asked, left):
    (tmp_path / "linked").symlink_to(tmp_path / "my-images" / "site-c")
    shutil.copytree("my-images/site-c", "copied")
    shutil.copytree("my-images/site-c/0", "other-images")
    for path in Path("other-images").iterdir():
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    random = np.random.default_rng(0)
    source = random.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8), random.integers(0, 2, 20)
    made = predict_accuracy(my_images, asked.format(here=tmp_path), source=source, domains="my-images")
    assert made.domains == left


def test_all_of_a_dataset_leaves_nothing_to_fit_on(my_images):
    source = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 2
    with pytest.raises(DataError, match="Nothing is left of my-images"):
        predict_accuracy(my_images, "my-images", source=source, domains="my-images")


def test_what_is_asked_about_goes_by_its_name(made):
    assert asked_about("made/fog-1") == {("made", "fog-1")}
    assert asked_about("made/unheard-of") == set()


def test_the_same_images_in_another_order_are_not_fitted_on():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3)).astype(np.uint8)
    target = DomainImages.of("target", images)
    labelled = [
        DomainImages.of(name, some, np.zeros(6, int)) for name, some in (("a", images[::-1]), ("b", 255 - images))
    ]
    assert [one.name for one in others_than(target, labelled)] == ["b"]


def test_corruptions_share_images_and_sites_do_not():
    def named(*names):
        return [DomainImages.of(name, np.zeros((2, 2, 2, 3), np.uint8)) for name in names]

    assert share_images(named("clean", "fog-1", "snow-5"))
    assert not share_images(named("fog", "snow")), "weather, not corruptions"
    assert not share_images(named("fog-1", "site-1"))


def test_the_page_says_what_the_study_found():
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    updated = runpy.run_path(str(ROOT / "scripts" / "accuracy_page.py"))["updated"]
    assert updated(page) == page, "run python scripts/accuracy_page.py"
    assert "| cot | 1.34 |" in page


def test_images_of_different_sizes_are_corrupted_at_the_size_that_the_network_takes():
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (side, 2 * side - 8, 3), dtype=np.uint8) for side in (8, 12, 16)]
    images.append(np.full((20, 20, 3), 77, np.uint8))
    source = DomainImages.of("mixed", images, np.arange(4) % 2)
    with pytest.raises(DataError, match="images of one size"):
        corrupted(source)
    about = {"input_shape": (3, 8, 8), "preprocessing": {"augmentation": {}}}
    model = Model(build("ERM", shape=(3, 8, 8)), CLASSES, about)
    whole = of_one_size(source, model)
    found = corrupted(whole, names=["brightness"], severities=[1])
    assert [one.images().shape for one in found] == [(4, 8, 8, 3)] * 2
    assert (whole.images()[0] == images[0]).all() and (whole.images()[3] == 77).all()
    assert whole.id != source.id and (found[0].labels == source.labels).all()
    same = DomainImages.of("same", np.stack([images[0]] * 2))
    assert of_one_size(same, model) is same
