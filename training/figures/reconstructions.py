"""The worst and the median images, as input, soft and argmax reconstruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torchvision.utils import make_grid

from models import ImageTokenizer
from models.tokenizer import size_of

from ..data.feed import to_float
from .layout import new_figure, show_mosaic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def worst_and_median(errors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Numbers of the images with the largest errors, and of those around the median error.

    Args:
        errors: (N,).
        count: Images of each kind; at most half of all, one at least.

    Returns:
        Two (count,) int64: the worst first, and the median ones by falling error.

    Example:
        >>> worst, median = worst_and_median(torch.tensor([0.1, 0.5, 0.2, 0.4, 0.3]), count=1)
        >>> worst.tolist(), median.tolist()
        ([1], [4])
    """
    order = errors.argsort(descending=True, stable=True)
    count = max(1, min(count, len(errors) // 2))
    start = (len(errors) - count) // 2
    return order[:count], order[start : start + count]


def reconstruction_figure(
    model: ImageTokenizer, images: Tensor, errors: Tensor, count: int = 6
) -> Figure:
    """Inputs above soft above argmax reconstructions, of the worst and of the median images.

    Args:
        model: In any mode; evaluated in eval mode.
        images: uint8 (N, C, H, W).
        errors: (N,), the MSE of each image's tokens; of a model without tokens, of its output.
        count: Images of each kind.

    Returns:
        A figure; below each image stands its error. Without tokens it has no argmax row.
    """
    figure = new_figure(6.0 if model.has_tokens else 4.4)
    upper, lower = figure.subplots(2, 1)
    worst, median = worst_and_median(errors, count)
    what = "argmax MSE" if model.has_tokens else "MSE"
    for axes, chosen, name in ((upper, worst, "worst"), (lower, median, "median")):
        tiles, rows = reconstruction_rows(model, images[chosen])
        show_mosaic(axes, tiles, rows, [f"{float(errors[i]):.4f}" for i in chosen])
        axes.set_title(f"{name} of {len(errors)} images by {what}", fontsize=10)
        axes.set_xlabel(f"{what} of the image", fontsize=9)
    return figure


def reconstruction_rows(
    model: ImageTokenizer, images: Tensor, *, prefixes: bool = False
) -> tuple[Tensor, list[str]]:
    """Inputs, soft and argmax reconstructions, one after the other.

    Args:
        model: The model, in any mode; it is evaluated in eval mode.
        images: uint8 (B, C, H, W).
        prefixes: Whether the tokens of the first levels alone have rows, coarsest first, before
            those of all levels.

    Returns:
        (rows * B, C, H, W) in [0, 1] on the CPU, and the names of the rows.
    """
    batch = to_float(images.to(next(model.parameters()).device))
    with model.evaluating():
        rows = {"input": batch, "soft": model.reconstruct(batch, "soft")}
        if model.has_tokens:
            tokens = model.split(model.tokens(batch))
            for count in range(1 if prefixes else len(tokens), len(tokens) + 1):
                name = "argmax" if count == len(tokens) else f"level {count}"
                rows[name] = model.decode_tokens(tokens[:count], size_of(batch))
    return torch.cat(list(rows.values())).float().cpu(), list(rows)


def reconstruction_grid(model: ImageTokenizer, images: Tensor) -> Tensor:
    """Inputs above soft above argmax reconstructions; of several levels, of each prefix.

    Args:
        model: The model, in any mode; it is evaluated in eval mode.
        images: uint8 (B, C, H, W), B columns.

    Returns:
        (C, rows, columns) in [0, 1]. The last row is of all tokens, those above it of the first
        levels' alone, coarsest first; there is none for an identity codebook.
    """
    tiles, _ = reconstruction_rows(model, images, prefixes=True)
    return make_grid(tiles, nrow=len(images), padding=1)
