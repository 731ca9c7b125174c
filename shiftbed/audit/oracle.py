"""Oracle selection: what choosing by the test domain would gain, and what is left when several are tested jointly."""

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from shiftbed.audit.findings import Finding, Verdict
from shiftbed.audit.subject import HONEST, Subject
from shiftbed.data import card_if_known
from shiftbed.protocols import TargetTrained
from shiftbed.selection import SELECTIONS, Cell, Evidence, Selection, TaskRecords
from shiftbed.selection.evidence import VALIDATION
from shiftbed.tables import Table
from shiftbed.tables.estimates import Estimate, paired_permutation_test, smallest_p
from shiftbed.tables.grids import MISSING, Entry, Grid
from shiftbed.tables.table import ORACLE_MARK, ORACLE_NOTE

SOURCE = "oracle selection"
JOINT_SOURCE = "number of test domains"
LEAST_JOINT = 3  # fewer domains say nothing about how leakage falls with their number
SHUFFLES = 200
LEVEL = 0.05
USUAL_DRAWS = 20


# --- The gap between oracle and honest selections --------------------------------------------------------------------


def oracle_gap(subject: Subject) -> Finding:
    """How much better test accuracy is when the test domain's labels choose, per algorithm, dataset and selection."""
    rows: list[dict[str, Any]] = []
    for honest, oracle in zip(subject.honest(), subject.results("oracle"), strict=True):
        rows += [row for table in honest for row in _gaps(table, oracle)] if not oracle.is_empty else []
    if not subject.has_records:
        return Finding(SOURCE, "unknown", subject.without_records)
    if not rows:
        return Finding(SOURCE, "unknown", "the records have no held-out part of a test domain, or no honest selection.")
    level = LEVEL / len(rows)  # many are tested, so each must be the surer
    sure = [row for row in rows if row["gap"] > 0 and row["p"] < level]
    largest = max(rows, key=lambda row: row["gap"])
    gap = f"{largest['gap']:+z.1f} points"
    where = f"{largest['algorithm']} on {largest['dataset']} against {largest['selection']}"
    verdict: Verdict = "clear"
    if sure:
        verdict = "exposed"
        words = f"{len(sure)} of {len(rows)} gaps are more than chance; the largest is {gap}"
    elif largest["gap"] > 0 and all(smallest_p(row["n"]) >= level for row in rows):
        verdict = "unknown"
        words = f"too few trials and test domains to tell from chance; the largest gap is {gap}"
    elif subject.left_out("oracle"):
        verdict = "unknown"
        words = f"no gap is more than chance, but the oracle chose among fewer draws; the largest is {gap}"
    else:
        words = f"no gap is more than chance; the largest is {gap}"
    rules = list(dict.fromkeys(row["selection"] for row in rows))
    grids = [
        _gap_grid(rule, [row for row in rows if row["selection"] == rule], level, subject.left_out(rule, "oracle"))
        for rule in rules
    ]
    return Finding(SOURCE, verdict, f"{words} ({where}).", grids)


def _gaps(honest: Table, oracle: Table) -> Iterable[dict[str, Any]]:
    for name in honest.algorithms:
        theirs, ours = honest.pairs(name, name, oracle)
        compared = paired_permutation_test(ours, theirs)
        estimate = Estimate.of([one - other for one, other in zip(ours, theirs, strict=True)])
        if compared and estimate:
            yield {
                "dataset": honest.dataset,
                "recipe": honest.about["recipe"]["name"],
                "selection": honest.selection.name,
                "algorithm": name,
                "honest": float(np.mean(theirs)),
                "oracle": float(np.mean(ours)),
                "gap": compared.difference,
                "standard_error": estimate.standard_error,
                "p": compared.p,
                "n": compared.n,
            }


def _gap_grid(rule: str, rows: list[dict[str, Any]], level: float, unrecorded: Sequence[str]) -> Grid:
    def entries(row: dict[str, Any]) -> list[Entry]:
        error = "" if row["standard_error"] is None else f" ±{row['standard_error']:.1f}"
        texts = f"{row['honest']:.1f}", f"{row['oracle']:.1f}{ORACLE_MARK}", f"{row['gap']:+z.1f}{error}"
        return [Entry(text) for text in (*texts, f"{row['p']:.2g}", str(row["n"]))]

    return Grid(
        title=f"Oracle selection against {rule}",
        caption="accuracy in % of either, and the gap in points, mean ± standard error",
        corner="dataset, algorithm",
        columns=["honest", "oracle", "gap", "p", "n"],
        rows=[(f"{row['dataset']}, {row['algorithm']}", entries(row)) for row in rows],
        notes=[
            ORACLE_NOTE,
            "p: permutation test of the n pairs of trial and test domain (of those tested together one pair: they are "
            f"of one model); it is more than chance below {level:.2g} ({LEVEL} over all tests made).",
            *unrecorded,
        ],
        data=rows,
    )


# --- K jointly tested domains (Yu et al., 2024, Table 4) -------------------------------------------------------------


@dataclass(frozen=True)
class Leakage:
    """What oracle selection leaks as the number K of jointly tested domains grows.

    Attributes:
        honest: Per domain, the accuracy of the draw that honest selection picks.
        oracle: K × domains, from K = 1: a domain's accuracy in the mean over all sets of K domains that contain it.
    """

    honest: np.ndarray
    oracle: np.ndarray

    @property
    def leakage(self) -> np.ndarray:
        """Per K, how much better the oracle is in the mean over domains."""
        return self.oracle.mean(axis=1) - self.honest.mean()

    @property
    def change(self) -> np.ndarray:
        """Per K, the change of the leakage against K = 1, as a share of it; not a number where there is none."""
        first = self.leakage[0]
        return self.leakage / first - 1 if first > 0 else np.full(len(self.oracle), np.nan)


def leakage(accuracy: np.ndarray, chosen: int) -> Leakage:
    """Leakage by K of one cell: for every set of K test domains, the draw that is best on it in the mean.

    Args:
        accuracy: Draws × test domains.
        chosen: The draw that honest selection picks.
    """
    domains = accuracy.shape[1]
    oracle = np.zeros((domains, domains))
    for k in range(1, domains + 1):
        counts = np.zeros(domains)
        for some in map(list, combinations(range(domains), k)):
            best = accuracy[:, some].mean(axis=1).argmax()
            oracle[k - 1, some] += accuracy[best, some]
            counts[some] += 1
        oracle[k - 1] /= counts
    return Leakage(accuracy[chosen], oracle)


def luck(accuracy: np.ndarray, chosen: int) -> np.ndarray:
    """The leakage by K if accuracies were shuffled among the draws, each domain by itself, in the mean of shuffles.

    A shuffled draw is good on one domain and not on the next: what is left is arithmetic, and no knowledge.
    """
    random = np.random.default_rng(0)
    return np.mean([leakage(random.permuted(accuracy, axis=0), chosen).leakage for _ in range(SHUFFLES)], axis=0)


def cells_tested_jointly(task: TaskRecords, honest: Selection) -> Iterable[tuple[Cell, np.ndarray, int]]:
    """Each cell with its accuracies (draws × domains, in %) and honest choice, by a rule.

    A draw is read at the checkpoint that is best by this rule.
    """
    score = honest.scores(Evidence(task, honest.columns)) if task.has(VALIDATION) else np.empty(0)
    if not score.size:  # all diverged before they were evaluated
        return
    score = np.where(np.isnan(score), -np.inf, score)
    position = score.argmax(axis=1)
    rows = np.arange(len(score))
    values, counts = (task.values[name][rows, position] for name in ("accuracy", "count"))
    places = [task.reported(domain) for domain in task.tested]
    means = [np.average(values[:, where], axis=1, weights=counts[:, where]) for where in places]
    accuracy, best = 100 * np.stack(means, axis=1), score[rows, position]
    for cell, where in task.cells.items():
        usable = np.flatnonzero(np.isfinite(best[where]) & np.isfinite(accuracy[where]).all(axis=1)) + where.start
        if len(usable) > 1:
            chosen = len(usable) - 1 - int(best[usable][::-1].argmax())  # the last of equals, as in tables
            yield cell, accuracy[usable], chosen


def joint_leakage(subject: Subject) -> Finding:
    """Leakage of oracle selection against the number of test domains, where at least three are tested jointly."""
    grids = []
    for task in subject.tasks:
        if len(task.tested) >= LEAST_JOINT and task.abouts[0]["task"]["kind"] != TargetTrained.kind:
            found: dict[str, list[tuple[Leakage, np.ndarray]]] = defaultdict(list)
            for cell, accuracy, chosen in cells_tested_jointly(task, SELECTIONS[HONEST[0]]):
                found[cell.variant.algorithm].append((leakage(accuracy, chosen), luck(accuracy, chosen)))
            grids += [_joint_grid(task, algorithm, cells) for algorithm, cells in found.items()]
    if not grids:
        sentence = "no job with several draws tests at least 3 domains jointly, so how leakage falls cannot be told."
        return Finding(JOINT_SOURCE, "unknown", sentence, commands=_joint_plans(subject))
    firsts = [(row["leakage"], row["luck"]) for grid in grids for row in grid.data if row["K"] == 1]
    lasts = [row["leakage"] for grid in grids for row in grid.data if row["K"] == row["domains"]]
    first, chance, last = np.mean([one for one, _ in firsts]), np.mean([one for _, one in firsts]), np.mean(lasts)
    sentence = (
        f"choosing for one test domain leaks {first:.2f} points, choosing for all jointly {last:.2f}; shuffled "
        f"accuracies, which know nothing, give {chance:.2f} for one."
    )
    return Finding(JOINT_SOURCE, "exposed" if last > 0 else "clear", sentence, grids)


def _joint_grid(task: TaskRecords, algorithm: str, cells: list[tuple[Leakage, np.ndarray]]) -> Grid:
    """The cells of all trials as DomainBed-v2's Table 4 has them."""
    mean = Leakage(*(np.mean([getattr(one, name) for one, _ in cells], axis=0) for name in ("honest", "oracle")))
    by_luck = np.mean([chance for _, chance in cells], axis=0)
    about, domains = task.abouts[0], task.tested
    rows: list[tuple[str, list[Entry]]] = []
    honest = [*mean.honest, mean.honest.mean()]
    rows.append(("honest", [*(Entry(f"{v:.2f}") for v in honest), Entry("0.00"), Entry(MISSING), Entry(MISSING)]))
    data = []
    for k, (oracle, leaked, change) in enumerate(zip(mean.oracle, mean.leakage, mean.change, strict=True), start=1):
        fallen = None if np.isnan(change) else float(change)  # JSON knows no other way to say that there is none
        share = MISSING if fallen is None else f"{100 * fallen:+z.0f} %"
        texts = [*(f"{v:.2f}" for v in (*oracle, oracle.mean())), f"{leaked:.2f}", share, f"{by_luck[k - 1]:.2f}"]
        rows.append((f"oracle, K = {k}", [Entry(text) for text in texts]))
        numbers = {"leakage": float(leaked), "change": fallen, "luck": float(by_luck[k - 1])}
        by_domain = dict(zip(domains, map(float, oracle), strict=True))
        data.append({"dataset": about["dataset"], "algorithm": algorithm, "K": k, "domains": len(domains), **numbers})
        data[-1] |= {"accuracy": by_domain, "trials": len(cells)}
    return Grid(
        title=f"{about['dataset']}, {algorithm}: leakage of oracle selection by the number K of test domains it sees",
        caption=f"accuracy in %, mean over all sets of K test domains and n = {len(cells)} trials",
        corner="selection",
        columns=[*domains, "Avg", "leakage", "change", "luck"],
        rows=rows,
        notes=[
            "luck: the leakage if accuracies were shuffled among draws. By arithmetic leakage cannot grow with K, so "
            "its fall says something only beside that of luck."
        ],
        data=data,
    )


def _joint_plans(subject: Subject) -> list[tuple[str, str]]:
    """The sweeps that would allow the answer, where a dataset has enough domains."""
    plans = []
    for dataset in subject.datasets:
        known = card_if_known(dataset)
        if known is None:
            continue
        threes = [name for name, groups in known.groupings.items() if min(map(len, groups)) >= LEAST_JOINT]
        protocol = f"leave-group-out:{threes[0]}" if threes else f"k-sources:{len(known.domains) - LEAST_JOINT}"
        if len(known.domains) <= LEAST_JOINT or (len(known.splits) > 1 and not threes):
            continue
        abouts = [about for about in subject.abouts if about["dataset"] == dataset]
        recipe = abouts[0]["recipe"]
        words = ["shiftbed", "sweep", dataset]
        words.append(f"--algorithms={','.join(sorted({about['algorithm'] for about in abouts}))}")
        words += [f"--protocol={protocol}", f"--draws={USUAL_DRAWS}"]
        words += [f"--recipe={recipe['name']}", f"--steps={recipe['steps']}"]
        by_hand = set.intersection(*({*map(json.dumps, about.get("overrides", {}).items())} for about in abouts))
        words += [f"--set={name}={json.dumps(value)}" for name, value in map(json.loads, sorted(by_hand))]
        pasted = sorted({about["algorithm"] for about in abouts if str(about["revision"]).startswith("source ")})
        files = f" (with --code and the file of {', '.join(pasted)})" if pasted else ""
        what = f"Testing 3 domains of {dataset} jointly{files}"
        plans.append((what, shlex.join([*words, f"--out={subject.folder}"])))
    return plans
