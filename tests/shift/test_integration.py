import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from shiftbed.shift.density import KernelDensity
from shiftbed.shift.integration import Evaluated, Thresholds, calibrate, evaluate, integrate

M = 20_000
NONE = Thresholds(0.0, 0.0)  # an exact support: absent is a density of 0


def normal(mean):
    return lambda z: torch.from_numpy(stats.norm.logpdf(z[:, 0].numpy(), mean, 1))


def uniform(start):
    return lambda z: torch.where((z[:, 0] >= start) & (z[:, 0] < start + 1), 0.0, -math.inf).double()


def mixture(*parts):
    return lambda z: torch.logsumexp(torch.stack([part(z) for part in parts]), 0) - math.log(len(parts))


def exact(p, q, p_given, q_given, draw):
    points = torch.from_numpy(draw(np.random.default_rng(0)))[:, None]
    return evaluate(points, p, q, p_given, q_given, mixture(p, q), [0.5, 0.5])


def flipped(mean):
    up, down = normal(mean), normal(-mean)
    both = mixture(up, down)

    def draw(random):
        return random.standard_normal(M) + mean * random.choice([-1, 1], M)

    return exact(both, both, [down, up], [up, down], draw)


@pytest.mark.parametrize(("mean", "paper", "later"), [(0.5, 0.3829, 0.1175), (1, 0.6827, 0.3935), (2, 0.9545, 0.8647)])
def test_label_flipped_gaussians_have_their_exact_correlation_shift(mean, paper, later):
    at = flipped(mean)
    assert integrate(at, NONE, "paper") == (0, pytest.approx(paper, abs=3 / math.sqrt(M)))
    assert integrate(at, NONE, "later") == (0, pytest.approx(later, abs=3 / math.sqrt(M)))


@pytest.mark.parametrize(("apart", "diversity"), [(0.0, 0.0), (0.5, 0.5), (2.0, 1.0)])
def test_uniform_densities_have_their_exact_diversity_shift_and_no_correlation_shift(apart, diversity):
    p, q = uniform(0.0), uniform(apart)

    def draw(random):
        return random.random(M) + apart * random.integers(0, 2, M)

    at = exact(p, q, [p, p], [q, q], draw)
    tiny = Thresholds(1e-12, 1e-12)
    for formula in ("paper", "later"):
        found = integrate(at, tiny, formula)
        assert found[0] == pytest.approx(diversity, abs=3 / math.sqrt(M))
        assert found[1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("mean", "diversity"), [(4, 0.0003), (6, 0.0715), (8, 0.6913), (10, 0.9933)])
def test_a_moved_gaussian_has_the_diversity_shift_of_the_threshold(mean, diversity):
    # The threshold is on standardised features, whose density is larger by the deviation.
    deviation = math.sqrt(1 + mean**2 / 4)
    p, q = normal(0), normal(mean)

    def draw(random):
        return random.standard_normal(M) + mean * random.integers(0, 2, M)

    at = exact(p, q, [p, p], [q, q], draw)
    found = integrate(at, Thresholds(1e-12 / deviation, 5e-4), "paper")[0]
    assert found == pytest.approx(diversity, abs=3 / math.sqrt(M))


def test_what_either_side_has_alone_is_diversity_shift():
    # 0.3 of each side lies where the other has nothing.
    def side(apart):
        return lambda z: torch.logaddexp(math.log(0.7) + uniform(0.0)(z), math.log(0.3) + uniform(apart)(z))

    def draw(random):
        return random.random(M) + random.choice([0.0, 20.0, -20.0], M, p=[0.7, 0.15, 0.15])

    p, q = side(20.0), side(-20.0)
    found = integrate(exact(p, q, [p, p], [q, q], draw), Thresholds(1e-12, 1e-12), "paper")
    assert found == (pytest.approx(0.3, abs=3 / math.sqrt(M)), pytest.approx(0, abs=1e-12))


def blue(mean, deviation):
    return stats.truncnorm(-mean / deviation, (1 - mean) / deviation, mean, deviation)


@pytest.mark.parametrize(
    ("means", "diversity"),
    [((0, 1), 0.984), ((0, 0.75), 0.244), ((0, 0.5), 0.003), ((0, 0.25), 0), ((0.25, 0.75), 0.001)],
)
def test_blue_has_the_diversity_shift_of_the_threshold(means, diversity):
    sides = [blue(mean, 0.1) for mean in means]
    p, q = (lambda z, side=side: torch.from_numpy(side.logpdf(z[:, 0].numpy())) for side in sides)

    def draw(random):
        drawn = [side.rvs(M, random_state=random) for side in sides]
        return np.where(random.random(M) < 0.5, *drawn)

    pooled = math.sqrt(np.mean([side.var() for side in sides]) + np.var([side.mean() for side in sides]))
    found = integrate(exact(p, q, [p, p], [q, q], draw), Thresholds(1e-12 / pooled, 5e-4), "paper")[0]
    assert found == pytest.approx(diversity, abs=3 / math.sqrt(M))


@pytest.mark.parametrize(
    ("with_digit", "rho", "means", "paper", "later"),
    [
        (False, 0.9, None, 0.8, 0.4),
        (False, 0.1, None, 0, 0),
        (True, 0.9, None, 0.6547, 0.3165),
        (True, 0.7, None, 0.4778, 0.1692),
        (True, 0.5, None, 0.3204, 0.0845),
        (True, 0.3, None, 0.1661, 0.0276),
        (True, 0.1, None, 0, 0),
        (True, 0.9, (0, 0), 0.655, None),
        (True, 0.9, (0, 0.5), 0.483, None),
        (True, 0.9, (0, 1), 0.169, None),
        (True, 0.9, (0.25, 0.75), 0.451, None),
    ],
)
def test_coloured_digits_have_their_exact_correlation_shift(with_digit, rho, means, paper, later):
    # A point is the number of digit and colour together, and an amount of blue, of deviation 0.25.
    digit, label, colour = np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")
    code = colour + 2 * digit * with_digit
    of_sides = []
    for side, other in enumerate((0.1, rho)):
        joint = 0.5 * np.where(label == digit, 0.75, 0.25) * np.where(colour == label, 1 - other, other)
        shares = np.stack([np.bincount(code[label == y], 2 * joint[label == y], 4) for y in (0, 1)])
        share_of = blue(means[side], 0.25) if means else stats.uniform()
        of_sides.append((shares, share_of))

    def density(shares, share_of):
        return lambda z: torch.from_numpy(
            np.log(np.maximum(shares[z[:, 0].numpy().astype(int)], 1e-300)) + share_of.logpdf(z[:, 1].numpy())
        )

    (p, *p_given), (q, *q_given) = (
        [density(of, share_of) for of in (shares.mean(0), *shares)] for shares, share_of in of_sides
    )
    random = np.random.default_rng(0)
    drawn = [
        np.stack([random.choice(4, M, p=shares.mean(0)), share_of.rvs(M, random_state=random)], 1)
        for shares, share_of in of_sides
    ]
    points = torch.from_numpy(np.where(random.random((M, 1)) < 0.5, *drawn))
    at = evaluate(points, p, q, p_given, q_given, mixture(p, q), [0.5, 0.5])
    assert integrate(at, NONE, "paper") == (0, pytest.approx(paper, abs=3 / math.sqrt(M)))
    if later is not None:
        assert integrate(at, NONE, "later")[1] == pytest.approx(later, abs=3 / math.sqrt(M))


def test_densities_that_differ_have_the_correlation_shift_of_a_fine_grid():
    means = {"p": (0.0, 1.0), "q": (1.0, 2.5)}
    z = np.linspace(-10, 14, 200_001)
    p_given, q_given = ([stats.norm.pdf(z, mean, 1) for mean in means[side]] for side in "pq")
    p, q = sum(p_given) / 2, sum(q_given) / 2
    terms = [np.abs(0.5 * one / p - 0.5 * other / q) for one, other in zip(p_given, q_given, strict=True)]
    expected = 0.5 * np.trapezoid(np.sqrt(p * q) * sum(terms), z)
    roots = [(np.sqrt(0.5 * a / p) - np.sqrt(0.5 * b / q)) ** 2 for a, b in zip(p_given, q_given, strict=True)]
    later = 0.5 * np.trapezoid(np.sqrt(p * q) * sum(roots), z)
    of_p, of_q = ([normal(mean) for mean in means[side]] for side in "pq")

    def draw(random):
        return random.standard_normal(M) + random.choice([*means["p"], *means["q"]], M)

    at = exact(mixture(*of_p), mixture(*of_q), of_p, of_q, draw)
    assert integrate(at, NONE, "paper")[1] == pytest.approx(expected, abs=3 / math.sqrt(M))
    assert integrate(at, NONE, "later")[1] == pytest.approx(later, abs=3 / math.sqrt(M))


def test_thresholds_move_the_shifts_one_way_and_a_common_factor_does_nothing():
    mean = 6.0
    p, q = normal(0), normal(mean)
    at = exact(p, q, [p, p], [q, normal(mean + 1)], lambda r: r.standard_normal(M) + mean * r.integers(0, 2, M))
    diversity = [integrate(at, Thresholds(e, 1e-3), "paper")[0] for e in (1e-15, 1e-12, 1e-9, 1e-6)]
    correlation = [integrate(at, Thresholds(1e-12, e), "paper")[1] for e in (1e-9, 1e-6, 1e-4)]
    assert diversity == sorted(diversity) and diversity[0] < diversity[-1]
    assert correlation == sorted(correlation, reverse=True) and correlation[0] > correlation[-1]
    up = math.log(1e5)
    raised = Evaluated(at.p + up, at.q + up, at.p_given + up, at.q_given + up, at.proposal + up, at.priors)
    one, other = integrate(at, Thresholds(), "later"), integrate(raised, Thresholds(1e-7, 50), "later")
    assert one == pytest.approx(other, rel=1e-9)


def test_calibrated_thresholds_show_next_to_nothing_without_shift():
    random = np.random.default_rng(0)
    z = [random.standard_normal((60, 2)) for _ in range(4)]
    densities = [KernelDensity.of(one) for one in z]
    whole = [KernelDensity.of(np.concatenate(two)) for two in (z[:2], z[2:])]
    pool = KernelDensity.of(np.concatenate(z))
    given = [one.log_density for one in densities]
    both = [one.log_density for one in whole]
    at = evaluate(pool.draw(4000, 0), *both, given[:2], given[2:], pool.log_density, [0.5, 0.5])
    before, found = integrate(at, Thresholds(), "later"), integrate(at, calibrate([at], Thresholds()), "later")
    assert before[1] > 0.01 and 0.005 <= found[1] <= 0.01
    assert before[0] <= 0.01 and found[0] <= 0.01


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(8, 60), st.floats(0.1, 100), st.integers(0, 2**20))
def test_the_log_density_is_the_exact_log_sum_exp(d, n, far, seed):
    random = np.random.default_rng(seed)
    x, at = random.standard_normal((n + d, d)) + 1000, far * random.standard_normal((20, d)) + 1000
    covariance = np.atleast_2d(np.cov(x.T)) * len(x) ** (-2 / (d + 4))
    difference = at[:, None] - x
    squares = np.einsum("mni,ij,mnj->mn", difference, np.linalg.inv(covariance), difference)
    constant = 0.5 * (d * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1]) + math.log(len(x))
    expected = logsumexp(-0.5 * squares, axis=1) - constant
    found = KernelDensity.of(x).log_density(torch.from_numpy(at)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_the_density_is_scipys():
    x = np.random.default_rng(0).standard_normal((300, 3))
    found = KernelDensity.of(x).log_density(torch.from_numpy(x[:50])).numpy()
    np.testing.assert_allclose(found, stats.gaussian_kde(x.T).logpdf(x[:50].T), atol=1e-9)


def test_points_are_drawn_from_the_density():
    x = np.random.default_rng(0).standard_normal((500, 2)) @ np.array([[1, 0.8], [0, 0.6]])
    density = KernelDensity.of(x)
    points = density.draw(40_000, 0).numpy()
    expected = np.cov(x.T) * (499 / 500 + 500 ** (-2 / 6))
    np.testing.assert_allclose(np.cov(points.T), expected, atol=0.04)
    np.testing.assert_allclose(points.mean(0), x.mean(0), atol=0.03)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_densities_of_degenerate_features_are_finite(scale):
    x = np.random.default_rng(0).standard_normal((50, 3)) * scale
    x[:, 1] = x[:, 0]  # one coordinate repeats another
    assert torch.isfinite(KernelDensity.of(x).log_density(torch.from_numpy(x))).all()
    assert KernelDensity.of(np.full((50, 2), scale)) is None
    assert KernelDensity.of(x[:3]) is None
