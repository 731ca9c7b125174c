"""Commands of benchmarks: what there is, and a paper's experiment beside ours."""

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from shiftbed.cli.shared import (
    KEEPS,
    PRECISIONS,
    AsJson,
    Code,
    Deterministic,
    Device,
    JobsPerDevice,
    Keep,
    Precision,
    Steps,
    Workers,
    app,
    console,
    format_of,
    load_classes,
    log,
    names,
    next_command,
    only_with,
    say,
    show_failures,
    stoppable,
)
from shiftbed.errors import ShiftbedError, plural
from shiftbed.registry import one_of

if TYPE_CHECKING:
    from shiftbed.benchmarks import Benchmark, Outcome
    from shiftbed.benchmarks.spec import Part
    from shiftbed.training.device import Precision as Arithmetic

UNITS = {"sweep": "job", "shift": "measurement", "accuracy": "prediction"}


@app.command()
def benchmarks(
    name: Annotated[str | None, typer.Argument(help="Show all of this benchmark.")] = None, as_json: AsJson = False
) -> None:
    """Shows the benchmarks there are, or all of one.

    A file of your own has the same form: `shiftbed benchmark --file mine.yaml`.
    """
    from shiftbed.benchmarks import benchmark_names, find, job_count
    from shiftbed.report.show import facts_table

    asked = [find(one) for one in ([name] if name else benchmark_names())]
    found = [(one, sum(job_count(part) for part in one.parts)) for one in asked]
    if as_json:
        rows = [{**one.model_dump(exclude={"parts"}), "datasets": one.datasets, "jobs": jobs} for one, jobs in found]
        print(json.dumps(rows))
        return
    if name:
        (one,) = asked
        facts = {
            fact: getattr(one, fact) for fact in ("name", "version", "summary", "paper", "algorithms", "selections")
        }
        facts["notes"] = "\n".join(one.notes)
        console.print(facts_table({fact: value for fact, value in facts.items() if value}))
        console.print(_parts_table(one, {part.name: job_count(part) for part in one.parts}))
        next_command(f"shiftbed benchmark {one.name} --dry-run")
        return
    table = RichTable("benchmark", "what", "jobs")
    table.columns[0].no_wrap = True
    table.columns[2].justify = "right"
    for one, jobs in found:
        unit = "" if one.kind == "sweep" else f" {UNITS[one.kind]}s"
        table.add_row(one.name, f"{one.summary} ({one.paper})" if one.paper else one.summary, f"{jobs:,}{unit}")
    console.print(table)
    next_command("shiftbed benchmarks builtin", "shiftbed benchmark domainbed --datasets PACS --dry-run")


@app.command()
def benchmark(
    name: Annotated[str | None, typer.Argument(help="The benchmark's name (see `shiftbed benchmarks`).")] = None,
    file: Annotated[Path | None, typer.Option(help="A benchmark of your own, instead of a name.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for its records; by default one of its name.")] = None,
    datasets: Annotated[str, typer.Option(help="Only these datasets, separated by commas.")] = "",
    algorithms: Annotated[str, typer.Option(help="Only these algorithms, separated by commas.")] = "",
    part: Annotated[list[str] | None, typer.Option(help="Only the part of this name (repeatable).")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Draws, instead of the paper's.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials, instead of the paper's.")] = None,
    steps: Steps = None,
    selection: Annotated[list[str] | None, typer.Option(help="Only this of its selections (repeatable).")] = None,
    train: Annotated[bool, typer.Option(help="Run what is not done yet; else only show what there is.")] = True,
    device: Device = None,
    precision: Precision = None,
    deterministic: Deterministic = False,
    on: Annotated[str, typer.Option(help="local, ray or slurm: where jobs run.")] = "local",
    keep: Keep = "none",
    code: Code = None,
    workers: Workers = None,
    jobs_per_device: JobsPerDevice = None,
    output: Annotated[str, typer.Option("--format", help="text, markdown, latex, html, csv or json.")] = "text",
    figure: Annotated[Path | None, typer.Option(help="Draw both into a .pdf, .svg or .png file too.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Runs a paper's experiment, or a part of it, beside its published numbers.

    A difference is shown only where both experiments were the same; else it says what differs.
    """
    from shiftbed import benchmarks as room
    from shiftbed import tables
    from shiftbed.sweeps.words import parse_jobs_per_device, train_command

    if (name is None) == (file is None):
        raise ShiftbedError("Name a benchmark or give a --file, one of the two; `shiftbed benchmarks` lists them.")
    output = format_of(output, as_json, tuple(tables.FORMATS))
    sharing = parse_jobs_per_device(jobs_per_device)
    weights = one_of(keep, KEEPS, "choice of weights")
    load_classes(code)
    whole = room.read(file) if file is not None else room.load(str(name))
    asked = room.narrowed(whole, names(datasets), names(algorithms), part or [], draws, trials, steps, selection or [])
    only_with(
        "a benchmark that trains models", whole.kind == "sweep", device=device, precision=precision, workers=workers,
        on=on != "local", keep=keep != "none", jobs_per_device=jobs_per_device,
        deterministic=deterministic,
    )  # fmt: skip
    out = out or Path(f"shiftbed-{whole.name}")
    if dry_run:
        _plan(asked, out, one_of(precision, PRECISIONS, "precision"), device, as_json)
        return

    def run() -> "Outcome":
        from shiftbed.report.live import SweepView, work_bar

        if whole.kind != "sweep":
            with work_bar(console) as bar:
                return room.benchmark(
                    whole, out, datasets=names(datasets), parts=part or [], train=train, on_number=bar
                )
        with SweepView(log) as view:
            return room.benchmark(
                whole,
                out,
                datasets=names(datasets),
                algorithms=names(algorithms),
                parts=part or [],
                draws=draws,
                trials=trials,
                steps=steps,
                selections=selection or [],
                train=train,
                workers=workers,
                jobs_per_device=sharing,
                device=device,
                precision=one_of(precision, PRECISIONS, "precision"),
                deterministic=deterministic,
                on=one_of(on, ("local", "ray", "slurm"), "executor"),
                keep=weights,
                code=code or [],
                on_change=view,
            )

    outcome = stoppable(run, "the same command")
    _show(outcome, out, output, figure)
    failed = outcome.progress.failed if outcome.progress else {}
    jobs = {job.id: job for job in outcome.progress.jobs} if outcome.progress else {}
    show_failures(failed, lambda job_id: train_command(jobs[job_id], out, code or [], weights, deterministic))
    if failed:
        raise ShiftbedError(f"{plural(len(failed), 'job')} failed; the same command tries again.")
    if whole.kind == "sweep" and output == "text":
        next_command(f"shiftbed tables {quote(str(out))}")


def _show(outcome: "Outcome", out: Path, output: str, figure: Path | None) -> None:
    """The tables beside the paper's, which parts have none, and the picture."""
    from shiftbed import tables

    if outcome.progress is None and not outcome.grids:
        raise ShiftbedError(
            f"None of the finished jobs of {out} is of {outcome.benchmark.name} as it is asked for here; without "
            "--no-train they are run, and --dry-run says how many they are."
        )
    print(tables.render(outcome.grids, output))
    if outcome.unshown:
        log.print(
            f"No table of {', '.join(outcome.unshown)}: no job of it is finished, or it tests pairs of domains that "
            "others test alone, which a folder of its own (--part and --out) shows.",
            highlight=False,
            markup=False,
        )
    if figure is not None:
        from shiftbed.report.figures_drawn import beside

        log.print(f"Ours beside the paper's: {beside(outcome.grids, figure)}")


def _plan(asked: "Benchmark", out: Path, precision: "Arithmetic | None", device: str | None, as_json: bool) -> None:
    """What would run, part by part."""
    from shiftbed.benchmarks import done_count, job_count

    counts = {part.name: job_count(part) for part in asked.parts}
    total = sum(counts.values())
    try:
        done = done_count(asked, out, precision, device)
        unknown = ""
    except ShiftbedError as error:  # ids need the data and the initial weights
        done, unknown = 0, f" How many of them are done cannot be said here: {error}"
    if as_json:
        parts = [{**part.model_dump(), "jobs": counts[part.name]} for part in asked.parts]
        print(json.dumps({"benchmark": asked.name, "kind": asked.kind, "jobs": total, "done": done, "parts": parts}))
        return
    console.print(_parts_table(asked, counts))
    for note in asked.notes:
        say(note)
    print(f"{plural(total, UNITS[asked.kind])}, {done} of them done already.{unknown}")


def _parts_table(asked: "Benchmark", counts: dict[str, int]) -> RichTable:
    """One row a part: its dataset, how it is run, and how many jobs that are."""
    table = RichTable("part", "dataset", "how", f"{UNITS[asked.kind]}s")
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    table.columns[3].justify = "right"
    for one in asked.parts:
        table.add_row(one.name, one.dataset, "\n".join(_how(one)), f"{counts[one.name]:,}")
    return table


def _how(part: "Part") -> list[str]:
    """How a part is run, in a few words."""
    fields = part.model_dump()
    words = [fields[key] for key in ("recipe", "protocol") if key in fields]
    if "search" in fields:
        search = fields["search"]
        words.append(f"{search['design']}: {plural(search['draws'], 'draw')}, {plural(search['trials'], 'trial')}")
    return words + [
        plural(len(fields[key]), key[:-1]) for key in ("algorithms", "measures", "predictors") if key in fields
    ]
