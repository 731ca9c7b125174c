import io
from functools import cache

import numpy as np
import pytest
from PIL import Image

from shiftbed.data.load import forget


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A data root of its own."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path / "data"))
    forget()
    yield tmp_path / "data"
    forget()


def picture(height: int, width: int, seed: int) -> Image.Image:
    """A smooth colourful image that JPEG keeps well."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (4, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@cache
def encoded(height: int, width: int, seed: int, kind: str) -> bytes:
    """The file of a picture; making it takes longer than most tests."""
    buffer = io.BytesIO()
    picture(height, width, seed).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Three domains of two classes, images of several sizes and formats, names that need care."""
    sizes = {"site one": (40, 60), "größe": (64, 64), "<b>third": (400, 320)}
    for d, (domain, size) in enumerate(sizes.items()):
        for c, label in enumerate(("cat", "dog & cow")):
            for i in range(6):
                path = tmp_path / "mine" / domain / label / f"image {i}.{'png' if i % 2 else 'jpg'}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encoded(*size, 100 * d + 10 * c + i, "PNG" if i % 2 else "JPEG"))
    return tmp_path / "mine"
