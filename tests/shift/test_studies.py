import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shiftbed.shift import ratio, studies
from shiftbed.shift.closed_forms import CLOSED_FORMS, coloured_correlation

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "mnist"


@dataclass
class MadePart:
    measures: tuple[str, ...]
    settings: dict[str, dict[str, float]] = field(default_factory=dict)
    grid: dict[str, tuple[float, ...]] = field(default_factory=dict)
    name: str = "a"
    dataset: str = "ColoredMNIST-OoD-Bench"
    runs: int = 1

    def options(self):
        if not self.grid:
            return self.settings
        train, test = self.grid.values()
        return {f"{a}, {b}": {"rho_train": a, "rho_test": b} for a in train for b in test}


@pytest.fixture
def made_of_closed_forms(monkeypatch):
    """The studies on features instead of images, by networks that learn for a moment."""
    seen = []

    def made(rhos, blues=None, folder=None, seed=0):
        seen.append((tuple(rhos), blues))
        return CLOSED_FORMS["flipped, mean 2" if rhos[0] != rhos[1] else "identical"].dataset(60, seed)

    monkeypatch.setattr(studies, "coloured_study", made)
    monkeypatch.setattr(ratio, "TRAINING", {"mlp": ratio.Training(1e-2, 32, 1, 10)})
    return seen


def test_a_part_gives_every_measure_by_every_method_with_the_papers_labels(made_of_closed_forms, tmp_path):
    options = {"rho_train": 0.1, "rho_test": 0.1, "blue_train": 0.0, "blue_test": 1.0, "blue_deviation": 0.1}
    part = MadePart(("MMD", "correlation shift"), {"with blue": options})
    found = list(studies.run(part, tmp_path))
    assert [one["labels"]["measure"] for one in found] == [
        "MMD",
        "correlation shift",
        "correlation shift, kde-paper",
        "correlation shift, kde",
    ]
    assert all(one["labels"]["setting"] == "with blue" and math.isfinite(one["mean"]) for one in found)
    assert made_of_closed_forms[0] == ((0.1, 0.1), [(0.0, 0.1), (1.0, 0.1)])
    count = len(made_of_closed_forms)
    assert list(studies.run(part, tmp_path)) == found
    assert len(made_of_closed_forms) == count  # what is kept is not measured again


def test_a_grid_that_was_measured_ahead_by_several_ends_in_a_heat_map(made_of_closed_forms, tmp_path, monkeypatch):
    part = MadePart(("correlation shift",), grid={"rho_train": (0.1, 0.9), "rho_test": (0.1, 0.9)})
    monkeypatch.setattr(studies, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers))
    first = studies.ahead(part, tmp_path, workers=1)
    next(first)
    first.close()  # out of time: what is finished is kept
    assert len(list(studies.ahead(part, tmp_path, workers=1))) <= 3
    monkeypatch.setattr(studies, "study", None)  # nothing is left to measure
    found = {one["labels"]["setting"]: one["mean"] for one in studies.run(part, tmp_path)}
    assert len(found) == 4 and (tmp_path / "figure-4-a.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the real MNIST files are not here")
@pytest.mark.parametrize("rho", [0.9, 0.7, 0.5, 0.3, 0.1])
def test_table_3_is_met_on_real_images(rho):
    made = studies.study({"rho_train": 0.1, "rho_test": rho}, folder=REAL)
    assert made.correlation.value == pytest.approx(coloured_correlation(rho), abs=0.08)
    assert made.diversity.value < 0.05


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the real MNIST files are not here")
def test_added_blue_is_diversity_shift_on_real_images():
    options = {"rho_train": 0.1, "rho_test": 0.1, "blue_train": 0.0, "blue_test": 1.0, "blue_deviation": 0.1}
    made = studies.study(options, folder=REAL, most=10_000)
    assert made.diversity.value > 0.85 and made.correlation.value < 0.05
