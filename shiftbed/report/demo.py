"""`shiftbed demo`: the whole story on built-in data, with real training; interrupted, it continues."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits

from shiftbed.accuracy.kept import ACCURACY
from shiftbed.audit.ledger import read_tables
from shiftbed.audit.verbs import audit_sweep
from shiftbed.data import card
from shiftbed.report.live import SweepView, work_bar
from shiftbed.selection import JobRecords
from shiftbed.shift.kept import SHIFT, shift_points
from shiftbed.shift.measure import measure_shift
from shiftbed.sweeps.plan import Request
from shiftbed.sweeps.pool import Progress
from shiftbed.sweeps.records import finished_jobs
from shiftbed.sweeps.verbs import sweep
from shiftbed.tables import as_text
from shiftbed.training.device import one_thread
from shiftbed.training.files import Result
from shiftbed.training.store import LocalStore, read_json, write_json

ALGORITHMS = ("ERM", "CORAL", "GroupDRO", "IRM", "Mixup")
THREE = ("training-domain-validation", "domain-cross-validation", "oracle")
STYLES = ("noto-v1", "emojione-mono")
SHORT = {"steps": 90, "evaluate_every": 45}
CLASSIFIERS = "classifiers"
LOG = "demo.log"
IMAGES = 150  # held-out ones that predictors are fitted on: enough for a demo
SEVERITIES = (3,)  # of their corruptions, likewise


@dataclass(frozen=True)
class Story:
    """How much of everything the demo does.

    Attributes:
        shifts: By dataset, how its shift is measured.
        digits: The sweep of digits.
        emoji: The sweep of emoji, whose weights are kept for predictions.
        classifiers: Small ones of several networks, whose accuracy all methods predict.
    """

    shifts: Mapping[str, Mapping[str, Any]]
    digits: Request
    emoji: Request
    classifiers: tuple[Request, ...] = ()


FULL = Story(
    shifts={
        "ColoredDigits": {"test": ["-90%"]},
        "RotatedDigits": {"test": ["75"]},
        "EmojiStyles": {"test": ["emojione-mono"], "size": 16},
    },
    digits=Request("ColoredDigits", ALGORITHMS, draws=2, trials=2, selections=THREE),
    emoji=Request(
        "EmojiStyles",
        ALGORITHMS,
        draws=2,
        trials=2,
        test_domains=STYLES,
        fields={"steps": 150, "evaluate_every": 50},
    ),
    classifiers=tuple(
        Request("RotatedDigits", "ERM", draws=4, test_domains=("75",), fields={**SHORT, "network": network})
        for network in ("small", "mlp", "mlp-390")
    ),
)
FAST = Story(
    shifts={name: {**how, "runs": 2} for name, how in FULL.shifts.items()},
    digits=Request(
        "ColoredDigits",
        ALGORITHMS,
        draws=2,
        test_domains=("-90%",),
        selections=THREE,
        fields=SHORT,
    ),
    emoji=Request("EmojiStyles", ALGORITHMS, test_domains=STYLES, fields=SHORT),
)


def demo(out: Path, workers: int | None, console: Console, story: Story = FULL) -> Path:
    """Measures shift, trains five algorithms fairly, audits the comparison, predicts accuracy, and writes the page.

    Args:
        out: The folder for everything it makes.
        workers: Processes; one for each core by default.
        console: Where to print.
        story: How much of everything.

    Returns:
        The page.
    """

    def say(text: str) -> None:
        lines = [fill(line, console.width) if len(line) > console.width else line for line in text.split("\n")]
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    console.rule("1. How far apart are the domains, and in what way?")
    _measure(story, out, console, say)
    console.rule("2. Which algorithm generalizes? Equal data, streams and draws for five")
    _train(story, out, workers, console, say)
    for table in read_tables(out, THREE):
        if table.dataset in story.digits.datasets or table.selection.name == THREE[0]:
            say(as_text(table) + "\n")
    console.rule("3. Is the comparison honest?")
    with work_bar(console) as bar:
        found = audit_sweep(out, on_progress=bar)
    say(found.text(details=False))
    console.rule("4. How well will a model do where nobody has labels?")
    _predict(story, out, console, say)
    if story.classifiers:
        _judge(story, out, workers, console, say)
    console.rule("5. The page")
    from shiftbed.report.page import write_page

    with work_bar(console) as bar:
        return write_page(out, on_progress=bar)


def _measure(story: Story, out: Path, console: Console, say: Callable[[str], None]) -> None:
    """The shift of the built-in datasets, as numbers and on the plane."""
    from shiftbed.shift.pictures import plane

    for name, how in story.shifts.items():
        path = out / SHIFT / f"{name}.json"
        if not path.exists():
            with work_bar(console) as bar, one_thread(), threadpool_limits(1):
                write_json(measure_shift(name, baseline=False, on_progress=bar, **how).as_json(), path)
        diversity, correlation = shift_points(out)[name]
        say(f"{name}: {card(name).summary}.\n  {diversity}\n  {correlation}")
    say(f"The plane: {plane(shift_points(out), out / SHIFT / 'plane.png')}")


def _train(story: Story, out: Path, workers: int | None, console: Console, say: Callable[[str], None]) -> None:
    """Both sweeps, a line for every job when it ends, and all lines in the log."""
    store = LocalStore(out)
    for request, keep in ((story.digits, "none"), (story.emoji, "final")):
        with SweepView(console) as view:
            on_change = _telling(view, store, say)
            sweep(request, out, workers=workers, keep=keep, on_change=on_change)  # type: ignore[arg-type]
    jobs = sorted(finished_jobs(store), key=lambda job: (job.description["dataset"], job_line(job)))
    (out / LOG).write_text("\n".join(map(job_line, jobs)) + "\n", encoding="utf-8")
    say(f"{len(jobs)} models were trained; steps and accuracies of each: {out / LOG}\n")


def _telling(view: SweepView, store: LocalStore, say: Callable[[str], None]) -> Callable[[Progress], None]:
    """Shows the progress, and a line for every job when it ends."""
    said: set[str] = set()

    def show(progress: Progress) -> None:
        view(progress)
        if not said and progress.found:
            said.update(progress.ended)
            say(f"{len(said)} jobs were done already.")
        for job in progress.jobs:
            if job.id in progress.ended and job.id not in said:
                said.add(job.id)
                result = Result.read(store, job.id)
                found: dict[str, Any] = result.parsed(job.id) if result else {"status": "done", "records": []}
                say(job_line(JobRecords(job.describe(), found["status"], found["records"]), brief=True))

    return show


def job_line(job: JobRecords, brief: bool = False) -> str:
    """What a finished job was and reached, in a line; a brief one fits into a terminal of 80 columns."""
    about = job.description
    last: dict[str, Any] = job.rows[-1] if job.rows else {"step": 0, "splits": {}}

    def mean(role: str) -> str:
        names = {split["name"] for split in about["splits"] if split["role"] == role}
        found = [one for name, one in last["splits"].items() if name in names]
        images = sum(one["count"] for one in found)
        right = sum(one["accuracy"] * one["count"] for one in found)
        return f"{100 * right / images:5.1f} %" if images else "     –"

    who, tested = f"{about['dataset']:13} {about['algorithm']:8}", f"{','.join(about['test_domains']):13}"
    reached = f"validation {mean('validation')}  test {mean('test')}  {job.id[:8]}"
    if brief:
        return f"{who} {tested}  {reached}"
    return f"{who} tests {tested} draw {about['draw']} trial {about['trial']}  {last['step']:4} steps  {reached}"


def _predict(story: Story, out: Path, console: Console, say: Callable[[str], None]) -> None:
    """Accuracy on the styles that a model never saw, predicted without labels, beside the truth."""
    from shiftbed.accuracy.sweep import predict_sweep, summary
    from shiftbed.report.figures_drawn import predictions as picture

    with work_bar(console) as bar, one_thread(), threadpool_limits(1):  # small sums: threads would only wait
        rows = predict_sweep(out, severities=SEVERITIES, images=IMAGES, on_progress=bar)
    for line in summary(rows):
        say(line)
    say(f"The picture: {picture(rows, out / ACCURACY / 'predictions.png')}\n")


def _judge(story: Story, out: Path, workers: int | None, console: Console, say: Callable[[str], None]) -> None:
    """How well every method predicts, over small classifiers of several networks: corruptions it was not fitted on."""
    from shiftbed.accuracy.pictures import text_table
    from shiftbed.accuracy.study import judge_methods

    path = out / ACCURACY / "study.json"
    if not path.exists():
        with SweepView(console) as view:
            sweep(list(story.classifiers), out / CLASSIFIERS, workers=workers, keep="final", on_change=view)
        with work_bar(console) as bar, one_thread(), threadpool_limits(1):
            judge_methods(out / CLASSIFIERS, out / ACCURACY, severities=SEVERITIES, on_progress=bar)
    rows = sorted(read_json(path)["mae, groups left out"], key=lambda row: row["all"])
    count = sum(request.draws for request in story.classifiers)
    say(f"Mean absolute error on {count} small classifiers, corruptions left out in turn, in points:")
    say(text_table([{"method": row["method"], "error": row["all"]} for row in rows]) + "\n")
