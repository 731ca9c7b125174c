"""Commands that train: the demo, and one model."""

import json
import time
import warnings
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from shiftbed.cli.notes import training_notes
from shiftbed.cli.shared import (
    KEEPS,
    PRECISIONS,
    Adapt,
    AsJson,
    Code,
    Deterministic,
    Device,
    Keep,
    Overrides,
    Precision,
    Recipe,
    StartsOverError,
    Steps,
    Workers,
    app,
    console,
    names,
    next_command,
    parse_overrides,
    say,
    stop_flag,
    stoppable,
    with_files,
    word,
)
from shiftbed.registry import one_of

if TYPE_CHECKING:
    from shiftbed.selection import JobRecords
    from shiftbed.training.job import Job


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="The folder for everything; shiftbed-demo by default.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A smaller version, in under a minute.")] = False,
    workers: Workers = None,
) -> None:
    """Tells the whole story on built-in data, in minutes.

    Shift, a fair comparison, its audit, predictions without labels, and one page of it all.
    """
    from shiftbed.report.demo import FAST, FULL
    from shiftbed.report.demo import demo as run_demo

    started = time.monotonic()
    folder = out or Path("shiftbed-demo-fast" if fast else "shiftbed-demo")
    page = stoppable(lambda: run_demo(folder, workers, console, FAST if fast else FULL), "the same command")
    console.print(f"That took {time.monotonic() - started:.0f} s.", highlight=False)
    say(f"Open {page.resolve()} in a browser.")
    next_command(
        f"shiftbed figure leaderboard {word(folder)} --out leaderboard.pdf",
        f"shiftbed best {word(folder)} --test emojione-mono --out my-model",
        "shiftbed shift FOLDER          # of your own images: FOLDER/domain/class/image",
        "shiftbed sweep RotatedDigits --algorithms ERM,Mixup --test 0,75 --out mine",
    )


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    algorithm: Annotated[str, typer.Argument(help="The algorithm's name.")],
    test: Annotated[str, typer.Option(help="The test domain, always named; several are separated by commas.")] = "",
    out: Annotated[Path, typer.Option(help="The folder for the job.")] = Path("shiftbed-run"),
    recipe: Recipe = "quick",
    steps: Steps = None,
    draw: Annotated[int, typer.Option(min=0, help="The draw of hyperparameters; 0 is the default values.")] = 0,
    trial: Annotated[int, typer.Option(min=0, help="The repetition.")] = 0,
    overrides: Overrides = None,
    adapt: Adapt = 0.0,
    device: Device = None,
    precision: Precision = None,
    keep: Keep = "final",
    track: Annotated[
        str | None, typer.Option(help="Watch the run with a tracker: tensorboard, wandb or mlflow.")
    ] = None,
    deterministic: Deterministic = False,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Trains one model and shows its accuracy everywhere.

    Run again, it continues where it stopped.
    """
    from shiftbed.report.live import training_bar
    from shiftbed.sweeps.verbs import train as run_train
    from shiftbed.training.files import JobFiles

    def run() -> "JobRecords":
        planned: list[Job] = []

        def begin(job: "Job") -> None:
            planned.append(job)
            bar.begin(job)

        with training_bar(console) as bar, stop_flag() as should_stop, warnings.catch_warnings(record=True) as noted:
            job = run_train(
                dataset,
                algorithm,
                names(test),
                out,
                recipe=recipe,
                steps=steps,
                draw=draw,
                trial=trial,
                overrides=parse_overrides(overrides),
                adapt=adapt,
                device=device,
                precision=one_of(precision, PRECISIONS, "precision"),
                deterministic=deterministic,
                keep=one_of(keep, KEEPS, "choice of weights"),
                track=track,
                code=code or [],
                on_plan=begin,
                on_step=bar.step,
                should_stop=should_stop,
            )
        for note in [] if as_json else noted:
            say(str(note.message))
        if job is None:  # it was asked to stop, and has saved what it can
            is_saved = (out / JobFiles(planned[0].id).checkpoint).exists()
            raise KeyboardInterrupt if is_saved else StartsOverError
        return job

    for note in [] if as_json else training_notes(recipe, [dataset]):
        say(note)
    job = stoppable(run, "the same command")
    if as_json:
        print(json.dumps({"job": job.description, "status": job.status, "step": job.step, "records": job.rows}))
    else:
        _show(job, out, recipe, with_files(code))


def _show(job: "JobRecords", out: Path, recipe: str, files: str) -> None:
    """How a job ended, where its records are, and what to do next with the same recipe and files of classes."""
    from shiftbed.report import show

    if job.status == "diverged":
        last = "with its last good records" if job.rows else "before its first evaluation"
        say(f"The loss became infinite or not a number at step {job.step}: the job ended as diverged, {last}.")
    if job.rows:
        console.print(show.job_table(job), show.spread_table(job))
    folder = out / "jobs" / job.id
    kept = bool([*folder.glob("weights*")])
    what = "Records and weights" if kept else "Records (the weights were not kept)"
    say(f"{what}: {folder}")
    more = ",".join(dict.fromkeys(("ERM", job.description["algorithm"], "CORAL")))
    again = [f"shiftbed best {word(out)}{files}"] if not kept and job.status == "done" else []  # which makes them
    given = "" if recipe == "quick" else f" --recipe {word(recipe)}"
    what = f"{word(job.description['dataset'])} --algorithms {quote(more)}{given}{files}"
    sweep = f"shiftbed sweep {what} --out my-sweep"
    next_command(*again, sweep)
