"""Where in an image which tokens stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data.datasets import to_float
from .layout import new_figure, show_mosaic, spread
from .projection import principal_plane
from .sample import Sample, evenly

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def prototype_colours(prototypes: Tensor) -> Tensor:
    """A colour for each code; prototypes that are near each other have similar ones.

    The ranks along the first three principal axes are red, green and blue.

    Args:
        prototypes: (K, D).

    Returns:
        (K, 3) in [0, 1].

    Example:
        >>> prototype_colours(torch.tensor([[1.0], [3.0], [2.0]]))[:, 0].tolist()
        [0.0, 1.0, 0.5]
    """
    places = principal_plane(prototypes, 3).project(prototypes)  # (K, up to 3)
    size, found = places.shape
    colours = torch.full((size, 3), 0.5)
    if size > 1:
        colours[:, :found] = places.argsort(dim=0, stable=True).argsort(dim=0) / (size - 1)
    return colours


def token_map_figure(sample: Sample, images: int = 6) -> Figure:
    """Images, and below them the tokens of each level as colours.

    Args:
        sample: Images and their tokens, of one level at least.
        images: Columns.
    """
    chosen = evenly(len(sample.images), images)
    height, width = sample.images.shape[2:]
    batch = to_float(sample.images[chosen])
    rows = [batch.expand(-1, 3, -1, -1)]
    several = len(sample.levels) > 1
    names = [
        "image",
        *(f"level {n}" if several else "tokens" for n in range(1, len(sample.levels) + 1)),
    ]
    for level in sample.levels:
        colours = prototype_colours(level.prototypes)[level.indices[chosen]]  # (B, h, w, 3)
        rows.append(spread(colours.movedim(-1, 1), level.side, height, width))
    # Few images are not drawn larger than three would be.
    figure = new_figure(0.6 + 4.5 * len(rows) * height / width / max(3, len(chosen)))
    axes = figure.add_subplot()
    show_mosaic(axes, torch.cat(rows), names)
    axes.set_title("Tokens in their places", fontsize=10)
    axes.set_xlabel("similar colours: prototypes near each other")
    return figure
