"""What commands show in the terminal, as tables."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from shiftbed.data import Card
from shiftbed.data.roots import prepared_names

if TYPE_CHECKING:
    from shiftbed.selection import JobRecords
    from shiftbed.sweeps.records import Status

Kind = tuple[str, str]  # dataset and algorithm
STATES = ("done", "diverged", "running", "failed", "left")


def facts_table(facts: Mapping[str, Any]) -> Table:
    """What is known of one thing, a row a fact."""
    table = Table("", "", show_header=False)
    table.columns[0].no_wrap, table.columns[1].overflow = True, "fold"
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), escape(_in_words(value)))
    return table


def _in_words(value: Any) -> str:
    """A value as a person writes it: lists by commas, tables as names with values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one if isinstance(one, list) else _in_words(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def card_table(card: Card) -> Table:
    """All that a card says; a domain whose images nobody counted has none on it."""
    counted = {domain: count or "?" for domain, count in card.domains.items()}
    return facts_table(card.model_dump(exclude_defaults=True) | {"domains": counted})


def algorithm_card(name: str) -> Table:
    """All that is registered of an algorithm, and its own hyperparameters."""
    from shiftbed.algorithms import ALGORITHMS  # imports torch, which other tables do without

    entry = ALGORITHMS[name]
    facts = {
        "name": ALGORITHMS.canonical_name(name),
        "what it does": "\n\n".join(" ".join(part.split()) for part in entry.about.split("\n\n")),
        "paper": entry.paper or None,
        "needs": entry.needs or None,
        "own selection": entry.selection,
        "revision": entry.revision,
    }
    table = facts_table(facts)
    table.add_section()
    for key, prior in entry.space().items():
        table.add_row(key, escape(f"{prior.default!r}; {prior.text}"))
    return table


def recipe_card(name: str, dataset: str) -> Table:
    """All that a recipe says of a dataset, or of large images."""
    from shiftbed.training.recipes import recipe

    found = recipe(name, dataset)
    facts = found.model_dump(exclude={"augmentation"}) | {
        "augmentation": found.augmentation.model_dump(mode="json", exclude_defaults=True) or None
    }
    return facts_table({key: value for key, value in facts.items() if value != {} and value != ""})


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
        needs = f"; needs {', '.join(entry.needs)}" if entry.needs else ""
        selection = f"; selected by {entry.selection}" if entry.selection else ""
        table.add_row(name, f"{entry.idea}\n[dim]{entry.paper}{needs}{selection}[/dim]", "\n".join(entry.space()))
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


SPREAD = {
    "balanced_accuracy": "balanced %",
    "worst_class": "worst class %",
    "macro_f1": "macro-F1 %",
    "auroc": "AUROC %",
    "calibration_error": "calibration error %",
}


def spread_table(job: "JobRecords") -> Table:
    """How the errors of a job's last record are spread over the classes, and how far its confidence is off."""
    results = job.rows[-1]["splits"]
    shown = [name for name in SPREAD if all(name in result for result in results.values())]  # AUROC is of two classes
    table = Table("split", *(SPREAD[name] for name in shown), title="How the errors are spread")
    for split in job.description["splits"]:
        if result := results.get(split["name"]):
            table.add_row(escape(split["name"]), *(f"{100 * result[name]:.1f}" for name in shown))
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
    from shiftbed.sweeps.plan import of_several_sources

    several = of_several_sources(status.plan.values())

    def name(row: dict[str, Any]) -> str:
        source = f" ({row['revision']})" if "revision" in row and row["algorithm"] in several else ""
        return f"{row['algorithm']}{source}"

    return state_table(((row["dataset"], name(row)), status.states[id]) for id, row in status.plan.items())
