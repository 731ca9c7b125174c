"""What an installation has, for people who wonder why something does not work."""

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator

import torch

from shiftbed import __version__
from shiftbed.data.roots import VARIABLE, data_root, prepared_names
from shiftbed.sweeps.pool import default_workers

PACKAGES = ("torch", "numpy", "scikit-learn", "duckdb", "pydantic")


def examine() -> Iterator[tuple[str, str]]:
    """What there is, in words."""
    yield "shiftbed", __version__
    yield "python", platform.python_version()
    for package in PACKAGES:
        yield package, importlib.metadata.version(package)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield "GPUs", ", ".join(names) or "none"
    yield "workers", f"{default_workers()} by default, one for each core"
    root = data_root()
    yield "data root", f"{root} (set {VARIABLE} to change it){'' if root.exists() else ', not made yet'}"
    yield "prepared here", ", ".join(prepared_names()) or "nothing yet"
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    yield "free disk", f"{shutil.disk_usage(place).free / 1e9:,.0f} GB at {place}"
