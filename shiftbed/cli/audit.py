"""The command that asks whether a comparison is honest."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiftbed.cli.shared import (
    AsJson,
    Code,
    Device,
    Workers,
    app,
    console,
    load_classes,
    log,
    names,
    next_command,
    only_with,
    say,
    stoppable,
    with_files,
    word,
)
from shiftbed.errors import ShiftbedError, plural

if TYPE_CHECKING:
    from shiftbed.audit.findings import Audit


@app.command()
def unblind(folder: Annotated[Path, typer.Argument(help="The folder of a blind sweep.")]) -> None:
    """Opens the test numbers of a blind sweep, for good; its ledger notes when."""
    from shiftbed.sweeps.blind import unblind as run

    opened = run(folder)
    say(f"Opened on {opened.date}, after {plural(opened.jobs, 'job')}; the ledger and every audit say so.")
    next_command(f"shiftbed tables {word(folder)}", f"shiftbed audit {word(folder)}")


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    blind: Annotated[bool, typer.Option("--blind", help="Use no recorded accuracy, and open no test number.")] = False,
    table: Annotated[Path | None, typer.Option(help="A published table to check (`tables --format json`).")] = None,
    against: Annotated[Path | None, typer.Option(help="Another sweep, to put its leaderboard beside.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Train linear probes against fine-tuning, too.")] = False,
    weights: Annotated[
        str, typer.Option(help="With --run: initial weights, separated by commas; by default the sweep's, and none.")
    ] = "",
    stand_in: Annotated[
        str | None, typer.Option(help="With --run: the domain that is like the pretraining data.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, help="With --run: draws of the hyperparameters.")] = 1,
    trials: Annotated[int, typer.Option(min=1, help="With --run: repetitions.")] = 1,
    device: Device = None,
    workers: Workers = None,
    code: Code = None,
    brief: Annotated[bool, typer.Option("--brief", help="The verdicts alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Is this comparison honest? One verdict for each source of leakage.

    From a sweep's records alone, in under a minute; with --run, trains what shows where accuracy comes from.
    """
    from shiftbed.audit.findings import Finding
    from shiftbed.audit.pretraining import run_study
    from shiftbed.audit.subject import Subject
    from shiftbed.audit.verbs import audit_sweep
    from shiftbed.report.live import SweepView, work_bar
    from shiftbed.sweeps.blind import is_sealed
    from shiftbed.training.store import LocalStore

    load_classes(code)
    only_with("--run", run, weights=weights, stand_in=stand_in, draws=draws > 1, trials=trials > 1, workers=workers)
    if blind and run:
        raise ShiftbedError("A blind audit uses no accuracy on test domains, which --run measures; leave one out.")

    def study(subject: Subject) -> Finding:
        how = {"draws": draws, "trials": trials, "device": device, "workers": workers}
        with SweepView(log) as view:
            return run_study(subject, names(weights), stand_in, on_change=view, **how)  # type: ignore[arg-type]

    def look() -> "Audit":
        if run:
            return audit_sweep(folder, table=table, against=against, study=study)
        with work_bar(console) as bar:
            return audit_sweep(folder, blind=blind, table=table, against=against, on_progress=bar)

    found = stoppable(look, "the same command")
    if as_json:
        print(json.dumps(found.as_dict()))
        return
    print(found.text(details=not brief))
    if is_sealed(LocalStore(folder)):
        next_command(f"shiftbed unblind {word(folder)}")
    else:
        study_too = f"shiftbed audit {word(folder)} --run{with_files(code)}"
        next_command(*([] if run else [study_too]), f"shiftbed tables {word(folder)}")
