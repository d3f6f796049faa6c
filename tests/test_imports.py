import ast
import subprocess
import sys
from pathlib import Path

import pytest

import softvq

FILES = sorted(Path(softvq.__file__).parent.rglob("*.py"))
# Optional, and only where something is drawn.
LAZY = {"utilization.py": {"matplotlib"}}


def imported(tree):
    """Top-level names that a module imports, and whether the import runs on import."""
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        else:
            continue
        for name in names:
            yield name.split(".")[0], id(node) not in inside


def test_the_walk_finds_every_kind_of_import():
    source = (
        "import a.b\nfrom c import d\nfrom .e import f\n"
        "if TYPE_CHECKING:\n    import g\ndef h():\n    from i.j import k\n"
    )
    assert set(imported(ast.parse(source))) == {
        ("a", True),
        ("c", True),
        ("g", False),
        ("i", False),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_sources_import_torch_einops_and_the_standard_library_only(path):
    allowed = {"torch", "einops", "softvq", *sys.stdlib_module_names}
    for name, eager in imported(ast.parse(path.read_text(encoding="utf-8"))):
        assert name not in {"models", "training", "train", "eval"}
        assert name in allowed or (not eager and name in LAZY.get(path.name, set())), name


def test_importing_softvq_loads_nothing_heavy():
    code = (
        "import sys, torch, einops; before = set(sys.modules); import softvq; "
        "print(*{m.split('.')[0] for m in sys.modules}); "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    root = Path(softvq.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    loaded, added = (set(line.split()) for line in result.stdout.splitlines())
    assert "softvq" in loaded
    heavy = {"torchvision", "click", "tensorboard", "matplotlib", "sklearn"}
    assert not loaded & (heavy | {"models", "training", "train", "eval"})
    # torch loads its own dependencies late, when softvq asks for torch.export.
    late = {"sympy", "mpmath", "numpy", "networkx", "jinja2", "markupsafe", "optree"}
    assert added <= {"softvq", "torch", "einops", *late, *sys.stdlib_module_names}
