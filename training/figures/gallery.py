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
        uses: Number of tokens that chose it.
        patches: uint8 (P, C, s, s), around some of these tokens.
    """

    code: int
    uses: int
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
        per_code: Largest number of patches of a code, evenly spaced among all of its tokens.

    Returns:
        One for each code, in their order.

    Example:
        >>> images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
        >>> level = LevelSample(torch.tensor([[[0, 1], [0, 0]]]), torch.zeros(2, 1), side=2)
        >>> [own] = code_patches(images, level, [1])
        >>> own.uses, own.patches[0, 0, 1:3, 1:3].tolist()
        (1, [[2, 3], [6, 7]])
    """
    height, width = images.shape[2:]
    margin = level.side // 2
    reach = torch.arange(-margin, level.side + margin)  # (s,)
    found = []
    for code in codes:
        tokens = (level.indices == code).nonzero()
        image, row, column = tokens[evenly(len(tokens), per_code)].T
        rows = (row[:, None] * level.side + reach).clamp(0, height - 1)  # (P, s)
        columns = (column[:, None] * level.side + reach).clamp(0, width - 1)
        patches = images[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        found.append(CodePatches(code, len(tokens), patches.movedim(-1, 1)))
    return found


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
    most, least = most_and_least_used(counts, codes)
    kinds = [kind for kind in (("most used", most), ("least used", least)) if kind[1]]
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
