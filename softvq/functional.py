"""Pure functions of soft and hard quantisation.

N latents ``z`` (N, D) meet K prototypes, the rows of ``codebook`` (K, D), at a temperature T.
With ``d_nk = |z_n - p_k|^2``:

- assignment ``q_nk = softmax_k(-d_nk / T)``, soft centroid ``zbar_n = sum_k q_nk p_k``;
- ``L_q = sum_k q_nk d_nk = L_OLS + V`` with ``L_OLS = |z_n - zbar_n|^2`` and
  ``V = sum_k q_nk |p_k - zbar_n|^2``, exact for any weights that sum to one.

DDCL-Attention, Cirrincione and Kumar, https://arxiv.org/abs/2604.03850. The critical temperature
and the gradient of the prototypes are derived in docs/theory.md.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ._internal.arithmetic import (
    SoftCode,
    centred,
    compute_dtype,
    largest_variance,
    mean_shift,
    operands,
    saturation,
    soft_quantize,
    token_weights,
    usage_divergence,
    widest_dtype,
)
from ._internal.pooling import pool, unpool
from .attention import soft_quantize_attention

__all__ = [
    "SoftCode",
    "assignment",
    "compute_dtype",
    "critical_factor",
    "critical_temperature",
    "exporting",
    "largest_variance",
    "latent_covariance",
    "mean_shift",
    "nearest_codes",
    "pool",
    "saturation",
    "soft_quantize",
    "soft_quantize_attention",
    "squared_distances",
    "substitute_noise",
    "token_weights",
    "unpool",
    "usage_divergence",
    "widest_dtype",
]


def squared_distances(z: Tensor, codebook: Tensor) -> Tensor:
    """Squared Euclidean distances.

    Args:
        z: (N, D) latents.
        codebook: (K, D) prototypes.

    Returns:
        (N, K), not negative.

    Example:
        >>> squared_distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([[25.,  1.]])
    """
    z, codebook, _ = centred(z, codebook)
    query, key = operands(z, codebook, 1.0)
    return (-(query @ key.mT)).clamp_min(0)


def assignment(z: Tensor, codebook: Tensor, temperature: Tensor | float) -> Tensor:
    """Boltzmann assignment of every latent to every prototype.

    Args:
        z: (N, D) latents.
        codebook: (K, D) prototypes.
        temperature: T > 0, in units of squared distance.

    Returns:
        (N, K), rows sum to one.

    Example:
        >>> assignment(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 1.0)
        tensor([[0.5000, 0.5000]])
    """
    z, codebook, _ = centred(z, codebook)
    # A softmax over prototypes takes no notice of |z|^2.
    logits = torch.addmm(-codebook.square().sum(dim=1), z, codebook.mT, alpha=2)  # (N, K)
    return (logits / temperature).softmax(dim=1)


def substitute_noise(z: Tensor, codes: Tensor, share: float = 1.0) -> Tensor:
    """Latents whose error has the length of their codes', and a random direction.

    Vali and Bäckström, NSVQ, IEEE Access 10, 2022. It is differentiable in latents and codes
    wherever they differ; the direction is drawn from torch's generator.

    Args:
        z: (N, D) latents.
        codes: (N, D), a code for each.
        share: Share of the latents, drawn at random, in [0, 1]; the others become their codes.

    Returns:
        (N, D): ``z + |z - codes| u``, u uniform on the unit sphere.

    Example:
        >>> codes = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 1.0]])
        >>> substitute_noise(torch.zeros(2, 3), codes).norm(dim=1).round()
        tensor([5., 1.])
    """
    square = (z - codes).square().sum(dim=1, keepdim=True)  # (N, 1)
    # The root has no derivative at zero, where there is no error either.
    length = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
    noisy = z + length * normalize(torch.randn_like(z), dim=1)
    if share == 1:
        return noisy
    return torch.where(torch.rand_like(square) < share, noisy, codes)


@torch.no_grad()
def nearest_codes(z: Tensor, codebook: Tensor, chunk_elements: int = 2**20) -> Tensor:
    """Index of the nearest prototype of every latent, a block of latents at a time.

    Args:
        z: (N, D) latents.
        codebook: (K, D) prototypes.
        chunk_elements: Elements of the distance matrix to hold at once; 64 rows at least.

    Returns:
        (N,) int64; the lowest index wins a tie.

    Example:
        >>> nearest_codes(torch.tensor([[0.9], [0.1]]), torch.tensor([[0.0], [1.0]]))
        tensor([1, 0])
    """
    z, codebook, _ = centred(z, codebook)
    rows = max(64, chunk_elements // codebook.shape[0])
    query, key = operands(z, codebook, 1.0)
    # An exported graph must hold for any N, which no fixed number of blocks does.
    blocks = [query] if exporting() else query.split(rows)
    # Twice as fast as argmax on the CPU, with the same indices.
    return torch.cat([(block @ key.mT).max(dim=1).indices for block in blocks])


def exporting() -> bool:
    """Whether torch.export, or the ONNX exporter on it, captures a graph for any input."""
    # torch 2.6 has no is_exporting.
    return bool(getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)())


def critical_factor(
    ols_weight: float = 1.0, variance_weight: float = 1.0, held: bool = False
) -> float:
    """Critical temperature over the largest variance of the latents, for ``a L_OLS + b V``.

    Above the critical temperature all prototypes at the mean of the latents attract. docs/theory.md
    derives it.

    Args:
        ols_weight: a, weight of L_OLS, > 0.
        variance_weight: b, weight of V, > 0.
        held: Whether prototypes learn with the assignment held fixed, as in soft EM, where the
            weights play no part.

    Returns:
        ``4 a / b``, or 2 where the assignment is held.

    Raises:
        ValueError: If a weight is not positive.

    Example:
        >>> critical_factor(), critical_factor(variance_weight=2.0), critical_factor(held=True)
        (4.0, 2.0, 2.0)
    """
    for name, weight in (("ols_weight", ols_weight), ("variance_weight", variance_weight)):
        if weight <= 0:
            raise ValueError(f"{name} must be > 0, got {weight}")
    return 2.0 if held else 4 * ols_weight / variance_weight


def critical_temperature(z: Tensor, mask: Tensor | None = None, *, factor: float = 4.0) -> Tensor:
    """Temperature above which all prototypes at the mean of the latents attract.

    Args:
        z: (N, D) latents.
        mask: (N,) bool, False for padding, or None.
        factor: Multiple of the largest variance; see :func:`critical_factor`.

    Returns:
        Scalar, detached.

    Example:
        >>> critical_temperature(torch.tensor([[-1.0, 0.0], [1.0, 0.0]])).item()
        4.0
    """
    return factor * largest_variance(latent_covariance(z, mask))


@torch.no_grad()
def latent_covariance(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Covariance of the latents, normalised by their count.

    Args:
        z: (N, D) latents.
        mask: (N,) bool, False for padding, or None.

    Returns:
        (D, D), detached.

    Example:
        >>> latent_covariance(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        tensor([[1., 0.],
                [0., 0.]])
    """
    if mask is not None:
        z = torch.where(mask[:, None], z, 0.0)
    weights = token_weights(mask, z)
    centred = z - weights @ z
    return centred.mT @ (weights[:, None] * centred)
