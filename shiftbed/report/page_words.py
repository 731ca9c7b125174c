"""The page's plain words: who won and how sure that is, what to do next, whom to cite."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from shiftbed import __version__, published
from shiftbed.algorithms import ALGORITHMS
from shiftbed.audit.findings import Audit
from shiftbed.audit.subject import Subject
from shiftbed.data import card_if_known
from shiftbed.errors import ShiftbedError, UnknownNameError, plural
from shiftbed.report.page_results import Results
from shiftbed.sweeps.plan import with_sources
from shiftbed.sweeps.records import Status
from shiftbed.tables import AVERAGE, Table
from shiftbed.tables.missing import MissingJob, sweep_command
from shiftbed.tables.table import BASELINE

SURE = 0.05  # a p-value above it is called chance
COMMON_SIDE = 64  # to which images are brought whose sizes differ


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@dataclass(frozen=True)
class Verdict:
    """Who is first in a table, and how sure that is.

    Attributes:
        table: The table.
        name: What it is called: its dataset, or its title where several are of one dataset.
        leader: The first algorithm, or None where no number is there.
        better: The algorithms that are better than ERM by more than chance, all comparisons allowed for.
        sentence: The same in words.
        enough: Whether there are pairs enough for any difference to be more than chance.
    """

    table: Table
    name: str
    leader: str | None
    better: tuple[str, ...]
    sentence: str
    enough: bool = False


def verdicts(tables: Sequence[Table]) -> list[Verdict]:
    """The verdict of each table; not of references, which learned from the domains that they test, beside results."""
    shown = [table for table in tables if not table.is_reference] or tables
    datasets = [table.dataset for table in shown]
    return [verdict(table, table.dataset if datasets.count(table.dataset) == 1 else table.title) for table in shown]


def verdict(table: Table, name: str = "") -> Verdict:
    """Who is first, how far above ERM, and whether chance explains it (Bonferroni over the algorithms compared)."""
    called = name or table.dataset
    made = partial(Verdict, table, called)
    found = {name: one for name in table.algorithms if (one := table.estimates[name, AVERAGE]) is not None}
    if not found:
        return made(None, (), f"{called}: no algorithm has all its numbers yet.")
    leader = max(found, key=lambda name: (round(found[name].mean, 1), name == BASELINE, found[name].mean))
    error = found[leader].standard_error
    doubt = "" if error is None else f" ± {error:.1f}"
    level = [name for name in found if name != leader and round(found[name].mean, 1) == round(found[leader].mean, 1)]
    if len(table.algorithms) == 1:
        who = f"{leader} is alone"
    else:
        who = f"{listed([leader, *level])} are level" if level else f"{leader} is first"
    first = f"{called}: {who} with {found[leader].mean:.1f}{doubt} % (n = {found[leader].n})"
    if BASELINE not in found:
        return made(leader, (), f"{first}; without {BASELINE} beside it, that says little.")
    if len(table.algorithms) == 1:
        return made(leader, (), f"{first}; with nothing beside it, that says little.")
    tests = {name: test for name in found if (test := table.comparison(name)) is not None}
    # Of n pairs no p can be less than two in 2ⁿ: all signs one way, or all the other.
    enough = any(len(tests) * 2.0 ** (1 - test.n) <= SURE for test in tests.values())
    better = tuple(name for name, test in tests.items() if test.difference > 0 and test.p * len(tests) <= SURE)
    if leader == BASELINE:
        return made(leader, better, f"{first}; nothing is better than plain {BASELINE}.", enough)
    if leader not in tests:
        return made(leader, better, f"{first}; it shares no trial with {BASELINE} to be compared in.", enough)
    test, compared = tests[leader], plural(len(tests), "comparison")
    if leader in better:
        chance = "more than chance would give"
    elif not enough:
        chance = "from too few pairs to tell it from chance"
    else:
        chance = "which chance explains as well"
    how = f"p = {min(1.0, test.p * len(tests)):.2g} with {compared} allowed for, {plural(test.n, 'pair')}"
    words = f"{first}, {test.difference:+z.1f} points against {BASELINE}: {chance} ({how})."
    return made(leader, better, words, enough)


def headline(verdicts: Sequence[Verdict]) -> str:
    """The answer in one sentence."""
    known = [one for one in verdicts if one.leader is not None]
    if not known:
        return "There is no full comparison yet."
    if not any(BASELINE in one.table.chosen for one in known):
        return f"There is no {BASELINE} to compare with."
    if all(len(one.table.algorithms) == 1 for one in known):
        return f"{BASELINE} alone was trained: there is nothing to compare it with."
    better = [one for one in known if one.better]
    if not any(one.enough for one in known):
        return f"There are too few trials to tell any algorithm from {BASELINE}."
    if not better:
        return f"No algorithm is better than {BASELINE} by more than chance here."
    if len(known) == 1 or (len(better) == len(known) and len({one.better for one in better}) == 1):
        verb = "is" if len(better[0].better) == 1 else "are"
        return f"{listed(better[0].better)} {verb} better than {BASELINE} by more than chance."
    each = [f"{listed(one.better)} on {one.name}" for one in better]
    return f"Better than {BASELINE} by more than chance: {listed(each)}."


def compared(subject: Subject, results: Results) -> str:
    """What was compared."""
    algorithms = {about["algorithm"] for about in subject.abouts}
    trials = {about["trial"] for about in subject.abouts}
    draws = {about["draw"] for about in subject.abouts}
    rule = results.selections[0]
    what = f"{plural(len(algorithms), 'algorithm')} on {listed(subject.datasets)}"
    search = f"{plural(len(draws), 'draw')} of the hyperparameters and {plural(len(trials), 'trial')}"
    sees = "sees" if rule.oracle else "does not see"
    return (
        f"{what}: {plural(len(subject.abouts), 'job')} from {search}. Models were selected by {rule.name}, "
        f"which {sees} the test domain."
    )


def next_steps(
    folder: Path, verdicts: Sequence[Verdict], status: Status, audit: Audit, measured: Sequence[str], predicted: bool
) -> list[tuple[str, str]]:
    """What to do next, each with its command, the most pressing first."""
    where, tables = quote(str(folder)), [one.table for one in verdicts]
    every = {name for table in tables for name in table.names.values()}
    steps: list[tuple[str, str | None]] = [
        (with_file(f"{table.dataset}: {words}; this runs them.", table.names.values()), command)
        for table in tables
        for words, _, command in table.unfinished()
    ]
    if status.failures:
        failed = plural(len(status.failures), "job")
        needs = with_sources(
            (row for row in status.plan.values() if row["id"] in status.failures), status.plan.values()
        )
        steps.append((f"{failed} failed; the sweep's own command tries again{needs}.", f"shiftbed status {where}"))
    if audit.alarms:
        sources = listed([one.source for one in audit.alarms])
        explain = f"Explain what the audit found ({sources}) before showing the numbers."
        steps.append((explain, f"shiftbed audit {where}"))
    for dataset in (table.dataset for table in tables if table.dataset not in measured):
        command = f"shiftbed shift {quote(dataset)}{_common_size(dataset)} --out {quote(str(folder / 'shift'))}"
        steps.append((f"Measure how far apart the domains of {dataset} are.", command))
    for one in verdicts:
        single = all(found.n == 1 for found in one.table.estimates.values() if found is not None)
        if one.leader is not None and (single or one.leader not in (BASELINE, *one.better)):
            tell = "a difference from chance" if len(one.table.algorithms) > 1 else "how far its accuracy varies"
            words = f"{one.name}: more trials would tell {tell}."
            steps.append((with_file(words, one.table.names.values()), more_trials(one.table)))
    if any(one.leader for one in verdicts):
        words = with_file("Train the chosen model again, ready to be loaded.", every)
        steps.append((words, f"shiftbed best {where} --out model"))
    if not predicted:
        words = with_file("Expect its accuracy on new images without labels.", every)
        steps.append((words, "shiftbed predict model --on FOLDER"))
    return [(words, command) for words, command in dict.fromkeys(steps) if command is not None]


def pasted(algorithms: Iterable[str]) -> list[str]:
    """Those of some algorithms that are classes of the user's: a sweep knows their names, and not their files."""
    return sorted({name for name in algorithms if _is_pasted(name)})


def _is_pasted(algorithm: str) -> bool:
    try:
        return "source " in str(ALGORITHMS[algorithm].revision)  # of our own classes it is a number
    except UnknownNameError:
        return True


def with_file(words: str, algorithms: Iterable[str]) -> str:
    """A sentence about a command, which tells of the file that the command needs beside its words."""
    needed = pasted(algorithms)
    return f"{words.removesuffix('.')} (with --code and the file of {listed(needed)})." if needed else words


def _common_size(dataset: str) -> str:
    """The option that `shiftbed shift` asks for where images differ in size."""
    known = card_if_known(dataset)
    return f" --size={COMMON_SIDE}" if known and known.input_shape is None else ""


def more_trials(table: Table) -> str | None:
    """The command that doubles a table's trials, or None where it cannot be told."""
    trials = 2 * max(len(one) for cells in table.chosen.values() for one in cells.values())
    draws = max(most for _, most in table.draws.values())
    tested = dict.fromkeys(together for together, _ in table.columns)
    jobs = [
        MissingJob(table.names[name], domains, trials - 1, draws - 1, table.by_hand_of(name))
        for name in table.algorithms
        for domains in tested
    ]
    return sweep_command(table.about, jobs, table.folder, table.design, table.selection.name)


def citations(subject: Subject, shift: bool) -> list[tuple[str, str]]:
    """Whom to cite for what is on the page."""
    own = f"The ShiftBed developers. ShiftBed: a testbed for machine learning under distribution shift. {__version__}."
    found = [("ShiftBed", own)]
    for dataset in subject.datasets:
        known = card_if_known(dataset)
        if known:
            found.append((dataset, f"{known.citation} (licence: {known.licence})"))
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
