"""The hashes that names and seeds are made of."""

import hashlib
import json
from typing import Any

import numpy as np


def seed_hash(*values: object) -> int:
    """DomainBed's seed: the MD5 of the text of the argument tuple, modulo 2^31."""
    return int(hashlib.md5(str(values).encode()).hexdigest(), 16) % 2**31


def canonical(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON text, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def array_hash(values: Any) -> bytes:
    """A hash of what an array contains and of its shape: equal for examples that are the same."""
    array = np.ascontiguousarray(values)
    return hashlib.blake2b(str(array.shape).encode() + array.tobytes(), digest_size=16).digest()
