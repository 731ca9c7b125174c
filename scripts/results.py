"""Writes docs/results.md: our numbers beside the papers', from the records in docs/results.

    python scripts/results.py

Every folder of docs/results is a study: records of a sweep (parts, plans, times), or numbers as JSON. Nothing is
trained or measured here. What a person found out about a study stands in the `notes.md` of its folder, and goes into
the page. Records come from where they were made as bundles, in as many sittings as it takes:

    shiftbed compact DIR && shiftbed bundle DIR --metrics accuracy,count --out study.zip
    shiftbed merge study.zip --out docs/results/NAME
"""

import io
import json
import runpy
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from studies import FOLDER, PAGE, ROOT, BenchmarkStudy, RankStudy, ScriptStudy, Study, SweepStudy

from shiftbed.tables import read_tables, render
from shiftbed.tables.grids import MISSING

HEAD = """# First results, beside the papers

Made by `python scripts/results.py` from the records in [docs/results](results): nothing on this page was typed in but
the notes of the studies. Each study says the command that runs it; with `--no-train` the same command prints its tables
from the records that are here, in seconds and without the data.

A cell is the mean of n trials, each chosen from the draws of its trial alone; ± is the standard error over trials, and
with one trial there is none; measures of shift, and tables of what is trained of a network, give one of a single run
too, over images. A row in which a job is missing has no average. A number of ours *agrees* with a printed one if it is
not farther from it than the printed error and its own together. Errors of three trials are rough: of the same
experiment done twice, three of ten cells would not agree, a third if one of them has two trials, and seven of ten if it
has one. Hours of a device are those in which at least one job of the study ran on it.

## At a glance"""

GLANCE = ("rung", "study", "done", "n", "cells that agree", "hours of a device")
SUMMARY = ROOT / FOLDER / "summary.md"

TAIL = """## 8. Speed

[What an update costs](costs.md), by `python perf/algorithms.py`; [what arithmetic changes](precision.md), by
`python scripts/precision.py`; the other scripts of `perf/` print their tables, and `perf/NOTES.md` keeps them."""


def pretraining(file: Path) -> str:
    """The tables of the audit's pretraining study."""
    written = io.StringIO()
    with redirect_stdout(written):
        runpy.run_path(str(ROOT / "scripts" / "audit_study.py"))["page"](
            SimpleNamespace(result=file, format="markdown")
        )
    made = json.loads(file.read_text(encoding="utf-8"))
    trials = sorted(Counter(row["trials"] for row in made["rows"]).items())
    counted = ", ".join(f"{n} in {count} cells" for n, count in trials)
    about = f"{made['steps']} steps; {made['seconds']} s on one {made['device']} device. n: {counted}."
    return f"{about}\n\n{written.getvalue().strip()}"


def predictions(file: Path) -> str:
    """Mean absolute errors of predicted accuracies, beside the paper's."""
    made = json.loads(file.read_text(encoding="utf-8"))
    rows = made["beside the paper"]
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]
    lines += ["| " + " | ".join(_text(row[name]) for name in names) + " |" for row in rows]
    about = f"{len(made['classifiers'])} classifiers, whose accuracies span {made['span']:.0f} points."
    return "\n".join([about, "", *lines])


def by_last_step(
    folders: Sequence[str],
    algorithms: Sequence[str],
    steps: Sequence[int],
    spans: Sequence[tuple[int, int]] = (),
    each_trial: bool = False,
) -> Callable[[Path], str]:
    """What the oracle finds where colour misleads, if training ends earlier."""
    paths = [ROOT / FOLDER / folder for folder in folders]
    script = runpy.run_path(str(ROOT / "scripts" / "last_step.py"))
    return lambda _: script["page"](paths, "-90%", algorithms, steps, spans, each_trial)


def _text(value: Any) -> str:
    return MISSING if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


PAPERS = (("selection", "training-domain-validation"), ("selection", "oracle"))
SUPERVISED = BenchmarkStudy(
    5,
    "PACS at 128 px from supervised weights, 1,000 steps",
    "pacs-128px",
    "docs/results/pacs-128px.yaml",
    (("part", "supervised"), ("trials", "1")),
    ("PACS",),
)
SCRATCH = replace(
    SUPERVISED,
    title="The same from random weights",
    folder="pacs-128px-scratch",
    options=(("part", "scratch"), ("trials", "1")),
)
LADDER: list[Study] = [
    BenchmarkStudy(1, "OoD-Bench's Table 3: shift of ColoredMNIST", "ood-bench-table-3", "ood-bench-table-3"),
    ScriptStudy(
        1,
        "Where digits turn blue: images and thresholds",
        "blue-digits",
        "python docs/results/blue_digits.py MNIST_FOLDER --out docs/results/blue-digits/numbers.json",
        "docs/results/blue-digits/numbers.json",
        lambda file: runpy.run_path(str(ROOT / FOLDER / "blue_digits.py"))["page"](file),
    ),
    BenchmarkStudy(1, "OoD-Bench's Figure 4", "ood-bench-figure-4", "ood-bench-figure-4"),
    BenchmarkStudy(
        2,
        "OoD-Bench's ColoredMNIST column of Table 2",
        "ood-bench-coloredmnist",
        "ood-bench-correlation",
        (("datasets", "ColoredMNIST-OoD-Bench"),),
        ("ColoredMNIST-OoD-Bench",),
    ),
    BenchmarkStudy(
        2,
        "The same as OoD-Bench's code has it",
        "ood-bench-as-there",
        "docs/results/ood-bench-as-there.yaml",
        (("trials", "1"),),
        ("ColoredMNIST-OoD-Bench",),
    ),
    SweepStudy(
        2,
        "ARM with a context network that is not trained, as OoD-Bench's code has it",
        "untrained-context",
        "ColoredMNIST-OoD-Bench --algorithms UntrainedContext --code docs/results/untrained_context.py "
        "--recipe ood-bench --test=-90% --draws 20",
        "oracle",
    ),
    ScriptStudy(
        2,
        "ERDG with other draws from the same ranges",
        "ood-bench-erdg-other-draws",
        "shiftbed tables docs/results/ood-bench-erdg-other-draws --selection oracle",
        "docs/results/ood-bench-erdg-other-draws",
        lambda folder: render(read_tables(folder, ["oracle"]), "markdown").strip(),
    ),
    ScriptStudy(
        2,
        "The same, had training ended earlier",
        "ood-bench-last-step",
        "python scripts/last_step.py docs/results/ood-bench-coloredmnist docs/results/ood-bench-six-more-trials "
        "--domain=-90% --algorithms ERM,IRM,VREx --steps 1000,2000,3000,4000,4500,5001",
        "docs/results/ood-bench-coloredmnist",
        by_last_step(
            ("ood-bench-coloredmnist", "ood-bench-six-more-trials"),
            ("ERM", "IRM", "VREx"),
            (1000, 2000, 3000, 4000, 4500, 5001),
        ),
    ),
    ScriptStudy(
        2,
        "By a loop of its own, with data drawn anew for every job or once",
        "ood-bench-alone",
        "python docs/results/ood_bench_alone.py MNIST_FOLDER --algorithm VREx --data anew "
        "--out docs/results/ood-bench-alone/VREx-anew.json",
        "docs/results/ood-bench-alone",
        lambda folder: runpy.run_path(str(ROOT / FOLDER / "ood_bench_alone.py"))["page"](folder),
    ),
    ScriptStudy(
        2,
        "Ours and that loop, job by job",
        "ood-bench-job-by-job",
        "python scripts/job_by_job.py docs/results/ood-bench-coloredmnist docs/results/ood-bench-alone --domain=-90%",
        "docs/results/ood-bench-alone",
        lambda loops: runpy.run_path(str(ROOT / "scripts" / "job_by_job.py"))["page"](
            ROOT / FOLDER / "ood-bench-coloredmnist", loops, "-90%"
        ),
    ),
    ScriptStudy(
        2,
        "What a constant answer is worth, with data drawn anew for every job",
        "constant-answer",
        "python docs/results/constant_answer.py MNIST_FOLDER --out docs/results/constant-answer/numbers.json",
        "docs/results/constant-answer/numbers.json",
        lambda file: runpy.run_path(str(ROOT / FOLDER / "constant_answer.py"))["page"](file),
    ),
    BenchmarkStudy(
        3,
        "DomainBed's ColoredMNIST",
        "domainbed-coloredmnist",
        "domainbed",
        (("datasets", "ColoredMNIST"), *PAPERS),
        ("ColoredMNIST",),
    ),
    BenchmarkStudy(
        3,
        "DomainBed's ColoredMNIST by domain cross-validation",
        "domainbed-coloredmnist",
        "domainbed",
        (
            ("datasets", "ColoredMNIST"),
            ("algorithms", "ERM,IRM,CORAL"),
            ("selection", "domain-cross-validation"),
            ("trials", "1"),
        ),
        ("ColoredMNIST",),
    ),
    ScriptStudy(
        3,
        "The same, had training ended earlier",
        "domainbed-coloredmnist-last-step",
        "python scripts/last_step.py docs/results/domainbed-coloredmnist --domain=-90% "
        "--algorithms ERM,CORAL,GroupDRO,IRM --steps 1000,2000,4000,6000,8000,10000 --spans 1000-5000,6000-10000 "
        "--each-trial",
        "docs/results/domainbed-coloredmnist",
        by_last_step(
            ("domainbed-coloredmnist",),
            ("ERM", "CORAL", "GroupDRO", "IRM"),
            (1000, 2000, 4000, 6000, 8000, 10000),
            ((1000, 5000), (6000, 10000)),
            each_trial=True,
        ),
    ),
    BenchmarkStudy(
        3,
        "The same with ranges as in the authors' code",
        "domainbed-as-coded",
        "docs/results/domainbed-as-coded.yaml",
        (("trials", "1"),),
        ("ColoredMNIST",),
    ),
    ScriptStudy(
        3,
        "With these ranges, had training ended earlier",
        "domainbed-as-coded-last-step",
        "python scripts/last_step.py docs/results/domainbed-as-coded --domain=-90% "
        "--algorithms ERM,GroupDRO,IRM --steps 1000,2000,4000,6000,8000,10000 --spans 1000-5000,6000-10000",
        "docs/results/domainbed-as-coded",
        by_last_step(
            ("domainbed-as-coded",),
            ("ERM", "GroupDRO", "IRM"),
            (1000, 2000, 4000, 6000, 8000, 10000),
            ((1000, 5000), (6000, 10000)),
        ),
    ),
    ScriptStudy(
        3,
        "By domain cross-validation, with models of a single update among those to choose from",
        "first-update",
        "python docs/results/first_update.py --weights cell --out docs/results/first-update/cell.json\n"
        "python docs/results/first_update.py --weights job --out docs/results/first-update/job.json",
        "docs/results/first-update",
        lambda folder: runpy.run_path(str(ROOT / FOLDER / "first_update.py"))["page"](
            folder, ROOT / FOLDER / "domainbed-coloredmnist"
        ),
    ),
    BenchmarkStudy(4, "All algorithms on EmojiStyles", "builtin-emoji", "builtin-emoji"),
    SUPERVISED,
    SCRATCH,
    RankStudy(5, "Do weights change the ranking?", "pacs-128px-ranks", SUPERVISED, SCRATCH),
    ScriptStudy(
        5,
        "Linear probe, frozen stages and fine-tuning on PACS at 128 px",
        "pacs-pretraining",
        "python scripts/audit_study.py run --pacs pacs_128px_q90.npz --weights resnet50.safetensors --out study",
        "docs/audit-pacs.json",
        pretraining,
    ),
    BenchmarkStudy(
        6,
        "DomainBed's RotatedMNIST",
        "domainbed-rotatedmnist",
        "domainbed",
        (("datasets", "RotatedMNIST"), ("draws", "5"), ("trials", "1"), *PAPERS),
        ("RotatedMNIST",),
    ),
    ScriptStudy(
        7,
        "Predicting accuracy: CIFAR-10 and its corruptions",
        "cifar-10-corrupted",
        "python scripts/accuracy_study.py tables out docs/results/cifar-10-corrupted/accuracy",
        "docs/results/cifar-10-corrupted/accuracy/study.json",
        predictions,
    ),
    BenchmarkStudy(
        8, "NICO++'s measures of shift on PACS", "nico-table-1", "nico-table-1", (("datasets", "PACS"),), ("PACS",)
    ),
]


def glance() -> str:
    """The studies in one table, and the experiments that explain them."""
    studies = [study for study in LADDER if isinstance(study, BenchmarkStudy)]
    lines = ["| " + " | ".join(GLANCE) + " |", "| ---: | --- | --- | ---: | --- | --- |"]
    lines += ["| " + " | ".join(study.glance()) + " |" for study in studies]
    others = [f"- {study.rung}: {study.link}" for study in LADDER if study not in studies]
    return "\n".join([*lines, "", "Beside these:", "", *others])


def page() -> str:
    """The whole page."""
    first = {study.folder: study for study in reversed(LADDER)}
    parts = [study.page(notes=first[study.folder] is study) for study in LADDER]
    text = "\n\n".join([HEAD, glance(), SUMMARY.read_text(encoding="utf-8").strip(), *parts, TAIL]) + "\n"
    return text.replace(f"{ROOT}/", "")


if __name__ == "__main__":
    for study in LADDER:
        if isinstance(study, BenchmarkStudy):
            study.draw()
    PAGE.write_text(page(), encoding="utf-8")
