"""The matrix: every pair of domains by every measure in one run, and every domain against the rest."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.errors import DataError
from shiftbed.hashing import digest
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.kept import Kept
from shiftbed.shift.measures import MEASURES, Settings, take
from shiftbed.shift.samples import Sample, union

REST = "the rest"


@dataclass(frozen=True)
class Cell:
    """What one measure says of two sides: its estimates, or why there are none.

    Attributes:
        first: The one side, a domain.
        second: The other side: a domain, or `the rest`, which are all other domains together.
        measure: The measure's name.
        estimates: What it gives; empty where it cannot be taken.
        why_not: A sentence, where it cannot be taken.
    """

    first: str
    second: str
    measure: str
    estimates: tuple[ShiftEstimate, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class ShiftMatrix:
    """Estimates for every pair of domains, and for every domain against the rest.

    Attributes:
        domains: In the dataset's order.
        cells: One for each pair and measure.
    """

    domains: tuple[str, ...]
    cells: tuple[Cell, ...] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """The estimates there are, in the order in which they were made."""
        return list(dict.fromkeys(one.name for cell in self.cells for one in cell.estimates))

    @property
    def missing(self) -> list[str]:
        """What could not be measured, and why: one sentence for each reason."""
        return list(dict.fromkeys(f"{cell.measure}: {cell.why_not}" for cell in self.cells if cell.why_not))

    def estimate(self, name: str, first: str, second: str) -> ShiftEstimate | None:
        """The estimate of this name between two domains, in either order, or between a domain and `REST`."""
        return self._by_sides.get((name, frozenset((first, second))))

    @cached_property
    def _by_sides(self) -> dict[tuple[str, frozenset[str]], ShiftEstimate]:
        return {(one.name, frozenset((c.first, c.second))): one for c in self.cells for one in c.estimates}

    def values(self, name: str) -> np.ndarray:
        """The values of one estimate, domains by domains; the diagonal is 0, and what is missing NaN."""
        made = np.zeros((len(self.domains), len(self.domains)))
        for (i, first), (j, second) in combinations(enumerate(self.domains), 2):
            found = self.estimate(name, first, second)
            made[i, j] = made[j, i] = np.nan if found is None else found.value
        return made

    def against_the_rest(self, name: str) -> dict[str, ShiftEstimate]:
        """One estimate for every domain against all others together: what leave-one-domain-out will face."""
        found = {domain: self.estimate(name, domain, REST) for domain in self.domains}
        return {domain: one for domain, one in found.items() if one is not None}

    def as_json(self) -> dict[str, Any]:
        """What `json.dumps` takes."""
        cells = [{**asdict(cell), "estimates": [one.as_json() for one in cell.estimates]} for cell in self.cells]
        return {"domains": list(self.domains), "cells": cells}

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "ShiftMatrix":
        """The matrix that `as_json` wrote."""
        cells = [
            Cell(**{**cell, "estimates": tuple(map(ShiftEstimate.from_json, cell["estimates"]))})
            for cell in read["cells"]
        ]
        return cls(tuple(read["domains"]), tuple(cells))


def matrix(
    samples: Mapping[str, Sample],
    measures: Sequence[str] = (),
    settings: Settings | None = None,
    *,
    saved: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ShiftMatrix:
    """Takes measures between every two domains, and between every domain and the rest.

    Samples and labelling functions are made once for each domain. A measure that needs labels where there are none, or
    classes that two domains do not share, leaves its cell empty and says why.

    Args:
        samples: The examples of every domain.
        measures: Names of measures; all by default.
        settings: How they are taken.
        saved: A file that keeps finished cells: interrupted and run again, the matrix goes on from there.
        on_progress: Called with what is done, how many cells of it are, and how many there are.

    Raises:
        UnknownNameError: There is no such measure.
        DataError: There is one domain only.
    """
    if len(samples) < 2:
        raise DataError(
            f"There is the one domain '{next(iter(samples), '')}', and a shift is between two; add another."
        )
    settings = settings or Settings()
    names = [MEASURES.canonical_name(name) for name in measures or MEASURES]
    sides: list[tuple[str, str]] = list(combinations(samples, 2))
    if len(samples) > 2:  # of two domains, the other is the rest
        sides += [(domain, REST) for domain in samples]
    kept, made_of = Kept(saved), digest([_fingerprint(samples), asdict(settings)])
    cells: list[Cell] = []
    for first, second in sides:
        other = cache(partial(_other, samples, first, second))
        for name in names:
            on_progress("measuring pairs of domains", len(cells), len(sides) * len(names))
            try:
                take_it = partial(take, name, samples[first], other(), settings)
                found = kept.get([made_of, first, second, name], take_it)
                cells.append(Cell(first, second, name, tuple(found)))
            except DataError as error:
                cells.append(Cell(first, second, name, why_not=str(error)))
    return ShiftMatrix(tuple(samples), tuple(cells))


def _other(samples: Mapping[str, Sample], first: str, second: str) -> Sample:
    if second != REST:
        return samples[second]
    return union([one for name, one in samples.items() if name != first], REST)


def _fingerprint(samples: Mapping[str, Sample]) -> list[list[str]]:
    """What tells these samples from others: their names and all their bytes."""
    found = []
    for name, one in samples.items():
        content = hashlib.blake2b(one.inputs.tobytes(), digest_size=16)
        for part in (one.labels, one.groups):
            content.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        found.append([name, content.hexdigest()])
    return found
