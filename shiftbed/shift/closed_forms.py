"""Pairs of domains whose diversity and correlation shift are known exactly: what every estimator is tried on."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from shiftbed.data import Card, Domain, MultiDomainDataset
from shiftbed.shift.ratio import DELTA, certain

Drawn = tuple[np.ndarray, np.ndarray]  # features n×d and labels of one side
LABEL_NOISE = 0.25


@dataclass(frozen=True)
class ClosedForm:
    """Two distributions with known shift.

    Attributes:
        draw: Examples of one side: from a generator, how many, and whether of the second.
        diversity: Exact diversity shift; of smooth densities, where the other side's share is below `DELTA`.
        correlation: Exact correlation shift.
        tolerance: How near an estimate from 2,000 examples a side must come. Wider at an edge, which no sample shows
            exactly, and where much of a smooth density has a ratio near the threshold.
    """

    draw: Callable[[np.random.Generator, int, bool], Drawn]
    diversity: float
    correlation: float
    tolerance: float = 0.05

    def dataset(self, n: int = 2000, seed: int = 0) -> MultiDomainDataset:
        """Two domains of n examples."""
        random = np.random.default_rng(seed)
        domains = tuple(Domain(name, *self.draw(random, n, second)) for name, second in (("p", False), ("q", True)))
        card = Card(
            name="closed form",
            version=seed,
            summary="Two domains of known shift",
            domains={"p": n, "q": n},
            classes=("no", "yes"),
            size_class="small",
            licence="none",
            source="made",
            citation="none",
        )
        return MultiDomainDataset(card, domains)


def _labels(random: np.random.Generator, n: int) -> np.ndarray:
    return random.integers(0, 2, n)


def _moved(of_p: Callable[..., np.ndarray], by: float) -> Callable[[np.random.Generator, int, bool], Drawn]:
    """The second side is the first, moved; labels are independent of it."""
    return lambda random, n, second: (of_p(random, n)[:, None] + by * second, _labels(random, n))


def _partly_novel(random: np.random.Generator, n: int, second: bool) -> Drawn:
    away = np.where(random.random(n) < 0.3, 20.0 if second else -20.0, 0.0)
    return (random.standard_normal(n) + away)[:, None], _labels(random, n)


def _flipped(mean: float) -> Callable[[np.random.Generator, int, bool], Drawn]:
    def draw(random: np.random.Generator, n: int, second: bool) -> Drawn:
        labels = _labels(random, n)
        sign = (2 * labels - 1) * (-1 if second else 1)
        return (random.standard_normal(n) + mean * sign)[:, None], labels

    return draw


def _coloured(
    rho: float, with_digit: bool = True, blue: tuple[float, float, float] | None = None
) -> Callable[[np.random.Generator, int, bool], Drawn]:
    """ColoredMNIST without its images: a colour, the digit's half, and perhaps an amount of blue."""

    def draw(random: np.random.Generator, n: int, second: bool) -> Drawn:
        digit = _labels(random, n)
        labels = digit ^ (random.random(n) < LABEL_NOISE)
        colour = labels ^ (random.random(n) < (rho if second else 0.1))
        columns = [colour, digit] if with_digit else [colour]
        made = np.stack(columns, 1) + 0.05 * random.standard_normal((n, len(columns)))
        if blue is not None:
            mean, deviation = blue[int(second)], blue[2]
            bounds = (-mean / deviation, (1 - mean) / deviation)
            share = stats.truncnorm.rvs(*bounds, mean, deviation, size=n, random_state=random)
            made = np.concatenate([made, share[:, None]], 1)
        return made, labels.astype(np.int64)

    return draw


def coloured_correlation(rho: float, other: float = 0.1) -> float:
    """Exact correlation shift of digit and colour, where colours disagree with labels at two rates."""
    noise = LABEL_NOISE
    agree, agree_other = ((1 - noise) * (1 - r) + noise * r for r in (rho, other))
    differ, differ_other = 1 - agree, 1 - agree_other
    with_digit = abs((1 - rho) / agree - (1 - other) / agree_other) * (1 - noise)
    against = abs((1 - rho) / differ - (1 - other) / differ_other) * noise
    return math.sqrt(agree * agree_other) * with_digit + math.sqrt(differ * differ_other) * against


def blue_shifts(rho: float, means: tuple[float, float], deviation: float) -> tuple[float, float]:
    """Diversity and correlation shift with an independent amount of blue, integrated on a fine grid.

    Both sides have colours; whether colour and digit agree, and how blue an image is, is all that tells them apart
    without the label. Inputs whose other side is below `DELTA` count as diversity, all others as correlation.
    """
    blue = np.linspace(0, 1, 20_001)
    p, q = (stats.truncnorm.pdf(blue, -m / deviation, (1 - m) / deviation, m, deviation) for m in means)
    diversity = correlation = 0.0
    rates = [(1 - LABEL_NOISE) * (1 - r) + LABEL_NOISE * r for r in (0.1, rho)]
    for of_p, of_q, noise in ((rates[0], rates[1], 1 - LABEL_NOISE), (1 - rates[0], 1 - rates[1], LABEL_NOISE)):
        one, other = of_p * p, of_q * q
        alone = np.abs(np.log(np.maximum(one, 1e-300)) - np.log(np.maximum(other, 1e-300))) > certain(DELTA)
        diversity += 0.5 * float(np.trapezoid(np.where(alone, np.abs(one - other), 0), blue))
        posterior = abs(noise * 0.9 / of_p - noise * (1 - rho) / of_q)
        correlation += posterior * float(np.trapezoid(np.where(alone, 0, np.sqrt(one * other)), blue))
    return diversity, correlation


def _uniform(random: np.random.Generator, n: int) -> np.ndarray:
    return random.random(n)


def _normal(random: np.random.Generator, n: int) -> np.ndarray:
    return random.standard_normal(n)


def _certain_share(mean: float) -> float:
    """The mass of N(0, 1) where N(mean, 1) is as good as absent, less what that one has there."""
    edge = mean / 2 - certain(DELTA) / mean
    return float(stats.norm.cdf(edge) - stats.norm.cdf(edge - mean))


CLOSED_FORMS = {
    "identical": ClosedForm(_moved(_normal, 0), 0, 0),
    "disjoint": ClosedForm(_moved(_uniform, 2), 1, 0),
    "half overlap": ClosedForm(_moved(_uniform, 0.5), 0.5, 0, tolerance=0.06),
    "three tenths novel": ClosedForm(_partly_novel, 0.3, 0),
    "flipped, mean 0.5": ClosedForm(_flipped(0.5), 0, 0.3829),
    "flipped, mean 1": ClosedForm(_flipped(1), 0, 0.6827),
    "flipped, mean 2": ClosedForm(_flipped(2), 0, 0.9545),
    "colour, 0.9": ClosedForm(_coloured(0.9, with_digit=False), 0, 0.8),
    "colour, 0.5": ClosedForm(_coloured(0.5, with_digit=False), 0, 0.4),
    "colour, 0.1": ClosedForm(_coloured(0.1, with_digit=False), 0, 0),
    "digit and colour, 0.9": ClosedForm(_coloured(0.9), 0, 0.6547),
    "digit and colour, 0.7": ClosedForm(_coloured(0.7), 0, 0.4778),
    "digit and colour, 0.5": ClosedForm(_coloured(0.5), 0, 0.3204),
    "digit and colour, 0.3": ClosedForm(_coloured(0.3), 0, 0.1661),
    "digit and colour, 0.1": ClosedForm(_coloured(0.1), 0, 0),
    "blue, 0 to 1": ClosedForm(_coloured(0.1, blue=(0, 1, 0.1)), 1, 0),
    "blue, 0 to 0.5, 0.9": ClosedForm(_coloured(0.9, blue=(0, 0.5, 0.25)), *blue_shifts(0.9, (0, 0.5), 0.25)),
    "mean moved by 2": ClosedForm(_moved(_normal, 2), _certain_share(2), 0, tolerance=0.1),
    "mean moved by 4": ClosedForm(_moved(_normal, 4), _certain_share(4), 0, tolerance=0.06),
}
