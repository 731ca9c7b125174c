"""Pictures of accuracy prediction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shiftbed.accuracy.fitting import Line, rank_correlation
from shiftbed.accuracy.scores import POINTS, Scores
from shiftbed.accuracy.studies import Row
from shiftbed.data.images import decode_image
from shiftbed.drawing import COLOURS, blank, legend_beside, look, save

COLUMNS = 4  # panels beside each other


@contextmanager
def _figure(path: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] = (5.0, 4.0)) -> Iterator[Any]:
    """Axes, rows × columns, that are saved."""
    figure = blank(size[0] * columns, size[1] * rows)
    yield figure.subplots(rows, columns, squeeze=False)
    figure.tight_layout()
    save(figure, path)


def scatter(scores: Scores, path: Path, classifier: str) -> Path:
    """Accuracy against the score of every method, for one classifier, with the line and Spearman's correlation."""
    row = scores.classifiers.index(classifier)
    names = list(scores.values)
    accuracies = POINTS * scores.accuracies[row]
    groups = list(dict.fromkeys(scores.groups.tolist()))
    rows, (columns, wide) = -(-len(names) // COLUMNS), legend_beside(groups, 2.2)
    with _figure(path, rows, COLUMNS, (3.0 + wide / COLUMNS, 2.6)) as axes:
        for axis in axes.flat[len(names) :]:
            axis.set_axis_off()
        for axis, name in zip(axes.flat, names, strict=False):
            values = scores.values[name][row]
            for place, group in enumerate(groups):
                mine = scores.groups == group
                colour, marker = look(place)
                looks = {"color": colour, "marker": marker, "label": group}
                axis.scatter(values[mine], accuracies[mine], s=14, linewidths=0, alpha=0.8, **looks)
            if np.ptp(values) > 0:
                ends = np.array([values.min(), values.max()])
                axis.plot(ends, Line.fit(values, accuracies)(ends), color="#666666", linewidth=1)
            axis.set_title(f"{name}   ρ = {rank_correlation(values, accuracies):.2f}", fontsize=9)
            axis.tick_params(labelsize=7)
        for axis in axes[:, 0]:
            axis.set_ylabel("accuracy, %", fontsize=8)
        handles = axes[0, 0].get_legend_handles_labels()
        axes[0, -1].legend(*handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), ncols=columns)
    return path


def errors_by_accuracy(scores: Scores, path: Path, method: str) -> Path:
    """The absolute error of one method against accuracy, groups left out: one point a classifier and domain."""
    errors = np.abs(scores.errors(method, by_group=True))
    columns, wide = legend_beside(scores.classifiers, 3.4)
    with _figure(path, size=(5.0 + wide, 4.0)) as axes:
        axis = axes[0, 0]
        for row, classifier in enumerate(scores.classifiers):
            colour, marker = look(row)
            accuracies = POINTS * scores.accuracies[row]
            axis.scatter(accuracies, errors[row], s=10, color=colour, marker=marker, label=classifier, linewidths=0)
        axis.set_xlabel("accuracy, %")
        axis.set_ylabel(f"absolute error of {method}, points")
        axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), ncols=columns)
    return path


def accuracy_by_distance(scores: Scores, path: Path, classifier: str) -> Path:
    """Accuracy against the Fréchet distance to the source, for one classifier."""
    row = scores.classifiers.index(classifier)
    distances, accuracies = scores.values["frechet-distance"][row], POINTS * scores.accuracies[row]
    with _figure(path) as axes:
        axis = axes[0, 0]
        axis.scatter(distances, accuracies, s=16, color=COLOURS[0], linewidths=0)
        correlations = [rank_correlation(distances, accuracies, kind) for kind in ("spearman", "kendall")]
        axis.set_title(f"{classifier}: ρ = {correlations[0]:.2f}, τ = {correlations[1]:.2f}", fontsize=10)
        axis.set_xlabel("Fréchet distance to the source")
        axis.set_ylabel("accuracy, %")
    return path


def spread(scores: Scores, path: Path) -> Path:
    """The mean absolute error of every method, groups left out, one point a classifier, and its mean."""
    names = list(scores.values)
    with _figure(path, size=(0.6 * len(names) + 2, 4)) as axes:
        axis = axes[0, 0]
        for place, name in enumerate(names):
            each = np.abs(scores.errors(name, by_group=True)).mean(axis=1)
            axis.scatter(np.full(len(each), place), each, s=14, color=COLOURS[0], alpha=0.7, linewidths=0)
            axis.plot([place - 0.3, place + 0.3], [each.mean()] * 2, color=COLOURS[1], linewidth=2)
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
        axis.set_ylabel("mean absolute error, points")
        axis.set_ylim(bottom=0)
    return path


def changes(table: Sequence[Row], path: Path) -> Path:
    """How errors change, from `change_table`: methods by what was changed, in points."""
    names = [row["method"] for row in table]
    whats = list(dict.fromkeys(key for row in table for key in row if key not in ("method", "mae")))
    values = np.array([[row.get(what, np.nan) for what in whats] for row in table])
    most = float(np.nanmax(np.abs(values))) or 1.0
    with _figure(path, size=(0.7 * len(whats) + 3, 0.3 * len(names) + 2)) as axes:
        axis = axes[0, 0]
        axis.imshow(values, cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto")
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xticks(range(len(whats)), whats, rotation=40, ha="right", fontsize=8)
        for (row, column), value in np.ndenumerate(values):
            shown = f"{value:+z.1f}" if np.isfinite(value) else "–"  # the method is not defined on all such sets
            colour = "white" if abs(value) > 0.75 * most else "black"
            axis.text(column, row, shown, ha="center", va="center", fontsize=7, color=colour)
    return path


def group_agreement(table: Sequence[Row], path: Path) -> Path:
    """Kendall's correlation of the rankings of methods in every two groups of domains, from `group_agreement`."""
    names = list(dict.fromkeys(name for row in table for name in (row["one"], row["other"])))
    places = {name: place for place, name in enumerate(names)}
    values = np.eye(len(names))
    for row in table:
        one, other = places[row["one"]], places[row["other"]]
        values[one, other] = values[other, one] = row["kendall"]
    with _figure(path, size=(0.35 * len(names) + 3, 0.35 * len(names) + 2)) as axes:
        axis = axes[0, 0]
        shown = axis.imshow(values, cmap="PuOr_r", vmin=-1, vmax=1)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
        axis.figure.colorbar(shown, ax=axis, label="Kendall's τ of the rankings of methods")
    return path


def errors_by_images(table: Sequence[Row], path: Path) -> Path:
    """The mean error of all methods against the number of images, one point a group, from `size_table`."""
    images, errors = (np.array([row[key] for row in table]) for key in ("images", "mae"))
    with _figure(path) as axes:
        axis = axes[0, 0]
        axis.scatter(images, errors, s=20, color=COLOURS[0], linewidths=0)
        for row in table:
            axis.annotate(
                row["group"], (row["images"], row["mae"]), fontsize=6, xytext=(3, 2), textcoords="offset points"
            )
        axis.set_title(f"τ = {rank_correlation(images, errors, 'kendall'):.2f}", fontsize=10)
        axis.set_xlabel("images of the group")
        axis.set_ylabel("mean absolute error of all methods, points")
    return path


def image_sheet(images: Sequence[Any], words: Sequence[str], path: Path, columns: int = 8) -> Path:
    """Images with a word under each, row by row."""
    from PIL import Image

    with _figure(path, -(-len(images) // columns), columns, (1.3, 1.6)) as axes:
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, image, word in zip(axes.flat, images, words, strict=False):
            shown = np.asarray(decode_image(Image.open(image)) if isinstance(image, str | Path) else image)
            axis.imshow(shown if shown.shape[-1] == 3 else shown[..., 0], cmap="gray")
            axis.set_title(word, fontsize=7)
    return path


def text_table(rows: Sequence[Row]) -> str:
    """A plain table as aligned text, numbers with two decimals."""

    def text(value: Any) -> str:
        return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    names = list(rows[0])
    cells = [names, *[[text(row.get(name)) for name in names] for row in rows]]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
