"""Latents as they are given to a codebook or a stack: their checks, layout, masks and dtype."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from einops import rearrange
from torch import Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Dtype for distances: float32, or float64 when a tensor has it."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def vectors_last(
    z: Tensor, mask: Tensor | None, dim: int, channel_first: bool, least_axes: int = 1
) -> Tensor:
    """Latents with the vector axis last, after checking them and their mask.

    Args:
        z: (..., D), or (B, D, ...) with ``channel_first``.
        mask: bool, z's shape without the vector axis, or None.
        dim: D.
        channel_first: Where the vector axis is.
        least_axes: That z must have, with the vector axis.

    Raises:
        ValueError: If a shape does not fit.
        TypeError: If a dtype does not fit.
    """
    least_axes = max(least_axes, 2 if channel_first else 1)
    if not z.is_floating_point():
        raise TypeError(f"latents must be floating point, got {z.dtype}")
    if z.dim() < least_axes or z.shape[1 if channel_first else -1] != dim:
        layout = "(B, D, ...)" if channel_first else "(..., D)"
        raise ValueError(
            f"latents must be {layout} of at least {least_axes} axes with D = dim = {dim}, got "
            f"shape {tuple(z.shape)}; channel_first=True puts the vector axis second, "
            "channel_first=False last"
        )
    vectors = rearrange(z, "b d ... -> b ... d") if channel_first else z  # (..., D)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool (False for padding), got {mask.dtype}")
        if mask.shape != vectors.shape[:-1]:
            raise ValueError(
                "mask must be bool and must have the latents' shape without the vector axis, "
                f"{tuple(vectors.shape[:-1])}, got {tuple(mask.shape)}"
            )
    return vectors


def with_masks(
    latents: Tensor | Iterable[Tensor], mask: Tensor | Iterable[Tensor] | None
) -> list[tuple[Tensor, Tensor | None]]:
    """One or several tensors of latents, each with its mask.

    Raises:
        ValueError: If there is no tensor, or not a mask for each.
    """
    parts = [latents] if isinstance(latents, Tensor) else list(latents)
    if not parts:
        raise ValueError("no batch of latents was given; pass at least one tensor")
    masks = [mask] * len(parts) if mask is None or isinstance(mask, Tensor) else list(mask)
    if len(masks) != len(parts):
        raise ValueError(f"{len(parts)} tensors of latents need as many masks, got {len(masks)}")
    return list(zip(parts, masks, strict=True))
