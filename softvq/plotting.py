"""Figures of how a codebook is used; they need matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .utilization import perplexity_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def usage_curve(counts: Tensor) -> Figure:
    """Codes from most to least used, as shares of all tokens on a logarithmic axis.

    Args:
        counts: (K,) int64.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    counts = counts.sort(descending=True).values.cpu()
    share = counts / counts.sum().clamp_min(1)
    size = len(share)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(1 / size, color="grey", linestyle=":", label="uniform")
    axes.step(range(size), share.numpy(), where="mid", label="share of tokens")
    dead = int((counts == 0).sum())
    if dead:
        axes.axvspan(size - dead - 0.5, size - 0.5, color="tab:red", alpha=0.2, label="dead")
    axes.set_yscale("log")
    axes.set_xlabel("codes, most used first")
    axes.set_ylabel("share of tokens")
    axes.set_title(f"{size - dead} of {size} codes used, perplexity {perplexity_of(counts):.0f}")
    axes.legend()
    return figure


def usage_heat_map(history: Tensor) -> Figure:
    """Usage of every code (columns) in every epoch (rows) against the uniform share; dead is red.

    Args:
        history: (E, K) int64 counts.

    Returns:
        A matplotlib figure.
    """
    import matplotlib
    from matplotlib.figure import Figure

    counts = history.double().cpu()
    total = counts.sum(dim=1, keepdim=True).clamp_min(1)
    ratio = counts / total * history.shape[1]
    shown = ratio.log2().masked_fill(counts == 0, float("nan")).numpy()
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="tab:red")
    image = axes.imshow(
        shown, aspect="auto", interpolation="nearest", cmap=colours, vmin=-4, vmax=4
    )
    axes.set_xlabel("code")
    axes.set_ylabel("epoch")
    axes.set_yticks(range(0, len(history), max(1, len(history) // 10)))
    axes.set_yticklabels([str(row + 1) for row in axes.get_yticks()])
    axes.set_title("usage against the uniform share (red: dead)")
    figure.colorbar(image, ax=axes, label="log2 ratio")
    return figure
