"""The house rules of CONTRIBUTING.md that a machine can check."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Each imports from those before it and never from those after it.
LAYERS = ("softvq", "models", "training", "eval", "experiments")
MOST_LINES, MOST_FUNCTION_LINES, MOST_MODULES = 300, 50, 12
FOLDERS = (*LAYERS, "benchmarks", "examples", "tests")
FILES = [ROOT / "train.py"]
FILES += sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PRODUCT = [path for path in FILES if path.relative_to(ROOT).parts[0] in (*LAYERS, "train.py")]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_file_is_longer_than_a_reader_holds_in_mind(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", PRODUCT, ids=named)
def test_no_function_is_longer_than_a_screen(path):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, functions):
            assert node.end_lineno - node.lineno + 1 <= MOST_FUNCTION_LINES, node.name


def test_no_folder_has_more_than_a_dozen_modules():
    for folder in {path.parent for path in PRODUCT} - {ROOT}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, named(folder)


@pytest.mark.parametrize("path", PRODUCT, ids=named)
def test_imports_go_one_way(path):
    room = path.relative_to(ROOT).parts[0]
    # train.py is a command: nothing imports it but a study, or a comparison, that trains.
    after = LAYERS[LAYERS.index(room) + 1 :] if room in LAYERS else ("eval", "experiments")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.split(".")[0] not in after, f"{named(path)} imports {name}"


def test_nothing_that_git_ignores_is_tracked():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not listed
