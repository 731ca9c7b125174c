"""Pictures of shift: the plane, heat maps, class balance, duplicates, and t-SNE."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shiftbed.data import MultiDomainDataset
from shiftbed.drawing import SHADES, blank, legend_beside, look, save
from shiftbed.published.plane import plane as published_plane
from shiftbed.shift.duplicates import shared_examples
from shiftbed.shift.estimates import ShiftEstimate
from shiftbed.shift.matrix import ShiftMatrix
from shiftbed.shift.samples import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 2000
SIDE = 4.4  # inches of a t-SNE
MOST_NUMBERS = 12  # domains up to which a heat map prints its numbers


def plane(points: Mapping[str, tuple[ShiftEstimate, ShiftEstimate]], path: Path) -> Path:
    """The plane of diversity and correlation shift: the user's datasets among the published ones.

    Args:
        points: By name, the diversity and the correlation shift, with 95 % intervals.
        path: Where to write it.
    """
    figure, axis = _figure(6.4, 5.2)
    places = published_plane()
    for place in places:
        up, across = place.correlation_spread, place.diversity_spread
        axis.errorbar(place.diversity, place.correlation, up, across, fmt="o", color="#9A9A9A", ms=4, lw=0.8)
    texts = [_label(axis, place.dataset, place.diversity, place.correlation, "#6A6A6A", 7) for place in places]
    for i, (name, (diversity, correlation)) in enumerate(points.items()):
        colour, marker = look(i)
        x, y, whiskers = diversity.value, correlation.value, (_whiskers(correlation), _whiskers(diversity))
        axis.errorbar(x, y, *whiskers, fmt=marker, color=colour, ms=7, lw=1.2, zorder=3)
        texts.append(_label(axis, name, x, y, colour, 9))
    axis.set(xlim=(-0.03, 1.08), ylim=(-0.03, 1.03), xlabel="diversity shift", ylabel="correlation shift")
    _spread_out(figure, texts)
    axis.set_title("grey: measured by the authors of OoD-Bench", fontsize=8, color="#6A6A6A", loc="right")
    return save(figure, path)


def heat_map(matrix: ShiftMatrix, name: str, path: Path) -> Path:
    """One estimate between all domains, similar domains beside each other, with the tree that groups them.

    Domains keep their order where the estimate is 0 for all pairs, or missing for one, whose place is then empty.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    values = matrix.values(name)
    count = len(matrix.domains)
    side = max(3.2, 0.55 * count + 1.6)
    figure, _ = _figure(side + 1.4, side + 0.9, axes=False)
    tree_axis, axis, bar = (
        figure.add_axes(box) for box in ((0.22, 0.82, 0.62, 0.12), (0.22, 0.2, 0.62, 0.61), (0.87, 0.2, 0.03, 0.61))
    )
    order = list(range(count))
    if count > 2 and values.any() and np.isfinite(values).all():
        tree = linkage(squareform(values, checks=False), method="average", optimal_ordering=True)
        order = dendrogram(tree, ax=tree_axis, no_labels=True, link_color_func=lambda _: "#4A4A4A")["leaves"]
    tree_axis.axis("off")
    names = [matrix.domains[i] for i in order]
    shown = axis.imshow(values[np.ix_(order, order)], cmap=SHADES, vmin=0, aspect="auto")
    _numbers(axis, values[np.ix_(order, order)], shown.get_clim()[1])
    _ticks(axis, names, names)
    figure.colorbar(shown, cax=bar)
    figure.text(0.22, 0.96, f"{name} between domains", fontsize=10)
    return save(figure, path)


def grids(
    panels: Mapping[str, np.ndarray],
    labels: Mapping[str, tuple[str, Sequence[Any], str, Sequence[Any]]],
    path: Path,
) -> Path:
    """Heat maps of shifts side by side, such as those of OoD-Bench's Figure 4; the lightest shade is 1.

    Args:
        panels: By title, values by rows and columns.
        labels: By title, what rows are and their values, what columns are and their values.
        path: Where to write it.
    """
    figure, _ = _figure(4.0 * len(panels) + 0.4, 3.8, axes=False)
    for i, (title, values) in enumerate(panels.items()):
        axis = figure.add_subplot(1, len(panels), i + 1)
        down, rows, across, columns = labels[title]
        axis.imshow(values, cmap=SHADES, vmin=0, vmax=1, origin="lower")
        _numbers(axis, values, 1, "{:.2f}")
        _ticks(axis, list(map(str, columns)), list(map(str, rows)), turn=0)
        axis.set_xlabel(across)
        axis.set_ylabel(down)
        axis.set_title(title, fontsize=10)
    figure.tight_layout()
    return save(figure, path)


def class_balance(dataset: MultiDomainDataset, path: Path) -> Path:
    """The share of every class in every domain: label shift at a glance."""
    classes, names = dataset.card.classes, [domain.name for domain in dataset.domains]
    counts = dataset.class_counts()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axis = _figure(min(16, 0.55 * len(classes) + 2.4), min(16, 0.45 * len(names) + 1.8))
    shown = axis.imshow(100 * shares, cmap=SHADES, vmin=0, aspect="auto")
    if len(classes) <= MOST_NUMBERS:
        _numbers(axis, 100 * shares, 100 * shares.max(), "{:.0f}")
    _ticks(axis, list(classes), [f"{name} ({count:,})" for name, count in zip(names, counts.sum(1), strict=True)])
    figure.colorbar(shown, ax=axis)
    axis.set_title(f"{dataset.card.name}: share of classes in each domain, per cent", fontsize=10)
    return save(figure, path)


def duplicates(dataset: MultiDomainDataset, path: Path, counts: np.ndarray | None = None) -> Path:
    """How many examples of each domain lie, byte for byte, in another; counted, if `shared_examples` has not been."""
    names = [domain.name for domain in dataset.domains]
    counts = shared_examples(dataset) if counts is None else counts
    side = max(3.2, 0.55 * len(names) + 1.6)
    figure, axis = _figure(side + 1, side)
    shown = axis.imshow(counts, cmap=SHADES, vmin=0, vmax=max(1, counts.max()))
    _numbers(axis, counts.astype(float), max(1, counts.max()), "{:.0f}")
    _ticks(axis, names, names)
    figure.colorbar(shown, ax=axis)
    axis.set_title(f"{dataset.card.name}: examples of the row that the column has too", fontsize=9)
    return save(figure, path)


def embedding(samples: Mapping[str, Sample], classes: Sequence[str], path: Path) -> Path:
    """A t-SNE of all domains' examples, coloured by domain and, where there are several, by class.

    What is near in it is near in the features; distances between far groups mean nothing.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    share = max(1, MOST_POINTS // len(samples))
    drawn = {name: one.at_most(share) for name, one in samples.items()}
    vectors = np.concatenate([one.vectors for one in drawn.values()])
    if vectors.shape[1] > 50:
        vectors = PCA(min(50, len(vectors)), random_state=0).fit_transform(vectors)
    perplexity = min(30, (len(vectors) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(vectors)
    domain = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn.values()])
    label = np.concatenate([np.full(len(s), -1) if s.labels is None else s.labels for s in drawn.values()])
    panels = [("by domain", domain, list(drawn)), ("by class", label, list(classes))]
    if len(classes) == 1:
        panels = [(f"{classes[0]}, by domain", domain, list(drawn))]
    legends = [legend_beside([*names, "not labelled"], SIDE) for _, _, names in panels]
    figure, _ = _figure(sum(max(5.5, SIDE + wide) for _, wide in legends), 5, axes=False)
    for i, ((title, of, names), (columns, _)) in enumerate(zip(panels, legends, strict=True)):
        axis = figure.add_subplot(1, len(panels), i + 1)
        for number in np.unique(of):
            chosen = of == number
            colour, marker = look(number)
            name = "not labelled" if number < 0 else names[number]
            x, y = places[chosen].T
            axis.scatter(x, y, 9, color=colour, marker=marker, alpha=0.7, linewidths=0, label=name)
        axis.set_title(title, fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.legend(fontsize=8, markerscale=2, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, ncols=columns)
    figure.tight_layout()
    return save(figure, path)


# --- what pictures share ---------------------------------------------------------------------------------------------


def _figure(width: float, height: float, axes: bool = True) -> "tuple[Figure, Axes]":
    figure = blank(width, height)
    return figure, figure.add_subplot() if axes else None  # type: ignore[return-value]


def _ticks(axis: "Axes", columns: Sequence[str], rows: Sequence[str], turn: int = 40) -> None:
    axis.set_xticks(range(len(columns)), columns, rotation=turn, ha="right" if turn else "center", fontsize=8)
    axis.set_yticks(range(len(rows)), rows, fontsize=8)
    axis.tick_params(length=0)


def _numbers(axis: "Axes", values: np.ndarray, highest: float, form: str = "{:.2g}") -> None:
    """Prints the values into a heat map that has room for them, dark on light and light on dark."""
    if len(values) > MOST_NUMBERS:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "black" if value > 0.6 * highest else "white"
            axis.text(column, row, form.format(value), ha="center", va="center", fontsize=7, color=colour)


def _whiskers(one: ShiftEstimate) -> np.ndarray | None:
    if one.interval is None:
        return None
    return np.array([[max(0.0, one.value - one.interval[0])], [max(0.0, one.interval[1] - one.value)]])


def _label(axis: "Axes", text: str, x: float, y: float, colour: str, size: int) -> Any:
    arrow = {"arrowstyle": "-", "color": colour, "lw": 0.4}
    beside, side = ((5, 4), "left") if x < 0.8 else ((-5, 4), "right")
    place = (x, y), beside, "data", "offset points"
    return axis.annotate(text, *place, ha=side, fontsize=size, color=colour, arrowprops=arrow)


def _spread_out(figure: "Figure", texts: list[Any]) -> None:
    """Moves labels up until none covers another."""
    from matplotlib.text import Text

    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # the canvas is Agg's
    placed: list[Any] = []
    for text in texts[::-1]:  # the user's own stay nearest to their points
        while any(Text.get_window_extent(text, renderer).overlaps(other) for other in placed):
            across, up = text.get_position()
            text.set_position((across, up + 2))
        placed.append(Text.get_window_extent(text, renderer))
