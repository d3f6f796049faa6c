"""How evenly codes are used: the library's own figures, at the common width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softvq import usage_curve, usage_heat_map

from .layout import fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Wider codebooks are shown in groups of adjacent codes: a pixel cannot hold more.
MAX_COLUMNS = 512


def usage_curve_figure(counts: Tensor, note: str = "") -> Figure:
    """The sorted usage curve.

    Args:
        counts: (K,), tokens of each code.
        note: What the counts are of, for the title.
    """
    return fitted(usage_curve(counts), 3.4, note)


def heat_map_figure(history: Tensor) -> Figure:
    """The use of each code in each epoch; of a large codebook, of groups of adjacent codes.

    Args:
        history: (E, K) counts, a row an epoch.
    """
    size = -(-history.shape[1] // MAX_COLUMNS)
    figure = usage_heat_map(grouped(history, size))
    if size > 1:
        figure.axes[0].set_xlabel(f"groups of {size} adjacent codes")
    return fitted(figure, 3.4)


def grouped(history: Tensor, size: int) -> Tensor:
    """Counts (E, K) summed over groups of adjacent codes, (E, ceil(K / size)).

    Example:
        >>> grouped(torch.tensor([[1, 2, 3, 4, 6]]), 2).tolist()
        [[3, 7, 12]]
    """
    last = history.shape[1] % size
    if last:
        # A group that is not full counts as if it were: its codes have their mean.
        rest = history[:, -last:].sum(dim=1, keepdim=True) * size // last
        return torch.cat([grouped(history[:, :-last], size), rest], dim=1)
    return history.unflatten(1, (-1, size)).sum(dim=2)
