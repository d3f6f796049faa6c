"""Composite: what is made of several codebooks, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..serialization import Pretrained
from .codebook import Codebook
from .interface import after_step_of
from .outputs import StackOutput


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

    def indices_of_codebooks(self, indices: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """The indices of each of :attr:`codebooks`, taken from what ``encode`` returns.

        Raises:
            ValueError: If they are not of this many levels or groups.
        """
        raise NotImplementedError

    @property
    def codebooks(self) -> tuple[Codebook, ...]:
        """All single codebooks, in order; those of a product stand one after the other."""
        return tuple(book for part in self._parts() for book in part.codebooks)

    @torch.no_grad()
    def after_step(self, *outs: StackOutput) -> None:
        """Move the state of every codebook, or of none; see :meth:`Codebook.after_step`."""
        after_step_of(self.codebooks, [out.levels for out in outs])

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Put the state of every codebook back where a start fails that some have been through."""
        state = {name: value.clone() for name, value in self.state_dict().items()}
        initialized = [book.initialized for book in self.codebooks]
        try:
            yield
        except Exception:
            for name, value in self.state_dict().items():
                value.copy_(state[name])
            for book, before in zip(self.codebooks, initialized, strict=True):
                book.initialized = before
            raise

    def freeze(self) -> None:
        """Stop training from changing any state of any codebook."""
        for codebook in self.codebooks:
            codebook.freeze()

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Alias of ``decode``, the name that vector-quantize-pytorch uses."""
        return self.decode(indices)
