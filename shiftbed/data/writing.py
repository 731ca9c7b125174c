"""Writing: one writer at a time, whole or not at all, and one sentence when the disk is full."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from shiftbed.data.roots import UNFINISHED, VARIABLE
from shiftbed.errors import DataError


@contextmanager
def sole_writer(target: Path) -> Iterator[Path]:
    """Gives `TARGET.partial` to write into and holds it against other writers; it becomes the target at the end.

    What an interrupted writer left is found in the folder. What was there before stays until it is replaced.

    Raises:
        DataError: Somebody else is writing it.
    """
    unfinished, replaced = (target.with_name(f"{target.name}{end}") for end in (UNFINISHED, f".old{UNFINISHED}"))
    with alone(unfinished, f"packing {target.name}"):
        unfinished.mkdir(parents=True, exist_ok=True)
        yield unfinished
        if target.exists():  # it has to go at once: half of it would count as a pack
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        unfinished.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def alone(what: Path, doing: str) -> Iterator[None]:
    """Holds `WHAT.lock` against other processes; the lock goes with the process, however it ends.

    Args:
        what: What is worked on.
        doing: What others are told of it.

    Raises:
        DataError: Somebody else holds it.
    """
    lock = what.with_name(f"{what.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            still_there = os.path.samestat(os.fstat(file.fileno()), lock.stat())
        except (BlockingIOError, FileNotFoundError):
            still_there = False
        if not still_there:  # its holder removes it, and the next one's is another file of this name
            raise DataError(f"Another process is {doing}; wait for it.")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def save_array(path: Path, array: np.ndarray) -> None:
    """Saves an array; of a full disk NumPy says how much it wrote, and not why it wrote no more."""
    try:
        np.save(path, array)
    except OSError as error:
        if error.errno is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def is_full(error: BaseException) -> bool:
    """Whether an error says that there is no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_as_sentence(folder: Path) -> Iterator[None]:
    """Says what to do when the disk runs full; what is whole until then stays for the next run."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DataError(
            f"The disk of {folder} is full; make room or choose another {VARIABLE}, and run the same command again."
        ) from error
