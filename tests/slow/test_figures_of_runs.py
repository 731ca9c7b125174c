"""Every figure, drawn from real runs on built-in data as the guide's pictures are."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.report.figures import FIGURES

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_figure_is_drawn_from_built_in_data(tmp_path):
    script = runpy.run_path(str(ROOT / "scripts" / "docs_pictures.py"))
    script["results"](tmp_path, steps=40, trials=1, values=(0.1, 0.9))
    pages = script["draw"](tmp_path, tmp_path / "pdf", ".pdf")
    pictures = script["draw"](tmp_path, tmp_path / "png", ".png")
    assert [path.stem for path in pages] == [path.stem for path in pictures] == list(FIGURES)
    for page in pages:
        data = page.read_bytes()
        assert data.startswith(b"%PDF") and b"/FontFile2" in data and b"/Type3" not in data, page.name
    for picture in pictures:
        pixels = np.asarray(Image.open(picture).convert("RGB"))
        inked = (pixels != 255).any(axis=2)
        assert min(pixels.shape[:2]) > 300 and inked.mean() > 0.01, picture.name
        assert inked[:, : pixels.shape[1] // 2].any() and inked[:, pixels.shape[1] // 2 :].any(), picture.name
