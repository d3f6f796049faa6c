"""IdentityCodebook: no bottleneck, the floor that every quantizer is measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from softvq import Codebook, CodebookOutput


class IdentityCodebook(Codebook):
    """Returns the latents as they are; a swap for a codebook, not an ``if`` in the model.

    It has no prototypes: indices are all -1, all losses zero, ``usage`` is zero, and ``decode``
    raises.

    Args:
        dim: D, size of the vector axis.
        channel_first: Latents are (B, D, ...) instead of (..., D).

    Example:
        >>> z = torch.randn(2, 4)
        >>> torch.equal(IdentityCodebook(4)(z).quantized, z)
        True
    """

    has_tokens = False

    def __init__(self, dim: int, *, channel_first: bool = False) -> None:
        super().__init__(dim, 1, channel_first=channel_first)
        self.register_buffer("codebook", torch.zeros(1, dim))

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> CodebookOutput:
        """Pass the latents through; ``hard`` is refused, for there are no prototypes."""
        if hard:
            raise ValueError("an identity codebook has no prototypes, so no hard code")
        flat, flat_mask = self._flatten(z, mask)
        latents = flat.detach()
        quantized = z
        if flat_mask is not None:
            latents = torch.where(flat_mask[:, None], latents, 0.0)
            quantized = self._restore(torch.where(flat_mask[:, None], flat, 0.0), z)
        zero = flat.new_zeros(())
        return CodebookOutput(
            quantized=quantized,
            indices=self._indices_like(torch.full((flat.shape[0],), -1, device=z.device), z),
            loss=zero,
            losses={"loss_q": zero, "loss_ols": zero, "variance": zero},
            codes_per_token=zero + 1,
            usage=flat.new_zeros(1),
            latents=latents,
        )

    def decode(self, indices: Tensor) -> Tensor:
        """Refused: there are no prototypes."""
        raise ValueError("an identity codebook has no prototypes to decode indices with")

    @torch.no_grad()
    def initialize(
        self, latents: object, *, mask: object = None, seed: int = 0, iterations: int = 10
    ) -> None:
        """Nothing to initialise."""
