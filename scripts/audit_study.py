"""The pretraining study on PACS: linear probe, frozen stages and fine-tuning, supervised weights against none.

Run, on a GPU (about five minutes; run again, it continues):

    python scripts/audit_study.py run --pacs pacs_128px_q90.npz --weights resnet50.safetensors --out study

It writes `study/result.json`. The page, anywhere:

    python scripts/audit_study.py page docs/audit-pacs.json
"""

import argparse
import io
import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from shiftbed.audit import study
from shiftbed.audit.study import NOTHING, Accuracy, Arm
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.data.roots import pack_folder, prepared_names
from shiftbed.training.device import Runtime, default_precision, find_runtime
from shiftbed.training.job import Job
from shiftbed.training.recipes import Recipe, recipe
from shiftbed.training.store import LocalStore

NAME = "PACS-128px"
STAGES = 4
SCRATCH = {"lr": 5e-4}  # random weights want a higher rate than the usual 5e-5
PROBES = tuple({"lr": rate} for rate in (1e-4, 1e-3, 1e-2))  # cheap enough to search


def write_data(archive: Path) -> None:
    """Packs the archive of JPEG files under the data root, once."""
    if NAME in prepared_names():
        return
    content = np.load(archive)
    offsets, jpeg = content["offsets"], content["jpeg"]
    images = np.stack([
        np.asarray(Image.open(io.BytesIO(jpeg[start:stop].tobytes())).convert("RGB"))
        for start, stop in pairwise(offsets)
    ])  # fmt: skip
    names, of, labels = [str(name) for name in content["domains"]], content["domain"], content["label"]
    domains = [Domain(name, images[of == k], labels[of == k].astype(np.int64)) for k, name in enumerate(names)]
    card = Card(
        name=NAME,
        version=1,
        summary="PACS, reduced to 128 px",
        domains={domain.name: len(domain) for domain in domains},
        classes=tuple(str(name) for name in content["classes"]),
        input_shape=(3, *images.shape[1:3]),
        size_class="large",
        licence="research use",
        source="PACS (Li et al., 2017) at 128×128",
        citation="Li et al., 2017",
    )
    write_arrays(domains, card, pack_folder(NAME))


def plans(how: Recipe, weights: str, trial: int) -> dict[Arm, list[Job]]:
    """The jobs of every arm of a trial, those of supervised weights first."""
    found = {}
    for arm in study.arms([weights, NOTHING], STAGES):
        values = PROBES if arm.probe else (SCRATCH,) if arm.weights == NOTHING else ({},)
        found[arm] = [job for some in values for job in study.plan(NAME, how, arm, trials=[trial], overrides=some)]
    return found


def run(options: argparse.Namespace) -> None:
    """Trains what is not trained yet, within the time given, and writes what there is."""
    started = time.monotonic()
    write_data(options.pacs)
    found = find_runtime(options.device)
    runtime = Runtime(found.device, accelerate=False)  # compiling each of these short jobs would take longer
    how = recipe(
        "quick", NAME, network="resnet50", image_size=128, steps=options.steps, evaluate_every=options.steps // 2,
        batch_norm="frozen-statistics", precision=default_precision(runtime),
    )  # fmt: skip
    store, weights = LocalStore(options.out), str(options.weights.resolve())
    jobs: dict[Arm, list[Job]] = {}

    def out_of_time() -> bool:
        return time.monotonic() - started > options.seconds

    for trial in range(options.trials):
        for arm, some in plans(how, weights, trial).items():
            jobs.setdefault(arm, []).extend(some)
            study.run_here(some, store, runtime, out_of_time)
            print(
                f"{time.monotonic() - started:6.0f} s  trial {trial}  {Path(arm.weights).stem}  {arm.frozen} frozen",
                flush=True,
            )
    probe = next(job for arm, some in jobs.items() if arm.probe and arm.weights != NOTHING for job in some)
    result = {
        "dataset": NAME,
        "steps": options.steps,
        "device": runtime.device,
        "seconds": round(time.monotonic() - started),
        "stand_in": "photo",
        "distances": {name: round(far, 3) for name, far in study.distances(probe, "photo", runtime).items()},
        "rows": [
            {**arm._asdict(), "weights": _name(arm.weights), "test": test, **accuracy._asdict()}
            for arm, some in jobs.items()
            for test, accuracy in study.accuracies(study.finished(some, store)).items()
        ],
    }
    (options.out / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


def _name(weights: str) -> str:
    return NOTHING if weights == NOTHING else "supervised"


def page(options: argparse.Namespace) -> None:
    """Prints the tables and the verdict of a result."""
    from shiftbed.audit.pretraining import Results, judged
    from shiftbed.tables import render

    result = json.loads(options.result.read_text(encoding="utf-8"))
    found: dict[Arm, dict[str, Accuracy]] = {}
    for row in result["rows"]:
        arm = Arm(row["weights"], row["frozen"], row["probe"])
        found.setdefault(arm, {})[row["test"]] = Accuracy(row["mean"], row["error"], row["trials"], row["images"])
    finding = judged([Results(result["dataset"], found, result["distances"])])
    print(render(list(finding.grids), options.format))
    print(f"\n{finding.verdict}: {finding.sentence}")


def main() -> None:
    """Parses and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    running = verbs.add_parser("run")
    running.add_argument("--pacs", type=Path, required=True)
    running.add_argument("--weights", type=Path, required=True)
    running.add_argument("--out", type=Path, default=Path("study"))
    running.add_argument("--steps", type=int, default=200)
    running.add_argument("--trials", type=int, default=2)
    running.add_argument("--seconds", type=float, default=270.0, help="Start no job after this time.")
    running.add_argument("--device")
    running.set_defaults(verb=run)
    printing = verbs.add_parser("page")
    printing.add_argument("result", type=Path)
    printing.add_argument("--format", default="text")
    printing.set_defaults(verb=page)
    options = parser.parse_args()
    options.verb(options)


if __name__ == "__main__":
    main()
