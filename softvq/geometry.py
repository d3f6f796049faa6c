"""Where prototypes lie: how far they are spread, and which are doubles.

K: codes, D: vector size, M: latents.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .functional import largest_variance, latent_covariance, squared_distances

__all__ = ["DOUBLE", "neighbour_distances", "relative_spread", "usual_distance"]

# A prototype this close to another, of the usual distance between neighbours, is its double: the
# two differ by a hundredth of a cell's squared width.
DOUBLE = 0.1
CHUNK_ELEMENTS = 2**22


def relative_spread(codebook: Tensor, latents: Tensor) -> float:
    """RMS distance of the prototypes to their mean, over the latents' largest standard deviation.

    Args:
        codebook: (K, D).
        latents: (M, D).

    Returns:
        0 where all prototypes are one; about 1 or more where they cover the latents.

    Example:
        >>> relative_spread(torch.tensor([[-1.0], [1.0]]), torch.tensor([[-2.0], [2.0]]))
        0.5
    """
    spread = (codebook - codebook.mean(dim=0)).double().square().sum(dim=1).mean()
    largest = float(largest_variance(latent_covariance(latents)))
    return math.sqrt(float(spread) / max(largest, 1e-30))


def neighbour_distances(codebook: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of each prototype to the nearest other one, and which that is.

    Args:
        codebook: (K, D), K at least 2.

    Returns:
        (K,) and (K,) int64.

    Example:
        >>> neighbour_distances(torch.tensor([[0.0], [1.0], [5.0]]))
        (tensor([1., 1., 4.]), tensor([1, 0, 1]))
    """
    parts = []
    for rows in torch.arange(len(codebook)).split(max(1, CHUNK_ELEMENTS // len(codebook))):
        distance = squared_distances(codebook[rows], codebook)  # (R, K)
        distance[torch.arange(len(rows)), rows] = math.inf
        parts.append(distance.argmin(dim=1))
    other = torch.cat(parts)
    # By differences: products lose the distance of doubles to rounding, though not who they are.
    return (codebook - codebook[other]).norm(dim=1), other


def usual_distance(codebook: Tensor) -> float:
    """Median distance of neighbours, with doubles, and doubles of doubles, taken out.

    Args:
        codebook: (K, D), K at least 2.

    Example:
        >>> usual_distance(torch.tensor([[0.0], [0.01], [1.0], [1.01], [2.0], [2.01]])) > 0.9
        True
    """
    usual = 0.0
    for _ in range(4):
        distance, other = neighbour_distances(codebook)
        usual = max(usual, float(distance.median()))
        number = torch.arange(len(codebook))
        codebook = codebook[(other[other] != number) | (other > number)]  # one of each mutual pair
        if len(codebook) < 3:
            break
    return usual
