"""The command line: parses, calls, prints. Heavy imports wait until a command needs them."""

import io
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from shiftbed import __version__
from shiftbed.errors import HparamError, ShiftbedError, sentence

if TYPE_CHECKING:
    from shiftbed.hparams import Value
    from shiftbed.sweeps.pool import Progress

app = typer.Typer(
    help="A testbed for machine learning under distribution shift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = Console()
STOPPED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Code = Annotated[list[Path] | None, typer.Option("--code", help="A file that registers your algorithms (repeatable).")]
Recipe = Annotated[str, typer.Option(help="How each model is trained (see `shiftbed recipes`).")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates, instead of the recipe's.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="A hyperparameter by hand, name=value (repeatable).")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; a GPU if there is one.")]
Precision = Annotated[str | None, typer.Option(help="float32, tf32 or bf16; by default bf16 on a GPU.")]
PRECISIONS = ("float32", "tf32", "bf16")
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one for each core by default.")]


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


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
) -> None:
    """A testbed for machine learning under distribution shift."""
    if version:
        print(__version__)
        raise typer.Exit


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def next_command(*commands: str) -> None:
    """Ends a command by naming the next useful ones."""
    console.print("Next: " + "\n      ".join(commands), markup=False, highlight=False, soft_wrap=True)


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
def datasets(
    name: Annotated[str | None, typer.Argument(help="Show this dataset's card.")] = None, as_json: AsJson = False
) -> None:
    """The datasets there are, or the card of one."""
    from shiftbed.data import DATASETS, card
    from shiftbed.data.roots import prepared_names
    from shiftbed.report import show

    names = [name] if name else sorted({*DATASETS, *prepared_names()})
    cards = [card(one) for one in names]
    if as_json:
        print(json.dumps([one.model_dump() for one in cards]))
    elif name:
        console.print(show.card_table(cards[0]))
        next_command(f"shiftbed look {cards[0].name}")
    else:
        console.print(show.dataset_table(cards))
        next_command(f"shiftbed datasets {cards[0].name}", f"shiftbed look {cards[0].name}")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A known dataset, or a folder domain/class/image, or a manifest.")],
    source: Annotated[Path | None, typer.Option("--from", help="Where its archive or folder already is.")] = None,
    rename: Annotated[str | None, typer.Option("--name", help="The name of your own dataset.")] = None,
    size: Annotated[int | None, typer.Option(min=2, help="Reduce images to this short side.")] = None,
    size_class: Annotated[str | None, typer.Option(help="small or large: which hyperparameters apply.")] = None,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Go on without unreadable images.")] = False,
) -> None:
    """Checks and packs a dataset, known or your own.

    Afterwards every command finds it by name.
    """
    from shiftbed.data.prepare import prepare as run_prepare
    from shiftbed.report.live import work_bar

    def run() -> Any:
        with work_bar(console) as on_progress, warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", UserWarning)
            made = run_prepare(
                name,
                source,
                rename=rename,
                short_side=size,
                size_class=size_class,
                skip_corrupt=skip_corrupt,
                on_progress=on_progress,
            )
        for note in notes:
            console.print(str(note.message), highlight=False, markup=False, soft_wrap=True)
        return made

    made = stoppable(run, "the same command")
    counts = ", ".join(f"{domain} {count:,}" for domain, count in made.card.domains.items())
    console.print(f"{made.card.name}: {made.card.summary} ({counts}).", highlight=False, markup=False)
    if made.card.ran_on == "own":
        console.print(f"Hyperparameters for {made.card.size_class} images apply; --size-class changes that.")
    for bad in made.left_out[:10]:
        console.print(f"left out: {bad.path}: {bad.why}", highlight=False, markup=False, soft_wrap=True)
    if made.duplicates:
        example = " = ".join(str(one.path) for one in made.duplicates[0])
        words = f"{len(made.duplicates)} images lie in more than one domain, for example {example}."
        console.print(words, highlight=False, markup=False, soft_wrap=True)
    domain = next(iter(made.card.domains))
    next_command(f"shiftbed look {made.card.name}", f"shiftbed train {made.card.name} ERM --test {domain}")


@app.command()
def algorithms(code: Code = None, as_json: AsJson = False) -> None:
    """The algorithms there are, with their own hyperparameters."""
    from shiftbed.algorithms import ALGORITHMS, load_code
    from shiftbed.report import show

    for path in code or []:
        load_code(path)
    if as_json:
        rows = [
            {"name": name, "paper": ALGORITHMS[name].paper, "hparams": list(ALGORITHMS[name].space())}
            for name in ALGORITHMS
        ]
        print(json.dumps(rows))
        return
    console.print(show.algorithm_table())
    next_command("shiftbed train EmojiStyles ERM --test noto")


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """The recipes there are: how models are trained."""
    from shiftbed.training.recipes import recipe, recipe_names

    if as_json:
        print(json.dumps([recipe(name, "").model_dump() for name in recipe_names()]))
        return
    table = RichTable("recipe", "network", "steps", "what it is for")
    for name in recipe_names():
        one = recipe(name, "")
        table.add_row(name, one.network, str(one.steps), one.summary)
    console.print(table)
    next_command(f"shiftbed train EmojiStyles ERM --test noto --recipe {recipe_names()[0]}")


@app.command()
def look(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    out: Annotated[Path | None, typer.Option(help="The PNG file to write.")] = None,
) -> None:
    """A contact sheet of a dataset: domains by classes, as a PNG."""
    from shiftbed.data import card, load
    from shiftbed.data.look import contact_sheet

    name = card(dataset).name
    print(contact_sheet(load(name), out or Path(f"{name}.png")))
    next_command(f"shiftbed train {name} ERM --test '{next(iter(card(name).domains))}'")


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
    device: Device = None,
    precision: Precision = None,
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
            device=device,
            precision=one_of(precision, PRECISIONS, "precision"),
            deterministic=deterministic,
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
    next_command(f"shiftbed sweep {job.description['dataset']} --algorithms {more}{files} --out my-sweep")


@app.command()
def sweep(
    datasets: Annotated[str, typer.Argument(help="Datasets, separated by commas.")],
    algorithms: Annotated[list[str], typer.Option(help="Algorithms, separated by commas.")],
    out: Annotated[Path, typer.Option(help="The sweep's folder; the same folder again continues it.")],
    draws: Annotated[int, typer.Option(min=1, help="Draws of the hyperparameters; the first is the defaults.")] = 1,
    trials: Annotated[int, typer.Option(min=1, help="Repetitions with other splits, weights and draws.")] = 1,
    test: Annotated[str, typer.Option(help="Test domains, separated by commas; all by default.")] = "",
    protocol: Annotated[str, typer.Option(help="Who trains and who is tested.")] = "leave-one-domain-out",
    recipe: Recipe = "quick",
    steps: Steps = None,
    overrides: Overrides = None,
    device: Device = None,
    precision: Precision = None,
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
                code=code or [],
                on_change=view,
            )

    progress = stoppable(run, "the same command")
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
    selection: Annotated[list[str] | None, typer.Option(help="A selection rule (repeatable); all by default.")] = None,
    output: Annotated[str, typer.Option("--format", help="text, csv or json.")] = "text",
) -> None:
    """Prints the tables of a sweep.

    With standard errors and n; oracle numbers are marked.
    """
    from shiftbed import tables as make

    found = make.read_tables(folder, selection or [])
    if output == "csv":
        print(make.as_csv(found), end="")
    elif output == "json":
        print(json.dumps(make.as_rows(found), indent=1))
    elif output == "text":
        print("\n\n".join(make.as_text(table) for table in found))
    else:
        raise ShiftbedError(f"There is no format '{output}'; there are text, csv and json.")


@app.command()
def doctor() -> None:
    """Shows what this installation has: versions, devices, data root and disk."""
    from shiftbed.report.doctor import examine

    table = RichTable(show_header=False)
    for what, found in examine():
        table.add_row(what, found)
    console.print(table)
    next_command("shiftbed demo")


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def one_of(value: str | None, allowed: tuple[str, ...], noun: str) -> Any:
    """A value that must be one of a few words."""
    if value is not None and value not in allowed:
        raise ShiftbedError(f"There is no {noun} '{value}'; there are {', '.join(allowed)}.")
    return value


def plural(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Says yes after Ctrl-C or a terminate signal, so that a job can save itself first."""
    stopped = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stopped.append(True)) for number in signals]
    try:
        yield lambda: bool(stopped)
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def stoppable(action: Callable[[], Any], again: str) -> Any:
    """Runs something that Ctrl-C may interrupt and that can be continued."""
    try:
        return action()
    except KeyboardInterrupt:
        console.print(f"\nStopped and saved: nothing is lost. Run {again} again to continue.")
        raise typer.Exit(STOPPED) from None
