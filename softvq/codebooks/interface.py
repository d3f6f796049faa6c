"""What codebooks take, layouts and masks, and what a step learns from their outputs.

Shapes: ``...`` is the layout of the latents without their vector axis, N the number of vectors,
D the vector size, K the codebook size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from .._internal.distributed import agreed
from .outputs import CodebookOutput

if TYPE_CHECKING:
    from .codebook import Codebook


# All integers that int64 holds.
INTEGERS = (
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32),
)
# What the encoder gets from the decoder where the code has no derivative of use.
STRAIGHT_THROUGH = "the decoder's gradient straight through, as if the code were the latent"
# Forwards with gradients after which somebody who calls nothing else has forgotten it.
SURELY_A_TRAINING = 10


class BatchStatistics(NamedTuple):
    """What state learns from a batch, of the M tokens that were not masked.

    Attributes:
        tokens: (M, D), their latents.
        indices: (M,) int64, their nearest prototypes.
        entropy: Scalar, mean entropy of their assignments, in nats.
        usage: (K,), their mean assignment.
    """

    tokens: Tensor
    indices: Tensor
    entropy: Tensor
    usage: Tensor


def batch_statistics(outs: Sequence[CodebookOutput]) -> BatchStatistics:
    """Statistics of a batch that a codebook saw in one or several parts.

    Args:
        outs: The outputs of the parts, at least one.

    Raises:
        FloatingPointError: If the latents hold NaN or infinity.
        TypeError: If no output is given, or something else.

    Example:
        >>> import torch
        >>> from softvq import VQCodebook
        >>> codebook = VQCodebook(dim=4, codebook_size=8)
        >>> parts = [codebook(torch.randn(3, 4)), codebook(torch.randn(2, 5, 4))]
        >>> tuple(batch_statistics(parts).tokens.shape)
        (13, 4)
    """
    if not outs:
        raise TypeError("after_step needs what forward returned: after_step(out)")
    for out in outs:
        if not isinstance(out, CodebookOutput):
            raise TypeError(
                "after_step needs what forward returned, out = codebook(z): got "
                f"a {type(out).__name__}"
            )
    kept = [out.indices.flatten() >= 0 for out in outs]
    counts = torch.stack([part.sum() for part in kept]).to(outs[0].usage)
    weights = counts / counts.sum().clamp_min(1)
    tokens = torch.cat([out.latents[part] for out, part in zip(outs, kept, strict=True)])
    # Squares, which the state is made of, overflow before the latents do.
    if not bool(tokens.square().sum(dim=1).isfinite().all()):
        raise FloatingPointError(
            "the latents given to the codebook hold NaN or infinity, or numbers whose squares "
            "are; lower the learning rate, or look for an overflow in the encoder (half precision?)"
        )
    return BatchStatistics(
        tokens=tokens,
        indices=torch.cat([out.indices.flatten() for out in outs])[torch.cat(kept)],
        entropy=weights @ torch.stack([out.codes_per_token.detach().log() for out in outs]),
        usage=weights @ torch.stack([out.usage for out in outs]),
    )


@torch.no_grad()
def after_step_of(levels: Sequence[Codebook], outs: Sequence[Sequence[CodebookOutput]]) -> None:
    """:meth:`Codebook.after_step` of several levels: all of them move, or, on an error, none.

    Args:
        levels: The codebooks.
        outs: For each part of the batch one output for each of the levels.

    Raises:
        FloatingPointError: If the latents of a level, in any process, hold NaN or infinity.
        ValueError: If an output is another codebook's.
        TypeError: If no output is given.
        RuntimeError: If another process was given an output that it cannot use.
    """
    with agreed(levels[0].steps.device):
        batches = _batches_of(levels, outs)
    for level, batch in zip(levels, batches, strict=True):
        level._step(batch)


def _batches_of(
    levels: Sequence[Codebook], outs: Sequence[Sequence[CodebookOutput]]
) -> list[BatchStatistics]:
    """What each level learns from the batch of this process, after checking that it may."""
    if any(len(out) != len(levels) for out in outs):
        raise ValueError(
            f"after_step needs the output of these {len(levels)} codebooks, got one of "
            f"{[len(out) for out in outs]}"
        )
    batches = [batch_statistics([out[n] for out in outs]) for n in range(len(levels))]
    for level, batch in zip(levels, batches, strict=True):
        own, given = (level.dim, level.codebook_size), (batch.tokens.shape[1], len(batch.usage))
        if own != given:
            raise ValueError(
                f"after_step needs this codebook's own output: it has D = {own[0]} and K = "
                f"{own[1]}, the output is of one with D = {given[0]} and K = {given[1]}"
            )
    return batches


def warn_of_forgotten_calls(codebooks: Iterable[Codebook]) -> None:
    """Say, once for each set of codebooks, that a training left them as they were constructed."""
    fresh = [
        book
        for book in codebooks
        if book.forwards >= SURELY_A_TRAINING
        and not (book.initialized or book.frozen or int(book.steps))
    ]
    if fresh:
        warnings.warn(
            f"this {type(fresh[0]).__name__} was neither started nor stepped, so its prototypes "
            "are random: call softvq.attach(model, optimizer) before training; or, by hand, "
            "initialize(latents) before and after_step(out) after each step of the optimizer",
            stacklevel=4,  # past the decorator of encode
        )
    for book in fresh:
        book.forwards = -math.inf


def vectors_last(
    z: Tensor, mask: Tensor | None, dim: int, channel_first: bool, least_axes: int = 1
) -> Tensor:
    """Latents with the vector axis last, after checking them and their mask.

    Args:
        z: (..., D), or (B, D, ...) with ``channel_first``.
        mask: bool, z's shape without the vector axis, or None.
        dim: D.
        channel_first: Whether the vector axis is the second one instead of the last.
        least_axes: Minimum number of axes of z, including the vector axis.

    Raises:
        ValueError: If a shape does not fit.
        TypeError: If a dtype does not fit.
    """
    least_axes = max(least_axes, 2 if channel_first else 1)
    if not isinstance(z, Tensor) or not z.is_floating_point():
        given = z.dtype if isinstance(z, Tensor) else f"a {type(z).__name__}"
        raise TypeError(f"latents must be a floating-point tensor, got {given}")
    if z.dim() < least_axes or z.shape[1 if channel_first else -1] != dim:
        layout = "(B, D, ...)" if channel_first else "(..., D)"
        raise ValueError(
            f"latents must be {layout} of at least {least_axes} axes with D = dim = {dim}, got "
            f"shape {tuple(z.shape)}; channel_first=True puts the vector axis second, "
            "channel_first=False last"
        )
    vectors = rearrange(z, "b d ... -> b ... d") if channel_first else z  # (..., D)
    if mask is not None:
        check_mask(mask, vectors.shape[:-1], "the latents' shape without the vector axis,")
    return vectors


def check_mask(mask: Tensor, shape: Sequence[int], whose: str) -> None:
    """Refuse a mask that is not bool, or not of a shape.

    Args:
        mask: The mask, which should be bool, False for padding.
        shape: The shape that it must have.
        whose: Words for that shape, for the message.

    Raises:
        ValueError: If the shape does not fit.
        TypeError: If the dtype does not fit.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        given = mask.dtype if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise TypeError(f"mask must be a bool tensor (False for padding), got {given}")
    if mask.shape != shape:
        raise ValueError(
            f"mask must be bool and must have {whose} {tuple(shape)}, got {tuple(mask.shape)}"
        )


def in_layout(vectors: Tensor, channel_first: bool) -> Tensor:
    """Vectors (..., D) as (B, D, ...) with ``channel_first``; a single one has no batch axis."""
    moved = channel_first and vectors.dim() > 1
    return rearrange(vectors, "b ... d -> b d ...") if moved else vectors


def checked_indices(indices: Tensor, size: int) -> Tensor:
    """Indices as int64, after checking them.

    Args:
        indices: Integers in [0, K), or -1 for padding.
        size: K, number of prototypes.

    Raises:
        IndexError: If an index lies outside [-1, K).
        TypeError: If the indices are not integers.
    """
    # What int64 does not hold wraps in silence.
    if not isinstance(indices, Tensor) or indices.dtype not in INTEGERS:
        given = indices.dtype if isinstance(indices, Tensor) else f"a {type(indices).__name__}"
        raise TypeError(f"indices must be a tensor of integers, got {given}")
    # Indexing takes uint8 for a mask, and the other narrow dtypes not at all.
    indices = indices.to(torch.int64)
    # A captured graph cannot branch on values.
    captured = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if not captured and indices.numel():
        low, high = (int(bound) for bound in indices.aminmax())
        if low < -1 or high >= size:
            raise IndexError(
                f"indices must lie in [0, {size}), or be -1 for padding; "
                f"got values from {low} to {high}; are they of another codebook?"
            )
    return indices


def unflattened(flat: Tensor, z: Tensor, channel_first: bool) -> Tensor:
    """(N,) or (N, D) in the layout of z without its vector axis, D last."""
    axis = 1 if channel_first else z.dim() - 1
    return flat.reshape((*z.shape[:axis], *z.shape[axis + 1 :], *flat.shape[1:]))
