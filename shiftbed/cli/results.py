"""Commands that read what was trained."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable

from shiftbed.cli.shared import AsJson, Device, app, console, names, next_command, one_of, plural
from shiftbed.errors import ShiftbedError


@app.command()
def status(folder: Annotated[Path, typer.Argument(help="The sweep's folder.")], as_json: AsJson = False) -> None:
    """Shows what is done, running, failed and left.

    From any machine that sees the folder, with the time left.
    """
    from shiftbed.report import show
    from shiftbed.report.live import duration
    from shiftbed.sweeps.records import sweep_status
    from shiftbed.training.store import LocalStore

    now = sweep_status(LocalStore(folder))
    if not now.plan:
        raise ShiftbedError(f"There is no sweep in {folder}; `shiftbed sweep ... --out {folder}` starts one.")
    if as_json:
        print(json.dumps({"states": now.states, "failures": now.failures, "seconds_left": now.seconds_left}))
        return
    console.print(show.status_table(now))
    for job_id, why in list(now.failures.items())[:10]:
        console.print(f"failed: {job_id}: {why}", markup=False, highlight=False, soft_wrap=True)
    unfinished = len(now.plan) - now.count("done") - now.count("diverged")
    if now.count("running") and now.seconds_left is not None:
        console.print(f"About {duration(now.seconds_left)} left.", highlight=False)
    elif unfinished:
        console.print(f"Nothing runs; the same command finishes the {plural(unfinished, 'job')} left.", highlight=False)
    if unfinished < len(now.plan):
        next_command(f"shiftbed tables {folder}")


@app.command()
def tables(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    selection: Annotated[list[str] | None, typer.Option(help="A selection rule (repeatable), or all.")] = None,
    output: Annotated[str, typer.Option("--format", help="text, markdown, latex, html, csv or json.")] = "text",
    se: Annotated[str, typer.Option(help="sample, or population as DomainBed prints it.")] = "sample",
) -> None:
    """Prints the tables of a sweep, and leaderboards over datasets.

    With standard errors and n; oracle numbers are marked.
    """
    from shiftbed import tables as make

    one_of(output, tuple(make.FORMATS), "format")
    found = make.read_tables(folder, selection or [], se=one_of(se, ("sample", "population"), "standard error"))
    boards = [] if output in ("csv", "json") else [board.grid() for board in make.leaderboards(found)]
    print(make.render([*found, *boards], output), end="" if output == "csv" else "\n")


@app.command()
def best(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    out: Annotated[Path, typer.Option(help="The folder for the model.")] = Path("shiftbed-best"),
    selection: Annotated[str, typer.Option(help="The rule that chooses.")] = "training-domain-validation",
    algorithm: Annotated[str | None, typer.Option(help="Only this algorithm.")] = None,
    test: Annotated[str, typer.Option(help="Only jobs that test these domains, separated by commas.")] = "",
    device: Device = None,
    export: Annotated[str | None, typer.Option(help="onnx: write the network in this format too.")] = None,
) -> None:
    """From a table to a model that loads.

    Trains the chosen job again, to the step that was chosen.
    """
    from shiftbed.report.live import work_bar
    from shiftbed.report.models import best as find_best
    from shiftbed.report.models import export_onnx
    from shiftbed.training.model import load

    one_of(export, ("onnx",), "format")
    with work_bar(console) as show:
        bar = partial(show, "training")
        made = find_best(
            folder, out, selection=selection, algorithm=algorithm, test=names(test), device=device, on_step=bar
        )
    about = made.job.description
    tests = ", ".join(about["test_domains"])
    who = f"{about['algorithm']}, draw {about['draw']}, trial {about['trial']}, step {made.choice.step}"
    words = f"{selection} chose {who}, tested on {tests} (score {made.choice.score:.4f})."
    console.print(words, markup=False, highlight=False, soft_wrap=True)
    if not made.same:
        console.print("Its record came out a little different: it was made with another torch, device or precision.")
    console.print(f"Weights: {made.weights}", highlight=False, soft_wrap=True)
    if export:
        path = made.weights.with_suffix(".onnx")
        export_onnx(load(made.weights), path)
        console.print(f"ONNX: {path}", highlight=False, soft_wrap=True)
    next_command(f"shiftbed predictions {out} --on {about['dataset']}")


@app.command()
def predictions(
    run: Annotated[Path, typer.Argument(help="The folder of a trained model.")],
    on: Annotated[str, typer.Option(help="The dataset to predict.")],
    domains: Annotated[str, typer.Option(help="Its domains, separated by commas; all by default.")] = "",
    csv: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
) -> None:
    """What a model says of every image, as CSV: label, prediction, confidence."""
    from shiftbed.report.models import predictions as predict

    text = predict(run, on, names(domains))
    if csv is None:
        print(text, end="")
        return
    csv.write_text(text, encoding="utf-8")
    console.print(f"{plural(text.count(chr(10)) - 1, 'prediction')} in {csv}.", highlight=False)
    next_command(f"shiftbed look {on}")


@app.command()
def diff(
    one: Annotated[str, typer.Argument(help="A job's folder, a sweep's folder, or a recipe's name.")],
    two: Annotated[str, typer.Argument(help="Another of the same kind.")],
    as_json: AsJson = False,
) -> None:
    """Why two jobs, recipes or tables differ."""
    from shiftbed.report.compare import differences

    found = differences(one, two)
    if as_json:
        print(json.dumps([{"field": key, "one": left, "two": right} for key, left, right in found]))
        return
    table = RichTable("field", one, two)
    for key, left, right in found:
        table.add_row(key, *("–" if value is None else str(value) for value in (left, right)))
    console.print(table if found else "They do not differ.")
