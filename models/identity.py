"""IdentityCodebook: no bottleneck, the floor that every quantizer is measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from softvq import Codebook, CodebookOutput


class IdentityCodebook(Codebook):
    """Returns the latents as they are; a swap for a codebook, not an ``if`` in the model.

    It has no prototypes, so ``has_tokens`` is False: indices are all -1, all losses zero, ``usage``
    is zero, ``decode`` and ``hard=True`` raise, and ``initialize`` has nothing to do.

    Args:
        dim: D, size of the vector axis.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Example:
        >>> z = torch.randn(2, 4)
        >>> torch.equal(IdentityCodebook(4)(z).quantized, z)
        True
    """

    has_tokens = False
    encoder_gradient = "the decoder's gradient, for there is no codebook"

    def __init__(self, dim: int, *, channel_first: bool = False) -> None:
        super().__init__(dim, 1, channel_first=channel_first)
        self.register_buffer("codebook", torch.zeros(1, dim))

    def _quantize(
        self, latents: Tensor, codebook: Tensor, mask: Tensor | None, hard: bool
    ) -> CodebookOutput:
        if hard:
            raise ValueError("an identity codebook has no prototypes, so no hard code")
        zero = latents.new_zeros(())
        return CodebookOutput(
            quantized=latents,
            indices=torch.full((latents.shape[0],), -1, device=latents.device),
            loss=zero,
            losses={"loss_q": zero, "loss_ols": zero, "variance": zero},
            codes_per_token=zero + 1,
            usage=latents.new_zeros(1),
            latents=latents.detach(),
        )

    def decode(self, indices: Tensor) -> Tensor:
        """Refused: there are no prototypes."""
        raise ValueError("an identity codebook has no prototypes to decode indices with")
