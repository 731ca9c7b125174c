"""Our jobs beside those of a loop of its own, one by one: `python scripts/job_by_job.py SWEEP LOOPS --domain=-90%`.

An oracle's number is that of one job of 20, and one lucky job moves it. That two programs train the same is better seen
in all their jobs: the same draws in the same trials, at their last evaluations.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from shiftbed.sweeps.records import finished_jobs
from shiftbed.training.store import LocalStore

Accuracies = dict[tuple[int, int], float]  # by trial and draw, in percent


def of_sweep(folder: Path, algorithm: str, domain: str) -> Accuracies:
    """The last accuracy of every job of an algorithm on a test domain, but for what the oracle looks at."""
    found = {}
    for job in finished_jobs(LocalStore(folder)):
        about = job.description
        if (about["algorithm"], about["test_domains"]) == (algorithm, [domain]):
            last = max(job.rows, key=lambda row: row["step"])
            found[about["trial"], about["draw"]] = 100 * last["splits"][f"{domain}/in"]["accuracy"]
    return found


def of_loop(file: Path) -> Accuracies:
    """The same of a file of the loop."""
    return {(job["trial"], job["draw"]): 100 * job["rows"][-1]["in"] for job in json.loads(file.read_bytes())}


def page(sweep: Path, loops: Path, domain: str) -> str:
    """The comparison as Markdown."""
    lines = ["| algorithm | data of the loop | jobs | ours | the loop | difference | correlation |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for file in sorted(loops.glob("*-*.json")):
        algorithm, _, data = file.stem.partition("-")
        ours, theirs = of_sweep(sweep, algorithm, domain), of_loop(file)
        both = sorted(ours.keys() & theirs.keys())
        one, other = (np.array([some[key] for key in both]) for some in (ours, theirs))
        apart = one - other
        lines.append(
            f"| {algorithm} | {data} | {len(both)} | {one.mean():.1f} | {other.mean():.1f} | {apart.mean():+.1f} "
            f"±{apart.std(ddof=1) / len(both) ** 0.5:.1f} | {np.corrcoef(one, other)[0, 1]:.2f} |"
        )
    return "\n".join([*lines, "", "Accuracy in % at the last evaluation, mean over jobs; ± is the standard error."])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sweep", type=Path, help="the sweep's folder")
    parser.add_argument("loops", type=Path, help="the folder of the loop's files")
    parser.add_argument("--domain", required=True, help="the test domain")
    options = parser.parse_args()
    print(page(options.sweep, options.loops, options.domain))
