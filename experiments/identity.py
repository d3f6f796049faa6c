"""The identity L_q = L_OLS + V, measured and checked in the same way by every experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# Float64 keeps the identity to about 3e-13 and float32 mostly to 3e-7. Where latents lie close to
# their prototypes, float32 loses digits of the small difference of large squares: 2e-5 was seen.
TOLERANCE = 1e-4


def identity_residual(losses: Mapping[str, Any]) -> float:
    """Return ``|L_q - L_OLS - V| / L_q``, which is zero up to rounding.

    Args:
        losses: Holds ``loss_q``, ``loss_ols`` and ``variance``, as numbers or scalar tensors.

    Example:
        >>> round(identity_residual({"loss_q": 1.0, "loss_ols": 0.75, "variance": 0.125}), 3)
        0.125
    """
    loss_q, loss_ols, variance = (float(losses[n]) for n in ("loss_q", "loss_ols", "variance"))
    return abs(loss_q - loss_ols - variance) / max(loss_q, sys.float_info.min)


def checked_residual(losses: Mapping[str, Any]) -> float:
    """Return :func:`identity_residual`, and stop the run where the identity does not hold.

    Args:
        losses: See :func:`identity_residual`.

    Raises:
        ArithmeticError: If the residual exceeds ``TOLERANCE``, or a loss is not finite.

    Example:
        >>> checked_residual({"loss_q": 1.0, "loss_ols": 0.75, "variance": 0.125})
        Traceback (most recent call last):
        ...
        ArithmeticError: L_q is not L_OLS + V: relative residual 0.12, expected at most 0.0001
    """
    residual = identity_residual(losses)
    if not residual <= TOLERANCE:  # NaN is not, either
        raise ArithmeticError(
            f"L_q is not L_OLS + V: relative residual {residual:.2g}, expected at most {TOLERANCE}"
        )
    return residual
