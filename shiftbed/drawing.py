"""How pictures look and are written: one style, colours that colour-blind readers tell apart, fonts in the file."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shiftbed.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours; past them, markers change.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "osD^vP*X"
SHADES = "cividis"
DOTS_PER_INCH = 150
POINTS_AN_INCH = 72
FORMATS = (".png", ".pdf", ".svg")
STYLE = {
    "pdf.fonttype": 42,  # TrueType, whole letters: publishers refuse matplotlib's default, type 3
    "svg.hashsalt": "shiftbed",
}


def look(number: int) -> tuple[str, str]:
    """The colour and the marker of the number-th thing in a picture."""
    return COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def legend_beside(names: Sequence[str], height: float, letters: float = 8) -> tuple[int, float]:
    """The columns of a legend beside axes, and its width in inches: a picture that lacks it has it of the axes.

    Args:
        names: What is in the legend.
        height: That of the axes, in inches.
        letters: Their size, in points.
    """
    columns = -(-len(names) // max(1, int(height * POINTS_AN_INCH / (1.6 * letters))))
    return columns, columns * letters * (4 + 0.6 * max(map(len, names))) / POINTS_AN_INCH


def blank(width: float, height: float) -> "Figure":
    """An empty picture, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def boxes_for_letters() -> Iterator[None]:
    """Letters that no font here has are drawn as boxes, and seen there: matplotlib warns of each, of every picture."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def save(figure: "Figure", path: Path) -> Path:
    """Writes a picture as PNG, or as PDF or SVG, which stay sharp at any size; equal pictures are equal files.

    Raises:
        DataError: The path cannot be such a file.
    """
    import matplotlib

    suffix = path.suffix.lower()
    if suffix not in FORMATS or path.is_dir():
        raise DataError(
            f"A picture is a PNG, PDF or SVG file, which {path} cannot be; name one that ends in .png, .pdf or .svg."
        )
    for axis in figure.axes:
        legend = axis.get_legend()
        inside = legend.get_texts() if legend else []
        for text in (axis.title, *axis.get_xticklabels(), *axis.get_yticklabels(), *axis.texts, *inside):
            text.set_parse_math(False)  # a name may have dollar signs in it
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        return write(figure, path, undated)


def write(figure: "Figure", path: Path, metadata: dict[str, Any] | None = None) -> Path:
    """Draws a picture and then writes it: where a disk is full, matplotlib's end of a PDF hides the error by its own.

    Raises:
        DataError: It cannot be written.
    """
    drawn = io.BytesIO()
    with boxes_for_letters():
        figure.savefig(drawn, format=path.suffix[1:], bbox_inches="tight", pad_inches=0.1, metadata=metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn.getvalue())
    except OSError as error:
        raise DataError(f"Cannot write {path}: {error.strerror}; choose another file.") from error
    return path
