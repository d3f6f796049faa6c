"""What every codebook shares: layouts, encoding, decoding, freezing, initialisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._internal.distributed import agreed, gathered, summed
from ..functional import compute_dtype, exporting, nearest_codes
from ..initialize import kmeans, with_masks
from ..serialization import Pretrained
from .interface import (
    BatchStatistics,
    after_step_of,
    checked_indices,
    in_layout,
    unflattened,
    vectors_last,
    warn_of_forgotten_calls,
)
from .outputs import CodebookOutput
from .restarts import check_shares, newcomers


class Codebook(Pretrained):
    """Base of all codebooks.

    ``forward`` changes no state, in train or eval mode, and holds no collective. All that moves
    state is :meth:`after_step`, called once after the optimiser's step, and :meth:`initialize`.

    A codebook of your own has a ``codebook`` (K, D), a parameter or a buffer, and implements
    ``_quantize``; where state moves without gradients, also ``_learn``. Its constructor keeps each
    argument in an attribute of the argument's name, so that it can be saved and loaded.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D), the prototypes.
        running_usage: (K,) buffer of softvq's own, a running mean of use in the kind's own unit.
        steps: int64 scalar buffer, the number of calls of :meth:`after_step` so far.
        straight_through: Whether latents get the decoder's gradient as if they were the code.
        encoder_gradient: What the encoder gets from the decoder, in words.
        has_tokens: Whether indices stand for prototypes; else all are -1, and decoding is refused.
        pools: (1,): one level, at the latents' own resolution.
        exact: Whether training, too, outputs the code itself; a stack sets it where levels follow.
        frozen: Whether :meth:`freeze` has been called.
        forwards: Number of training forwards, to tell who forgot the calls below; no state.
        initialized: Whether the prototypes come from data, by :meth:`initialize` or a loaded state.

    Raises:
        ValueError: If a size is not positive.
    """

    codebook: Tensor
    running_usage: Tensor
    steps: Tensor
    straight_through: bool = False
    encoder_gradient: str = "the exact derivative of the code"
    has_tokens: bool = True
    pools: tuple[int, ...] = (1,)
    exact: bool = False
    frozen: bool = False
    forwards: float = 0

    def __init__(self, dim: int, codebook_size: int, *, channel_first: bool = False) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("codebook_size", codebook_size)):
            if not isinstance(size, int) or isinstance(size, bool):
                raise TypeError(f"{name} must be a whole number, got {size!r}")
        if dim < 1 or codebook_size < 1:
            raise ValueError(f"dim and codebook_size must be >= 1, got {dim=}, {codebook_size=}")
        self.dim, self.codebook_size, self.channel_first = dim, codebook_size, channel_first
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def codebooks(self) -> tuple[Codebook, ...]:
        """Itself alone, so that one codebook reads like a :class:`softvq.CodebookStack`."""
        return (self,)

    def _state_shown(self) -> list[tuple[str, Any]]:
        return [("steps", int(self.steps))]

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> CodebookOutput:
        """Quantise latents.

        Args:
            z: (..., D), or (B, D, ...) with ``channel_first``; any floating dtype.
            mask: bool, z's shape without the vector axis, False for padding: what stands there,
                NaN included, changes nothing; its code is zero and its index -1.
            hard: Whether to output the nearest prototypes instead of the soft code. A codebook
                whose code is hard anyway ignores it. The latents get the decoder's gradient from
                a straight-through codebook only: choosing the nearest has no derivative.

        Raises:
            ValueError: If a shape does not fit.
            TypeError: If a dtype does not fit.
        """
        if self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.forwards += 1
        latents, codebook, flat_mask = self._prepared(z, mask)
        # Half-precision softmax over squared distances loses the nearest prototypes.
        with torch.autocast(z.device.type, enabled=False):
            out = self._quantize(latents, codebook, flat_mask, hard)
            quantized, indices = self._routed(out.quantized, latents), out.indices
            if flat_mask is not None:
                quantized = torch.where(flat_mask[:, None], quantized, 0.0)
                indices = torch.where(flat_mask, indices, -1)
        vectors = unflattened(quantized, z, self.channel_first).to(z.dtype)  # (..., D)
        indices = unflattened(indices, z, self.channel_first)
        return replace(out, quantized=in_layout(vectors, self.channel_first), indices=indices)

    def _quantize(
        self, latents: Tensor, codebook: Tensor, mask: Tensor | None, hard: bool
    ) -> CodebookOutput:
        """The output of :meth:`forward` for plain vectors: what a kind of codebook is.

        Args:
            latents: (N, D), float32 or float64, zero where masked.
            codebook: (K, D), the prototypes in the same dtype.
            mask: (N,) bool, False for tokens that weigh nothing in losses and usage, or None.
            hard: As in :meth:`forward`.

        Returns:
            The output with ``quantized`` (N, D) and ``indices`` (N,); :meth:`forward` sets what
            stands where masked and the gradient of a straight-through code.
        """
        raise NotImplementedError

    def _routed(self, quantized: Tensor, latents: Tensor) -> Tensor:
        """Codes with the gradient that the latents are to get from them."""
        if not self.straight_through:
            return quantized
        # The latents minus themselves are an exact zero that carries the gradient.
        return quantized.detach() + (latents - latents.detach())

    def temperature_info(self) -> dict[str, float | None]:
        """Temperature and its ratio to the critical one; both None for a hard codebook."""
        return {"temperature": None, "temperature_ratio": None}

    @torch.no_grad()
    def after_step(self, *outs: CodebookOutput) -> None:
        """Move the state that is not trained by gradients; call after each optimiser step.

        Args:
            outs: What ``forward`` returned for the step's batch, or, where gradients were
                accumulated, for each of its parts. In distributed training every process calls
                this with its own outputs, and all end with the same state.

        Raises:
            FloatingPointError: If latents of any process hold NaN or infinity; no state has moved.
            TypeError: If no output is given.
        """
        after_step_of((self,), [(out,) for out in outs])

    def _step(self, batch: BatchStatistics) -> None:
        if not self.frozen:
            self.steps += 1
            self._learn(batch)

    def _learn(self, batch: BatchStatistics) -> None:
        """Move the state of this kind of codebook."""

    def _summed(self, tensor: Tensor) -> Tensor:
        """Sum over all processes that train together."""
        return summed(tensor) if dist.is_available() and dist.is_initialized() else tensor

    @torch.no_grad()
    def encode(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Indices of the nearest prototypes.

        Args:
            z: Latents, as in :meth:`forward`.
            mask: As in :meth:`forward`.

        Returns:
            int64, z's shape without the vector axis; -1 where masked.
        """
        # ONNX knows plain operators only, not the attention engine's.
        if not exporting():
            if not self.training:
                warn_of_forgotten_calls(self.codebooks)
            return self(z, mask, hard=self.has_tokens).indices
        latents, codebook, flat_mask = self._prepared(z, mask)
        with torch.autocast(z.device.type, enabled=False):
            nearest = nearest_codes(latents, codebook)  # (N,)
        if flat_mask is not None:
            nearest = torch.where(flat_mask, nearest, -1)
        return unflattened(nearest, z, self.channel_first)

    def decode(self, indices: Tensor) -> Tensor:
        """Prototypes by index: the hard code, whatever the codebook's soft output was.

        Args:
            indices: Integers, (...), or (B, ...) with ``channel_first``; -1 stands for padding.

        Returns:
            (..., D), or (B, D, ...) with ``channel_first``; zeros where the index is -1.

        Raises:
            IndexError: If an index lies outside [-1, K).
            TypeError: If the indices are not integers.
        """
        vectors = self._vectors(checked_indices(indices, self.codebook_size))  # (..., D)
        return in_layout(vectors, self.channel_first)

    def combine(self, codes: Sequence[Tensor], shape: Sequence[int] | None = None) -> Tensor:
        """The vectors (..., D) of its one level in the codebook's layout; a stack needs a shape."""
        return in_layout(codes[0], self.channel_first)

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Alias of :meth:`decode`, the name that vector-quantize-pytorch uses."""
        return self.decode(indices)

    def freeze(self) -> None:
        """Stop training from changing any state; gradients still reach the encoder."""
        self.codebook.requires_grad_(False)
        self.codebook.grad = None  # an optimizer moves by what it remembers where there is one
        self.frozen = True

    @torch.no_grad()
    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor | None] | None = None,
        seed: int = 0,
        iterations: int = 10,
    ) -> None:
        """Place the prototypes by k-means on latents (k-means++ seeding, then Lloyd).

        Args:
            latents: One tensor as :meth:`forward` takes it, or several batches of them.
            mask: As in :meth:`forward`, one for each tensor of latents; padding is left out.
            seed: Seed of the sampling.
            iterations: Lloyd iterations.

        Raises:
            ValueError: If there are fewer latents than prototypes, or some are not finite.
        """
        if not self.has_tokens:
            return
        with agreed(self.steps.device):
            parts = [self._flatten(part, m) for part, m in with_masks(latents, mask)]
            kept = [(z if m is None else z[m]).to(self.codebook.dtype) for z, m in parts]
        flat = gathered(torch.cat(kept))  # (M, D)
        self.codebook.copy_(kmeans(flat, self.codebook_size, seed=seed, iterations=iterations))
        self._initialized_from(flat)
        self.initialized = True

    def _initialized_from(self, latents: Tensor) -> None:
        """Set the state that depends on the prototypes, given (N, D) latents."""

    def _count(self, usage: float, decay: float, restart_threshold: float, seed: int) -> None:
        """Set up the running usage and restarts, for the constructor of a kind that has them."""
        check_shares(decay=decay, restart_threshold=restart_threshold)
        self.decay, self.restart_threshold, self.seed = decay, restart_threshold, seed
        self.register_buffer("running_usage", torch.full((self.codebook_size,), usage))

    def _restart(self, tokens: Tensor) -> None:
        """Move prototypes of too little running usage onto some of the tokens (M, D)."""
        mean = self.running_usage.mean()
        starved = (self.running_usage < self.restart_threshold * mean).nonzero().squeeze(1)
        if len(starved):
            vectors = newcomers(tokens, len(starved), self.seed + int(self.steps))
            vectors = vectors.to(self.codebook.dtype)
            # Twice the threshold gives the newcomer time to be chosen before it is judged again.
            self._replace(starved[: len(vectors)], vectors, 2 * self.restart_threshold * mean)

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        """Move prototypes, and all state that belongs to them, at once; ``size`` is their usage."""
        self.codebook[rows] = vectors
        self.running_usage[rows] = size

    def _vectors(self, indices: Tensor) -> Tensor:
        """Prototypes (..., D), zero where the index is -1."""
        return torch.where((indices >= 0)[..., None], self.codebook[indices.clamp_min(0)], 0.0)

    def _flatten(self, z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Latents as (N, D) and mask as (N,), after checking both."""
        vectors = vectors_last(z, mask, self.dim, self.channel_first)  # (..., D)
        mask = None if mask is None else mask.reshape(-1)  # (N,)
        return vectors.reshape(-1, self.dim), mask  # (N, D)

    def _prepared(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Latents (N, D), zero where masked, and prototypes in one dtype, and the mask (N,)."""
        flat, flat_mask = self._flatten(z, mask)
        codebook = self.codebook
        latents = flat.to(compute_dtype(flat, codebook))
        if flat_mask is not None:
            latents = torch.where(flat_mask[:, None], latents, 0.0)
        return latents, codebook.to(latents.dtype), flat_mask
