"""Parts of downloads, and where they came from: only the same file of the same mirror goes on with one."""

import json
import re
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path


@dataclass(frozen=True)
class Origin:
    """Where the bytes of a part came from.

    Attributes:
        address: The mirror's address; empty if it is not known.
        tag: The server's `ETag` of the file, or else its date; empty if it gives none.
        length: All bytes of the file; 0 if it is not known.
    """

    address: str = ""
    tag: str = ""
    length: int = 0

    @classmethod
    def of(cls, address: str, headers: Message) -> "Origin":
        """What a server's answer says of a file, of which it may send a piece."""
        whole = _length(headers)
        length = headers.get("Content-Length") if "Content-Range" not in headers else whole
        return cls(address, headers.get("ETag") or headers.get("Last-Modified") or "", int(length or 0))

    def may_be(self, other: "Origin") -> bool:
        """Whether this can be the same file of the same mirror, by all that both know."""
        known = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return all(one == two for one, two in known if one and two)


class Part:
    """The beginning of a file that is being fetched, `FILE.part`, with a note of its origin beside it.

    Args:
        path: The part's file.
        verified: Whether the whole file has a checksum. Only then a part without a note, as earlier versions left it,
            is continued.
    """

    def __init__(self, path: Path, verified: bool) -> None:
        self.path = path
        self._note = path.with_name(path.name + ".json")
        self._verified = verified

    def origin(self) -> Origin:
        """Where it came from, as far as that was noted."""
        try:
            return Origin(**json.loads(self._note.read_bytes()))
        except (OSError, ValueError, TypeError):  # there is no note, or half of one
            return Origin()

    def size_from(self, address: str) -> int:
        """How many of its bytes this address can go on from."""
        begun = self.origin().address
        fits = begun == address or (not begun and self._verified)
        return self.path.stat().st_size if fits and self.path.exists() else 0

    def goes_on(self, have: int, now: Origin, headers: Message) -> bool:
        """Whether an answer begins where the part ends, and is of the same file."""
        start = re.match(r"bytes (\d+)-", headers.get("Content-Range") or "")
        return start is not None and int(start[1]) == have and now.may_be(self.origin())

    def is_whole(self, have: int, headers: Message) -> bool:
        """Whether nothing is missing, as the answer 416 says, or else the first answer said."""
        return (_length(headers) or self.origin().length) == have

    def begin(self, origin: Origin) -> None:
        """Starts over with a file of this origin."""
        self.drop()  # before the note is written: no bytes ever stand beside the note of others
        self._note.write_text(json.dumps(asdict(origin)))

    def drop(self) -> None:
        """Forgets what has arrived."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def becomes(self, target: Path) -> None:
        """Gives the whole file its name."""
        self.path.rename(target)
        self._note.unlink(missing_ok=True)


def _length(headers: Message) -> int:
    """All bytes of a file of which a piece was asked for; 0 if the answer does not say."""
    said = re.search(r"/(\d+)$", headers.get("Content-Range") or "")
    return int(said[1]) if said else 0
