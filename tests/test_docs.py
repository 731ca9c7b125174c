"""What the README and the guide say is so: tables are current and code blocks run."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from shiftbed.cli import app

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


def test_the_reference_is_that_of_the_docstrings_and_registries():
    script = runpy.run_path(str(ROOT / "scripts" / "update_reference.py"))
    for name in ("reference", "figures"):
        page = (ROOT / "docs" / f"{name}.md").read_text()
        assert script[name]() == page, "run python scripts/update_reference.py"


def test_the_guide_s_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_every_block_says_what_it_is():
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
        kinds = set(fences[::2])
        assert kinds <= {"python", "sh", "text", "yaml"}, f"{page.name} has blocks of {kinds}"


def commands() -> list:
    """Every command of the README and the guide, in blocks of any kind, with the page it stands on."""
    found = []
    for page in PAGES:
        for text in re.findall(r"```(?:sh|text)\n(.*?)```", page.read_text(), re.DOTALL):
            lines = text.replace("\\\n", " ").splitlines()
            found += [
                pytest.param(line, id=f"{page.name}: {line[:60]}") for line in lines if line.startswith("shiftbed ")
            ]
    return found


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one_that_the_command_line_takes(line):
    _, name, *arguments = [word for word in shlex.split(line, comments=True) if word != "…"]
    command = get_command(app)
    if name.startswith("-"):
        return
    assert name in command.commands, line
    command.commands[name].make_context(name, arguments)  # parses, and calls nothing


def test_blocks_of_a_page_that_run_in_order_share_no_folder():
    """What a Python block prints of its sweep is of its own jobs, also after the commands above it."""
    for page in PAGES:
        text = page.read_text()
        shell = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        python = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
        shared = set(re.findall(r"--out (\S+)", shell)) & set(re.findall(r'out="(.+?)"', python))
        assert not shared, f"{page.name} writes to {shared} twice"


# Each block has a process of its own, in its page's folder, forked from one that has made the slow imports.
RUNNER = """
import os, runpy, sys
import torch, shiftbed.tables, shiftbed.sweeps.verbs, shiftbed.algorithms
for block in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.chdir(os.path.dirname(block))
        os.environ["SHIFTBED_DATA"] = os.path.join(os.getcwd(), "data")
        sys.argv = [block]
        runpy.run_path(block, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, block
"""


def test_python_blocks_run(tmp_path):
    scripts = []
    for page in blocks("python"):
        folder, (texts,) = tmp_path / page.id, page.values
        folder.mkdir()
        (folder / "my_algorithms.py").write_text(texts[-1])
        for number, text in enumerate(texts):
            scripts.append(folder / f"block-{number}.py")
            scripts[-1].write_text(text)
    done = subprocess.run([sys.executable, "-c", RUNNER, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("texts", blocks("sh"))
def test_shell_blocks_run(texts, tmp_path):
    python = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my_algorithms.py").write_text(python[-1])
    for line in "".join(texts).splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "shiftbed":
            here = {**os.environ, "SHIFTBED_DATA": str(tmp_path / "data")}
            subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=here, check=True, capture_output=True)


def test_every_link_to_a_file_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
