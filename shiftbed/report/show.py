"""What commands show in the terminal, as tables."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from shiftbed.data import Card
from shiftbed.data.roots import prepared_names

if TYPE_CHECKING:
    from shiftbed.selection import JobRecords
    from shiftbed.sweeps.records import Status

Kind = tuple[str, str]  # dataset and algorithm
STATES = ("done", "diverged", "running", "failed", "left")


def card_table(card: Card) -> Table:
    """All that a card says."""
    table = Table(show_header=False)
    for field, value in card.model_dump(exclude_defaults=True).items():
        shown = [f"{key} {count:,}" for key, count in value.items()] if field == "domains" else value
        listed = ", ".join(map(str, shown)) if isinstance(shown, list | tuple) else str(shown)
        table.add_row(field.replace("_", " "), escape(listed))
    return table


def dataset_table(cards: Iterable[Card]) -> Table:
    """One row a dataset: whether it can be used at once, and whether its builder ever ran on the real files."""
    table = Table("dataset", "domains", "classes", "images", "here", "builder ran on")
    table.columns[0].overflow = "fold"
    for column in table.columns[1:4]:
        column.justify = "right"
    for card in cards:
        here = "built in" if card.ran_on == "built in" else "packed" if card.name in prepared_names() else "–"
        numbers = (str(len(card.domains)), str(len(card.classes)), card.images)
        table.add_row(card.name, *numbers, here, f"{card.ran_on} files" if card.ran_on != "built in" else "–")
    return table


def algorithm_table() -> Table:
    """One row an algorithm: its idea, its paper, what it needs, its own selection and hyperparameters."""
    from shiftbed.algorithms import ALGORITHMS  # imports torch, which other tables do without

    table = Table("algorithm", "idea", "its hyperparameters")
    for name in ALGORITHMS:
        entry = ALGORITHMS[name]
        idea = (entry.cls.__doc__ or "").strip().split("\n")[0]
        needs = f"; needs {', '.join(entry.needs)}" if entry.needs else ""
        selection = f"; selected by {entry.selection}" if entry.selection else ""
        table.add_row(name, f"{idea}\n[dim]{entry.paper}{needs}{selection}[/dim]", "\n".join(entry.space()))
    return table


def job_table(job: "JobRecords") -> Table:
    """The accuracy of a job's last record on every split."""
    last = job.rows[-1]
    title = f"{job.description['algorithm']} at step {last['step']}"
    if job.description["task"].get("adapt"):
        title += f"\nadaptation: {job.description['task']['adapt']:g} of the test domains seen unlabelled"
    table = Table("split", "role", "accuracy %", "loss", "images", title=title)
    table.caption = "± standard error over the images of a split"
    for split in job.description["splits"]:
        if split["name"] in last["splits"]:
            result = last["splits"][split["name"]]
            accuracy, count = result["accuracy"], result["count"]
            error = (
                accuracy * (1 - accuracy) / count
            ) ** 0.5  # of these images; what another trial has differs by more
            numbers = (f"{100 * accuracy:.1f} ±{100 * error:.1f}", f"{result['loss']:.3f}", str(count))
            table.add_row(escape(split["name"]), split["role"], *numbers)
    return table


def state_table(jobs: Iterable[tuple[Kind, str]], most: int | None = None) -> Table:
    """How many jobs are done, running, failed or left, by dataset and algorithm.

    Args:
        jobs: The kind (dataset and algorithm) and the state of every job.
        most: How many rows there may be: those of kinds at work come first, and all others share one.
    """
    counts: dict[Kind, Counter[str]] = defaultdict(Counter)
    for kind, state in jobs:
        counts[kind][state] += 1
    shown = sorted(counts)
    if most is not None and len(shown) > most:
        at_work = sorted(shown, key=lambda kind: not (counts[kind]["running"] or counts[kind]["failed"]))
        shown = sorted(at_work[: max(1, most - 1)])
    table = Table("dataset", "algorithm", *STATES)
    for column in table.columns[2:]:
        column.justify = "right"

    def add(dataset: str, algorithm: str, kinds: Iterable[Kind]) -> None:
        total = sum((counts[kind] for kind in kinds), Counter[str]())
        table.add_row(dataset, algorithm, *(str(total[state]) for state in STATES))

    for kind in shown:
        add(*kind, [kind])
    if len(shown) < len(counts):
        add(f"{len(counts) - len(shown)} others", "", counts.keys() - set(shown))
    if len(counts) > 1:
        table.add_section()
        add("all", "", counts)
    return table


def status_table(status: "Status") -> Table:
    """Where the jobs of a sweep's folder stand."""
    return state_table(((row["dataset"], row["algorithm"]), status.states[id]) for id, row in status.plan.items())
