"""Commands of sweeps: many models, and where they stand."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiftbed.cli.notes import best_command, training_notes
from shiftbed.cli.shared import (
    AsJson,
    Code,
    Device,
    JobsPerDevice,
    Overrides,
    app,
    console,
    log,
    next_command,
    say,
    show_failures,
    stoppable,
    word,
)
from shiftbed.errors import ShiftbedError, plural

if TYPE_CHECKING:
    from shiftbed.sweeps.forecast import Forecast
    from shiftbed.sweeps.plan import Request
    from shiftbed.sweeps.pool import Progress
    from shiftbed.sweeps.records import Status
    from shiftbed.sweeps.words import SweepWords

WATCH_SECONDS = 2.0


@app.command()
def sweep(
    datasets: Annotated[str | None, typer.Argument(help="Datasets, separated by commas.")] = None,
    algorithms: Annotated[list[str] | None, typer.Option(help="Algorithms, separated by commas.")] = None,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; the same folder again continues it.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A YAML file with the words of these options.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of the hyperparameters; the first is the defaults.")] = None,
    trials: Annotated[int | None, typer.Option(help="Repetitions with other splits and weights.")] = None,
    design: Annotated[
        str | None, typer.Option(help="How to search: redraw (the default), search-once, fixed or groups.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A setting of the design groups: name=value,... (repeatable).")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test domains, separated by commas; all by default.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Who trains and who is tested; by default leave-one-domain-out.")
    ] = None,
    selection: Annotated[
        list[str] | None, typer.Option(help="A selection rule the jobs must serve (repeatable).")
    ] = None,
    records: Annotated[str | None, typer.Option(help="full, or lean: only what the named selections read.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="How each model is trained (see `shiftbed recipes`), or a file of yours.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of the recipe's.")] = None,
    overrides: Overrides = None,
    adapt: Annotated[
        float | None, typer.Option(help="Give this share of every test domain to the algorithm, unlabelled.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="As many draws, equal for all algorithms, as this time allows: 8h, 90min.")
    ] = None,
    device: Device = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bf16; by default bf16 on a GPU.")] = None,
    deterministic: Annotated[
        bool | None, typer.Option("--deterministic", help="On GPUs: equal to the bit, slower.")
    ] = None,
    on: Annotated[str | None, typer.Option(help="local, ray or slurm: where jobs run.")] = None,
    address: Annotated[str | None, typer.Option(help="The Ray cluster's address.")] = None,
    code: Code = None,
    workers: Annotated[int | None, typer.Option(help="Processes; one for each core by default.")] = None,
    keep: Annotated[
        str | None, typer.Option(help="Which weights to keep of each job: none, final, best or all; or logits.")
    ] = None,
    jobs_per_device: JobsPerDevice = None,
    blind: Annotated[
        bool | None, typer.Option("--blind", help="Seal the test numbers until `shiftbed unblind`.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="The id of a job to run alone (repeatable).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and stop.")] = False,
    probe: Annotated[bool, typer.Option(help="Measure a few steps for a dry run's estimate.")] = True,
    as_json: AsJson = False,
) -> None:
    """Trains many models; survives being killed.

    Datasets × algorithms × test domains × draws × trials.
    """
    from shiftbed.sweeps.words import sweep_words

    flags = {
        "datasets": datasets,
        "algorithms": algorithms,
        "out": out,
        "draws": draws,
        "trials": trials,
        "design": design,
        "group": group,
        "test": test,
        "protocol": protocol,
        "selection": selection,
        "records": records,
        "recipe": recipe,
        "steps": steps,
        "set": overrides,
        "adapt": adapt,
        "budget": budget,
        "device": device,
        "precision": precision,
        "deterministic": deterministic,
        "on": on,
        "address": address,
        "code": code,
        "workers": workers,
        "keep": keep,
        "jobs_per_device": jobs_per_device,
        "blind": blind,
        "only": only,
    }
    if out is None and plan is None:
        raise ShiftbedError("A sweep needs a folder for its records; add --out DIR.")
    words = sweep_words({word: value for word, value in flags.items() if value is not None}, plan)
    if dry_run and words.only:
        raise ShiftbedError("--dry-run tells what the whole sweep takes; leave --only out.")
    for note in [] if as_json else training_notes(words.recipe, words.datasets, words.protocol):
        say(note)
    request = _within_budget(words, as_json) if words.budget else words.request()
    if dry_run:
        _forecast(request, words, probe, as_json)
    else:
        _report(stoppable(lambda: _run(request, words), "the same command"), request, words, as_json)


def _within_budget(words: "SweepWords", as_json: bool) -> "Request":
    from shiftbed.report.live import work_bar
    from shiftbed.sweeps import verbs

    assert words.budget is not None
    with work_bar(console) as bar:
        request = verbs.within_budget(
            words.request(),
            words.out,
            words.budget,
            workers=words.workers,
            device=words.device,
            precision=words.precision,
            code=words.code,
            on_probe=bar,
        )
    if not as_json:
        print(f"{plural(request.draws, 'draw')} of every algorithm fit into {words.budget}.")
    return request


def _forecast(request: "Request", words: "SweepWords", probe: bool, as_json: bool) -> None:
    from shiftbed.report.live import work_bar
    from shiftbed.sweeps import verbs

    with work_bar(console) as bar:
        found = verbs.dry_run(
            request,
            words.out,
            device=words.device,
            precision=words.precision,
            code=words.code,
            probe=probe,
            on_probe=bar,
        )
    _show_forecast(found, words, as_json)


def _run(request: "Request", words: "SweepWords") -> "Progress":
    from shiftbed.report.live import SweepView
    from shiftbed.sweeps import verbs

    with SweepView(log) as view:
        return verbs.sweep(
            request,
            words.out,
            workers=words.workers,
            jobs_per_device=words.jobs_per_device,
            device=words.device,
            precision=words.precision,
            deterministic=words.deterministic,
            on=words.on,
            address=words.address,
            keep=words.keep,
            code=words.code,
            blind=words.blind,
            only=words.only,
            on_change=view,
        )


def _show_forecast(found: "Forecast", words: "SweepWords", as_json: bool) -> None:
    """What a sweep would take."""
    if as_json:
        numbers = {"jobs": found.jobs, "reruns": found.reruns, "done": found.done, "device_hours": found.device_hours}
        unknown = [list(kind) for kind in found.unknown]
        print(json.dumps({**numbers, "disk_bytes": found.disk, "unknown": unknown, "notes": found.notes}))
        return
    from shiftbed.report.live import duration

    done = "" if found.done is None else f", {found.done:,} of them done already"
    print(f"{plural(found.jobs, 'job')}{done}.")
    if found.reruns:
        print(f"Then at most {plural(found.reruns, 'job')} to train the winners again.")
    if found.seconds:
        but = f", without {plural(len(found.unknown), 'kind')} of jobs that have no estimate" if found.unknown else ""
        print(f"About {found.device_hours:.2g} device-hours ({duration(sum(found.seconds.values()))} one by one{but}).")
    print(f"About {found.disk / 2**20:,.1f} MiB of records.")
    for note in found.notes:
        say(f"Note: {note}")
    next_command("the same without --dry-run" + ("" if words.budget else ", or with --budget 8h"))


def _report(progress: "Progress", request: "Request", words: "SweepWords", as_json: bool) -> None:
    """How a sweep ended."""
    from shiftbed.sweeps.words import command_alone

    outcomes = {"done": list(progress.ended.values()).count("done"), "failed": len(progress.failed)}
    outcomes["diverged"] = list(progress.ended.values()).count("diverged")
    if as_json:
        print(json.dumps({**outcomes, "failures": progress.failed}))
    else:
        diverged = f", {outcomes['diverged']} diverged" if outcomes["diverged"] else ""
        console.print(f"{plural(outcomes['done'], 'job')} done{diverged}.", highlight=False)
        jobs = {job.id: job for job in progress.jobs}
        show_failures(progress.failed, lambda job_id: command_alone(jobs[job_id], words, request.draws))
        if words.keep != "none" and progress.found:
            _say_not_kept(progress, words)
        if progress.ended:
            _next(words.out, words.code)
    if progress.failed:
        raise ShiftbedError(f"{plural(len(progress.failed), 'job')} failed; the same command tries again.")


def _say_not_kept(progress: "Progress", words: "SweepWords") -> None:
    """Says of how many jobs that were done before nothing was kept: what is to be kept is kept while a job trains."""
    kept = "logits-*" if words.keep == "logits" else "weights*"
    ended = [job_id for job_id, how in progress.ended.items() if how == "done"]
    without = sum(not any((words.out / "jobs" / job_id).glob(kept)) for job_id in ended)
    if without:
        say(
            f"{plural(without, 'job')} had finished before without --keep {words.keep}, and nothing is kept of what "
            "they learned; sweep into another folder to keep it"
            + ("." if words.keep == "logits" else f", or `shiftbed best {word(words.out)}` makes the best model again.")
        )


def _next(folder: Path, code: Sequence[Path] = ()) -> None:
    """What to do with finished jobs."""
    from shiftbed.sweeps.blind import is_sealed, sealed
    from shiftbed.training.store import LocalStore

    if is_sealed(LocalStore(folder)):
        say(sealed(folder))
        next_command(best_command(folder, code=code), f"shiftbed audit {word(folder)}")
    else:
        next_command(f"shiftbed tables {word(folder)}")


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until nothing is left or Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows what is done, running, failed and left.

    From any machine that sees the folder, with the time left.
    """
    from shiftbed.sweeps.blind import is_sealed
    from shiftbed.sweeps.records import status as run
    from shiftbed.training.store import LocalStore

    now = run(folder)
    while watch and not as_json and now.unfinished:
        if console.is_terminal:
            console.clear()
        _show_status(now)
        try:
            time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            raise typer.Exit from None
        now = run(folder)
    if as_json:
        numbers = {"seconds_left": now.seconds_left, "jobs_per_second": now.jobs_per_second}
        sealed = is_sealed(LocalStore(folder))
        print(json.dumps({"states": now.states, "failures": now.failures, **numbers, "sealed": sealed}))
        return
    _show_status(now)
    if now.unfinished < len(now.plan):
        _next(folder)


def _show_status(now: "Status") -> None:
    from shiftbed.report import show
    from shiftbed.report.live import duration, pace
    from shiftbed.sweeps.plan import with_sources

    console.print(show.status_table(now))
    show_failures(now.failures)
    if now.seconds_left is not None and now.jobs_per_second is not None:
        console.print(f"About {duration(now.seconds_left)} left, at {pace(now.jobs_per_second)}.", highlight=False)
    elif now.unfinished and not now.count("running"):  # before the first job has ended nothing tells the time left
        left = plural(now.unfinished, "job")
        rows = [row for id, row in now.plan.items() if now.states[id] not in ("done", "diverged")]
        sources = with_sources(rows, now.plan.values())
        console.print(f"Nothing runs; the same command finishes the {left} left{sources}.", highlight=False)
