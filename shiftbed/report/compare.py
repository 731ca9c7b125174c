"""Why two jobs, recipes or tables differ."""

import json
from pathlib import Path
from typing import Any

from shiftbed.audit.ledger import read_tables
from shiftbed.errors import ShiftbedError
from shiftbed.tables import as_rows
from shiftbed.training.recipes import recipe, recipe_names


def differences(one: str, two: str) -> list[tuple[str, Any, Any]]:
    """Every field in which two things of one kind differ, with both values.

    Args:
        one: A job's folder, a sweep's folder, or the name of a recipe.
        two: The same kind of thing.

    Raises:
        ShiftbedError: One of them is none of these, or they are of different kinds.
    """
    as_sweeps = any(len([*Path(name).glob("jobs/*/job.json")]) > 1 for name in (one, two))
    (kind, left), (other, right) = (_read(name, as_sweeps) for name in (one, two))
    if kind != other:
        raise ShiftbedError(f"{one} is a {kind} and {two} is a {other}; compare two of a kind.")
    if kind == "sweep":  # a cell that one of them lacks is one difference, not one in each of its fields
        left, right = (
            {cell: row if cell in lacking else row["accuracy"] for cell, row in having.items()}
            for having, lacking in ((left, right), (right, left))
        )
    left, right = _flat(left), _flat(right)
    keys = [*left, *(key for key in right if key not in left)]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _read(name: str, as_sweep: bool) -> tuple[str, Any]:
    """What a name stands for; a folder of one job is a sweep beside one."""
    path = Path(name)
    if name in recipe_names():
        return "recipe", recipe(name, "").model_dump()
    if (path / "job.json").is_file():
        return "job", json.loads((path / "job.json").read_text())
    jobs = sorted(path.glob("jobs/*/job.json"))
    if len(jobs) == 1 and not as_sweep:
        return "job", json.loads(jobs[0].read_text())
    if jobs or (path / "plans").is_dir():
        rows = as_rows(read_tables(path))
        return "sweep", {
            " / ".join(str(row[key]) for key in ("dataset", "selection", "algorithm", "test")): row for row in rows
        }
    raise ShiftbedError(f"{name} is no recipe, and no folder of a job or a sweep.")


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by dots; splits and the like by their names, choices by trial."""
    for name, words in (("name", "{}"), ("trial", "trial {}")):
        if isinstance(value, list) and all(isinstance(item, dict) and name in item for item in value):
            value = {words.format(item[name]): item for item in value}
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return flat
