"""Readouts of a sequence without DDCL: mean, CLS, Slot Attention and learned queries.

All are called as :class:`softvq.DDCLReadout` is, ``readout(tokens, mask)``, and name their outputs
as it does. B documents have T tokens of size D, and K slots.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

# This is added to the assignments of Slot Attention before they are normalised over tokens.
EPSILON = 1e-8


class BaselineOutput(NamedTuple):
    """What a readout without codebook makes of a batch of documents.

    Attributes:
        pooled: (B, D), one vector for each document, zero where a document is padding only.
        proportions: (B, K), mean assignment of the real tokens to the slots, or None where tokens
            are not shared out.
        prototypes: (B, K, D), the slots of each document, or None where there are none.
        loss: Scalar to add to the task's loss; it is zero, since these readouts have no loss.
    """

    pooled: Tensor
    proportions: Tensor | None
    prototypes: Tensor | None
    loss: Tensor


class Baseline(nn.Module):
    """The check of the input, which all baselines share; ``read`` does the rest.

    Args:
        dim: D, the size of a token, at least 1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> BaselineOutput:
        """Read documents out; see :meth:`softvq.DDCLReadout.forward`."""
        fits = tokens.dim() == 3 and tokens.shape[2] == self.dim
        if not fits or (mask is not None and mask.shape != tokens.shape[:2]):
            raise ValueError(
                f"documents must be (B, T, D) with dim = {self.dim}, and the mask (B, T); got "
                f"tokens of shape {tuple(tokens.shape)}"
            )
        if mask is not None:
            if mask.dtype != torch.bool:
                raise TypeError(f"the mask must be bool, False for padding, got {mask.dtype}")
            tokens = torch.where(mask[..., None], tokens, 0.0)
        return self.read(tokens, mask)

    def read(self, tokens: Tensor, mask: Tensor | None) -> BaselineOutput:
        """Read documents out whose padding is zero."""
        raise NotImplementedError


class MeanReadout(Baseline):
    """The mean of the real tokens.

    Example:
        >>> MeanReadout(2)(torch.tensor([[[1.0, 0.0], [3.0, 2.0]]])).pooled
        tensor([[2., 1.]])
    """

    def read(self, tokens: Tensor, mask: Tensor | None) -> BaselineOutput:
        """Read documents out whose padding is zero."""
        # Half precision would lose the small steps of a long sum.
        exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        counts = exact.new_full((len(tokens), 1), tokens.shape[1])
        if mask is not None:
            counts = mask.sum(dim=1, keepdim=True).clamp_min(1)
        pooled = (exact.sum(dim=1) / counts).to(tokens.dtype)
        return BaselineOutput(pooled, None, None, tokens.new_zeros(()))


class CLSReadout(Baseline):
    """The first real token, which is BERT's CLS whichever side is padded.

    Example:
        >>> tokens = torch.tensor([[[9.0], [1.0], [2.0]]])
        >>> CLSReadout(1)(tokens, torch.tensor([[False, True, True]])).pooled
        tensor([[1.]])
    """

    def read(self, tokens: Tensor, mask: Tensor | None) -> BaselineOutput:
        """Read documents out whose padding is zero."""
        pooled = tokens[:, 0]  # (B, D)
        if mask is not None:
            pooled = tokens[torch.arange(len(tokens), device=tokens.device), mask.int().argmax(1)]
        return BaselineOutput(pooled, None, None, tokens.new_zeros(()))


class SlotAttentionReadout(Baseline):
    """Slot Attention: slots compete for the tokens over several iterations.

    This is algorithm 1 of Locatello et al., 2020, https://arxiv.org/abs/2006.15055: slots drawn
    from a learned Gaussian; a softmax over slots, then means over tokens; a GRU and a residual MLP.
    The pooled vector is the mean of the slots. In training the slots are drawn anew in every call.
    In eval mode they are always the same, so that evaluation repeats; the paper draws there too.

    Args:
        dim: D, the size of a token.
        slots: K, the number of slots, at least 1.
        iterations: How often the slots are refined, at least 1.

    Example:
        >>> out = SlotAttentionReadout(8, slots=4)(torch.randn(2, 5, 8))
        >>> tuple(out.pooled.shape), tuple(out.proportions.shape), tuple(out.prototypes.shape)
        ((2, 8), (2, 4), (2, 4, 8))
    """

    noise: Tensor

    def __init__(self, dim: int, slots: int, *, iterations: int = 3) -> None:
        super().__init__(dim)
        self.iterations = iterations
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
        self.mlp = _mlp(dim)

    def read(self, tokens: Tensor, mask: Tensor | None) -> BaselineOutput:
        """Read documents out whose padding is zero."""
        real = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)
        real = real[..., None]  # (B, T, 1)
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
            weights = (shared + EPSILON) * real
            weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(EPSILON)
            updates = torch.einsum("btk,btd->bkd", weights, value)
            moved = self.cell(updates.flatten(0, 1), slots.flatten(0, 1))
            slots = moved.view_as(updates)
            slots = slots + self.mlp(slots)
        proportions = (shared * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)
        return _output_of(slots, mask, proportions)


class CrossAttentionReadout(Baseline):
    """K learned queries attend to the tokens once; a residual MLP follows.

    This is one cross-attention layer of a Perceiver (Jaegle et al., 2021,
    https://arxiv.org/abs/2103.03206). Its softmax is over tokens. They are not shared out among
    queries, so there are no proportions. The pooled vector is the mean over queries.

    Args:
        dim: D, the size of a token.
        queries: K, the number of queries, at least 1.
        heads: Number of heads of the attention; it must divide D.

    Example:
        >>> out = CrossAttentionReadout(8, queries=4)(torch.randn(2, 5, 8))
        >>> tuple(out.pooled.shape), tuple(out.prototypes.shape)
        ((2, 8), (2, 4, 8))
    """

    def __init__(self, dim: int, queries: int, *, heads: int = 1) -> None:
        super().__init__(dim)
        self.queries = nn.Parameter(0.02 * torch.randn(queries, dim))
        self.norm_tokens, self.norm_queries = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = _mlp(dim)

    def read(self, tokens: Tensor, mask: Tensor | None) -> BaselineOutput:
        """Read documents out whose padding is zero."""
        # A softmax over nothing is NaN: an empty document attends to its padding instead.
        padding = None if mask is None else ~mask & mask.any(dim=1, keepdim=True)
        tokens = self.norm_tokens(tokens)
        queries = self.queries.expand(len(tokens), -1, -1)  # (B, K, D)
        attended, _ = self.attention(
            self.norm_queries(queries), tokens, tokens, key_padding_mask=padding, need_weights=False
        )
        slots = queries + attended
        return _output_of(slots + self.mlp(slots), mask)


@torch.no_grad()
def distinct_slots(
    slots: Tensor, present: Tensor | None = None, *, tolerance: float = 0.1
) -> Tensor:
    """Count the slots of each document that differ: K where all do, 1 where they have collapsed.

    Two slots are the same if they are no further apart than ``tolerance`` times the root mean
    square of the slots' lengths, or if a chain of slots that are the same links them. The order of
    the slots does not matter, nor does their scale.

    Args:
        slots: (B, K, D), the slots of each document.
        present: bool (B, K), False for slots that do not count, such as prototypes without a
            token. By default all count.
        tolerance: Largest distance of two slots that are the same, in [0, 2].

    Returns:
        int64 (B,), from 1 to K, or 0 where no slot is present.

    Example:
        >>> slots = torch.tensor([[[1.0, 0.0], [1.01, 0.0], [0.0, 1.0]]])
        >>> distinct_slots(slots).tolist()
        [2]
    """
    if present is None:
        present = torch.ones(slots.shape[:2], dtype=torch.bool)
    slots = torch.where(present[..., None], slots, 0.0)
    counts = present.sum(dim=1).clamp_min(1)  # (B,)
    scale = (slots.square().sum(dim=(1, 2)) / counts).sqrt()  # (B,)
    # Products would lose the digits of small distances.
    apart = torch.cdist(slots, slots, compute_mode="donot_use_mm_for_euclid_dist")  # (B, K, K)
    linked = apart <= tolerance * scale[:, None, None]
    found = [
        connected_components(own[there][:, there].numpy())[0] if there.any() else 0
        for own, there in zip(linked, present, strict=True)
    ]
    return torch.tensor(found)


def _output_of(
    slots: Tensor, mask: Tensor | None, proportions: Tensor | None = None
) -> BaselineOutput:
    """Return the slots (B, K, D) and their mean, zero for documents of padding only."""
    if mask is not None:
        slots = torch.where(mask.any(dim=1)[:, None, None], slots, 0.0)
    return BaselineOutput(slots.mean(dim=1), proportions, slots, slots.new_zeros(()))


def _mlp(dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
    )
