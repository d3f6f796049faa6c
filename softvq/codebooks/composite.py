"""Composite: what is made of several codebooks, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..serialization import Pretrained
from .codebook import Codebook
from .interface import StackOutput, after_step_of


class Composite(Pretrained):
    """Base of :class:`softvq.CodebookStack` and :class:`softvq.ProductCodebook`.

    Attributes:
        dim: D, size of the vector axis.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).
        pools: A pooling factor for each part.
    """

    dim: int
    channel_first: bool
    pools: tuple[int, ...]
    if TYPE_CHECKING:  # each has its own shapes
        decode: Callable[..., Tensor]
        initialize: Callable[..., None]

    def _parts(self) -> tuple[Any, ...]:
        """The codebooks, or products of them, that it was built of."""
        raise NotImplementedError

    @property
    def codebooks(self) -> tuple[Codebook, ...]:
        """All single codebooks, in order; those of a product stand one after the other."""
        return tuple(book for part in self._parts() for book in part.codebooks)

    @torch.no_grad()
    def after_step(self, *outs: StackOutput) -> None:
        """Move the state of every codebook, or of none; see :meth:`Codebook.after_step`."""
        after_step_of(self.codebooks, [out.levels for out in outs])

    def freeze(self) -> None:
        """Stop training from changing any state of any codebook."""
        for codebook in self.codebooks:
            codebook.freeze()

    def extra_repr(self) -> str:
        """For ``print(model)``."""
        sizes = tuple(codebook.codebook_size for codebook in self.codebooks)
        return f"dim={self.dim}, codebook_sizes={sizes}, pools={self.pools}"

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Alias of ``decode``, the name that vector-quantize-pytorch uses."""
        return self.decode(indices)
