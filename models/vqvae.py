"""VQVAE: encoder, codebook and decoder, each injected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from softvq import Codebook, CodebookOutput

from .layers import STRIDE


class VQVAEOutput(NamedTuple):
    """Reconstruction and what the codebook returned.

    Attributes:
        recon: (B, C, H, W), from the codebook's own output (soft for a soft codebook), not
            clamped.
        code: The codebook's output.
    """

    recon: Tensor
    code: CodebookOutput


class VQVAE(nn.Module):
    """Images to latents, to codes, and back.

    Args:
        encoder: (B, C, H, W) to (B, D, h, w).
        codebook: Any codebook with ``channel_first=True``.
        decoder: (B, D, h, w) to (B, C, H, W).
        normalize_latents: Standardise each latent channel (batch statistics in training, running
            ones in eval), without scale and shift to train: it pins the scale that the
            temperature is measured against.

    Shape:
        Images are (B, C, H, W) in [0, 1], H and W multiples of 4.

    Example:
        >>> from models import build_model
        >>> model = build_model({"hidden_channels": 8, "residual_channels": 8}).eval()
        >>> images = torch.rand(2, 3, 32, 32)
        >>> tuple(model.tokens(images).shape), tuple(model.reconstruct(images, "argmax").shape)
        ((2, 8, 8), (2, 3, 32, 32))
    """

    def __init__(
        self,
        encoder: nn.Module,
        codebook: Codebook,
        decoder: nn.Module,
        *,
        normalize_latents: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalize: nn.Module = (
            nn.BatchNorm2d(codebook.dim, affine=False) if normalize_latents else nn.Identity()
        )
        self.codebook = codebook
        self.decoder = decoder

    def forward(self, images: Tensor) -> VQVAEOutput:
        """Reconstruct through the codebook's own output."""
        code: CodebookOutput = self.codebook(self.encode(images))
        return VQVAEOutput(self.decode(code.quantized), code)

    def encode(self, images: Tensor) -> Tensor:
        """Latents (B, D, h, w) before quantisation.

        Raises:
            ValueError: If the images' sides are not multiples of the encoder's stride.
        """
        if images.dim() != 4 or images.shape[2] % STRIDE or images.shape[3] % STRIDE:
            raise ValueError(
                f"images must be (B, C, H, W) with H and W multiples of {STRIDE}, "
                f"got shape {tuple(images.shape)}"
            )
        z: Tensor = self.normalize(self.encoder(images * 2 - 1))
        return z

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """Set the running statistics of the latents to their means over these batches.

        Args:
            batches: Images (B, C, H, W), at least one batch.

        Returns:
            The latents of each batch, normalised by its own statistics as in training.
        """
        if not isinstance(self.normalize, nn.BatchNorm2d):
            return [self.encode(images) for images in batches]
        momentum, was_training = self.normalize.momentum, self.normalize.training
        self.normalize.reset_running_stats()
        self.normalize.momentum = None  # the plain mean of all batches
        self.normalize.train()
        latents = [self.encode(images) for images in batches]
        self.normalize.momentum = momentum
        self.normalize.train(was_training)
        return latents

    def decode(self, quantized: Tensor) -> Tensor:
        """Images (B, C, H, W) from codes (B, D, h, w), not clamped."""
        images: Tensor = self.decoder(quantized) / 2 + 0.5
        return images

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """Indices (B, h, w) of the nearest prototypes."""
        return self.codebook.encode(self.encode(images))

    @torch.no_grad()
    def decode_tokens(self, tokens: Tensor) -> Tensor:
        """Images in [0, 1] from indices (B, h, w)."""
        return self.decode(self.codebook.decode(tokens)).clamp(0, 1)

    @torch.no_grad()
    def reconstruct(self, images: Tensor, mode: Literal["soft", "argmax"] = "argmax") -> Tensor:
        """Images in [0, 1], through the codebook's soft output or through the tokens.

        Args:
            images: (B, C, H, W) in [0, 1].
            mode: ``"soft"``, a continuous latent, or ``"argmax"``, ``log2 K`` bits per token.

        Raises:
            ValueError: If the mode is unknown.
        """
        if mode == "soft":
            return self.decode(self.codebook(self.encode(images)).quantized).clamp(0, 1)
        if mode == "argmax":
            return self.decode_tokens(self.tokens(images))
        raise ValueError(f'mode must be "soft" or "argmax", got {mode!r}')
