"""The search space: are the hyperparameters that were tried those of the registered draws?

Who narrows a range after seeing test accuracies has selected by them, whatever selection is then reported.
"""

from collections import defaultdict
from functools import cache, lru_cache
from typing import Any

import numpy as np
from scipy import stats

from shiftbed.algorithms import ALGORITHMS
from shiftbed.audit.findings import Finding
from shiftbed.audit.subject import Subject
from shiftbed.errors import ShiftbedError
from shiftbed.hparams import DEFAULT_SPACE, Prior, Space, Value
from shiftbed.sweeps.domainbed_format import REVISION
from shiftbed.tables.grids import Entry, Grid
from shiftbed.training.job import search_space

SOURCE = "search space"
DRAWN = 4001  # of a prior, to know its distribution
LEVEL = 1e-3
EDGE = 2e-3  # how far beyond all draws of a prior a value may lie, as a share of their distance from its middle


def search_spaces(subject: Subject) -> Finding:
    """Compares every job's hyperparameters with the registered draw of its number and trial."""
    values: dict[tuple[str, str, str], list[tuple[Value, Value, bool]]] = defaultdict(list)
    by_hand: dict[tuple[str, str, str], set[Value]] = defaultdict(set)
    priors: dict[tuple[str, str, str], Prior] = {}
    unknown: set[str] = set()
    spaces, drawn = cache(_space), cache(_draw)  # jobs are many, spaces and draws few
    for about in subject.abouts:
        recipe, design = about["recipe"], subject.design(about)
        which = about["dataset"], about["algorithm"], recipe.get("space", DEFAULT_SPACE)
        space = spaces(*which)
        if space is None or design.stated or design.name == "groups":
            unknown.add(f"{about['algorithm']} on {about['dataset']}")
            continue
        imported = about["revision"] == REVISION
        given = {**about["overrides"], **about["own_overrides"]}
        trial = 0 if design.two_stages else about["trial"]
        registered = drawn(*which, about["draw"], trial) | recipe.get("fixed", {})
        for name, value in about["hparams"].items():
            key = (about["dataset"], about["algorithm"], name)
            if name in given:
                by_hand[key].add(value)
            elif name in space:
                priors[key] = space[name]
                values[key].append((value, registered[name], imported))
    rows = [
        {**_named(key), "what": "fixed by hand", "values": sorted(map(str, found)), "n": 0, "p": None}
        for key, found in by_hand.items()
    ]
    rows += [{**_named(key), **row} for key, found in values.items() if (row := _compare(found, priors[key]))]
    rows.sort(key=lambda row: (row["dataset"], row["algorithm"], row["hyperparameter"]))
    notes = f" Not compared, since stated or not registered here: {', '.join(sorted(unknown))}." if unknown else ""
    if rows:
        some = "; ".join(f"{r['hyperparameter']} of {r['algorithm']} {r['what']}" for r in rows[:3])
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        sentence = f"a possible leak: {some}{more}. Who chose these values may have looked at test accuracies.{notes}"
        return Finding(SOURCE, "alarm", sentence, [_grid(rows)])
    if not values:
        return Finding(SOURCE, "unknown", f"no job's space is known.{notes}")
    unregistered = sorted(name for name in {about["algorithm"] for about in subject.abouts} if not _is_known(name))
    if unregistered:  # the new method is the one whose draws matter most
        sentence = f"the draws of {', '.join(unregistered)} are not known here; name their file with --code.{notes}"
        return Finding(SOURCE, "unknown", sentence)
    count = len({(dataset, algorithm) for dataset, algorithm, _ in values})
    every = "the one space" if count == 1 else f"all {count} spaces"
    return Finding(SOURCE, "clear", f"the values of {every} are those of the registered draws.{notes}")


def _is_known(algorithm: str) -> bool:
    try:
        return ALGORITHMS[algorithm] is not None
    except ShiftbedError:
        return False


def _space(dataset: str, algorithm: str, named: str) -> Space | None:
    try:
        return search_space(algorithm, dataset, named)
    except ShiftbedError:
        return None


def _draw(dataset: str, algorithm: str, named: str, draw: int, trial: int) -> dict[str, Value]:
    return search_space(algorithm, dataset, named).draw(draw, trial)


def _named(key: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("dataset", "algorithm", "hyperparameter"), key, strict=True))


def _compare(found: list[tuple[Value, Value, bool]], prior: Prior) -> dict[str, Any] | None:
    """How values differ from the registered draws, or None if they do not.

    A sweep of ours repeats the registered draws to the bit. DomainBed's own may come from an older space, whose draws
    differ but whose distribution should not: of these only a difference in distribution counts.
    """
    if all(_equal(value, registered) for value, registered, _ in found):
        return None
    values = list(dict.fromkeys(value for value, *_ in found))
    what, p = _distribution(values, prior)
    if what is None and all(imported for *_, imported in found):
        return None
    differ = sum(not _equal(value, registered) for value, registered, _ in found)
    return {
        "what": what or f"drawn otherwise in {differ} of {len(found)} jobs",
        "values": _shown(values),
        "n": len(values),
        "p": p,
    }


def _equal(value: Value, registered: Value) -> bool:
    if isinstance(value, float) and isinstance(registered, float):
        return bool(np.isclose(value, registered, rtol=1e-9, atol=0))
    return value == registered


def _distribution(values: list[Value], prior: Prior) -> tuple[str | None, float | None]:
    """Whether distinct values are fixed, outside, narrowed or shifted against a prior."""
    if len(values) == 1 and values[0] != prior.default:
        return f"fixed at {values[0]}", None
    numbers = [float(value) for value in values if isinstance(value, int | float) and value != prior.default]
    known = _sample(prior)
    if known is None or len(numbers) < 2:
        return None, None
    # The ends of a range that starts at 0 are only known to a share of its width, not of themselves.
    lowest, middle, highest = known[0], known[len(known) // 2], known[-1]
    if min(numbers) < lowest - EDGE * (middle - lowest) or max(numbers) > highest + EDGE * (highest - middle):
        return "outside the registered range", None
    places = (np.searchsorted(known, numbers, "left") + np.searchsorted(known, numbers, "right")) / (2 * len(known))
    n, width = len(places), float(np.ptp(places))
    narrow = n * width ** (n - 1) - (n - 1) * width**n  # the chance that n uniform numbers span no more
    if narrow < LEVEL:
        return "narrowed", narrow
    shifted = float(stats.kstest(places, "uniform").pvalue)
    return ("shifted", shifted) if shifted < LEVEL else (None, shifted)


@lru_cache(maxsize=1024)
def _sample(prior: Prior) -> np.ndarray | None:
    """Many draws of a prior in order; None if they are no numbers, or too few different ones to have a distribution."""
    random = np.random.RandomState(0)
    drawn = [prior.sample(random) for _ in range(DRAWN)]
    numbers = np.sort([float(value) for value in drawn if isinstance(value, int | float)])
    return numbers if len(numbers) == DRAWN and len(np.unique(numbers)) > 10 else None


def _shown(values: list[Value]) -> list[str]:
    try:
        ordered = sorted(values)
    except TypeError:
        ordered = sorted(values, key=str)
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in ordered]
    return texts if len(texts) <= 2 else [texts[0], "…", texts[-1]]


def _grid(rows: list[dict[str, Any]]) -> Grid:
    return Grid(
        title="Hyperparameters that are not those of the registered draws",
        caption="fixed, narrowed, shifted or drawn otherwise; n is the number of different values",
        corner="dataset, algorithm, hyperparameter",
        columns=["values", "n", "what"],
        rows=[
            (
                f"{row['dataset']}, {row['algorithm']}, {row['hyperparameter']}",
                [Entry(" ".join(row["values"])), Entry(str(row["n"] or "–")), Entry(row["what"])],
            )
            for row in rows
        ],
        data=rows,
    )
