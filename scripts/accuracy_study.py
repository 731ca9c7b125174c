"""The study of accuracy prediction on real data: CIFAR-10, 19 corruptions at 5 severities, a pool of classifiers.

    python scripts/accuracy_study.py pack CIFAR parts      lossless sheets of CIFAR-10 in two parts, to carry along
    python scripts/accuracy_study.py data parts work       from the parts to a prepared dataset and the corrupted sets
    python scripts/accuracy_study.py train work out        trains classifiers, and asks each what it says of all sets
    python scripts/accuracy_study.py tables out docs       all tables and pictures, on any machine

Every command can be interrupted and run again: what is there is not made a second time. At any time `out` has logits,
and what methods need of the features, of all classifiers that are done, in few files. Target domains are made of the
first 2,000 test images; the other 8,000, clean, are the source. Lines are judged leaving out whole corruptions.
"""

import argparse
import io
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import numpy as np

SHEET = 1024  # images, as 32 × 32 of them
TARGETS = 2000
CLEAN_ENOUGH = 0.85
DIRECTIONS = 64
SHOWN = "cifar-resnet44"  # the paper draws this one, and changes the sets it is asked about
CLASSIFIERS = (  # the longest last
    *("cifar-resnet18", "cifar-vgg13", "cifar-mobilenetv2", "cifar-preact-resnet18", "cifar-vgg16", "cifar-senet18"),
    *("cifar-shufflenetv2-1.5", "cifar-repvgg-a0", "cifar-resnet44", "cifar-vgg11", "cifar-vgg19", "cifar-resnet34"),
)
EPOCHS, BATCH, RATE, DECAY, WARM_UP = 12, 512, 0.1, 5e-4, 0.2
PER_FILE = 4  # classifiers: 16 MB


def pack(folder: Path, parts: Path) -> None:
    """Writes CIFAR-10 as lossless sheets in two files of about 50 MB."""
    from PIL import Image

    from shiftbed.data.cifar import cifar_10

    train, test = cifar_10(folder)
    images = np.concatenate([train.inputs, test.inputs])
    labels = np.concatenate([train.labels, test.labels]).astype(np.uint8)
    parts.mkdir(parents=True, exist_ok=True)
    cut = 31 * SHEET
    for number, part in enumerate((slice(0, cut), slice(cut, len(images)))):
        sheets = []
        for start in range(0, len(images[part]), SHEET):
            some = images[part][start : start + SHEET]
            sheet = np.zeros((SHEET, 32, 32, 3), np.uint8)
            sheet[: len(some)] = some
            tiles = sheet.reshape(32, 32, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(1024, 1024, 3)
            buffer = io.BytesIO()
            Image.fromarray(tiles).save(buffer, format="WEBP", lossless=True, quality=100, method=4)
            sheets.append(np.frombuffer(buffer.getvalue(), np.uint8))
        ends = np.cumsum([len(sheet) for sheet in sheets])
        np.savez(parts / f"part-{number}.npz", sheets=np.concatenate(sheets), ends=ends, labels=labels[part])
        print(f"part-{number}.npz: {(parts / f'part-{number}.npz').stat().st_size / 1e6:.1f} MB", flush=True)


def unpack(parts: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of all parts."""
    from PIL import Image

    images, labels = [], []
    for number in range(2):
        with np.load(parts / f"part-{number}.npz") as part:
            starts = [0, *part["ends"][:-1]]
            sheets = [part["sheets"][a:b].tobytes() for a, b in zip(starts, part["ends"], strict=True)]
            labels.append(part["labels"].astype(np.int64))
        tiles = [np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")) for sheet in sheets]
        whole = np.concatenate(
            [tile.reshape(32, 32, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(SHEET, 32, 32, 3) for tile in tiles]
        )
        images.append(whole[: len(labels[-1])])
    return np.concatenate(images), np.concatenate(labels)


def corrupted_set(task: tuple[str, str, int]) -> str:
    """Makes one corrupted set, unless it is there."""
    from shiftbed.data.corruptions import corrupt

    folder, name, severity = task
    path = Path(folder) / "sets" / f"{name}-{severity}.npy"
    if not path.exists():
        clean = np.load(Path(folder) / "sets" / "clean.npy")
        made = path.with_suffix(".part.npy")
        np.save(made, corrupt(clean, name, severity))
        made.replace(path)
    return path.stem


def names_of_sets() -> list[tuple[str, int]]:
    """Corruptions and severities."""
    from shiftbed.data.cifar import STANDARD
    from shiftbed.data.corruptions import SEVERITIES

    return [(name, severity) for name in STANDARD for severity in SEVERITIES]


def domain_names() -> list[str]:
    """The clean images, and every corrupted set."""
    return ["clean", *(f"{name}-{severity}" for name, severity in names_of_sets())]


def check() -> None:
    """Fails at once, and not after the training, where something that is needed later is not installed."""
    import sklearn.cluster  # noqa: F401
    import threadpoolctl  # noqa: F401

    import shiftbed.accuracy.methods
    import shiftbed.training.run  # noqa: F401


def data(parts: Path, work: Path, limit: int | None = None) -> None:
    """Prepares CIFAR-10 under a data root, and makes the corrupted sets on all cores."""
    check()
    from shiftbed.data.arrays import write_arrays
    from shiftbed.data.dataset import DATASETS, Domain

    os.environ["SHIFTBED_DATA"] = str(work / "root")
    started = time.perf_counter()
    target = work / "root" / "packs" / "CIFAR-10"
    if not target.exists():
        images, labels = unpack(parts)
        card = DATASETS["CIFAR-10"].card
        train, test = slice(0, 50_000), slice(50_000, None)
        if limit:  # for trying the script out
            train, test = slice(0, limit), slice(50_000, 50_000 + limit)
            card = card.model_copy(update={"domains": {"train": limit, "test": limit}, "version": "tiny"})
        domains = [Domain("train", images[train], labels[train]), Domain("test", images[test], labels[test])]
        (work / "sets").mkdir(parents=True, exist_ok=True)
        count = min(TARGETS, len(labels[test]) // 2)
        np.save(work / "sets" / "clean.npy", np.ascontiguousarray(images[test][:count]))
        write_arrays(domains, card, target)
    print(f"CIFAR-10 is prepared ({time.perf_counter() - started:.0f} s)", flush=True)
    tasks = [(str(work), name, severity) for name, severity in names_of_sets()]
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        for done, name in enumerate(pool.map(corrupted_set, tasks), 1):
            if done % 19 == 0:
                print(f"{done}/{len(tasks)} sets, {name} ({time.perf_counter() - started:.0f} s)", flush=True)


def job_of(name: str, epochs: float):
    """The job that trains a classifier."""
    from shiftbed.data import card
    from shiftbed.protocols import LeaveOut
    from shiftbed.training.device import default_precision, find_runtime
    from shiftbed.training.job import make_job
    from shiftbed.training.recipes import recipe

    runtime = find_runtime(accelerate=False)  # compiling a network takes longer than training it here
    count = card("CIFAR-10").domains["train"]
    batch = min(BATCH, count // 4)
    steps = max(2, round(0.96 * count / batch * epochs))
    how = recipe(
        "cifar-10-w-classifiers",
        "CIFAR-10",
        network=name,
        warm_up=WARM_UP,
        steps=steps,
        evaluate_every=steps,
        precision=default_precision(runtime),
    )
    values = {"batch_size": batch, "lr": RATE, "weight_decay": DECAY}
    return make_job("CIFAR-10", "ERM", LeaveOut(("test",), whole=True), how, overrides=values), runtime


def train(work: Path, out: Path, only: list[str], workers: int, epochs: float, deadline: float) -> None:
    """Trains and asks the classifiers that are not done yet; several processes share a GPU."""
    os.environ["SHIFTBED_DATA"] = str(work / "root")
    until, done = time.time() + deadline, []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        asked = {pool.submit(classifier, work, name, epochs, until): name for name in only}
        for future in as_completed(asked):
            if future.exception() is not None:
                print(f"{asked[future]}: {future.exception()!r}", flush=True)
            elif future.result():
                done.append(asked[future])
                gather(work, out, done)
    print(f"{len(done)} of {len(only)} classifiers are in {out}", flush=True)


def classifier(work: Path, name: str, epochs: float, until: float) -> bool:
    """Trains one classifier, and keeps what it says of all sets; False if it must be stopped before."""
    from shiftbed.training.files import Result
    from shiftbed.training.run import JobFiles, run_job
    from shiftbed.training.store import LocalStore

    kept = work / "outputs" / f"{name}.npz"
    if kept.exists():
        return True
    job, runtime = job_of(name, epochs)
    store, files, started = LocalStore(work / "runs"), JobFiles(job.id), time.time()

    def report(step: int, metrics: dict) -> None:
        if step in (20, 100) or step % 500 == 0:
            loss, seconds = float(metrics["loss"]), time.time() - started
            print(f"{name}: step {step} of {job.recipe.steps}, loss {loss:.3f}, {seconds:.0f} s", flush=True)

    if time.time() > until:
        return False
    outcome = run_job(
        job, store, keep="final", runtime=runtime, on_step=report, should_stop=lambda: time.time() > until
    )
    print(f"{name}: {outcome} after {time.time() - started:.0f} s", flush=True)
    if outcome != "done":
        return False
    result = Result.read(store, job.id)
    assert result is not None
    last = result.parsed(job.id)["records"][-1]
    content = outputs_of(store.root / files.weights, work, runtime)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write(kept, content)
    accuracy, seconds = last["splits"]["test/all"]["accuracy"], time.time() - started
    print(f"{name}: {accuracy:.1%} of the clean test images; all in {seconds:.0f} s", flush=True)
    return True


def gather(work: Path, out: Path, done: list[str]) -> None:
    """Writes the labels, and the file that the last of these classifiers belongs to."""
    from shiftbed.data import load

    labels = np.asarray(load("CIFAR-10")["test"].labels).astype(np.uint8)
    count = len(np.load(work / "sets" / "clean.npy", mmap_mode="r"))
    number, together = (len(done) - 1) // PER_FILE, {}
    for name in done[number * PER_FILE :]:
        with np.load(work / "outputs" / f"{name}.npz") as arrays:
            together |= {f"{name}/{key}": arrays[key] for key in arrays}
    out.mkdir(parents=True, exist_ok=True)
    write(out / f"outputs-{number}.npz", together)
    about = {"domains": np.array(domain_names()), "classifiers": np.array(done)}
    write(out / "labels.npz", {"source": labels[count:], "target": labels[:count], **about})


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays so that the file is there whole or not at all."""
    made = path.with_suffix(".part.npz")
    np.savez(made, **arrays)
    made.replace(path)


def outputs_of(weights: Path, work: Path, runtime) -> dict[str, np.ndarray]:
    """Logits in half precision; the Fréchet distance and bag of prototypes of the features.

    Features are taken in the 64 directions in which the source varies most.
    """
    import torch

    from shiftbed.accuracy.methods import METHODS
    from shiftbed.accuracy.outputs import Outputs
    from shiftbed.accuracy.reference import Reference
    from shiftbed.data import load as load_dataset
    from shiftbed.training.device import numerics
    from shiftbed.training.model import load

    algorithm = load(weights, runtime.device).algorithm
    count = len(np.load(work / "sets" / "clean.npy", mmap_mode="r"))
    source = np.asarray(load_dataset("CIFAR-10")["test"].inputs[count:])

    @torch.inference_mode()
    def logits_and_features(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, features = [], []
        with numerics("tf32", runtime):
            for start in range(0, len(images), 2000):
                x = torch.tensor(images[start : start + 2000], device=runtime.device).permute(0, 3, 1, 2).float() / 255
                made = algorithm.featurizer(x)
                logits.append(algorithm.classifier(made).float().cpu().numpy())
                features.append(made.float().cpu().numpy())
        return np.concatenate(logits), np.concatenate(features)

    logits, features = logits_and_features(source)
    middle = features.mean(axis=0)
    centred = (features - middle).astype(np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    directions = directions[:, -DIRECTIONS:]
    kept = float(variances[-DIRECTIONS:].sum() / variances.sum())
    # Labels are needed nowhere in these two methods: any do.
    reference = Reference(Outputs(logits, centred @ directions, np.zeros(len(logits), int)))
    content = {"source": logits.astype(np.float16), "variance kept": np.array(kept)}
    targets, distances, bags = [], [], []
    for name in domain_names():
        logits, features = logits_and_features(np.load(work / "sets" / f"{name}.npy"))
        domain = Outputs(logits, (features - middle) @ directions, name=name)
        targets.append(logits.astype(np.float16))
        distances.append(METHODS["frechet-distance"].score(domain, reference))
        bags.append(METHODS["bop-js"].score(domain, reference))
    return content | {
        "targets": np.stack(targets),
        "frechet-distance": np.array(distances),
        "bop-js": np.array(bags),
    }


class Kept:
    """What classifiers said, as `train` left it; only those with at least some clean accuracy are used."""

    def __init__(self, out: Path, clean_enough: float) -> None:
        labels = dict(np.load(out / "labels.npz"))
        self.arrays: dict[str, np.ndarray] = {}
        for file in sorted(out.glob("outputs-*.npz")):
            self.arrays |= dict(np.load(file))
        self.source, self.target = (labels[key].astype(np.int64) for key in ("source", "target"))
        self.domains = [str(name) for name in labels["domains"]]
        self.groups = {name: name.rsplit("-", 1)[0] for name in self.domains}
        self.clean = {str(name): self._clean(str(name)) for name in labels["classifiers"]}
        self.used = [name for name, accuracy in self.clean.items() if accuracy >= clean_enough]
        self._predicted = {
            name: [logits.argmax(1).astype(np.uint8) for logits in (self._logits(name, 0), *self._targets(name))]
            for name in self.used
        }

    def _clean(self, name: str) -> float:
        return float((self.arrays[f"{name}/targets"][0].argmax(1) == self.target).mean())

    def _targets(self, name: str) -> np.ndarray:
        return self.arrays[f"{name}/targets"]

    def _logits(self, name: str, place: int) -> np.ndarray:
        return self.arrays[f"{name}/source"] if place == 0 else self._targets(name)[place - 1]

    def outputs(self, name: str, change=lambda domain: domain):
        """The outputs of a classifier on the source and on all domains, with the others for its pool."""
        from shiftbed.accuracy.outputs import Outputs

        others = [self._predicted[other] for other in self.used if other != name]

        def of(place: int, labels: np.ndarray, called: str) -> Outputs:
            pool = np.stack([other[place] for other in others]) if others else None
            return Outputs(self._logits(name, place).astype(np.float32), None, labels, pool, called)

        domains = (change(of(place, self.target, domain)) for place, domain in enumerate(self.domains, 1))
        return of(0, self.source, "source"), domains

    def scores(self, names: list[str], change=lambda domain: domain, **how):
        """What methods say of some classifiers, on domains that are changed first."""
        from shiftbed.accuracy.studies import score_classifiers

        return score_classifiers({name: partial(self.outputs, name, change) for name in names}, self.groups, **how)


def tables(out: Path, docs: Path, clean_enough: float = CLEAN_ENOUGH) -> None:
    """All tables and pictures."""
    from shiftbed.accuracy import studies
    from shiftbed.accuracy.pictures import text_table
    from shiftbed.accuracy.study import reductions, write_changes, write_study
    from shiftbed.accuracy.summary import DIRECT
    from shiftbed.data import card
    from shiftbed.training.store import write_json

    kept, started = Kept(out, clean_enough), time.perf_counter()
    used = sorted(kept.used, key=lambda name: name != SHOWN)
    print(f"Clean accuracy: {', '.join(f'{name} {accuracy:.1%}' for name, accuracy in kept.clean.items())}")
    print(f"{len(used)} of {len(kept.clean)} classifiers have at least {clean_enough:.0%} and are used.")
    scores = kept.scores(used)
    spent = time.perf_counter() - started
    print(f"All methods on {len(used)} classifiers × {len(kept.domains)} domains: {spent:.0f} s")
    for method in ("frechet-distance", "bop-js"):
        scores.values[method] = np.stack([kept.arrays[f"{name}/{method}"] for name in used])
    scores = scores.varying()
    calibrated = kept.scores(used, methods=DIRECT, calibrated=True)
    made = write_study(scores, docs, calibrated)
    few = [name for name in scores.values if name not in ("frechet-distance", "bop-js", "aline-s", "aline-d")]
    reduced = reductions(len(kept.target), card("CIFAR-10").classes)
    after = {what: kept.scores(used[:1], change, methods=few).varying() for what, change in reduced.items()}
    made |= {
        "classifiers": {name: kept.clean[name] for name in used},
        "span": float(100 * np.ptp(scores.accuracies)),
        "variance kept": {name: float(kept.arrays[f"{name}/variance kept"]) for name in used},
        "beside the paper": studies.beside_paper(made["mae, groups left out"]),
        "summary": [studies.fit_summary(scores, name, by_group=True) for name in scores.values],
        "changes": write_changes(kept.scores(used[:1], methods=few).varying(), after, docs),
    }
    write_json(made, docs / "study.json")
    print(f"Accuracies span {made['span']:.0f} points.")
    for name in ("beside the paper", "direct", "direct, calibrated", "summary", "coverage", "changes"):
        print(f"\n{name}\n{text_table(made[name])}")


def main() -> None:
    """Parses and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "data", "train", "tables"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--deadline", type=float, default=1e9, help="Seconds after which training stops, saved.")
    parser.add_argument("--limit", type=int, help="Use so few images, to try it out.")
    parser.add_argument("--clean", type=float, default=CLEAN_ENOUGH, help="The least clean accuracy.")
    parser.add_argument("--only", nargs="*", default=list(CLASSIFIERS))
    given = parser.parse_args()
    if given.what == "pack":
        pack(*given.paths)
    elif given.what == "data":
        data(*given.paths, limit=given.limit)
    elif given.what == "train":
        train(*given.paths, given.only, given.workers, given.epochs, given.deadline)
    else:
        tables(*given.paths, clean_enough=given.clean)


if __name__ == "__main__":
    main()
