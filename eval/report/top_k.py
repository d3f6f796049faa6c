"""Top-k decoding: codes that mix the k nearest prototypes only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models import ImageTokenizer
from softvq import CodebookOutput, SoftCodebook
from softvq.functional import squared_distances

# Elements of a matrix of distances held at a time.
_BLOCK = 2**22


class TopAssignments(NamedTuple):
    """The k largest assignments of N latents, the largest first.

    Attributes:
        q: (N, k), assignments as they are: not renormalised.
        indices: (N, k) int64.
    """

    q: Tensor
    indices: Tensor


def top_assignments(
    z: Tensor, codebook: Tensor, temperature: Tensor | float, k: int
) -> TopAssignments:
    """The k largest of a Boltzmann assignment, a block of latents at a time.

    Args:
        z: (N, D) latents.
        codebook: (K, D) prototypes.
        temperature: T > 0.
        k: At most K are returned.

    Example:
        >>> codebook = torch.tensor([[0.0], [1.0], [9.0]])
        >>> top = top_assignments(torch.zeros(1, 1), codebook, 1.0, k=2)
        >>> top.indices.tolist(), [round(q, 3) for q in top.q[0].tolist()]
        ([[0, 1]], [0.731, 0.269])
    """
    k = min(k, len(codebook))
    parts = []
    for block in z.split(max(1, _BLOCK // len(codebook))):
        logits = -squared_distances(block, codebook) / temperature  # (n, K)
        top, indices = logits.topk(k, dim=1)
        parts.append(((top - logits.logsumexp(dim=1, keepdim=True)).exp(), indices))
    q, indices = (torch.cat(part) for part in zip(*parts, strict=True))
    return TopAssignments(q, indices)


@contextmanager
def top_k_codes(model: ImageTokenizer, k: int) -> Iterator[None]:
    """Within it, every soft codebook's output mixes its k nearest prototypes, renormalised.

    Later levels code what those mixes leave over, as they do of soft codes and of argmax codes.
    Codebooks without a temperature are not changed.

    Args:
        model: Its codebooks.
        k: Prototypes of a mix, at least 1; K or more is the soft code.

    Raises:
        ValueError: If k is less than 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")

    def mix(level: SoftCodebook, given: tuple[Any, ...], out: CodebookOutput) -> CodebookOutput:
        z = given[0].movedim(1, -1) if level.channel_first else given[0]  # (..., D)
        top = top_of(level, out, k)
        share = top.q / top.q.sum(dim=1, keepdim=True)
        codes = (share[..., None] * level.codebook[top.indices]).sum(dim=1)  # (N, D)
        codes = torch.where(out.indices.flatten()[:, None] >= 0, codes, 0.0).view_as(z)
        codes = codes.to(z.dtype)
        codes = codes.movedim(-1, 1) if level.channel_first else codes
        return replace(out, quantized=codes)

    soft = [level for level in model.levels if isinstance(level, SoftCodebook)]
    handles = [level.register_forward_hook(mix) for level in soft]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def top_of(level: SoftCodebook, out: CodebookOutput, k: int) -> TopAssignments:
    """:func:`top_assignments` of the latents that a level's output is of."""
    temperature = level.temperature.to(out.latents.dtype)
    return top_assignments(out.latents, level.codebook.to(out.latents.dtype), temperature, k)
