import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage
from sklearn.datasets import load_digits

from shiftbed.data import DATASETS, Domain, MultiDomainDataset, digits, load
from shiftbed.data.digits import shuffled_digits
from shiftbed.data.look import CELL, contact_sheet, montage
from shiftbed.data.mnist import ANGLES, CONSTRUCTION_SEED, DOMAINBED_FLIPS
from shiftbed.errors import DataError

GOLDEN_CONTENT = {
    "ColoredDigits": "3ec5003be5bbfd42",
    "EmojiStyles": "3539359fb0cec271",
    "RotatedDigits": "dadcb234556bff42",
}


@pytest.mark.parametrize("name", ["ColoredDigits", "EmojiStyles", "RotatedDigits"])
def test_a_dataset_is_what_its_card_says(name):
    dataset = load(name)
    channels, height, width = dataset.card.input_shape
    for domain in dataset.domains:
        assert domain.inputs.dtype == np.uint8
        assert domain.inputs.shape == (dataset.card.domains[domain.name], height, width, channels)
        assert domain.labels.dtype == np.int64
        assert set(domain.labels) <= set(range(len(dataset.card.classes)))
        assert len(set(domain.labels)) == len(dataset.card.classes)


@pytest.mark.parametrize("name", ["ColoredDigits", "RotatedDigits"])
def test_building_twice_gives_the_same(name):
    build = DATASETS[name].build
    for one, two in zip(build(), build(), strict=True):
        assert np.array_equal(one.inputs, two.inputs)
        assert np.array_equal(one.labels, two.labels)


@pytest.mark.parametrize(("name", "flip"), DOMAINBED_FLIPS.items())
def test_colours_agree_with_labels_as_often_as_they_should(name, flip):
    domain = load("ColoredDigits")[name]
    energy = domain.inputs.astype(int).sum(axis=(1, 2))
    assert (energy.min(axis=1) == 0).all(), "each image has one colour"
    disagree = (energy.argmax(axis=1) != domain.labels).mean()
    assert abs(disagree - flip) < 4 * np.sqrt(flip * (1 - flip) / len(domain))


def test_a_quarter_of_the_labels_of_coloured_digits_is_flipped():
    _, digits = shuffled_digits(np.random.Generator(np.random.PCG64(CONSTRUCTION_SEED)))
    flipped = np.concatenate(
        [domain.labels != (digits[i::3] < 5) for i, domain in enumerate(load("ColoredDigits").domains)]
    )
    assert abs(flipped.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(flipped))


def test_digits_are_scikit_learn_s_and_do_not_import_it(monkeypatch):
    read = digits._digits()
    assert np.array_equal(read, np.column_stack(load_digits(return_X_y=True)))
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    assert np.array_equal(digits._digits(), read), "of a version that keeps the file elsewhere"
    code = "import sys; from shiftbed.data import load; load('ColoredDigits'); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("name", "expected"), GOLDEN_CONTENT.items())
def test_the_content_of_a_version_never_changes(name, expected):
    parts = [domain.inputs.tobytes() + domain.labels.tobytes() for domain in load(name).domains]
    assert hashlib.sha256(b"".join(parts)).hexdigest()[:16] == expected, "raise the card's version"


def test_rotated_digits_turn_counter_clockwise():
    """Turning a domain back brings its class means nearer to the upright ones than turning it further."""
    upright, turned = (load("RotatedDigits")[name] for name in ("0", "30"))
    for digit in (4, 7):
        mean = upright.inputs[upright.labels == digit].mean(axis=0)[..., 0]
        other = turned.inputs[turned.labels == digit].mean(axis=0)[..., 0]
        # With the y axis down, a positive angle of the (1, 0) plane is counter-clockwise as seen.
        back, further = (ndimage.rotate(other, angle, axes=(1, 0), reshape=False, order=1) for angle in (-30, 30))
        assert np.abs(back - mean).sum() < np.abs(further - mean).sum()
    assert len(ANGLES) == 6


def test_emoji_share_their_identity_and_label_across_styles():
    styles = load("EmojiStyles").domains
    assert all(np.array_equal(style.labels, styles[0].labels) for style in styles)
    assert all(np.array_equal(style.groups, styles[0].groups) for style in styles)
    assert len({style.inputs.tobytes() for style in styles}) == len(styles)


def test_a_contact_sheet_is_a_png(tmp_path):
    sheet = contact_sheet(load("ColoredDigits"), tmp_path / "new" / "sheet.png")
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_a_montage_shows_every_class_of_every_domain():
    """Red, green and grey squares of two sizes; the second domain lacks a class."""
    red_or_green = np.zeros((2, 4, 4, 2), np.uint8)
    red_or_green[0, ..., 0] = red_or_green[1, ..., 1] = 200
    wide = np.full((1, 100, 300, 1), 50, np.uint8)
    sheet = montage((Domain("a", red_or_green, np.array([0, 1])), Domain("b", wide, np.array([1]))), 2)
    assert sheet.shape == (2 * CELL, 2 * CELL, 3)
    middle = CELL // 2
    assert sheet[middle, middle].tolist() == [200, 0, 0] and sheet[middle, CELL + middle].tolist() == [0, 200, 0]
    assert (sheet[CELL:, :CELL] == 255).all(), "what is not there is white"
    assert sheet[CELL + middle, CELL + middle].tolist() == [50] * 3
    assert (sheet[CELL + middle + 20, CELL + middle] == 255).all(), "a wide image stays wide"


@pytest.mark.filterwarnings("error")
def test_names_with_signs_in_them_are_drawn_as_they_are(tmp_path):
    dataset = load("ColoredDigits")
    odd = dataset.card.model_copy(update={"classes": ("$\\frac{$", "<b>größe</b> & \U0001f600"), "summary": "$x^$ %s"})
    domains = tuple(replace(domain, name=f"${domain.name}_{{$ \ue123") for domain in dataset.domains)
    assert contact_sheet(MultiDomainDataset(odd, domains), tmp_path / "sheet.png").exists()


def test_what_is_no_image_cannot_be_looked_at(tmp_path):
    tables = Domain("a", np.zeros((3, 5), np.float32), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="The examples of domain 'a' are not images"):
        contact_sheet(MultiDomainDataset(DATASETS["ColoredDigits"].card, (tables,)), tmp_path / "sheet.png")
    with pytest.raises(DataError, match="A contact sheet is a PNG file"):
        contact_sheet(load("ColoredDigits"), tmp_path / "sheet.jpg")


def test_cards_are_read_without_heavy_imports():
    """`shiftbed datasets` should answer at once: what builds a dataset is imported when it is built."""
    code = (
        "import sys\nfrom shiftbed.data import DATASETS, card\n[card(name) for name in DATASETS]\n"
        "heavy = {'torch', 'sklearn', 'scipy.ndimage', 'scipy.stats', 'scipy.spatial', 'matplotlib', 'duckdb'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
