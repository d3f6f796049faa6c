"""Where in an image which tokens stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data.feed import to_float
from .layout import new_figure, show_mosaic
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
    from sklearn.decomposition import PCA

    size = len(prototypes)
    colours = torch.full((size, 3), 0.5)
    if size > 1:
        found = min(3, *prototypes.shape)
        pca = PCA(found, svd_solver="covariance_eigh")
        places = torch.from_numpy(pca.fit_transform(prototypes.double().numpy()))  # (K, found)
        colours[:, :found] = places.argsort(dim=0, stable=True).argsort(dim=0) / (size - 1)
    return colours


def token_map_figure(sample: Sample, images: int = 6) -> Figure:
    """Images, and below them the tokens of each level as colours.

    Args:
        sample: Images and their tokens, of one level at least.
        images: Largest number of images, a column each.
    """
    chosen = evenly(len(sample.images), images)
    height, width = sample.images.shape[2:]
    rows = [to_float(sample.images[chosen]).expand(-1, 3, -1, -1)]
    levels = [f"level {number}" for number in range(1, len(sample.levels) + 1)]
    names = ["image", *(levels if len(levels) > 1 else ["tokens"])]
    for level in sample.levels:
        colours = prototype_colours(level.prototypes)[level.indices[chosen]]  # (B, h, w, 3)
        pixels = colours.movedim(-1, 1).repeat_interleave(level.side, 2)
        pixels = pixels.repeat_interleave(level.side, 3)
        rows.append(pixels[:, :, :height, :width])  # cells may lie over the edge of an image
    # Few images are not drawn larger than three would be.
    figure = new_figure(0.6 + 4.5 * len(rows) * height / width / max(3, len(chosen)))
    axes = figure.add_subplot()
    show_mosaic(axes, torch.cat(rows), names)
    axes.set_title("Tokens in their places", fontsize=10)
    axes.set_xlabel("similar colours: prototypes near each other")
    return figure
