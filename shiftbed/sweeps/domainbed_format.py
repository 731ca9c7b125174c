"""DomainBed's sweeps: folders of `results.jsonl`, read as finished jobs and written from them.

A DomainBed step s is recorded after s + 1 updates, so it is step s + 1 here. Environments are the domains of the
dataset's card, in its order.
"""

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

from shiftbed.data import card
from shiftbed.errors import DataError, StoreError, UnknownNameError, plural
from shiftbed.hashing import canonical, digest, seed_hash
from shiftbed.protocols import LeaveOut
from shiftbed.selection import JobRecords, Variant
from shiftbed.sweeps.blind import refuse_sealed
from shiftbed.sweeps.compaction import Loose, add_part, write_parts
from shiftbed.sweeps.records import finished_jobs, no_finished_job
from shiftbed.training.files import Result, ending
from shiftbed.training.store import LocalStore

RECIPE = "domainbed-import"
REVISION = "domainbed"
STEPS = 5001  # of every dataset, where a run names none
PLACES = ("data_dir", "output_dir")  # of a run's arguments: where, not what
MOST_EXAMPLES = 10**7


@dataclass
class Imported:
    """What an import found.

    Attributes:
        jobs: How many runs became jobs.
        partial: Runs without a `done` file.
        cut: Runs with lines that are not whole.
        repeated: Runs with a step recorded twice (they were started again), of which the last counts.
        doubled: Runs of a job that another folder has too, and has further or later; they were left out.
        unreadable: Per run that could not be read, why.
        guessed: Datasets whose domains' sizes no card says; the least counts that the accuracies allow are used.
    """

    jobs: int = 0
    partial: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)

    def notes(self) -> list[str]:
        """What a person should know, in sentences."""
        said = [
            (self.partial, "left out, since they had not finished"),
            (self.cut, "with lines that are cut off, which were skipped"),
            (self.repeated, "with steps recorded twice, of which the last counts"),
            (self.doubled, "left out, since others are the same and got as far or further"),
        ]
        notes = [f"{plural(len(runs), 'run')} {what}: {_some(runs)}." for runs, what in said if runs]
        notes += [f"Run {run} could not be read: {why}" for run, why in sorted(self.unreadable.items())]
        if self.guessed:
            names = ", ".join(sorted(self.guessed))
            notes.append(
                f"No card says how many images {names} has; the least counts that fit the accuracies are used."
            )
        return notes


def import_domainbed(folder: str | Path, out: str | Path, partial: bool = False) -> Imported:
    """Reads a DomainBed sweep into a store, which may be new.

    Args:
        folder: The sweep's folder, one folder a run.
        out: The store's folder.
        partial: Take runs without a `done` file too, as DomainBed's own tables do.

    Raises:
        StoreError: There is no run, the store is sealed, or it has runs that had not finished then and now have.
    """
    refuse_sealed(out)
    runs = sorted(path.parent for path in Path(folder).glob("*/results.jsonl"))
    if not runs:
        raise StoreError(f"There is no */results.jsonl in {folder}; name the folder that DomainBed's sweep wrote to.")
    found = Imported()
    with tempfile.TemporaryDirectory() as scratch:
        jobs = _furthest(_read_runs(runs, partial, found), found)
        found.jobs = len(jobs)
        records = {job_id: job.result.parsed(job_id)["records"] for job_id, job in jobs.items()}
        before = {job.id: job.rows for job in finished_jobs(LocalStore(Path(out))) if job.id in jobs}
        grown = [job_id for job_id, rows in before.items() if len(rows) != len(records[job_id])]
        if grown:
            raise StoreError(
                f"{len(grown)} of these runs are in {out} as they were before they finished; import into a new folder."
            )
        for part in write_parts((jobs[job_id] for job_id in sorted(jobs)), Path(scratch)):
            add_part(LocalStore(Path(out)), part, Path(scratch))
    return found


def _furthest(runs: Iterable[tuple[str, Loose]], found: Imported) -> dict[str, Loose]:
    """Of the runs of each job the one that got furthest, and of those the last: where data moved, all ran again."""
    kept: dict[str, tuple[str, Loose]] = {}
    for name, job in runs:
        run = name, job
        if job.id in kept:
            behind, run = sorted((kept[job.id], run), key=lambda one: ending(job.id, one[1].result.done)[1])
            found.doubled.append(behind[0])
        kept[job.id] = run
    return {job_id: job for job_id, (_, job) in kept.items()}


def _read_runs(runs: list[Path], partial: bool, found: Imported) -> Iterator[tuple[str, Loose]]:
    for run in runs:
        if not partial and not (run / "done").exists():
            found.partial.append(run.name)
            continue
        try:
            rows = _read_rows(run, found)
            yield run.name, _as_job(rows, found)
        except (DataError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}."
            found.unreadable[run.name] = why


def _read_rows(run: Path, found: Imported) -> list[dict[str, Any]]:
    """The records of the run's last start, by step; of a step that is there twice, the last."""
    rows, cut = [], False
    for line in (run / "results.jsonl").read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            cut = True
    if cut:
        found.cut.append(run.name)
    if not rows:
        raise DataError("it has no record.")
    steps = {row["step"]: row for row in rows if _what(row) == _what(rows[-1])}
    if len(steps) < len(rows):
        found.repeated.append(run.name)
    return [steps[step] for step in sorted(steps)]


def _what(row: dict[str, Any]) -> list[Any]:
    """What a run is, wherever it ran."""
    return [{name: value for name, value in row["args"].items() if name not in PLACES}, row["hparams"]]


def _as_job(rows: list[dict[str, Any]], found: Imported) -> Loose:
    args, hparams = rows[-1]["args"], rows[-1]["hparams"]
    environments = next(number for number in count() if f"env{number}_out_acc" not in rows[-1])
    dataset, version, domains = _dataset(args["dataset"], environments)
    unlabelled = dict.fromkeys(args["test_envs"], args.get("uda_holdout_fraction") or 0.0)
    counts = _counts(rows, domains, args["holdout_fraction"], unlabelled)
    if not all(domains.values()):
        found.guessed.add(dataset)
    tested = [list(domains)[number] for number in args["test_envs"]]
    splits = [
        {"name": f"{domain}/{part}", "domain": domain, "part": part, "role": role, "count": counts[number, part]}
        for number, domain in enumerate(domains)
        for part, role in (("in", "train"), ("out", "validation"))
    ]
    for split in splits:
        split["role"] = "test" if split["domain"] in tested else split["role"]
    by_hand = json.loads(args["hparams"]) if args.get("hparams") else {}
    every = rows[1]["step"] - rows[0]["step"] if len(rows) > 1 else 1
    recipe = {
        "name": RECIPE,
        "summary": "Trained by DomainBed",
        "steps": args.get("steps") or STEPS,
        "evaluate_every": args.get("checkpoint_freq") or every,
        "holdout": args["holdout_fraction"],
    }
    kept = 1 - args["holdout_fraction"]  # DomainBed's share is one of what is not held out, ours of the whole domain
    task = LeaveOut(tuple(tested), adapt=round(max(unlabelled.values(), default=0.0) * kept, 6))
    setting = [RECIPE, dataset, version, recipe["steps"], recipe["holdout"], by_hand, task.family()]
    description = {
        "id": digest([RECIPE, dataset, version, *_what(rows[-1])])[:20],
        "dataset": dataset,
        "version": version,
        "algorithm": args["algorithm"],
        "revision": REVISION,
        "task": task.describe(),
        "test_domains": tested,
        "draw": args["hparams_seed"],
        "trial": args["trial_seed"],
        "hparams": hparams,
        "overrides": by_hand,
        "own_overrides": {},
        "setting": digest(setting)[:20],
        "recipe": recipe,
        "numerics": "float32",
        "splits": splits,
    }
    names = {(number, part): f"{domain}/{part}" for number, domain in enumerate(domains) for part in ("in", "out")}
    records = [
        {
            "step": row["step"] + 1,
            "splits": {
                name: {"accuracy": float(row[f"env{number}_{part}_acc"]), "count": counts[number, part]}
                for (number, part), name in names.items()
                if math.isfinite(row.get(f"env{number}_{part}_acc", math.nan))
            },
        }
        for row in rows
    ]
    tests = [str(split["name"]) for split in splits if split["role"] == "test"]
    result = Result.of("done", records[-1]["step"], records, tests)
    return Loose(str(description["id"]), canonical(description), result)


def _dataset(name: str, environments: int) -> tuple[str, int | str, dict[str, int]]:
    """The dataset's name, version, and domains with their sizes; one without a card has numbered domains."""
    try:
        known = card(name)
    except UnknownNameError:
        return name, REVISION, {f"env{number}": 0 for number in range(environments)}
    if len(known.domains) != environments:
        raise DataError(f"it has {environments} environments, and {known.name} has {len(known.domains)} domains.")
    return known.name, known.version, known.domains


def _counts(
    rows: list[dict[str, Any]], domains: dict[str, int], holdout: float, unlabelled: dict[int, float]
) -> dict[tuple[int, str], int]:
    """The number of examples of every split, from the card or else the least that the accuracies allow.

    Of a test domain's part that is not held out a share may be given unlabelled, and tested nowhere.
    """
    counts = {}
    for number, size in enumerate(domains.values()):
        out = int(size * holdout)
        given = int((size - out) * unlabelled.get(number, 0.0))
        for part, known in (("in", size - out - given), ("out", out)):
            values = [row[f"env{number}_{part}_acc"] for row in rows if f"env{number}_{part}_acc" in row]
            counts[number, part] = known or _least_count([value for value in values if math.isfinite(value)])
    return counts


def _least_count(accuracies: list[float]) -> int:
    """The least number of examples of which all accuracies are shares."""
    fractions = [Fraction(value).limit_denominator(10**6) for value in accuracies]
    least = math.lcm(*(fraction.denominator for fraction in fractions))
    return least if least <= MOST_EXAMPLES else 1


@dataclass
class Exported:
    """What an export wrote.

    Attributes:
        jobs: How many jobs.
        left_out: The ids of those that DomainBed has no form for.
        mixed: Algorithms and datasets with jobs of several settings, which DomainBed's scripts do not tell apart.
        unwritten: What the jobs recorded beside accuracies, for which DomainBed has no place.
    """

    jobs: int = 0
    left_out: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        """What a person should know, in sentences."""
        notes = []
        if self.left_out:
            why = (
                "left out, since training diverged, DomainBed has no such task, or lean records are without a held-out "
                "part that its scripts read"
            )
            notes.append(f"{plural(len(self.left_out), 'job')} {why}: {_some(self.left_out)}.")
        if self.mixed:
            notes.append(
                "DomainBed's scripts would choose among jobs of several settings (recipes, steps, values set by hand, "
                f"versions) as if they were one: {_some(self.mixed)}; export sweeps of one setting each."
            )
        if self.unwritten:
            notes.append(
                f"Accuracies alone are exported: imported again, selections that read {', '.join(self.unwritten)} "
                "choose nothing, and oracle-laplace may choose otherwise, since jobs have other ids then, from which "
                "its noise is drawn."
            )
        return notes


def export_domainbed(folder: str | Path, out: str | Path) -> Exported:
    """Writes the finished jobs of a store as a DomainBed sweep, one folder a job, which its scripts can read.

    Jobs that diverged have no form there, nor tasks other than leaving out domains of which a part is held out and
    nothing is seen unlabelled, nor lean records without some held-out part.

    Raises:
        StoreError: No job is finished, or the store is sealed.
    """
    refuse_sealed(folder)
    done, store = Exported(), LocalStore(Path(out))
    recorded: set[str] = set()
    tables: dict[tuple[str, str, int], set[tuple[Any, ...]]] = defaultdict(set)
    for job in finished_jobs(LocalStore(Path(folder))):
        about = job.description
        task = about["task"]
        is_other = task["kind"] != LeaveOut.kind or any(task.get(name) for name in ("grouped", "whole", "adapt"))
        if is_other or job.status != "done" or not _has_all_held_out(job):
            done.left_out.append(job.id)
            continue
        rows = [json.dumps(row, sort_keys=True) + "\n" for row in _as_results(job)]
        store.put_atomic(f"{job.id}/results.jsonl", "".join(rows).encode())
        store.put_atomic(f"{job.id}/done", b"done")
        done.jobs += 1
        recorded |= {name for split in job.rows[-1]["splits"].values() for name in split}
        row = about["algorithm"], about["dataset"], len(about["test_domains"])
        tables[row].add((about["setting"], Variant.of(about)))
    done.unwritten = sorted(recorded - {"accuracy", "count"})
    done.mixed = sorted({f"{row[0]} on {row[1]}" for row, settings in tables.items() if len(settings) > 1})
    if not done.jobs and not done.left_out:
        raise no_finished_job(folder)
    return done


def _has_all_held_out(job: JobRecords) -> bool:
    """Whether a job recorded the held-out part of every domain: the scripts count domains up to the first without."""
    names = {f"{split['domain']}/out" for split in job.description["splits"]}
    return all(names <= row["splits"].keys() for row in job.rows)


def _as_results(job: JobRecords) -> Iterator[dict[str, Any]]:
    """The records of a job as DomainBed writes them; those of a training domain's `in` part where there are any."""
    about = job.description
    domains = list(dict.fromkeys(split["domain"] for split in about["splits"]))
    tested = [domains.index(name) for name in about["test_domains"]]
    by_hand = {**about["overrides"], **about["own_overrides"]}
    args = {
        "algorithm": about["algorithm"],
        "checkpoint_freq": about["recipe"]["evaluate_every"],
        "data_dir": "",
        "dataset": about["dataset"],
        "holdout_fraction": about["recipe"]["holdout"],
        "hparams": json.dumps(by_hand) if by_hand else None,
        "hparams_seed": about["draw"],
        "output_dir": job.id,
        "save_model_every_checkpoint": False,
        "seed": seed_hash(about["dataset"], about["algorithm"], tested, about["draw"], about["trial"]),
        "skip_model_save": True,
        "steps": about["recipe"]["steps"],
        "task": "domain_generalization",
        "test_envs": tested,
        "trial_seed": about["trial"],
        "uda_holdout_fraction": 0,
    }
    for row in job.rows:
        accuracies = {
            f"env{number}_{part}_acc": row["splits"][f"{domain}/{part}"]["accuracy"]
            for number, domain in enumerate(domains)
            for part in ("in", "out")
            if f"{domain}/{part}" in row["splits"]
        }
        yield {"args": args, "hparams": about["hparams"], "step": row["step"] - 1, **accuracies}


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
