"""The page's interactive charts, as the traces and layouts that plotly.js draws; colours of text come from the page.

Names are escaped here: plotly reads tags in its texts.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shiftbed.published.plane import plane as published_plane
from shiftbed.shift.estimates import ShiftEstimate

# Okabe and Ito's colours less black, which a dark page would swallow; past them, symbols and dashes change.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#A6761D")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
SHADES = "Cividis"
SHOWN_AT_FIRST = 8  # curves of a chart; the others wait in its legend
Trace = dict[str, Any]


def look(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """A colour and a symbol for each algorithm, the same in every chart."""
    return {
        name: {"color": COLOURS[i % len(COLOURS)], "symbol": SYMBOLS[(i + i // len(COLOURS)) % len(SYMBOLS)]}
        for i, name in enumerate(names)
    }


def chart(traces: Sequence[Trace], x: str, y: str, label: str, **layout: Any) -> dict[str, Any]:
    """A chart: traces, the names of its axes, and what it shows, for those who cannot see it."""
    return {"traces": list(traces), "layout": {"x": x, "y": y, **layout}, "label": label}


def plane(points: Mapping[str, tuple[ShiftEstimate, ShiftEstimate]]) -> dict[str, Any]:
    """The plane of diversity and correlation shift: measured datasets among the published ones."""
    places = published_plane()
    own = [(name, diversity.value, correlation.value) for name, (diversity, correlation) in points.items()]
    grey = {
        "type": "scatter",
        "mode": "markers+text",
        "name": "measured by OoD-Bench's authors",
        "x": [place.diversity for place in places],
        "y": [place.correlation for place in places],
        "text": [escape(place.dataset) for place in places],
        "textposition": _beside([(place.dataset, place.diversity, place.correlation) for place in places], own),
        "textfont": {"size": 10},
        "marker": {"color": "#9a9a9a", "size": 6},
        "hovertemplate": "%{text}<br>diversity %{x:.3f}, correlation %{y:.3f}<extra></extra>",
        "muted": True,
    }
    ours = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": escape(name),
            "x": [diversity.value],
            "y": [correlation.value],
            "error_x": _whiskers(diversity),
            "error_y": _whiskers(correlation),
            "text": [f"<b>{escape(name)}</b>"],
            "textposition": _outward(diversity.value),
            "marker": {"color": COLOURS[i % len(COLOURS)], "symbol": SYMBOLS[i % len(SYMBOLS)], "size": 12},
            "hovertemplate": f"{escape(name)}<br>{escape(str(diversity))}<br>{escape(str(correlation))}<extra></extra>",
        }
        for i, (name, (diversity, correlation)) in enumerate(points.items())
    ]
    words = "; ".join(f"{name}: {diversity}, {correlation}" for name, (diversity, correlation) in points.items())
    limits = {"range_x": [-0.05, 1.1], "range_y": [-0.05, 1.05], "legend": False}
    return chart([grey, *ours], "diversity shift", "correlation shift", f"Shift plane. {words}", **limits)


Label = tuple[str, float, float]  # a text, and where its point lies
Box = tuple[float, float, float, float]  # left, right, bottom, top


def _outward(x: float) -> str:
    return "top right" if x < 0.6 else "top left"  # clear of the whiskers


def _beside(labels: Sequence[Label], own: Sequence[Label]) -> list[str]:
    """Where labels stand beside their points so that none covers another, as far as that can be had.

    Sizes are those of small letters in a chart of usual width, in the units of the plane.
    """
    letter, line = 0.0068, 0.045
    boxes: list[Box] = [(x - 0.012, x + 0.012, y - 0.02, y + 0.02) for _, x, y in (*labels, *own)]
    for name, x, y in own:  # bold and larger
        wide = 0.02 + 1.6 * letter * len(name)
        boxes.append((x, x + wide, y, y + 2 * line) if x < 0.6 else (x - wide, x, y, y + 2 * line))
    found = []
    for name, x, y in labels:
        wide = letter * len(name)
        sides = {
            "middle right": (x + 0.016, x + 0.016 + wide, y - line / 2, y + line / 2),
            "middle left": (x - 0.016 - wide, x - 0.016, y - line / 2, y + line / 2),
            "top center": (x - wide / 2, x + wide / 2, y + 0.01, y + 0.01 + line),
            "bottom center": (x - wide / 2, x + wide / 2, y - 0.01 - line, y - 0.01),
        }
        inside = {side: box for side, box in sides.items() if box[0] > -0.05 and box[1] < 1.1}
        side = min(inside, key=lambda one: sum(_overlap(inside[one], box) for box in boxes))
        boxes.append(inside[side])
        found.append(side)
    return found


def _overlap(one: Box, other: Box) -> float:
    across = min(one[1], other[1]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[2], other[2])
    return max(0.0, across) * max(0.0, up)


def _whiskers(one: ShiftEstimate) -> dict[str, Any]:
    if one.interval is None:
        return {"visible": False}
    below, above = max(0.0, one.value - one.interval[0]), max(0.0, one.interval[1] - one.value)
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "thickness": 1.2}


def heat_map(domains: Sequence[str], values: Sequence[Sequence[float | None]], name: str) -> dict[str, Any]:
    """One measure between all domains."""
    labels = [escape(domain) for domain in domains]
    trace = {
        "type": "heatmap",
        "x": labels,
        "y": labels,
        "z": values,
        "zmin": 0,
        "colorscale": SHADES,
        "texttemplate": "%{z:.2f}" if len(domains) <= 12 else "",
        "hovertemplate": f"%{{y}} and %{{x}}<br>{escape(name)} %{{z:.3f}}<extra></extra>",
        "colorbar": {"thickness": 12, "outlinewidth": 0},
    }
    square = {"height": min(640, 160 + 42 * len(domains)), "reverse_y": True, "legend": False, "categories": True}
    return chart([trace], "", "", f"Heat map of {name} between {len(domains)} domains", **square)


def curve_chart(found: Sequence[dict[str, Any]], looks: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    """Accuracy over training: solid lines are test domains, dotted ones validation; the first looks are shown first."""
    shown = list(looks)[:SHOWN_AT_FIRST]
    traces = []
    for one in found:
        name, how = one["algorithm"], looks[one["algorithm"]]
        for kind, dash, width in (("test", "solid", 2), ("validation", "dot", 1.2)):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if kind == "test" else "lines",
                    "name": escape(name),
                    "legendgroup": name,
                    "showlegend": kind == "test",
                    "visible": True if name in shown else "legendonly",
                    "x": one["steps"],
                    "y": one[kind],
                    "line": {"color": how["color"], "dash": dash, "width": width},
                    "marker": {"symbol": how["symbol"], "size": 6},
                    "hovertemplate": f"{escape(name)}, {kind}<br>step %{{x}}: %{{y:.1f}} %<br>mean of {one['jobs']} "
                    "chosen jobs<extra></extra>",
                }
            )
    return chart(traces, "step", "accuracy, %", f"Accuracy over training of {len(found)} algorithms")


def prediction_chart(rows: Sequence[dict[str, Any]], looks: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    """Predicted against true accuracy with intervals; on the diagonal a prediction is right."""
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, 100],
        "y": [0, 100],
        "line": {"color": "#9a9a9a", "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    traces = [diagonal]
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == name and row["true"] is not None]
        above = [0 if row["high"] is None else 100 * (row["high"] - row["accuracy"]) for row in mine]
        below = [0 if row["low"] is None else 100 * (row["accuracy"] - row["low"]) for row in mine]
        how = looks.get(name, {"color": COLOURS[6], "symbol": SYMBOLS[0]})
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(name),
                "x": [100 * row["true"] for row in mine],
                "y": [100 * row["accuracy"] for row in mine],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": above,
                    "arrayminus": below,
                    "thickness": 1,
                    "width": 3,
                },
                "text": [escape(f"{row['dataset']}, {row['domain']} ({row['method']})") for row in mine],
                "marker": {"color": how["color"], "symbol": how["symbol"], "size": 9},
                "hovertemplate": "%{text}<br>true %{x:.1f} %, predicted %{y:.1f} %<extra></extra>",
            }
        )
    ends = ("low", "high", "accuracy", "true")
    said = [100 * row[end] for row in rows for end in ends if row[end] is not None]
    low, high = max(0, min(said) - 5), min(102, max(said) + 5)
    ranges = {"range_x": [low, high], "range_y": [low, high]}
    return chart(
        traces, "true accuracy, %", "predicted accuracy, %", f"Predicted against true, {len(rows)} points", **ranges
    )
