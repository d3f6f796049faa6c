"""What is read out of a sequence without DDCL: mean, CLS, Slot Attention, learned queries.

Called as :class:`softvq.DDCLReadout` is, ``readout(tokens, mask)``, with outputs of the same names.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from softvq import checked_documents, mean_token
from softvq.functional import compute_dtype


class BaselineOutput(NamedTuple):
    """What a readout without codebook makes of a batch of documents.

    Attributes:
        pooled: (B, D), zero for a document of padding only.
        proportions: (B, K), mean assignment of the real tokens to the slots, or None where tokens
            are not shared out.
        prototypes: (B, K, D), the document as K vectors: its slots; None where there are none.
        loss: Scalar to add to the task's loss: zero, these readouts have none of their own.
    """

    pooled: Tensor
    proportions: Tensor | None
    prototypes: Tensor | None
    loss: Tensor


class MeanReadout(nn.Module):
    """Mean of the real tokens.

    Args:
        dim: D.

    Example:
        >>> MeanReadout(2)(torch.tensor([[[1.0, 0.0], [3.0, 2.0]]])).pooled
        tensor([[2., 1.]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> BaselineOutput:
        """Read documents out; see :meth:`softvq.DDCLReadout.forward`."""
        checked_documents(tokens, mask, self.dim)
        # Half precision would lose the small steps of a long sum.
        pooled = mean_token(tokens.to(compute_dtype(tokens)), mask).to(tokens.dtype)
        return BaselineOutput(pooled, None, None, tokens.new_zeros(()))


class CLSReadout(nn.Module):
    """The first real token: BERT's CLS, whichever side is padded.

    Args:
        dim: D.

    Example:
        >>> tokens = torch.tensor([[[9.0], [1.0], [2.0]]])
        >>> CLSReadout(1)(tokens, torch.tensor([[False, True, True]])).pooled
        tensor([[1.]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> BaselineOutput:
        """Read documents out; see :meth:`softvq.DDCLReadout.forward`."""
        checked_documents(tokens, mask, self.dim)
        pooled = tokens[:, 0]  # (B, D)
        if mask is not None:
            first = mask.int().argmax(dim=1)  # (B,)
            pooled = tokens[torch.arange(len(tokens), device=tokens.device), first]
            pooled = torch.where(mask.any(dim=1, keepdim=True), pooled, 0.0)
        return BaselineOutput(pooled, None, None, tokens.new_zeros(()))


class SlotAttentionReadout(nn.Module):
    """Slot Attention: slots that compete for the tokens over several iterations.

    Locatello et al., 2020, https://arxiv.org/abs/2006.15055, algorithm 1: slots drawn from a
    learned Gaussian; a softmax over slots, then means over tokens; a GRU and a residual MLP. The
    pooled vector is the mean of the slots. Its draw is anew in training and one and the same in
    eval mode, so that evaluation repeats: there the paper draws too.

    Args:
        dim: D.
        slots: K, at least 1.
        iterations: Of the refinement, at least 1.
        hidden: Width of the MLP, 2 D by default.
        epsilon: Added to assignments before they are normalised over tokens.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> out = SlotAttentionReadout(8, slots=4)(torch.randn(2, 5, 8))
        >>> tuple(out.pooled.shape), tuple(out.proportions.shape), tuple(out.prototypes.shape)
        ((2, 8), (2, 4), (2, 4, 8))
    """

    noise: Tensor

    def __init__(
        self,
        dim: int,
        slots: int,
        *,
        iterations: int = 3,
        hidden: int | None = None,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__()
        if min(dim, slots, iterations) < 1:
            raise ValueError(
                f"dim, slots and iterations must be at least 1, got {dim}, {slots} and {iterations}"
            )
        self.dim, self.slots, self.iterations, self.epsilon = dim, slots, iterations, epsilon
        self.mean = nn.Parameter(torch.empty(dim))
        self.log_deviation = nn.Parameter(torch.empty(dim))
        for parameter in (self.mean, self.log_deviation):
            nn.init.xavier_uniform_(parameter.data[None])
        self.register_buffer("noise", torch.randn(slots, dim))
        self.norm_tokens, self.norm_slots = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.cell = nn.GRUCell(dim, dim)
        self.mlp = _mlp(dim, hidden or 2 * dim)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> BaselineOutput:
        """Read documents out; see :meth:`softvq.DDCLReadout.forward`."""
        checked_documents(tokens, mask, self.dim)
        real = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)
        real = real[..., None]  # (B, T, 1)
        if mask is not None:
            tokens = torch.where(mask[..., None], tokens, 0.0)
        tokens = self.norm_tokens(tokens)
        key, value = self.key(tokens), self.value(tokens)
        noise = self.noise
        if self.training:
            noise = torch.randn_like(noise.expand(len(tokens), -1, -1))
        slots = self.mean + self.log_deviation.exp() * noise
        slots = slots.expand(len(tokens), -1, -1)  # (B, K, D)
        for _ in range(self.iterations):
            query = self.query(self.norm_slots(slots)) / self.dim**0.5
            shared = torch.einsum("btd,bkd->btk", key, query).softmax(dim=2)
            weights = (shared + self.epsilon) * real
            weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(self.epsilon)
            updates = torch.einsum("btk,btd->bkd", weights, value)
            moved = self.cell(updates.flatten(0, 1), slots.flatten(0, 1))
            slots = moved.view_as(updates)
            slots = slots + self.mlp(slots)
        counts = real.sum(dim=1)  # (B, 1)
        proportions = (shared * real).sum(dim=1) / counts.clamp_min(1)
        slots = torch.where(counts[..., None] > 0, slots, 0.0)
        return BaselineOutput(slots.mean(dim=1), proportions, slots, tokens.new_zeros(()))


class CrossAttentionReadout(nn.Module):
    """K learned queries that attend to the tokens once, then a residual MLP.

    One cross-attention layer of a Perceiver (Jaegle et al., 2021,
    https://arxiv.org/abs/2103.03206). Its softmax is over tokens: they are not shared out among
    queries, hence no proportions. The pooled vector is the mean over queries.

    Args:
        dim: D.
        queries: K, at least 1.
        heads: Of the attention; a divisor of D.
        hidden: Width of the MLP, 2 D by default.

    Raises:
        ValueError: If a size is not positive, or heads do not divide D.

    Example:
        >>> out = CrossAttentionReadout(8, queries=4)(torch.randn(2, 5, 8))
        >>> tuple(out.pooled.shape), tuple(out.prototypes.shape)
        ((2, 8), (2, 4, 8))
    """

    def __init__(
        self, dim: int, queries: int, *, heads: int = 1, hidden: int | None = None
    ) -> None:
        super().__init__()
        if min(dim, queries, heads) < 1 or dim % heads:
            raise ValueError(
                "dim, queries and heads must be at least 1, and heads a divisor of dim, got "
                f"{dim}, {queries} and {heads}"
            )
        self.dim = dim
        self.queries = nn.Parameter(0.02 * torch.randn(queries, dim))
        self.norm_tokens, self.norm_queries = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = _mlp(dim, hidden or 2 * dim)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> BaselineOutput:
        """Read documents out; see :meth:`softvq.DDCLReadout.forward`."""
        checked_documents(tokens, mask, self.dim)
        padding, there = None, None
        if mask is not None:
            tokens = torch.where(mask[..., None], tokens, 0.0)
            there = mask.any(dim=1)  # (B,)
            # A softmax over nothing is NaN; what comes out instead is dropped below.
            padding = ~mask & there[:, None]
        tokens = self.norm_tokens(tokens)
        queries = self.queries.expand(len(tokens), -1, -1)  # (B, K, D)
        attended, _ = self.attention(
            self.norm_queries(queries), tokens, tokens, key_padding_mask=padding, need_weights=False
        )
        slots = queries + attended
        slots = slots + self.mlp(slots)
        if there is not None:
            slots = torch.where(there[:, None, None], slots, 0.0)
        return BaselineOutput(slots.mean(dim=1), None, slots, tokens.new_zeros(()))


@torch.no_grad()
def distinct_slots(
    slots: Tensor, present: Tensor | None = None, *, tolerance: float = 0.1
) -> Tensor:
    """How many of a document's slots differ: K where all do, 1 where they have collapsed.

    Two slots are the same if they are no further apart than ``tolerance`` times the root mean
    square of the slots' lengths, or if a chain of slots that are the same links them. The order of
    the slots does not matter, nor does their scale.

    Args:
        slots: (B, K, D).
        present: bool (B, K), False for slots that do not count, such as prototypes without a
            token; all by default.
        tolerance: In [0, 2].

    Returns:
        int64 (B,), from 1 to K, or 0 where no slot is present.

    Raises:
        ValueError: If a shape or the tolerance does not fit.

    Example:
        >>> slots = torch.tensor([[[1.0, 0.0], [1.01, 0.0], [0.0, 1.0]]])
        >>> distinct_slots(slots).tolist()
        [2]
    """
    if slots.dim() != 3 or (present is not None and present.shape != slots.shape[:2]):
        given = None if present is None else tuple(present.shape)
        raise ValueError(
            f"slots must be (B, K, D) and present (B, K), got {tuple(slots.shape)} and {given}"
        )
    if not 0 <= tolerance <= 2:
        raise ValueError(f"tolerance must lie in [0, 2], got {tolerance}")
    if present is None:
        present = torch.ones(slots.shape[:2], dtype=torch.bool, device=slots.device)
    slots = torch.where(present[..., None], slots, 0.0).to(compute_dtype(slots))
    counts = present.sum(dim=1).clamp_min(1)  # (B,)
    scale = (slots.square().sum(dim=(1, 2)) / counts).sqrt()  # (B,)
    # Products would lose the digits of small distances.
    apart = torch.cdist(slots, slots, compute_mode="donot_use_mm_for_euclid_dist")  # (B, K, K)
    linked = (apart <= tolerance * scale[:, None, None]).to(slots.dtype)
    linked = linked * (present[:, :, None] & present[:, None, :])
    # Squaring doubles the length of the chains that are followed.
    for _ in range((slots.shape[1] - 1).bit_length()):
        linked = (linked @ linked > 0).to(slots.dtype)
    # A group of slots is counted at its first.
    first = linked.tril(diagonal=-1).sum(dim=2) == 0  # (B, K)
    return (first & present).sum(dim=1)


def _mlp(dim: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)
    )
