"""What is said where no line can be fitted, and when nobody is told to rely on a prediction."""

from dataclasses import replace

import numpy as np
import pytest

from shiftbed.accuracy.methods import METHODS
from shiftbed.accuracy.nearness import Surroundings
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.predict import predict_accuracy
from shiftbed.accuracy.summary import FittedPredictor, summarise
from shiftbed.accuracy.sweep import summary
from shiftbed.errors import DataError


def brightness(images):
    """A model by hand: two logits, by how bright an image is."""
    values = np.asarray(images).reshape(len(images), -1).mean(axis=1) - 127
    return np.stack([-values, values], axis=1)


def constant(images):
    return np.tile([0.0, 1.0], (len(images), 1))


@pytest.fixture
def given():
    """Labelled images, right for `brightness`, labelled domains of such, and images to ask about."""
    random = np.random.default_rng(0)

    def some(count):
        images = random.integers(0, 256, (count, 8, 8, 2), dtype=np.uint8)
        return images, brightness(images).argmax(axis=1)

    return {"images": some(50)[0], "source": some(80), "domains": {str(place): some(60) for place in range(5)}}


def test_a_source_without_an_error_is_no_error(given):
    made = predict_accuracy(brightness, **given)
    assert made.level is None and made.method == "doc" and made.estimates == ()
    assert made.accuracy == made.direct["doc"]
    assert (made.low, made.high) == (min(made.direct.values()), max(made.direct.values()))
    for words in ("All 5 labelled domains have the same score 1", "is no interval", "another --method (average-conf"):
        assert words in made.trust
    assert "doc stands for atc-mc" in made.trust
    assert "right on all 80 source images, so that no temperature can be fitted" in made.trust
    assert made.direct["average-confidence"] < 0.99999, "a temperature near 0 makes everything sure"


def test_a_source_without_an_error_gives_no_threshold_either_where_nothing_can_be_fitted(given):
    made = predict_accuracy(
        brightness, given["images"], source=given["source"]
    )  # two channels: no corruption takes them
    assert made.domains == 0 and made.method == "doc" and made.direct["atc-mc"] == 1
    assert "cannot be corrupted" in made.trust and "no temperature can be fitted" in made.trust


def test_a_source_where_nothing_is_right_is_no_error(given):
    made = predict_accuracy(lambda images: -brightness(images), **given)
    assert made.level is None and 0 <= made.low <= made.accuracy <= made.high <= 1
    assert "have the same score 0" in made.trust and "no temperature" not in made.trust


def test_a_method_that_was_named_is_refused_where_it_tells_nothing(given):
    with pytest.raises(DataError, match=r"atc-mc cannot be used. All 5 .* another --method \(average-conf"):
        predict_accuracy(brightness, **given, method="atc-mc")
    made = predict_accuracy(brightness, **given, method="doc")
    assert made.level == 0.9 and "no temperature can be fitted" in made.trust


def test_a_constant_model_has_the_source_s_accuracy(given):
    made = predict_accuracy(constant, **given)
    right = given["source"][1].mean()
    assert made.accuracy == pytest.approx(right) == made.source_accuracy
    assert made.level is None and "answers the same for all images" in made.trust
    assert f"On the source it is {right:.1%}" in made.trust
    with pytest.raises(DataError, match="To go on, fit on other domains"):
        predict_accuracy(constant, **given, method="cot")


def test_too_few_labelled_domains_leave_the_direct_estimates(given):
    few = {name: given["domains"][name] for name in "01"}
    images, labels = given["source"]
    given["source"] = images, np.where(np.arange(80) < 20, 1 - labels, labels)
    made = predict_accuracy(brightness, **{**given, "domains": few})
    assert (made.level, made.method, made.domains) == (None, "atc-mc", 2)
    assert "needs 3 labelled domains, not 2" in made.trust and "give labelled domains of other sites" in made.trust


def fitted_on(scores, images=200, level=0.9):
    """A model that is as sure as it is right, on domains of so many images: sure of so large a share."""
    random = np.random.default_rng(0)

    def domain(share, count, name):
        sure = np.arange(count) < share * count
        logits = np.stack([np.where(sure, 3.0, 0.2), np.zeros(count)], axis=1) + 0.01 * random.normal(size=(count, 2))
        labels = np.where(sure, 0, (random.random(count) < 0.5).astype(int))
        return Outputs(logits, None, labels, name=name)

    labelled = [(domain(share, images, f"at {share:.2f}"), str(place)) for place, share in enumerate(scores)]
    return FittedPredictor(domain(0.6, images, "source"), labelled, level), domain


def test_nobody_is_told_to_rely_on_what_is_extrapolated_or_says_nothing():
    fitted, domain = fitted_on(np.linspace(0.4, 0.8, 15))

    def trust(share, count, of=fitted, method="average-confidence"):
        return summarise(domain(share, count, "here"), of, METHODS[method], 0.9).trust

    assert trust(0.6, 200).endswith("rely on it.")
    beyond = trust(0.81, 200)
    assert "the line is extended beyond them" in beyond and "rely on it" not in beyond
    alike = [domain(share, 200, "labelled") for share in np.linspace(0.4, 0.8, 15)]
    few_groups = fitted_on(np.linspace(0.4, 0.8, 5))[0]
    assert "5 groups of labelled domains are too few for an interval at 90%" in trust(0.6, 200, few_groups)
    assert "rely on it" not in trust(0.6, 200, few_groups)
    by_turns = [
        Outputs(one.logits, None, np.full(200, place % 2)) for place, one in enumerate(alike)
    ]  # all right, or none
    nothing = trust(0.6, 200, FittedPredictor(alike[0], ((one, str(place)) for place, one in enumerate(by_turns))))
    assert "from 0 to 100 %" in nothing and "rely on it" not in nothing


def test_fewer_images_than_directions_cannot_be_relied_on():
    random = np.random.default_rng(0)

    def domain(count, moved=0.0, name="here"):
        features = random.normal(moved, 1, (count, 20))
        logits = np.stack([features.mean(axis=1), np.zeros(count)], axis=1)
        return Outputs(logits, features, (random.random(count) < 0.5 - moved).astype(int), name=name)

    labelled = [(domain(200, place / 50, str(place)), str(place)) for place in range(15)]
    fitted = FittedPredictor(domain(200), labelled)
    found = summarise(domain(12, 0.15), fitted, METHODS["average-confidence"], 0.9)
    assert "12 images are fewer than the 16 directions" in found.trust and "rely on it" not in found.trust
    assert "directions" not in summarise(domain(50, 0.15), fitted, METHODS["average-confidence"], 0.9).trust


def test_new_images_like_the_source_are_not_at_the_edge_of_its_corruptions():
    """Corruptions show the same images, and lie nearer to each other than new images do to any of them."""
    shares = {False: [], True: []}
    for seed in range(10):
        random = np.random.default_rng(seed)
        images, new = random.normal(size=(2, 120, 8))
        around = {shared: Surroundings(Outputs(np.zeros((120, 2)), images), shared) for shared in shares}
        for place in range(12):  # small corruptions of the same images
            features = images + 0.03 * place * random.normal(size=images.shape)
            for one in around.values():
                one.add(Outputs(np.zeros((120, 2)), features, name=str(place)), str(place))
        for shared, one in around.items():
            shares[shared].append(one.locate(Outputs(np.zeros((120, 2)), new)))
    assert np.mean([one.share for one in shares[False]]) < 0.1
    assert np.mean([one.share for one in shares[True]]) > 0.35
    assert sum("rely on it." in one.words() for one in shares[True]) >= 7
    far = around[True].locate(Outputs(np.zeros((120, 2)), new + 3))
    assert "do not rely on the interval" in far.words()


def test_a_summary_says_once_why_there_is_no_interval_and_what_is_farthest():
    def row(domain, level, low, high, trust):
        return {"algorithm": "ERM", "domain": domain, "accuracy": 0.5, "low": low, "high": high, "true": 0.5} | {
            "level": level,
            "trust": trust,
        }

    rows = [
        row("a", None, 0.6, 0.9, "It answers the same everywhere."),
        row("b", None, 0.1, 0.9, "It answers the same everywhere."),
        row("c", 0.9, 0.51, 0.6, "near"),
        row("d", 0.9, 0.1, 0.2, "far"),
        row("e", 0.9, 0.4, 0.6, "fine"),
    ]
    lines = [*summary(rows)][len(rows) + 1 :]
    assert lines == [
        "No interval for ERM on a, ERM on b: It answers the same everywhere.",
        "Of ERM on d, farthest outside, it said: far",
    ]
    assert not any("farthest" in line for line in summary(rows[-1:]))


def test_a_method_that_errs_no_less_than_the_mean_of_the_labelled_domains_is_not_relied_on():
    random = np.random.default_rng(0)

    def domain(right, name):  # how sure the model is says nothing of how often it is right
        logits = np.stack([random.normal(random.normal(1, 0.2), 0.5, 300), np.zeros(300)], axis=1)
        predictions = logits.argmax(axis=1)
        wrong = random.random(300) > right
        return Outputs(logits, None, np.where(wrong, 1 - predictions, predictions), name=name)

    shares = random.uniform(0.4, 0.8, 15)
    given = FittedPredictor(domain(0.6, "source"), [(domain(share, str(n)), str(n)) for n, share in enumerate(shares)])
    here = replace(domain(0.5, "here"), labels=None)
    errors = {name: float(np.abs(one.errors).mean()) for name, one in given.predictors.items()}
    worst, best = (which(errors, key=errors.get) for which in (max, min))
    assert errors[best] < given.baseline <= errors[worst]
    made = summarise(here, given, METHODS[worst], 0.9)
    assert f"always predicting their mean by {given.baseline:.1%}: on them its score tells nothing." in made.trust
    assert "rely on it" not in made.trust
    assert "its score tells nothing" not in summarise(here, given, METHODS[best], 0.9).trust
