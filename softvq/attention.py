"""Soft quantisation without the (N, K) assignment matrix.

Latents attend to prototypes: query ``[2 z, ...] / T``, key ``[p, |p|^2, ...]`` and value
``[p, |p|^2]`` give the soft centroid and ``sum_k q_k |p_k|^2``, hence L_OLS, V and L_q. A block of
latents at a time meets all prototypes, and the backward pass computes the block's assignments
anew, after memory-efficient attention (Rabe and Staats, https://arxiv.org/abs/2112.05682).

A fused attention kernel would return neither indices, entropy nor usage, which takes another pass
over (N, K), and its gradients are noisier where the softmax saturates, since 1 / T amplifies what
is left of a derivative that should vanish. Blocks of plain matrix products have all of it in one
pass, run on every device in every dtype, and were as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .functional import SoftCode, _centred, _masked, saturation, token_weights, usage_divergence

# Elements of a block's assignment matrix: as many as fit a core's cache, or fill an accelerator.
ELEMENTS_PER_THREAD = 2**19
MOST_ELEMENTS = 2**22
# With fewer latents at a time, reading the prototypes would take longer than computing on them.
FEWEST_ROWS = 64


def soft_quantize_attention(
    z: Tensor, codebook: Tensor, temperature: Tensor | float, mask: Tensor | None = None
) -> SoftCode:
    """Soft codes and their decomposition, in memory linear in N + K.

    Same arguments, results and first derivatives as :func:`softvq.functional.soft_quantize`, to
    rounding. Beyond inputs, outputs and gradients it holds a few copies of the codebook and two
    matrices of at most 4 M elements, or of 64 rows of K where that is more.

    Args:
        z: (N, D) latents, float32 or float64.
        codebook: (K, D) prototypes, same dtype.
        temperature: T > 0, in units of squared distance; may be a tensor that requires grad.
        mask: (N,) bool, False for padding: such rows change nothing and come back as zeros.

    Returns:
        A :class:`SoftCode`; ``loss_q``, ``loss_ols`` and ``variance`` are sums over D.

    Raises:
        RuntimeError: On differentiating twice; the dense engine can.

    Example:
        >>> prototypes = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> code = soft_quantize_attention(torch.zeros(1, 2), prototypes, 1.0)
        >>> code.quantized.tolist(), code.loss_ols.item(), code.variance.item()
        ([[0.0, 0.0]], 0.0, 1.0)
    """
    if mask is not None:
        z = torch.where(mask[:, None], z, 0.0)
    z, codebook, center = _centred(z, codebook)
    if isinstance(temperature, Tensor):
        temperature = temperature.to(z).reshape(())
    else:
        temperature = z.new_full((), temperature)
    weights = token_weights(mask, z)
    # Without gradients or graphs to record, the operator's machinery, which takes two seconds to
    # load, has nothing to do.
    plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    attend = _attend_blocks if plain else _attend
    quantized, loss_ols, variance, usage, indices, entropy, distance = attend(
        z, codebook, temperature, weights
    )
    # The value comes from the distances, so that the identity stays a check; the gradient from the
    # two terms.
    split = loss_ols + variance
    loss_q = split + (distance - split).detach()
    quantized = quantized + center
    usage_kl = usage_divergence(usage)
    code = SoftCode(
        quantized, loss_q, loss_ols, variance, usage_kl, indices, entropy.detach(), usage.detach()
    )
    return _masked(code, mask)


@torch.no_grad()
def mean_shift(
    z: Tensor, codebook: Tensor, temperature: Tensor | float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What pulls each prototype when the assignment is held.

    Without ``scale`` it is minus half the gradient of L_q.

    Memory is that of :func:`soft_quantize_attention`.

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
    z, codebook, _ = _centred(z, codebook)
    query, key, _ = _operands(z, codebook, torch.as_tensor(temperature).to(z))
    if scale is not None:
        key = key * scale
    vectors = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)  # (N, D + 1)
    sums = z.new_zeros(vectors.shape[1], codebook.shape[0])  # (D + 1, K), fastest to add to
    for rows, logits, q in _blocks(z, codebook):
        _assign(query[rows], key, logits, q)
        sums.addmm_(vectors[rows].mT, q)
    return sums[:-1].mT - sums[-1, :, None] * codebook, sums[-1]


# Products write to given memory, which autocast leaves alone.
def _attend_blocks(
    z: Tensor, codebook: Tensor, temperature: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """The fields of a soft code but ``usage_kl``, the last being ``loss_q``; ``usage`` is (K,)."""
    query, key, values = _operands(z, codebook, temperature)
    quantized, loss_ols = torch.empty_like(z), torch.empty_like(weights)
    variance, usage = torch.empty_like(weights), z.new_zeros(codebook.shape[0])
    indices = torch.empty_like(weights, dtype=torch.int64)
    entropy, distance = torch.empty_like(weights), torch.empty_like(weights)
    for rows, logits, q in _blocks(z, codebook):
        torch.mm(query[rows], key, out=logits)  # (R, K)
        top, nearest = logits.max(dim=1)  # (R,)
        torch.threshold_(logits.sub_(top[:, None]), *saturation(z.dtype))
        torch.softmax(logits, dim=1, out=q)
        mixed = z.new_empty(q.shape[0], values.shape[1])
        torch.mm(q, values, out=mixed)  # (R, D + 1)
        mean = quantized[rows].copy_(mixed[:, :-1])
        loss_ols[rows] = (z[rows] - mean).square_().sum(dim=1)
        # Rounding can push a vanishing V below zero.
        variance[rows] = (mixed[:, -1] - mean.square().sum(dim=1)).clamp_min_(0)
        usage.addmv_(q.mT, weights[rows])
        log_partition = -q.gather(1, nearest[:, None]).squeeze(1).log()
        indices[rows] = nearest
        mean_logit = logits.mul_(q).sum(dim=1)
        entropy[rows] = (log_partition - mean_logit).clamp_min(0)
        distance[rows] = mean_logit + top
    distance.mul_(-temperature).clamp_min_(0)
    return quantized, loss_ols, variance, usage, indices, entropy, distance


# An operator of its own is one node to torch.compile and torch.export, whatever N, instead of a
# loop that is unrolled for one N.
_attend = torch.library.custom_op(
    "softvq::attend",
    _attend_blocks,
    mutates_args=(),
    schema="(Tensor z, Tensor codebook, Tensor temperature, Tensor weights)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.custom_op(
    "softvq::attend_backward",
    mutates_args=(),
    schema="(Tensor grad_quantized, Tensor grad_ols, Tensor grad_variance, Tensor grad_usage,"
    " Tensor z, Tensor codebook, Tensor temperature, Tensor weights, Tensor quantized,"
    " bool for_latents, bool for_codebook) -> (Tensor, Tensor, Tensor)",
)
def _attend_backward(
    grad_quantized: Tensor,
    grad_ols: Tensor,
    grad_variance: Tensor,
    grad_usage: Tensor,
    z: Tensor,
    codebook: Tensor,
    temperature: Tensor,
    weights: Tensor,
    quantized: Tensor,
    for_latents: bool,
    for_codebook: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the latents (N, D), the prototypes (K, D) and the temperature, a scalar."""
    query, key, values = _operands(z, codebook, temperature)
    key = torch.cat([key, grad_usage[None]])  # (D + 3, K)
    ones, zeros = torch.ones_like(weights)[:, None], torch.zeros_like(weights)[:, None]
    pull, spread = 2 * grad_ols[:, None], grad_variance[:, None]
    direct = (z - quantized).mul_(pull)  # (N, D), of L_OLS to the latents
    grad_mean = (grad_quantized - direct).addcmul_(quantized, spread, value=-2)
    grad_mixed = torch.cat([grad_mean, spread], dim=1)  # (N, D + 1)
    grad_q = torch.cat([grad_mean, zeros, spread, weights[:, None]], dim=1)  # (N, D + 3)
    score = torch.cat([2 * z, -ones], dim=1) / temperature  # (N, D + 1)
    pulled = torch.zeros_like(score)
    grad_values = torch.zeros_like(key[:-2])  # (D + 1, K), the layout that is fastest to add to
    for rows, q, grad_logits in _blocks(z, codebook):
        _assign(query[rows], key[:-1], grad_logits, q)
        torch.mm(grad_q[rows], key, out=grad_logits).mul_(q)
        grad_logits.addcmul_(q, grad_logits.sum(dim=1, keepdim=True), value=-1)
        if for_latents:
            torch.mm(grad_logits, values, out=pulled[rows])
        if for_codebook:
            grad_values.addmm_(grad_mixed[rows].mT, q).addmm_(score[rows].mT, grad_logits)
    grad_codebook = grad_values[:-1].mT.contiguous()  # (K, D)
    grad_codebook.addcmul_(codebook, grad_values[-1, :, None], value=2)
    # The rows of grad_logits sum to zero, so that |z|^2 takes no part.
    grad_z = pulled[:, :-1] * (2 / temperature)
    grad_temperature = (pulled[:, -1].sum() / temperature - (z * grad_z).sum()) / temperature
    return grad_z.add_(direct), grad_codebook, grad_temperature


def _operands(z: Tensor, codebook: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query (N, D + 2) and key (D + 2, K), whose product is ``-d_nk / T``; values (K, D + 1)."""
    norms = codebook.square().sum(dim=1)  # (K,)
    ones = torch.ones_like(z[:, :1])
    query = torch.cat([2 * z, -z.square().sum(dim=1, keepdim=True), -ones], dim=1) / temperature
    key = torch.cat([codebook.mT, torch.ones_like(norms)[None], norms[None]])
    return query, key, torch.cat([codebook, norms[:, None]], dim=1)


def _assign(query: Tensor, key: Tensor, logits: Tensor, q: Tensor) -> None:
    """Writes the assignment of a block to q (R, K), by way of logits (R, K)."""
    torch.mm(query, key, out=logits)
    logits.sub_(logits.amax(dim=1, keepdim=True))
    torch.threshold_(logits, *saturation(logits.dtype))
    torch.softmax(logits, dim=1, out=q)


def _blocks(z: Tensor, codebook: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of R latents, each with the same two (R, K) matrices to write to."""
    count, size = z.shape[0], codebook.shape[0]
    block = min(count, _rows_per_block(z.device, size))
    first, second = z.new_empty(block, size), z.new_empty(block, size)
    for start in range(0, count, max(1, block)):
        rows = slice(start, min(start + block, count))
        length = rows.stop - start
        yield rows, first[:length], second[:length]


def _rows_per_block(device: torch.device, size: int) -> int:
    elements = MOST_ELEMENTS
    if device.type == "cpu":
        elements = min(elements, ELEMENTS_PER_THREAD * torch.get_num_threads())
    return max(FEWEST_ROWS, elements // size)


@_attend.register_fake
def _attend_fake(
    z: Tensor, codebook: Tensor, temperature: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    per_token = [torch.empty_like(weights) for _ in range(4)]
    return (
        torch.empty_like(z),
        *per_token[:2],
        z.new_empty(codebook.shape[0]),
        torch.empty_like(weights, dtype=torch.int64),
        *per_token[2:],
    )


@_attend_backward.register_fake
def _attend_backward_fake(
    grad_quantized: Tensor,
    grad_ols: Tensor,
    grad_variance: Tensor,
    grad_usage: Tensor,
    z: Tensor,
    codebook: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return z.new_empty(z.shape), z.new_empty(codebook.shape), z.new_empty(())


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    latents, codebook, temperature, _weights = ctx.needs_input_grad
    gradients = _attend_backward(*grads[:4], *ctx.saved_tensors, latents or temperature, codebook)
    return (*gradients, None)


def _refuse(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
    raise RuntimeError(
        "the attention engine computes no second derivatives; use the dense engine, "
        "softvq.functional.soft_quantize"
    )


_attend.register_autograd(_differentiate, setup_context=_save)
_attend_backward.register_autograd(_refuse)
