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


# Each block has a process of its own, forked from one that has made the slow imports.
RUNNER = """
import os, runpy, sys
import torch, shiftbed.tables, shiftbed.sweeps.verbs, shiftbed.algorithms
for block in sys.argv[1:]:
    child = os.fork()
    if not child:
        sys.argv = [block]
        runpy.run_path(block, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, block
"""


@pytest.mark.parametrize("texts", blocks("python"))
def test_python_blocks_run(texts, tmp_path):
    (tmp_path / "my_algorithms.py").write_text(texts[-1])
    scripts = [tmp_path / f"block-{number}.py" for number in range(len(texts))]
    for script, text in zip(scripts, texts, strict=True):
        script.write_text(text)
    done = subprocess.run([sys.executable, "-c", RUNNER, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
