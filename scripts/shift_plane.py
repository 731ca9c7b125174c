"""Places datasets on the plane of diversity and correlation shift: docs/shift-plane.png.

    python scripts/shift_plane.py [DATASET ...] [--device cuda]

Without names, the built-in datasets. Others must be prepared; DATASET=NAME gives a place another name. A dataset whose
domains are left out in turn lies at the mean over its domains, as in OoD-Bench; ColoredDigits and ColoredMNIST are
tested on their last domain. The numbers are kept in docs/shift-plane.json, so that places measured elsewhere stay when
others are added.
"""

import argparse
import json
import math
from pathlib import Path

from shiftbed.data import load
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.measure import measure_shift
from shiftbed.shift.pictures import plane

DOCS = Path(__file__).parent.parent / "docs"
BUILT_IN = ("ColoredDigits", "RotatedDigits", "EmojiStyles")
NORMAL = 1.96


def mean(found: list[ShiftEstimate]) -> ShiftEstimate:
    """The mean of estimates for several test domains, whose errors are taken for independent; one stays as it is."""
    if len(found) == 1:
        return found[0]
    value = sum(one.value for one in found) / len(found)
    error = math.sqrt(sum((one.standard_error or 0.0) ** 2 for one in found)) / len(found)
    low, high = max(0.0, value - NORMAL * error), min(1.0, value + NORMAL * error)
    return ShiftEstimate(found[0].name, value, error, (low, high), min(one.count for one in found))


def place(name: str, device: str | None) -> tuple[ShiftEstimate, ShiftEstimate]:
    """The diversity and correlation shift of a dataset."""
    dataset = load(name)
    domains = [domain.name for domain in dataset.domains]
    tests = domains[-1:] if name.startswith("Colored") else domains
    found = []
    for test in tests:
        found.append(measure_shift(dataset, test=[test], baseline=False, device=device))
        print(name, test, found[-1].diversity, found[-1].correlation, flush=True)
    return mean([one.diversity for one in found]), mean([one.correlation for one in found])


def main() -> None:
    """Measures, keeps the numbers and draws the picture."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("datasets", nargs="*", default=BUILT_IN)
    arguments.add_argument("--device")
    asked = arguments.parse_args()
    numbers = DOCS / "shift-plane.json"
    kept = json.loads(numbers.read_text(encoding="utf-8")) if numbers.exists() else {}
    for dataset in asked.datasets:
        source, _, name = dataset.partition("=")
        name = name or source
        kept[name] = [one.as_json() for one in place(source, asked.device)]
        print(name, *(f"{one['name']} {one['value']:.3f} ± {one['standard_error']:.3f}" for one in kept[name]))
        numbers.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    points = {name: tuple(map(ShiftEstimate.from_json, both)) for name, both in kept.items()}
    print(plane(points, DOCS / "shift-plane.png"))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
