"""Downloads from a real server on this machine that drops connections, lies, and has nothing."""

import errno
import gzip
import hashlib
import io
import os
import random
import socket
import struct
import tarfile
import threading
import zipfile
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shiftbed.data import download as downloading
from shiftbed.data.dataset import Archive
from shiftbed.data.download import download, is_archive, unpack
from shiftbed.data.parts import Origin, Part
from shiftbed.errors import DataError


class Server:
    """Serves some bytes, honouring ranges, and drops the connection in the middle of the first answers.

    A file that is a text is the address where the file now is. `tag` is the ETag of all files, and `beside` how far
    from where it was asked to a piece begins.
    """

    def __init__(
        self, files: dict[str, bytes | str], drops: int = 0, ranges: bool = True, tag: str = "", beside: int = 0
    ) -> None:
        outer = self
        self.asked: list[str | None] = []
        self.drops = drops

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                if isinstance(content, str):
                    self.send_response(302)
                    self.send_header("Location", content)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                wanted = self.headers.get("Range") if ranges else None
                outer.asked.append(wanted)
                start = int(wanted.removeprefix("bytes=").rstrip("-")) + beside if wanted else 0
                if wanted and start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if wanted else 200)
                rest = content[start:]
                if wanted:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                if tag:
                    self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(rest)))
                self.send_header("Content-Type", "text/html" if self.path.endswith("quota") else "application/x-tar")
                self.end_headers()
                if outer.drops:
                    outer.drops -= 1
                    self.wfile.write(rest[: len(rest) // 2])
                    self.wfile.flush()
                    self.connection.close()
                    return
                with suppress(OSError):  # an answer that nobody wants is not read to its end
                    self.wfile.write(rest)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


CONTENT = bytes(range(256)) * 4000
SHA = hashlib.sha256(CONTENT).hexdigest()


def test_a_connection_dropped_twice_is_continued_each_time(tmp_path):
    seen = []
    with Server({"/a.tar": CONTENT}, drops=2) as server:
        archive = Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",), sha256=SHA)
        path = download(archive, tmp_path, lambda what, done, total: seen.append((what, done, total)))
    assert path.read_bytes() == CONTENT
    half, quarter = len(CONTENT) // 2, len(CONTENT) * 3 // 4
    assert server.asked == [None, f"bytes={half}-", f"bytes={quarter}-"]
    assert seen[-1] == ("a.tar", len(CONTENT), len(CONTENT))
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_run_continues_in_the_next(tmp_path):
    (tmp_path / "a.tar.part").write_bytes(CONTENT[:1000])
    with Server({"/a.tar": CONTENT}) as server:
        download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",), sha256=SHA), tmp_path)
    assert server.asked == ["bytes=1000-"]


def begun(folder, content, address, tag=""):
    """A part of `a.tar`, as an interrupted run leaves it."""
    part = Part(folder / "a.tar.part", verified=False)
    part.begin(Origin(address, tag))
    part.path.write_bytes(content)


@pytest.mark.parametrize("checksum", [SHA, ""], ids=["with a checksum", "without"])
def test_what_a_broken_mirror_sent_is_not_mixed_with_the_file_of_the_next(tmp_path, monkeypatch, checksum):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    old = b"OLD!" * (len(CONTENT) // 4)
    with Server({"/a.tar": old}, drops=99) as outdated, Server({"/a.tar": CONTENT}) as good:
        mirrors = tuple(f"{server.address}/a.tar" for server in (outdated, good))
        path = download(Archive(file="a.tar", mirrors=mirrors, sha256=checksum), tmp_path)
    assert path.read_bytes() == CONTENT and good.asked == [None]
    assert [one.name for one in tmp_path.iterdir()] == ["a.tar"]


def test_the_mirror_that_a_part_came_from_is_asked_first(tmp_path):
    with Server({"/one": CONTENT, "/two": CONTENT}) as server:
        begun(tmp_path, CONTENT[:1000], f"{server.address}/two")
        mirrors = (f"{server.address}/one", f"{server.address}/two")
        assert download(Archive(file="a.tar", mirrors=mirrors), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_mirror_that_has_nothing_leaves_the_part_of_another_alone(tmp_path):
    with Server({}) as server, pytest.raises(DataError, match="404"):
        begun(tmp_path, CONTENT[:1000], "http://elsewhere/a.tar")
        download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",)), tmp_path)
    assert (tmp_path / "a.tar.part").read_bytes() == CONTENT[:1000]


def test_a_part_whose_origin_is_not_known_is_continued_only_where_a_checksum_would_tell(tmp_path):
    (tmp_path / "a.tar.part").write_bytes(b"x" * 1000)
    with Server({"/a.tar": CONTENT}) as server:
        path = download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",)), tmp_path)
    assert path.read_bytes() == CONTENT and server.asked == [None]


def test_pieces_with_a_wrong_checksum_are_fetched_once_more_as_one(tmp_path):
    with Server({"/a.tar": CONTENT}) as server:
        begun(tmp_path, b"x" * 1000, f"{server.address}/a.tar")
        path = download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",), sha256=SHA), tmp_path)
    assert path.read_bytes() == CONTENT and server.asked == ["bytes=1000-", None]


def test_a_part_that_is_whole_is_not_fetched_again_and_a_longer_one_is_of_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    for content, asked in ((CONTENT, 1), (CONTENT + b"stale", 2)):
        with Server({"/a.tar": CONTENT}) as server:
            begun(tmp_path, content, f"{server.address}/a.tar")
            path = download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",)), tmp_path)
        assert path.read_bytes() == CONTENT
        assert server.asked == [f"bytes={len(content)}-", None][:asked]
        path.unlink()


def test_a_file_that_was_replaced_meanwhile_is_fetched_from_its_beginning(tmp_path):
    with Server({"/a.tar": CONTENT}, tag='"new"') as server:
        begun(tmp_path, b"x" * 1000, f"{server.address}/a.tar", tag='"old"')
        path = download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",)), tmp_path)
    assert path.read_bytes() == CONTENT and server.asked == ["bytes=1000-", None]


def test_a_piece_that_begins_elsewhere_is_not_appended(tmp_path):
    with Server({"/a.tar": CONTENT}, beside=7) as server:
        begun(tmp_path, CONTENT[:1000], f"{server.address}/a.tar")
        path = download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",)), tmp_path)
    assert path.read_bytes() == CONTENT


def test_half_a_note_is_none(tmp_path):
    begun(tmp_path, CONTENT[:1000], "http://elsewhere/a.tar")
    (tmp_path / "a.tar.part.json").write_text('{"address": "http')
    assert Part(tmp_path / "a.tar.part", verified=False).origin() == Origin()


def test_a_server_without_ranges_starts_over(tmp_path):
    (tmp_path / "a.tar.part").write_bytes(b"x" * 1000)
    with Server({"/a.tar": CONTENT}, ranges=False) as server:
        path = download(Archive(file="a.tar", mirrors=(f"{server.address}/a.tar",), sha256=SHA), tmp_path)
    assert path.read_bytes() == CONTENT


def test_the_next_mirror_is_asked_when_one_has_nothing_or_something_else(tmp_path):
    with Server({"/wrong": b"other", "/right": CONTENT}) as server:
        mirrors = tuple(f"{server.address}/{name}" for name in ("none", "wrong", "right"))
        path = download(Archive(file="a.tar", mirrors=mirrors, sha256=SHA), tmp_path)
    assert path.read_bytes() == CONTENT


def test_when_no_mirror_has_it_one_sentence_says_what_to_do(tmp_path):
    with Server({"/wrong": b"other"}) as server:
        mirrors = (f"{server.address}/none", f"{server.address}/wrong")
        with pytest.raises(DataError, match=r"404.*checksum is .* and should be .*--from FILE"):
            download(Archive(file="a.tar", mirrors=mirrors, sha256=SHA), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_web_page_instead_of_the_file_is_no_download(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    with Server({"/quota": b"<html>too many downloads today</html>", "/right": CONTENT}) as server:
        mirrors = (f"{server.address}/quota", f"{server.address}/right")
        assert download(Archive(file="a", mirrors=mirrors), tmp_path).read_bytes() == CONTENT


def test_what_is_here_is_not_fetched_again(tmp_path):
    (tmp_path / "a.tar").write_bytes(CONTENT)
    assert download(Archive(file="a.tar", mirrors=()), tmp_path).read_bytes() == CONTENT


def test_a_server_that_always_breaks_off_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    with Server({"/a": CONTENT}, drops=99) as server, pytest.raises(DataError, match="broke off again and again"):
        download(Archive(file="a", mirrors=(f"{server.address}/a",)), tmp_path)
    assert (tmp_path / "a.part").stat().st_size > len(CONTENT) // 2, "what came is kept for the next run"


def test_what_arrived_before_a_connection_was_reset_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    content, sent = CONTENT * 3, 300_000  # less than a chunk a time; `drops` closes connections, this breaks them

    class Resets(BaseHTTPRequestHandler):
        def do_GET(self):
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : start + sent])
            self.wfile.flush()
            pause.wait(0.2)  # a reset discards what the other side has not read yet
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def log_message(self, *_):
            pass

    pause = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Resets)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        archive = Archive(file="a", mirrors=(f"http://127.0.0.1:{server.server_port}/a",))
        assert download(archive, tmp_path).read_bytes() == content
    finally:
        server.shutdown()
        server.server_close()


def test_an_empty_answer_is_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    with Server({"/empty": b"", "/right": CONTENT}) as server:
        with pytest.raises(DataError, match="it answers with an empty file"):
            download(Archive(file="a", mirrors=(f"{server.address}/empty",)), tmp_path)
        assert not (tmp_path / "a").exists(), "the next run asks again"
        mirrors = tuple(f"{server.address}/{name}" for name in ("empty", "right"))
        assert download(Archive(file="a", mirrors=mirrors), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "many"),
        (b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n", "infinite loop"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "is not allowed"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "503: Busy"),
        (b"something else\r\n\r\n", "something else"),
    ],
)
def test_whatever_a_server_says_is_one_sentence(tmp_path, monkeypatch, answer, words):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)

    class Says(BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Says) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(DataError, match=rf"could not be downloaded \(.*{words}.*\); get it by hand") as caught:
            download(Archive(file="a", mirrors=(f"http://127.0.0.1:{server.server_port}/a",)), tmp_path)
        server.shutdown()
    assert "\n" not in str(caught.value)


def test_a_large_file_may_come_in_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    with Server({"/a": CONTENT}, drops=3 * downloading.TRIES) as server:
        path = download(Archive(file="a", mirrors=(f"{server.address}/a",), sha256=SHA), tmp_path)
    assert path.read_bytes() == CONTENT and len(server.asked) == 3 * downloading.TRIES + 1


def test_a_server_that_begins_anew_each_time_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    with Server({"/a": CONTENT}, drops=99, ranges=False) as server, pytest.raises(DataError, match="again and again"):
        download(Archive(file="a", mirrors=(f"{server.address}/a",)), tmp_path)
    assert len(server.asked) == downloading.TRIES + 1, "half of it, and never more"


def test_the_hugging_face_hub_is_a_mirror_as_others_are(tmp_path, monkeypatch):
    """It answers with an address of another server, which is asked for the rest when the connection breaks."""
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)
    files = {"/datasets/some/one/resolve/v1.0/data/a%20b.tar": "/cdn/4711", "/cdn/4711": CONTENT}
    with Server(files, drops=2) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        archive = Archive(file="a.tar", mirrors=("hf://datasets/some/one/data/a b.tar@v1.0",), sha256=SHA)
        assert download(archive, tmp_path).read_bytes() == CONTENT
        assert server.asked == [None, f"bytes={len(CONTENT) // 2}-", f"bytes={len(CONTENT) * 3 // 4}-"]
        gone = Archive(file="b.tar", mirrors=("hf://datasets/some/one/b.tar",))
        with pytest.raises(DataError, match=r"hf://datasets/some/one/b\.tar: HTTP Error 404"):
            download(gone, tmp_path)


def test_the_hub_is_the_public_one_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    address = downloading.web_address("hf://datasets/songweig/imagenet_sketch/data/ImageNet-Sketch.zip@main")
    assert address == "https://huggingface.co/datasets/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip"
    assert downloading.web_address("https://a.b/c") == "https://a.b/c"


def test_a_full_disk_ends_the_download_at_once_and_keeps_what_came(tmp_path, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.tar.part").write_bytes(CONTENT[:1000])
    with Server({"/a.tar": CONTENT}) as server, pytest.raises(OSError, match="No space left") as caught:
        mirrors = (f"{server.address}/a.tar", f"{server.address}/a.tar")
        download(Archive(file="a.tar", mirrors=mirrors), tmp_path, write)
    assert downloading.is_full(caught.value) and len(server.asked) == 1
    assert (tmp_path / "a.tar.part").exists()


def tar_of(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_archives_unpack(tmp_path, make):
    (tmp_path / "a").write_bytes(make(**{"in/side.txt": b"hello"}))
    assert (unpack(tmp_path / "a", tmp_path / "out") / "in" / "side.txt").read_bytes() == b"hello"


def test_an_archive_is_unpacked_once_and_again_when_it_is_newer(tmp_path):
    (tmp_path / "a").write_bytes(zip_of(one=b"1"))
    unpack(tmp_path / "a", tmp_path / "out")
    (tmp_path / "out" / "mark").write_bytes(b"")
    assert (unpack(tmp_path / "a", tmp_path / "out") / "mark").exists()
    (tmp_path / "a").write_bytes(zip_of(two=b"2"))
    os.utime(tmp_path / "a", (2**33, 2**33))
    assert [path.name for path in unpack(tmp_path / "a", tmp_path / "out").iterdir()] == ["two"]


def test_a_link_that_leads_outside_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a", "w") as archive:
        link = tarfile.TarInfo("inside")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
        archive.addfile(link)
    with pytest.raises(DataError, match="points outside its folder"):
        unpack(tmp_path / "a", tmp_path / "out")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (tar_of, "../outside.txt"),
        (tar_of, "in/../../outside.txt"),
        (zip_of, "../outside.txt"),
        (zip_of, "in/../../outside.txt"),
        (zip_of, "/absolute/outside.txt"),
    ],
)
def test_an_archive_that_points_outside_its_folder_is_refused_whole(tmp_path, make, name):
    (tmp_path / "a").write_bytes(make(**{"fine.txt": b"1", name: b"2"}))
    with pytest.raises(DataError, match="points outside its folder"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def tar_with_a_link_to(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.LNKTYPE, name
        archive.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"no archive", tar_of(a=b"1" * 10_000)[:60], b"", tar_with_a_link_to("nothing")],
    ids=["text", "cut", "empty", "link"],
)
def test_a_damaged_archive_is_one_sentence(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def tar_with(headers: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("in/side.txt")
        info.pax_headers = headers
        archive.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        zip_of(**{"ä.txt": b"hello"}).replace("ä".encode(), b"\xc3x"),
        tar_with({"mtime": "1e30"}),
        tar_with({"mtime": "nan"}),
        tar_with({"path": "in/\0side.txt"}),
    ],
    ids=["name", "late", "never", "zero"],
)
def test_a_name_that_is_no_text_or_a_time_that_is_none_is_one_sentence(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def damaged(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("damage", [damaged, lambda content: content[:60]], ids=["damaged", "cut"])
def test_damage_is_one_sentence_however_it_is_compressed(tmp_path, kind, damage):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{kind}") as archive:
        info = tarfile.TarInfo("a")
        info.size = 100_000
        archive.addfile(info, io.BytesIO(random.Random(0).randbytes(info.size)))
    (tmp_path / "a").write_bytes(damage(buffer.getvalue()))
    with pytest.raises(DataError, match="cannot be unpacked") as caught:
        unpack(tmp_path / "a", tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [5, 30])
def test_a_packed_file_that_is_cut_off_is_one_sentence(tmp_path, size):
    (tmp_path / "labels.gz").write_bytes(gzip.compress(random.Random(0).randbytes(1000))[:size])
    with pytest.raises(DataError, match=r"labels\.gz is cut off; remove it and get it again"):
        is_archive(tmp_path / "labels.gz")


def test_the_date_of_a_file_tells_that_it_was_replaced_where_there_is_no_tag():
    answer = Message()
    answer["Last-Modified"] = "Tue, 02 Jan 2024 00:00:00 GMT"
    answer["Content-Range"] = "bytes 10-99/100"
    now = Origin.of("http://a/b", answer)
    assert now == Origin("http://a/b", "Tue, 02 Jan 2024 00:00:00 GMT", 100)
    assert not now.may_be(Origin("http://a/b", "Mon, 01 Jan 2024 00:00:00 GMT", 100))
    assert now.may_be(Origin("http://a/b", "", 100))
