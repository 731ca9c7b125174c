"""Staging: packs copied once to a disk of the machine that reads them, where the data root is far away."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiftbed.errors import DataError
from shiftbed.hashing import digest

VARIABLE = "SHIFTBED_STAGE"


def staged(pack: Path) -> Path:
    """The folder to read a pack from: itself, or its copy below the folder that `SHIFTBED_STAGE` names.

    The first process of a machine makes the copy while the others wait; a pack that has changed is copied anew.

    Raises:
        DataError: It cannot be copied there.
    """
    root = os.environ.get(VARIABLE)
    if not root:
        return pack
    files = sorted(path for path in pack.rglob("*") if path.is_file())
    state = [(path.relative_to(pack).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    copy = Path(root).expanduser() / f"{pack.name}-{digest(state)[:20]}"
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _alone(copy.parent / f".{copy.name}.lock"):
            if not copy.exists():
                partial = copy.with_name(f"{copy.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
                try:
                    shutil.copytree(pack, partial)
                    partial.rename(copy)
                except OSError:
                    shutil.rmtree(partial, ignore_errors=True)  # it would keep the disk full
                    raise
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, shutil.Error):  # a list of all files with what is wrong, and one is enough
            why = error.args[0][0][2].partition(": ")[0].partition("] ")[2] or error.args[0][0][2]
        raise DataError(
            f"{pack.name} cannot be copied to {copy.parent} ({why}); make room there, or unset {VARIABLE}."
        ) from error
    return copy


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits until no other process of this machine holds the lock; the system frees it when its holder dies."""
    import fcntl

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
