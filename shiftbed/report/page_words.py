"""The page's plain words: who won and how sure that is, what kind of shift there is, what to do next, whom to cite."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from shiftbed import __version__, published
from shiftbed.algorithms import ALGORITHMS
from shiftbed.audit.findings import Audit
from shiftbed.audit.subject import Subject
from shiftbed.data import card
from shiftbed.errors import ShiftbedError
from shiftbed.report.page_results import Results
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.sweeps.records import Status
from shiftbed.tables import AVERAGE, Table
from shiftbed.tables.leaderboards import UNKNOWN, shift_kind
from shiftbed.tables.table import BASELINE

SURE = 0.05  # a p-value above it is called chance
LITTLE = 0.05  # shift below it is called little
PUBLISHED = {"diversity": "ood-bench/table-1", "correlation": "ood-bench/table-2"}
MEANS = {
    "diversity": "the domains show different inputs",
    "correlation": "the same inputs go with other labels",
}


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names in a sentence."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Verdict:
    """Who is first in a table, and how sure that is.

    Attributes:
        leader: The first algorithm, or None where no number is there.
        better: Whether it is better than ERM by more than chance, all comparisons allowed for.
        sentence: The same in words.
    """

    table: Table
    leader: str | None
    better: bool
    sentence: str


def verdict(table: Table) -> Verdict:
    """Who is first, how far above ERM, and whether chance explains it (Bonferroni over the algorithms compared)."""
    means = {name: one.mean for name in table.algorithms if (one := table.estimates[name, AVERAGE]) is not None}
    if not means:
        return Verdict(table, None, False, f"{table.dataset}: no algorithm has all its numbers yet.")
    leader = max(means, key=lambda name: means[name])
    one = table.estimates[leader, AVERAGE]
    assert one is not None
    doubt = "" if one.standard_error is None else f" ± {one.standard_error:.1f}"
    first = f"{table.dataset}: {leader} is first with {one.mean:.1f}{doubt} % (n = {one.n})"
    compared = table.comparison(leader)
    if leader == BASELINE:
        return Verdict(table, leader, False, f"{first}; nothing is better than plain {BASELINE}.")
    if compared is None:
        return Verdict(table, leader, False, f"{first}; without {BASELINE} beside it, that says little.")
    others = max(1, len(means) - 1)
    p = min(1.0, compared.p * others)
    better = p <= SURE and compared.difference > 0
    chance = "more than chance would give" if better else "which chance explains as well"
    test = f"p = {p:.2g} with {count(others, 'comparison')} allowed for, {count(compared.n, 'pair')}"
    words = f"{first}, {compared.difference:+.1f} points against {BASELINE}: {chance} ({test})."
    return Verdict(table, leader, better, words)


def headline(verdicts: Sequence[Verdict]) -> str:
    """The answer in one sentence."""
    known = [one for one in verdicts if one.leader is not None]
    if not known:
        return "There is no full comparison yet."
    better = [one for one in known if one.better]
    if not better:
        return f"No algorithm is better than {BASELINE} by more than chance here."
    leaders = list(dict.fromkeys(one.leader for one in better if one.leader))
    if len(leaders) == 1 and len(better) == len(known):
        return f"{leaders[0]} is better than {BASELINE} by more than chance."
    each = [f"{one.leader} on {one.table.dataset}" for one in better]
    return f"Better than {BASELINE} by more than chance: {listed(each)}."


def compared(subject: Subject, results: Results) -> str:
    """What was compared."""
    algorithms = {about["algorithm"] for about in subject.abouts}
    trials = {about["trial"] for about in subject.abouts}
    draws = {about["draw"] for about in subject.abouts}
    rule = results.selections[0]
    return (
        f"{count(len(algorithms), 'algorithm')} on {listed(subject.datasets)}: {count(len(subject.abouts), 'job')} from "
        f"{count(len(draws), 'draw')} of the hyperparameters and {count(len(trials), 'trial')}. Models were selected by "
        f"{rule.name}" + (", which sees the test domain." if rule.oracle else ", which does not see the test domain.")
    )


def next_steps(
    folder: Path, verdicts: Sequence[Verdict], status: Status, audit: Audit, measured: Sequence[str], predicted: bool
) -> list[tuple[str, str]]:
    """What to do next, each with its command, the most pressing first."""
    where = quote(str(folder))
    steps: list[tuple[str, str]] = []
    for table in (one.table for one in verdicts):
        steps += [(f"{table.dataset}: {words}; this runs them.", command) for words, command in table.unfinished() if command]
    if status.failures:
        steps.append((f"{count(len(status.failures), 'job')} failed; the sweep's own command tries them again.", f"shiftbed status {where}"))
    if audit.alarms:
        sources = listed([one.source for one in audit.alarms])
        steps.append((f"Explain what the audit found ({sources}) before showing the numbers.", f"shiftbed audit {where}"))
    for dataset in (one.table.dataset for one in verdicts):
        if dataset not in measured:
            command = f"shiftbed shift {quote(dataset)} --out {quote(str(folder / 'shift'))}"
            steps.append((f"Measure how far apart the domains of {dataset} are.", command))
    unsure = [one for one in verdicts if one.leader not in (None, BASELINE) and not one.better]
    if unsure:
        steps.append(("More trials would tell chance from a difference: the sweep's own command again, with more.", "--trials 5"))
    steps.append(("Train the chosen model again, ready to be loaded.", f"shiftbed best {where} --out model"))
    if not predicted:
        steps.append(("Expect its accuracy on new images without labels.", "shiftbed predict model --on FOLDER"))
    return list(dict.fromkeys(steps))


# --- shift ------------------------------------------------------------------------------------------------------------


def dominant(diversity: ShiftEstimate, correlation: ShiftEstimate) -> str | None:
    """The kind of shift that dominates; None where there is little of both, or their intervals overlap."""
    larger, smaller = (diversity, correlation) if diversity.value > correlation.value else (correlation, diversity)
    if larger.value < LITTLE:
        return None
    if larger.interval and smaller.interval and larger.interval[0] <= smaller.interval[1]:
        return None
    return larger.name


def best_published(kind: str) -> str:
    """Which algorithms OoD-Bench found better than ERM under a kind of shift, by its ranking score."""
    cells = published.cells(PUBLISHED[kind], measure="ranking score")
    scores = {cell.algorithm: round(cell.mean) for cell in cells if cell.mean is not None}
    above = sorted((name for name in scores if scores[name] > 0), key=lambda name: (-scores[name], name))
    if not above:
        return f"OoD-Bench found no algorithm of {len(scores)} above {BASELINE} under {kind} shift"
    named = listed([f"{name} ({scores[name]:+d})" for name in above])
    return f"under {kind} shift, OoD-Bench scored {named} above {BASELINE}, of {len(scores)} algorithms"


def advice(dataset: str, point: tuple[ShiftEstimate, ShiftEstimate] | None, verdicts: Sequence[Verdict]) -> str | None:
    """Which kind of shift dominates a dataset, and which algorithms did best on that kind; None where nobody knows."""
    kind = dominant(*point) if point else shift_kind(dataset)
    if kind is None and point is not None:
        small = max(one.value for one in point) < LITTLE
        why = "there is little of either kind" if small else "the two kinds cannot be told apart within their intervals"
        return f"{dataset}: {why}."
    if kind is None or kind == UNKNOWN:
        return None
    how = "" if point else ", as OoD-Bench measured it"
    here = [one for one in verdicts if one.table.dataset == dataset and one.leader]
    ours = "".join(
        f" In this sweep {one.leader} is first" + ("." if one.better else ", not by more than chance over plain ERM." if one.leader != BASELINE else ".")
        for one in here
    )
    published_best = best_published(kind)
    return (
        f"{dataset}: {kind} shift dominates{how}; {MEANS[kind]}. {published_best[0].upper()}{published_best[1:]}.{ours}"
    )


# --- citing -----------------------------------------------------------------------------------------------------------


def citations(subject: Subject, shift: bool) -> list[tuple[str, str]]:
    """Whom to cite for what is on the page."""
    found = [("ShiftBed", f"The ShiftBed developers. ShiftBed: a testbed for machine learning under distribution shift. Version {__version__}.")]
    for dataset in subject.datasets:
        try:
            known = card(dataset)
            found.append((dataset, f"{known.citation} (licence: {known.licence})"))
        except ShiftbedError:
            continue
    for algorithm in sorted({about["algorithm"] for about in subject.abouts}):
        try:
            paper = ALGORITHMS[algorithm].paper
        except ShiftbedError:
            continue
        if paper:
            found.append((algorithm, paper))
    recipes = {about["recipe"]["name"]: about["recipe"].get("paper", "") for about in subject.abouts}
    found += [(f"recipe {name}", paper) for name, paper in sorted(recipes.items()) if paper]
    if shift:
        found.append(("shift plane", published.table("ood-bench/table-1").paper))
    return found


def versions(subject: Subject, attempts: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the numbers were made with."""

    def every(values: Sequence[Any]) -> str:
        return ", ".join(sorted({str(value) for value in values if value is not None}))

    abouts = subject.abouts
    found = [
        ("shiftbed", __version__),
        ("torch", every([one.get("torch") for one in attempts])),
        ("python", every([one.get("python") for one in attempts])),
        ("devices", every([one.get("device") for one in attempts])),
        ("numerics", every([about.get("numerics") for about in abouts])),
        ("datasets", every([f"{about['dataset']} version {about['version']}" for about in abouts])),
        ("recipes", every([f"{about['recipe']['name']}, {about['recipe']['steps']} steps" for about in abouts])),
        ("revisions", every([f"{about['algorithm']} {about['revision']}" for about in abouts])),
    ]
    return [(name, value) for name, value in found if value]
