"""The command that writes the page."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from shiftbed.cli.notes import best_command
from shiftbed.cli.shared import AsJson, app, console, next_command, say, stoppable, word


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder.")],
    out: Annotated[Path | None, typer.Option(help="The file; report.html in the folder by default.")] = None,
    selection: Annotated[list[str] | None, typer.Option(help="A selection rule to show (repeatable).")] = None,
    as_json: AsJson = False,
) -> None:
    """Writes one HTML page of all that is known of a sweep.

    It opens from disk without a network: send it to a colleague.
    """
    from shiftbed.report.live import work_bar
    from shiftbed.report.page import write_page

    started = time.monotonic()

    def work() -> Path:
        with work_bar(console) as bar:
            return write_page(folder, out, selections=selection or [], on_progress=bar)

    path = stoppable(work, "the same command")
    size, seconds = path.stat().st_size, time.monotonic() - started
    if as_json:
        print(json.dumps({"page": str(path), "bytes": size, "seconds": round(seconds, 1)}))
        return
    say(f"The page: {path} ({size / 1e6:.1f} MB, {seconds:.0f} s)")
    next_command(f"open {word(path)} in a browser", best_command(folder, " --out model"))
