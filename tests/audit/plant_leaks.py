"""Plants one leak in files, knowing nothing of shiftbed: python plant_leaks.py KIND PATH."""

import csv
import json
import random
import shutil
import sys
from pathlib import Path

from PIL import Image


def reencoded(folder: Path) -> None:
    """Copies images of the last domain, smaller and as JPEG, into the first."""
    first, *_, last = sorted(path for path in folder.iterdir() if path.is_dir())
    for image in sorted(last.rglob("*.png"))[::2]:
        with Image.open(image) as opened:
            small = opened.convert("RGB").resize([int(0.8 * side) for side in opened.size])
            small.resize(opened.size).save(first / image.parent.name / f"copy-{image.stem}.jpg", quality=70)


def labels(manifest: Path) -> None:
    """Lists images of the last domain under the first one, too."""
    with manifest.open(newline="") as file:
        rows = list(csv.DictReader(file))
    domains = sorted({row["domain"] for row in rows})
    more = [{**row, "domain": domains[0]} for row in rows if row["domain"] == domains[-1]][::2]
    with manifest.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([*rows, *more])


def described(sweep: Path):
    for path in sorted(sweep.glob("jobs/*/job.json")):
        yield path, json.loads(path.read_text())


def augmented(sweep: Path) -> None:
    """Augments validation images."""
    for path, job in described(sweep):
        job["recipe"]["augment_validation"] = True
        path.write_text(json.dumps(job))


def validation(sweep: Path) -> None:
    """Validates on held-out images of the test domain."""
    for path, job in described(sweep):
        for split in job["splits"]:
            if split["domain"] in job["test_domains"] and split["part"] == "out":
                split["role"] = "validation"
        path.write_text(json.dumps(job))


def trained(sweep: Path) -> None:
    """Trains on the test domain."""
    for path, job in described(sweep):
        for split in job["splits"]:
            if split["domain"] in job["test_domains"] and split["part"] == "out":
                split["role"] = "train"
        path.write_text(json.dumps(job))


def narrowed(sweep: Path) -> None:
    """Draws the learning rate from a tenth of its range."""
    for path, job in described(sweep):
        if job["draw"]:
            job["hparams"]["lr"] = 10 ** random.Random(job["id"]).uniform(-3.2, -3.1)
            path.write_text(json.dumps(job))


def fixed(sweep: Path) -> None:
    """Sets a hyperparameter of one algorithm by hand."""
    for path, job in described(sweep):
        if job["algorithm"] == "Mixup":
            job["hparams"]["mixup_alpha"] = 0.33
            path.write_text(json.dumps(job))


def tested(folder: Path) -> list:
    name = json.loads((folder / "done.json").read_text())["test"]
    return json.loads((folder / f"test-{name}.json").read_text())["records"]


def accuracy(folder: Path, test: str) -> float:
    return max(record["splits"][f"{test}/in"]["accuracy"] for record in tested(folder))


def thinned(sweep: Path) -> None:
    """Keeps of one algorithm the draw that is best on the test domain."""
    cells = {}
    for path, job in described(sweep):
        if job["algorithm"] == "CORAL":
            cells.setdefault((job["test_domains"][0], job["trial"]), []).append(path.parent)
    for (test, _), folders in cells.items():
        best = max(folders, key=lambda folder: accuracy(folder, test))
        for folder in folders:
            if folder != best:
                shutil.rmtree(folder)


def winner(table: Path) -> None:
    """Publishes, of one algorithm, the records that are best on the test domain; the sweep lies beside the table."""
    rows, jobs = json.loads(table.read_text()), list(described(table.parent / "sweep"))
    for row in rows:
        for choice in row["chosen"] if row["algorithm"] == "CORAL" else []:
            found = [
                (record["splits"][f"{row['test']}/in"]["accuracy"], path.parent.name, record["step"])
                for path, job in jobs
                if (job["algorithm"], job["trial"], job["test_domains"]) == ("CORAL", choice["trial"], [row["test"]])
                for record in tested(path.parent)
            ]
            best, choice["job"], choice["step"] = max(found)
            choice["accuracy"] = 100 * best
    table.write_text(json.dumps(rows))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
