"""Writes the README's tables of datasets and algorithms, and docs/algorithms.md, from the registries.

Run: python scripts/update_readme.py
"""

import re
from pathlib import Path

from shiftbed.algorithms import ALGORITHMS
from shiftbed.data import DATASETS

README = Path(__file__).parents[1] / "README.md"
ALGORITHM_PAGE = README.parent / "docs" / "algorithms.md"


def dataset_table() -> str:
    """One row a dataset, from its card."""
    rows = ["| dataset | domains | classes | images | what it is |", "| --- | --- | --- | --- | --- |"]
    for name in DATASETS:
        card = DATASETS[name].card
        rows.append(f"| {name} | {len(card.domains)} | {len(card.classes)} | {card.images} | {card.summary} |")
    return "\n".join(rows)


def algorithm_table() -> str:
    """One row an algorithm, from its registration and docstring."""
    rows = ["| algorithm | idea | paper |", "| --- | --- | --- |"]
    for name in ALGORITHMS:
        entry = ALGORITHMS[name]
        rows.append(f"| {name} | {entry.idea} | {entry.paper} |")
    return "\n".join(rows)


def algorithm_page() -> str:
    """Everything that is registered of every algorithm, with its departures from its paper and from DomainBed."""
    parts = [
        "# Algorithms",
        "Made by `python scripts/update_readme.py` from the registry. A wrapper goes around any other: `SWAD(CORAL)`.",
    ]
    for name in ALGORITHMS:
        entry = ALGORITHMS[name]
        parts += [f"## {name}", entry.about]
        facts = [f"- paper: {entry.paper}"]
        if entry.needs:
            facts.append(f"- needs: {', '.join(entry.needs)}")
        facts.append(f"- its own selection: {entry.selection or 'none'}")
        ranges = [f"`{key}` {prior.default!r}, {prior.text}" for key, prior in entry.space().items()]
        facts.append(f"- its hyperparameters (on large images): {'; '.join(ranges) or 'none'}")
        parts.append("\n".join(facts))
    return "\n\n".join(parts) + "\n"


def updated(text: str) -> str:
    """The README with both tables as they are now."""
    for mark, table in (("datasets", dataset_table()), ("algorithms", algorithm_table())):
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    README.write_text(updated(README.read_text()))
    ALGORITHM_PAGE.write_text(algorithm_page())
