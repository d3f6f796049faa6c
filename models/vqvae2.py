"""VQVAE2: a top level on a further-downsampled encoder, a bottom level conditioned on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import tee
from typing import Any

import torch
from torch import Tensor, nn

from softvq import Codebook, StackOutput, after_step_of

from .tokenizer import ImageTokenizer, ImageTokenizerOutput, Tokens, latent_norm
from .vqvae import check_sides


class VQVAE2(ImageTokenizer):
    """Two levels: the top one codes an eighth of the resolution, the bottom one a quarter.

    Razavi et al., 2019, https://arxiv.org/abs/1906.00446, section 3.1: the bottom level's latents
    are computed from the bottom encoder and the decoded top code, and the decoder sees both codes.

    Args:
        bottom_encoder: (B, C, H, W) to features (B, F, H/4, W/4).
        top_encoder: (B, F, H/4, W/4) to (B, D, H/8, W/8).
        top_codebook: With ``channel_first=True``.
        top_decoder: (B, D, H/8, W/8) to (B, F, H/4, W/4).
        condition: (B, 2 F, H/4, W/4) to (B, D, H/4, W/4), the bottom level's latents.
        bottom_codebook: With ``channel_first=True``.
        upsample: (B, D, H/8, W/8) to (B, D, H/4, W/4), of the top code for the decoder.
        decoder: (B, 2 D, H/4, W/4) to (B, C, H, W).
        normalize_latents: As in :class:`models.VQVAE`, for both levels.
        shared_scale: Likewise.
        level_dropout: Probability, in training, that an image has no bottom code, so that the top
            level alone gives a picture.

    Shape:
        Images are (B, C, H, W) in [0, 1], H and W multiples of 8.

    Example:
        >>> from models import build_model
        >>> model = build_model({"architecture": "vqvae2", "hidden_channels": 8}).eval()
        >>> top, bottom = model.tokens(torch.rand(2, 3, 32, 32))
        >>> tuple(top.shape), tuple(bottom.shape), tuple(model.decode_tokens([top]).shape)
        ((2, 4, 4), (2, 8, 8), (2, 3, 32, 32))
    """

    stride = 8

    def __init__(
        self,
        bottom_encoder: nn.Module,
        top_encoder: nn.Module,
        top_codebook: Codebook,
        top_decoder: nn.Module,
        condition: nn.Module,
        bottom_codebook: Codebook,
        upsample: nn.Module,
        decoder: nn.Module,
        *,
        normalize_latents: bool = True,
        shared_scale: bool = False,
        level_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.bottom_encoder = bottom_encoder
        self.top_encoder = top_encoder
        self.normalize_top = latent_norm(top_codebook.dim, normalize_latents, shared_scale)
        self.top_codebook = top_codebook
        self.top_decoder = top_decoder
        self.condition = condition
        self.normalize_bottom = latent_norm(bottom_codebook.dim, normalize_latents, shared_scale)
        self.bottom_codebook = bottom_codebook
        self.upsample = upsample
        self.decoder = decoder
        self.level_dropout = level_dropout

    @property
    def levels(self) -> tuple[Codebook, ...]:
        """Top and bottom."""
        return self.top_codebook, self.bottom_codebook

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """See :meth:`ImageTokenizer.grids`."""
        return [(height // 8, width // 8), (height // 4, width // 4)]

    def forward(self, images: Tensor, hard: bool = False) -> ImageTokenizerOutput:
        """Reconstruct through the codebooks' own output, or with ``hard`` through the tokens.

        ``code.quantized`` is the bottom level's.
        """
        features = self._features(images)
        top = self.top_codebook(self._top_latents(features), hard=hard)
        z = self._bottom_latents(features, top.quantized)
        bottom = self.bottom_codebook(z, self._kept(z), hard=hard)
        code = StackOutput(
            quantized=bottom.quantized,
            indices=[top.indices, bottom.indices],
            loss=top.loss + bottom.loss,
            levels=(top, bottom),
        )
        return ImageTokenizerOutput(self._decode(top.quantized, bottom.quantized), code)

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tokens:
        """Indices (B, H/8, W/8) of the top and (B, H/4, W/4) of the bottom level.

        The bottom level is conditioned on the top's argmax code, as a decoder sees it.
        """
        features = self._features(images)
        top = self.top_codebook.encode(self._top_latents(features))
        z = self._bottom_latents(features, self.top_codebook.decode(top))
        return [top, self.bottom_codebook.encode(z)]

    def after_step(self, *codes: Any) -> None:
        """See :meth:`ImageTokenizer.after_step`."""
        after_step_of(self.levels, [code.levels for code in codes])

    def latents(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Latents of top and bottom level, the latter from the top's own output."""
        features = self._features(images)
        top = self._top_latents(features)
        return top, self._bottom_latents(features, self.top_codebook(top).quantized)

    def initialize(self, batches: Iterable[Tensor], *, seed: int = 0) -> None:
        """See :meth:`ImageTokenizer.initialize`; the top level first, since the bottom needs it."""
        for number, (level, again) in enumerate(zip(self.levels, tee(batches, 2), strict=True)):
            latents = [both[number] for both in self.calibrate(again)]
            level.initialize(latents, seed=seed + number)

    def decode_codes(self, codes: Sequence[Tensor], size: tuple[int, int] | None = None) -> Tensor:
        """Images from the codes of both levels, or of the top alone: the bottom is zero then."""
        top = codes[0].movedim(-1, 1)
        if len(codes) > 1:
            return self._decode(top, codes[1].movedim(-1, 1))
        return self._decode(top, None)

    def _features(self, images: Tensor) -> Tensor:
        check_sides(images, self.stride)
        features: Tensor = self.bottom_encoder(images * 2 - 1)
        return features

    def _top_latents(self, features: Tensor) -> Tensor:
        z: Tensor = self.normalize_top(self.top_encoder(features))
        return z

    def _bottom_latents(self, features: Tensor, top: Tensor) -> Tensor:
        both = torch.cat([features, self.top_decoder(top)], dim=1)  # (B, 2 F, H/4, W/4)
        z: Tensor = self.normalize_bottom(self.condition(both))
        return z

    def _kept(self, z: Tensor) -> Tensor | None:
        """Mask (B, h, w) of the images that keep their bottom level."""
        if not self.training or not self.level_dropout:
            return None
        kept = torch.rand(z.shape[0], device=z.device) >= self.level_dropout
        return kept[:, None, None].expand(z.shape[0], *z.shape[2:])

    def _decode(self, top: Tensor, bottom: Tensor | None) -> Tensor:
        spread = self.upsample(top)  # (B, D, H/4, W/4)
        bottom = torch.zeros_like(spread) if bottom is None else bottom
        images: Tensor = self.decoder(torch.cat([spread, bottom], dim=1)) / 2 + 0.5
        return images
