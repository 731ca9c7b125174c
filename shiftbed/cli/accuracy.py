"""Commands that predict accuracy on unlabelled images, and judge how well that works."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from shiftbed.cli.shared import (
    AsJson,
    Code,
    Device,
    SkipCorrupt,
    app,
    console,
    load_classes,
    next_command,
    only_with,
    say,
    stoppable,
    word,
)
from shiftbed.errors import plural

if TYPE_CHECKING:
    from shiftbed.accuracy.summary import AccuracyPrediction


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a trained model, or without --on of a sweep.")],
    on: Annotated[
        str | None,
        typer.Option(help="A folder of unlabelled images, or DATASET/DOMAIN; by default what a sweep's models test."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="A labelled dataset it was not trained on; by default what the run held out.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(help="A dataset of labelled domains to fit on; by default the source, corrupted.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="The method that is reported first; by default atc-mc.")] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.99, help="How often the interval shall hold.")] = 0.9,
    unsure: Annotated[Path | None, typer.Option(help="Write the images it is least sure of as CSV and PNG.")] = None,
    skip_corrupt: SkipCorrupt = False,
    device: Device = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Predicts the accuracy on images without labels, with an interval.

    And says how far that can be trusted: how near they are to the images it was fitted on. Without --on it predicts
    for the models of a sweep, on the domains each has not seen, beside the truth; `shiftbed report` shows these too.
    """
    from shiftbed.accuracy.predict import predict_accuracy
    from shiftbed.data.examples import walk_images
    from shiftbed.report.live import work_bar
    from shiftbed.training.device import find_runtime

    load_classes(code)
    where = find_runtime(device).device
    if on is None:
        beside = {"source": source, "fit": fit, "unsure": unsure, "skip_corrupt": skip_corrupt}
        only_with("--on (a folder of images, or DATASET/DOMAIN)", False, **beside)
        _of_sweep(run, method, level, where, as_json)
        return

    def work() -> "AccuracyPrediction":
        with work_bar(console) as bar:
            return predict_accuracy(
                run,
                on,
                source=source,
                domains=fit,
                method=method,
                level=level,
                device=where,
                skip_corrupt=skip_corrupt,
                on_progress=bar,
            )

    made = stoppable(work, "the same command")
    if unsure is not None:
        from shiftbed.accuracy.unsure import write_least_sure

        picture, table = write_least_sure(run, on, unsure, where, skip_corrupt)
    if as_json:
        print(json.dumps(made.to_dict()))
        return
    say(f"Predicted accuracy on {on}: {made}.")
    if skip_corrupt and Path(on).is_dir():
        say(f"{plural(made.images, 'image')} of {sum(1 for _ in walk_images(Path(on))):,} could be read.")
    say(made.trust)
    if made.estimates:
        console.print(_table(made))
        fitted = f"Fitted on {plural(made.domains, 'labelled domain')} in {plural(made.groups, 'group')}"
        say(f"{fitted}; always predicting their mean errs by {made.baseline:.1%}.")
    direct = ", ".join(f"{name} {value:.1%}" for name, value in made.direct.items())
    say(f"Without labelled domains: {direct}.")
    if unsure is not None:
        say(f"The images it is least sure of: {table} and {picture}")
        next_command(f"shiftbed predict {word(run)} --on {word(on)} --fit DATASET")
    else:
        next_command(f"shiftbed predict {word(run)} --on {word(on)} --unsure unsure")


def _of_sweep(folder: Path, method: str | None, level: float, device: str, as_json: bool) -> None:
    """Predictions for the models of a sweep."""
    from shiftbed.accuracy.sweep import predict_sweep, summary
    from shiftbed.report.live import work_bar

    def work() -> list[dict]:
        with work_bar(console) as bar:
            return predict_sweep(folder, method=method, level=level, device=device, on_progress=bar)

    rows = stoppable(work, "the same command")
    if as_json:
        print(json.dumps(rows))
        return
    for line in summary(rows):
        say(line)
    next_command(f"shiftbed report {word(folder)}", f"shiftbed figure predictions {word(folder)} --out predictions.png")


def _table(made: "AccuracyPrediction") -> RichTable:
    table = RichTable("method", "accuracy", f"{made.level:.0%} interval", "error left out")
    for one in sorted(made.estimates, key=lambda one: one.error):
        mark = "*" if one.extrapolated else ""
        name = f"{one.method} ←" if one.method == made.method else one.method
        table.add_row(name, f"{one.accuracy:.1%}{mark}", f"{one.low:.1%} to {one.high:.1%}", f"{one.error:.1%}")
    if any(one.extrapolated for one in made.estimates):
        table.caption = "* the score lies outside those of the labelled domains"
    return table


@app.command("accuracy")
def accuracy_study(
    runs: Annotated[Path, typer.Argument(help="A folder with the weights of several models of the same classes.")],
    out: Annotated[Path, typer.Option(help="The folder for tables and pictures.")],
    on: Annotated[str | None, typer.Option(help="A dataset of many domains; by default the source, corrupted.")] = None,
    source: Annotated[str | None, typer.Option(help="A labelled dataset, or DATASET/DOMAIN, not trained on.")] = None,
    changes: Annotated[bool, typer.Option("--changes", help="Also on fewer images and without some classes.")] = False,
    beside: Annotated[
        list[Path] | None, typer.Option(help="The folder of another study to compare rankings with (repeatable).")
    ] = None,
    device: Device = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """How well accuracy is predicted: every method on every model and domain.

    As in CIFAR-10-W's study: `--on CIFAR-10-W --source CIFAR-10/test`.
    """
    from shiftbed.accuracy.pictures import text_table
    from shiftbed.accuracy.study import judge_methods, weight_folders
    from shiftbed.report.live import work_bar
    from shiftbed.training.device import find_runtime

    load_classes(code)

    def work() -> dict:
        with work_bar(console) as bar:
            where = find_runtime(device).device
            others = beside or []
            return judge_methods(
                runs, out, on=on, source=source, changes=changes, beside=others, device=where, on_progress=bar
            )

    made = stoppable(work, "the same command")
    if as_json:
        print(json.dumps(made))
        return
    alone = {row["method"]: row["all"] for row in made["mae"]}
    rows = [
        {"method": row["method"], "groups left out": row["all"], "domains left out": alone[row["method"]]}
        for row in made["mae, groups left out"]
    ]
    table = text_table(rows)
    console.print(f"Mean absolute error in points:\n{table}", markup=False, highlight=False, soft_wrap=True)
    if beside:
        for title, name in (("Beside other studies", "beside"), ("How much more other studies err", "differences")):
            console.print(f"{title}:\n{text_table(made[name])}", markup=False, highlight=False, soft_wrap=True)
    if made["classifiers left out"]:
        say(f"Left out, since no score of theirs varies: {', '.join(made['classifiers left out'])}.")
    say(f"All tables and pictures: {out}")
    next_command(f"shiftbed predict {word(weight_folders(runs)[0])} --on FOLDER")
