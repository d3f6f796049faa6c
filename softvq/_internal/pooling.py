"""Averages over blocks of a grid, and back: how a stack changes resolution between levels.

A grid is (B, S_1, ..., S_n, D): batch, any number of axes, vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def pool(z: Tensor, factor: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Means over blocks of ``factor`` places along every axis of the grid.

    The last block of an axis may be shorter. Masked places do not count.

    Args:
        z: (B, S_1, ..., S_n, D).
        factor: Side of a block, at least 1.
        mask: bool (B, S_1, ..., S_n), False for padding, or None.

    Returns:
        The means, (B, ceil(S_1 / factor), ..., D), zero for a block without a place that counts,
        and the mask of the blocks, None where no mask was given.

    Example:
        >>> means, _ = pool(torch.tensor([[[1.0], [3.0], [5.0]]]), 2)
        >>> means.flatten().tolist()
        [2.0, 5.0]
    """
    if mask is not None:
        z = torch.where(mask[..., None], z, 0.0)
    if factor == 1:
        return z, mask
    kept = z.new_ones(z.shape[:-1]) if mask is None else mask.to(z.dtype)  # (B, *S)
    counts = _block_sums(kept[..., None], factor)  # (B, *cells, 1)
    means = _block_sums(z, factor) / counts.clamp_min(1)
    return means, None if mask is None else counts.squeeze(-1) > 0


def unpool(cells: Tensor, factor: int, shape: Sequence[int]) -> Tensor:
    """Every block's vector at all of its places; the adjoint of block sums.

    Args:
        cells: (B, ceil(S_1 / factor), ..., D).
        factor: Side of a block, at least 1.
        shape: (S_1, ..., S_n).

    Returns:
        (B, S_1, ..., S_n, D).

    Example:
        >>> unpool(torch.tensor([[[2.0], [5.0]]]), 2, (3,)).flatten().tolist()
        [2.0, 2.0, 5.0]
    """
    if factor == 1:
        return cells
    for axis, length in enumerate(shape, start=1):
        cells = cells.repeat_interleave(factor, dim=axis).narrow(axis, 0, length)
    return cells


def grid_shape(
    cells: Sequence[Sequence[int]], factors: Sequence[int], shape: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The grid that blocks of several sizes cover.

    Args:
        cells: Of each level, (B, cells of axis 1, ...).
        factors: Sides of the levels' blocks, as many as ``cells`` or more.
        shape: (S_1, ..., S_n) if it is known; the largest that fits all levels by default.

    Returns:
        (S_1, ..., S_n).

    Raises:
        ValueError: If there is no such grid, or it is not the one given.

    Example:
        >>> grid_shape([(1, 2), (1, 5)], (3, 1))
        (5,)
    """
    ends = [[n * factor for n in level[1:]] for level, factor in zip(cells, factors, strict=False)]
    found = tuple(map(min, zip(*ends, strict=False))) if shape is None else tuple(shape)
    for level, factor, end in zip(cells, factors, ends, strict=False):
        fits = (top - factor < size <= top for top, size in zip(end, found, strict=False))
        if len(found) != len(end) or list(level[:1]) != list(cells[0][:1]) or not all(fits):
            raise ValueError(
                f"indices of shapes {[tuple(level) for level in cells]}, pooled by "
                f"{tuple(factors[: len(cells)])}, do not all belong to a grid of shape {found}"
            )
    return found


def _block_sums(z: Tensor, factor: int) -> Tensor:
    """(B, *S, D) to (B, *cells, D)."""
    shape = z.shape[1:-1]
    # F.pad counts axes from the last, and the vectors are not padded.
    missing = [(-length) % factor for length in reversed(shape)]
    z = F.pad(z, [0, 0, *(side for after in missing for side in (0, after))])
    cells = [math.ceil(length / factor) for length in shape]
    split = [size for count in cells for size in (count, factor)]
    blocks = z.reshape(z.shape[0], *split, z.shape[-1])
    return blocks.sum(dim=tuple(range(2, 2 * len(shape) + 1, 2)))


def level_masks(z: Tensor, mask: Tensor | None, count: int, dropout: float) -> list[Tensor | None]:
    """The mask of each level: without the items of the batch that drop it.

    Args:
        z: (B, ..., D) latents, or (D,).
        mask: bool, z's shape without the vector axis, False for padding, or None.
        count: L, number of levels.
        dropout: Probability that an item keeps a prefix of the levels only.

    Example:
        >>> level_masks(torch.zeros(2, 3), None, 2, dropout=0.0)
        [None, None]
    """
    if not dropout or count == 1:
        return [mask] * count
    items = z.shape[:1] if z.dim() > 1 else ()
    prefix = torch.randint(1, count, items, device=z.device)
    drops = torch.rand(items, device=z.device) < dropout
    kept = torch.where(drops, prefix, count).reshape(*items, *(1,) * (z.dim() - 1 - len(items)))
    alive = [(kept > number).expand(z.shape[:-1]) for number in range(count)]
    return [part if mask is None else mask & part for part in alive]
