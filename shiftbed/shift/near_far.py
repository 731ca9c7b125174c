"""Near and far (CIFAR-10-W): test domains by thirds of their Fréchet distance to the domains that were trained on."""

import shlex
import statistics
from pathlib import Path

from shiftbed.errors import ShiftbedError
from shiftbed.shift.kept import MATRIX, SHIFT
from shiftbed.shift.matrix import ShiftMatrix
from shiftbed.tables import Table, thirds
from shiftbed.tables.spreads import refuse_overall
from shiftbed.training.store import read_json

MEASURE = "frechet"


def near_and_far(table: Table, folder: str | Path) -> dict[str, list[str]]:
    """The test domains of a table, near, middle and far, as distances were measured beside its records.

    Args:
        table: The table.
        folder: The sweep's folder.

    Raises:
        ShiftbedError: The distances were not measured, or accuracy is not told by domain.
    """
    refuse_overall(table)
    path = Path(folder) / SHIFT / f"{table.dataset}{MATRIX}"
    matrix = ShiftMatrix.from_json(read_json(path)) if path.exists() else ShiftMatrix((), ())
    if MEASURE not in matrix.names:
        words = ["shiftbed", "shift", table.dataset, "--matrix", f"--measures={MEASURE}", f"--out={path.parent}"]
        raise ShiftbedError(
            f"How far the domains of {table.dataset} are is not known; `{shlex.join(words)}` measures it."
        )
    return thirds({domain: _distance(table, tested, domain, matrix) for tested, domain in table.columns})


def _distance(table: Table, tested: tuple[str, ...], domain: str, matrix: ShiftMatrix) -> float:
    """The mean distance of a test domain to those that its models were trained on."""
    chosen = [one for cells in table.chosen.values() for one in cells.get(tested, {}).values()]
    trained = {split["domain"] for one in chosen for split in one.about["splits"] if split["role"] == "train"}
    found = [matrix.estimate(MEASURE, domain, other) for other in sorted(trained - {domain})]
    values = [one.value for one in found if one is not None]
    if not values or len(values) < len(found):
        raise ShiftbedError(f"The stored distances do not tell how far {domain} is from what was trained on.")
    return statistics.fmean(values)
