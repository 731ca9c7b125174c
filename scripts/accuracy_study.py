"""The study of accuracy prediction on real data: CIFAR-10, 19 corruptions at 5 severities, a pool of classifiers.

    python scripts/accuracy_study.py pack CIFAR parts      lossless sheets of CIFAR-10 in two parts, to carry along
    python scripts/accuracy_study.py data parts work       from the parts to a prepared dataset and the corrupted sets
    python scripts/accuracy_study.py train work            trains the classifiers that are not trained yet
    python scripts/accuracy_study.py extract work out      logits, and what methods need of the features, in few files
    python scripts/accuracy_study.py tables out docs       all tables and pictures, on any machine

Every command can be interrupted and run again: what is there is not made a second time. Target domains are made of the
first 2,000 test images; the other 8,000, clean, are the source. Lines are judged leaving out whole corruptions.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

SHEET = 1024  # images, as 32 × 32 of them
TARGETS = 2000
CLEAN_ENOUGH = 0.85
DIRECTIONS = 64
CLASSIFIERS = (
    *("cifar-resnet18", "cifar-vgg13", "cifar-googlenet", "cifar-resnet34", "cifar-preact-resnet18", "cifar-senet18"),
    *("cifar-vgg16", "cifar-repvgg-a0", "cifar-vgg11", "cifar-resnet44", "cifar-regnetx-200mf", "cifar-mobilenetv2"),
    "cifar-shufflenetv2-1",
)
EPOCHS, BATCH, RATE = 16, 512, 2e-3
PER_FILE = 3  # classifiers: 15 MB


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
    from shiftbed.accuracy.domains import STANDARD
    from shiftbed.data.corruptions import SEVERITIES

    return [(name, severity) for name in STANDARD for severity in SEVERITIES]


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


def job_of(name: str, work: Path, epochs: int):
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
        optimizer="adam",
        steps=steps,
        evaluate_every=steps,
        precision=default_precision(runtime),
    )
    values = {"batch_size": batch, "lr": RATE, "weight_decay": 0.0}
    return make_job("CIFAR-10", "ERM", LeaveOut(("test",), whole=True), how, overrides=values), runtime


def train(work: Path, workers: int, only: list[str], epochs: int, deadline: float) -> None:
    """Trains the classifiers that have no weights yet; several processes share a GPU."""
    os.environ["SHIFTBED_DATA"] = str(work / "root")
    if workers > 1:
        again = [sys.executable, __file__, "train", str(work), "--workers", "1", "--epochs", str(epochs)]
        shares = [only[place::workers] for place in range(workers)]
        begun = [subprocess.Popen([*again, "--deadline", str(deadline), "--only", *names]) for names in shares if names]
        for process in begun:
            process.wait()
        return
    from shiftbed.training.run import JobFiles, run_job
    from shiftbed.training.store import LocalStore

    store, started = LocalStore(work / "runs"), time.perf_counter()
    for name in only:
        job, runtime = job_of(name, work, epochs)
        if not (store.root / JobFiles(job.id).weights).exists():
            begun_at = time.perf_counter()
            print(f"{name}: {job.recipe.steps} steps of {job.hparams['batch_size']} ({job.id})", flush=True)

            def report(step: int, metrics: dict, name: str = name, begun_at: float = begun_at) -> None:
                if step in (20, 100) or step % 500 == 0:
                    seconds = time.perf_counter() - begun_at
                    left = seconds / step * (job.recipe.steps - step)  # noqa: B023
                    loss = float(metrics["loss"])
                    print(f"{name}: step {step}, loss {loss:.3f}, about {left:.0f} s left", flush=True)

            outcome = run_job(
                job,
                store,
                keep="final",
                runtime=runtime,
                on_step=report,
                should_stop=lambda: time.perf_counter() - started > deadline,
            )
            print(f"{name}: {outcome} in {time.perf_counter() - begun_at:.0f} s", flush=True)
            if outcome == "stopped":
                return
        records = json.loads((store.root / JobFiles(job.id).done).read_text())["records"]
        accuracy = records[-1]["splits"]["test/all"]["accuracy"] if records else float("nan")
        print(f"{name}: {accuracy:.1%} of the clean test images", flush=True)


def extract(work: Path, out: Path, only: list[str], epochs: int) -> None:
    """Writes logits and what methods need of the features, a few classifiers a file."""
    import torch

    from shiftbed.data import load as load_dataset
    from shiftbed.training.model import load
    from shiftbed.training.run import JobFiles

    os.environ["SHIFTBED_DATA"] = str(work / "root")
    test = load_dataset("CIFAR-10")["test"]
    names = ["clean", *(f"{name}-{severity}" for name, severity in names_of_sets())]
    sets = {name: np.load(work / "sets" / f"{name}.npy") for name in names}
    count = len(sets["clean"])
    found, device = [], "cpu"
    for name in only:
        job, runtime = job_of(name, work, epochs)
        device = runtime.device
        weights = work / "runs" / JobFiles(job.id).weights
        if not weights.exists():
            print(f"{name} is not trained: left out", flush=True)
            continue
        kept = work / "outputs" / f"{name}.npz"
        if not kept.exists():
            model = load(weights, device)
            content = outputs_of(model.algorithm, np.asarray(test.inputs[count:]), sets, device)
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.savez(kept.with_suffix(".part.npz"), **content)
            kept.with_suffix(".part.npz").replace(kept)
            print(f"{name}: {kept.stat().st_size / 1e6:.1f} MB", flush=True)
        found.append(name)
        if device != "cpu":
            torch.cuda.empty_cache()
    out.mkdir(parents=True, exist_ok=True)
    np.savez(
        out / "labels.npz",
        source=test.labels[count:].astype(np.uint8),
        target=test.labels[:count].astype(np.uint8),
        domains=np.array(names),
        classifiers=np.array(found),
    )
    for start in range(0, len(found), PER_FILE):
        together = {}
        for name in found[start : start + PER_FILE]:
            with np.load(work / "outputs" / f"{name}.npz") as arrays:
                together |= {f"{name}/{key}": arrays[key] for key in arrays}
        np.savez(out / f"outputs-{start // PER_FILE}.npz", **together)


def outputs_of(algorithm, source: np.ndarray, sets: dict[str, np.ndarray], device: str) -> dict[str, np.ndarray]:
    """Logits in half precision; the Fréchet distance and bag of prototypes of the features.

    Features are taken in the 64 directions in which the source varies most.
    """
    import torch

    from shiftbed.accuracy.methods import METHODS
    from shiftbed.accuracy.outputs import Outputs
    from shiftbed.accuracy.reference import Reference

    def logits_and_features(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, features = [], []
        with torch.inference_mode():
            for start in range(0, len(images), 1000):
                x = torch.tensor(images[start : start + 1000], device=device).permute(0, 3, 1, 2).float() / 255
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
    for name, images in sets.items():
        logits, features = logits_and_features(images)
        domain = Outputs(logits, (features - middle) @ directions, name=name)
        targets.append(logits.astype(np.float16))
        distances.append(METHODS["frechet-distance"].score(domain, reference))
        bags.append(METHODS["bop-js"].score(domain, reference))
    return content | {
        "targets": np.stack(targets),
        "frechet-distance": np.array(distances),
        "bop-js": np.array(bags),
    }


def tables(out: Path, docs: Path, clean_enough: float = CLEAN_ENOUGH) -> None:
    """All tables and pictures."""
    from shiftbed.accuracy import pictures, studies
    from shiftbed.accuracy.outputs import Outputs

    labels = dict(np.load(out / "labels.npz"))
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(out.glob("outputs-*.npz")):
        arrays |= dict(np.load(file))
    source_labels, target_labels = (labels[key].astype(np.int64) for key in ("source", "target"))
    clean = {
        str(name): float((arrays[f"{name}/targets"][0].argmax(1) == target_labels).mean())
        for name in labels["classifiers"]
    }
    used = [name for name, accuracy in clean.items() if accuracy >= clean_enough]
    print(f"Clean accuracy: {', '.join(f'{name} {clean[name]:.1%}' for name in clean)}")
    print(f"{len(used)} of {len(clean)} classifiers have at least {clean_enough:.0%} and are used.")
    names = [str(name) for name in labels["domains"]]
    groups = {name: name.rsplit("-", 1)[0] for name in names}
    predicted = {name: arrays[f"{name}/targets"].argmax(2).astype(np.uint8) for name in used}
    at_source = {name: arrays[f"{name}/source"].argmax(1).astype(np.uint8) for name in used}

    def outputs(name: str, change=lambda domain: domain):
        def make():
            others = [other for other in used if other != name]
            pool = np.stack([at_source[other] for other in others]) if others else None
            source = Outputs(arrays[f"{name}/source"].astype(np.float32), None, source_labels, pool, "source")

            def domains():
                for place, domain in enumerate(names):
                    pool = np.stack([predicted[other][place] for other in others]) if others else None
                    logits = arrays[f"{name}/targets"][place].astype(np.float32)
                    yield change(Outputs(logits, None, target_labels, pool, domain))

            return source, domains()

        return make

    started = time.perf_counter()
    scores = studies.score_classifiers({name: outputs(name) for name in used}, groups)
    print(f"All methods on {len(used)} classifiers × {len(names)} domains: {time.perf_counter() - started:.0f} s")
    for method in ("frechet-distance", "bop-js"):
        scores.values[method] = np.stack([arrays[f"{name}/{method}"] for name in used])
    span = 100 * np.ptp(scores.accuracies)
    print(f"Accuracies span {span:.0f} points.")
    docs.mkdir(parents=True, exist_ok=True)
    table = studies.mae_table(scores, by_group=True)
    results = {
        "classifiers": {name: clean[name] for name in used},
        "span": float(span),
        "mae": table,
        "mae, single domains left out": studies.mae_table(scores),
        "beside the paper": studies.beside_paper(table),
        "direct": studies.direct_table(scores),
        "coverage": studies.coverage_table(scores),
        "summary": [studies.fit_summary(scores, name, by_group=True) for name in scores.values],
        "spread": studies.spread_table(scores, by_group=True),
        "difficulty": studies.difficulty_table(scores, by_group=True),
        "groups": studies.group_agreement(scores),
    }
    one = "cifar-resnet44" if "cifar-resnet44" in used else used[0]  # the paper changes the sets of this one
    few = [name for name in scores.values if name not in ("frechet-distance", "bop-js", "aline-s")]
    sizes = [size for size in (100, 200, 500, 1000) if size < len(target_labels)]
    changed = {f"{size} images": lambda domain, size=size: studies.of_size(domain, size) for size in sizes} | {
        f"without {' and '.join(map(str, gone))}": lambda domain, gone=gone: studies.of_classes(domain, gone)
        for gone in ((3,), (5,), (6,), (8,), (4, 7), (3, 5))
    }
    after = {
        what: studies.score_classifiers({one: outputs(one, change)}, groups, few) for what, change in changed.items()
    }
    first = studies.score_classifiers({one: outputs(one)}, groups, few)
    results["changes"] = studies.change_table(first, after, by_group=True)
    (docs / "accuracy_study.json").write_text(json.dumps(results, indent=1))
    pictures.scatter(scores, docs / "accuracy_scatter.png", used[0])
    pictures.errors_by_accuracy(scores, docs / "accuracy_errors.png", "atc-mc")
    pictures.spread(scores, docs / "accuracy_spread.png")
    for name in ("beside the paper", "direct", "coverage", "changes"):
        print(f"\n{name}\n{pictures.text_table(results[name])}")


def main() -> None:
    """Parses and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "data", "train", "extract", "tables"))
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
        train(given.paths[0], given.workers, given.only, given.epochs, given.deadline)
    elif given.what == "extract":
        extract(*given.paths, only=given.only, epochs=given.epochs)
    else:
        tables(*given.paths, clean_enough=given.clean)


if __name__ == "__main__":
    main()
