"""Writes docs/tables.md: scripts/tables_page.md with what each of its commands prints, from real runs on built-in data.

    python scripts/tables_page.py [FOLDER]

FOLDER keeps the runs: the same folder again continues. Takes some minutes on two cores.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from shiftbed import published

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "scripts" / "tables_page.md"
PAGE = ROOT / "docs" / "tables.md"
RUNS = ("sweep", "shift")  # commands whose output is not shown


def filled(template: str, folder: Path) -> str:
    """The template with the output of its commands below them."""

    def block(match: re.Match[str]) -> str:
        commands = match[1].replace("\\\n", " ").splitlines()
        outputs = [printed(command, folder) for command in commands if command.startswith("shiftbed ")]
        return "".join(["```text\n", match[1], *("\n" + text + "\n" for text in outputs if text), "```"])

    return re.sub(r"```text\n(.*?)```", block, template, flags=re.DOTALL)


def printed(command: str, folder: Path) -> str:
    """What a command prints to 80 columns; nothing of one that runs jobs or measures, which is not done twice."""
    words = shlex.split(command)
    measured = folder / words[-1] / f"{words[2]}{'-matrix' if '--matrix' in words else ''}.json"
    if words[1] == "shift" and measured.exists():
        return ""
    print(command, flush=True)
    here = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=here, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return "" if words[1] in RUNS else done.stdout.strip("\n")


def papers() -> dict[str, list[int]]:
    """By paper its tables, cells, cells that cannot be read in our copy, and those that were reconstructed."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for found in map(published.table, published.tables()):
        unreadable = sum(cell.note.startswith("unreadable") for cell in found)
        numbers = (1, len(found.cells), unreadable, sum(cell.reconstructed for cell in found))
        counts[found.paper] = [one + more for one, more in zip(counts[found.paper], numbers, strict=True)]
    return counts


def times() -> list[str]:
    """Rows of jobs, processor time and memory, as perf/tables.py measures them now."""
    timed = subprocess.run([sys.executable, ROOT / "perf" / "tables.py"], check=True, capture_output=True, text=True)
    wanted = r"([\d,]+) jobs × (\d+) checkpoints.*?([\d.]+) s of processor time.*?peak ([\d.]+) GB"
    return [
        f"| {jobs} × {records} | {busy} | {peak} GB |" for jobs, records, busy, peak in re.findall(wanted, timed.stdout)
    ]


def main() -> None:
    """Makes the runs and writes the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", nargs="?", type=Path, default=Path("shiftbed-tables"))
    folder = arguments.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    page = filled(TEMPLATE.read_text(encoding="utf-8"), folder)
    counts = papers()
    rows = [f"| {paper} | {' | '.join(f'{number:,}' for number in numbers)} |" for paper, numbers in counts.items()]
    page = page.replace("CELLS", f"{sum(numbers[1] for numbers in counts.values()):,}")
    page = page.replace("PAPERS", "\n".join(rows)).replace("SECONDS", "\n".join(times()))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
