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

from typing import Any

import torch
from torch import Tensor

from ._internal.arithmetic import (
    SoftCode,
    assigned,
    blocks,
    centred,
    masked,
    moments,
    operands,
    soft_block,
    token_weights,
    usage_divergence,
)


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
    z, codebook, center = centred(z, codebook)
    temperature = torch.as_tensor(temperature, dtype=z.dtype, device=z.device).reshape(())
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
    return masked(code, mask)


def _attend_blocks(
    z: Tensor, codebook: Tensor, temperature: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """The fields of a soft code but ``usage_kl``, the last being ``loss_q``; ``usage`` is (K,)."""
    (query, key), values = operands(z, codebook, temperature), moments(codebook)
    key = key.mT.contiguous()  # (D + 2, K), the layout that products are fastest with
    quantized, usage = torch.empty_like(z), z.new_zeros(codebook.shape[0])
    nearest = torch.empty_like(weights, dtype=torch.int64)
    loss_ols, variance, entropy, logit = (torch.empty_like(weights) for _ in range(4))
    whole = [quantized, loss_ols, variance, nearest, entropy, logit]
    for rows, *out in blocks(z, codebook):
        q, *parts = soft_block(query[rows], key, values, z[rows], out)
        usage.addmv_(q.mT, weights[rows])
        for all_rows, part in zip(whole, parts, strict=True):
            all_rows[rows] = part
    distance = logit.mul_(-temperature).clamp_min_(0)
    return quantized, loss_ols, variance, usage, nearest, entropy, distance


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
    (query, key), values = operands(z, codebook, temperature), moments(codebook)
    key = torch.cat([key.mT, grad_usage[None]])  # (D + 3, K)
    ones, zeros = torch.ones_like(weights)[:, None], torch.zeros_like(weights)[:, None]
    pull, spread = 2 * grad_ols[:, None], grad_variance[:, None]
    direct = (z - quantized).mul_(pull)  # (N, D), of L_OLS to the latents
    grad_mean = (grad_quantized - direct).addcmul_(quantized, spread, value=-2)
    grad_mixed = torch.cat([grad_mean, spread], dim=1)  # (N, D + 1)
    grad_q = torch.cat([grad_mean, zeros, spread, weights[:, None]], dim=1)  # (N, D + 3)
    score = torch.cat([2 * z, -ones], dim=1) / temperature  # (N, D + 1)
    pulled = torch.zeros_like(score)
    grad_values = torch.zeros_like(key[:-2])  # (D + 1, K), the layout that is fastest to add to
    for rows, *out in blocks(z, codebook):
        logits = torch.mm(query[rows], key[:-1], out=out[0])  # (R, K)
        grad_logits, q = assigned(logits, logits.amax(dim=1), out)
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


@_attend.register_fake
def _attend_fake(z: Tensor, codebook: Tensor, *_: Any) -> tuple[Tensor, ...]:
    # Not len(z): N may be a symbol.
    ols, variance, entropy, distance = (z.new_empty(z.shape[0]) for _ in range(4))
    usage, nearest = z.new_empty(codebook.shape[0]), z.new_empty(z.shape[0], dtype=torch.int64)
    return torch.empty_like(z), ols, variance, usage, nearest, entropy, distance


@_attend_backward.register_fake
def _attend_backward_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    z, codebook = inputs[4:6]
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
