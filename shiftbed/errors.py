"""Errors that speak to the person: each message says what is wrong, where, and what to do."""

import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class ShiftbedError(Exception):
    """Base of every error a user can cause or meet; its message is one clear sentence."""


def plural(count: int, noun: str) -> str:
    """A number of things, for a sentence."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sentence(error: Exception) -> str:
    """An error as one sentence; one that is nobody's design says where it happened."""
    if isinstance(error, ShiftbedError):
        return str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be read or written: {error.strerror}."
    frames = traceback.extract_tb(error.__traceback__)
    # torch raises deep inside itself; the line to mend is the last that is not of an installed package
    frame = next((one for one in reversed(frames) if not one.filename.startswith((*INSTALLED, "<"))), frames[-1])
    said = str(error).strip().partition("\n")[0]  # CUDA's errors go on with advice to developers
    return f"{type(error).__name__} in {Path(frame.filename).name} line {frame.lineno}: {said}"


def what_is_wrong(found: Mapping[str, Any]) -> str:
    """What pydantic found wrong with a field, in the words of a person who wrote it."""
    place = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"has '{place}', which is no field there; remove it"
    if found["type"] == "missing":
        return f"needs '{place}'"
    if found["type"] == "too_short":
        return f"has no '{place}'; name at least one"
    own = found.get("ctx", {}).get("error")  # of a check of ours, which pydantic would put a prefix before
    return f"has a wrong '{place}': {own or found['msg'].replace('Input should', 'it should')}"


class UnknownNameError(ShiftbedError):
    """A name that no registry entry has."""


class DataError(ShiftbedError):
    """Data that cannot be used as it is."""


class HparamError(ShiftbedError):
    """A hyperparameter that does not exist or has an impossible value."""


class AlgorithmError(ShiftbedError):
    """An algorithm that cannot run on what it was given."""


class StoreError(ShiftbedError):
    """A record store that cannot be read or written."""
