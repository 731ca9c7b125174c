"""A headless Chromium that cannot reach any network: it runs in a network namespace of its own, which is empty."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CUT = (["unshare", "--net"], ["unshare", "--map-root-user", "--net"])


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium is installed: make test-browser installs the system's, where it may")
    cut = next((words for words in CUT if _works([*words, "true"])), None)
    if cut is None:
        pytest.skip("sockets cannot be cut off here: unshare --net is not allowed")
    wrapper = tmp_path_factory.mktemp("browser") / "chromium-without-network"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(cut)} "{found}" "$@"\n')
    wrapper.chmod(0o755)
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=str(wrapper), args=["--no-sandbox"])
        yield opened
        opened.close()


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def open_page(browser):
    """Opens a file; when the test is over, no error may have been on the console and nothing asked for elsewhere."""
    wrong, asked, contexts = [], [], []

    def open_file(path: Path, **how):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **how})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not wrong
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
