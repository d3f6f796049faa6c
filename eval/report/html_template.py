"""How both pages fill their templates: escaped, and with no name left out in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def filled(template: Path, **values: Any) -> str:
    """A page from a template in this folder.

    Args:
        template: The file.
        values: What it names; one that is missing is an error.

    Example:
        >>> filled(Path(__file__).with_name("cards.html.jinja"))
        Traceback (most recent call last):
        jinja2.exceptions.UndefinedError: 'result' is undefined
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
