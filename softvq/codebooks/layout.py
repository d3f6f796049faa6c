"""Latents, masks and indices in the layouts that codebooks take: checked, flattened, given back.

Shapes: ``...`` is the layout of the latents without their vector axis, N the number of vectors,
D the vector size, K the codebook size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from einops import rearrange
from torch import Tensor


def vectors_last(
    z: Tensor, mask: Tensor | None, dim: int, channel_first: bool, least_axes: int = 1
) -> Tensor:
    """Latents with the vector axis last, after checking them and their mask.

    Args:
        z: (..., D), or (B, D, ...) with ``channel_first``.
        mask: bool, z's shape without the vector axis, or None.
        dim: D.
        channel_first: Whether the vector axis is the second one instead of the last.
        least_axes: Minimum number of axes of z, including the vector axis.

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
    check_mask(mask, vectors.shape[:-1], "the latents' shape without the vector axis,")
    return vectors


def check_mask(mask: Tensor | None, shape: Sequence[int], whose: str) -> None:
    """Refuse a mask that is not bool, or not of a shape.

    Args:
        mask: bool, False for padding, or None, which fits anything.
        shape: What the mask must have.
        whose: Words for that shape, for the message.

    Raises:
        ValueError: If the shape does not fit.
        TypeError: If the dtype does not fit.
    """
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool (False for padding), got {mask.dtype}")
    if mask.shape != shape:
        raise ValueError(
            f"mask must be bool and must have {whose} {tuple(shape)}, got {tuple(mask.shape)}"
        )


def in_layout(vectors: Tensor, channel_first: bool) -> Tensor:
    """Vectors (..., D) as (B, D, ...) with ``channel_first``; a single one has no batch axis."""
    moved = channel_first and vectors.dim() > 1
    return rearrange(vectors, "b ... d -> b d ...") if moved else vectors


def with_masks(
    latents: Tensor | Iterable[Tensor], mask: Tensor | Iterable[Tensor | None] | None
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


def checked_indices(indices: Tensor, size: int) -> Tensor:
    """Indices as int64, after checking them.

    Args:
        indices: Integers in [0, K), or -1 for padding.
        size: K, number of prototypes.

    Raises:
        IndexError: If an index lies outside [-1, K).
        TypeError: If the indices are not integers.
    """
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise TypeError(f"indices must be integers, got {indices.dtype}")
    # Indexing takes uint8 for a mask, and the other narrow dtypes not at all.
    indices = indices.to(torch.int64)
    # A captured graph cannot branch on values.
    captured = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if not captured and indices.numel():
        low, high = (int(bound) for bound in indices.aminmax())
        if low < -1 or high >= size:
            raise IndexError(
                f"indices must lie in [0, {size}), or be -1 for padding; "
                f"got values from {low} to {high}; are they of another codebook?"
            )
    return indices


def unflattened(flat: Tensor, z: Tensor, channel_first: bool) -> Tensor:
    """(N,) or (N, D) in the layout of z without its vector axis, D last."""
    axis = 1 if channel_first else z.dim() - 1
    return flat.reshape((*z.shape[:axis], *z.shape[axis + 1 :], *flat.shape[1:]))
