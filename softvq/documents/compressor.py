"""DocumentCompressor: a long sequence becomes a few prototypes, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._internal.pooling import pool
from ..codebooks.interface import after_step_of
from ..codebooks.outputs import CodebookOutput
from ..codebooks.soft import SoftCodebook
from ..initialize import with_masks
from .proportions import shares


class CompressedLevel(NamedTuple):
    """What one layer makes of a batch of documents.

    Attributes:
        code: The codebook's output; ``code.quantized`` (B, T_l, D) is what the layer passes on.
        mask: bool (B, T_l), False for padding, or None where none was given.
        prototypes: (B, K_l, D), each document's own mean of the vectors assigned to a prototype:
            the document as K_l vectors. Zero where its share is. Carries gradients.
        proportions: (B, K_l), mean assignment over the document's places that are not padding:
            its share of each prototype. Sums to one, or to zero for a document of padding only.
            Carries gradients.
    """

    code: CodebookOutput
    mask: Tensor | None
    prototypes: Tensor
    proportions: Tensor


class CompressedDocuments(NamedTuple):
    """What a :class:`DocumentCompressor` returns.

    Attributes:
        sequence: (B, T_L, D), the last layer's codes: as a readout or a decoder takes them.
        mask: bool (B, T_L), False for padding, or None where none was given.
        loss: Scalar, the sum of the layers' losses.
        levels: Every layer's own.
    """

    sequence: Tensor
    mask: Tensor | None
    loss: Tensor
    levels: tuple[CompressedLevel, ...]


class DocumentCompressor(nn.Module):
    """Stacked soft codebooks over sequences that shorten from layer to layer.

    Layer 1 codes all T token vectors with K_1 prototypes; the means of segments of its codes are
    the sequence of layer 2, and so on. Unlike in a :class:`softvq.CodebookStack`, a layer codes
    what the layer before *said*, not what it left over: words, then what segments are about, then
    documents. After DDCL-Attention's third use (Cirrincione and Kumar, 2026,
    https://arxiv.org/abs/2604.03850), whose set-up is not published: segments, sizes and the way
    layers meet are our choice.

    Args:
        codebooks: One for each layer, equal ``dim``, ``channel_first=False``.
        segments: Length of the segments between layers, one fewer than codebooks, each at least 1.

    Raises:
        ValueError: If codebooks and segments do not fit together.

    Example:
        >>> from softvq import DDCLCodebook
        >>> compressor = DocumentCompressor([DDCLCodebook(8, 32), DDCLCodebook(8, 4)], segments=[5])
        >>> tokens = torch.randn(3, 20, 8)
        >>> compressor.initialize(tokens)
        >>> out = compressor(tokens)
        >>> tuple(out.sequence.shape), [tuple(level.proportions.shape) for level in out.levels]
        ((3, 4, 8), [(3, 32), (3, 4)])
    """

    def __init__(self, codebooks: Sequence[SoftCodebook], segments: Sequence[int]) -> None:
        super().__init__()
        if not codebooks or len(segments) != len(codebooks) - 1 or min(segments, default=1) < 1:
            raise ValueError(
                "a compressor needs at least one codebook and a segment length of at least 1 "
                f"between each and the next; got {len(codebooks)} codebooks and segments "
                f"{list(segments)}"
            )
        if len(set(map(id, codebooks))) < len(codebooks):
            raise ValueError("each layer needs a codebook of its own, got one of them twice")
        if len({c.dim for c in codebooks}) > 1 or any(c.channel_first for c in codebooks):
            raise ValueError(
                "all codebooks need the same dim, and channel_first=False; got dims "
                f"{[c.dim for c in codebooks]}"
            )
        for codebook in codebooks:
            codebook.exact = True
        self.codebooks = nn.ModuleList(codebooks)
        self.segments = tuple(segments)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> CompressedDocuments:
        """Compress documents.

        Args:
            tokens: (B, T, D).
            mask: bool (B, T), False for padding: what stands there changes nothing.

        Returns:
            A :class:`CompressedDocuments`.

        Raises:
            ValueError: If a shape does not fit.
            TypeError: If a dtype does not fit.
        """
        levels: list[CompressedLevel] = []
        for number, codebook in enumerate(self._layers()):
            if number:
                before = levels[-1]
                tokens, mask = pool(before.code.quantized, self.segments[number - 1], before.mask)
            proportions, prototypes = shares(codebook, tokens, mask)
            code = codebook(tokens, mask)
            levels.append(CompressedLevel(code, mask, prototypes, proportions))
        loss = torch.stack([level.code.loss for level in levels]).sum()
        return CompressedDocuments(code.quantized, mask, loss, tuple(levels))

    @torch.no_grad()
    def after_step(self, *outs: CompressedDocuments) -> None:
        """Move every layer's state; see :meth:`softvq.Codebook.after_step`."""
        codes = [[level.code for level in out.levels] for out in outs]
        after_step_of(self._layers(), codes)

    @torch.no_grad()
    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor | None] | None = None,
        seed: int = 0,
        iterations: int = 10,
    ) -> None:
        """Place each layer's prototypes by k-means on the sequences that reach it.

        Args:
            latents: Tokens (B, T, D), or several batches of such; lengths may differ.
            mask: bool (B, T), one for each tensor of tokens, or None.
            seed: Seed of the sampling.
            iterations: Lloyd iterations.

        Raises:
            ValueError: If a layer gets fewer vectors than it has prototypes.
        """
        parts = with_masks(latents, mask)
        for number, codebook in enumerate(self._layers()):
            if number:
                parts = [pool(tokens, self.segments[number - 1], m) for tokens, m in parts]
            batches, masks = [tokens for tokens, _ in parts], [m for _, m in parts]
            codebook.initialize(batches, mask=masks, seed=seed + number, iterations=iterations)
            parts = [(codebook(tokens, m).quantized, m) for tokens, m in parts]

    def _layers(self) -> tuple[SoftCodebook, ...]:
        return tuple(self.codebooks)  # type: ignore[arg-type]
