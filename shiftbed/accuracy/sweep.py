"""The models of a sweep on domains that they have never seen: accuracy as predicted without labels, and the truth."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import Any

from shiftbed.accuracy.domains import MOST, SEVERITIES, corrupted, held_out, of_one_size, tested
from shiftbed.accuracy.extraction import DomainImages, Extractor
from shiftbed.accuracy.kept import ACCURACY, PREDICTIONS, predictions
from shiftbed.accuracy.methods import METHODS, Method
from shiftbed.accuracy.predict import cannot
from shiftbed.accuracy.summary import DEFAULT, FittedPredictor, summarise
from shiftbed.errors import DataError, StoreError
from shiftbed.selection import JobRecords, cross_validating
from shiftbed.sweeps.blind import refuse_sealed
from shiftbed.sweeps.records import finished_jobs
from shiftbed.tables.grids import padding
from shiftbed.training.job import Job
from shiftbed.training.model import last_weights, load
from shiftbed.training.store import LocalStore, write_json

Row = dict[str, Any]
SHOWN = ("accuracy", "low", "high", "level", "images", "trust")
REVISION = 4  # of how predictions are made: rows of another are made anew


def predict_sweep(
    folder: str | Path,
    *,
    method: str | None = None,
    level: float = 0.9,
    severities: Sequence[int] = SEVERITIES,
    images: int = MOST,
    device: str = "cpu",
    on_progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> list[Row]:
    """Predicts the accuracy of a sweep's models on their test domains, from the images there and none of their labels.

    Of every algorithm and task it takes one model: of those that kept their weights, in the first trial, the one that
    does best on held-out images of the training domains. Rows are kept in the folder as they are made, where pages and
    figures find them; run again, only what is missing is computed.

    Args:
        folder: The sweep's folder.
        method: The method, by default `atc-mc`; where a model's score is the same on all corrupted images, a direct
            estimate stands for it.
        level: The probability with which intervals are meant to hold.
        severities: Of the corruptions of held-out images that the method is fitted on.
        images: How many held-out images.
        device: Where models predict.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Returns:
        Rows as `shiftbed.accuracy.kept.predictions` describes them.

    Raises:
        StoreError: No finished job kept its weights.
    """
    folder, chosen = Path(folder), METHODS[method or DEFAULT]
    jobs = models(folder)
    wanted = {(job.id, domain) for job in jobs for domain in job.description["test_domains"]}
    fitted_on = {"images": images, "severities": list(severities)}
    rows = [
        row
        for row in predictions(folder)
        if (row["job"], row["domain"]) in wanted
        and row.get("asked") == chosen.name
        and row["level"] in (level, None)  # without labelled domains there is no level
        and row.get("fitted_on") == fitted_on
        and row.get("revision") == REVISION
    ]
    done = {(row["job"], row["domain"]) for row in rows}
    for _, together in groupby(jobs, _task):
        mine = [job for job in together if any((job.id, one) not in done for one in job.description["test_domains"])]
        if not mine:
            continue
        source = held_out(last_weights(folder, mine[0].id).parent, images)
        labelled, why = _to_fit(of_one_size(source, load(last_weights(folder, mine[0].id), device)), severities)
        for job in mine:
            on_progress("predicting accuracies", len({row["job"] for row in rows}), len(jobs))
            extract = Extractor(load(last_weights(folder, job.id), device))
            outputs = extract(source)
            if chosen.missing(outputs):
                raise cannot(chosen, outputs)
            fitted = FittedPredictor(outputs, ((extract(one), one.group) for one in labelled), level, True, why)
            tests = job.description["test_domains"]
            made = [_row(job, domain, extract, fitted, chosen, level) for domain in tests]
            rows += [{**row, "fitted_on": fitted_on, "revision": REVISION} for row in made]
            write_json(rows, folder / ACCURACY / PREDICTIONS)
    on_progress("predicting accuracies", len(jobs), len(jobs))
    return rows


def _row(
    job: JobRecords, domain: str, extract: Extractor, fitted: FittedPredictor, method: Method, level: float
) -> Row:
    """The prediction for one model on one of its test domains; the labels there are for the truth beside it alone."""
    about = job.description
    outputs = extract(tested(Job.from_description(about), domain))
    made = summarise(outputs, fitted, method, level)
    who = {"dataset": about["dataset"], "domain": domain, "algorithm": about["algorithm"], "job": job.id}
    numbers = {name: getattr(made, name) for name in SHOWN}
    return {**who, "method": made.method, "asked": method.name, **numbers, "true": outputs.accuracy}


def models(folder: Path) -> list[JobRecords]:
    """Of every algorithm and task the job whose model is asked, those of a task one after the other.

    Jobs that are there for domain cross-validation alone are not asked: they stand in no table.

    Raises:
        StoreError: No finished job that tests a domain kept its weights, or the sweep is sealed.
    """
    refuse_sealed(folder)  # the truth stands beside every prediction
    finished = list(finished_jobs(LocalStore(folder)))
    beside = cross_validating(finished)
    ended = [job for job in finished if job.status == "done" and job.rows and job.id not in beside]
    jobs = [job for job in ended if last_weights(folder, job.id).exists()]
    if not finished and (any(folder.glob("weights*.safetensors")) or any(folder.glob("jobs/*/weights*.safetensors"))):
        raise StoreError(f"{folder} is a model and no sweep; name its images with --on FOLDER or --on DATASET/DOMAIN.")
    if not jobs:
        raise StoreError(
            f"No finished job in {folder} kept its weights; `shiftbed sweep ... --keep final` keeps those of jobs that "
            f"it trains, and `shiftbed best {quote(str(folder))}` makes those of the best job again."
        )
    jobs = [job for job in jobs if job.description["test_domains"]]
    if not jobs:
        raise StoreError(f"The models in {folder} learned from all domains, and have seen all; add --on FOLDER.")
    jobs.sort(key=lambda job: (job.description["dataset"], *_task(job), -_validation(job), job.id))
    first_trials: dict[tuple[Any, ...], JobRecords] = {}
    for job in jobs:
        setting, tested, _ = _task(job)
        first_trials.setdefault((setting, tested, job.description["algorithm"]), job)
    return list(first_trials.values())


def _task(job: JobRecords) -> tuple[str, tuple[str, ...], int]:
    """What is trained and tested on which split: jobs with equal tasks held out the same images."""
    about = job.description
    return about["setting"], tuple(about["test_domains"]), about["trial"]


def _validation(job: JobRecords) -> float:
    """The mean accuracy on held-out images of the training domains, at the end."""
    about = job.description
    names = [split["name"] for split in about["splits"] if split["role"] == "validation"]
    found = [job.rows[-1]["splits"][name]["accuracy"] for name in names if name in job.rows[-1]["splits"]]
    return sum(found) / len(found) if found else 0.0


def _to_fit(source: DomainImages, severities: Sequence[int]) -> tuple[list[DomainImages], str]:
    """The source's images under corruptions, made once; none where they cannot be corrupted, and why, in brackets."""
    try:
        found = corrupted(source, severities=severities)
    except DataError as error:
        return [], f" ({str(error).rstrip('.')})"
    return [DomainImages(one.name, one.id, cache(one.images), one.labels, one.group) for one in found], ""


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """What was predicted and what is true, in lines of text, and how often intervals had it."""
    for row in rows:
        words = f"predicted {row['accuracy']:.1%} ({row['low']:.1%} to {row['high']:.1%}), true {row['true']:.1%}"
        yield f"{row['algorithm']:9} on {row['domain']}{padding(row['domain'], 14)} {words}"
    error = sum(abs(row["accuracy"] - row["true"]) for row in rows) / len(rows)
    held = []
    for level in sorted({row["level"] for row in rows}, key=lambda level: level is None):
        some = [row for row in rows if row["level"] == level]
        count = sum(row["low"] <= row["true"] <= row["high"] for row in some)
        what = f"intervals (meant to hold with {level:.0%})" if level else "spreads of the direct methods"
        held.append(f"{count} of {len(some)} {what}")
    yield f"{' and '.join(held)} have the truth; mean error {error:.1%}."
    without = [row for row in rows if row["level"] is None]
    for reason in dict.fromkeys(row["trust"] for row in without):
        whose = ", ".join(f"{row['algorithm']} on {row['domain']}" for row in without if row["trust"] == reason)
        yield f"No interval for {whose}: {reason}"
    far = max(rows, key=_outside)
    if _outside(far) > 0:
        yield f"Of {far['algorithm']} on {far['domain']}, farthest outside, it said: {far['trust']}"


def _outside(row: Row) -> float:
    """How far the truth lies outside an interval; a spread is none, and its reason is printed anyway."""
    return 0.0 if row["level"] is None else max(row["low"] - row["true"], row["true"] - row["high"])
