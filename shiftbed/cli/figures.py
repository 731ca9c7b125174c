"""Commands that draw the papers' figures."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable

from shiftbed.cli.shared import AsJson, app, console, next_command, say


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="The figure's name (see `shiftbed figures`).")],
    folder: Annotated[Path, typer.Argument(help="The folder of results.")],
    out: Annotated[Path | None, typer.Option(help="A .pdf, .svg or .png file; NAME.pdf by default.")] = None,
    dataset: Annotated[str | None, typer.Option(help="One dataset of several.")] = None,
    selection: Annotated[
        str | None, typer.Option(help="The rule that chose; by default training-domain-validation.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="The method that predicts accuracy; by default atc-mc.")] = None,
    classifier: Annotated[str | None, typer.Option(help="Whose accuracy is predicted; by default the first.")] = None,
    kind: Annotated[
        str | None, typer.Option("--class", help="The class whose images are shown; by default the first.")
    ] = None,
    measure: Annotated[str | None, typer.Option(help="The measure of shift; by default the first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draws a figure for a paper from a folder of results.

    As vector PDF or SVG with the fonts in it, or as PNG; in colours that colour-blind readers tell apart.
    """
    from shiftbed.report.figures import FIGURES, figure

    made = figure(
        name,
        folder,
        out or Path(f"{FIGURES.canonical_name(name)}.pdf"),
        dataset=dataset,
        selection=selection,
        method=method,
        classifier=classifier,
        kind=kind,
        measure=measure,
    )
    if as_json:
        print(json.dumps({"figure": FIGURES.canonical_name(name), "file": str(made)}))
        return
    say(f"{FIGURES[name].summary} {made}")
    next_command("shiftbed figures")


@app.command("figures")
def list_figures(as_json: AsJson = False) -> None:
    """Lists the figures there are, and the papers that show them."""
    from shiftbed.report.figures import FIGURES

    entries = [FIGURES[name] for name in FIGURES]
    if as_json:
        rows = [{"figure": one.name, "shows": one.summary, "paper": one.paper, "options": one.words} for one in entries]
        print(json.dumps(rows))
        return
    table = RichTable("figure", "what it shows", "in")
    for one in entries:
        table.add_row(one.name, one.summary, one.paper)
    console.print(table)
    next_command("shiftbed figure leaderboard DIR --out leaderboard.pdf")
