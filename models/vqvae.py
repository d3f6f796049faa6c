"""VQVAE: encoder, codebook and decoder, each injected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softvq import Codebook, CodebookStack

from .layers import STRIDE
from .tokenizer import ImageTokenizer, ImageTokenizerOutput, Tokens, latent_norm


class VQVAE(ImageTokenizer):
    """Images to latents, to codes, and back.

    Args:
        encoder: (B, C, H, W) to (B, D, h, w).
        codebook: Any codebook, or stack of codebooks, with ``channel_first=True``.
        decoder: (B, D, h, w) to (B, C, H, W).
        normalize_latents: Standardise each latent channel (batch statistics in training, running
            ones in eval), without scale and shift to train: it pins the scale that the
            temperature is measured against.
        shared_scale: Divide all channels by one standard deviation instead of each by its own:
            see :class:`models.shared_scale_norm.SharedScaleNorm`.

    Raises:
        ValueError: If there is a shared scale without normalisation.

    Shape:
        Images are (B, C, H, W) in [0, 1], H and W multiples of 4.

    Example:
        >>> from models import build_model
        >>> model = build_model({"hidden_channels": 8, "residual_channels": 8}).eval()
        >>> images = torch.rand(2, 3, 32, 32)
        >>> tuple(model.tokens(images).shape), tuple(model.reconstruct(images, "argmax").shape)
        ((2, 8, 8), (2, 3, 32, 32))
    """

    stride = STRIDE

    def __init__(
        self,
        encoder: nn.Module,
        codebook: Codebook | CodebookStack,
        decoder: nn.Module,
        *,
        normalize_latents: bool = True,
        shared_scale: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalize = latent_norm(codebook.dim, normalize_latents, shared_scale)
        self.codebook = codebook
        self.decoder = decoder

    @property
    def levels(self) -> tuple[Codebook, ...]:
        """The codebook, or those of the stack."""
        return self.codebook.codebooks

    @property
    def pools(self) -> tuple[int, ...]:
        """Pooling factor of each level."""
        return self.codebook.pools

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """See :meth:`ImageTokenizer.grids`."""
        sides = [self.stride * pool for pool in self.pools]
        return [(-(-height // side), -(-width // side)) for side in sides]

    def forward(self, images: Tensor, hard: bool = False) -> ImageTokenizerOutput:
        """Reconstruct through the codebook's own output, or with ``hard`` through the tokens."""
        code = self.codebook(self.encode(images), hard=hard)
        return ImageTokenizerOutput(self.decode(code.quantized), code)

    def encode(self, images: Tensor) -> Tensor:
        """Latents (B, D, h, w) before quantisation.

        Raises:
            ValueError: If the images' sides are not multiples of the encoder's stride.
        """
        check_sides(images, self.stride)
        z: Tensor = self.normalize(self.encoder(images * 2 - 1))
        return z

    def after_step(self, *codes: Any) -> None:
        """See :meth:`ImageTokenizer.after_step`."""
        self.codebook.after_step(*codes)

    def latents(self, images: Tensor) -> Tensor:
        """:meth:`encode`."""
        return self.encode(images)

    def initialize(self, batches: Iterable[Tensor], *, seed: int = 0) -> None:
        """See :meth:`ImageTokenizer.initialize`."""
        self.codebook.initialize(self.calibrate(batches), seed=seed)

    def decode(self, quantized: Tensor) -> Tensor:
        """Images (B, C, H, W) from codes (B, D, h, w), not clamped."""
        images: Tensor = self.decoder(quantized) / 2 + 0.5
        return images

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tokens:
        """Indices of the nearest prototypes: (B, h, w), or as the stack gives them."""
        return self.codebook.encode(self.encode(images))

    def decode_codes(self, codes: Sequence[Tensor], size: tuple[int, int] | None = None) -> Tensor:
        """Images from the vectors of the levels; see :meth:`ImageTokenizer.decode_codes`."""
        grid = None if size is None else (size[0] // self.stride, size[1] // self.stride)
        return self.decode(self.codebook.combine(codes, grid))


def check_sides(images: Tensor, stride: int) -> None:
    """Refuse what the encoder would cut off.

    Raises:
        ValueError: If the images' sides are not multiples of the stride.
    """
    if images.dim() != 4 or images.shape[2] % stride or images.shape[3] % stride:
        raise ValueError(
            f"images must be (B, C, H, W) with H and W multiples of {stride}, "
            f"got shape {tuple(images.shape)}"
        )
