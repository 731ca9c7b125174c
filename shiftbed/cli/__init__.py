"""The command line: parses, calls, prints. Heavy imports wait until a command needs them."""

import io
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from shiftbed import __version__
from shiftbed.cli import accuracy, audit, benchmarks, data, figures, report, results, shift, stores, sweeps, training
from shiftbed.cli.shared import app, console
from shiftbed.errors import sentence

__all__ = [
    "accuracy",
    "app",
    "audit",
    "benchmarks",
    "console",
    "data",
    "figures",
    "main",
    "report",
    "results",
    "shift",
    "stores",
    "sweeps",
    "training",
]


def main() -> None:
    """Runs a command; an error of the user's making is one sentence, not a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ± still gets the numbers
    try:
        app()
    except Exception as error:
        if debug:
            raise
        print(f"shiftbed: {sentence(error)}", file=sys.stderr)
        sys.exit(1)


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
) -> None:
    """A testbed for machine learning under distribution shift."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
