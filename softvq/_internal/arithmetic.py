"""The arithmetic of a step; :mod:`softvq.functional` is where it is public and explained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Elements of a block's assignment matrix: as many as fit a core's cache, or fill an accelerator.
ELEMENTS_PER_THREAD = 2**19
MOST_ELEMENTS = 2**22
# With fewer latents at a time, reading the prototypes would take longer than computing on them.
FEWEST_ROWS = 64


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Dtype to compute distances in: float32, or float64 when a tensor has it.

    Example:
        >>> compute_dtype(torch.zeros(1, dtype=torch.bfloat16))
        torch.float32
    """
    return torch.float64 if torch.float64 in {t.dtype for t in tensors} else torch.float32


def widest_dtype(device: torch.device) -> torch.dtype:
    """The widest floating dtype of a device, for sums that must count exactly."""
    return torch.float32 if device.type == "mps" else torch.float64


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
    z, codebook, center = centred(z, codebook)
    query, key = operands(z, codebook, temperature)
    parts = soft_block(query, key.mT, moments(codebook), z)
    q, mean, loss_ols, variance, indices, entropy, logit = parts
    loss_q = (-temperature * logit).clamp_min(0)
    usage = token_weights(mask, z) @ q  # (K,)
    usage_kl = usage_divergence(usage)
    code = SoftCode(
        mean + center, loss_q, loss_ols, variance, usage_kl, indices, entropy, usage.detach()
    )
    return masked(code, mask)


@torch.no_grad()
def mean_shift(
    z: Tensor, codebook: Tensor, temperature: Tensor | float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What pulls each prototype when the assignment is held.

    Without ``scale`` it is minus half the gradient of L_q. Memory is linear in N + K.

    Args:
        z: (N, D) latents, float32 or float64.
        codebook: (K, D) prototypes, same dtype.
        temperature: T > 0, in units of squared distance.
        scale: (K,), same dtype, positive: the squared distances to a prototype count times this.

    Returns:
        (K, D), ``sum_n q_nk (z_n - p_k)``, zero at the fixed point of soft EM, and (K,),
        ``sum_n q_nk``; both detached.

    Example:
        >>> prototypes = torch.tensor([[9.0, 0.0], [-9.0, 0.0]])
        >>> shift, mass = mean_shift(torch.tensor([[8.0, 1.0], [8.0, 2.0]]), prototypes, 1.0)
        >>> shift.tolist(), mass.tolist()
        ([[-2.0, 3.0], [0.0, 0.0]], [2.0, 0.0])
    """
    z, codebook, _ = centred(z, codebook)
    query, key = operands(z, codebook, temperature)
    # Contiguous, the layout that products are fastest with.
    key = key.mT.contiguous() if scale is None else key.mT.contiguous() * scale  # (D + 2, K)
    vectors = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)  # (N, D + 1)
    sums = z.new_zeros(vectors.shape[1], codebook.shape[0])  # (D + 1, K), fastest to add to
    for rows, *out in blocks(z, codebook):
        logits = torch.mm(query[rows], key, out=out[0])  # (R, K)
        _, q = assigned(logits, logits.amax(dim=1), out)
        sums.addmm_(vectors[rows].mT, q)
    return sums[:-1].mT - sums[-1, :, None] * codebook, sums[-1]


def operands(z: Tensor, codebook: Tensor, temperature: Tensor | float) -> tuple[Tensor, Tensor]:
    """Query (N, D + 2) and key (K, D + 2), whose product is ``-d_nk / T``.

    Written as one matrix product, so that no other pass over (N, K) is needed.
    """
    norms = codebook.square().sum(dim=1, keepdim=True)  # (K, 1)
    ones = torch.ones_like(z[:, :1])
    query = torch.cat([2 * z, -z.square().sum(dim=1, keepdim=True), -ones], dim=1) / temperature
    return query, torch.cat([codebook, torch.ones_like(norms), norms], dim=1)


def moments(codebook: Tensor) -> Tensor:
    """Prototypes and their squared norms (K, D + 1): the values that an assignment mixes."""
    return torch.cat([codebook, codebook.square().sum(dim=1, keepdim=True)], dim=1)


def assigned(logits: Tensor, top: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Logits (R, K) below their largest ``top`` (R,), and the assignment that they give.

    Args:
        logits: (R, K).
        top: (R,), the largest of each row.
        out: Two (R, K) matrices to write to where nothing is differentiated; ``logits`` may be one.
    """
    below, q = out or (None, None)
    logits = torch.sub(logits, top[:, None], out=below)
    logits = torch.threshold(logits, *saturation(logits.dtype), out=below)
    return [logits, torch.softmax(logits, dim=1, out=q)]


def soft_block(
    query: Tensor, key: Tensor, values: Tensor, z: Tensor, out: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Soft codes of a block of R latents: what both engines compute.

    Args:
        query: (R, D + 2), of :func:`operands`.
        key: (D + 2, K), likewise.
        values: (K, D + 1), of :func:`moments`.
        z: (R, D), the latents.
        out: Two (R, K) matrices to use, where nothing is to be differentiated.

    Returns:
        The assignment (R, K), the soft centroids (R, D), and, (R,) each, L_OLS, V, the nearest
        prototypes, the entropy and the mean logit, which is ``-L_q / T``.
    """
    logits = torch.mm(query, key, out=out[0] if out else None)  # (R, K)
    top, nearest = logits.detach().max(dim=1)
    logits, q = assigned(logits, top, out)
    # Autocast leaves products that write to given memory alone.
    mixed = torch.mm(q, values, out=z.new_empty(len(z), values.shape[1]) if out else None)
    mean, second_moment = mixed[:, :-1], mixed[:, -1]
    loss_ols = (z - mean).square().sum(dim=1)
    # Rounding can push a vanishing V below zero; its gradient vanishes there as well.
    variance = (second_moment - mean.square().sum(dim=1)).clamp_min(0)
    log_top = q.detach().gather(1, nearest[:, None]).squeeze(1).log()
    mean_logit = logits.mul_(q).sum(dim=1) if out else torch.einsum("nk,nk->n", q, logits)
    # From logits below the largest: at low T the others are too large to subtract.
    entropy = (-log_top - mean_logit.detach()).clamp_min(0)
    return q, mean, loss_ols, variance, nearest, entropy, mean_logit + top


def blocks(z: Tensor, codebook: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of R latents, each with the same two (R, K) matrices to write to."""
    count, size = z.shape[0], codebook.shape[0]
    block = min(count, _rows_per_block(z.device, size))
    first, second = z.new_empty(block, size), z.new_empty(block, size)
    for start in range(0, count, max(1, block)):
        rows = slice(start, min(start + block, count))
        length = rows.stop - start
        yield rows, first[:length], second[:length]


def _rows_per_block(device: torch.device, size: int) -> int:
    threads = torch.get_num_threads() if device.type == "cpu" else MOST_ELEMENTS
    elements = min(MOST_ELEMENTS, ELEMENTS_PER_THREAD * threads)
    return max(FEWEST_ROWS, elements // size)


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
    """Return (cutoff, floor): logits at or below cutoff, against the row's largest, become floor.

    Softmax then gives exactly zero. Assignments and their products with a gradient would else
    reach the subnormal numbers, on which CPUs compute up to twenty times more slowly. The cut is
    far below rounding: at half of the exponent's range, 1e-19 in float32.

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


def masked(code: SoftCode, mask: Tensor | None) -> SoftCode:
    """The code with zeros, and indices of -1, where the mask is False."""
    if mask is None:
        return code
    per_token = ("loss_q", "loss_ols", "variance", "entropy")
    return code._replace(
        quantized=torch.where(mask[:, None], code.quantized, 0.0),
        indices=torch.where(mask, code.indices, -1),
        **{name: torch.where(mask, getattr(code, name), 0.0) for name in per_token},
    )


def centred(z: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latents, prototypes and what was subtracted from both.

    ``|z|^2 - 2 z.p + |p|^2`` loses digits far from the origin. A common shift changes no distance,
    so the centre needs no gradient.
    """
    center = codebook.detach().mean(dim=0)
    return z - center, codebook - center, center
