"""The data root: where prepared datasets live on this machine."""

import os
from pathlib import Path

VARIABLE = "SHIFTBED_DATA"
UNFINISHED = ".partial"  # ends the names of folders that are being written


def data_root() -> Path:
    """The folder that `SHIFTBED_DATA` names, or one in the user's home."""
    return Path(os.environ.get(VARIABLE) or Path.home() / "shiftbed-data").expanduser()


def pack_folder(name: str) -> Path:
    """Where a dataset's pack is, or will be."""
    return data_root() / "packs" / name


def prepared_names() -> list[str]:
    """The datasets that have a whole pack here."""
    folder = data_root() / "packs"
    return sorted(path.parent.name for path in folder.glob("*/pack.json") if path.parent.suffix != UNFINISHED)
