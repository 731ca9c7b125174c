"""Applies every listed mutation in turn and checks that its test turns red.

    python scripts/mutants.py [FAMILY ...]

A mutation is an entry of `scripts/mutants/FAMILY.yaml`: the file, a text that stands in it once, what to write instead,
and the test that must fail. It is applied to a copy of the package, so that an interrupted run leaves nothing behind.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parent.parent


def survives(mutant: dict[str, str], copy: Path) -> str | None:
    """Why a mutant counts as surviving, or None if its test turns red."""
    path = copy / mutant["file"]
    source = path.read_text()
    if source.count(mutant["old"]) != 1:
        return f"its text stands {source.count(mutant['old'])} times in {mutant['file']}"
    path.write_text(source.replace(mutant["old"], mutant["new"]))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant["tests"].split()]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    finally:
        path.write_text(source)
    # pytest returns 1 for failed tests; 4 and 5 mean that the test was not found.
    return None if result.returncode == 1 else f"pytest returned {result.returncode}: {result.stdout[-300:]}"


def main(families: list[str]) -> int:
    """Runs the mutants of some families, or of all."""
    files = sorted((REPOSITORY / "scripts" / "mutants").glob("*.yaml"))
    chosen = [file for file in files if not families or file.stem in families]
    survivors = total = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        for part in ("shiftbed", "tests", "scripts", "docs"):  # of which tests read the last two
            shutil.copytree(REPOSITORY / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", copy)
        for file in chosen:
            for mutant in yaml.safe_load(file.read_text()):
                total += 1
                reason = survives(mutant, copy)
                survivors += reason is not None
                verdict = "killed" if reason is None else f"SURVIVES, {reason}"
                print(f"{file.stem}: {mutant['old']!r} -> {mutant['new']!r}: {verdict}", flush=True)
    print(f"{total - survivors} of {total} mutants are killed")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
