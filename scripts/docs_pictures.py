"""Makes every figure and contact sheet of the guide, from real runs on built-in data: docs/figures/*.png.

    python scripts/docs_pictures.py [FOLDER] [--pdf]

FOLDER keeps the runs: the same folder again continues. Takes a few minutes on two cores.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import shiftbed
from shiftbed.accuracy.kept import ACCURACY
from shiftbed.accuracy.study import judge_methods
from shiftbed.accuracy.sweep import predict_sweep
from shiftbed.audit.pretraining import run_study
from shiftbed.audit.subject import Subject
from shiftbed.data import load
from shiftbed.data.look import contact_sheet
from shiftbed.report.figures import FIGURES, figure
from shiftbed.shift.features import samples_of
from shiftbed.shift.kept import SHIFT
from shiftbed.shift.matrix import matrix
from shiftbed.shift.measures import Settings
from shiftbed.shift.studies import run as run_grid
from shiftbed.sweeps.plan import Request
from shiftbed.training.store import write_json

DOCS = Path(__file__).parents[1] / "docs"
BUILT_IN = ("ColoredDigits", "EmojiStyles", "RotatedDigits")
STYLES = ("noto-v1", "emojione-mono")
# What a figure shows where a folder has several things to show.
OPTIONS = {
    "improvement": {"dataset": "RotatedDigits"},
    "class-counts": {"dataset": "EmojiStyles"},
    "tsne": {"dataset": "EmojiStyles", "kind": "animal"},
    "shift-matrix": {"dataset": "EmojiStyles"},
}


def results(folder: Path, steps: int = 200, trials: int = 2, values: tuple[float, ...] = (0.1, 0.5, 0.9)) -> None:
    """Fills a folder with all that figures are drawn from.

    Args:
        folder: The folder; what is there is not made again.
        steps: Updates of every model.
        trials: Repetitions, and draws.
        values: How far the colours of the grid vary.
    """
    fields = {"steps": steps, "evaluate_every": steps // 2}
    how = {"draws": trials, "trials": trials, "fields": fields}
    algorithms = ("ERM", "CORAL", "GroupDRO", "Mixup")
    digits = [Request(name, algorithms, **how) for name in ("ColoredDigits", "RotatedDigits")]
    shiftbed.sweep(digits, folder)
    emoji = Request("EmojiStyles", algorithms, test_domains=STYLES, fields=fields)
    shiftbed.sweep(emoji, folder, keep="final")
    for name in BUILT_IN:
        path = folder / SHIFT / f"{name}.json"
        if not path.exists():
            size = 16 if name == "EmojiStyles" else None
            write_json(shiftbed.measure_shift(name, size=size, baseline=False).as_json(), path)
    samples = samples_of(load("EmojiStyles"), size=16)
    found = matrix(samples, ["mmd"], Settings(), saved=folder / SHIFT / "EmojiStyles-pairs.kept")
    write_json(found.as_json(), folder / SHIFT / "EmojiStyles-matrix.json")
    colours(folder, values)
    predict_sweep(folder, severities=(1, 3), images=250)
    if not (folder / ACCURACY / "changes.json").exists():
        for name in algorithms[: 2 * trials]:
            shiftbed.train("RotatedDigits", name, "75", folder / "models", steps=steps)
        judge_methods(folder / "models", folder / ACCURACY, changes=True)
    digits_only = Subject.read(folder)
    rotated = [task for task in digits_only.tasks if task.abouts[0]["dataset"] == "RotatedDigits"]
    run_study(Subject(str(folder), [task for task in rotated if task.tested in (("0",), ("45",), ("75",))]))


def colours(folder: Path, values: tuple[float, ...]) -> None:
    """OoD-Bench's figure 4 on scikit-learn's digits, which stand in for MNIST's."""
    raw = folder / "digits"
    if not raw.exists():
        digits_as_mnist(raw)
    grid = {"rho_train": values, "rho_test": values}
    blue = {"rho_train": (0.1,), "rho_test": (0.9,), "blue_train": (0.0, 0.5, 1.0), "blue_test": (0.0, 0.5, 1.0)}
    parts = (("a", "correlation", grid), ("b", "diversity", {**blue, "blue_deviation": (0.1,)}))
    for name, measure, options in parts:
        settings = [dict(zip(options, one, strict=True)) for one in _combined(list(options.values()))]
        named = {", ".join(f"{key} {value:g}" for key, value in one.items()): one for one in settings}
        part = SimpleNamespace(
            name=name,
            dataset="digits",
            measures=(f"{measure} shift",),
            grid=options,
            runs=1,
            options=lambda named=named: named,
        )
        list(run_grid(part, folder, raw, most=600))


def _combined(lists: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return [(first, *rest) for first in lists[0] for rest in _combined(lists[1:])] if lists else [()]


def digits_as_mnist(folder: Path) -> None:
    """scikit-learn's digits, enlarged to 28×28 and each about 33 times, in MNIST's files."""
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    large = np.stack([zoom(image, 3.5, order=1) for image in images.reshape(-1, 8, 8)])
    pixels = np.rint(large * (255 / 16)).clip(0, 255).astype(np.uint8)
    places = np.arange(60_000) % len(pixels)
    folder.mkdir(parents=True)
    for stem, array in (("images-idx3", pixels[places]), ("labels-idx1", labels[places].astype(np.uint8))):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
        (folder / f"train-{stem}-ubyte").write_bytes(head + array.tobytes())


def draw(folder: Path, out: Path, suffix: str) -> list[Path]:
    """Every registered figure."""
    return [figure(name, folder, out / f"{name}{suffix}", **OPTIONS.get(name, {})) for name in FIGURES]


def main() -> None:
    """Makes the runs, draws the figures and the contact sheets."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", nargs="?", type=Path, default=Path("shiftbed-pictures"))
    arguments.add_argument("--pdf", action="store_true", help="also as PDF, beside the runs")
    asked = arguments.parse_args()
    results(asked.folder)
    out = DOCS / "figures"
    made = draw(asked.folder, out, ".png")
    made += [contact_sheet(load(name), out / f"{name}.png") for name in BUILT_IN]
    made += draw(asked.folder, asked.folder / "pdf", ".pdf") if asked.pdf else []
    print(json.dumps([str(path) for path in made], indent=1))


if __name__ == "__main__":
    main()
