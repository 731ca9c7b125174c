"""`shiftbed demo`: the whole story on built-in data, with real training."""

from pathlib import Path

from rich.console import Console

from shiftbed.data import load
from shiftbed.data.look import contact_sheet
from shiftbed.report.live import SweepView
from shiftbed.sweeps.plan import Request
from shiftbed.sweeps.verbs import sweep
from shiftbed.tables import as_text, read_tables

ALGORITHMS = ("ERM", "CORAL", "GroupDRO", "IRM", "Mixup")
SWEEPS = (
    Request(("ColoredDigits",), ALGORITHMS, draws=2, trials=2),
    Request(("EmojiStyles",), ALGORITHMS, draws=2, trials=2, test_domains=("noto-v1", "emojione-mono")),
)


def demo(out: Path, workers: int | None, console: Console) -> None:
    """Looks at the data, trains five algorithms fairly, and prints the tables; interrupted, it continues.

    Args:
        out: The folder for everything it makes.
        workers: Processes; one for each core by default.
        console: Where to print.
    """
    console.rule("1. The data")
    for request in SWEEPS:
        for name in request.datasets:
            sheet = contact_sheet(load(name), out / f"{name}.png")
            console.print(f"{name}: {load(name).card.summary}.\n  look at {sheet}", highlight=False)
    console.rule("2. The sweep: the same data, streams and draws for five algorithms")
    with SweepView(console) as view:
        sweep(SWEEPS, out, workers=workers, on_change=view)
    console.rule("3. The tables")
    for table in read_tables(out):
        console.print(as_text(table) + "\n", markup=False, highlight=False, soft_wrap=True)
