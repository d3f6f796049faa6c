"""How far prototypes lie from each other, and latents from their prototypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softvq.functional import squared_distances

from .layout import new_figure
from .sample import LevelSample, evenly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PROTOTYPES = 512
# Elements of the distance matrix to hold at once.
BLOCK_ELEMENTS = 2**22


def neighbour_distances(prototypes: Tensor, max_prototypes: int = MAX_PROTOTYPES) -> Tensor:
    """Euclidean distance of each prototype to the nearest other one.

    Args:
        prototypes: (K, D).
        max_prototypes: Of a larger codebook so many, evenly spaced, are measured, against all.

    Returns:
        (min(K, max_prototypes),) float64; empty for K = 1.

    Example:
        >>> neighbour_distances(torch.tensor([[0.0], [1.0], [5.0]])).tolist()
        [1.0, 1.0, 4.0]
    """
    if len(prototypes) < 2:
        return prototypes.new_zeros(0, dtype=torch.float64)
    wide = prototypes.double().cpu()
    chosen = evenly(len(wide), max_prototypes)
    nearest = []
    for part in chosen.split(max(1, BLOCK_ELEMENTS // len(wide))):
        distances = squared_distances(wide[part], wide)  # (B, K)
        distances[torch.arange(len(part)), part] = torch.inf
        nearest.append(distances.min(dim=1).values.sqrt())
    return torch.cat(nearest)


def prototype_distances(level: LevelSample) -> Tensor:
    """Euclidean distances of latents to the prototypes of their tokens, (N,)."""
    return (level.latents - level.prototypes[level.indices.flatten()]).norm(dim=1)


def distance_figure(level: LevelSample) -> Figure:
    """Histograms of both: prototypes closer than the latents' distances are near duplicates.

    Args:
        level: The tokens, their latents and prototypes.
    """
    values = {
        "a prototype to the nearest other": neighbour_distances(level.prototypes),
        "a latent to its prototype": prototype_distances(level).double(),
    }
    values = {name: own for name, own in values.items() if len(own)}
    # A few outliers would squeeze everything else into one bar.
    most = max(float(own.quantile(0.995)) for own in values.values())
    figure = new_figure(3.4)
    axes = figure.add_subplot()
    edges = torch.linspace(0, most or 1.0, 41).tolist()
    for number, (name, own) in enumerate(values.items()):
        shown = own.clamp_max(edges[-1]).numpy()
        weights = torch.full((len(own),), 1 / len(own)).numpy()
        label = f"{name}\n(median {float(own.median()):.3g})"
        axes.hist(shown, bins=edges, weights=weights, alpha=0.55, color=f"C{number}", label=label)
    axes.set(xlabel="Euclidean distance", ylabel="share of them")
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])  # room for the legend
    axes.set_title("Distances; the last bar holds all beyond", fontsize=10)
    axes.legend(fontsize=9)
    return figure
