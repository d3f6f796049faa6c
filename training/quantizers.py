"""The quantizers and their options, read from the sources of their classes.

``models.build.QUANTIZERS`` is the one table of names. The options of a quantizer are the keywords
of its constructor, with the defaults there and the sentences of the docstring's Args section. They
are parsed, not imported, because ``--help`` must not wait for torch.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Keywords of a constructor that the run itself sets.
SET_BY_RUN = ("seed", "channel_first")
KINDS: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str}


class QuantizerOption(NamedTuple):
    """A keyword of a codebook's constructor.

    Attributes:
        name: The keyword.
        kind: Its type: float, int, bool or str.
        choices: The values of a Literal, or None.
        default: The default in the constructor.
        help: The text of the class's Args section.
    """

    name: str
    kind: type
    choices: tuple[str, ...] | None
    default: float | int | bool | str
    help: str


class Quantizer(NamedTuple):
    """A quantizer that a run can have.

    Attributes:
        options: The keywords that a run may set, by name.
        soft: Whether the constructor takes a temperature.
        peer: Whether it is a quantizer of vector-quantize-pytorch.
    """

    options: dict[str, QuantizerOption]
    soft: bool
    peer: bool


@functools.cache
def read_quantizers(table: str = "models.build") -> dict[str, Quantizer]:
    """Read the quantizers that a module's table ``QUANTIZERS`` names.

    Args:
        table: Name of the module. Its table maps names to classes, or to a function in
            ``functools.partial``, which makes a peer.

    Example:
        >>> read_quantizers()["vq"].options["decay"].default
        0.99
    """
    path = _source(table)
    found = {}
    for key, value in _table(_parsed(path)):
        peer = isinstance(value, ast.Call)
        target = value.args[0] if isinstance(value, ast.Call) else value
        assert isinstance(target, ast.Name)
        found[key] = _quantizer(_definition(target.id, path), peer)
    return found


def _table(module: ast.Module) -> list[tuple[str, ast.expr]]:
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "QUANTIZERS":
            assert isinstance(node.value, ast.Dict)
            keys = [ast.literal_eval(key) for key in node.value.keys if key is not None]
            return list(zip(keys, node.value.values, strict=True))
    raise LookupError("there is no table QUANTIZERS")


def _source(module: str) -> Path:
    """The file of a module, found without importing its package."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no package {top}")
    path = Path(spec.origin).parent.joinpath(*rest)
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
            if not node.level:
                return _definition(name, _source(str(node.module)))
            base = path.parents[node.level - 1].joinpath(*str(node.module).split("."))
            inside = base / "__init__.py"
            return _definition(name, inside if inside.exists() else base.with_suffix(".py"))
    raise LookupError(f"{path} has no {name}")


def _quantizer(node: ast.ClassDef | ast.FunctionDef, peer: bool) -> Quantizer:
    call = node
    if isinstance(node, ast.ClassDef):
        call = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    assert isinstance(call, ast.FunctionDef)
    texts = _argument_texts(ast.get_docstring(node) or "")
    options = {}
    for argument, default in zip(call.args.kwonlyargs, call.args.kw_defaults, strict=True):
        kind, choices = _kind(argument.annotation)
        if kind is not None and default is not None and argument.arg not in SET_BY_RUN:
            value = ast.literal_eval(default)
            text = texts.get(argument.arg, "")
            options[argument.arg] = QuantizerOption(argument.arg, kind, choices, value, text)
    return Quantizer(options, "temperature" in [a.arg for a in call.args.kwonlyargs], peer)


def _kind(annotation: ast.expr | None) -> tuple[type | None, tuple[str, ...] | None]:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return str, ast.literal_eval(annotation.slice)
    return (KINDS.get(ast.unparse(annotation)) if annotation else None), None


def _argument_texts(docstring: str) -> dict[str, str]:
    """What the Args section says of each argument, as plain text."""
    section = re.search(r"^Args:\n((?:(?: .*)?\n?)+)", inspect.cleandoc(docstring), re.MULTILINE)
    entries = re.split(r"^ {4}(\w+): ", section[1] if section else "", flags=re.MULTILINE)
    plain = [re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", r"\1\2", text) for text in entries]
    return {n: " ".join(t.split()) for n, t in zip(plain[1::2], plain[2::2], strict=True)}


# One level of these is a fixed lattice behind a projection, not a set of points among the latents.
LATTICES = ("fsq", "lfq")
QUANTIZERS = tuple(read_quantizers())
PEERS = tuple(name for name, q in read_quantizers().items() if q.peer)
SOFT = tuple(name for name, q in read_quantizers().items() if q.soft)
OWN = tuple(name for name, q in read_quantizers().items() if q.options)
