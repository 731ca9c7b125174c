"""Samples: checked, in an order of their own, and divided without leaks."""

import numpy as np
import pytest

from shiftbed.errors import DataError
from shiftbed.shift.matching import matched
from shiftbed.shift.samples import comparable, sample, union

RANDOM = np.random.default_rng(0)


def test_a_sample_is_the_same_however_its_examples_were_stored():
    inputs, labels = RANDOM.normal(size=(50, 3)), np.arange(50) % 4
    order = RANDOM.permutation(50)
    one, other = sample("a", inputs, labels), sample("a", inputs[order], labels[order])
    assert (one.inputs == other.inputs).all() and (one.labels == other.labels).all()
    assert not (one.inputs == inputs).all()


def test_a_split_is_random_whole_and_the_same_for_the_same_seed():
    whole = sample("a", np.arange(100.0), np.arange(100))
    first, second = whole.split(0.3, seed=1)
    assert sorted([*first.labels, *second.labels]) == list(range(100)) and len(first) == 30
    assert (whole.split(0.3, seed=1)[0].labels == first.labels).all()
    assert set(whole.split(0.3, seed=2)[0].labels) != set(first.labels)


def test_a_group_is_whole_in_one_part_and_in_the_same_part_of_every_domain():
    groups = np.repeat(np.arange(40), 3)
    one = sample("a", RANDOM.normal(size=(120, 2)), groups=groups)
    other = sample("b", RANDOM.normal(size=(120, 2)), groups=groups)
    parts = [set(part.groups) for domain in (one, other) for part in domain.split(0.5, seed=3)]
    assert parts[0] == parts[2] and parts[1] == parts[3] and not parts[0] & parts[1]
    assert 10 < len(parts[0]) < 30


def test_one_group_cannot_be_divided():
    with pytest.raises(DataError, match="'a' are of 1 group, too few to hold some out"):
        sample("a", np.arange(30.0), groups=np.zeros(30, int)).split(0.5)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_two_groups_or_more_always_leave_some_on_either_side(share):
    """By chance alone all of ten groups would miss a fifth one time in nine."""
    for count in (2, 5, 10):
        groups = np.repeat(np.arange(count), 12)
        one, other = (sample(name, RANDOM.normal(size=(len(groups), 2)), groups=groups) for name in "ab")
        for seed in range(40):
            parts = [set(part.groups) for domain in (one, other) for part in domain.split(share, seed)]
            assert parts[0] and parts[1] and not parts[0] & parts[1] and parts[:2] == parts[2:]


def test_no_more_than_asked_are_drawn():
    whole = sample("a", np.arange(100.0))
    assert len(whole.at_most(30)) == 30 and whole.at_most(200) is whole
    assert (whole.at_most(30, 1).inputs != whole.at_most(30, 2).inputs).any()


def test_a_union_has_labels_only_if_all_its_parts_have():
    one, other = sample("a", np.arange(30.0), np.zeros(30, int)), sample("b", np.arange(40.0))
    assert len(union([one, other], "both")) == 70 and union([one, other], "both").labels is None
    assert union([one, one], "twice").labels is not None


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (np.where(np.eye(30) > 0, np.nan, 0), "30 of the 30 examples of 'a' are not finite .* position 0; remove"),
        ([np.zeros((2, 2))] * 20 + [np.zeros((3, 3))], "The examples of 'a' differ in size; bring them to one"),
    ],
)
def test_bad_inputs_are_one_sentence(inputs, sentence):
    with pytest.raises(DataError, match=sentence):
        sample("a", inputs)


def test_labels_must_be_as_many_as_examples():
    with pytest.raises(DataError, match="30 examples but 29 labels"):
        sample("a", np.zeros((30, 2)), np.zeros(29))


def test_sides_without_two_common_classes_cannot_be_compared():
    one = sample("a", np.arange(40.0), np.arange(40) % 2)
    for labels in (np.arange(40) % 2 + 5, np.zeros(40, int)):
        with pytest.raises(DataError, match="at least two classes must be in both"):
            comparable(one, sample("b", np.arange(40.0), labels))


def test_messages_and_notes_name_classes():
    names = ("cat", "dog", "owl")
    one = sample("a", np.arange(60.0), np.arange(60) % 3, class_names=names)
    two = union([sample("b", np.arange(40.0), np.arange(40) % 2, class_names=names)], "b")
    assert comparable(one, two)[2] == ("left out the class owl, which 'a' has and 'b' has not",)
    with pytest.raises(
        DataError, match=r"'a' has the class owl and 'b' has not; name .* --classes: the classes cat, dog"
    ):
        matched(one, two, 0)
    with pytest.raises(DataError, match="Of the class dog 'b' has 5 examples, and at least 10"):
        matched(two, two[(two.labels == 0) | (two.inputs[:, 0] < 10)], 0)


@pytest.mark.parametrize(("sizes", "side"), [([32, 32], (32, 32)), ([32, 48], (40, 30))])
def test_images_without_labels_join_own_folders_at_their_size_if_these_have_one(tmp_path, monkeypatch, sizes, side):
    from PIL import Image

    from shiftbed.data import load
    from shiftbed.data.prepare import prepare
    from shiftbed.shift.unlabelled import with_unlabelled

    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    for site, size in zip(("a", "b"), sizes, strict=True):
        for number in range(4):
            folder = tmp_path / "mine" / site / ("cat", "dog")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (size, size), (number, size, 0)).save(folder / f"{number}.png")
    (tmp_path / "next").mkdir()
    Image.new("RGB", (30, 40)).save(tmp_path / "next" / "0.png")
    prepare(str(tmp_path / "mine"))
    assert with_unlabelled(load("mine"), tmp_path / "next")["next"].inputs[0].shape == (*side, 3)


def test_images_without_labels_join_a_dataset_at_its_size(tmp_path):
    from PIL import Image

    from shiftbed.data import load
    from shiftbed.shift.features import samples_of
    from shiftbed.shift.unlabelled import with_unlabelled

    emoji = load("EmojiStyles")
    with pytest.raises(DataError, match=r"There is no folder \S+site; name a folder of images"):
        with_unlabelled(emoji, tmp_path / "site")
    (tmp_path / "site").mkdir()
    with pytest.raises(DataError, match=r"no images in .*; name a folder of images"):
        with_unlabelled(emoji, tmp_path / "site")
    for i in range(20):
        Image.new("RGB", (30, 40), (i, 0, 0)).save(tmp_path / "site" / f"{i}.png")
    joined = with_unlabelled(emoji, tmp_path / "site")
    one = samples_of(joined, ["site"])["site"]
    assert one.labels is None and one.inputs.shape == (20, 3, 64, 64)
    with pytest.raises(DataError, match="Nobody knows which images of 'site' are of these classes; name no classes"):
        samples_of(joined, ["site"], classes=emoji.card.classes[:2])
    assert [domain.name for domain in joined.domains] == [*(domain.name for domain in emoji.domains), "site"]
    (tmp_path / "site" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png is a damaged image"):
        with_unlabelled(emoji, tmp_path / "site")
    with pytest.raises(DataError, match="ColoredDigits are no colour images"):
        with_unlabelled(load("ColoredDigits"), tmp_path / "site")
