"""The hard baselines: nearest-prototype codebooks with a straight-through gradient.

van den Oord et al., 2017, https://arxiv.org/abs/1711.00937: equation 3 for the losses of
:class:`VQCodebook`, appendix A.1 for the moving averages of :class:`VQEMACodebook`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..functional import nearest_codes, token_weights
from .codebook import Codebook
from .interface import STRAIGHT_THROUGH, BatchStatistics
from .outputs import CodebookOutput


class _HardCodebook(Codebook):
    """Base of the hard codebooks: the nearest prototype, and a straight-through gradient.

    A subclass registers its prototypes and says by two hooks how they learn: ``_weighted`` and
    ``_move``.
    """

    straight_through = True
    encoder_gradient = STRAIGHT_THROUGH

    def _commit(self, commitment: float) -> None:
        """Set the weight of the encoder's term; for the constructor."""
        if not 0 <= commitment < math.inf:
            raise ValueError(f"commitment must be >= 0 and finite, got {commitment}")
        self.commitment = commitment

    def _weighted(self, losses: dict[str, Tensor]) -> Tensor:
        """The loss to train with, of the terms ``codebook_loss`` and ``commitment_loss``."""
        raise NotImplementedError

    def _move(self, batch: BatchStatistics) -> None:
        """Move the prototypes by what they learn without gradients; nothing by default.

        The running usage has moved already.
        """

    def _quantize(
        self, latents: Tensor, codebook: Tensor, mask: Tensor | None, hard: bool
    ) -> CodebookOutput:
        nearest = nearest_codes(latents.detach(), codebook.detach())  # (N,)
        chosen = codebook[nearest]  # (N, D)
        weights = token_weights(mask, latents)
        # Both terms from the prototypes themselves, before the straight-through sum, which would
        # hide the codebook from the first.
        losses = {
            "codebook_loss": weights @ (latents.detach() - chosen).square().mean(dim=1),
            "commitment_loss": weights @ (latents - chosen.detach()).square().mean(dim=1),
        }
        distance = losses["commitment_loss"].detach()
        losses |= {"loss_q": distance, "loss_ols": distance, "variance": distance * 0}
        usage = torch.zeros_like(self.running_usage, dtype=latents.dtype)
        return CodebookOutput(
            quantized=chosen,
            indices=nearest,
            loss=self._weighted(losses),
            losses=losses,
            codes_per_token=torch.ones_like(distance),
            usage=usage.index_add_(0, nearest, weights),
            latents=latents.detach(),
        )

    def _learn(self, batch: BatchStatistics) -> None:
        """Update the running counts, move the prototypes, restart starved ones."""
        counts = self._summed(torch.bincount(batch.indices, minlength=self.codebook_size))
        self.running_usage.lerp_(counts.to(self.running_usage.dtype), 1 - self.decay)
        self._move(batch)
        self._restart(batch.tokens)

    def _initialized_from(self, latents: Tensor) -> None:
        self.running_usage.fill_(1)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # The name until version 0.1.
        if f"{prefix}cluster_size" in state_dict:
            state_dict[f"{prefix}running_usage"] = state_dict.pop(f"{prefix}cluster_size")
        super()._load_from_state_dict(state_dict, prefix, *args)


class VQCodebook(_HardCodebook):
    """Nearest prototype, straight-through gradient, codebook learnt by gradient.

    The loss is ``codebook_loss + commitment * commitment_loss``: the first term moves prototypes to
    their latents only, the second moves latents to their prototypes only.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        commitment: Weight of the encoder's term in the loss, beta in the paper, >= 0.
        decay: Share of the running usage that a step keeps, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean, in
            [0, 1), is moved onto a random latent of the batch; 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D) parameter, the prototypes; uniform in [-1/K, 1/K] until ``initialize``.
        running_usage: (K,) buffer, running mean of the tokens per step that chose each prototype.

    Raises:
        ValueError: If a size or a weight is out of range.

    Example:
        >>> codebook = VQCodebook(dim=4, codebook_size=8)
        >>> quantized, indices, loss = codebook(torch.randn(2, 16, 4))
        >>> torch.equal(codebook.decode(indices), quantized)
        True
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        commitment: float = 0.25,
        decay: float = 0.99,
        restart_threshold: float = 0.0,
        seed: int = 0,
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, channel_first=channel_first)
        self._count(1.0, decay, restart_threshold, seed)
        self._commit(commitment)
        self.codebook = nn.Parameter(_small_uniform(codebook_size, dim))

    def _weighted(self, losses: dict[str, Tensor]) -> Tensor:
        return losses["codebook_loss"] + self.commitment * losses["commitment_loss"]


class VQEMACodebook(_HardCodebook):
    """Nearest prototype, straight-through gradient, codebook learnt by moving averages.

    A prototype is the running mean of the latents that chose it: no gradient, no learning rate.
    The loss is ``commitment * commitment_loss``.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        commitment: Weight of the encoder's term in the loss, beta in the paper, >= 0.
        decay: Share of the running usage and sums that a step keeps, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean, in
            [0, 1), is moved onto a random latent of the batch; 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D) buffer, the prototypes; uniform in [-1/K, 1/K] until ``initialize``.
        running_usage: (K,) buffer, running mean of the tokens per step that chose each prototype.
        embed_sum: (K, D) buffer, running mean of the sum of latents that chose each prototype.

    Raises:
        ValueError: If a size or a weight is out of range.

    Example:
        >>> codebook = VQEMACodebook(dim=4, codebook_size=8, decay=0.5)
        >>> before = codebook.codebook.clone()
        >>> out = codebook(torch.randn(2, 16, 4))
        >>> torch.equal(before, codebook.codebook)  # forward is pure
        True
        >>> codebook.after_step(out)
        >>> torch.equal(before, codebook.codebook)
        False
    """

    embed_sum: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        commitment: float = 0.25,
        decay: float = 0.99,
        restart_threshold: float = 0.1,
        seed: int = 0,
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, channel_first=channel_first)
        self._count(1.0, decay, restart_threshold, seed)
        self._commit(commitment)
        self.register_buffer("codebook", _small_uniform(codebook_size, dim))
        self.register_buffer("embed_sum", self.codebook.clone())

    def _weighted(self, losses: dict[str, Tensor]) -> Tensor:
        return self.commitment * losses["commitment_loss"]

    def _move(self, batch: BatchStatistics) -> None:
        sums = torch.zeros_like(self.embed_sum).index_add_(
            0, batch.indices, batch.tokens.to(self.embed_sum.dtype)
        )
        self.embed_sum.lerp_(self._summed(sums), 1 - self.decay)
        # No smoothing term: it would pull a prototype that nobody chooses towards the origin.
        size = self.running_usage[:, None]
        self.codebook.copy_(torch.where(size > 1e-8, self.embed_sum / size, self.codebook))

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        super()._replace(rows, vectors, size)
        self.embed_sum[rows] = self.codebook[rows] * size

    def _initialized_from(self, latents: Tensor) -> None:
        super()._initialized_from(latents)
        self.embed_sum.copy_(self.codebook)


def _small_uniform(codebook_size: int, dim: int) -> Tensor:
    """Prototypes (K, D) to start from, uniform in [-1/K, 1/K]."""
    bound = 1 / codebook_size
    return torch.empty(codebook_size, dim).uniform_(-bound, bound)
