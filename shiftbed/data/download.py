"""Downloads: several mirrors, resumed where they broke off, verified, and unpacked without leaving their folder."""

import hashlib
import http.client
import lzma
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from shiftbed.data.dataset import Archive
from shiftbed.data.parts import Origin, Part
from shiftbed.data.writing import is_full
from shiftbed.errors import DataError

CHUNK = 1 << 20
TRIES = 5
TIMEOUT_SECONDS = 30
Progress = Callable[[str, int, int], None]
# Of passwords and of unknown ways to compress, zipfile says so by a RuntimeError; of names that are no text and of
# times that no clock shows, Python itself by a ValueError or OverflowError; of a link to nothing tarfile by a KeyError.
DAMAGES = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError),
    *(ValueError, OverflowError, KeyError),
)


def download(archive: Archive, folder: Path, on_progress: Progress = lambda what, done, total: None) -> Path:
    """Fetches an archive into a folder, from the first mirror that gives it whole.

    What has arrived stays in `FILE.part`, and the next try, or the next run, continues there, from the same mirror.

    Args:
        archive: What to fetch.
        folder: Where to.
        on_progress: Called with the file's name, the bytes that are here, and all bytes (0 if unknown).

    Raises:
        DataError: No mirror has it, or what came has another checksum.
    """
    target = folder / archive.file
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = Part(target.with_name(target.name + ".part"), bool(archive.sha256))
    begun = part.origin().address
    troubles = []
    for mirror in sorted(archive.mirrors, key=lambda one: web_address(one) != begun):  # the others would start over
        try:
            checksum = _fetch_right(web_address(mirror), part, archive, on_progress)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if is_full(error):
                raise
            troubles.append(f"{mirror}: {' '.join(str(error).split())}")
            continue
        if archive.sha256 and checksum != archive.sha256:
            part.drop()
            troubles.append(f"{mirror}: the checksum is {checksum[:12]}… and should be {archive.sha256[:12]}…")
            continue
        part.becomes(target)
        return target
    raise DataError(
        f"{archive.file} could not be downloaded ({'; '.join(troubles) or 'it has no mirrors'}); get it by hand and "
        "prepare it with --from FILE."
    )


def _fetch_right(address: str, part: Part, archive: Archive, on_progress: Progress) -> str:
    """Fetches a file and says its checksum; pieces that do not fit together are fetched once more, as one."""
    for _ in range(2):
        in_pieces = _fetch(address, part, lambda done, total: on_progress(archive.file, done, total))
        with part.path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if not in_pieces or checksum == archive.sha256 or not archive.sha256:
            break
        part.drop()
    return checksum


def web_address(mirror: str) -> str:
    """Where a mirror's file is on the web; the Hugging Face hub is where `HF_ENDPOINT` says, if it says so.

    Args:
        mirror: A web address, or `hf://datasets/OWNER/NAME/PATH@REVISION`.
    """
    if not mirror.startswith("hf://"):
        return mirror
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    path, _, revision = mirror.removeprefix("hf://datasets/").partition("@")
    owner, name, *inside = path.split("/")
    return f"{hub.rstrip('/')}/datasets/{owner}/{name}/resolve/{revision or 'main'}/{quote('/'.join(inside))}"


def _fetch(address: str, part: Part, on_progress: Callable[[int, int], None]) -> bool:
    """Appends to a part until the file is whole; a broken connection is tried again from where it broke.

    Tries count only while nothing more arrives: a large file may come in any number of pieces.

    Returns:
        Whether it came in several pieces.
    """
    in_pieces, most, tried = False, 0, 0
    trouble: Exception = OSError()
    while True:
        have = part.size_from(address)
        tried = 0 if have > most else tried
        if tried == TRIES:
            raise trouble
        most, tried, trouble = max(most, have), tried + 1, OSError("the connection broke off again and again")
        in_pieces |= have > 0
        request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                if answer.headers.get_content_type() == "text/html":  # a quota or log-in page
                    raise OSError("it answers with a web page instead of the file")
                now = Origin.of(address, answer.headers)
                if have and answer.status == 206 and not part.goes_on(have, now, answer.headers):
                    part.drop()
                    continue
                if answer.status != 206:  # the whole file, asked for or not
                    have = 0
                if not have:
                    part.begin(now)
                total = now.length or have + int(answer.headers.get("Content-Length") or 0)
                with part.path.open("ab") as file:
                    while chunk := answer.read1(CHUNK):  # what is here: `read` loses it when the connection is reset
                        file.write(chunk)
                        have += len(chunk)
                        on_progress(have, total)
                if not have:
                    trouble = OSError("it answers with an empty file")
                elif have >= total:
                    return in_pieces
        except urllib.error.HTTPError as error:
            if error.code == 416 and have:  # nothing is left to send, or the part is of another file
                if part.is_whole(have, error.headers):
                    return in_pieces
                part.drop()
                continue
            if error.code < 500:
                raise
            trouble = error
        except (OSError, http.client.HTTPException, ValueError) as error:  # a length may be no number
            if is_full(error):
                raise
            trouble = error
        time.sleep(min(2**tried * 0.05, 10))


def is_archive(path: Path) -> bool:
    """Whether a file is to be unpacked; a single packed file (`.gz`) and NumPy's arrays are read as they are.

    Raises:
        DataError: It ends before that can be told.
    """
    try:
        return path.suffix != ".npz" and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))
    except EOFError:
        raise DataError(f"{path} is cut off; remove it and get it again.") from None


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks a tar or zip archive, unless that was done before; the folder appears when it is whole.

    Raises:
        DataError: The file is no archive, is damaged, or has a member that points outside its folder.
    """
    if folder.exists() and folder.stat().st_mtime_ns >= archive.stat().st_mtime_ns:
        return folder
    unfinished = folder.with_name(folder.name + ".partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as members:
                _refuse_outside(archive, members.namelist())
                members.extractall(unfinished)
        else:
            with tarfile.open(archive) as members:
                members.extractall(unfinished, filter="data")
                while members.fileobj and members.fileobj.read(CHUNK):
                    pass  # tarfile stops before the checksum at the end
    except tarfile.FilterError as error:
        shutil.rmtree(unfinished)
        raise DataError(
            f"{archive} has a member that points outside its folder or is no plain file ({error}); it was left alone."
        ) from error
    except DAMAGES as error:
        shutil.rmtree(unfinished)
        if is_full(error):
            raise
        why = str(error).partition("\n")[0].rstrip(":")  # tarfile goes on with every way that it tried
        raise DataError(f"{archive} cannot be unpacked ({why}); remove it and download it again.") from error
    shutil.rmtree(folder, ignore_errors=True)
    os.utime(unfinished)  # an archive may have set another time
    unfinished.rename(folder)
    return folder


def _refuse_outside(archive: Path, names: list[str]) -> None:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]):
            raise tarfile.OutsideDestinationError(tarfile.TarInfo(name), str(archive))
