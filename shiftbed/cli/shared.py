"""What all commands share: the application, its options, and how they end."""

import json
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from shiftbed.cli.overview import Commands
from shiftbed.errors import HparamError, ShiftbedError, plural
from shiftbed.registry import one_of

if TYPE_CHECKING:
    from shiftbed.hparams import Value

app = typer.Typer(
    cls=Commands,
    help="A testbed for machine learning under distribution shift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)
console = Console()
log = Console(stderr=True)  # for the progress of a sweep, so that the answer alone is in a file or a pipe
STOPPED = 130
STOP_SECONDS = 4.0  # a job may take to save itself

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
SkipCorrupt = Annotated[bool, typer.Option("--skip-corrupt", help="Go on without unreadable images.")]
Code = Annotated[list[Path] | None, typer.Option("--code", help="A file that registers your algorithms (repeatable).")]
Recipe = Annotated[str, typer.Option(help="How each model is trained (see `shiftbed recipes`), or a file of yours.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates, instead of the recipe's.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="A hyperparameter by hand, name=value (repeatable).")
]
Adapt = Annotated[float, typer.Option(help="Give this share of every test domain to the algorithm, unlabelled.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; a GPU if there is one.")]
Precision = Annotated[str | None, typer.Option(help="float32, tf32 or bf16; by default bf16 on a GPU.")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="On GPUs: equal to the bit, slower.")]
PRECISIONS = ("float32", "tf32", "bf16")
Keep = Annotated[str, typer.Option(help="Which weights to keep of each job: none, final, best or all; or logits.")]
KEEPS = ("none", "final", "best", "all", "logits")
SHOWN_FAILURES = 10
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one for each core by default.")]
JobsPerDevice = Annotated[
    str | None, typer.Option(help="Jobs that share a GPU; auto: as many as the first leave room for.")
]


def next_command(*commands: str) -> None:
    """Ends a command by naming the next useful ones."""
    console.print("Next: " + "\n      ".join(commands), markup=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints prose, with lines that end between words where the terminal does (in a file, after 80 letters)."""
    whole_words = {"break_long_words": False, "break_on_hyphens": False}  # a path is copied from the screen
    lines = [textwrap.fill(line, console.width, **whole_words) for line in text.split("\n")]  # type: ignore[arg-type]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def word(value: object) -> str:
    """A value as a shell takes it for one word."""
    return shlex.quote(str(value))


def with_files(code: list[Path] | None) -> str:
    """The files of pasted classes, as the next command takes them."""
    return "".join(f" --code {word(path)}" for path in code or [])


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def show_failures(failed: Mapping[str, str], alone: Callable[[str], str | None] = lambda job_id: None) -> None:
    """Says why jobs failed, once for all that failed alike, and how the first of them can be trained alone."""
    reasons: dict[str, list[str]] = {}
    for job_id, why in failed.items():
        reasons.setdefault(why.replace(job_id, "JOB"), []).append(job_id)  # paths hold the id of their job
    for ids in list(reasons.values())[:SHOWN_FAILURES]:
        first, count = ids[0], len(ids)
        same = f"{count:,} jobs failed for this reason (`--json` lists them), first " if count > 1 else "failed: "
        say(f"{same}{first}: {failed[first]}")
        if command := alone(first):
            console.print(f"  alone: {command}", markup=False, highlight=False, soft_wrap=True)
    if len(reasons) > SHOWN_FAILURES:
        more = sum(len(ids) for ids in list(reasons.values())[SHOWN_FAILURES:])
        console.print(f"and {plural(more, 'job')} more; `--json` lists all.", highlight=False)


def only_with(what: str, is_asked: bool, **options: Any) -> None:
    """Refuses options that would do nothing, since what they belong to is not asked for.

    Args:
        what: What they belong to, as a person asks for it.
        is_asked: Whether it is asked for.
        options: By name, what was given; empty where nothing was.

    Raises:
        ShiftbedError: One was given in vain.
    """
    for name, value in options.items():
        if value and not is_asked:
            option = f"--{name.replace('_', '-')}"
            raise ShiftbedError(f"{option} goes with {what}, which is not asked for; ask for it or leave {option} out.")


def format_of(asked: str, as_json: bool, known: Iterable[str]) -> str:
    """The format of tables, which --json names too.

    Raises:
        ShiftbedError: There is no such format, or --json stands beside another one.
    """
    output = str(one_of(asked, known, "format"))
    if as_json and output not in ("text", "json"):
        raise ShiftbedError(f"--json and --format {output} are two formats; leave one of them out.")
    return "json" if as_json else output


def parse_overrides(pairs: list[str] | None) -> "dict[str, Value]":
    """Hyperparameters from `name=value`; values are numbers, true, false or text."""
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise HparamError(f"--set takes name=value, not '{pair}'.")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def load_classes(code: list[Path] | None) -> None:
    """Registers the algorithms of some files."""
    from shiftbed.algorithms import load_code

    for path in code or []:
        load_code(path)


class NotSavedError(KeyboardInterrupt):
    """A job was stopped and did not save itself in time."""


class StartsOverError(KeyboardInterrupt):
    """A job was stopped whose class keeps what no checkpoint holds."""


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Says yes after Ctrl-C or a terminate signal, so that a job can save itself first.

    Raises:
        NotSavedError: It did not in time: a long evaluation or compilation is left for the last checkpoint.
    """
    stopped: list[bool] = []

    def leave(*_: Any) -> None:
        raise NotSavedError

    def stop(*_: Any) -> None:
        if not stopped:
            signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)
        stopped.append(True)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, leave)
    try:
        yield lambda: bool(stopped)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def stoppable(action: Callable[[], Any], again: str) -> Any:
    """Runs something that Ctrl-C may interrupt and that can be continued."""
    try:
        return action()
    except KeyboardInterrupt as why:
        late = isinstance(why, NotSavedError)
        if isinstance(why, StartsOverError):
            console.print()
            say(f"Stopped. No checkpoint holds all that this class keeps: {again} again starts over, to the same end.")
            raise typer.Exit(STOPPED) from None
        how = "before it could save: the last checkpoint stays" if late else "and saved: nothing is lost"
        console.print(f"\nStopped {how}. Run {again} again to continue.")
        if late:  # an interpreter with torch in it takes another second or two to end, and nothing is left to write
            sys.stdout.flush()
            os._exit(STOPPED)
        raise typer.Exit(STOPPED) from None
