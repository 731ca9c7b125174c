"""The rooms: who may import whom, and what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import shiftbed

PACKAGE = Path(shiftbed.__file__).parent
ORDER = (
    *("errors", "yaml_files", "hashing", "drawing", "registry", "published", "data", "protocols", "networks"),
    *("hparams", "algorithms", "selection", "training", "sweeps", "tables", "shift", "accuracy", "audit"),
    *("benchmarks", "report", "cli", "__main__"),
)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "shiftbed":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shiftbed."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("shiftbed.")}
    return rooms


def test_rooms_import_only_from_rooms_before_them():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for other in imported_rooms(path) & set(ORDER):
            if ORDER.index(other) > ORDER.index(room):
                wrong.append(f"{path.name} in {room} imports {other}")
    assert not wrong


def test_every_room_is_in_the_order():
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert rooms - {"__pycache__", "__init__"} <= set(ORDER)


def test_importing_shiftbed_and_the_help_do_not_import_torch():
    code = (
        "import sys, shiftbed, shiftbed.cli\n"
        "sys.argv = ['shiftbed', '--help']\n"
        "try:\n    shiftbed.cli.main()\nexcept SystemExit as exit:\n    assert exit.code == 0\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
