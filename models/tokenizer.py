"""ImageTokenizer: what training and evaluation need of a model, however many levels it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from softvq import Codebook, CodebookOutput, StackOutput

from .shared_scale_norm import SharedScaleNorm

if TYPE_CHECKING:
    from typing_extensions import Self

Tokens = Tensor | list[Tensor]


class ImageTokenizerOutput(NamedTuple):
    """Reconstruction and what the codebook, or the codebooks, returned.

    Attributes:
        recon: (B, C, H, W), from the codebook's own output (soft for a soft codebook), not
            clamped.
        code: The output; ``code.levels`` has one for each level.
    """

    recon: Tensor
    code: CodebookOutput | StackOutput


class ImageTokenizer(nn.Module):
    """Base of all models: images to tokens of one or several levels, and back.

    Tokens are int64, (B, h, w) for one level, (B, h, w, L) for several levels of one resolution,
    and a list of (B, h_l, w_l), coarse first, for levels of several. The first levels alone are
    tokens too: a coarser picture.

    Attributes:
        stride: Images are (B, C, H, W) in [0, 1], H and W multiples of it.
    """

    stride: int

    @property
    def levels(self) -> tuple[Codebook, ...]:
        """The codebooks, coarse first."""
        raise NotImplementedError

    @property
    def has_tokens(self) -> bool:
        """Whether images have tokens: not where the codebook passes the latents through."""
        return all(level.has_tokens for level in self.levels)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """(h_l, w_l) of the tokens of each level, for images of that size."""
        raise NotImplementedError

    def forward(self, images: Tensor, hard: bool = False) -> ImageTokenizerOutput:
        """Reconstruct through the codebooks' own output, or with ``hard`` through the tokens."""
        raise NotImplementedError

    def latents(self, images: Tensor) -> Any:
        """All that is quantised, after normalisation."""
        raise NotImplementedError

    def tokens(self, images: Tensor) -> Tokens:
        """Indices of the nearest prototypes, as the class describes them."""
        raise NotImplementedError

    def initialize(self, batches: Iterable[Tensor], *, seed: int = 0) -> None:
        """:meth:`calibrate`, and place the prototypes by k-means on the latents.

        Args:
            batches: Images (B, C, H, W), at least one batch.
            seed: Seed of the sampling.

        Raises:
            ValueError: If there are fewer latents than prototypes.
        """
        raise NotImplementedError

    def after_step(self, *codes: Any) -> None:
        """Move the state of every level, or of none; see :meth:`softvq.Codebook.after_step`.

        Args:
            codes: ``code`` of what ``forward`` returned for the step's batch, or for its parts.
        """
        raise NotImplementedError

    @contextmanager
    def evaluating(self) -> Iterator[Self]:
        """Eval mode without gradients for the time of a ``with`` block, then the mode before it.

        Example:
            >>> from models import build_model
            >>> model = build_model({"hidden_channels": 8})
            >>> with model.evaluating():
            ...     model.training, torch.is_grad_enabled()
            (False, False)
            >>> model.training, torch.is_grad_enabled()
            (True, True)
        """
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield self
        finally:
            self.train(was_training)

    def decode_codes(self, codes: Sequence[Tensor], size: tuple[int, int] | None = None) -> Tensor:
        """Images, not clamped, from the vectors of the levels, or of the first ones.

        Args:
            codes: (B, h_l, w_l, D) for each level.
            size: Height and width of the images; the largest that the codes fit by default, which
                is their own where the blocks of the first levels fill them.
        """
        raise NotImplementedError

    def split(self, tokens: Tokens) -> list[Tensor]:
        """Tokens as a list of (B, h_l, w_l), one for each level, or each of the first.

        Raises:
            ValueError: If they are not tokens of this model.
        """
        if not isinstance(tokens, Tensor):
            parts = list(tokens)
        elif tokens.dim() == 4:
            parts = list(tokens.unbind(dim=-1))
        else:
            parts = [tokens]
        if not 1 <= len(parts) <= len(self.levels) or any(part.dim() != 3 for part in parts):
            raise ValueError(
                f"this model has tokens of {len(self.levels)} levels, (B, h, w) each, coarse "
                f"first; got shapes {[tuple(part.shape) for part in parts]}"
            )
        return parts

    @torch.no_grad()
    def decode_tokens(self, tokens: Tokens, size: tuple[int, int] | None = None) -> Tensor:
        """Images in [0, 1] from tokens of all levels, or of the first ones.

        Args:
            tokens: As the class describes them; -1 stands for a code of zeros.
            size: As in :meth:`decode_codes`.
        """
        return self.decode_codes(self.codes(tokens), size).clamp(0, 1)

    def codes(self, tokens: Tokens) -> list[Tensor]:
        """Prototypes (B, h_l, w_l, D) of each level, zero where the index is -1.

        Raises:
            IndexError: If an index lies outside [-1, K).
        """
        return [
            level.decode(part).movedim(1 if level.channel_first else -1, -1)
            for level, part in zip(self.levels, self.split(tokens), strict=False)
        ]

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
            return self(images).recon.clamp(0, 1)
        if mode == "argmax":
            return self.decode_tokens(self.tokens(images), size_of(images))
        raise ValueError(f'mode must be "soft" or "argmax", got {mode!r}')

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Tensor]) -> list[Any]:
        """Set the running statistics of the latents to their means over these batches.

        Args:
            batches: Images (B, C, H, W), at least one batch.

        Returns:
            The latents of each batch, normalised by its own statistics as in training.
        """
        norms = [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]
        before = [(norm.momentum, norm.training) for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean of all batches
            norm.train()
        latents = [self.latents(images) for images in batches]
        for norm, (momentum, training) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.train(training)
        return latents


def size_of(images: Tensor) -> tuple[int, int]:
    """Height and width of images (B, C, H, W)."""
    return images.shape[2], images.shape[3]


def latent_norm(dim: int, normalize: bool, shared_scale: bool) -> nn.Module:
    """Standardises latents, or does nothing: see :class:`models.VQVAE`."""
    if not normalize:
        if shared_scale:
            raise ValueError("shared_scale needs normalize_latents: latents keep their scale")
        return nn.Identity()
    return SharedScaleNorm(dim) if shared_scale else nn.BatchNorm2d(dim, affine=False)
