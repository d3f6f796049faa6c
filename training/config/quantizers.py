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
    """

    options: dict[str, Option]
    soft: bool


@functools.cache
def read_quantizers() -> dict[str, Quantizer]:
    """Read the quantizers that the table names: classes, and functions that a ``partial`` calls.

    Example:
        >>> read_quantizers()["vq"].options["decay"].default
        0.99
    """
    known = _definitions("softvq", "codebooks") | _definitions("models", "")
    table = known["QUANTIZERS"]
    assert isinstance(table, ast.AnnAssign)
    assert isinstance(table.value, ast.Dict)
    found = {}
    for key, value in zip(table.value.keys, table.value.values, strict=True):
        name = value.args[0] if isinstance(value, ast.Call) else value
        assert isinstance(key, ast.Constant)
        found[str(key.value)] = _quantizer(known[ast.unparse(name)])
    return found


def _definitions(package: str, folder: str) -> dict[str, ast.stmt]:
    """What the modules of a folder define at their top, found without importing its package."""
    spec = find_spec(package)
    assert spec is not None
    found: dict[str, ast.stmt] = {}
    for path in Path(str(spec.origin)).parent.joinpath(folder).glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                found[ast.unparse(node.target)] = node
    return found


def _quantizer(node: ast.stmt) -> Quantizer:
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    functions = (inner for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef))
    arguments = next(own for own in functions if own.name in ("__init__", node.name)).args
    texts = argument_texts(ast.get_docstring(node) or "")
    options = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        name, note = argument.arg, argument.annotation
        kind, choices = (KINDS.get(ast.unparse(note)) if note else None), ()
        if isinstance(note, ast.Subscript) and ast.unparse(note.value) == "Literal":
            kind, choices = str, ast.literal_eval(note.slice)
        if kind is not None and default is not None and name not in SET_BY_RUN:
            options[name] = Option(name, kind, ast.literal_eval(default), texts[name], choices)
    return Quantizer(options, any(a.arg == "temperature" for a in arguments.kwonlyargs))


# One level of these is a fixed lattice behind a projection, not a set of points among the latents.
LATTICES = ("fsq", "lfq")
QUANTIZERS = tuple(read_quantizers())
SOFT = tuple(name for name, q in read_quantizers().items() if q.soft)
OWN = tuple(name for name, q in read_quantizers().items() if q.options)


def owners(name: str) -> dict[str, Option]:
    """The quantizers whose constructors have a keyword, each with its own description of it.

    Example:
        >>> list(owners("balance"))
        ['ddcl-em', 'ddcl']
    """
    return {q: own.options[name] for q, own in read_quantizers().items() if name in own.options}
