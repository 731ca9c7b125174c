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
from shiftbed.tables import Estimate, make_tables
from shiftbed.training.store import LocalStore

Span = tuple[int, int]


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


def found(jobs: Sequence[JobRecords], domain: str, step: int) -> Estimate:
    """What the oracle finds among jobs that end at a step, over trials."""
    ended = [replace(job, rows=[row for row in job.rows if row["step"] <= step]) for job in jobs]
    (table,) = make_tables(ended, [SELECTIONS["oracle"]])
    return table.estimate(table.algorithms[0], ((domain,), domain))


def at_step(jobs: Sequence[JobRecords], domain: str, step: int) -> str:
    """Mean ± standard error over trials."""
    estimate = found(jobs, domain, step)
    error = "" if estimate.standard_error is None else f" ±{estimate.standard_error:.1f}"
    return f"{estimate.mean:.1f}†{error}"


def within(jobs: Sequence[JobRecords], domain: str, span: Span) -> str:
    """Mean, lowest and highest over all evaluations within a span: how much of a difference is which step it was."""
    steps = sorted({row["step"] for job in jobs for row in job.rows if span[0] <= row["step"] <= span[1]})
    means = [found(jobs, domain, step).mean for step in steps]
    return f"{sum(means) / len(means):.1f}† ({min(means):.1f} to {max(means):.1f})"


def page(
    folders: Sequence[Path],
    domain: str,
    algorithms: Sequence[str],
    steps: Sequence[int],
    spans: Sequence[Span] = (),
    each_trial: bool = False,
) -> str:
    """The table as Markdown, if asked with a row for each of several trials, which other studies have one of."""
    heads = [f"{step:,} steps" for step in steps] + [f"every end from {low:,} to {high:,}" for low, high in spans]
    lines = ["| algorithm | trials | " + " | ".join(heads) + " |", "| --- | ---: |" + " ---: |" * len(heads)]
    for algorithm in algorithms:
        jobs = whole_trials(folders, domain, algorithm)
        trials = sorted({job.description["trial"] for job in jobs})
        rows = [(str(len(trials)), jobs)]
        if each_trial and len(trials) > 1:
            rows += [(f"only {trial}", [job for job in jobs if job.description["trial"] == trial]) for trial in trials]
        for which, some in rows:
            cells = [at_step(some, domain, step) for step in steps] + [within(some, domain, span) for span in spans]
            lines.append(" | ".join([f"| {algorithm} | {which}", *cells]) + " |")
    return "\n".join([*lines, "", "† Oracle: chosen with the test domain's labels."])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path, help="sweeps that are united")
    parser.add_argument("--domain", required=True, help="the test domain")
    parser.add_argument("--algorithms", default="ERM,IRM", help="separated by commas")
    parser.add_argument("--steps", default="1000,2000,3000,4000,5000", help="where training ends, separated by commas")
    parser.add_argument("--spans", default="", help="all evaluations from one step to another: 1000-5000,6000-10000")
    parser.add_argument("--each-trial", action="store_true", help="a row for each trial too")
    options = parser.parse_args()
    ends = [int(step) for step in options.steps.split(",")]
    spans = [
        (int(low), int(high)) for low, _, high in (span.partition("-") for span in options.spans.split(",") if span)
    ]
    print(page(options.folders, options.domain, options.algorithms.split(","), ends, spans, options.each_trial))
