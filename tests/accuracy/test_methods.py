"""The methods against values by hand, closed forms, calibrated models, and what must leave them unchanged."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, linear_sum_assignment, linprog
from scipy.spatial.distance import jensenshannon
from scipy.stats import linregress, norm
from threadpoolctl import threadpool_info, threadpool_limits

from shiftbed.accuracy.agreement import agreement_matrix, on_the_line
from shiftbed.accuracy.methods import METHODS
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.reference import Reference, threshold
from shiftbed.accuracy.summary import direct_estimates
from shiftbed.accuracy.transport import transported_probability
from shiftbed.errors import DataError

# Probabilities 0.95, 0.75, 0.6, 0.55 for the predicted class of two.
CONFIDENT = np.array([0.95, 0.75, 0.6, 0.55])
FOUR = np.log(np.stack([CONFIDENT, 1 - CONFIDENT], axis=1))
NOTHING_NEEDED = [name for name in METHODS if not METHODS[name].needs]
ALINE = {"aline-s", "aline-d"}  # they refuse pools in which no line can be seen
LOGITS_ONLY = [name for name in METHODS if not {"features", "pool"} & set(METHODS[name].needs)]


def source_of(confidences, right):
    """A two-class source: the predicted class is 0, and labels say where that is right."""
    confidences = np.asarray(confidences)
    logits = np.log(np.stack([confidences, 1 - confidences], axis=1))
    return Reference(Outputs(logits, labels=np.where(right, 0, 1)))


def score(name, domain, reference=None):
    return METHODS[name].score(domain, reference)


def test_confidence_methods_by_hand():
    domain = Outputs(FOUR)
    assert score("average-confidence", domain) == pytest.approx(0.7125)
    assert score("prediction-score-0.7", domain) == 0.5
    assert score("prediction-score-0.8", domain) == 0.25
    assert score("prediction-score-0.9", domain) == 0.25
    assert score("entropy", domain) == pytest.approx(
        np.mean([-(p * np.log(p) + (1 - p) * np.log(1 - p)) for p in CONFIDENT])
    )
    assert score("low-entropy", domain) == 0.25  # only 0.95 has an entropy below 0.3 ln 2 = 0.208: 0.1985


def test_a_probability_of_exactly_the_level_is_not_above_it():
    half = Outputs(np.array([[np.log(9.0), 0.0], [np.log(9.0), 0.0]]))  # 0.9
    level = float(half.confidence[0])
    assert (half.confidence > level).sum() == 0
    assert score("prediction-score-0.8", half) == 1


def test_atc_counts_what_is_at_least_as_confident_as_the_threshold():
    # One of five is wrong, so one lies below the threshold, which is the second lowest score, 0.7.
    reference = source_of([0.6, 0.7, 0.8, 0.9, 0.95], [False, True, True, True, True])
    assert reference.confidence_threshold == pytest.approx((0.7, 1))
    domain = Outputs(FOUR)
    assert score("atc-mc", domain, reference) == 0.5  # 0.95 and 0.75
    assert score("atc-ne", domain, reference) == 0.5  # with two classes entropy orders as confidence does
    assert score("atc-mc", reference.outputs, reference) == reference.accuracy == 0.8
    assert score("atc-ne", reference.outputs, reference) == 0.8


def test_atc_falls_when_the_model_is_less_sure():
    # A public implementation has it inverted: 0.90 becomes 0.96 where ATC gives 0.54.
    random = np.random.default_rng(0)
    sure, unsure = (random.uniform(low, 1, 4000) for low in (0.6, 0.5))
    reference = source_of(sure, random.random(4000) < 0.9)
    less = Outputs(np.log(np.stack([unsure, 1 - unsure], axis=1)))
    assert score("atc-mc", less, reference) < reference.accuracy - 0.05


def test_atc_thresholds_at_the_edges():
    scores = np.array([0.2, 0.5, 0.9])
    assert threshold(scores, np.ones(3, bool)).share_above(scores - 9) == 1
    assert threshold(scores, np.zeros(3, bool)).share_above(scores + 9) == 0


@pytest.mark.parametrize("name", ["atc-mc", "atc-ne"])
def test_atc_of_a_model_that_is_equally_sure_of_most_gives_the_source_its_accuracy_and_an_unsure_domain_less(name):
    logits = np.array([[0.0, 1.0]] + [[0.0, 1000.0]] * 9)  # two of ten are wrong, and nine have a confidence of 1
    reference = Reference(Outputs(logits, labels=np.r_[0, 0, np.ones(8, int)]))
    assert score(name, reference.outputs, reference) == pytest.approx(reference.accuracy) == pytest.approx(0.8)
    assert score(name, Outputs(logits[1:]), reference) == pytest.approx(8 / 9)
    assert score(name, Outputs(logits / 500), reference) == 0
    one_answer = Reference(Outputs(np.zeros((4, 2)), labels=np.array([0, 0, 0, 1])))
    assert score(name, one_answer.outputs, one_answer) == 0.75


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_atc_gives_the_source_its_accuracy_whatever_ties_and_never_falls_where_the_model_is_surer(seed):
    random = np.random.default_rng(seed)
    scores, domain = (random.integers(0, 4, count) / 4 for count in (20, 12))
    right = random.random(20) < random.random()
    found = threshold(scores, right)
    assert found.share_above(scores) == pytest.approx(right.mean())
    assert found.share_above(domain) <= found.share_above(domain + random.integers(0, 2, 12) / 4)


def test_doc_by_hand():
    reference = source_of([0.8, 0.9], [True, False])
    assert score("doc", Outputs(FOUR), reference) == pytest.approx(0.5 + 0.7125 - 0.85)
    assert score("doc", reference.outputs, reference) == 0.5


def one_hot(classes, counts):
    return Outputs(np.where(np.eye(classes)[np.repeat(np.arange(len(counts)), counts)] > 0, 0.0, -1e4))


@pytest.mark.parametrize(
    ("counts", "value"),
    [((50,) * 10, 1.0), ((50,) * 9, np.sqrt(0.9)), ((50,) * 8, np.sqrt(0.8)), ((500,), 1 / np.sqrt(10))],
)
def test_nuclear_norm_of_one_hot_predictions(counts, value):
    assert score("nuclear-norm", one_hot(10, counts)) == pytest.approx(value)


def test_nuclear_norm_of_uniform_predictions_and_against_singular_values():
    assert score("nuclear-norm", Outputs(np.zeros((30, 10)))) == pytest.approx(0.1)
    domain = Outputs(np.random.default_rng(0).normal(size=(40, 6)))
    expected = np.linalg.svd(domain.probabilities, compute_uv=False).sum() / np.sqrt(6 * 40)
    assert score("nuclear-norm", domain) == pytest.approx(expected)


def with_features(features, classes=3):
    return Outputs(np.zeros((len(features), classes)), np.asarray(features, float), np.zeros(len(features), int))


def test_frechet_distance_of_moved_and_stretched_features():
    random = np.random.default_rng(0)
    features = random.normal(size=(500, 4))
    reference = Reference(with_features(features))
    assert score("frechet-distance", with_features(features), reference) == pytest.approx(0, abs=1e-9)
    assert score("frechet-distance", with_features(features + np.array([3, 0, 0, 4])), reference) == pytest.approx(25)
    variances = np.trace(np.cov(features, rowvar=False))
    stretched = with_features(2 * (features - features.mean(0)) + features.mean(0))
    assert score("frechet-distance", stretched, reference) == pytest.approx(variances)  # (2 − 1)² tr Σ


def test_bag_of_prototypes_by_hand():
    # Two clusters; the source lies half and half, the domain in one of them.
    source = np.concatenate([np.zeros((2, 2)), np.full((2, 2), 9.0)]) + 0.01 * np.arange(4)[:, None]
    reference = Reference(with_features(source))
    assert len(reference.prototypes) == 2
    here = with_features(np.full((5, 2), 8.5))
    assert reference.bag(here.features).sum() == 1
    # Jensen-Shannon of (1, 0) and (½, ½): ½ ln(4/3) + ½ (½ ln(2/3) + ½ ln 2)
    expected = 0.5 * np.log(4 / 3) + 0.25 * (np.log(2 / 3) + np.log(2))
    assert score("bop-js", here, reference) == pytest.approx(expected)
    assert score("bop-js", with_features(source), reference) == 0
    far = Reference(with_features(np.concatenate([source, source + 100])))
    assert score("bop-js", with_features(source + 50), far) <= np.log(2)


def test_agreement_is_brute_force_s():
    random = np.random.default_rng(0)
    predictions = random.integers(0, 4, (5, 60)).astype(np.uint8)
    brute = np.array([[np.mean(a == b) for b in predictions] for a in predictions])
    assert np.array_equal(agreement_matrix(predictions), brute)
    domain = Outputs(np.eye(4)[predictions[0]], pool=predictions[1:])
    assert score("ms-aol", domain) == pytest.approx(brute[0, 1:].mean())


def test_agreement_on_the_line_gives_source_accuracies_where_the_target_is_the_source():
    random = np.random.default_rng(1)
    labels = random.integers(0, 5, 800)
    source = np.stack([np.where(random.random(800) < p, labels, random.integers(0, 5, 800)) for p in (0.5, 0.6, 0.8)])
    found = on_the_line(source, labels, source)
    accuracies = (source == labels).mean(axis=1)
    assert found.simple == pytest.approx(accuracies)
    assert found.paired == pytest.approx(accuracies)
    three = [Outputs(np.eye(5)[source[0]], labels=labels, pool=source[1:])] * 2
    for name in ALINE:
        assert score(name, three[0], Reference(three[1])) == pytest.approx(accuracies[0])


def test_agreement_on_the_line_moves_accuracies_as_agreements_moved():
    random = np.random.default_rng(2)
    labels = random.integers(0, 5, 800)
    source, target = (
        np.stack([np.where(random.random(800) < p - less, labels, random.integers(0, 5, 800)) for p in (0.5, 0.7, 0.9)])
        for less in (0, 0.2)
    )
    there, here = (
        [norm.ppf((some[i] == some[j]).mean()) for i, j in ((0, 1), (0, 2), (1, 2))] for some in (source, target)
    )
    line = linregress(there, here)
    accuracies = norm.ppf((source == labels).mean(axis=1))
    found = on_the_line(source, labels, target)
    assert found.simple == pytest.approx(norm.cdf(line.intercept + line.slope * accuracies))


def test_agreement_of_a_pool_costs_no_more_with_many_classes():
    random = np.random.default_rng(3)
    labels = random.integers(0, 345, 1000)
    share = np.linspace(0.5, 0.8, 20)[:, None]
    pool = np.where(random.random((20, 1000)) < share, labels, random.integers(0, 345, (20, 1000))).astype(np.uint16)
    outputs = Outputs(np.eye(345)[pool[0]], labels=labels, pool=pool[1:])
    source = Reference(outputs)
    tracemalloc.start()
    score("aline-s", outputs, source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 2**20  # the pool's predictions are 40 kB, its one-hot classes 28 MB


def test_the_line_of_a_pool_is_fitted_in_one_thread(monkeypatch):
    solve, threads = np.linalg.lstsq, set()

    def watched(*given, **named):
        threads.update(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return solve(*given, **named)

    monkeypatch.setattr(np.linalg, "lstsq", watched)
    random = np.random.default_rng(4)
    labels = random.integers(0, 5, 400)
    pool = np.stack([np.where(random.random(400) < p, labels, random.integers(0, 5, 400)) for p in (0.5, 0.6, 0.8)])
    with threadpool_limits(2):
        on_the_line(pool, labels, pool)
    assert threads == {1}


# --- COT --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharpness", [1, 4, 30])
@pytest.mark.parametrize("lean", [0, 1.5])
def test_transport_is_the_assignment_s_optimum(sharpness, lean):
    logits = np.random.default_rng(0).normal(size=(300, 5)) * sharpness
    logits[:, 0] += lean * sharpness
    probabilities = Outputs(logits).probabilities
    gains = probabilities[:, np.repeat(np.arange(5), 60)]
    best = gains[linear_sum_assignment(-gains)].mean()
    assert transported_probability(probabilities, np.full(5, 0.2)) == pytest.approx(best, abs=1e-5)


def test_transport_of_a_perfect_predictor_under_label_shift_is_total_variation():
    shares = np.array([0.5, 0.3, 0.2])
    domain = one_hot(3, (200, 300, 500))
    assert transported_probability(domain.probabilities, shares) == pytest.approx(1 - 0.3, abs=1e-5)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_transport_never_exceeds_average_confidence(seed):
    random = np.random.default_rng(seed)
    probabilities = Outputs(random.normal(size=(50, 4)) * random.uniform(0.1, 10)).probabilities
    value = transported_probability(probabilities, random.dirichlet(np.ones(4)))
    assert 0 <= value <= probabilities.max(axis=1).mean() + 1e-9


# --- every method, written plainly, where inputs are degenerate too ---------------------------------------------------


def plain_atc(scores, right, asked):
    """In order, the first as many as are wrong are out; of those that share the next one's score, a share is in."""
    ordered, wrong = sorted(scores), int((~right).sum())
    if wrong in (0, len(scores)):
        return float(wrong == 0)
    last = ordered[wrong]
    kept = ordered[wrong:].count(last) / ordered.count(last)
    return np.mean([kept if one == last else float(one > last) for one in asked])


def plain_transport(probabilities, shares):
    count, classes = probabilities.shape
    sums = np.vstack([np.kron(np.eye(count), np.ones(classes)), np.kron(np.ones(count), np.eye(classes))])
    limits = np.r_[np.full(count, 1 / count), shares]  # of which the last follows from the others
    return -linprog(-probabilities.ravel(), A_eq=sums[:-1], b_eq=limits[:-1]).fun


def plain_frechet(one, other):
    a, b = ((some - some.mean(axis=0)) / np.sqrt(len(some) - 1) for some in (one, other))
    root = np.linalg.svd(a @ b.T, compute_uv=False).sum()  # the trace of the root of the product of covariances
    return ((one.mean(axis=0) - other.mean(axis=0)) ** 2).sum() + (a**2).sum() + (b**2).sum() - 2 * root


def plain_bags(reference, domain):
    def bag(features):
        nearest = [np.square(reference.prototypes - one).sum(axis=1).argmin() for one in features]
        return np.bincount(nearest, minlength=len(reference.prototypes)) / len(features)

    return jensenshannon(bag(domain.features), bag(reference.outputs.features)) ** 2


def plainly(domain, source, reference):
    probabilities, before = (np.exp(some.logits - some.logits.max(axis=1, keepdims=True)) for some in (domain, source))
    probabilities, before = (some / some.sum(axis=1, keepdims=True) for some in (probabilities, before))
    count, classes = probabilities.shape
    sure, right = probabilities.max(axis=1), source.logits.argmax(axis=1) == source.labels
    entropies = np.array([-sum(p * np.log(p) for p in row if p > 0) for row in probabilities])
    return {
        "average-confidence": sure.mean(),
        **{f"prediction-score-{level}": (sure > level).mean() for level in (0.7, 0.8, 0.9)},
        "entropy": entropies.mean(),
        "low-entropy": (entropies < 0.3 * np.log(classes)).mean(),
        "atc-mc": plain_atc(source.confidence, right, domain.confidence),  # ties to the bit
        "atc-ne": plain_atc(-source.entropy, right, -domain.entropy),
        "doc": right.mean() + sure.mean() - before.max(axis=1).mean(),
        "nuclear-norm": np.linalg.svd(probabilities, compute_uv=False).sum() / np.sqrt(min(count, classes) * count),
        "frechet-distance": plain_frechet(domain.features, source.features),
        "bop-js": plain_bags(reference, domain),
        "ms-aol": np.mean([np.mean(domain.logits.argmax(axis=1) == other) for other in domain.pool]),
        "cot": plain_transport(probabilities, np.bincount(source.labels, minlength=classes) / len(source)),
    }


def some_outputs(count, scale=1.0, classes=3, labels=None, features=None):
    random = np.random.default_rng(count)
    labels = random.integers(0, classes, count) if labels is None else labels
    logits = scale * (random.normal(size=(count, classes)) + np.eye(classes)[labels])
    features = random.normal(size=(count, 4)) if features is None else np.full((count, 4), features)
    return Outputs(logits, features, labels, random.integers(0, classes, (3, count)))


def rounded(outputs):
    return Outputs(np.round(outputs.logits), outputs.features, outputs.labels, outputs.pool)


CASES = {
    "random": (some_outputs(60), some_outputs(41, 3.0)),
    "very sure": (some_outputs(60, 1e4), some_outputs(41, 1e4)),
    "very sure, then unsure": (some_outputs(60, 1e4), some_outputs(41, 0.1)),
    "one answer": (some_outputs(60, 0.0), some_outputs(41, 0.0)),
    "ties": (rounded(some_outputs(60, 2.0)), rounded(some_outputs(41, 2.0))),
    "a class missing": (some_outputs(60, labels=np.arange(60) % 2), some_outputs(41)),
    "one class": (some_outputs(60, 1e4, labels=np.zeros(60, int)), some_outputs(41, 1e4)),
    "two images": (some_outputs(2), some_outputs(3)),
    "two and many": (some_outputs(2, classes=5), some_outputs(200, classes=5)),
    "one feature vector": (some_outputs(60, features=7.3), some_outputs(41, features=7.3)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES)
def test_every_method_is_what_its_paper_says(case):
    source, domain = CASES[case]
    reference = Reference(source)
    expected = plainly(domain, source, reference)
    assert {*expected} == {*METHODS} - ALINE
    found = {name: METHODS[name].score(domain, reference) for name in expected}
    assert found == pytest.approx(expected, abs=2e-5, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_aline_is_a_line_through_the_pairs(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, 200)
    able = np.array([0.4, 0.6, 0.7, 0.9])[:, None]
    source, target = (
        np.where(random.random((4, 200)) < share, labels, random.integers(0, 4, (4, 200))) for share in (able, able / 2)
    )
    pairs = [(np.mean(s[i] == s[j])) for s in (source, target) for i, j in combinations(range(4), 2)]
    x, y = norm.ppf(np.array(pairs).reshape(2, 6))
    assert 0.05 < min(pairs) < max(pairs) < 0.98, "no pair is left out"
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    accuracy = norm.ppf(np.mean(source[0] == labels))
    expected = norm.cdf(y.mean() + slope * (accuracy - x.mean()))
    there, here = (Outputs(np.eye(4)[some[0]], labels=labels, pool=some[1:]) for some in (source, target))
    assert score("aline-s", here, Reference(there)) == pytest.approx(expected)

    def far_off(guesses):  # how far each two models' mean leaves the line, less how far their agreement does
        able = norm.ppf((source == labels).mean(axis=1))
        return [
            (guesses[i] + guesses[j]) / 2 - (y[place] + slope * ((able[i] + able[j]) / 2 - x[place]))
            for place, (i, j) in enumerate(combinations(range(4), 2))
        ]

    solved = least_squares(far_off, np.zeros(4), xtol=1e-12, ftol=1e-12, gtol=1e-12)
    assert score("aline-d", here, Reference(there)) == pytest.approx(norm.cdf(solved.x[0]), abs=1e-7)


# --- calibrated models ------------------------------------------------------------------------------------------------


def drawn(random, count, scale, sharpened=1.0):
    """Logits, and labels drawn from their own softmax; then maybe sharpened, so that the model is too sure."""
    outputs = Outputs(random.normal(size=(count, 4)) * scale)
    labels = (outputs.probabilities.cumsum(axis=1) < random.random((count, 1))).sum(axis=1)
    return Outputs(outputs.logits * sharpened, labels=labels)


@pytest.mark.parametrize("name", ["doc", "atc-mc", "atc-ne", "cot"])
def test_a_calibrated_model_s_accuracy_is_recovered_and_a_miscalibrated_twin_s_is_not(name):
    # ATC's threshold carries over only where confidence is distributed alike: it gets the same distribution again.
    there = 3.0 if name.startswith("atc") else 1.5
    count, misses = 1000, {1.0: 0, 3.0: 0}
    for sharpened in misses:
        for seed in range(20):
            random = np.random.default_rng(seed)
            source, domain = drawn(random, 8 * count, 3.0, sharpened), drawn(random, count, there, sharpened)
            error = abs(score(name, domain, Reference(source)) - domain.accuracy)
            # Both the score and the accuracy are of a drawn set: two binomial errors.
            spread = np.sqrt(2 * domain.accuracy * (1 - domain.accuracy) / count)
            misses[sharpened] += error > 3 * spread
    assert misses[1.0] == 0
    if not name.startswith("atc"):
        assert misses[3.0] >= 15, misses


def test_atc_fails_for_a_model_that_is_sure_of_what_it_gets_wrong():
    random = np.random.default_rng(0)
    source = drawn(random, 2000, 3.0)
    wrong = Outputs(source.logits, labels=(source.predictions + (random.random(2000) < 0.5)) % 4)
    assert score("atc-mc", wrong, Reference(source)) > wrong.accuracy + 0.2


def test_temperature_undoes_sharpening():
    source = drawn(np.random.default_rng(0), 4000, 2.0, sharpened=3.0)
    reference = Reference(source)
    assert reference.temperature == pytest.approx(3.0, rel=0.1)
    assert reference.calibrated().outputs.confidence.mean() == pytest.approx(reference.accuracy, abs=0.02)


@pytest.mark.parametrize("name", LOGITS_ONLY)
def test_a_constant_predictor_has_a_defined_value(name):
    always = Outputs(np.tile([2.0, 0, 0], (30, 1)), labels=np.arange(30) % 3)
    assert np.isfinite(score(name, always, Reference(always)))


# --- what changes nothing ---------------------------------------------------------------------------------------------


def made(seed):
    random = np.random.default_rng(seed)
    both = []
    for scale in (2.0, 1.0):
        logits = random.normal(size=(60, 4)) * scale
        labels = random.permutation(np.repeat(np.arange(4), 15))
        pool = random.integers(0, 4, (3, 60))
        both.append(Outputs(logits, random.normal(size=(60, 5)) * scale, labels, pool))
    return both


ALL = [name for name in METHODS if name not in ALINE]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_order_doubling_and_names_of_classes_change_nothing(name, seed):
    source, domain = made(seed)
    reference = Reference(source)
    first = score(name, domain, reference)
    places = np.random.default_rng(seed).permutation(60)
    assert score(name, domain.take(places), reference) == pytest.approx(first, abs=1e-6)
    if name != "frechet-distance":  # its covariance divides by n − 1
        assert score(name, domain.take(np.tile(np.arange(60), 2)), reference) == pytest.approx(first, abs=1e-6)
    renamed = np.array([2, 0, 3, 1])
    back = np.argsort(renamed)
    others = [
        Outputs(one.logits[:, renamed], one.features, back[one.labels], back[one.pool]) for one in (source, domain)
    ]
    assert score(name, others[1], Reference(others[0])) == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_a_constant_added_to_an_image_s_logits_changes_nothing(name):
    source, domain = made(3)
    lifted = Outputs(domain.logits + np.arange(60)[:, None], domain.features, domain.labels, domain.pool)
    assert score(name, lifted, Reference(source)) == pytest.approx(score(name, domain, Reference(source)), abs=1e-6)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Outputs(np.zeros((0, 3)), name="site B"), "There are no images in site B"),
        (lambda: Outputs(np.zeros((1, 3))), "There is one image"),
        (lambda: Outputs(np.array([[0, 1.0], [np.nan, 0]])), "not finite for 1 of 2 images, the first at place 1"),
        (lambda: Outputs(np.zeros((2, 3)), np.array([[1.0], [np.inf]])), "features of these images are not finite"),
        (
            lambda: Outputs(np.zeros((2, 3)), labels=np.array([0, 3])),
            "go from 0 to 3, and the model knows 0 to 2",
        ),
        (lambda: Outputs(np.zeros((2, 3)), labels=np.array([0])), "2 images but labels of 1"),
        (lambda: Reference(Outputs(np.zeros((2, 3)))), "The source set has no labels"),
        (lambda: agreement_matrix(np.zeros((1, 4))), "A pool of 1 model has no agreement"),
        (lambda: score("ms-aol", Outputs(np.zeros((2, 3)))), "needs a pool of models, and there is only one"),
        (
            lambda: score("bop-js", Outputs(np.zeros((2, 3))), Reference(with_features(np.eye(4)))),
            "The model gave no features",
        ),
        (lambda: on_the_line(np.zeros((2, 4)), np.zeros(4), np.zeros((2, 4))), "three models or more"),
        (lambda: on_the_line(np.zeros((3, 4)), np.zeros(4), np.zeros((3, 4))), "0 of 3 pairs"),
    ],
)
def test_bad_input_is_one_sentence(make, words):
    with pytest.raises(DataError, match=words):
        make()


def test_a_model_without_an_error_is_not_calibrated_away():
    random = np.random.default_rng(0)
    labels = np.arange(24) % 2
    logits = random.uniform(0.5, 1.5, (24, 1)) * np.eye(2)[labels]
    flawless = Reference(Outputs(logits, labels=labels))
    assert flawless.flawless and flawless.temperature == 1
    one_error = Reference(Outputs(logits, labels=np.where(np.arange(24) == 0, 1 - labels, labels)))
    assert 0.05 < one_error.temperature < 1 and not one_error.flawless


def test_direct_estimates_are_accuracies():
    source = Outputs(np.stack([np.zeros(100), np.r_[np.full(96, 1.0), np.full(4, -1.0)]], 1), labels=np.ones(100, int))
    surer = Outputs(np.stack([np.zeros(50), np.full(50, 30.0)], 1))
    assert METHODS["doc"].score(surer, Reference(source)) > 1
    assert all(0 <= value <= 1 for value in direct_estimates(surer, Reference(source)).values())


@pytest.mark.filterwarnings("error")
def test_prototypes_of_collapsed_features_are_no_warning():
    features = np.repeat([[1.0, 2.0]], 40, axis=0)
    assert Reference(Outputs(np.zeros((40, 2)), features, np.zeros(40, int))).prototypes.shape == (20, 2)
