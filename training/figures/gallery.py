"""A gallery of codes: the patches of images that choose each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..data.feed import to_float
from .layout import new_figure, show_mosaic
from .sample import LevelSample, evenly

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CodePatches(NamedTuple):
    """What chooses a code.

    Attributes:
        code: Its index.
        uses: Tokens that chose it.
        tokens: (P,) int64, places in ``indices.flatten()`` of those that are shown.
        patches: uint8 (P, C, s, s).
    """

    code: int
    uses: int
    tokens: Tensor
    patches: Tensor


def code_patches(
    images: Tensor, level: LevelSample, codes: Sequence[int], per_code: int = 8
) -> list[CodePatches]:
    """Patches of the images around tokens of some codes.

    What a token sees, its receptive field, is approximated by its cell, the square of
    ``level.side`` pixels in its place, with a margin of half of that on every side. Beyond the
    border of the image its last pixels are repeated.

    Args:
        images: uint8 (B, C, H, W), those that the level's tokens are of.
        level: The tokens.
        codes: Indices in [0, K).
        per_code: Patches of each code at most, evenly spaced among all of its tokens.

    Returns:
        One for each code, in their order.

    Example:
        >>> images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
        >>> level = LevelSample(torch.tensor([[[0, 1], [0, 0]]]), torch.zeros(2, 1), side=2)
        >>> [own] = code_patches(images, level, [1])
        >>> own.uses, own.patches[0, 0, 1:3, 1:3].tolist()
        (1, [[2, 3], [6, 7]])
    """
    flat = level.indices.flatten()
    _, height, width = level.indices.shape
    found = []
    for code in codes:
        tokens = (flat == code).nonzero().squeeze(1)
        shown = tokens[evenly(len(tokens), per_code)] if len(tokens) else tokens
        patches = [
            _patch(
                images[token // (height * width)],
                token % (height * width) // width,
                token % width,
                level.side,
            )
            for token in shown.tolist()
        ]
        size = level.side + 2 * margin_of(level.side)
        stacked = (
            torch.stack(patches) if patches else images.new_zeros(0, images.shape[1], size, size)
        )
        found.append(CodePatches(code, len(tokens), shown, stacked))
    return found


def margin_of(side: int) -> int:
    """Pixels shown around a cell."""
    return side // 2


def _patch(image: Tensor, row: int, column: int, side: int) -> Tensor:
    """(C, s, s) around a cell of an image (C, H, W)."""
    reach = torch.arange(side + 2 * margin_of(side)) - margin_of(side)
    rows = (row * side + reach).clamp(0, image.shape[1] - 1)
    columns = (column * side + reach).clamp(0, image.shape[2] - 1)
    return image[:, rows][:, :, columns]


def most_and_least_used(counts: Tensor, number: int) -> tuple[list[int], list[int]]:
    """Codes with the most and with the fewest tokens; those without any are left out.

    Args:
        counts: (K,).
        number: Of each kind at most.

    Returns:
        The most used, most first, and the least used among the others, fewest first.

    Example:
        >>> most_and_least_used(torch.tensor([5, 0, 9, 1]), number=2)
        ([2, 0], [3])
    """
    order = counts.argsort(descending=True, stable=True)
    used = order[counts[order] > 0].tolist()
    return used[:number], used[number:][-number:][::-1]


def gallery_figure(images: Tensor, level: LevelSample, codes: int = 8, per_code: int = 8) -> Figure:
    """Rows of patches: the codes that most and fewest tokens of these images chose.

    Args:
        images: uint8 (B, C, H, W).
        level: Their tokens.
        codes: Rows of each kind.
        per_code: Patches in a row.
    """
    counts = level.counts
    kinds = [
        (name, chosen)
        for name, chosen in zip(
            ("most used", "least used"), most_and_least_used(counts, codes), strict=True
        )
        if chosen
    ]
    rows = [len(chosen) for _, chosen in kinds]
    figure = new_figure(max(0.42 * sum(rows) + 0.6 * len(rows), 1.5) + 0.3)
    blocks = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for axes, (name, chosen) in zip(blocks, kinds, strict=True):
        own = code_patches(images, level, chosen, per_code)
        tiles = torch.cat([_filled(to_float(one.patches), per_code) for one in own])
        show_mosaic(axes, tiles, [f"{one.code} ({one.uses})" for one in own])
        axes.set_title(f"{name} codes", fontsize=10)
        axes.set_ylabel("code (its tokens)")
    unused = int((counts == 0).sum())
    blocks[-1].set_xlabel(
        f"patches that choose the code\n{len(images)} images, {int(counts.sum())} tokens; "
        f"{unused} of {len(counts)} codes not chosen"
    )
    return figure


def _filled(patches: Tensor, number: int) -> Tensor:
    """White tiles after the last patch."""
    missing = number - len(patches)
    return torch.cat([patches, patches.new_ones(missing, *patches.shape[1:])])
