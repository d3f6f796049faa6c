"""How an option is declared: by its name, type and default in a class, and a sentence under Args.

The same holds for the sections of a config and for the codebooks of softvq, so that the command
line, the config and its checks read one description of either.
"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple

from ..errors import UserError

KINDS: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str}


class Option(NamedTuple):
    """An option of a run.

    Attributes:
        name: Its name on the command line, in config.json and in checkpoints.
        kind: Its type: float, int, bool or str.
        default: Its value when none is given.
        help: What it does.
        choices: The words that it may be; none if it is free.
        minimum: The least number that it may be.
        maximum: The largest number that it may be.
        above: A number that it must be more than.
        only: The quantizers that it is for; none if it is for all.
        path: Whether it names a file or a folder.
    """

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    only: tuple[str, ...] = ()
    path: bool = False

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or outside the range or the choices.

        Raises:
            UserError: With the option's name, the value, and what it must be.
        """
        must = None
        kinds: Any = (int, float) if self.kind is float else self.kind
        if self.choices and value not in self.choices:
            must, value = f"one of {', '.join(self.choices)}", repr(value)
        elif not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            must, value = f"of type {self.kind.__name__}", repr(value)
        elif isinstance(value, float) and not math.isfinite(value):
            must = "a finite number"
        elif self.minimum is not None and value < self.minimum:
            must = f"at least {self.minimum}"
        elif self.maximum is not None and value > self.maximum:
            must = f"at most {self.maximum}"
        elif self.above is not None and value <= self.above:
            must = f"more than {self.above}"
        if must:
            raise UserError(f"{self.name} must be {must}, got {value}")


def flag_of(name: str) -> str:
    """The flag of an option's name.

    Example:
        >>> flag_of("codebook_size")
        '--codebook-size'
    """
    return "--" + name.replace("_", "-")


def option(default: Any, **more: Any) -> Any:
    """A field of a section, which :func:`options_of` finds.

    Args:
        default: Its value when none is given.
        more: Any of the last attributes of :class:`Option`, and another name than the field's.
    """
    return field(default=default, metadata=more)


def options_of(section: type[Any]) -> dict[str, Option]:
    """The options that a dataclass declares, by the names of its fields.

    Args:
        section: Its fields with a default value, and a sentence under Args, are options.
    """
    texts = argument_texts(section)
    found = {}
    for spec in fields(section):
        if spec.default is not MISSING:
            kind = KINDS[str(spec.type).removesuffix(" | None")]
            own = {"name": spec.name, **spec.metadata}
            found[spec.name] = Option(kind=kind, default=spec.default, help=texts[spec.name], **own)
    return found


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
