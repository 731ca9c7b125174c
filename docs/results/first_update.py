"""What domain cross-validation finds in models of a single update, at which DomainBed's first evaluation is.

    python docs/results/first_update.py --weights job --out docs/results/first-update/job.json

ERM on ColoredMNIST as DomainBed draws and splits it: three trials of 20 draws, each alone on its test domain and with
every other domain left out too. `--weights cell` starts all draws of a cell from the same weights, as ShiftBed does,
`--weights job` every job from its own, as DomainBed does: between the two lies one factor. A model is looked at on the
first images of a split, which is shuffled.
"""

import argparse
import itertools
import json
from pathlib import Path

import torch

from shiftbed.data import card
from shiftbed.protocols import LeaveOut
from shiftbed.selection import SELECTIONS, Choice, Companions, TaskRecords, tasks_of
from shiftbed.sweeps.records import finished_jobs
from shiftbed.tables import Estimate
from shiftbed.training.device import numerics
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.store import LocalStore
from shiftbed.training.streams import reseed
from shiftbed.training.trainer import Trainer

DATASET, ALGORITHM, RULE = "ColoredMNIST", "ERM", SELECTIONS["domain-cross-validation"]
DOMAINS = tuple(card(DATASET).domains)
TRIALS, DRAWS, IMAGES, BATCH = 3, 20, 2000, 500


def after_one_update(tested: tuple[str, ...], draw: int, trial: int, weights: str) -> dict:
    """The accuracy on each tested domain of a model that has made one update."""
    how = recipe("domainbed", DATASET, precision="bf16")
    job = make_job(DATASET, ALGORITHM, LeaveOut(tested), how, draw, trial)
    trainer = Trainer(job)
    if weights == "job":
        reseed(job.id, 0, "weights")
        for module in trainer.algorithm.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    trainer.advance()
    trainer.algorithm.eval()
    found = {}
    with torch.inference_mode(), numerics(how.precision, trainer.runtime):
        for split in (split for split in job.task.of_role("test") if split.part == "in"):
            places = trainer.data.pool.places(split)[:IMAGES]
            rows = [places[start : start + BATCH] for start in range(0, IMAGES, BATCH)]
            answers = [trainer.algorithm.predict(trainer.data.evaluation_inputs(row)).argmax(1) for row in rows]
            found[split.domain] = float((torch.cat(answers) == trainer.data.pool.labels[places]).float().mean())
    return {"tested": tested, "draw": draw, "trial": trial, "accuracy": found}


def best_of_first(models: list[dict], trial: int, test: str) -> tuple[float, float]:
    """Of the draws the one that does best where another domain is left out too: that score, and its test accuracy."""
    own = [model for model in models if model["trial"] == trial]
    accuracy = {(frozenset(model["tested"]), model["draw"]): model["accuracy"] for model in own}
    others = [name for name in DOMAINS if name != test]
    scores = [sum(accuracy[frozenset((test, one)), draw][one] for one in others) / len(others) for draw in range(DRAWS)]
    best = max(range(DRAWS), key=lambda draw: (scores[draw], draw))
    return scores[best], accuracy[frozenset((test,)), best][test]


def best_of_later(folder: Path, test: str) -> tuple[Choice, float]:
    """What the rule chooses among the evaluations of whole jobs, and its test accuracy."""
    every = finished_jobs(LocalStore(folder))
    jobs = [job for job in every if (job.description["algorithm"], job.description["trial"]) == (ALGORITHM, 0)]
    task = TaskRecords.of([job for job in jobs if job.description["test_domains"] == [test]], {"accuracy"})
    (choice,) = RULE.choices(task, Companions(tasks_of(jobs, {"accuracy"}))).values()
    rows = next(job.rows for job in jobs if job.id == choice.job_id)
    row = next(row for row in rows if row["step"] == choice.step)
    return choice, row["splits"][f"{test}/in"]["accuracy"]


def page(folder: Path, whole: Path) -> str:
    """Which models are chosen in each trial: those of one update, or later ones."""
    later = {test: best_of_later(whole, test) for test in DOMAINS}
    heads = " | ".join(f"{test}: chosen by, accuracy" for test in DOMAINS)
    lines = [f"| models | trial | {heads} | Avg |", "| --- | ---: |" + " ---: |" * (len(DOMAINS) + 1)]

    def line(kind: str, trial: int, cells: list[tuple[float, float, int]]) -> str:
        words = [f"{100 * score:.1f}, {100 * share:.1f} at step {step:,}" for score, share, step in cells]
        return (
            f"| {kind} | {trial} | {' | '.join(words)} | {100 * sum(share for _, share, _ in cells) / len(cells):.1f} |"
        )

    usual = [(choice.score, share, choice.step) for choice, share in later.values()]
    lines.append(line("evaluated every 100 steps", 0, usual))
    for weights, words in (("cell", "the same for all draws"), ("job", "drawn for each job")):
        models = json.loads((folder / f"{weights}.json").read_bytes())
        kind, shares = f"and after the first, weights {words}", []
        for trial in range(TRIALS):
            cells = []
            for one, test in zip(usual, DOMAINS, strict=True):
                first = best_of_first(models, trial, test)
                cells.append((*first, 1) if first[0] > one[0] else one)
            lines.append(line(kind, trial, cells))
            shares.append([share for _, share, _ in cells])
        means = [over_trials([row[column] for row in shares]) for column in range(len(DOMAINS))]
        average = over_trials([sum(row) / len(row) for row in shares])
        lines.append(f"| {kind} | all | {' | '.join([*means, average])} |")
    return "\n".join(lines)


def over_trials(shares: list[float]) -> str:
    """Mean ± standard error, in percent."""
    estimate = Estimate.of(shares).times(100)
    return f"{estimate.mean:.1f} ±{estimate.standard_error:.1f}"


def main() -> None:
    """Trains all models by one update and writes what they are worth."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", choices=["cell", "job"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tests = [(name,) for name in DOMAINS] + list(itertools.combinations(DOMAINS, 2))
    models = []
    for trial, draw in itertools.product(range(TRIALS), range(DRAWS)):
        models += [after_one_update(tested, draw, trial, options.weights) for tested in tests]
        print(f"trial {trial}, draw {draw}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(models) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
