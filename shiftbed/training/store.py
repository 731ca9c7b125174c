"""The record store: four operations that a folder, or later an object store, offers."""

import errno
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from shiftbed.errors import StoreError

NO_ROOM = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


class DiskFullError(StoreError):
    """A store that has no room left: no other job of the same store can write either."""


class Store(Protocol):
    """Where jobs leave what they computed. Keys are relative paths with forward slashes."""

    def get(self, key: str) -> bytes | None:
        """What is stored under the key, whole, or None."""

    def put_atomic(self, key: str, data: bytes) -> None:
        """Stores under the key; a reader, and a crash, sees the old or the new bytes and nothing else."""

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Stores under the key if it is free; of several callers exactly one gets True."""

    def list(self, prefix: str, deep: bool = True) -> Iterator[str]:
        """The keys below a prefix, in no order; not deep, those directly below and, with a slash, what has keys below.

        Every key that exists from the beginning to the end of the listing is in it.
        """


class LocalStore:
    """A store in a folder of this machine or of a shared file system.

    Args:
        root: The folder; it is made when something is first written.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def get(self, key: str) -> bytes | None:
        """What is stored under the key, whole, or None."""
        try:
            with io.FileIO(f"{self.root}/{key}") as file:  # a third faster than `read_bytes` for the many small files
                return file.readall()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _store_error("read", self.root / key, error) from error

    def put_atomic(self, key: str, data: bytes) -> None:
        """Writes a temporary file, makes it durable, and renames it into place."""
        path = self.root / key
        try:
            temporary = _write_temporary(path, data)
            try:
                os.replace(temporary, path)
            except OSError:
                os.unlink(temporary)  # a bundle is large, and nobody sees a hidden file
                raise
            _sync_folder(path.parent)
        except OSError as error:
            raise _store_error("write", path, error) from error

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Writes a temporary file, makes it durable, and links it into place, which fails if the name is taken."""
        path = self.root / key
        try:
            temporary = _write_temporary(path, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
            _sync_folder(path.parent)
            return True
        except OSError as error:
            raise _store_error("write", path, error) from error

    def list(self, prefix: str, deep: bool = True) -> Iterator[str]:
        """The keys below a prefix; temporary files (hidden) are not keys.

        Raises:
            StoreError: A folder is there and cannot be looked into; without what is in it a sweep would look smaller.
        """

        def refuse(error: OSError) -> None:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise _store_error("read", Path(error.filename or self.root / prefix), error)

        for folder, folders, names in os.walk(self.root / prefix, onerror=refuse):
            base = Path(folder).relative_to(self.root).as_posix()
            yield from (f"{base}/{name}" for name in names if not name.startswith("."))
            if not deep:
                yield from (f"{base}/{name}/" for name in folders)
                return


def _write_temporary(path: Path, data: bytes) -> Path:
    """A durable temporary file beside `path`, named by its writer, so that a restarted writer reuses no one else's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}-{threading.get_ident()}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    except OSError:
        temporary.unlink()  # on a full disk it would take the room that others need
        raise
    finally:
        os.close(file)
    return temporary


def _sync_folder(folder: Path) -> None:
    """Makes a rename or link in the folder survive a power cut."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _store_error(verb: str, path: Path, error: OSError) -> StoreError:
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        above = (parent for parent in path.parents if parent.exists() and not parent.is_dir())  # a file, or a device
        return StoreError(f"Cannot {verb} {path}: {next(above, path.parent)} is not a folder; choose another folder.")
    if error.errno in NO_ROOM:
        what = NO_ROOM[error.errno]
        advice = f"{what}; make room and run the same command again: what was written before is kept"
        return DiskFullError(f"Cannot {verb} {path}: {advice}.")
    advice = {
        errno.ENOENT: "no folder can be made there; choose another",
        errno.EACCES: "permission is denied; choose a folder you may write to",
        errno.EPERM: "this file system does not allow it; choose a folder on another",
        errno.EISDIR: "it is a folder; name a file",
        errno.EROFS: "the file system is read-only; choose a folder you may write to",
    }.get(error.errno or 0, f"{error.strerror}; if that comes again, choose a folder on another disk")
    return StoreError(f"Cannot {verb} {path}: {advice}.")


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path} is damaged; remove it and make it again.") from error


def write_json(content: Any, path: Path) -> None:
    """Writes a JSON file whole, or not at all."""
    LocalStore(path.parent).put_atomic(path.name, json.dumps(content, indent=1).encode())
