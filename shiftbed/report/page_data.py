"""What the page shows of the data: contact sheets whose labels are text, as small pictures in the page itself."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from shiftbed.data import Domain, card_if_known, load
from shiftbed.data.look import thumbnail
from shiftbed.errors import ShiftbedError

MOST_DOMAINS, MOST_CLASSES = 12, 10
SIDE, GAP = 64, 6  # pixels of a picture and between two
QUALITY = 82
PLURALS = {"domain": "domains", "class": "classes"}


def dataset_entry(name: str, about: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a dataset: its card and its contact sheet, as far as they are known on this machine.

    Args:
        name: The dataset's name.
        about: The description of one of its jobs, for what nobody here has a card of.
    """
    known = card_if_known(name)
    domains = known.domains if known else _counts(about)
    entry: dict[str, Any] = {"name": name, "version": about["version"], "card": known, "domains": domains, "rows": []}
    try:
        opened = load(name)
    except ShiftbedError as reason:
        return {**entry, "why_no_pictures": str(reason)}
    shown = min(len(opened.card.classes), MOST_CLASSES)
    try:
        rows = [(one.name, strip(one, shown)) for one in opened.domains[:MOST_DOMAINS]]
    except ShiftbedError as reason:
        return {**entry, "why_no_pictures": str(reason)}
    left = ((len(opened.domains) - len(rows), "domain"), (len(opened.card.classes) - shown, "class"))
    more = [f"{n} more {noun if n == 1 else PLURALS[noun]}" for n, noun in left if n]
    return {**entry, "rows": rows, "classes": opened.card.classes[:shown], "more": more, "why_no_pictures": ""}


def _counts(about: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for split in about["splits"]:
        counts[split["domain"]] = counts.get(split["domain"], 0) + split.get("count", 0)
    return counts


def strip(domain: Domain, classes: int) -> str:
    """One example of each class in a row, as an address that holds the picture; what a domain lacks is transparent."""
    sheet = np.zeros((SIDE, classes * (SIDE + GAP) - GAP, 4), np.uint8)
    labels = np.asarray(domain.labels)
    for column in range(classes):
        examples = np.flatnonzero(labels == column)
        if len(examples):
            small = Image.fromarray(thumbnail(domain, int(examples[len(examples) // 2])))
            small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            pixels = np.asarray(small)
            top, left = (SIDE - pixels.shape[0]) // 2, column * (SIDE + GAP) + (SIDE - pixels.shape[1]) // 2
            sheet[top : top + pixels.shape[0], left : left + pixels.shape[1], :3] = pixels
            sheet[top : top + pixels.shape[0], left : left + pixels.shape[1], 3] = 255
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "WEBP", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
