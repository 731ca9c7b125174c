"""Commands that train: the demo, one model, many models."""

import json
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from shiftbed.cli.shared import (
    PRECISIONS,
    STOPPED,
    Adapt,
    AsJson,
    Code,
    Device,
    Overrides,
    Precision,
    Recipe,
    Steps,
    Workers,
    app,
    console,
    names,
    next_command,
    one_of,
    parse_overrides,
    plural,
    stop_flag,
    stoppable,
)
from shiftbed.errors import ShiftbedError

if TYPE_CHECKING:
    from shiftbed.sweeps.pool import Progress


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for everything it makes.")] = Path("shiftbed-demo"),
    workers: Workers = None,
) -> None:
    """Tells the whole story on built-in data, in minutes."""
    from shiftbed.report.demo import demo as run_demo

    started = time.monotonic()
    stoppable(lambda: run_demo(out, workers, console), "shiftbed demo")
    console.print(f"That took {time.monotonic() - started:.0f} s.", highlight=False)
    next_command(
        f"shiftbed status {out}",
        "shiftbed train EmojiStyles CORAL --test emojione-mono",
        "shiftbed sweep RotatedDigits --algorithms ERM,Mixup --test 0,75 --out mine",
    )


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    algorithm: Annotated[str, typer.Argument(help="The algorithm's name.")],
    test: Annotated[str, typer.Option(help="The test domain; several are separated by commas.")],
    out: Annotated[Path, typer.Option(help="The folder for the job.")] = Path("shiftbed-run"),
    recipe: Recipe = "quick",
    steps: Steps = None,
    draw: Annotated[int, typer.Option(min=0, help="The draw of hyperparameters; 0 is the default values.")] = 0,
    trial: Annotated[int, typer.Option(min=0, help="The repetition.")] = 0,
    overrides: Overrides = None,
    adapt: Adapt = 0.0,
    device: Device = None,
    precision: Precision = None,
    keep: Annotated[str, typer.Option(help="Which weights to keep: none, final, best or all.")] = "final",
    track: Annotated[str | None, typer.Option(help="Watch the run with a tracker: tensorboard.")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="On a GPU: equal to the bit, slower.")] = False,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Trains one model and shows its accuracy everywhere.

    Run again, it continues where it stopped.
    """
    from shiftbed.report import show
    from shiftbed.report.live import training_bar
    from shiftbed.sweeps.verbs import train as run_train

    with training_bar(console) as bar, stop_flag() as should_stop:
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
            keep=one_of(keep, ("none", "final", "best", "all"), "choice of weights"),
            track=track,
            code=code or [],
            on_plan=bar.begin,
            on_step=bar.step,
            should_stop=should_stop,
        )
    if job is None:
        console.print("Stopped and saved: nothing is lost. Run the same command to continue.")
        raise typer.Exit(STOPPED)
    if as_json:
        print(json.dumps({"job": job.description, "status": job.status, "records": job.rows}))
        return
    if job.status == "diverged":
        console.print(
            "The loss became infinite or not a number: the job ended as diverged, with its last good records."
        )
    console.print(show.job_table(job))
    folder = out / "jobs" / job.id
    kept = "Records and weights" if (folder / "weights.safetensors").exists() else "Records (the weights were not kept)"
    console.print(f"{kept}: {folder}", highlight=False, soft_wrap=True)
    more = ",".join(dict.fromkeys(("ERM", job.description["algorithm"], "CORAL")))
    files = "".join(f" --code {path}" for path in code or [])
    next_command(f"shiftbed sweep {job.description['dataset']} --algorithms {quote(more)}{files} --out my-sweep")


@app.command()
def sweep(
    datasets: Annotated[str, typer.Argument(help="Datasets, separated by commas.")],
    algorithms: Annotated[list[str], typer.Option(help="Algorithms, separated by commas.")],
    out: Annotated[Path, typer.Option(help="The sweep's folder; the same folder again continues it.")],
    draws: Annotated[int, typer.Option(min=1, help="Draws of the hyperparameters; the first is the defaults.")] = 1,
    trials: Annotated[int, typer.Option(min=1, help="Repetitions with other splits, weights and draws.")] = 1,
    test: Annotated[str, typer.Option(help="Test domains, separated by commas; all by default.")] = "",
    protocol: Annotated[str, typer.Option(help="Who trains and who is tested.")] = "leave-one-domain-out",
    selection: Annotated[
        list[str] | None, typer.Option(help="A selection rule the jobs must serve (repeatable).")
    ] = None,
    records: Annotated[str, typer.Option(help="full, or lean: only what the named selections read.")] = "full",
    recipe: Recipe = "quick",
    steps: Steps = None,
    overrides: Overrides = None,
    adapt: Adapt = 0.0,
    device: Device = None,
    precision: Precision = None,
    on: Annotated[str, typer.Option(help="local, ray or slurm: where jobs run.")] = "local",
    address: Annotated[str | None, typer.Option(help="The Ray cluster's address.")] = None,
    code: Code = None,
    workers: Workers = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Trains many models; survives being killed.

    Datasets × algorithms × test domains × draws × trials.
    """
    from shiftbed.report.live import SweepView
    from shiftbed.sweeps.plan import Request
    from shiftbed.sweeps.verbs import dry_run as run_dry
    from shiftbed.sweeps.verbs import sweep as run_sweep

    request = Request(
        datasets=names(datasets),
        algorithms=names(",".join(algorithms)),
        draws=draws,
        trials=trials,
        test_domains=names(test),
        protocol=protocol,
        recipe=recipe,
        fields={"steps": steps},
        overrides=parse_overrides(overrides),
        adapt=adapt,
        selections=selection or [],
        lean=one_of(records, ("full", "lean"), "kind of records") == "lean",
    )
    if dry_run:
        count, done = run_dry(request, out, code or [], one_of(precision, PRECISIONS, "precision"))
        words = f"{count} jobs, {done} of them done already."
        print(json.dumps({"jobs": count, "done": done}) if as_json else words)
        return

    def run() -> "Progress":
        with SweepView(console) as view:
            return run_sweep(
                request,
                out,
                workers=workers,
                device=device,
                precision=one_of(precision, PRECISIONS, "precision"),
                on=one_of(on, ("local", "ray", "slurm"), "executor"),
                address=address,
                code=code or [],
                on_change=view,
            )

    _report(stoppable(run, "the same command"), out, as_json)


def _report(progress: "Progress", out: Path, as_json: bool) -> None:
    """How a sweep ended."""
    outcomes = {"done": list(progress.ended.values()).count("done"), "failed": len(progress.failed)}
    outcomes["diverged"] = list(progress.ended.values()).count("diverged")
    if as_json:
        print(json.dumps({**outcomes, "failures": progress.failed}))
    else:
        diverged = f", {outcomes['diverged']} diverged" if outcomes["diverged"] else ""
        console.print(f"{plural(outcomes['done'], 'job')} done{diverged}.", highlight=False)
        for job_id, why in list(progress.failed.items())[:10]:
            console.print(f"failed: {job_id}: {why}", markup=False, highlight=False, soft_wrap=True)
        if progress.ended:
            next_command(f"shiftbed tables {out}")
    if progress.failed:
        raise ShiftbedError(f"{plural(len(progress.failed), 'job')} failed; the same command tries again.")
