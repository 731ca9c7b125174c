"""Commands that read what was trained."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from shiftbed.cli.notes import best_command
from shiftbed.cli.shared import (
    STOPPED,
    AsJson,
    Code,
    Device,
    SkipCorrupt,
    app,
    console,
    format_of,
    load_classes,
    names,
    next_command,
    only_with,
    say,
    with_files,
    word,
)
from shiftbed.errors import ShiftbedError, plural
from shiftbed.registry import one_of

NEAR_FAR = "near-far"


@app.command()
def tables(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    selection: Annotated[list[str] | None, typer.Option(help="A selection rule (repeatable), or all.")] = None,
    output: Annotated[str, typer.Option("--format", help="text, markdown, latex, html, csv or json.")] = "text",
    se: Annotated[str, typer.Option(help="sample, or population as DomainBed prints it.")] = "sample",
    view: Annotated[
        str | None,
        typer.Option(help="As a paper shows it: spread, groups, variance, improvement, ranking, eoa or diwa."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="For --view groups: near-far (thirds of the stored Fréchet distance), or a YAML file of domains by "
            "group or of a distance by domain."
        ),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Rank against another sweep's folder.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Only the first so many draws of each trial.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Only the first so many trials.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prints the tables of a sweep, and leaderboards over datasets.

    With standard errors and n; oracle numbers are marked.
    """
    from shiftbed import tables as make
    from shiftbed.audit.ledger import read_tables
    from shiftbed.shift.kept import shift_kinds

    output = format_of(output, as_json, tuple(make.FORMATS))
    only_with("--view groups", view == "groups", groups=groups)
    only_with("the usual tables", view is None, against=against)
    divisor = one_of(se, ("sample", "population"), "standard error")

    def read(folder: Path) -> list[make.Table]:
        found = read_tables(folder, selection or [], divisor, draws=draws, trials=trials)
        if not found:
            given = {"--draws": draws, "--trials": trials}
            limits = " and ".join(f"{name} {number}" for name, number in given.items() if number is not None)
            raise ShiftbedError(f"With {limits} no finished job of {folder} is left; give a larger number, or none.")
        return found

    found = read(folder)
    shown: list[make.Table | make.Grid] = []
    if view == "groups" and groups == NEAR_FAR:
        from shiftbed.shift.near_far import near_and_far

        shown += make.each_table(lambda table: [make.group_grid(table, near_and_far(table, folder))])(found)
    elif view is not None:
        shown += make.view_tables(found, view, make.read_groups(groups) if groups else None, shift_kinds(folder))
    elif against is not None:
        shown += make.boards_against(found, read(against))
    else:
        shown += found
        shown += [] if output in ("csv", "json") else [board.grid() for board in make.leaderboards(found)]
    print(make.render(shown, output))
    if output == "text":
        where = shlex.quote(str(folder))
        next_command(f"shiftbed audit {where}", f"shiftbed report {where}", best_command(folder))


@app.command()
def best(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    out: Annotated[Path, typer.Option(help="The folder for the model.")] = Path("shiftbed-best"),
    selection: Annotated[str, typer.Option(help="The rule that chooses.")] = "training-domain-validation",
    algorithm: Annotated[str | None, typer.Option(help="Only this algorithm.")] = None,
    test: Annotated[str, typer.Option(help="Only jobs that test these domains, separated by commas.")] = "",
    all_domains: Annotated[
        bool,
        typer.Option("--all-domains", help="Train it anew on all domains, for use at a place that is none of them."),
    ] = False,
    device: Device = None,
    export: Annotated[str | None, typer.Option(help="onnx: write the network in this format too.")] = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """From a table to a model that loads.

    Trains the chosen job again, to the step that was chosen; or, for use at a new place, on all domains.
    """
    from shiftbed.report import choosing
    from shiftbed.report.live import work_bar
    from shiftbed.report.models import export_onnx
    from shiftbed.sweeps.blind import is_sealed
    from shiftbed.training.model import load
    from shiftbed.training.store import LocalStore

    one_of(export, ("onnx",), "format")
    if all_domains and test:
        raise ShiftbedError("--all-domains trains on every domain, so that none is left for --test; give one of them.")
    load_classes(code)
    verb = choosing.best_everywhere if all_domains else partial(choosing.best, test=names(test))
    try:
        with work_bar(console) as show:
            made: choosing.Best | choosing.Everywhere = verb(
                folder, out, selection=selection, algorithm=algorithm, device=device, on_step=partial(show, "training")
            )
    except KeyboardInterrupt:
        say(f"\nStopped; the same command {'goes on from its last checkpoint' if all_domains else 'starts anew'}.")
        raise typer.Exit(STOPPED) from None
    written: list[str] = []
    if export:
        path = made.weights.with_suffix(".onnx")
        export_onnx(load(made.weights), path)
        written = [str(one) for one in sorted(path.parent.glob(f"{path.name}*"))]
    if as_json:
        print(json.dumps({**made.facts, "onnx": written}))
        return
    say(made.words)
    say(f"Weights: {made.weights}")
    if written:
        say(f"ONNX: {', '.join(written)}")
    files = with_files(code)
    where = word(made.weights.parent)
    if isinstance(made, choosing.Everywhere):
        next_command(f"shiftbed predict {where} --on FOLDER{files}", f"shiftbed predictions {where}{files}")
        return
    about = made.job.description
    tested = word(f"{about['dataset']}/{about['test_domains'][0]}")
    shown = [] if is_sealed(LocalStore(folder)) else [f"shiftbed predictions {where}{files}"]
    next_command(*shown, f"shiftbed predict {where} --on {tested}{files}")


@app.command()
def predictions(
    run: Annotated[Path, typer.Argument(help="The folder of a trained model.")],
    on: Annotated[
        str | None, typer.Option(help="The dataset, by default the one it learned from; or a folder of images.")
    ] = None,
    domains: Annotated[str, typer.Option(help="Its domains, separated by commas; all by default.")] = "",
    csv: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
    skip_corrupt: SkipCorrupt = False,
    code: Code = None,
) -> None:
    """What a model says of every image, as CSV: label, prediction, confidence."""
    from shiftbed.report.models import predictions as predict

    load_classes(code)
    if csv is not None and not csv.parent.is_dir():
        raise ShiftbedError(f"There is no folder {csv.parent} for {csv.name}; make it first.")
    text = predict(run, on, names(domains), skip_corrupt)
    if csv is None:
        print(text, end="")
        return
    try:
        csv.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ShiftbedError(f"Cannot write {csv}: {error.strerror}; choose another file with --csv.") from error
    console.print(f"{plural(text.count(chr(10)) - 1, 'prediction')} in {csv}.", highlight=False)
    new = on if on is not None and Path(on).is_dir() else "FOLDER"  # images without labels
    next_command(f"shiftbed predict {word(run)} --on {word(new)}{with_files(code)}")


@app.command()
def diff(
    one: Annotated[str, typer.Argument(help="A job's folder, a sweep's folder, or a recipe's name.")],
    two: Annotated[str, typer.Argument(help="Another of the same kind.")],
    as_json: AsJson = False,
) -> None:
    """Why two jobs, recipes or tables differ."""
    from shiftbed.report.compare import compare
    from shiftbed.tables.table import ORACLE_NOTE

    found = compare(one, two)
    if as_json:
        print(json.dumps([{"field": key, "one": left, "two": right} for key, left, right in found.fields()]))
        return
    rows = found.rows()
    if not rows:
        say("What is printed of them is equal; `--json` has what differs." if found.fields() else "They do not differ.")
        return
    table = RichTable("cell" if found.kind == "sweep" else "field", one, two)
    for column in table.columns:
        column.overflow = "fold"  # what differs may be the end of a word
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    if found.kind == "sweep":
        mark = f" {ORACLE_NOTE}" if found.has_oracle else ""
        say(f"Accuracy % ± standard error (trials).{mark} `--json` has the choices too.")
        next_command(f"shiftbed tables {word(one)} --against {word(two)}")
    elif found.kind == "recipe":
        next_command(f"shiftbed recipes {word(one)}")
