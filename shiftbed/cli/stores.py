"""Commands that move and unite the folders of sweeps."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from shiftbed.cli.shared import AsJson, app, console, names, next_command, say, word
from shiftbed.errors import plural

Sweep = Annotated[Path, typer.Argument(help="The sweep's folder.")]


@app.command()
def compact(folder: Sweep, as_json: AsJson = False) -> None:
    """Writes the records of finished jobs into a few files that are quick to read."""
    from shiftbed.sweeps.compaction import compact as run
    from shiftbed.sweeps.compaction import part_names
    from shiftbed.sweeps.records import no_finished_job
    from shiftbed.training.store import LocalStore

    if folder.is_file():
        raise no_finished_job(folder)
    store = LocalStore(folder)
    made = run(store)
    if not part_names(store):
        raise no_finished_job(folder)
    if as_json:
        print(json.dumps(asdict(made)))
        return
    console.print(f"{plural(made.jobs, 'job')} in {plural(made.parts, 'new part')}.", highlight=False)
    next_command(f"shiftbed tables {word(folder)}")


@app.command()
def bundle(
    folder: Sweep,
    out: Annotated[Path | None, typer.Option(help="The file to write; by default the folder's name with .zip.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most MiB it may have.")] = 16,
    metrics: Annotated[
        str, typer.Option(help="Keep only these numbers of every split: accuracy,count make the usual tables.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Writes the finished jobs of a sweep as one file, to carry it elsewhere."""
    from shiftbed.sweeps.bundle import bundle as run

    named = folder.resolve() if folder.name in ("", "..") else folder
    file = out or named.with_name(f"{named.name}.zip")  # whatever follows a dot in it tells it from other sweeps
    jobs = run(folder, file, limit=limit * 2**20, metrics=names(metrics))
    if as_json:
        print(json.dumps({"jobs": jobs, "file": str(file)}))
        return
    console.print(f"{plural(jobs, 'job')} in {file}.", highlight=False, soft_wrap=True)
    next_command(f"shiftbed merge {word(file)} --out DIR")


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Folders of sweeps, or bundles.")],
    out: Annotated[Path, typer.Option(help="The folder that takes them all.")],
    as_json: AsJson = False,
) -> None:
    """Unites sweeps by the ids of their jobs."""
    from shiftbed.sweeps.bundle import merge as run

    made = run(sources, out)
    if as_json:
        print(json.dumps(asdict(made)))
        return
    console.print(f"{plural(made.jobs, 'job')} in {out}, {made.new:,} of them new.", highlight=False, soft_wrap=True)
    for job_id in made.differing[:10]:
        say(f"differs between the sources; one result was kept, always the same: {job_id}")
    next_command(f"shiftbed tables {word(out)}")


@app.command("import-domainbed")
def import_domainbed(
    folder: Annotated[Path, typer.Argument(help="A sweep of DomainBed: folders with results.jsonl.")],
    out: Annotated[Path, typer.Option(help="The sweep's folder to write.")],
    partial: Annotated[bool, typer.Option("--partial", help="Take runs that did not say `done`, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reads a sweep of DomainBed, so that all tables can be made of it."""
    from shiftbed.sweeps.domainbed_format import import_domainbed as run

    made = run(folder, out, partial=partial)
    if as_json:
        print(json.dumps(asdict(made), default=sorted))  # of which some are sets
        return
    for note in made.notes():
        say(note)
    console.print(f"{plural(made.jobs, 'job')} in {out}.", highlight=False, soft_wrap=True)
    next_command(f"shiftbed tables {word(out)} --se population")


@app.command("export-domainbed")
def export_domainbed(
    folder: Sweep,
    out: Annotated[Path, typer.Option(help="The folder for DomainBed's runs.")],
    as_json: AsJson = False,
) -> None:
    """Writes a sweep as DomainBed's scripts read it."""
    from shiftbed.sweeps.domainbed_format import export_domainbed as run

    made = run(folder, out)
    if as_json:
        print(json.dumps(asdict(made)))
        return
    for note in made.notes():
        say(note)
    console.print(f"{plural(made.jobs, 'run')} in {out}.", highlight=False, soft_wrap=True)
    if made.jobs:
        next_command(f"python -m domainbed.scripts.collect_results --input_dir={word(out)}")
