"""Drawings of sweeps and datasets for papers; those of shift and of accuracy prediction are in their own rooms."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shiftbed.data import MultiDomainDataset
from shiftbed.drawing import SHADES, blank, legend_beside, look, save
from shiftbed.errors import DataError
from shiftbed.tables import AVERAGE, Grid, Table
from shiftbed.tables.table import ORACLE_MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NUMBERS = 16  # classes up to which counts are printed
DENSITY_POINTS = 200
TITLE_LETTERS = 44  # of a line above a panel whose title is long
DASHES = ("-", "--", "-.", ":")


def matrix(values: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Values by rows and columns; what is missing is not a number."""
    return np.array([[np.nan if value is None else value for value in row] for row in values], float)


def leaderboard(tables: Sequence[Table], path: Path) -> Path:
    """Bars of accuracy, one panel a dataset, the algorithms in one order everywhere, with standard errors."""
    algorithms = list(dict.fromkeys(name for table in tables for name in table.algorithms))
    datasets = [table.dataset for table in tables]
    alone = len(set(datasets)) == len(datasets)  # else what was trained, and on what, tells one panel from another
    titles = [f"{table.dataset if alone else table.title}, {_count(table)}" for table in tables]
    titles = titles if alone else [textwrap.fill(title, TITLE_LETTERS) for title in titles]
    longest = max(len(line) for title in titles for line in title.splitlines())
    panel = max(0.36 * len(algorithms) + 0.7, 0.07 * longest + 0.5)  # no title runs into the next
    figure = blank(max(4.0, panel * len(tables)), 3.4)
    axes = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axis, table, title in zip(axes, tables, titles, strict=True):
        found = [table.estimates.get((name, AVERAGE)) for name in algorithms]
        heights = np.array([np.nan if one is None else one.mean for one in found])
        errors = np.array(
            [np.nan if one is None or one.standard_error is None else one.standard_error for one in found]
        )
        places = np.arange(len(algorithms))
        axis.bar(places, heights, 0.8, color=[look(place)[0] for place in range(len(places))])
        axis.errorbar(places, heights, errors, fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
        mark = ORACLE_MARK if table.selection.oracle else ""
        for place, height, error in zip(places, heights, errors, strict=True):
            if np.isfinite(height):
                top = height + np.nan_to_num(error) + 1
                axis.text(place, top, f"{height:.1f}{mark}", ha="center", va="bottom", fontsize=6.5)
        axis.set_xticks(places, algorithms, rotation=50, ha="right", rotation_mode="anchor")
        axis.set_title(title, fontsize=9)
        _open(axis)
    axes[0].set_ylabel("accuracy, %")
    axes[0].set_ylim(0, min(108.0, max(axis.get_ylim()[1] for axis in axes) + 4))
    figure.text(0.5, 0, f"{tables[0].selection.name}; mean over test domains ± standard error", ha="center", fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return save(figure, path)


def _count(table: Table) -> str:
    """How many trials the averages of a table rest on."""
    counts = sorted({one.n for name in table.algorithms if (one := table.estimates.get((name, AVERAGE)))})
    return f"n = {' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))}" if counts else "n = 0"


def beside(grids: Sequence[Grid], path: Path) -> Path:
    """Our numbers and the paper's on one line each, one panel a column and one row of panels a table of a benchmark.

    Raises:
        DataError: No number of ours has one of the paper's beside it.
    """
    tables = [data for grid in grids if (data := [row for row in grid.data if _has_both(row)])]
    if not tables:
        raise DataError("No number here has a published one beside it, so that there is nothing to draw.")
    names = [list(dict.fromkeys(row["row"] for row in data)) for data in tables]
    columns = [list(dict.fromkeys(row["column"] for row in data)) for data in tables]
    heights, legend = [0.21 * len(rows) + 0.7 for rows in names], 0.5
    widest = max(map(len, columns))
    figure = blank(1.5 + max(3.0, 1.9 * widest), sum(heights) + legend)
    axes = figure.subplots(len(tables), widest, squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, data, rows, shown in zip(axes, tables, names, columns, strict=True):
        for axis, column in zip(line, shown, strict=False):
            _both(axis, [row for row in data if row["column"] == column], rows)
            axis.set_title(f"{column}{ORACLE_MARK if data[0].get('oracle') else ''}", fontsize=9)
        line[0].set_yticks(range(len(rows)), rows)
        line[0].set_ylabel(data[0].get("selection", ""), fontsize=8)
        for axis in line[len(shown) :]:
            axis.axis("off")
    handles = {
        name: one for axis in axes.flat for one, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }  # each once
    looked = any(data[0].get("oracle") for data in tables)
    title = f"{ORACLE_MARK} oracle: chosen with the test domain's labels" if looked else None
    figure.tight_layout(rect=(0, legend / (sum(heights) + legend), 1, 1))
    figure.legend(
        handles.values(), handles, loc="lower center", ncols=3, fontsize=8, frameon=False, title=title, title_fontsize=8
    )
    return save(figure, path)


def _has_both(row: Mapping[str, Any]) -> bool:
    return row.get("ours") is not None and row.get("published") is not None


def _both(axis: "Axes", cells: Sequence[Mapping[str, Any]], rows: Sequence[str]) -> None:
    """A column of a table: in every row our number, and the paper's just below it.

    Ours is hollow where more than the number of trials differs, or where the paper does not define the number well
    enough, so that nobody takes it for the paper's experiment.
    """
    other = [cell for cell in cells if cell["trend"] or set(cell["differs"]) - {"trials"}]
    same = [cell for cell in cells if cell not in other]
    (blue, circle), (orange, square) = look(0), look(1)
    for shift, label, some, mean, error, marker, colour, fill in (
        (-0.15, "ours", same, "ours", "standard_error", circle, blue, blue),
        (-0.15, "ours, where the experiment may differ", other, "ours", "standard_error", circle, blue, "white"),
        (0.15, "the paper's", cells, "published", "published_spread", square, orange, orange),
    ):
        if some:
            axis.errorbar(
                [cell[mean] for cell in some],
                [rows.index(cell["row"]) + shift for cell in some],
                xerr=[cell[error] or 0.0 for cell in some],
                fmt=marker, color=colour, mfc=fill, ms=4, lw=1.2, label=label,
            )  # fmt: skip
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_yticks(range(len(rows)), [""] * len(rows))
    axis.grid(axis="y", lw=0.4, color="#DDDDDD")
    axis.set_axisbelow(True)
    _open(axis)


def improvement(rows: Sequence[Mapping[str, Any]], baseline: str, path: Path) -> Path:
    """The improvement of every algorithm against the baseline's accuracy, with their densities on the margins."""
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    figure = blank(5.6, 4.4)
    spaces = figure.add_gridspec(2, 2, width_ratios=(5, 1), height_ratios=(1, 5), wspace=0.05, hspace=0.05)
    axis = figure.add_subplot(spaces[1, 0])
    above = figure.add_subplot(spaces[0, 0], sharex=axis)
    beside = figure.add_subplot(spaces[1, 1], sharey=axis)
    for number, name in enumerate(algorithms):
        colour, marker = look(number)
        mine = [row for row in rows if row["algorithm"] == name]
        gains = np.array([row["improvement"] for row in mine])
        axis.scatter(
            [row["baseline"] for row in mine], gains, s=26, color=colour, marker=marker, label=name, alpha=0.85
        )
        at, height = density(gains)
        beside.plot(height, at, color=colour, lw=1.4, linestyle=DASHES[number % len(DASHES)])
    reached = np.array(list({(row["test"], row["baseline"]): row["baseline"] for row in rows}.values()))
    at, height = density(reached)
    above.fill_between(at, height, color="#7F7F7F", alpha=0.4, lw=0)
    axis.set_xlim(max(0.0, reached.min() - 5), min(101.0, reached.max() + 5))
    axis.axhline(0, color="#7F7F7F", lw=0.8, zorder=0)
    axis.set_xlabel(f"accuracy of {baseline}, %")
    axis.set_ylabel(f"improvement over {baseline}, points")
    _open(axis)
    for margin in (above, beside):
        margin.axis("off")
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.25, 1))
    return save(figure, path)


def density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian kernel density of some values, on a grid that holds its tails; of equal values a narrow one."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    width = max(1.06 * spread * len(values) ** -0.2, 0.5)  # Silverman's rule; half a point at least
    at = np.linspace(values.min() - 3 * width, values.max() + 3 * width, DENSITY_POINTS)
    kernels = np.exp(-0.5 * ((at[:, None] - values) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return at, kernels.mean(axis=1)


def frozen_stages(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Accuracy against the number of frozen stages, one line a test domain and one panel for each initial weights."""
    panels = list(dict.fromkeys((row["dataset"], row["weights"]) for row in rows))
    tests = list(dict.fromkeys(row["test"] for row in rows))
    figure = blank(3.6 * len(panels) + 1.2, 3.2)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (dataset, weights) in zip(axes, panels, strict=True):
        for number, test in enumerate(tests):
            mine = [row for row in rows if (row["dataset"], row["weights"], row["test"]) == (dataset, weights, test)]
            mine.sort(key=lambda row: row["frozen"])
            if mine:
                colour, marker = look(number)
                x, y, error = ([row[key] for row in mine] for key in ("frozen", "mean", "error"))
                axis.errorbar(x, y, error, color=colour, marker=marker, ms=5, lw=1.2, capsize=2, label=test)
        # Networks differ in how many stages they have.
        stages = sorted({row["frozen"] for row in rows if (row["dataset"], row["weights"]) == (dataset, weights)})
        names = ["0:\nfine-tuned", *map(str, stages[1:-1]), f"{stages[-1]}:\nprobe"]
        axis.set_xticks(stages, names if len(stages) > 1 else names[:1])
        axis.set_xlabel("frozen stages")
        title = f"{dataset}, from {'random weights' if weights == 'none' else weights}"
        axis.set_title(textwrap.fill(title, TITLE_LETTERS), fontsize=9)  # weights may be the path of a file
        _open(axis)
    axes[0].set_ylabel("accuracy, % ± standard error")
    shown = {name: one for axis in axes for one, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[-1].legend(
        [shown[test] for test in tests], tests,
        fontsize=8, frameon=False, title="test domain", loc="upper left", bbox_to_anchor=(1, 1),
    )  # fmt: skip
    return save(figure, path)


def class_counts(dataset: MultiDomainDataset, path: Path) -> Path:
    """The number of examples of every domain and class, with the sums."""
    classes, names = dataset.card.classes, [domain.name for domain in dataset.domains]
    counts = dataset.class_counts()
    figure = blank(min(16.0, 0.42 * len(classes) + 2.6), min(16.0, 0.3 * len(names) + 1.6))
    axis = figure.add_subplot()
    shown = axis.imshow(counts, cmap=SHADES, vmin=0, aspect="auto")
    if len(classes) <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            colour = "black" if count > 0.6 * counts.max() else "white"
            axis.text(column, row, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(classes)), classes, rotation=40, ha="right", fontsize=8)
    axis.set_yticks(range(len(names)), [f"{name} ({n:,})" for name, n in zip(names, counts.sum(1), strict=True)])
    axis.tick_params(length=0, labelsize=8)
    figure.colorbar(shown, ax=axis, label="examples")
    axis.set_title(f"{dataset.card.name}: {counts.sum():,} examples", fontsize=9, loc="left")
    return save(figure, path)


def predictions(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Predicted against true accuracy with intervals, one point a model and domain; right ones lie on the diagonal."""
    figure = blank(4.4, 4.0)
    axis = figure.add_subplot()
    axis.plot([0, 100], [0, 100], color="#7F7F7F", lw=0.8, zorder=0)
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    for number, domain in enumerate(domains):
        colour, marker = look(number)
        mine = [row for row in rows if row["domain"] == domain]
        true, made, low, high = (
            100 * np.array([row[key] for row in mine]) for key in ("true", "accuracy", "low", "high")
        )
        whiskers = np.maximum(0, [made - low, high - made])
        axis.errorbar(true, made, whiskers, fmt=marker, color=colour, ms=5, lw=0.9, label=domain, alpha=0.9)
    ends = 100 * np.array([[row["true"], row["low"], row["high"]] for row in rows])
    limits = max(0.0, ends.min() - 5), min(100.0, ends.max() + 5)
    axis.set(xlim=limits, ylim=limits, xlabel="true accuracy, %", ylabel="predicted without labels, %")
    columns, _ = legend_beside(domains, 3.0)
    axis.legend(
        fontsize=8, frameon=False, title="unlabelled domain", title_fontsize=8,
        loc="upper left", bbox_to_anchor=(1, 1), ncols=columns,
    )  # fmt: skip
    _open(axis)
    return save(figure, path)


def difficulty(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Mean and deviation over methods of the error of predicting every classifier's accuracy."""
    figure = blank(max(3.6, 0.32 * len(rows) + 1.6), 3.2)
    axis = figure.add_subplot()
    names, means, spreads = ([row[key] for row in rows] for key in ("classifier", "mae", "deviation"))
    axis.errorbar(range(len(rows)), means, spreads, fmt="o", color=look(0)[0], ms=5, lw=1.2, capsize=2)
    axis.set_xticks(range(len(rows)), names, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_ylim(bottom=min(0.0, *(mean - spread for mean, spread in zip(means, spreads, strict=True))))
    axis.set_ylabel("mean absolute error, points,\nmean ± deviation over methods")
    _open(axis)
    return save(figure, path)


def _open(axis: "Axes") -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
