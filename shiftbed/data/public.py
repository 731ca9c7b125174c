"""The public datasets of image files: every YAML file in `cards/` is one.

A file has the fields of a `Card`, and beside them `layout`, the name of a function in `layouts.py`, and its `options`.
A dataset of `domain/class/image` files is added with one such file and nothing else.
"""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from shiftbed.data.dataset import DATASETS, Card, DatasetEntry
from shiftbed.data.examples import Listing
from shiftbed.data.layouts import LAYOUTS
from shiftbed.yaml_files import names_in, parse_yaml

CARDS = files("shiftbed.data") / "cards"


def read_descriptions() -> list[dict[str, Any]]:
    """The content of every card file, with lists and numbered domains written out."""
    texts = {name: (CARDS / f"{name}.yaml").read_text(encoding="utf-8") for name in names_in(CARDS)}
    return [_written_out(parse_yaml(text, f"The card {name}")) for name, text in texts.items()]


def _written_out(description: dict[str, Any]) -> dict[str, Any]:
    """Replaces a class list's file name by the list, and a cluster's size by names and unknown counts."""
    if isinstance(description["classes"], str):
        description["classes"] = (CARDS / description["classes"]).read_text(encoding="utf-8").split()
    clusters = description.get("clusters", {})
    for cluster, members in clusters.items():
        if isinstance(members, int):
            clusters[cluster] = [f"{cluster}-{number:02d}" for number in range(1, members + 1)]
            description["domains"] |= dict.fromkeys(clusters[cluster], 0)
    return description


def make_entry(description: dict[str, Any]) -> DatasetEntry:
    """A dataset from what its card file says."""
    fields = {name: value for name, value in description.items() if name not in ("layout", "options")}
    card = Card(**fields)
    return DatasetEntry(card, read=_reader(card, description["layout"], description.get("options", {})))


def _reader(card: Card, layout: str, options: dict[str, Any]) -> Callable[[Path], Listing]:
    def read(raw: Path) -> Listing:
        return LAYOUTS[layout](raw, card, **options)

    return read


for _description in read_descriptions():
    DATASETS.add(_description["name"], make_entry(_description))
