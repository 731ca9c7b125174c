"""Does this dataset's test accuracy come from the initial weights? Plans, runs and judges the study that answers it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiftbed.accuracy.fitting import rank_correlation
from shiftbed.audit import study
from shiftbed.audit.findings import Finding, Verdict
from shiftbed.audit.splits import WEIGHTS_SOURCE
from shiftbed.audit.study import NOTHING, Accuracy, Arm
from shiftbed.audit.subject import Subject
from shiftbed.data import card
from shiftbed.errors import DataError, ShiftbedError
from shiftbed.registry import did_you_mean
from shiftbed.sweeps.domainbed_format import REVISION
from shiftbed.sweeps.pool import LocalPool, Progress, default_workers
from shiftbed.tables.grids import MISSING, Entry, Grid
from shiftbed.training.device import find_runtime, find_runtimes
from shiftbed.training.recipes import recipe_of
from shiftbed.training.store import LocalStore

NUMBERS = "study.json"  # in RUNS: the accuracies
RUNS = "audit"  # below the sweep's folder: a store of its own, whose jobs stand in no table of the sweep
# One more: on cached features they are those of training by steps up to rounding, not to the bit.
PROBES = f"{RUNS}/probes"


@dataclass(frozen=True)
class Results:
    """The accuracies of a study on one dataset.

    Attributes:
        dataset: The dataset's name.
        found: Per arm and test domain.
        distances: Per test domain, how far it is from the stand-in for the pretraining data; empty without one.
    """

    dataset: str
    found: Mapping[Arm, Mapping[str, Accuracy]]
    distances: Mapping[str, float]

    def of(self, weights: str) -> dict[Arm, Mapping[str, Accuracy]]:
        """The arms of some initial weights, from fine-tuning to the linear probe."""
        return {arm: found for arm, found in self.found.items() if arm.weights == weights}

    def end(self, weights: str, probe: bool) -> Mapping[str, Accuracy]:
        """The linear probe, or fine-tuning."""
        ends = [found for arm, found in self.of(weights).items() if (arm.probe if probe else arm.frozen == 0)]
        return ends[0] if ends else {}

    def gaps(self, weights: str) -> dict[str, float]:
        """Per test domain, the relative gap of the linear probe to fine-tuning; not a number where the latter is 0."""
        tuned, probed = self.end(weights, probe=False), self.end(weights, probe=True)
        both = [domain for domain in tuned if domain in probed]
        return {domain: study.relative_gap(probed[domain].mean, tuned[domain].mean) for domain in both}

    def as_good(self, weights: str, errors: float = 1) -> list[str]:
        """The test domains on which the probe is no worse than fine-tuning by more than so many standard errors."""
        tuned, probed = self.end(weights, probe=False), self.end(weights, probe=True)

        def no_worse(one: Accuracy, other: Accuracy) -> bool:
            return one.mean >= other.mean - errors * math.hypot(one.error, other.error)

        return [domain for domain, one in probed.items() if domain in tuned and no_worse(one, tuned[domain])]

    def slopes(self, weights: str) -> dict[str, float]:
        """Per test domain, the rank correlation of accuracy with the number of frozen stages."""
        ours = sorted(self.of(weights).items(), key=lambda item: item[0].frozen)
        domains = [domain for domain in ours[0][1] if all(domain in found for _, found in ours)]
        return {
            domain: rank_correlation([arm.frozen for arm, _ in ours], [f[domain].mean for _, f in ours])
            for domain in domains
        }

    def rows(self) -> list[dict[str, Any]]:
        """Every accuracy with what was trained, for figures and machines."""
        return [
            {**_labels(self.dataset, arm), "test": domain, **one._asdict()}
            for arm, found in self.found.items()
            for domain, one in found.items()
        ]

    def correlation(self, weights: str) -> float | None:
        """The rank correlation of gap and distance over test domains; None where it is not defined."""
        gaps = self.gaps(weights)
        domains = [domain for domain, gap in gaps.items() if domain in self.distances and math.isfinite(gap)]
        if len(domains) < 3:
            return None
        return _known(rank_correlation([gaps[d] for d in domains], [self.distances[d] for d in domains]))


def _known(value: float) -> float | None:
    """A number, or None where it is not defined."""
    return value if math.isfinite(value) else None


def _labels(dataset: str, arm: Arm) -> dict[str, Any]:
    # Whole, as they were named: two files of models trained here are both called weights.safetensors.
    return {"dataset": dataset, "weights": arm.weights, "frozen": arm.frozen, "probe": arm.probe}


def _start(weights: str) -> str:
    return "random weights" if weights == NOTHING else weights


def run_study(
    subject: Subject,
    weights: Sequence[str] = (),
    stand_in: str | None = None,
    draws: int = 1,
    trials: int = 1,
    *,
    device: str | None = None,
    workers: int | None = None,
    on_change: Callable[[Progress], None] = lambda progress: None,
) -> Finding:
    """Trains what is missing of the study, for every dataset of a sweep, and says what it shows.

    Args:
        subject: The sweep, whose networks, steps and initial weights are studied.
        weights: The initial weights; by default the sweep's, and none.
        stand_in: A domain that stands in for the pretraining data.
        draws: Draws of the hyperparameters.
        trials: Repetitions.
        device: Where to train.
        workers: Processes.
        on_change: Called with the progress of fine-tuning.

    Raises:
        DataError: The stand-in is no domain.
    """
    ours = [about for about in subject.abouts if about["revision"] != REVISION]
    if not ours:
        sentence = "DomainBed's records do not say how the networks were made, so nothing can be trained beside them."
        return Finding(WEIGHTS_SOURCE, "unknown", sentence)
    store, probe_store = (LocalStore(Path(subject.folder) / below) for below in (RUNS, PROBES))
    runtimes = find_runtimes(device)
    results = []
    for dataset in sorted({about["dataset"] for about in ours}):
        about = next(about for about in ours if about["dataset"] == dataset)
        how = recipe_of(about)
        names = list(dict.fromkeys(weights or (how.initial_weights or NOTHING, NOTHING)))
        tests = sorted({name for one in ours if one["dataset"] == dataset for name in one["test_domains"]})
        if stand_in is not None and stand_in not in card(dataset).domains:
            known = list(card(dataset).domains)
            raise DataError(f"{dataset} has no domain '{stand_in}' to stand in.{did_you_mean(stand_in, known)}")
        stages = study.stages_of(dataset, how)
        plans = {arm: study.plan(dataset, how, arm, tests, draws, range(trials)) for arm in study.arms(names, stages)}
        tuned = [job for arm, jobs in plans.items() if not arm.probe for job in jobs]
        probes = [job for arm, jobs in plans.items() if arm.probe for job in jobs]
        pool = LocalPool(store, workers or default_workers(), [], "none", runtimes)
        failed = pool.run(tuned, on_change).failed
        if failed:
            raise ShiftbedError(f"{len(failed)} trainings of the study failed: {next(iter(failed.values()))}")
        study.run_here(probes, probe_store, find_runtime(device))
        stores = {arm: probe_store if arm.probe else store for arm in plans}
        found = {arm: study.accuracies(study.finished(jobs, stores[arm])) for arm, jobs in plans.items()}
        far = study.distances(probes[0], stand_in, find_runtime(device)) if stand_in else {}
        results.append(Results(dataset, found, far))
    numbers = [row for one in results for row in one.rows()]
    store.put_atomic(NUMBERS, json.dumps(numbers, indent=1).encode())
    return judged(results)


def judged(results: Sequence[Results]) -> Finding:
    """The verdict on some studies: whether accuracy mostly comes from the initial weights."""
    sentences, mostly, unsure, grids = [], False, False, []
    for one in results:
        names = [name for name in dict.fromkeys(arm.weights for arm in one.found) if one.gaps(name)]
        grids += [grid(one, name) for name in names]
        pretrained = [name for name in names if name != NOTHING]
        for name in pretrained or names:
            good, gaps = one.as_good(name), one.gaps(name)
            most, sure = (len(some) >= len(gaps) / 2 for some in (good, one.as_good(name, errors=0)))
            mostly |= most and sure and bool(pretrained)
            unsure |= most and not sure and bool(pretrained)
            verdict = "accuracy mostly comes from" if most else "accuracy does not mostly come from"
            if most and not sure:  # errors so large that anything is as good
                verdict = "most of that is within a standard error, so that nobody can tell whether accuracy comes from"
            sentences.append(
                f"on {one.dataset} a linear probe of {_start(name)} is as good as fine-tuning on {len(good)} of "
                f"{len(gaps)} test domains{f' ({chr(44).join(good)})' if good else ''}: {verdict} the initial weights"
            )
    found: Verdict = "exposed" if mostly else "unknown" if unsure else "clear"
    return Finding(WEIGHTS_SOURCE, found, f"{'; '.join(sentences)}.", grids)


def grid(results: Results, weights: str) -> Grid:
    """Accuracy from fine-tuning to the linear probe, the gap, the slope, and the distance to the stand-in."""
    ours = results.of(weights)
    domains = list(dict.fromkeys(domain for found in ours.values() for domain in found))
    rows: list[tuple[str, list[Entry]]] = []
    data: list[dict[str, Any]] = []
    for arm, found in ours.items():
        name = "fine-tuned" if not arm.frozen else "linear probe" if arm.probe else f"{arm.frozen} frozen"
        cells = [found.get(domain) for domain in domains]
        known = [cell.mean for cell in cells if cell]
        texts = [MISSING if cell is None else f"{cell.mean:.1f} ±{cell.error:.1f}" for cell in cells]
        texts.append(f"{sum(known) / len(known):.1f}" if len(known) == len(cells) and known else MISSING)
        rows.append((name, [Entry(text) for text in texts]))
        data += [{**_labels(results.dataset, arm), "test": domain, **one._asdict()} for domain, one in found.items()]
    extra = {"relative gap": results.gaps(weights), "slope": results.slopes(weights), "distance": results.distances}
    for name, found_values in extra.items():
        values = {domain: _known(value) for domain, value in found_values.items()}
        if values:
            sign = "" if name == "distance" else "+"
            shown = [values.get(domain) for domain in domains]
            texts = [MISSING if value is None else f"{value:{sign}.3g}" for value in shown]
            rows.append((name, [*(Entry(text) for text in texts), Entry(MISSING)]))
            labels = {"dataset": results.dataset, "weights": weights}
            data += [{**labels, "measure": name, "test": domain, "value": value} for domain, value in values.items()]
    correlation = results.correlation(weights)
    related = "" if correlation is None else f" Rank correlation of gap and distance: {correlation:.2f}."
    single = sum(one.trials == 1 for found in ours.values() for one in found.values())
    alone = f"± is over trials; of a single trial (cells: {single}) over images, which tells nothing of other trials."
    return Grid(
        title=f"{results.dataset}, from {_start(weights)}",
        caption="accuracy in % ± standard error, by what is trained, and by test domain",
        corner="trained",
        columns=[*domains, "Avg"],
        rows=rows,
        notes=[
            "relative gap: of the probe to fine-tuning; slope: rank correlation of accuracy with the number of frozen "
            f"stages; distance: Fréchet's, to the stand-in for the pretraining data.{related}",
            *([alone] if single else []),
        ],
        data=data,
    )
