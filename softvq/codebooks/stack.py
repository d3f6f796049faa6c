"""CodebookStack: several codebooks, each coding what those before it left over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._internal.distributed import agreed
from .._internal.pooling import grid_shape, level_masks, pool, unpool
from ..functional import compute_dtype
from ..initialize import with_masks
from .codebook import Codebook
from .composite import Composite
from .interface import in_layout, vectors_last, warn_of_forgotten_calls
from .outputs import StackOutput
from .product import ProductCodebook


class CodebookStack(Composite):
    """Codebooks of several levels; the code is the sum of theirs.

    Level l averages what the levels before it left over into blocks of ``pools[l]`` places along
    every axis, codes the averages, and spreads each code over its block. ``pools`` all 1 is
    residual quantisation (Juang and Gray, 1982), falling ones a pyramid, coarse first. The first
    levels alone are a coarser code of the whole: ``decode(indices[:l])``.

    In soft mode the next level receives what the soft code leaves over, so that the derivative is
    exact. ``hard`` codes, :meth:`encode` and hence all tokens follow the argmax prototypes instead:
    each level then corrects the one before. Straight-through levels see the codes before them as
    constants in their losses, and pass the decoder's gradient on to the latents once, not once a
    level.

    Args:
        levels: Codebooks, or products of them, of equal ``dim``, each with
            ``channel_first=False``: the layout is the stack's.
        pools: A factor for each level, at least 1; all 1 by default. Latents then need a batch
            axis and one to pool.
        level_dropout: Probability, in training, that an item of the batch keeps a prefix of the
            levels only, its length drawn evenly from 1 to L - 1: so that prefixes are good. The
            dropped levels do not see the item, and its indices there are -1.
        channel_first: Latents are (B, D, ...) instead of (..., D).

    Raises:
        ValueError: If levels and pools do not fit together, or a value is out of range.

    Example:
        >>> from softvq import DDCLCodebook
        >>> stack = CodebookStack([DDCLCodebook(8, 16), DDCLCodebook(8, 32)], pools=[2, 1])
        >>> z = torch.randn(4, 6, 6, 8)
        >>> stack.initialize(z)
        >>> out = stack(z)
        >>> [tuple(indices.shape) for indices in out.indices]
        [(4, 3, 3), (4, 6, 6)]
        >>> coarse = stack.decode(stack.encode(z)[:1])
        >>> tuple(coarse.shape)
        (4, 6, 6, 8)
    """

    def __init__(
        self,
        levels: Sequence[Codebook | ProductCodebook],
        pools: Sequence[int] | None = None,
        *,
        level_dropout: float = 0.0,
        channel_first: bool = False,
    ) -> None:
        super().__init__()
        pools = tuple(pools) if pools is not None else (1,) * len(levels)
        whole = all(isinstance(pool, int) and pool > 0 for pool in pools)
        if not levels or len(pools) != len(levels) or not whole:
            raise ValueError(
                "a stack needs at least one level, and for each a whole pooling factor of at least "
                f"1; got {len(levels)} levels and pools {pools}"
            )
        if len({level.dim for level in levels}) > 1 or any(lv.channel_first for lv in levels):
            raise ValueError(
                "all levels need the same dim, and channel_first=False (give it to the stack); got "
                f"dims {[level.dim for level in levels]} and channel_first "
                f"{[level.channel_first for level in levels]}"
            )
        if len(set(map(id, levels))) < len(levels):
            raise ValueError("each level needs a codebook of its own, got one of them twice")
        if not 0 <= level_dropout < 1:
            raise ValueError(f"level_dropout must lie in [0, 1), got {level_dropout}")
        for level in levels[:-1]:
            level.exact = True  # the next level codes what this code leaves over
        self.levels = nn.ModuleList(levels)
        self.pools = pools
        self.level_dropout = level_dropout
        self.channel_first = channel_first
        self.dim = levels[0].dim
        # The axis of the levels in one tensor of indices; None where shapes differ.
        groups = {len(lv.codebooks) if isinstance(lv, ProductCodebook) else 0 for lv in levels}
        uniform = len(groups) == 1 and max(pools) == 1
        self._level_axis = (-2 if max(groups) else -1) if uniform else None

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> StackOutput:
        """Quantise latents.

        Args:
            z: (..., D), or (B, D, ...) with ``channel_first``; any floating dtype.
            mask: bool, z's shape without the vector axis, False for padding: what stands there,
                NaN included, changes nothing. A block counts its places that are not padding.
            hard: Output the argmax prototypes of each level instead of its soft codes.

        Raises:
            ValueError: If a shape does not fit.
            TypeError: If a dtype does not fit.
        """
        residual, mask = self._grid(z, mask)
        shape = residual.shape[1:-1]
        # Zero, with the gradient that straight-through levels have not passed on yet.
        carrier = residual - residual.detach()
        total = torch.zeros_like(residual)
        outs = []
        dropout = self.level_dropout if self.training else 0.0
        masks = level_masks(residual, mask, len(self.levels), dropout)
        for level, factor, seen in zip(self._parts(), self.pools, masks, strict=True):
            cells, cell_mask = pool(residual, factor, seen)
            out = level(cells, cell_mask, hard=hard)
            code = unpool(out.quantized, factor, shape)
            if level.straight_through:
                passed = unpool(pool(carrier, factor, seen)[0], factor, shape)
                code = code.detach()
                total = total + passed
                carrier = carrier - passed
            else:
                carrier = carrier - (code - code.detach())
            residual = residual - code
            total = total + code
            outs.append(out)
        return self._output(total, outs, z, mask)

    @torch.no_grad()
    def encode(self, z: Tensor, mask: Tensor | None = None) -> Tensor | list[Tensor]:
        """Indices of the argmax prototypes, each level on what those before it left over.

        Args:
            z: Latents, as in :meth:`forward`.
            mask: As in :meth:`forward`.

        Returns:
            As ``indices`` of :meth:`forward` with ``hard=True``; no level is dropped.
        """
        if not self.training:
            warn_of_forgotten_calls(self.codebooks)
        residual, mask = self._grid(z, mask)
        indices = []
        for level, factor in zip(self._parts(), self.pools, strict=True):
            cells, cell_mask = pool(residual, factor, mask)
            indices.append(level.encode(cells, cell_mask))
            code = level.decode(indices[-1]).to(residual.dtype)
            residual = residual - unpool(code, factor, residual.shape[1:-1])
        return self._joined(indices)

    def decode(
        self, indices: Tensor | Sequence[Tensor], shape: Sequence[int] | None = None
    ) -> Tensor:
        """Sum of the prototypes of all levels, or of the first ones.

        Args:
            indices: Integers for each level, the first l of them for a prefix; or, where no level
                pools, one tensor (..., l). -1 adds nothing.
            shape: Sizes of the axes between batch and vector; the largest that all levels fit by
                default, which is the latents' own unless every level given pools.

        Returns:
            (B, *shape, D), or (B, D, *shape) with ``channel_first``.

        Raises:
            ValueError: If there are no or too many levels, or their shapes do not fit together.
            IndexError: If an index lies outside [-1, K).
            TypeError: If the indices are not integers.
        """
        parts = self._split(indices)
        codes = [level.decode(part) for part, level in zip(parts, self._parts(), strict=False)]
        return self.combine(codes, shape)

    def combine(self, codes: Sequence[Tensor], shape: Sequence[int] | None = None) -> Tensor:
        """Sum of the levels' vectors, each spread over its block.

        Args:
            codes: (B, *cells, D) for each level, or for the first ones.
            shape: As in :meth:`decode`.

        Returns:
            (B, *shape, D), or (B, D, *shape) with ``channel_first``.

        Raises:
            ValueError: As :meth:`decode`.
        """
        shape = grid_shape([code.shape[:-1] for code in codes], self.pools, shape)
        total = unpool(codes[0], self.pools[0], shape)
        for code, factor in zip(codes[1:], self.pools[1:], strict=False):
            total = total + unpool(code, factor, shape)
        return in_layout(total, self.channel_first)

    @torch.no_grad()
    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor | None] | None = None,
        seed: int = 0,
        iterations: int = 10,
    ) -> None:
        """Place the prototypes of each level by k-means on what the levels before leave over.

        Args:
            latents: One tensor as :meth:`forward` takes it, or several batches of them.
            mask: As in :meth:`forward`, one for each tensor of latents.
            seed: Seed of the sampling.
            iterations: Lloyd iterations.

        Raises:
            ValueError: If a level gets fewer blocks than it has prototypes, or some are not finite.
        """
        with agreed(self.codebooks[0].steps.device):
            grids = [self._grid(z, m) for z, m in with_masks(latents, mask)]
        with self._all_or_none():
            for number, level in enumerate(self._parts()):
                grids = self._started(number, level, grids, seed, iterations)

    def _started(
        self, number: int, level: Any, grids: list[Any], seed: int, iterations: int
    ) -> list[Any]:
        """Start a level on what those before it left over; what it leaves over, and the masks."""
        factor = self.pools[number]
        pooled = [pool(residual, factor, m) for residual, m in grids]
        cells, masks = zip(*pooled, strict=True)
        try:
            level.initialize(cells, mask=masks, seed=seed + number, iterations=iterations)
        except ValueError as error:
            raise ValueError(f"level {number + 1}, pooled by {factor}: {error}") from error
        return [
            (residual - unpool(level(*cell).quantized, factor, residual.shape[1:-1]), m)
            for (residual, m), cell in zip(grids, pooled, strict=True)
        ]

    def _parts(self) -> tuple[Any, ...]:
        return tuple(self.levels)

    def _grid(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Latents, the vector axis last, zero where masked, in the dtype of distances."""
        least_axes = 3 if max(self.pools) > 1 else 1
        z = vectors_last(z, mask, self.dim, self.channel_first, least_axes)
        z = z.to(compute_dtype(z, *(level.codebook for level in self.codebooks)))
        return (z if mask is None else torch.where(mask[..., None], z, 0.0)), mask

    def _split(self, indices: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """A tensor for each level given."""
        if isinstance(indices, Tensor):
            axis = self._level_axis
            if axis is None:
                raise ValueError(
                    f"levels of pools {self.pools} have indices of unequal shapes: give a list, a "
                    "tensor for each level"
                )
            parts = list(indices.unbind(dim=axis)) if indices.dim() >= -axis else []
        else:
            parts = list(indices)
        if not 1 <= len(parts) <= len(self.levels):
            raise ValueError(
                f"indices must be of 1 to {len(self.levels)} levels, coarse first, got {len(parts)}"
            )
        return parts

    def indices_of_codebooks(self, indices: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """The indices of each single codebook of each level given."""
        found: list[Tensor] = []
        for level, part in zip(self._parts(), self._split(indices), strict=False):
            product = isinstance(level, ProductCodebook)
            found += level.indices_of_codebooks(part) if product else [part]
        return found

    def _joined(self, indices: list[Tensor]) -> Tensor | list[Tensor]:
        """One tensor (..., L), or (..., L, G), where no level pools."""
        return indices if self._level_axis is None else torch.stack(indices, dim=self._level_axis)

    def _output(
        self, total: Tensor, outs: Sequence[Any], z: Tensor, mask: Tensor | None
    ) -> StackOutput:
        """The output, given the sum of all codes (..., D) and each level's own output."""
        if mask is not None:
            total = torch.where(mask[..., None], total, 0.0)
        return StackOutput(
            quantized=in_layout(total, self.channel_first).to(z.dtype),
            indices=self._joined([out.indices for out in outs]),
            loss=torch.stack([out.loss for out in outs]).sum(),
            levels=tuple(own for out in outs for own in out.levels),
        )
