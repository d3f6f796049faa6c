"""How an option is declared: in a class, by its name, type and default and a sentence under Args.

The same holds for the sections of a config and for the codebooks of softvq, so that the command
line, the config and its checks read one description of either.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..errors import UserError

KINDS: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str}


class Range(NamedTuple):
    """The numbers that an option may be: from minimum to maximum, and more than above."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None


class Choices(tuple[str, ...]):
    """The words that an option may be."""


class Flat(str):
    """The name of an option outside its section, where that is not the field's."""


class For(tuple[str, ...]):
    """The quantizers that an option is for."""


class Option(NamedTuple):
    """An option of a run.

    Attributes:
        name: Its name on the command line, in config.json and in checkpoints.
        kind: Its type: float, int, bool or str.
        default: Its value when none is given.
        help: What it does.
        choices: The words that it may be; none if it is free.
        range: The numbers that it may be.
        only: The quantizers that it is for; none if it is for all.
    """

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    range: Range = Range()
    only: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return flag_of(self.name)

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or outside the range or the choices.

        Raises:
            UserError: With the option's name, the value, and what it must be.
        """
        low, high, above = self.range
        must = None
        if self.choices and value not in self.choices:
            must, value = f"one of {', '.join(self.choices)}", repr(value)
        elif self.kind is not str and not isinstance(value, (int, self.kind)):
            must, value = f"of type {self.kind.__name__}", repr(value)
        elif isinstance(value, float) and not math.isfinite(value):
            must = "a finite number"
        elif low is not None and value < low:
            must = f"at least {low}"
        elif high is not None and value > high:
            must = f"at most {high}"
        elif above is not None and value <= above:
            must = f"more than {above}"
        if must:
            raise UserError(f"{self.name} must be {must}, got {value}")


def flag_of(name: str) -> str:
    """The flag of an option's name.

    Example:
        >>> flag_of("codebook_size")
        '--codebook-size'
    """
    return "--" + name.replace("_", "-")


def options_of(section: type) -> dict[str, Option]:
    """The options that a dataclass declares, by the names of its fields.

    Args:
        section: Its fields may be annotated with :class:`Range`, :class:`Choices` and
            :class:`For`; those with a default value and a sentence under Args are options.
    """
    hints, texts = get_type_hints(section, include_extras=True), argument_texts(section)
    return {
        spec.name: _option(spec.name, hints[spec.name], spec.default, texts[spec.name])
        for spec in fields(section)
        if spec.default is not MISSING
    }


def _option(name: str, hint: Any, default: Any, text: str) -> Option:
    parts = list(_parts(hint))
    kind = next(part for part in parts if part in KINDS.values())
    found = {type(part): part for part in parts}
    limits, words, only = found.get(Range, Range()), found.get(Choices, ()), found.get(For, ())
    flat = str(found.get(Flat, name))
    return Option(flat, kind, default, text, tuple(words), limits, tuple(only))


def _parts(hint: Any) -> Iterator[Any]:
    """The types of a union, and what they are annotated with."""
    if get_origin(hint) is Annotated:
        yield from _parts(hint.__origin__)
        yield from hint.__metadata__
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def argument_texts(documented: Any) -> dict[str, str]:
    r"""What the Args section of a docstring says of each argument, as plain text.

    Args:
        documented: A class or function, or its docstring.

    Example:
        >>> argument_texts("A class.\n\nArgs:\n    beta: A weight, ``>= 0``.\n")
        {'beta': 'A weight, >= 0.'}
    """
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    section = re.search(r"^Args:\n((?:(?: .*)?\n?)+)", text, re.MULTILINE)
    entries = re.split(r"^ {4}(\w+): ", section[1] if section else "", flags=re.MULTILINE)
    plain = [re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", r"\1\2", entry) for entry in entries]
    return {n: " ".join(t.split()) for n, t in zip(plain[1::2], plain[2::2], strict=True)}
