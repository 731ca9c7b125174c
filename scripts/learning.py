"""Does every algorithm learn? Writes docs/learning.md.

    python scripts/learning.py --mnist FOLDER [--store DIR] [--only draws|colour] [--workers N]

On RotatedDigits and EmojiStyles every algorithm is trained with five draws, the best of which must come within 8 points
of ERM's best: draws that do not suit these small data may fail, all five may not. What is further behind gets more
draws, and the page says so. On OoD-Bench's ColoredMNIST, made from the IDX files in FOLDER, IRM and VREx must leave
colour for shape, which ERM does not: on average over six trials, each by the evaluation of its first five draws that is
best on a tenth of the test domain. ERM is also chosen as it is used, by validation on its training domains. The records
are in docs/results; what is chosen is trained again for its weights.
"""

import argparse
import json
import os
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shiftbed
from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import load
from shiftbed.data.prepare import prepare
from shiftbed.protocols import LeaveOut
from shiftbed.report.choosing import retrained
from shiftbed.selection import JobRecords
from shiftbed.sweeps.plan import plan
from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.job import Job, make_job
from shiftbed.training.model import encode_weights
from shiftbed.training.recipes import recipe
from shiftbed.training.store import LocalStore

DRAWS, MORE_DRAWS = 5, 20
BEHIND = 0.08
STEPS = 1000
BATCH = 64  # DomainBed's default; with the 16 of `quick` gradients of one domain are mostly noise
# What only tunes a part of the network cannot follow ERM from random weights.
LEARNERS = [name for name in ALGORITHMS if name not in ("LinearProbe", "LPFT", "FrozenStages")]
TESTS = {"RotatedDigits": "75", "EmojiStyles": "noto"}
COLOURED, TESTED = "ColoredMNIST-OoD-Bench", "-90%"
ORACLE, VALIDATION = "a tenth of the test domain", "training domains"


class Choice(NamedTuple):
    """Whose evaluation is best on what, of how many draws, in which trials."""

    algorithm: str
    by: str
    draws: int
    trials: tuple[int, ...]


# Fixed before these trials were looked at; the paper's, 0 to 2, had shown how much the last step varies. Two lines came
# later: ERM by validation; and VREx with 20 draws, as five of a weight from 0.1 to 100,000 turned out to be few, before
# any trial with 20 was looked at. It had three trials first, whose mean of 40.5 % changed was too near to the bound of
# 40 to tell; so it has all six, as the others, whatever the last three say.
SIX = (3, 4, 5, 6, 7, 8)
COLOUR_CHOICES = (
    Choice("ERM", VALIDATION, DRAWS, SIX),
    Choice("ERM", ORACLE, DRAWS, SIX),
    Choice("IRM", ORACLE, DRAWS, SIX),
    Choice("VREx", ORACLE, DRAWS, SIX),
    Choice("VREx", ORACLE, MORE_DRAWS, SIX),
)
DOCS = Path(__file__).parent.parent / "docs"
COLOUR_RECORDS = DOCS / "results" / "ood-bench-six-more-trials"
KEPT, PAGE = DOCS / "learning.json", DOCS / "learning.md"
# The default of a GPU, named so that the page can be written anywhere from its records; and OoD-Bench's own, since a
# penalty of thousands times a small difference of risks suffers from rounding, and an MLP gains nothing from it.
PRECISION, COLOUR_PRECISION = "bf16", "float32"


def last(job: JobRecords, role: str, part: str) -> float:
    """The mean accuracy of a job's last record over splits of a role."""
    splits = [s["name"] for s in job.description["splits"] if s["role"] == role and s["part"] == part]
    return float(np.mean([job.rows[-1]["splits"][name]["accuracy"] for name in splits])) if job.rows else 0.0


def best_of_draws(
    folder: Path, dataset: str, algorithms: list[str], draws: int, workers: int | None
) -> dict[str, float]:
    """The best test accuracy of some draws, by algorithm: whether it can learn at all."""
    fields = {"steps": STEPS, "evaluate_every": STEPS // 10, "precision": PRECISION}
    overrides = {"batch_size": BATCH}
    request = shiftbed.Request(
        [dataset], algorithms, draws=draws, test_domains=[TESTS[dataset]], fields=fields, overrides=overrides
    )
    shiftbed.sweep(request, folder, workers=workers)
    asked = {job.id for job in plan(request)}
    best = dict.fromkeys(algorithms, 0.0)
    for job in finished_jobs(LocalStore(folder)):
        if job.id in asked:
            name = job.description["algorithm"]
            best[name] = max(best[name], last(job, "test", "in"))
    return best


def behind_erm(accuracies: dict[str, float]) -> list[str]:
    """The algorithms that are too far behind ERM."""
    return [name for name, accuracy in accuracies.items() if accuracy < accuracies["ERM"] - BEHIND]


def score(row: dict[str, Any], by: str) -> float:
    """The mean accuracy, at an evaluation, on the held-out images that a choice looks at."""
    splits = {name: split["accuracy"] for name, split in row["splits"].items() if name.endswith("/out")}
    test = splits.pop(f"{TESTED}/out")
    return test if by == ORACLE else float(np.mean(list(splits.values())))


def evaluations(choice: Choice) -> dict[int, list[tuple[float, int, dict[str, Any], Job]]]:
    """The evaluations of each trial that a choice looks at: score, draw, row and job."""
    fields = {"precision": COLOUR_PRECISION}
    name, by, draws, trials = choice
    request = shiftbed.Request([COLOURED], [name], draws, max(trials) + 1, [TESTED], "ood-bench", fields=fields)
    recorded = {job.id: job.rows for job in finished_jobs(LocalStore(COLOUR_RECORDS))}
    return {
        trial: [
            (score(row, by), job.draw, row, job)
            for job in plan(request)
            if job.trial == trial
            for row in recorded[job.id]
        ]
        for trial in trials
    }


def chosen_models(out: Path, choice: Choice) -> dict[int, tuple[int, Path]]:
    """In each trial the evaluation of all draws that a choice prefers: its step and its model."""
    models = {}
    for trial, seen in evaluations(choice).items():
        _, draw, row, job = max(seen, key=lambda one: (*one[:2], one[2]["step"]))
        path = out / f"{choice.algorithm}-{trial}-{draw}-{row['step']}.safetensors"
        if not path.exists():
            LocalStore(out).put_atomic(path.name, encode_weights(retrained(job, row["step"], "cpu", lambda *_: None)))
        models[trial] = row["step"], path
    return models


def by_last_step(choice: Choice) -> list[float]:
    """The accuracy of the draw whose last step is best, in each trial: as OoD-Bench chooses."""
    ends = [[one for one in seen if one[2]["step"] == one[3].recipe.steps] for seen in evaluations(choice).values()]
    return [max(end, key=lambda one: one[:2])[2]["splits"][f"{TESTED}/in"]["accuracy"] for end in ends]


@dataclass(frozen=True)
class Findings:
    """What is said of a classifier on the test domain: accuracy, share of the first class, and reliance on colour."""

    count: int
    accuracy: float
    first: float
    changed: float

    @classmethod
    def of(cls, predict, images: np.ndarray, labels: np.ndarray) -> "Findings":
        """Of a function from images to classes."""
        guesses, swapped = predict(images), predict(images[..., ::-1])
        shares = (guesses == labels, guesses == 0, guesses != swapped)
        return cls(len(labels), *(float(share.mean()) for share in shares))

    @classmethod
    def mean(cls, trials: list["Findings"]) -> "Findings":
        """Of several classifiers, all tried on the same images."""
        shares = np.mean([astuple(one)[1:] for one in trials], axis=0)
        return cls(trials[0].count, *map(float, shares))

    @property
    def leaves_colour(self) -> bool:
        """Better than a coin beyond chance, both classes used, and seldom moved by swapping the colours."""
        error = (0.25 / self.count) ** 0.5
        good = self.accuracy >= 0.55 and self.accuracy > 0.5 + 3 * error
        return good and 0.25 <= self.first <= 0.75 and self.changed < 0.4


def findings(model_file: Path, trial: int) -> Findings:
    """Of a trained model, on the part of the test domain that it was not chosen by."""
    domain, model = load(COLOURED)[TESTED], shiftbed.load(model_file)
    splits = make_job(COLOURED, "ERM", LeaveOut((TESTED,)), recipe("ood-bench", COLOURED), 0, trial).task.splits
    (shown,) = (split.indices for split in splits if split.name == f"{TESTED}/in")
    images, labels = np.asarray(domain.inputs)[shown], np.asarray(domain.labels)[shown]
    return Findings.of(lambda x: model.predict(x).argmax(1), images, labels)


def colour(options: argparse.Namespace) -> dict[str, Any]:
    """What is found of the chosen models, for each choice one entry a trial; and what VREx's last steps have."""
    prepare(COLOURED, options.mnist)
    models = [chosen_models(options.store / "coloured", choice) for choice in COLOUR_CHOICES]
    found = [
        [{"step": step, **asdict(findings(path, trial))} for trial, (step, path) in of_trials.items()]
        for of_trials in models
    ]
    return {"found": found, "last": by_last_step(COLOUR_CHOICES[-1])}


def draws(options: argparse.Namespace) -> dict[str, Any]:
    """The best of a few draws of every algorithm, by dataset, and of more draws where these did not suffice."""
    folder, workers = options.store / "sweep", options.workers
    few = {dataset: best_of_draws(folder, dataset, LEARNERS, DRAWS, workers) for dataset in TESTS}
    behind = {dataset: behind_erm(accuracies) for dataset, accuracies in few.items()}
    more = {dataset: best_of_draws(folder, dataset, of, MORE_DRAWS, workers) for dataset, of in behind.items() if of}
    return {"few": few, "more": more}


def main() -> None:
    """Trains what is asked for, keeps what it came to, and writes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mnist", type=Path, required=True, help="the folder of MNIST's IDX files")
    parser.add_argument("--store", type=Path, default=Path("shiftbed-learning"), help="where its jobs go on from")
    parser.add_argument("--only", choices=("draws", "colour"), help="one part; the other stays as it is")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    os.environ["SHIFTBED_DATA"] = str(options.store / "data")
    kept = json.loads(KEPT.read_bytes()) if KEPT.exists() else {}
    for part in (draws, colour):
        if options.only in (None, part.__name__):
            kept[part.__name__] = part(options)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(kept), encoding="utf-8")


def page(kept: dict[str, Any]) -> str:
    """The page as Markdown."""
    accuracies, more = kept["draws"]["few"], kept["draws"]["more"]
    last_steps = ", ".join(f"{100 * accuracy:.1f}" for accuracy in kept["colour"]["last"])
    lines = [
        "# Does every algorithm learn?",
        "",
        "Made by `python scripts/learning.py`. Accuracy (%) on the test domain of the best of five draws, recipe",
        f"`quick` with {STEPS} steps and {BATCH} examples a domain, one trial: nothing is broken, and no more is said.",
        "",
        f"| algorithm | {' | '.join(f'{dataset}, {test}' for dataset, test in TESTS.items())} |",
        f"| --- | {'---: | ' * len(TESTS)}",
    ]
    for name in LEARNERS:
        lines.append(f"| {name} | {' | '.join(f'{100 * accuracies[dataset][name]:.1f}' for dataset in TESTS)} |")
    lines.append("")
    for dataset, best in more.items():
        words = ", ".join(f"{name} {100 * value:.1f}" for name, value in best.items())
        behind = f"More than {100 * BEHIND:.0f} points behind ERM on {dataset}"
        lines.append(f"{behind}; the best of {MORE_DRAWS} draws: {words}.")
    lines += [
        "",
        "## Colour or shape",
        "",
        "OoD-Bench's ColoredMNIST (real MNIST), its MLP and 5,001 steps; in each trial the evaluation of all draws",
        "that is best on the images named, measured on the rest of the domain where colour points the wrong way. A",
        "model that has left colour for shape is right more often than not (55 % and more), and swapping the colours",
        "changes less than 40 % of its predictions. What the paper's oracle gives,",
        "the last step of 20 draws, is in [the results](results.md).",
        "",
        "| algorithm | draws | chosen by | trial | step | accuracy % | first class % | changed % | leaves colour |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for choice, rows in zip(COLOUR_CHOICES, kept["colour"]["found"], strict=True):
        trials = [Findings(**{key: value for key, value in row.items() if key != "step"}) for row in rows]
        about = [(trial, row["step"]) for trial, row in zip(choice.trials, rows, strict=True)]
        for (trial, step), one in zip([*about, ("mean", "")], [*trials, Findings.mean(trials)], strict=True):
            numbers = f"{100 * one.accuracy:.1f} | {100 * one.first:.1f} | {100 * one.changed:.1f}"
            leaves = "yes" if one.leaves_colour else "no"
            lines.append(
                f"| {choice.algorithm} | {choice.draws} | {choice.by} | {trial} | {step} | {numbers} | {leaves} |"
            )
    lines += [
        "",
        "A classifier that follows colour on a share c of these images and shape on the others is right on",
        "0.1 c + 0.75 (1 − c) of them. So the ERM that an oracle prefers, right on 30 % here and in the paper, follows",
        "colour on 69 %; chosen as it is used, it follows colour on more.",
        "",
        f"By the paper's own rule, the last step, VREx has {last_steps} % in these trials",
        "of 20 draws; it finds shape early and loses it again ([the results](results.md)). Five draws of its weight,",
        "from 0.1 to 100,000, are too few. With 20, its first three trials had 40.5 % changed, too near to 40 to tell;",
        "all six, as of the others, have what the table says. In two of them it follows colour backwards, which an",
        "oracle rewards.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
