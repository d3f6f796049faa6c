"""Devices by name."""

from __future__ import annotations

import torch

from .errors import UserError


def choose_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        UserError: If it is unknown or not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).split("\n", 1)[0].split(". ", 1)[0]
        raise UserError(f"device {name!r} cannot be used here ({reason:.120}); try auto") from error
    return device
