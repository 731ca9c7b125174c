"""What the oracle finds if training ends earlier, from records: `python scripts/last_step.py FOLDER ... --domain=-90%`.

The oracle looks at the last step. A job of fewer steps would have been the same up to there (rates are constant, and
position k of a stream does not know how many follow), so that its number is the one of the same records without the
later ones. Trials that lack draws are left out. It looks at more steps than an oracle may: a study of the rule, not a
use of it.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shiftbed.selection import SELECTIONS, JobRecords
from shiftbed.sweeps.records import finished_jobs
from shiftbed.tables import make_tables
from shiftbed.training.store import LocalStore


def whole_trials(folders: Sequence[Path], domain: str, algorithm: str) -> list[JobRecords]:
    """The jobs that test a domain, of the trials with most draws."""
    every = {job.id: job for folder in folders for job in finished_jobs(LocalStore(folder))}
    jobs = [
        job
        for job in every.values()
        if (job.description["algorithm"], job.description["test_domains"]) == (algorithm, [domain])
    ]
    draws = Counter(job.description["trial"] for job in jobs)
    return [job for job in jobs if draws[job.description["trial"]] == max(draws.values())]


def found(jobs: Sequence[JobRecords], domain: str, step: int) -> str:
    """What the oracle finds among jobs that end at a step: mean ± standard error over trials."""
    ended = [replace(job, rows=[row for row in job.rows if row["step"] <= step]) for job in jobs]
    (table,) = make_tables(ended, [SELECTIONS["oracle"]])
    estimate = table.estimate(table.algorithms[0], ((domain,), domain))
    error = "" if estimate.standard_error is None else f" ±{estimate.standard_error:.1f}"
    return f"{estimate.mean:.1f}†{error}"


def page(folders: Sequence[Path], domain: str, algorithms: Sequence[str], steps: Sequence[int]) -> str:
    """The table as Markdown."""
    lines = [
        "| algorithm | trials | " + " | ".join(f"{step:,} steps" for step in steps) + " |",
        "| --- | ---: |" + " ---: |" * len(steps),
    ]
    for algorithm in algorithms:
        jobs = whole_trials(folders, domain, algorithm)
        trials = len({job.description["trial"] for job in jobs})
        lines.append(" | ".join([f"| {algorithm} | {trials}", *(found(jobs, domain, step) for step in steps)]) + " |")
    return "\n".join([*lines, "", "† Oracle: chosen with the test domain's labels."])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path, help="sweeps that are united")
    parser.add_argument("--domain", required=True, help="the test domain")
    parser.add_argument("--algorithms", default="ERM,IRM", help="separated by commas")
    parser.add_argument("--steps", default="1000,2000,3000,4000,5000", help="where training ends, separated by commas")
    options = parser.parse_args()
    print(page(options.folders, options.domain, options.algorithms.split(","), [*map(int, options.steps.split(","))]))
