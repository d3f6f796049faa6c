"""The hard baselines: nearest-prototype codebooks with a straight-through gradient.

van den Oord et al., 2017, https://arxiv.org/abs/1711.00937: equation 3 for the losses of
:class:`VQCodebook`, appendix A.1 for the moving averages of :class:`VQEMACodebook`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._internal.distributed import summed
from .._internal.latents import compute_dtype
from ..functional import nearest_codes, token_weights
from .codebook import Codebook
from .output import BatchStatistics, CodebookOutput


class VQCodebook(Codebook):
    """Nearest prototype, straight-through gradient, codebook learnt by gradient.

    The loss is ``codebook_loss + commitment * commitment_loss``: the first term moves prototypes to
    their latents only, the second moves latents to their prototypes only.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        commitment: Beta of the paper, weight of the encoder's term, >= 0.
        decay: Of the running token counts, in [0, 1).
        restart_threshold: A prototype whose running count falls below this share of the mean count
            is moved onto a random latent of the batch; 0 never restarts.
        seed: Of the restarts.
        channel_first: Latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D), the prototypes; uniform in [-1/K, 1/K] until ``initialize``.
        cluster_size: (K,) buffer, running mean of the tokens per step that chose each prototype.

    Raises:
        ValueError: If a size or a weight is out of range.

    Example:
        >>> codebook = VQCodebook(dim=4, codebook_size=8)
        >>> quantized, indices, loss = codebook(torch.randn(2, 16, 4))
        >>> torch.equal(codebook.decode(indices), quantized)
        True
    """

    cluster_size: Tensor
    straight_through = True

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
        super().__init__(
            dim,
            codebook_size,
            restart_threshold=restart_threshold,
            seed=seed,
            channel_first=channel_first,
        )
        if commitment < 0:
            raise ValueError(f"commitment must be >= 0, got {commitment}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self.commitment = commitment
        self.decay = decay
        bound = 1 / codebook_size
        self._set_codebook(torch.empty(codebook_size, dim).uniform_(-bound, bound))
        self.register_buffer("cluster_size", torch.ones(codebook_size))

    def _set_codebook(self, codebook: Tensor) -> None:
        self.codebook = nn.Parameter(codebook)

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = True) -> CodebookOutput:
        """Quantise; see :meth:`Codebook.forward`. ``hard`` changes nothing here."""
        flat, flat_mask = self._flatten(z, mask)
        dtype = compute_dtype(flat, self.codebook)
        with torch.autocast(z.device.type, enabled=False):
            latents, codebook = flat.to(dtype), self.codebook.to(dtype)
            if flat_mask is not None:
                latents = torch.where(flat_mask[:, None], latents, 0.0)
            nearest = nearest_codes(latents.detach(), codebook.detach())  # (N,)
            chosen = codebook[nearest]  # (N, D)
            weights = token_weights(flat_mask, latents)
            # Both terms from the prototypes themselves, before the straight-through sum, which
            # would hide the codebook from the first.
            losses = {
                "codebook_loss": weights @ (latents.detach() - chosen).square().mean(dim=1),
                "commitment_loss": weights @ (latents - chosen.detach()).square().mean(dim=1),
            }
            distance = losses["commitment_loss"].detach()
            losses |= {"loss_q": distance, "loss_ols": distance, "variance": distance * 0}
            # The latents minus themselves are an exact zero that carries the gradient, so that the
            # values are the prototypes to the last bit.
            quantized = chosen.detach() + (latents - latents.detach())
            usage = torch.zeros_like(self.cluster_size, dtype=dtype).index_add_(0, nearest, weights)
            if flat_mask is not None:
                quantized = torch.where(flat_mask[:, None], quantized, 0.0)
                nearest = torch.where(flat_mask, nearest, -1)
        return CodebookOutput(
            quantized=self._restore(quantized, z),
            indices=self._indices_like(nearest, z),
            loss=self._weighted(losses),
            losses=losses,
            codes_per_token=torch.ones_like(distance),
            usage=usage,
            latents=latents.detach(),
        )

    def _weighted(self, losses: dict[str, Tensor]) -> Tensor:
        return losses["codebook_loss"] + self.commitment * losses["commitment_loss"]

    def _learn(self, batch: BatchStatistics) -> None:
        """Update the running counts, move the prototypes, restart starved ones."""
        if self.frozen:
            return
        counts = summed(torch.bincount(batch.indices, minlength=self.codebook_size))
        self.cluster_size.lerp_(counts.to(self.cluster_size.dtype), 1 - self.decay)
        self._move(batch)
        self._restart(batch.tokens, self.cluster_size)

    def _move(self, batch: BatchStatistics) -> None:
        """Learn prototypes from a batch; gradients do it here."""

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        super()._replace(rows, vectors, size)
        self.cluster_size[rows] = size

    def _initialized_from(self, latents: Tensor) -> None:
        self.cluster_size.fill_(1)


class VQEMACodebook(VQCodebook):
    """Nearest prototype, straight-through gradient, codebook learnt by moving averages.

    A prototype is the running mean of the latents that chose it: no gradient, no learning rate.
    The loss is ``commitment * commitment_loss``; ``codebook`` is a buffer here.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        commitment: Weight of the encoder's term, >= 0.
        decay: Decay of the moving averages, in [0, 1).
        restart_threshold: A prototype whose running count falls below this share of the mean count
            is moved onto a random latent of the batch; 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
        channel_first: Latents are (B, D, ...) instead of (..., D).

    Attributes:
        embed_sum: (K, D) buffer, running mean of the sum of latents that chose each prototype.

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
        super().__init__(
            dim,
            codebook_size,
            commitment=commitment,
            decay=decay,
            restart_threshold=restart_threshold,
            seed=seed,
            channel_first=channel_first,
        )

    def _set_codebook(self, codebook: Tensor) -> None:
        self.register_buffer("codebook", codebook)
        self.register_buffer("embed_sum", codebook.clone())

    def _weighted(self, losses: dict[str, Tensor]) -> Tensor:
        return self.commitment * losses["commitment_loss"]

    def _move(self, batch: BatchStatistics) -> None:
        sums = torch.zeros_like(self.embed_sum).index_add_(
            0, batch.indices, batch.tokens.to(self.embed_sum.dtype)
        )
        self.embed_sum.lerp_(summed(sums), 1 - self.decay)
        # No smoothing term: it would pull a prototype that nobody chooses towards the origin.
        size = self.cluster_size[:, None]
        self.codebook.copy_(torch.where(size > 1e-8, self.embed_sum / size, self.codebook))

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        super()._replace(rows, vectors, size)
        self.embed_sum[rows] = self.codebook[rows] * size

    def _initialized_from(self, latents: Tensor) -> None:
        super()._initialized_from(latents)
        self.embed_sum.copy_(self.codebook)
