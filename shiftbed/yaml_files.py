"""YAML files that people write: they are read alike everywhere, and what is wrong with one is said in one sentence."""

import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from shiftbed.errors import ShiftbedError


class _SafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's is 8 times as fast
    """YAML of plain values, no objects; but 5e-5 is a number, where YAML asks for 5.0e-5 and has a word else."""


_SafeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def names_in(folder: Traversable) -> list[str]:
    """The names of the YAML files in a folder of the package."""
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read_yaml(path: Path, what: str) -> Any:
    """What stands in a file.

    Args:
        path: The file.
        what: What the file is, as a message about it begins.

    Raises:
        ShiftbedError: It cannot be read, or is not YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), what)
    except OSError as error:
        raise ShiftbedError(f"{what} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ShiftbedError(f"{what} is not a text file in UTF-8; save it as UTF-8.") from error


def parse_yaml(text: str, what: str) -> Any:
    """What a text says, by the same rules.

    Raises:
        ShiftbedError: It is not YAML.
    """
    try:
        return yaml.load(text, _SafeLoader)
    except yaml.YAMLError as error:
        raise ShiftbedError(f"{what} is not YAML: {' '.join(str(error).split())}.") from error
