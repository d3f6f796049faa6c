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

import math
from typing import NamedTuple

import torch
from torch import Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Dtype to compute distances in: float32, or float64 when a tensor has it.

    Example:
        >>> compute_dtype(torch.zeros(1, dtype=torch.bfloat16))
        torch.float32
    """
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


class SoftCode(NamedTuple):
    """Soft quantisation of N latents; every field but the last three carries gradients.

    Attributes:
        quantized: (N, D), the soft centroids.
        loss_q: (N,), expected squared distance to the prototypes.
        loss_ols: (N,), squared distance to the soft centroid.
        variance: (N,), V, spread of the assigned prototypes around the soft centroid.
        usage_kl: Scalar, ``KL(usage || uniform)`` in nats, in [0, log K].
        indices: (N,) int64, the nearest prototypes; -1 where masked.
        entropy: (N,), entropy of the assignment in nats, in [0, log K].
        usage: (K,), mean assignment over the tokens that are not masked.
    """

    quantized: Tensor
    loss_q: Tensor
    loss_ols: Tensor
    variance: Tensor
    usage_kl: Tensor
    indices: Tensor
    entropy: Tensor
    usage: Tensor


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
    z, codebook, _ = _centred(z, codebook)
    return (-_boltzmann_logits(z, codebook, 1.0)).clamp_min(0)


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
    z, codebook, _ = _centred(z, codebook)
    # A softmax over prototypes takes no notice of |z|^2.
    logits = torch.addmm(-codebook.square().sum(dim=1), z, codebook.mT, alpha=2)  # (N, K)
    return (logits / temperature).softmax(dim=1)


def soft_quantize(
    z: Tensor, codebook: Tensor, temperature: Tensor | float, mask: Tensor | None = None
) -> SoftCode:
    """Soft codes and their decomposition; holds (N, K) matrices.

    Args:
        z: (N, D) latents, float32 or float64.
        codebook: (K, D) prototypes, same dtype.
        temperature: T > 0, in units of squared distance; may be a tensor that requires grad.
        mask: (N,) bool, False for padding: such rows change nothing and come back as zeros.

    Returns:
        A :class:`SoftCode`; ``loss_q``, ``loss_ols`` and ``variance`` are sums over D.

    Example:
        >>> code = soft_quantize(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 1.0)
        >>> code.quantized.tolist(), code.loss_ols.item(), code.variance.item()
        ([[0.0, 0.0]], 0.0, 1.0)
    """
    if mask is not None:
        z = torch.where(mask[:, None], z, 0.0)
    z, codebook, center = _centred(z, codebook)
    logits = _boltzmann_logits(z, codebook, temperature)  # (N, K)
    top, indices = logits.detach().max(dim=1)  # (N,)
    logits = torch.threshold(logits - top[:, None], *saturation(z.dtype))
    q = logits.softmax(dim=1)

    values = torch.cat([codebook, codebook.square().sum(dim=1, keepdim=True)], dim=1)  # (K, D + 1)
    mixed = q @ values  # (N, D + 1)
    quantized, second_moment = mixed[:, :-1], mixed[:, -1]
    loss_ols = (z - quantized).square().sum(dim=1)
    # Rounding can push a vanishing V below zero; its gradient vanishes there as well.
    variance = (second_moment - quantized.square().sum(dim=1)).clamp_min(0)
    loss_q = (-temperature * (torch.einsum("nk,nk->n", q, logits) + top)).clamp_min(0)

    usage = token_weights(mask, z) @ q  # (K,)
    usage_kl = usage_divergence(usage)
    with torch.no_grad():
        # From logits below the largest: at low T the others are too large to subtract.
        top_q = q.gather(1, indices[:, None]).squeeze(1)
        entropy = (-top_q.log() - torch.einsum("nk,nk->n", q, logits)).clamp_min(0)
    quantized = quantized + center
    code = SoftCode(
        quantized, loss_q, loss_ols, variance, usage_kl, indices, entropy, usage.detach()
    )
    return _masked(code, mask)


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
    z, codebook, _ = _centred(z, codebook)
    rows = max(64, chunk_elements // codebook.shape[0])
    # An exported graph must hold for any N, which no fixed number of blocks does.
    blocks = [z] if exporting() else z.split(rows)
    # Twice as fast as argmax on the CPU, with the same indices.
    parts = [_boltzmann_logits(block, codebook, 1.0).max(dim=1).indices for block in blocks]
    return torch.cat(parts)


def exporting() -> bool:
    """Whether torch.export, or the ONNX exporter on it, captures a graph for any input."""
    # torch 2.6 has no is_exporting.
    return bool(getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)())


def token_weights(mask: Tensor | None, z: Tensor) -> Tensor:
    """Weights that turn a sum over tokens into the mean over those that are not masked.

    Args:
        mask: (N,) bool, False for padding, or None.
        z: (N, D) latents, for count, dtype and device.

    Returns:
        (N,), summing to one, or to zero when no token is left.

    Example:
        >>> token_weights(torch.tensor([True, True, False]), torch.zeros(3, 2))
        tensor([0.5000, 0.5000, 0.0000])
    """
    weights = z.new_ones(z.shape[0]) if mask is None else mask.to(z.dtype)
    return weights / weights.sum().clamp_min(1)


def saturation(dtype: torch.dtype) -> tuple[float, float]:
    """Logit, against the largest, at and below which an assignment is exactly zero; and its logit.

    Assignments and their products with a gradient would else reach the subnormal numbers, on which
    CPUs compute up to twenty times more slowly. The cut is far below rounding: at half of the
    exponent's range, 1e-19 in float32.

    Args:
        dtype: float32 or float64.

    Example:
        >>> cut, value = saturation(torch.float32)
        >>> round(cut), value
        (-44, -10000.0)
    """
    return math.log(torch.finfo(dtype).tiny) / 2, -1e4


def usage_divergence(usage: Tensor) -> Tensor:
    """KL(usage || uniform): zero when all codes are used alike, log K when one is used alone.

    Args:
        usage: (K,), not negative, summing to one.

    Returns:
        Scalar, in nats.

    Example:
        >>> usage_divergence(torch.tensor([0.25, 0.25, 0.25, 0.25])).item()
        0.0
    """
    # Not log(usage + eps): a floor at the smallest normal number leaves every other value exact.
    log_usage = usage.clamp_min(torch.finfo(usage.dtype).tiny).log()
    return (usage * (log_usage + math.log(usage.shape[0]))).sum()


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
    if ols_weight <= 0 or variance_weight <= 0:
        raise ValueError(
            "ols_weight > 0 and variance_weight > 0 are needed, got "
            f"{ols_weight}, {variance_weight}"
        )
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


@torch.no_grad()
def largest_variance(covariance: Tensor) -> Tensor:
    """Largest eigenvalue of a covariance matrix.

    Args:
        covariance: (D, D), symmetric.

    Returns:
        Scalar, not negative.

    Example:
        >>> largest_variance(torch.diag(torch.tensor([1.0, 3.0]))).item()
        3.0
    """
    # Not every accelerator, nor dtype, has a symmetric eigensolver, and D is small.
    eigenvalues = torch.linalg.eigvalsh(covariance.cpu().double())
    return eigenvalues[-1].clamp_min(0).to(covariance)


def _masked(code: SoftCode, mask: Tensor | None) -> SoftCode:
    """The code with zeros, and indices of -1, where the mask is False."""
    if mask is None:
        return code
    per_token = ("loss_q", "loss_ols", "variance", "entropy")
    return code._replace(
        quantized=torch.where(mask[:, None], code.quantized, 0.0),
        indices=torch.where(mask, code.indices, -1),
        **{name: torch.where(mask, getattr(code, name), 0.0) for name in per_token},
    )


def _centred(z: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latents, prototypes and what was subtracted from both.

    ``|z|^2 - 2 z.p + |p|^2`` loses digits far from the origin. A common shift changes no distance,
    so the centre needs no gradient.
    """
    center = codebook.detach().mean(dim=0)
    return z - center, codebook - center, center


def _boltzmann_logits(z: Tensor, codebook: Tensor, temperature: Tensor | float) -> Tensor:
    """(N, K), ``-d_nk / T``, written as one matrix product so that no other pass is needed."""
    ones = z.new_ones(1)
    query = torch.cat(
        [2 * z, -z.square().sum(dim=1, keepdim=True), -ones.expand(z.shape[0], 1)], dim=1
    )  # (N, D + 2)
    key = torch.cat(
        [codebook, ones.expand(codebook.shape[0], 1), codebook.square().sum(dim=1, keepdim=True)],
        dim=1,
    )  # (K, D + 2)
    return (query / temperature) @ key.mT
