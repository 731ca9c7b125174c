"""What the shift estimators give where the truth is known; writes docs/shift.md from docs/shift.json.

Each study adds its numbers to docs/shift.json, so that they can be run one at a time:

    python scripts/shift_study.py closed-forms     about 5 minutes on one core
    python scripts/shift_study.py coverage         about 20 minutes on one core
    python scripts/shift_study.py table-3 MNIST OUT    the folders of the IDX files and of finished measurements
    python scripts/shift_study.py figure-4 MNIST OUT   the same; about 10 minutes on one core
    python scripts/shift_study.py pack PACS.npz        PACS at 128 px under the data root
    python scripts/shift_study.py features DATASET --weights FILE    a ResNet-50's features of a dataset as another one
    python scripts/shift_study.py nico DATASET OUT     NICO++'s Table 1 on a prepared dataset
    python scripts/shift_study.py page             the page only

Interrupted or out of `--seconds`, table-3, figure-4 and nico keep what is finished and go on from there next time.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed import published
from shiftbed.data import Card, Domain, MultiDomainDataset, load
from shiftbed.data.arrays import write_arrays
from shiftbed.data.roots import pack_folder, prepared_names
from shiftbed.shift.closed_forms import CLOSED_FORMS, blue_shifts, coloured_correlation
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.features import samples_of
from shiftbed.shift.measure import measure_shift
from shiftbed.shift.nico import nico_table_1
from shiftbed.shift.studies import ahead, run
from shiftbed.training.device import find_runtime

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "shift.json", DOCS / "shift.md"
FIGURE_4 = DOCS / "results" / "ood-bench-figure-4"
SEEDS = range(5)
SPLITS = 100
# Halves of one domain lie at the boundary of what shift can be; these pairs do not. The last has an edge, which no
# sample shows exactly.
COVERED = {
    "three tenths novel": "diversity",
    "flipped, mean 0.5": "correlation",
    "digit and colour, 0.5": "correlation",
    "half overlap": "diversity",
}


def closed_forms(results: dict[str, Any]) -> None:
    """Every closed form with five seeds."""
    found = results.setdefault("closed forms", {})
    for name, case in CLOSED_FORMS.items():
        for seed in SEEDS:
            if f"{name}, seed {seed}" not in found:
                made = measure_shift(case.dataset(seed=seed), seed=seed, baseline=False)
                values = [made.diversity.details["raw"], made.correlation.details["raw"]]
                found[f"{name}, seed {seed}"] = values
                save(results)
                print(name, seed, np.round(values, 3), flush=True)


def coverage(results: dict[str, Any]) -> None:
    """How often intervals cover the truth: 0 between random halves of one domain, and where there is a shift."""
    found = results.setdefault("coverage", {})
    whole = CLOSED_FORMS["digit and colour, 0.9"].dataset(4000, seed=9).domains[0]
    for split in range(SPLITS):
        if str(split) not in found:
            order = np.random.default_rng(split).permutation(4000)
            halves = [
                Domain(name, whole.inputs[half], whole.labels[half])
                for name, half in zip("pq", (order[:2000], order[2000:]), strict=True)
            ]
            made = measure_shift(halves_of(halves), seed=split, baseline=False)
            found[str(split)] = {
                one.name: [one.details["raw"], *(one.interval or ())] for one in (made.diversity, made.correlation)
            }
            save(results)
            print(split, found[str(split)], flush=True)
    found = results.setdefault("coverage of closed forms", {})
    for seed, name in product(range(SPLITS), COVERED):
        if str(seed) not in found.setdefault(name, {}):
            made = measure_shift(CLOSED_FORMS[name].dataset(seed=seed), seed=seed, baseline=False)
            one: ShiftEstimate = getattr(made, COVERED[name])
            found[name][str(seed)] = [one.details["raw"], *(one.interval or ())]
            save(results)
            print(name, seed, found[name][str(seed)], flush=True)


def halves_of(halves: list[Domain]) -> MultiDomainDataset:
    """A dataset of the two halves of a domain."""
    card: Card = CLOSED_FORMS["identical"].dataset(10).card
    return MultiDomainDataset(card, tuple(halves))


@dataclass
class Clock:
    """Ends a study when the time that is left is shorter than its longest step so far."""

    seconds: float
    started: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def within(self, steps: Iterator[Any]) -> Iterator[Any]:
        """The steps for which there is time."""
        while self.spent() + self.longest < self.seconds:
            before = self.spent()
            try:
                step = next(steps)
            except StopIteration:
                return
            self.longest = max(self.longest, self.spent() - before)
            yield step
        getattr(steps, "close", lambda: None)()
        print(f"stopped after {self.spent():.0f} s: run it again to go on", flush=True)


def side_by_side(part: Any, kept: Path, clock: Clock, workers: int, **data: Any) -> None:
    """Measures ahead in several processes, if asked for."""
    if workers > 1:
        for done in clock.within(ahead(part, kept, workers=workers, **data)):
            print(f"{clock.spent():6.0f} s  {part.name}  {done}", flush=True)


def table_3(results: dict[str, Any], kept: Path, clock: Clock, workers: int, **data: Any) -> None:
    """OoD-Bench's Table 3 by the three methods, beside EMD, MMD and NI."""
    from shiftbed.benchmarks.spec import find

    found = results.setdefault("table 3", {})
    (part,) = find("ood-bench-table-3").parts
    side_by_side(part, kept, clock, workers, **data)
    for one in clock.within(run(part, kept, **data)):
        labels = one["labels"]
        found.setdefault(labels["setting"], {})[labels["measure"]] = [one["mean"], one["spread"]]
        save(results)
        print(f"{clock.spent():6.0f} s", labels["setting"], labels["measure"], one["mean"], one["spread"], flush=True)


def figure_4(kept: Path, clock: Clock, workers: int, **data: Any) -> None:
    """OoD-Bench's Figure 4: the three heat maps, in the folder of measurements."""
    from shiftbed.benchmarks.spec import find

    parts = find("ood-bench-figure-4").parts
    for part in parts:
        side_by_side(part, kept, clock, workers, **data)
    for part in parts:
        for one in clock.within(run(part, kept, **data)):
            print(f"{clock.spent():6.0f} s  {part.name}  {one['labels']['setting']}: {one['mean']:.3f}", flush=True)


def pack(archive: Path) -> None:
    """PACS at 128 px as a prepared dataset."""
    from audit_study import write_data  # the neighbour, which packs the same archive

    write_data(archive)


def features(dataset: str, weights: Path) -> None:
    """The features that a ResNet-50 has of a dataset's images, as a prepared dataset."""
    made = f"{dataset}-resnet50"
    if made in prepared_names():
        return
    images = load(dataset)
    domains = []
    for domain in images.domains:
        made_of = {"network": "resnet50", "weights": str(weights), "device": find_runtime().device}
        one = samples_of(images, [domain.name], **made_of)[domain.name]
        domains.append(Domain(domain.name, one.inputs, np.asarray(one.labels), domain.groups))
        print(domain.name, one.inputs.shape, flush=True)
    summary = f"Features of a ResNet-50 (ImageNet, supervised) of {dataset}"
    card = images.card.model_copy(update={"name": made, "summary": summary, "input_shape": (2048,)})
    write_arrays(domains, card, pack_folder(made))


def nico(results: dict[str, Any], dataset: str, kept: Path, clock: Clock, runs: int, **options: Any) -> None:
    """NICO++'s Table 1, a run at a time."""
    saved = kept / f"{dataset}.json"
    for means in clock.within(nico_table_1(dataset, count, saved=saved, **options) for count in range(1, runs + 1)):
        found = {name: [one.value, one.standard_error] for name, one in means.items()}
        results.setdefault("nico table 1", {})[dataset] = found
        save(results)
        print(f"{clock.spent():6.0f} s", found, flush=True)


def save(results: dict[str, Any]) -> None:
    """Keeps what there is."""
    RESULTS.write_text(json.dumps(results, indent=1), encoding="utf-8")


def page(results: dict[str, Any]) -> str:
    """The page: what is measured, how, and what the estimators give where the truth is known."""
    lines = [(Path(__file__).parent / "shift_page.md").read_text(encoding="utf-8").rstrip(), ""]
    forms = results.get("closed forms", {})
    if forms:
        lines += [
            "## Closed forms",
            "",
            "2,000 examples a side, default settings: mean (largest error) over the seeds.",
            "",
            "| pair | diversity | exact | correlation | exact | tolerance | seeds |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, case in CLOSED_FORMS.items():
            values = np.array([forms[f"{name}, seed {seed}"] for seed in SEEDS if f"{name}, seed {seed}" in forms])
            if len(values):
                exact = np.array([case.diversity, case.correlation])
                worst = np.abs(values - exact).max(0)
                shown = [
                    f"{mean:.3f} ({error:.3f}) | {truth:.3f}"
                    for mean, error, truth in zip(values.mean(0), worst, exact, strict=True)
                ]
                lines.append(f"| {name} | {' | '.join(shown)} | {case.tolerance:g} | {len(values)} |")
        lines.append("")
    lines += _coverage(results.get("coverage", {}), results.get("coverage of closed forms", {}))
    lines += [*_table_3(results.get("table 3", {})), *_figure_4(), *_nico(results.get("nico table 1", {}))]
    return "\n".join(lines).rstrip() + "\n"


def _coverage(splits: dict[str, dict[str, list[float]]], forms: dict[str, dict[str, list[float]]]) -> list[str]:
    """How many intervals cover the truth: at the boundary, and away from it."""
    if not splits:
        return []
    lines = [
        "## Coverage",
        "",
        f"{len(splits)} random halves of one domain, 2,000 examples each, where both shifts are 0:",
    ]
    lines += [
        "",
        *(_covered(name, [one[name] for one in splits.values()], 0.0) for name in ("diversity", "correlation")),
    ]
    lines += [
        "",
        "Between halves of one domain no network is sure of a side, so that diversity shift is exactly 0 every time,",
        "and its interval, up to three examples in n, always covers 0. Where there is a shift (closed forms, 2,000",
        "examples a side, drawn anew each time):",
        "",
    ]
    for name, found in forms.items():
        kind = COVERED[name]
        lines.append(_covered(f"{name}, {kind}", list(found.values()), getattr(CLOSED_FORMS[name], kind)))
    return [
        *lines,
        "",
        "An interval says how far another sample would move the estimate, not what every network misses. Where two",
        "uniform densities overlap by half, no network is sure of a side up to the very edge, and the estimate is low.",
        "",
    ]


def _covered(what: str, found: list[list[float]], exact: float) -> str:
    """How many of the intervals cover the exact value, their width, and the estimates themselves."""
    raw, low, high = np.array(found).T
    covered = int(np.sum((low <= exact) & (exact <= high)))
    return (
        f"- {what}: the 95 % interval covers {exact:.3g} in {covered} of {len(raw)}; its mean width is "
        f"{np.mean(high - low):.3f}; the estimates before clipping have mean {raw.mean():+.4f} and deviation "
        f"{raw.std():.4f}."
    )


def _table_3(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Each setting's numbers, ours above the paper's."""
    if not found:
        return []
    columns = list(dict.fromkeys(measure for of_setting in found.values() for measure in of_setting))
    lines = [
        "## OoD-Bench's Table 3",
        "",
        "ColoredMNIST, one training domain with ρ = 0.1, 30,000 images a domain, five runs, all rows with one setting.",
        "Diversity and correlation shift without a method's name are by `ratio`.",
        "",
        f"| test ρ | exact correlation | {' | '.join(columns)} |",
        f"| --- | --- |{' --- |' * len(columns)}",
    ]
    for setting, ours in found.items():
        short = setting.rpartition("correlation ")[2]
        exact = coloured_correlation(float(short[:3])) if "blue" not in setting else 0.0
        shown = [f"{ours[name][0]:.3f} ± {ours[name][1] or 0:.3f}" if name in ours else "" for name in columns]
        cells = {cell.measure: cell for cell in published.cells("ood-bench/table-3", setting=setting)}
        # The paper's own method is kde-paper; its numbers stand beside ours by any formula of the same shift.
        published_as = {name: cells.get(name.removesuffix(", kde-paper")) for name in columns}
        printed = [f"{cell.mean:.2f} ± {cell.spread:.2f}" if cell else "" for cell in published_as.values()]
        lines += [f"| {short} | {exact:.3f} | {' | '.join(shown)} |", f"| – the paper | | {' | '.join(printed)} |"]
    return [*lines, ""]


def _figure_4() -> list[str]:
    """The heat maps, which scripts/results.py draws, and how far they are from the exact values."""
    exact: dict[str, Callable[[float, float], float]] = {
        "a": lambda train, test: coloured_correlation(test, train),
        "b": lambda train, test: blue_shifts(0.9, (train, test), 0.1)[0],
        "c": lambda train, test: blue_shifts(0.9, (train, test), 0.25)[1],
    }
    lines = []
    for name, truth in exact.items():
        file = FIGURE_4 / f"figure-4-{name}.json"
        if file.exists():
            read = json.loads(file.read_text(encoding="utf-8"))
            _, trains, _, tests = read["labels"]
            errors = np.array(read["values"]) - [[truth(train, test) for test in tests] for train in trains]
            lines += [
                f"{read['title']}: off the exact values by {np.abs(errors).mean():.3f} in the mean and "
                f"{np.abs(errors).max():.3f} at most.",
                "",
            ]
    head = [
        "## OoD-Bench's Figure 4",
        "",
        "One run a cell by `ratio`: (a) correlations of the training and the test domain; (b) and (c) means of their",
        "blue shares, whose deviation is 0.1 and 0.25, with correlations 0.1 and 0.9.",
        "",
        f"![The heat maps](results/{FIGURE_4.name}/1-ood-benchs-figure-4.png)",
        "",
    ]
    return [*head, *lines] if lines else []


def _nico(found: dict[str, dict[str, list[float | None]]]) -> list[str]:
    """Ours beside the published column of PACS."""
    if not found:
        return []
    names = list(next(iter(found.values())))
    lines = [
        "## NICO++'s Table 1, PACS",
        "",
        "Two training and two test domains and five classes at random; the mean over runs and its standard error.",
        "PACS-128px-resnet50 are features of a ResNet-50 that learned from ImageNet, measured by perceptrons; the",
        "paper trains a ResNet-50 from random weights, as `shiftbed benchmark nico-table-1` does (results.md).",
        "",
        f"| | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for dataset, ours in found.items():
        shown = [f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}") for mean, error in ours.values()]
        lines.append(f"| {dataset} | {' | '.join(shown)} |")
    cells = {cell.measure: cell for cell in published.cells("nico-plus-plus/table-1", dataset="PACS")}
    printed = [f"{cells[name].mean:.3f} ± {cells[name].spread:.3f}" if name in cells else "" for name in names]
    return [*lines, f"| the paper | {' | '.join(printed)} |", ""]


def main() -> None:
    """Runs one study and writes the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("study")
    arguments.add_argument("source", nargs="?", help="MNIST's folder, PACS's archive, or a dataset's name")
    arguments.add_argument("out", nargs="?", type=Path, default=Path("shiftbed-benchmark"))
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop when so many are spent")
    arguments.add_argument("--workers", type=int, default=1, help="processes of table-3 and figure-4")
    arguments.add_argument("--most", type=int, help="examples a domain of table-3 and figure-4, for a trial")
    arguments.add_argument("--weights", type=Path, help="of the ResNet-50")
    arguments.add_argument("--runs", type=int, default=5, help="of nico")
    arguments.add_argument("--epochs", type=int, default=20, help="of nico")
    asked = arguments.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    source = asked.source and Path(asked.source)
    clock = Clock(asked.seconds)
    data = {"folder": source, "most": asked.most}
    studies: dict[str, Callable[[], None]] = {
        "closed-forms": lambda: closed_forms(results),
        "coverage": lambda: coverage(results),
        "table-3": lambda: table_3(results, asked.out, clock, asked.workers, **data),
        "figure-4": lambda: figure_4(asked.out, clock, asked.workers, **data),
        "pack": lambda: pack(source),
        "features": lambda: features(asked.source, asked.weights),
        "nico": lambda: nico(results, asked.source, asked.out, clock, asked.runs, epochs=asked.epochs),
        "page": lambda: None,
    }
    studies[asked.study]()
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
