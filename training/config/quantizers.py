"""The quantizers and their options, read from the sources of their classes.

``models.build.QUANTIZERS`` is the one table of names. The options of a quantizer are the keywords
of its constructor, with the defaults there and the sentences of the docstring's Args section. They
are parsed, not imported, because ``--help`` must not wait for torch.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from .declaration import KINDS, Option, argument_texts

# Keywords of a constructor that the run itself sets.
SET_BY_RUN = ("seed", "channel_first")


class Quantizer(NamedTuple):
    """A quantizer that a run can have.

    Attributes:
        options: The keywords that a run may set, by name.
        soft: Whether the constructor takes a temperature.
        peer: Whether it is a quantizer of vector-quantize-pytorch.
    """

    options: dict[str, Option]
    soft: bool
    peer: bool


@functools.cache
def read_quantizers() -> dict[str, Quantizer]:
    """Read the quantizers that the table names: classes, and peers made by a ``partial``.

    Example:
        >>> read_quantizers()["vq"].options["decay"].default
        0.99
    """
    path = _source("models.build")
    table = next(
        node.value
        for node in _parsed(path).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "QUANTIZERS"
    )
    assert isinstance(table, ast.Dict)
    found = {}
    for key, value in zip(table.keys, table.values, strict=True):
        peer = isinstance(value, ast.Call)
        target = ast.unparse(value.args[0] if isinstance(value, ast.Call) else value)
        assert isinstance(key, ast.Constant)
        found[str(key.value)] = _quantizer(_definition(target, path), peer)
    return found


def _source(module: str) -> Path:
    """The file of a module, found without importing its package."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    assert spec is not None
    return _file(Path(str(spec.origin)).parent.joinpath(*rest))


def _file(path: Path) -> Path:
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _definition(name: str, path: Path) -> ast.ClassDef | ast.FunctionDef:
    """The class or function of a name, followed through the imports of its module."""
    for node in _parsed(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            module = str(node.module)
            if not node.level:
                return _definition(name, _source(module))
            return _definition(name, _file(path.parents[node.level - 1] / Path(*module.split("."))))
    raise LookupError(f"{path} has no {name}")


def _quantizer(node: ast.ClassDef | ast.FunctionDef, peer: bool) -> Quantizer:
    inside = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef)]
    arguments = next(n for n in inside if peer or n.name == "__init__").args
    texts = argument_texts(ast.get_docstring(node) or "")
    options = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        name, note = argument.arg, argument.annotation
        kind, choices = (KINDS.get(ast.unparse(note)) if note else None), ()
        if isinstance(note, ast.Subscript) and ast.unparse(note.value) == "Literal":
            kind, choices = str, ast.literal_eval(note.slice)
        if kind is not None and default is not None and name not in SET_BY_RUN:
            options[name] = Option(name, kind, ast.literal_eval(default), texts[name], choices)
    return Quantizer(options, any(a.arg == "temperature" for a in arguments.kwonlyargs), peer)


# One level of these is a fixed lattice behind a projection, not a set of points among the latents.
LATTICES = ("fsq", "lfq")
QUANTIZERS = tuple(read_quantizers())
PEERS = tuple(name for name, q in read_quantizers().items() if q.peer)
SOFT = tuple(name for name, q in read_quantizers().items() if q.soft)
OWN = tuple(name for name, q in read_quantizers().items() if q.options)


def owners(name: str) -> dict[str, Option]:
    """The quantizers whose constructors have a keyword, each with its own description of it.

    Example:
        >>> list(owners("balance"))
        ['ddcl-em']
    """
    return {q: own.options[name] for q, own in read_quantizers().items() if name in own.options}
