"""Plants every leak with a script that knows nothing of shiftbed, and writes what the audit says into docs/audit.md.

Run: python scripts/planted_leaks.py
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from shiftbed.audit.findings import Audit  # noqa: E402
from shiftbed.audit.verbs import audit_sweep  # noqa: E402
from shiftbed.data.prepare import prepare  # noqa: E402
from shiftbed.tables import read_tables, render  # noqa: E402
from tests.audit.made_sweeps import write_pictures, write_sweep  # noqa: E402

PAGE = ROOT / "docs" / "audit.md"
BEGIN, END = "<!-- made by scripts/planted_leaks.py -->\n", "<!-- until here -->"
PLANTED = {
    "reencoded": "test images, resized and saved as JPEG, in a training folder",
    "labels": "test images listed under a training domain in a manifest",
    "augmented": "validation images augmented",
    "validation": "held-out images of the test domain used for validation",
    "trained": "images of the test domain trained on",
    "narrowed": "the learning rate drawn from a twentieth of its range",
    "fixed": "one algorithm's hyperparameter set to a value",
    "thinned": "of one algorithm, only the draw that is best on the test domain kept",
    "winner": "a published table with the records that are best on the test domain",
}
DATA = ("reencoded", "labels")
SEEDS = 10


def plant(kind: str, path: Path) -> None:
    """Runs the foreign script."""
    subprocess.run([sys.executable, str(ROOT / "tests" / "audit" / "plant_leaks.py"), kind, str(path)], check=True)


def audited(kind: str, clean: Path, work: Path) -> Audit:
    """What the audit says of a sweep with one leak."""
    sweep, table = work / "sweep", None
    if kind in DATA:
        folder, manifest = write_pictures(work)
        path = folder if kind == "reencoded" else manifest
        plant(kind, path)
        prepare(str(path))
        write_sweep(sweep, dataset=path.stem, algorithms=("ERM",), draws=1, trials=1)
    else:
        shutil.copytree(clean, sweep)
        if kind == "winner":
            table = work / "table.json"
            table.write_text(render(read_tables(sweep, ["training-domain-validation"]), "json"))
        plant(kind, table or sweep)
    return audit_sweep(sweep, table=table)


def main() -> None:
    """Makes the table and puts it into the page."""
    rows = ["| planted | alarm | what the audit says |", "| --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        os.environ["SHIFTBED_DATA"] = str(work / "root")
        clean = work / "clean"
        write_sweep(clean, draws=8, trials=1, test_domains=("-90%", "+90%"))
        raised = len(audit_sweep(clean).alarms)
        rows.append(f"| nothing | {raised or 'none'} | |")
        for kind, words in PLANTED.items():
            place = work / kind
            place.mkdir()
            alarms = audited(kind, clean, place).alarms
            sources = ", ".join(one.source for one in alarms) or "none"
            said = " ".join(re.sub(r"\s+", " ", one.sentence) for one in alarms)
            rows.append(f"| {words} | {sources} | {said.replace('|', ' ')} |")
        alarms = 0
        for seed in range(SEEDS):
            folder = work / f"seed-{seed}"
            write_sweep(folder, algorithms=("ERM", "Mixup"), draws=4, trials=1, test_domains=("-90%",), seed=seed)
            alarms += len(audit_sweep(folder).alarms)
    table = "\n".join([*rows, "", f"Alarms of {SEEDS} clean sweeps with made records and other seeds: {alarms}.", ""])
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
