"""What the page says of shift: the plane, pairs of domains, which kind dominates, and who did best on that kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shiftbed import published
from shiftbed.audit.subject import Subject
from shiftbed.report.page_charts import heat_map, plane
from shiftbed.report.page_words import Verdict, listed
from shiftbed.shift.estimates import LITTLE, WIDE, ShiftEstimate, dominant
from shiftbed.shift.kept import MATRIX, SHIFT, Points
from shiftbed.shift.matrix import ShiftMatrix
from shiftbed.tables.leaderboards import UNKNOWN, shift_kind
from shiftbed.tables.table import BASELINE
from shiftbed.training.store import read_json

PUBLISHED = {"diversity": "ood-bench/table-1", "correlation": "ood-bench/table-2"}
MEANS = {
    "diversity": "the domains show different inputs",
    "correlation": "the same inputs go with other labels",
}


def shift_section(folder: Path, subject: Subject, points: Points, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The shift plane, matrices of pairs of domains, and what they advise."""
    names = list(dict.fromkeys([*subject.datasets, *points]))
    said = [advice(name, points.get(name), verdicts) for name in names]
    drawn: dict[str, Any] = {"plane": plane(points)} if points else {}
    matrices: list[dict[str, str]] = []
    for path in sorted((folder / SHIFT).glob(f"*{MATRIX}")):
        read = read_json(path)
        if "cells" not in read:
            continue
        matrix = ShiftMatrix.from_json(read)
        for name in matrix.names:
            key = f"matrix-{len(matrices)}"
            drawn[key] = heat_map(matrix.domains, matrix.values(name).tolist(), name)
            matrices.append({"key": key, "dataset": path.name.removesuffix(MATRIX), "name": name})
    return {"points": points, "advice": [words for words in said if words], "matrices": matrices, "charts": drawn}


def best_published(kind: str) -> str:
    """Which algorithms OoD-Bench found better than ERM under a kind of shift, by its ranking score."""
    cells = published.cells(PUBLISHED[kind], measure="ranking score")
    scores = {cell.algorithm: round(cell.mean) for cell in cells if cell.mean is not None}
    above = sorted((name for name in scores if scores[name] > 0), key=lambda name: (-scores[name], name))
    if not above:
        return f"OoD-Bench found no algorithm of {len(scores)} above {BASELINE} under {kind} shift"
    named = listed([f"{name} ({scores[name]:+d})" for name in above])
    return f"under {kind} shift, OoD-Bench scored {named} above {BASELINE}, of {len(scores)} algorithms"


def advice(dataset: str, point: tuple[ShiftEstimate, ShiftEstimate] | None, verdicts: Sequence[Verdict]) -> str | None:
    """Which kind of shift dominates a dataset, and which algorithms did best on that kind; None where nobody knows."""
    if point and any(one.is_too_wide for one in point):
        return f"{dataset}: an interval is {WIDE}."
    kind = dominant(*point) if point else shift_kind(dataset)
    if kind is None and point is not None:
        small = max(one.value for one in point) < LITTLE
        why = "there is little of either kind" if small else "the two kinds cannot be told apart within their intervals"
        return f"{dataset}: {why}."
    if kind is None or kind == UNKNOWN:
        return None
    how = "" if point else ", as its card says"
    best = best_published(kind)
    ours = "".join(_first_here(one) for one in verdicts if one.table.dataset == dataset and one.leader)
    return f"{dataset}: {kind} shift dominates{how}; {MEANS[kind]}. {best[0].upper()}{best[1:]}.{ours}"


def _first_here(one: Verdict) -> str:
    if BASELINE not in one.table.algorithms or len(one.table.algorithms) == 1:
        return ""  # nothing was compared
    where = "In this sweep" if one.name == one.table.dataset else f"In {one.name},"
    if one.leader == BASELINE:
        return f" {where} nothing is better than plain {BASELINE}."
    chance = "" if one.leader in one.better else f", though not by more than chance above {BASELINE}"
    return f" {where} {one.leader} is first{chance}."
