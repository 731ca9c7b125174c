"""Grids: what every kind of table becomes before it is printed, in any format."""

import csv
import html
import io
import json
import math
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len

from shiftbed.errors import UnknownNameError
from shiftbed.registry import did_you_mean

WIDTH = 80
LONGEST_WORD = 16
MISSING = "–"
BEST, SECOND = 1, 2
BREAKABLE = re.compile(r"(?<=[^\d\W])-(?=[^\d\W])")  # the hyphens after which textwrap breaks lines


@dataclass(frozen=True)
class Entry:
    """What stands in a cell, and whether it is the best or second best of its column."""

    text: str
    place: int | None = None


@dataclass(frozen=True)
class Grid:
    """A table ready to be printed.

    Attributes:
        title: What it is about.
        caption: What its numbers are.
        corner: What its rows are.
        columns: The headings.
        rows: The rows' names, each with its entries.
        notes: What a reader must know.
        commands: Commands that a reader may want to run next, each with what it does.
        data: All its numbers, for machines; every row has the same keys.
    """

    title: str
    caption: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    notes: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()
    data: Sequence[dict[str, Any]] = field(default_factory=list)

    @property
    def legend(self) -> list[str]:
        """How text marks the best and the second, where it does."""
        found = {entry.place for _, entries in self.rows for entry in entries}
        marks = [mark for place, mark in ((BEST, "*best*"), (SECOND, "_second_")) if place in found]
        return [f"Marked: {' and '.join(marks)} of a column."] if marks else []


def placed(texts: Sequence[str], values: Sequence[float | None], decimals: int = 1) -> list[Entry]:
    """A column's entries with the best and the second marked; what prints as the same number is equally good.

    Args:
        texts: What to print.
        values: The numbers behind, larger is better; None where there is none.
        decimals: How many are printed.
    """
    shown = [None if value is None else round(value, decimals) for value in values]
    order = sorted({value for value in shown if value is not None}, reverse=True)
    compared = sum(value is not None for value in shown)
    marks = dict(zip(order, (BEST, SECOND), strict=False)) if compared > 1 else {}
    if compared == 2:  # of two rows the other is no second
        marks = {value: place for value, place in marks.items() if place == BEST}
    return [Entry(text, None if value is None else marks.get(value)) for text, value in zip(texts, shown, strict=True)]


def own_key(kind: str, name: str, taken: Container[str]) -> str:
    """What users named, as the key of a number for machines: its name, unless another number of the row has it."""
    return f"{kind} {name}" if name in taken else name


def grid_text(grid: Grid) -> str:
    """Text of at most 80 columns; many columns continue below. *Best* and _second_ are marked as here."""
    around = {BEST: "*", SECOND: "_", None: ""}
    cells = [[f"{around[e.place]}{e.text}{around[e.place]}" for e in entries] for _, entries in grid.rows]
    words = [word for heading in grid.columns for word in BREAKABLE.sub("- ", heading).split()]
    widest = [*(len(text) for row in cells for text in row), *(min(cell_len(word), LONGEST_WORD) for word in words), 1]
    width = 2 + min(max(widest), WIDTH // 2)
    first = min(max([1, len(grid.corner), *(cell_len(name) for name, _ in grid.rows)]), WIDTH - width)
    blocks = math.ceil(len(grid.columns) / ((WIDTH - first) // width)) or 1
    even = max(1, math.ceil(len(grid.columns) / blocks))  # a grid may have no columns yet
    lines = [*_wrapped(grid.title), *_wrapped(grid.caption)]
    for start in range(0, len(grid.columns), even):
        some = slice(start, start + even)
        lines += ["", *_row_lines(grid.corner, grid.columns[some], first, width)]
        lines.append("─" * (first + width * len(grid.columns[some])))
        for (name, _), row in zip(grid.rows, cells, strict=True):
            lines += _row_lines(name, row[some], first, width)
    lines.append("")
    for note in [*grid.legend, *grid.notes]:
        lines += _wrapped(note)
    for what, command in grid.commands:
        lines += [*_wrapped(what), *(f"  {line}" for line in command_lines(command, WIDTH - 2))]
    return "\n".join(lines).rstrip()


def command_lines(command: str, width: int) -> list[str]:
    """A command in lines of about this width that can be pasted together: broken between its words alone."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:  # a space, and the backslash with its own
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _wrapped(text: str) -> list[str]:
    """Lines of at most 80 columns; equations stay on one of them."""
    kept = re.sub(r" ([=−]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(kept, WIDTH)]


def _row_lines(name: str, texts: Sequence[str], first: int, width: int) -> list[str]:
    """A row, in as many lines as its longest text needs when broken at spaces and hyphens; all end on the last."""
    wrapped = [_broken(name, first), *(_broken(text, width - 2) for text in texts)]
    height = max(1, *(len(lines) for lines in wrapped))
    padded = [[""] * (height - len(lines)) + lines for lines in wrapped]
    return [
        (label + padding(label, first) + "".join(padding(text, width) + text for text in others)).rstrip()
        for label, *others in zip(*padded, strict=True)
    ]


def _broken(text: str, width: int) -> list[str]:
    """Lines of at most this many cells, if wide letters are evenly among the others."""
    return textwrap.wrap(text, max(1, width * len(text) // max(1, cell_len(text))))


def padding(text: str, width: int) -> str:
    """The spaces that a text lacks of a width, in a terminal's cells: Chinese and Japanese letters take two."""
    return " " * (width - cell_len(text))


def grid_markdown(grid: Grid) -> str:
    """A Markdown table; the best is bold, the second underlined."""
    around = {BEST: ("**", "**"), SECOND: ("<u>", "</u>"), None: ("", "")}

    def escaped(text: str) -> str:
        return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", text)

    def shown(entry: Entry) -> str:
        before, after = around[entry.place]
        return f"{before}{escaped(entry.text)}{after}"

    lines = [f"**{escaped(grid.title)}**", "", escaped(grid.caption), ""]
    lines.append("| " + " | ".join(map(escaped, (grid.corner, *grid.columns))) + " |")
    lines.append("| --- |" + " ---: |" * len(grid.columns))
    lines += ["| " + " | ".join([escaped(name), *map(shown, entries)]) + " |" for name, entries in grid.rows]
    lines += [f"\n{escaped(note)}" for note in grid.notes]
    lines += [f"\n{escaped(what)}\n\n```\n{command}\n```" for what, command in grid.commands]
    return "\n".join(lines)


LATEX = {
    **{symbol: f"\\{symbol}" for symbol in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "–": "--", "−": "$-$", "†": r"$\dagger$", "‡": r"$\ddagger$", "×": r"$\times$", "Δ": r"$\Delta$"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "·": r"$\cdot$", "≤": r"$\leq$"},
    **{symbol: f"{{{symbol}}}" for symbol in "[]*"},  # which would be read as options of the row before
    **{"≥": r"$\geq$", "→": r"$\to$", "…": r"\ldots{}"},
}


LAST_LATIN = "\u017f"  # LaTeX knows the Latin letters up to here


def latex_escaped(text: str) -> str:
    """Text that LaTeX prints as it is; letters that its usual fonts lack become their names or numbers."""
    return "".join(LATEX.get(symbol) or _latex_letter(symbol) for symbol in text)


def _latex_letter(symbol: str) -> str:
    if symbol <= LAST_LATIN and symbol.isprintable():
        return symbol
    if symbol.isspace():
        return " "
    name = unicodedata.name(symbol, "")
    if re.fullmatch(r"GREEK SMALL LETTER (?!OMICRON)[A-Z]+", name):  # accented ones have longer names
        return rf"$\{name.split()[-1].lower().replace('lamda', 'lambda')}$"
    return rf"\texttt{{U+{ord(symbol):04X}}}"


def grid_latex(grid: Grid) -> str:
    """A LaTeX table for the package booktabs; the best is bold, the second underlined."""
    command = {BEST: r"\textbf{%s}", SECOND: r"\underline{%s}", None: "%s"}

    def row(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    body = [
        row([latex_escaped(name), *(command[entry.place] % latex_escaped(entry.text) for entry in entries)])
        for name, entries in grid.rows
    ]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_escaped(f'{grid.title}. {grid.caption}.')}}}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        row([latex_escaped(name) for name in (grid.corner, *grid.columns)]),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {latex_escaped(note)}" for note in grid.notes),
        r"\end{table}",
        *(f"% {what} {command}" for what, command in grid.commands),
    ]
    return "\n".join(lines)


def grid_html(grid: Grid) -> str:
    """An HTML table; the best is bold, the second underlined."""
    around = {BEST: ("<b>", "</b>"), SECOND: ("<u>", "</u>"), None: ("", "")}

    def cell(entry: Entry) -> str:
        before, after = around[entry.place]
        return f"<td>{before}{html.escape(entry.text)}{after}</td>"

    lines = [
        "<table>",
        f"<caption>{html.escape(grid.title)}<br>{html.escape(grid.caption)}</caption>",
        "<thead><tr>"
        + "".join(f"<th>{html.escape(name)}</th>" for name in (grid.corner, *grid.columns))
        + "</tr></thead>",
        "<tbody>",
        *(f"<tr><th>{html.escape(name)}</th>{''.join(map(cell, entries))}</tr>" for name, entries in grid.rows),
        "</tbody>",
        "</table>",
        *(f"<p>{html.escape(note)}</p>" for note in grid.notes),
        *(f"<p>{html.escape(what)}</p><pre>{html.escape(run)}</pre>" for what, run in grid.commands),
    ]
    return "\n".join(lines)


def grids_csv(grids: Sequence[Grid]) -> str:
    """All numbers of some grids as CSV."""
    return rows_csv([row for grid in grids for row in grid.data])


def rows_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; of choices it has the jobs, draws and steps, and what is several is joined by spaces."""
    buffer = io.StringIO()
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose values are single ones; those that were several stand last."""
    plain = {name: value for name, value in row.items() if not isinstance(value, dict | list | tuple)}
    for name, value in row.items():
        if name == "chosen":
            for column, key in (("jobs", "job"), ("draws", "draw"), ("chosen_steps", "step")):
                plain[column] = " ".join(str(one[key]) for one in value)
        elif isinstance(value, dict):
            plain[name] = " ".join(f"{key}={one}" for key, one in value.items())
        elif isinstance(value, list | tuple):
            plain[name] = " ".join(map(str, value))
    return plain


def grids_json(grids: Sequence[Grid]) -> str:
    """All numbers of some grids as a JSON list."""
    return json.dumps([row for grid in grids for row in grid.data], indent=1)


ONE_BY_ONE = {"text": grid_text, "markdown": grid_markdown, "latex": grid_latex, "html": grid_html}
TOGETHER = {"csv": grids_csv, "json": grids_json}
FORMATS = (*ONE_BY_ONE, *TOGETHER)


def render_grids(grids: Sequence[Grid], output: str) -> str:
    """Some grids in a format.

    Args:
        grids: The grids.
        output: One of `FORMATS`.

    Raises:
        UnknownNameError: There is no such format.
    """
    if output in TOGETHER:
        return TOGETHER[output](grids).rstrip("\n")
    if output in ONE_BY_ONE:
        return "\n\n".join(ONE_BY_ONE[output](grid) for grid in grids)
    raise UnknownNameError(f"There is no format '{output}'.{did_you_mean(output, list(FORMATS))}")
