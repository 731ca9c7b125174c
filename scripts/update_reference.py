"""Writes docs/reference.md and docs/figures.md from docstrings and the registries.

Run: python scripts/update_reference.py
"""

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import shiftbed
from shiftbed.accuracy.methods import METHODS
from shiftbed.algorithms import ALGORITHMS
from shiftbed.benchmarks import benchmark_names, find
from shiftbed.cli import app
from shiftbed.networks import NETWORKS
from shiftbed.protocols import PROTOCOLS
from shiftbed.report.figures import FIGURES
from shiftbed.selection import SELECTIONS
from shiftbed.shift.measures import MEASURES
from shiftbed.sweeps.designs import DESIGNS
from shiftbed.training.recipes import recipe, recipe_names

DOCS = Path(__file__).parents[1] / "docs"
MADE = "Made by `python scripts/update_reference.py` from docstrings and the registries."


def reference() -> str:
    """The reference: verbs, commands, and everything that has a name."""
    parts = ["# Reference", MADE, "## Verbs of Python", *map(verb, _callables())]
    parts += ["## Commands", commands()]
    recipes = [(name, recipe(name, "")) for name in recipe_names()]
    parts += [
        "## Selections",
        table(("selection", "chooses", ""), [(n, _first(SELECTIONS[n].summary), _mark(n)) for n in SELECTIONS]),
        "## Protocols",
        table(("protocol", "who trains and who is tested"), [(n, _first(_words(PROTOCOLS[n]))) for n in PROTOCOLS]),
        "## Search designs",
        table(("design", "how hyperparameters are searched"), [(n, _first(_words(DESIGNS[n]))) for n in DESIGNS]),
        "## Recipes",
        table(("recipe", "network", "steps", "for"), [(n, one.network, one.steps, one.summary) for n, one in recipes]),
        "## Measures of shift",
        table(("measure", "what it is"), [(n, MEASURES[n].summary) for n in MEASURES]),
        "## Methods that predict accuracy",
        table(
            ("method", "its score", "needs", "paper"),
            [(n, _first(METHODS[n].summary), ", ".join(METHODS[n].needs), METHODS[n].paper) for n in METHODS],
        ),
        "## Benchmarks",
        table(("benchmark", "what", "paper"), [(n, find(n).summary, find(n).paper) for n in benchmark_names()]),
        "## Networks",
        ", ".join(f"`{name}`" for name in NETWORKS) + "; and everything in timm, by its name.",
        "## Algorithms",
        ", ".join(f"[{name}](algorithms.md#{name.lower()})" for name in ALGORITHMS),
    ]
    return "\n\n".join(parts) + "\n"


def figures() -> str:
    """The page of figures: each with what it shows, its options, and how it looks on built-in data."""
    parts = [
        "# Figures",
        MADE,
        "`shiftbed figure NAME DIR --out figure.pdf` draws a figure from a folder of results: as PDF or SVG, which\n"
        "stay sharp at any size and have their fonts in them, or as PNG. Colour-blind readers tell its colours apart.\n"
        'From Python it is `shiftbed.figure(NAME, DIR, "figure.pdf")`. Those below were drawn by\n'
        "`python scripts/docs_pictures.py`, from built-in data.",
    ]
    for name in FIGURES:
        one = FIGURES[name]
        asked = f" Options: {', '.join(f'`--{option}`' for option in one.words)}." if one.words else ""
        parts += [f"## {name}", f"{one.summary} As in {one.paper}.{asked}", f"![{name}](figures/{name}.png)"]
    return "\n\n".join(parts) + "\n"


def verb(name: str) -> str:
    """A verb with its signature and docstring."""
    thing = getattr(shiftbed, name)
    words = inspect.cleandoc(thing.__doc__ or "")
    shown = f"### shiftbed.{name}\n\n{_summary(words)}"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return shown
    listed = _listed(words, "Attributes" if inspect.isclass(thing) else "Args")
    rows = [(f"`{argument}`", text) for argument, text in listed]
    return "\n\n".join([shown, *([table(("argument", "what it is"), rows)] if rows else [])])


def commands() -> str:
    """All commands with their first sentences."""
    from typer.main import get_command

    found = get_command(app).commands  # type: ignore[attr-defined]
    return table(("command", "what it does"), [(f"`shiftbed {n}`", _first(found[n].help or "")) for n in sorted(found)])


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(str, row)).replace("\n", " ") + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def _callables() -> list[str]:
    return sorted(shiftbed.__all__, key=lambda name: (name[0].isupper(), name))


def _summary(words: str) -> str:
    """A docstring up to its first section."""
    return re.split(r"\n\n(?:Args|Attributes|Returns|Raises):", words)[0]


def _listed(words: str, section: str) -> list[tuple[str, str]]:
    """The entries of a section of a Google docstring."""
    found = re.search(rf"\n{section}:\n(.*?)(?:\n\n|\Z)", words, re.DOTALL)
    if not found:
        return []
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", found[1], re.DOTALL | re.MULTILINE)
    return [(name, " ".join(text.split())) for name, text in entries]


def _first(words: str) -> str:
    return " ".join(inspect.cleandoc(words).split("\n\n")[0].split())


def _words(entry: Any) -> str:
    return getattr(entry, "summary", "") or (entry.__doc__ if callable(entry) or inspect.isclass(entry) else "") or ""


def _mark(name: str) -> str:
    return "† looks at the test domain's labels" if SELECTIONS[name].oracle else ""


if __name__ == "__main__":
    (DOCS / "reference.md").write_text(reference())
    (DOCS / "figures.md").write_text(figures())
