"""What a stability study measures of a codebook on its latents, and what it calls collapsed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.identity import identity_residual
from softvq import CodebookOutput, SoftCodebook
from softvq.functional import largest_variance, latent_covariance

# Prototypes nearer than this share of sqrt(lambda_max) are one.
TOUCHING = 0.05
# A soft code that leaves this share of the latents' variance tells nothing.
USELESS = 0.99
NAMES = (
    "collapsed", "separation_min", "separation_mean", "distinct", "temperature_ratio",
    "utilization", "soft_perplexity", "codes_per_token", "argmax_error", "soft_error",
    "largest_variance", "identity_residual",
)  # fmt: skip


@torch.no_grad()
def separation(codebook: Tensor, largest: float) -> tuple[float, float, int]:
    """Measure how far apart prototypes are, in the latents' largest standard deviations.

    Args:
        codebook: (K, D), at least two prototypes.
        largest: lambda_max, the largest variance of the latents, > 0.

    Returns:
        The distance of the nearest pair; the mean distance over all pairs; and the number of
        prototypes left, in [1, K], when those nearer than :data:`TOUCHING` to one that was kept
        are dropped.

    Example:
        >>> separation(torch.tensor([[0.0], [0.5], [6.0]]), largest=4.0)
        (0.25, 2.0, 3)
    """
    exact = codebook.double()
    distances = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances / largest**0.5  # (K, K)
    pairs = distances[torch.ones_like(distances, dtype=torch.bool).triu(diagonal=1)]
    kept: list[int] = []
    for number in range(len(exact)):
        if bool((distances[number, kept] >= TOUCHING).all()):
            kept.append(number)
    return round(pairs.min().item(), 9), round(pairs.mean().item(), 9), len(kept)


def is_collapsed(mean_separation: float, soft_error: float) -> bool:
    """Decide whether a codebook tells its latents apart no better than one code at their mean.

    Args:
        mean_separation: Mean distance between prototypes over sqrt(lambda_max).
        soft_error: L_OLS over the latents' total variance; it is 1 for one code at their mean.

    Example:
        >>> is_collapsed(0.04, 0.9), is_collapsed(2.0, 1.0), is_collapsed(2.0, 0.5)
        (True, True, False)
    """
    return mean_separation < TOUCHING or soft_error >= USELESS


@torch.no_grad()
def measures(codebook: SoftCodebook, out: CodebookOutput) -> dict[str, Any]:
    """Measure a soft codebook on the latents of one call.

    Args:
        codebook: The codebook as it was in the call.
        out: What the call returned.

    Returns:
        A figure for each of :data:`NAMES`. ``temperature_ratio`` is T / T_c of these latents;
        ``utilization`` the share of codes that are a token's nearest; ``soft_perplexity`` exp of
        the entropy of the mean assignment; ``argmax_error`` and ``soft_error`` the squared
        distance to the nearest prototype and to the soft code over the total variance. Where the
        latents are all equal, ``collapsed`` is True and all else None. Where a figure is not
        finite the run diverged, and all are None.
    """
    covariance = latent_covariance(out.latents.double())
    prototypes = codebook.codebook.detach()
    if not bool(covariance.isfinite().all() & prototypes.isfinite().all()):
        return dict.fromkeys(NAMES)
    largest = largest_variance(covariance).item()
    rounding = 16 * torch.finfo(out.latents.dtype).eps * out.latents.abs().max().item()
    if largest <= rounding**2:
        return dict.fromkeys(NAMES) | {"collapsed": True}
    total = covariance.trace().item()
    apart = separation(prototypes, largest)
    losses = {name: value.item() for name, value in out.losses.items()}
    soft_error = losses["loss_ols"] * codebook.dim / total
    nearest = (out.latents - prototypes[out.indices.flatten()]).square().sum(dim=1).mean().item()
    found = (
        is_collapsed(apart[1], soft_error),
        *apart,
        codebook.temperature.item() / (codebook.critical_factor * largest),
        out.indices.unique().numel() / codebook.codebook_size,
        torch.special.entr(out.usage).sum().exp().item(),
        out.codes_per_token.item(),
        nearest / total,
        soft_error,
        largest,
        identity_residual(losses),
    )
    return dict(zip(NAMES, found, strict=True))
