import ast
import subprocess
import sys
from pathlib import Path

import pytest

import softvq

ROOT = Path(softvq.__file__).parents[1]
FILES = sorted(Path(softvq.__file__).parent.rglob("*.py"))
PUBLIC = {"softvq.functional", "softvq.geometry", "softvq.diagnosis"}
# Optional dependencies, imported where they are used.
LAZY = {"plotting.py": {"matplotlib"}, "serialization.py": {"safetensors"}}


def within(tree, *kinds):
    """The nodes that lie inside nodes of some kinds."""
    outer = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {id(child) for node in outer for child in ast.walk(node)}


def modules(tree):
    """Each absolute import of a module: its node, and the full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node, node.module


def imported(tree):
    """Top-level names that a module imports, and whether it does so on being imported."""
    lazy = within(tree, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        # What only a type checker reads is never imported.
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node, name in modules(tree):
        yield name.split(".")[0], id(node) not in lazy


def test_the_walk_finds_every_kind_of_import():
    source = (
        "import a.b\nfrom c import d\nfrom .e import f\n"
        "if TYPE_CHECKING:\n    import g\nelse:\n    import h\n"
        "class I:\n    import j\n    def k(self):\n        from l.m import n\n"
    )
    found = {("a", True), ("c", True), ("h", True), ("j", True), ("l", False)}
    assert set(imported(ast.parse(source))) == found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_sources_import_torch_einops_and_the_standard_library_only(path):
    allowed = {"torch", "einops", "softvq", *sys.stdlib_module_names}
    for name, eager in imported(ast.parse(path.read_text(encoding="utf-8"))):
        assert name not in {"models", "training", "train", "eval"}
        assert name in allowed or (not eager and name in LAZY.get(path.name, set())), name


def private_imports(folder):
    """Imports in a package of modules of softvq that are not public."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for _, module in modules(ast.parse(path.read_text(encoding="utf-8"))):
            if module.startswith("softvq.") and module not in PUBLIC:
                yield f"{path.relative_to(ROOT).as_posix()}: {module}"


@pytest.mark.parametrize(
    "folder", ["models", "training", "eval", "experiments", "benchmarks", "examples"]
)
def test_other_packages_import_public_names_only(folder):
    assert not set(private_imports(folder))


def test_importing_softvq_loads_nothing_heavy():
    code = (
        "import sys, torch, einops; before = set(sys.modules); import softvq; "
        "print(*{m.split('.')[0] for m in sys.modules}); "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded, added = (set(line.split()) for line in result.stdout.splitlines())
    assert "softvq" in loaded
    heavy = {"torchvision", "click", "tensorboard", "matplotlib", "sklearn"}
    assert not loaded & (heavy | {"models", "training", "train", "eval"})
    # torch loads its own dependencies late, when softvq asks for torch.export.
    late = {"sympy", "mpmath", "numpy", "networkx", "jinja2", "markupsafe", "optree"}
    assert added <= {"softvq", "torch", "einops", *late, *sys.stdlib_module_names}
