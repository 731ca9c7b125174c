"""Takes the pictures of the page for the guide with a headless Chromium: docs/figures/page-*.png.

    python scripts/page_pictures.py FOLDER

FOLDER is what `shiftbed demo --out FOLDER` made, so that what is shown comes from real runs on built-in data.
"""

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from shiftbed.report.page import write_page

DOCS = Path(__file__).parents[1] / "docs" / "figures"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = {"viewport": {"width": 1100, "height": 1000}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}
PICTURES: dict[str, tuple[dict[str, Any], str]] = {  # how the page is opened, and what it is scrolled to
    "page-summary": (WIDE, "#summary"),
    "page-shift": (WIDE, "#shift"),
    "page-leaderboards": ({**WIDE, "color_scheme": "dark"}, ".results"),
    "page-phone": (PHONE, "#domains"),
}
COLOURS = 256  # a picture of a page needs no more, and is a third as large


def main(folder: str) -> None:
    """Writes the page and takes its pictures."""
    address = write_page(folder).resolve().as_uri()
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        sys.exit("There is no Chromium here; `make test-browser` installs the system's.")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, (how, where) in PICTURES.items():
            page = browser.new_context(reduced_motion="reduce", **how).new_page()
            page.goto(address)
            page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # draws all charts
            page.evaluate("where => document.querySelector(where).scrollIntoView()", where)
            page.wait_for_timeout(1500)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                DOCS / f"{name}.png", optimize=True
            )
            print(DOCS / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
