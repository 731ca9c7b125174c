import colorsys
from functools import lru_cache
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from shiftbed.data import load
from shiftbed.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from shiftbed.data.corruptions.base import CHUNK, Draws
from shiftbed.data.corruptions.pixels import motion_blur_along
from shiftbed.errors import DataError, UnknownNameError

NAMES = list(CORRUPTIONS)
STANDARD = {
    "noise": {"gaussian_noise", "shot_noise", "impulse_noise"},
    "blur": {"defocus_blur", "glass_blur", "motion_blur", "zoom_blur"},
    "weather": {"snow", "frost", "fog", "brightness"},
    "digital": {"contrast", "elastic_transform", "pixelate", "jpeg_compression"},
    "extra": {"speckle_noise", "gaussian_blur", "spatter", "saturate"},
}
# Their published parameters do not take the image further away at every step; the tests below say what grows instead.
NOT_MONOTONE = {"glass_blur", "motion_blur", "frost", "elastic_transform", "saturate"}
KEEP_A_CONSTANT = (
    *("defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("contrast", "elastic_transform", "pixelate", "pinch_and_twirl", "transverse_chromatic_abberation"),
)


@lru_cache
def pictures() -> np.ndarray:
    """Emoji of several styles at 32 pixels, and smooth fields and gradients that fill the range of values."""
    emoji = np.concatenate([load("EmojiStyles")[style].inputs[::50] for style in ("noto", "twemoji", "fluent-flat")])
    emoji = emoji.reshape(-1, 32, 2, 32, 2, 3).mean(axis=(2, 4))
    fields = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(24, 32, 32, 3)), (0, 3, 3, 0.5))
    fields = np.clip(127.5 + 60 * fields / fields.std(), 0, 255)
    rows, columns = np.mgrid[:32, :32] * 255 / 31
    gradients = np.stack([np.stack([rows, columns, 255 - rows], -1), np.stack([columns, rows, columns], -1)])
    return np.concatenate([emoji, fields, gradients]).astype(np.uint8)


def constant(value: int, count: int = 2, size: int = 32) -> np.ndarray:
    return np.full((count, size, size, 3), value, np.uint8)


def distance(corrupted: np.ndarray, clean: np.ndarray) -> float:
    return float(np.mean((corrupted.astype(float) - clean.astype(float)) ** 2))


def at_every_severity(name: str, images: np.ndarray) -> list[np.ndarray]:
    return [corrupt(images, name, severity) for severity in SEVERITIES]


def grows(values: list[float]) -> bool:
    return bool(np.all(np.diff(values) > 0))


def draws(count: int) -> Draws:
    return Draws(0, range(count))


def function_of(name: str):
    return CORRUPTIONS[name].function


# All of them


def test_the_corruptions_are_those_of_cifar_10_c_and_c_bar():
    families = {family: {name for name in NAMES if CORRUPTIONS[name].family == family} for family in STANDARD}
    assert families == STANDARD
    assert len(NAMES) == 19 + 10
    assert sum(CORRUPTIONS[name].family == "bar" for name in NAMES) == 10


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_form_is_kept_and_the_same_call_gives_the_same(name, severity):
    images = pictures()[:6]
    before = images.copy()
    corrupted = corrupt(images, name, severity)
    assert corrupted.dtype == np.uint8
    assert corrupted.shape == images.shape
    assert np.array_equal(images, before), "the clean images stay as they are"
    assert np.array_equal(corrupted, corrupt(images, name, severity))
    assert not np.array_equal(corrupted, images)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_does_not_depend_on_the_others(name):
    images = np.resize(pictures(), (CHUNK + 5, 32, 32, 3))
    corrupted = corrupt(images, name, 3)
    assert np.array_equal(corrupt(images[:3], name, 3), corrupted[:3])
    assert np.array_equal(corrupt(images[: CHUNK + 1], name, 3), corrupted[: CHUNK + 1])
    others = images.copy()
    others[:-1] = images[-1]
    assert np.array_equal(corrupt(others, name, 3)[-1], corrupted[-1])


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_and_another_position_give_other_draws(name):
    images = np.repeat(pictures()[-1:], 8, axis=0)
    first = corrupt(images, name, 4, seed=0)
    assert np.array_equal(first, corrupt(images, name, 4, seed=1)) != CORRUPTIONS[name].random
    assert bool(np.all(first == first[0])) != CORRUPTIONS[name].random


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(2, 8, 8, 1), (2, 28, 28, 1), (2, 45, 30, 3), (1, 64, 64, 3), (0, 32, 32, 3)])
def test_other_sizes_and_grey_images(name, shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    for severity in (2, 5):
        corrupted = corrupt(images, name, severity)
        assert corrupted.shape == shape
        assert corrupted.dtype == np.uint8


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_MONOTONE))
def test_higher_severities_are_further_from_the_clean_image(name):
    assert grows([distance(corrupted, pictures()) for corrupted in at_every_severity(name, pictures())])


@pytest.mark.parametrize("name", KEEP_A_CONSTANT)
@pytest.mark.parametrize("value", [0, 77, 255])
def test_a_constant_image_stays_what_it_is(name, value):
    for corrupted in at_every_severity(name, constant(value)):
        assert np.array_equal(corrupted, constant(value))


def test_memory_layout_does_not_matter():
    images = pictures()[:4]
    for name in ("contrast", "gaussian_noise", "fog"):
        assert np.array_equal(corrupt(np.asfortranarray(images), name, 3), corrupt(images, name, 3))


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 32, 32, 3)),
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((2, 32, 32, 2), np.uint8),
        np.zeros((2, 0, 32, 3), np.uint8),
        [[0]],
    ],
)
def test_what_is_no_array_of_images_is_refused(images):
    with pytest.raises(DataError, match=r"Images to corrupt must .*\.$"):
        corrupt(images, "fog", 1)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, True, None])
def test_other_severities_are_refused(severity):
    with pytest.raises(DataError, match="from 1 to 5"):
        corrupt(pictures()[:1], "fog", severity)


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean gaussian_"):
        corrupt(pictures()[:1], "gaussian_nose", 1)


# The noises, against their closed forms


@pytest.mark.parametrize(("severity", "sigma"), list(zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True)))
def test_gaussian_noise_has_its_standard_deviation(severity, sigma):
    clean = np.full((40, 32, 32, 3), 0.5, np.float32)
    noise = function_of("gaussian_noise")(clean, severity, draws(40)) - clean
    assert noise.std() == pytest.approx(sigma, rel=0.01)
    assert abs(noise.mean()) < 0.001


@pytest.mark.parametrize(("severity", "rate"), list(zip(SEVERITIES, (500, 250, 100, 75, 50), strict=True)))
def test_shot_noise_has_the_variance_of_photons(severity, rate):
    for value in (0.1, 0.6):
        noisy = function_of("shot_noise")(np.full((40, 32, 32, 3), value, np.float32), severity, draws(40))
        assert noisy.mean() == pytest.approx(value, rel=0.01)
        assert noisy.var() == pytest.approx(value / rate, rel=0.02)


@pytest.mark.parametrize(("severity", "share"), list(zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True)))
def test_impulse_noise_hits_its_share_half_black_half_white(severity, share):
    noisy = corrupt(constant(100, 40), "impulse_noise", severity)
    assert set(np.unique(noisy)) == {0, 100, 255}
    spread = 4 * np.sqrt(share / 2 / noisy.size)
    assert abs((noisy == 0).mean() - share / 2) < spread
    assert abs((noisy == 255).mean() - share / 2) < spread


def test_speckle_noise_grows_with_brightness():
    dark, bright = (corrupt(constant(value, 40), "speckle_noise", 3).astype(float) for value in (50, 150))
    assert bright.std() / dark.std() == pytest.approx(3, rel=0.02)


# The blurs


@pytest.mark.parametrize(("severity", "sigma"), list(zip(SEVERITIES, (0.4, 0.6, 0.7, 0.8, 1), strict=True)))
def test_gaussian_blur_is_scipys_and_grows_with_the_image(severity, sigma):
    large = np.repeat(np.repeat(pictures()[:4], 2, axis=1), 2, axis=2)
    for images, scale in ((pictures(), 1), (large, 2)):
        expected = [ndimage.gaussian_filter(i / 255, (sigma * scale, sigma * scale, 0), mode="nearest") for i in images]
        assert np.abs(corrupt(images, "gaussian_blur", severity) - 255 * np.array(expected)).max() < 1.01


def test_defocus_blur_is_the_correlation_with_a_disk():
    spot = constant(0, 1)
    spot[0, 16, 16] = 255
    disk = corrupt(spot, "defocus_blur", 5)[0, 13:20, 13:20, 0].astype(float)
    assert np.all(np.abs(disk[2:5, 2:5] - 255 / 9) < 1), "radius 1.5 is nine pixels, hardly blurred"
    assert disk[0].max() == disk[-1].max() == disk[:, 0].max() == disk[:, -1].max() == 0


def test_motion_blur_is_a_line_of_half_a_gaussian():
    spot = np.zeros((2, 32, 32), np.float32)
    spot[:, 16, 20] = 1
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 1.5**2))
    across, down = motion_blur_along(spot, 6, 1.5, np.array([0.0, 90.0]))
    assert np.allclose(across[16, 20:7:-1], weights / weights.sum(), atol=1e-4)
    assert np.allclose(down[16:3:-1, 20], weights / weights.sum(), atol=1e-4)
    assert across.sum() == pytest.approx(1)


def test_motion_blur_goes_to_one_side_within_45_degrees():
    spot = np.zeros((50, 32, 32, 1), np.uint8)
    spot[:, 16, 16] = 255
    _, rows, columns, _ = np.nonzero(corrupt(spot, "motion_blur", 5))
    assert columns.max() == 16
    assert np.all(np.abs(rows - 16) <= 16 - columns)
    assert rows.min() < 16 < rows.max()


def test_motion_blur_grows_until_only_its_negligible_end_does():
    far = [distance(corrupted, pictures()) for corrupted in at_every_severity("motion_blur", pictures())]
    assert far[0] < far[1] < far[2] < far[4]
    assert far[3] == pytest.approx(far[2], rel=0.2), "severities 3 and 4 differ in a radius of three sigmas or more"


def test_zoom_blur_averages_with_scipys_zooms():
    image = pictures()[0] / 255
    zooms = np.arange(1, 1.16, 0.01)
    total = image.copy()
    for zoom in zooms:
        cut = int(np.ceil(32 / zoom))
        top = (32 - cut) // 2
        zoomed = ndimage.zoom(image[top : top + cut, top : top + cut], (zoom, zoom, 1), order=1)
        trim = (len(zoomed) - 32) // 2
        total += zoomed[trim : trim + 32, trim : trim + 32]
    expected = 255 * total / (len(zooms) + 1)
    assert np.abs(corrupt(pictures()[:1], "zoom_blur", 3)[0] - expected).max() < 1.01


def test_glass_blur_moves_pixels_by_one_and_more_with_each_round():
    names = np.arange(32 * 32).reshape(1, 32, 32, 1).astype(np.float32)
    moved = function_of("glass_blur")(names / 255, 1, draws(1)) * 255
    rows, columns = np.divmod(np.rint(moved[0, ..., 0]).astype(int), 32)
    down, across = np.mgrid[:32, :32] - np.stack([rows, columns])
    assert set(np.unique(down)) == set(np.unique(across)) == {0, 1}
    assert not down[:2].any(), "the first two rows and columns stay"
    assert not across[:, :2].any()
    far = [distance(corrupted, pictures()) for corrupted in at_every_severity("glass_blur", pictures())]
    assert far[1] < far[3], "one round or two, with the same blur"
    assert far[2] < far[4]


# The weather


def test_frost_hides_more_of_the_image_with_each_severity():
    clean = pictures()[-26:] // 2  # dark enough that little is cut off
    hidden = [1 - np.corrcoef(frozen.ravel(), clean.ravel())[0, 1] for frozen in at_every_severity("frost", clean)]
    assert grows(hidden)


def test_frost_and_fog_only_brighten_black():
    assert corrupt(constant(0), "frost", 5).max() > 60
    assert corrupt(constant(0), "fog", 5).max() == 0, "fog keeps the image's brightest value"
    assert np.all(corrupt(constant(200, 4), "fog", 5).max(axis=(1, 2, 3)) == 200)


def test_fog_is_between_the_image_and_the_image_with_a_whole_cloud():
    clean = pictures().astype(float)
    brightest = clean.max(axis=(1, 2, 3), keepdims=True)
    foggy = corrupt(pictures(), "fog", 4)
    least, most = (np.floor((clean + 255 * cloud) * brightest / (brightest + 255)) for cloud in (0, 1))
    assert np.all(foggy >= least - 1)
    assert np.all(foggy <= most + 1)


def test_snow_falls_alike_when_turned_around():
    snow = corrupt(constant(0, 8), "snow", 4)
    assert np.array_equal(snow, snow[:, ::-1, ::-1])
    assert snow.max() > 100


# Colours


@pytest.mark.parametrize(("severity", "added"), list(zip(SEVERITIES, (0.05, 0.1, 0.15, 0.2, 0.3), strict=True)))
def test_brightness_adds_to_the_value(severity, added):
    def brighter(hue, saturation, value):
        return hue, saturation, min(value + added, 1)

    check_with_colorsys("brightness", severity, brighter)


@pytest.mark.parametrize(
    ("severity", "factor", "added"), [(1, 0.3, 0), (2, 0.1, 0), (3, 1.5, 0), (4, 2, 0.1), (5, 2.5, 0.2)]
)
def test_saturate_changes_the_saturation(severity, factor, added):
    def changed(hue, saturation, value):
        return hue, min(saturation * factor + added, 1), value

    check_with_colorsys("saturate", severity, changed)


def check_with_colorsys(name, severity, change):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    pixels[0, 0, :4] = [[0, 0, 0], [255, 255, 255], [90, 90, 90], [255, 0, 0]]
    corrupted = corrupt(pixels, name, severity)
    for pixel, result in zip(pixels.reshape(-1, 3), corrupted.reshape(-1, 3), strict=True):
        expected = 255 * np.array(colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel / 255))))
        assert np.all(result <= expected + 0.01)
        assert np.all(result > expected - 1.01)


def test_saturate_acts_on_grey_images_as_on_three_equal_channels():
    grey = pictures()[:4, :, :, :1]
    assert np.array_equal(corrupt(grey, "saturate", 2), grey), "less colour changes no grey"
    as_colour = corrupt(np.repeat(grey, 3, axis=-1), "saturate", 5).astype(float).mean(axis=-1, keepdims=True)
    assert np.abs(corrupt(grey, "saturate", 5) - as_colour).max() <= 1


@pytest.mark.parametrize(("severity", "factor"), list(zip(SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True)))
def test_contrast_is_a_factor_around_the_channel_mean(severity, factor):
    clean = pictures().astype(float)
    means = clean.mean(axis=(1, 2), keepdims=True)
    expected = means + factor * (clean - means)
    difference = expected - corrupt(pictures(), "contrast", severity)
    assert difference.min() > -0.01
    assert difference.max() < 1.01


# Digital changes


@pytest.mark.parametrize(("severity", "quality"), list(zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True)))
def test_jpeg_is_pillows_at_that_quality(severity, quality):
    images = pictures()[::9]
    corrupted = corrupt(images, "jpeg_compression", severity)
    for image, result in zip(images, corrupted, strict=True):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        assert np.array_equal(result, np.asarray(Image.open(file)))


def test_pixelate_is_pillows_box_filter_there_and_back():
    image = Image.fromarray(pictures()[0])
    small = image.resize((24, 24), Image.Resampling.BOX)
    expected = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    assert np.array_equal(corrupt(pictures()[:1], "pixelate", 4)[0], expected)


def test_elastic_transform_bends_more_and_turns_less_with_each_severity():
    ramp = np.broadcast_to(np.linspace(0, 1, 64, dtype=np.float32)[:, None], (60, 64, 64, 1)).copy()
    bends, turns = [], []
    for severity in SEVERITIES:
        inner = function_of("elastic_transform")(ramp, severity, draws(60))[:, 16:-16, 16:-16, 0]
        bends.append(float(np.abs(np.diff(inner, n=2, axis=2)).mean()))
        turns.append(float(np.abs(inner.mean(axis=(1, 2)) - 0.5).mean()))
    assert grows(bends)
    assert grows(turns[::-1])


def test_spatter_is_water_then_mud():
    clean = constant(120, 8)
    for severity in (1, 2, 3):
        assert corrupt(clean, "spatter", severity).min() == 120, "water only brightens"
    for severity in (4, 5):
        muddy = corrupt(clean, "spatter", severity)
        assert muddy.max() <= 120, "mud only darkens"
        assert [63, 42, 20] in muddy.reshape(-1, 3).tolist()


# CIFAR-10-C-bar


def test_blue_noise_sample_keeps_or_blackens_scattered_pixels():
    sampled = corrupt(constant(200, 40), "blue_noise_sample", 5)[..., 0]
    black = sampled == 0
    assert set(np.unique(sampled)) == {0, 200}
    assert black.mean() == pytest.approx(0.107, abs=0.02), "the share of normal numbers below −1.24"
    touching = (black[:, 1:] & black[:, :-1]).mean() / black.mean() ** 2
    assert touching < 0.5, "blue noise keeps its points apart"


def test_brownish_noise_is_smooth_and_as_strong_as_its_level():
    clean = np.full((40, 32, 32, 3), 0.5, np.float32)
    noise = function_of("brownish_noise")(clean, 2, draws(40)) - clean
    assert np.allclose(noise.std(axis=(1, 2)), 4 * 6.4 / 255, rtol=1e-3)
    assert np.diff(noise, axis=1).std() < 0.5 * noise.std()


@pytest.mark.parametrize(("severity", "share"), list(zip(SEVERITIES, (0.1, 0.2, 0.3, 0.4, 0.5), strict=True)))
def test_checkerboard_cutout_covers_its_share_of_half_the_fields(severity, share):
    covered = corrupt(constant(0, 400, 16), "checkerboard_cutout", severity)
    assert set(np.unique(covered)) == {0, 128}
    assert (covered > 0).mean() == pytest.approx(share / 2, abs=0.02)


def test_circular_motion_blur_averages_scipys_rotations():
    image = pictures()[0].astype(np.float32) / 255
    shares = np.linspace(-1, 1, 21)
    weights = np.exp(-2 * shares**2)
    turned = [ndimage.rotate(image, share * 6.6, reshape=False) for share in shares]
    expected = 255 * np.clip(np.tensordot(weights / weights.sum(), turned, 1), 0, 1)
    assert np.abs(corrupt(pictures()[:1], "circular_motion_blur", 3)[0] - expected).max() < 1.01


def test_sparkles_whiten_and_inverse_sparkles_whiten_the_rest():
    for name in ("sparkles", "inverse_sparkles"):
        for corrupted in at_every_severity(name, constant(60, 8)):
            assert corrupted.min() >= 60
            assert corrupted.max() > 100


def test_ripple_and_pinch_move_pixels_by_little():
    names = np.broadcast_to(np.arange(64, dtype=np.float32)[:, None], (4, 64, 64, 1)).copy()
    for name, most in (("ripple", 0.0025 * 8 * 64), ("pinch_and_twirl", 64 // 3)):
        moved = np.abs(function_of(name)(names, 5, draws(4)) - names)[:, 4:-4, 4:-4]
        assert 0.5 < moved.max() < most + 0.01


def test_lines_are_grey_and_as_many_as_the_severity_says():
    drawn = [(corrupt(constant(0, 100), "lines", severity) > 64).mean() for severity in SEVERITIES]
    assert np.allclose(np.array(drawn[:3]) / drawn[0], [1, 3, 4], rtol=0.25)
    assert corrupt(constant(0, 100), "lines", 5).max() == 128


def test_chromatic_aberration_enlarges_two_channels_of_three():
    rows, columns = np.mgrid[:32, :32] - 15.5
    disk = np.repeat((np.hypot(rows, columns) < 6)[None, ..., None], 3, axis=-1).astype(np.uint8) * 255
    areas = np.sort(
        corrupt(disk, "transverse_chromatic_abberation", 5)[0].astype(float).sum(axis=(0, 1)) / disk[0].sum() * 3
    )
    assert np.allclose(areas, [1, 1.25**2, 1.5**2], rtol=0.08)
