"""Packages that only some commands need."""

from __future__ import annotations

from importlib import import_module

from training.errors import UserError


def require(*names: str, purpose: str = "this command") -> None:
    """Import packages, or say how all that are missing are installed.

    Args:
        names: Of modules, as they are imported.
        purpose: What needs them.

    Raises:
        UserError: If any cannot be imported.

    Example:
        >>> require("json", "csv")
        >>> require("json", "no_such_package", purpose="it")
        Traceback (most recent call last):
        ...
        training.errors.UserError: it needs no_such_package: pip install -e ".[experiments]"
    """
    missing = []
    for name in names:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise UserError(f'{purpose} needs {", ".join(missing)}: pip install -e ".[experiments]"')
