"""Writing packs: one writer at a time, whole or not at all, and one sentence when the disk is full."""

import errno
import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiftbed.data.roots import VARIABLE
from shiftbed.errors import DataError


@contextmanager
def sole_writer(target: Path) -> Iterator[Path]:
    """Gives `TARGET.partial` to write into and holds it against other writers; it becomes the target at the end.

    The lock goes with the process, however it ends. What an interrupted writer left is found in the folder.

    Raises:
        DataError: Somebody else is writing it.
    """
    unfinished = target.with_name(target.name + ".partial")
    unfinished.mkdir(parents=True, exist_ok=True)
    lock = unfinished.with_name(unfinished.name + ".lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"Another process is packing {target.name}; wait for it.") from None
        try:
            yield unfinished
            if target.exists():
                shutil.rmtree(target)
            unfinished.rename(target)
        finally:
            lock.unlink(missing_ok=True)


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
