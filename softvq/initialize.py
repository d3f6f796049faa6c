"""Data-driven initialisation: k-means++ seeding, then Lloyd's iterations."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from .functional import nearest_codes, squared_distances


@torch.no_grad()
def kmeans(latents: Tensor, codebook_size: int, *, seed: int = 0, iterations: int = 10) -> Tensor:
    """Prototypes of latents by k-means.

    Args:
        latents: (N, D).
        codebook_size: K, number of prototypes.
        seed: Seed of the sampling, the same on every device.
        iterations: Lloyd iterations after the seeding; 0 returns the seeds.

    Returns:
        (K, D), pairwise distinct.

    Raises:
        ValueError: If N < K, a latent is not finite, or there are fewer than 0 iterations.

    Warns:
        UserWarning: If fewer than K latents are distinct; the rest are then near-copies.

    Example:
        >>> pair = torch.tensor([[0.0], [0.2], [1.0], [1.2]])
        >>> kmeans(pair, 2).sort(dim=0).values.flatten().tolist()
        [0.10000000149011612, 1.100000023841858]
    """
    if iterations < 0:
        raise ValueError(f"iterations must be at least 0, got {iterations}")
    if latents.shape[0] < codebook_size:
        raise ValueError(
            f"k-means needs at least codebook_size={codebook_size} latents, got "
            f"{latents.shape[0]}; give more batches, or a smaller codebook"
        )
    if not bool(latents.isfinite().all()):
        raise ValueError("k-means was given latents that hold NaN or infinity")
    generator = torch.Generator().manual_seed(seed)
    centers = kmeans_plus_plus(latents, codebook_size, generator)
    for _ in range(iterations):
        centers = lloyd_step(latents, centers)
    return _separated(centers, latents, generator)


@torch.no_grad()
def kmeans_plus_plus(latents: Tensor, codebook_size: int, generator: torch.Generator) -> Tensor:
    """Seeds drawn one by one with probability proportional to the squared distance to the rest.

    Arthur and Vassilvitskii, 2007, section 2.2.

    Args:
        latents: (N, D).
        codebook_size: K <= N.
        generator: CPU generator.

    Returns:
        (K, D), rows of ``latents``.

    Example:
        >>> points = torch.tensor([[0.0], [0.0], [5.0]])
        >>> kmeans_plus_plus(points, 2, torch.Generator().manual_seed(0)).sum().item()
        5.0
    """
    draws = torch.rand(codebook_size, generator=generator, dtype=torch.float64)
    chosen = [min(int(draws[0] * latents.shape[0]), latents.shape[0] - 1)]
    closest = squared_distances(latents, latents[chosen]).squeeze(1)  # (N,)
    closest[chosen] = 0
    for draw in draws[1:]:
        cumulative = closest.double().cumsum(dim=0)
        target = (draw.to(cumulative.device) * cumulative[-1]).reshape(1)
        index = int(torch.searchsorted(cumulative, target, right=True).clamp_max(len(closest) - 1))
        chosen.append(index)
        closest = torch.minimum(closest, (latents - latents[index]).square().sum(dim=1))
    return latents[chosen]


@torch.no_grad()
def lloyd_step(latents: Tensor, centers: Tensor) -> Tensor:
    """Each center moved to the mean of its latents; an empty one to the latent worst served.

    Args:
        latents: (N, D).
        centers: (K, D).

    Returns:
        (K, D).

    Example:
        >>> lloyd_step(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.4]]))
        tensor([[0.5000]])
    """
    indices = nearest_codes(latents, centers)
    counts = torch.bincount(indices, minlength=centers.shape[0])  # (K,)
    sums = torch.zeros_like(centers).index_add_(0, indices, latents)
    moved = sums / counts.clamp_min(1)[:, None].to(sums.dtype)
    empty = (counts == 0).nonzero().squeeze(1)
    if len(empty):
        error = (latents - centers[indices]).square().sum(dim=1)
        moved[empty] = latents[error.topk(len(empty)).indices]
    return moved


def _separated(centers: Tensor, latents: Tensor, generator: torch.Generator) -> Tensor:
    """Centers with repeated rows nudged apart, so that no prototype shadows another."""
    _, inverse, counts = centers.unique(dim=0, return_inverse=True, return_counts=True)
    if len(counts) == len(centers):
        return centers
    warnings.warn(
        f"only {len(counts)} of the {len(centers)} prototypes found are distinct; the others "
        "start as near-copies. Give latents that vary more, or a smaller codebook.",
        stacklevel=4,
    )
    order = inverse.argsort(stable=True)
    repeated = torch.ones_like(inverse, dtype=torch.bool)
    repeated[order[counts.cumsum(0) - counts]] = False
    scale = 1e-2 * latents.var(dim=0, unbiased=False).mean().sqrt()
    # A nudge below the spacing of floats would leave the rows equal.
    scale = scale.clamp_min(1e-8).maximum(64 * torch.finfo(latents.dtype).eps * latents.abs().max())
    noise = torch.randn(centers.shape, generator=generator).to(centers)
    return torch.where(repeated[:, None], centers + scale * noise, centers)


def with_masks(
    latents: Tensor | Iterable[Tensor], mask: Tensor | Iterable[Tensor | None] | None
) -> list[tuple[Tensor, Tensor | None]]:
    """One or several tensors of latents, each with its mask.

    Raises:
        ValueError: If there is no tensor, or not a mask for each.
    """
    parts = [latents] if isinstance(latents, Tensor) else list(latents)
    if not parts:
        raise ValueError("no batch of latents was given; pass at least one tensor")
    masks = [mask] * len(parts) if mask is None or isinstance(mask, Tensor) else list(mask)
    if len(masks) != len(parts):
        raise ValueError(f"{len(parts)} tensors of latents need as many masks, got {len(masks)}")
    return list(zip(parts, masks, strict=True))
