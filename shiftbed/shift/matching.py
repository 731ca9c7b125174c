"""Equal label marginals by subsampling, divisions into fifths, and pairs without shift."""

import hashlib

import numpy as np

from shiftbed.errors import DataError
from shiftbed.shift.samples import Sample, shared_classes

FOLDS = 5
FEWEST_OF_A_CLASS = 2 * FOLDS  # of each class on each side: two in every fifth


def matched(p: Sample, q: Sample, seed: int, *, most: int | None = None) -> tuple[Sample, Sample]:
    """As many examples of every class from either side, drawn at random: only then are label marginals equal.

    Args:
        p: One side.
        q: The other side.
        seed: Decides which examples are kept.
        most: Keep at most so many examples a side, each class in proportion.

    Raises:
        DataError: A class is on one side only, or there is but one class in both, or too few examples of one.
    """
    shared = shared_classes(p, q)
    for one, other in ((p, q), (q, p)):
        lone = np.setdiff1d(one.classes, shared)
        if len(lone):
            raise DataError(
                f"'{one.name}' has {one.called(lone)} and '{other.name}' has not; name the classes that both have with "
                f"--classes{f': {one.called(shared)}' if len(shared) else ''}."
            )
    random = np.random.default_rng(seed)
    common = [min(np.sum(side.labels == number) for side in (p, q)) for number in p.classes]
    share = 1.0 if most is None else min(1.0, most / sum(common))
    chosen: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for number, available in zip(p.classes, common, strict=True):
        places = [np.flatnonzero(side.labels == number) for side in (p, q)]
        count = int(share * available)
        if count < FEWEST_OF_A_CLASS:
            fewer = (p, q)[len(places[0]) > len(places[1])]
            has, more = ("has", "add some") if share == 1 else ("keeps", "raise --most")
            examples = "1 example" if count == 1 else f"{count} examples"
            raise DataError(
                f"Of {p.called([number])} '{fewer.name}' {has} {examples}, and at least {FEWEST_OF_A_CLASS} are "
                f"needed; {more}, or leave it out with --classes."
            )
        for side, of_class in zip(chosen, places, strict=True):
            side.append(np.sort(random.choice(of_class, count, replace=False)))
    return p[np.sort(np.concatenate(chosen[0]))], q[np.sort(np.concatenate(chosen[1]))]


def folds(p: Sample, q: Sample, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """In which fifth each example is held out: class by class, or group by group where both sides have groups.

    A group is in the same fifth of both sides: a network that has seen a thing in one domain would else take it for
    that domain's when it meets it in the other.

    Raises:
        DataError: The groups of a side fall into one fifth: whoever holds that out learns nothing of the side.
    """
    random = np.random.default_rng((seed, 1))
    if p.groups is not None and q.groups is not None:
        known = np.union1d(p.groups, q.groups)
        of_group = random.permutation(len(known)) % FOLDS
        of_p, of_q = (of_group[np.searchsorted(known, groups)] for groups in (p.groups, q.groups))
        for side, numbers in ((p, of_p), (q, of_q)):
            if len(np.unique(numbers)) < 2:
                raise side.too_few_groups()
        return of_p, of_q
    made = []
    for side in (p, q):
        assert side.labels is not None
        numbers = np.empty(len(side), np.int64)
        for number in side.classes:
            places = np.flatnonzero(side.labels == number)
            numbers[places] = random.permutation(len(places)) % FOLDS
        made.append(numbers)
    return made[0], made[1]


def permuted(p: Sample, q: Sample, seed: int) -> tuple[Sample, Sample]:
    """The same examples with sides exchanged at random within each class: a pair of equal sizes without shift."""
    random = np.random.default_rng((seed, 2))
    assert p.labels is not None and q.labels is not None
    inputs = np.concatenate([p.inputs, q.inputs])
    labels = np.concatenate([p.labels, q.labels])
    groups = None if p.groups is None or q.groups is None else np.concatenate([p.groups, q.groups])
    pool = Sample("both", inputs, labels, groups)
    first = np.zeros(len(pool), bool)
    for number in p.classes:
        places = random.permutation(np.flatnonzero(labels == number))
        first[places[: np.sum(p.labels == number)]] = True
    return pool[first], pool[~first]


def in_fixed_order(p: Sample, q: Sample) -> tuple[Sample, Sample]:
    """The same two sides, whichever came first: a symmetric measure then cannot tell."""
    digests = [hashlib.blake2b(side.inputs.tobytes()).digest() for side in (p, q)]
    return (p, q) if digests[0] <= digests[1] else (q, p)
