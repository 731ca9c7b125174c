"""What the README and the guide say is so: tables are current and code blocks run."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list:
    """The code blocks of a language, all of one page together: later ones build on earlier ones."""
    found = {page: re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES}
    return [pytest.param(texts, id=page.name) for page, texts in found.items() if texts]


def test_the_readme_s_tables_are_those_of_the_registries():
    script = runpy.run_path(str(ROOT / "scripts" / "update_readme.py"))
    readme = (ROOT / "README.md").read_text()
    assert script["updated"](readme) == readme, "run python scripts/update_readme.py"
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert script["algorithm_page"]() == page, "run python scripts/update_readme.py"


@pytest.mark.parametrize("texts", blocks("python"))
def test_python_blocks_run(texts, tmp_path):
    (tmp_path / "my_algorithms.py").write_text(texts[-1])
    for text in texts:
        script = tmp_path / "block.py"
        script.write_text(text)
        subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("texts", blocks("sh"))
def test_shell_blocks_run(texts, tmp_path):
    python = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my_algorithms.py").write_text(python[-1])
    for line in "".join(texts).splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == "shiftbed":
            subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=True, capture_output=True)


def test_every_link_to_a_file_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
