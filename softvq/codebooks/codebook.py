"""What every codebook shares: layouts, encoding, decoding, freezing, initialisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from einops import rearrange
from torch import Tensor, nn

from .._internal.distributed import gathered
from .._internal.latents import compute_dtype, vectors_last, with_masks
from ..functional import exporting, nearest_codes
from ..initialize import kmeans
from ..serialization import Pretrained
from .output import BatchStatistics, CodebookOutput, batch_statistics


class Codebook(Pretrained, nn.Module):
    """Base of all codebooks.

    ``forward`` changes no state, in train or eval mode, and holds no collective. All that moves
    state is :meth:`after_step`, called once after the optimiser's step, and :meth:`initialize`.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        restart_threshold: A prototype whose running usage falls below this share of the mean is
            moved onto a random latent of the batch by :meth:`after_step`; 0 never restarts.
        seed: Of the restarts.
        channel_first: Latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D), the prototypes.
        steps: int64 scalar buffer, the calls of :meth:`after_step` so far.

    Raises:
        ValueError: If a size is not positive, or the threshold lies outside [0, 1).
    """

    codebook: Tensor
    steps: Tensor
    # Whether the decoder's gradient passes to the latents as if the code were the latent.
    straight_through = False
    # Whether there are prototypes, so that indices say something.
    has_tokens = True

    def temperature_info(self) -> dict[str, float | None]:
        """Temperature and T / T_c; None for a codebook that has none."""
        return {"temperature": None, "temperature_ratio": None}

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        restart_threshold: float = 0.0,
        seed: int = 0,
        channel_first: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("codebook_size", codebook_size)):
            if isinstance(size, float | str):
                raise TypeError(f"{name} must be a whole number, got {size!r}")
        if dim < 1 or codebook_size < 1:
            raise ValueError(
                f"dim and codebook_size must be at least 1, got dim={dim}, "
                f"codebook_size={codebook_size}"
            )
        if not 0 <= restart_threshold < 1:
            raise ValueError(f"restart_threshold must lie in [0, 1), got {restart_threshold}")
        self.dim = dim
        self.codebook_size = codebook_size
        self.restart_threshold = restart_threshold
        self.seed = seed
        self.channel_first = channel_first
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        """Sizes, for ``print(model)``."""
        return f"dim={self.dim}, codebook_size={self.codebook_size}"

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> CodebookOutput:
        """Quantise latents.

        Args:
            z: (..., D), or (B, D, ...) with ``channel_first``; any floating dtype.
            mask: bool, z's shape without the vector axis, False for padding: what stands there,
                NaN included, changes nothing; its code is zero and its index -1.
            hard: Output the nearest prototypes instead of the soft code. A codebook that is
                straight-through passes their gradient on to the latents; from a
                :class:`DDCLCodebook` they have none, as from any choice of the nearest.

        Returns:
            A :class:`CodebookOutput`.

        Raises:
            ValueError: If a shape does not fit.
            TypeError: If a dtype does not fit.
        """
        raise NotImplementedError

    @torch.no_grad()
    def after_step(self, *outs: CodebookOutput) -> None:
        """Move the state that is not trained by gradients; call after each optimiser step.

        Args:
            outs: What ``forward`` returned for the step's batch, or, where gradients were
                accumulated, for each of its parts. In distributed training every process calls
                this with its own outputs, and all end with the same state.

        Raises:
            FloatingPointError: If the latents hold NaN or infinity; no state has moved then.
            TypeError: If no output is given.
        """
        after_step_of([self], [[out] for out in outs])

    def _checked(self, outs: Sequence[CodebookOutput]) -> BatchStatistics:
        """What a step learns from, or the errors of :meth:`after_step`."""
        if not outs:
            raise TypeError("after_step needs what forward returned: after_step(out)")
        for out in outs:
            if not isinstance(out, CodebookOutput):
                raise TypeError(
                    "after_step needs what forward returned, out = codebook(z): got "
                    f"a {type(out).__name__}"
                )
        batch = batch_statistics(outs)
        if not bool(batch.tokens.isfinite().all()):
            raise FloatingPointError(
                "the latents given to the codebook hold NaN or infinity; lower the learning rate, "
                "or look for an overflow in the encoder (half precision?)"
            )
        return batch

    def _step(self, batch: BatchStatistics) -> None:
        self.steps += 1
        self._learn(batch)

    def _learn(self, batch: BatchStatistics) -> None:
        """Move the state of this kind of codebook."""

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
            return self(z, mask).indices
        flat, flat_mask = self._flatten(z, mask)
        dtype = compute_dtype(flat, self.codebook)
        with torch.autocast(z.device.type, enabled=False):
            nearest = nearest_codes(flat.to(dtype), self.codebook.to(dtype))  # (N,)
        if flat_mask is not None:
            nearest = torch.where(flat_mask, nearest, -1)
        return self._indices_like(nearest, z)

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
        if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise TypeError(f"indices must be integers, got {indices.dtype}")
        # Indexing takes uint8 for a mask, and the other narrow dtypes not at all.
        indices = indices.to(torch.int64)
        # A captured graph cannot branch on values.
        captured = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if not captured and indices.numel():
            low, high = (int(bound) for bound in indices.aminmax())
            if low < -1 or high >= self.codebook_size:
                raise IndexError(
                    f"indices must lie in [0, {self.codebook_size}), or be -1 for padding; "
                    f"got values from {low} to {high}"
                )
        return self._lookup(indices)

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Alias of :meth:`decode`, the name that vector-quantize-pytorch uses."""
        return self.decode(indices)

    def freeze(self) -> None:
        """Stop the prototypes from changing; gradients still reach the encoder."""
        self.codebook.requires_grad_(False)
        self.frozen = True

    frozen: bool = False

    @torch.no_grad()
    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor] | None = None,
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
        flat = torch.cat([self._kept(part, m) for part, m in with_masks(latents, mask)])
        flat = gathered(flat)
        self.codebook.copy_(kmeans(flat, self.codebook_size, seed=seed, iterations=iterations))
        self._initialized_from(flat)

    def _kept(self, z: Tensor, mask: Tensor | None) -> Tensor:
        """Latents (M, D) that are not masked, in the codebook's dtype."""
        flat, flat_mask = self._flatten(z, mask)
        return (flat if flat_mask is None else flat[flat_mask]).to(self.codebook.dtype)

    def _initialized_from(self, latents: Tensor) -> None:
        """Set the state that depends on the prototypes, given (N, D) latents."""

    def _restart(self, tokens: Tensor, size: Tensor) -> None:
        """Move starved prototypes, by their running usage ``size`` (K,), onto (M, D) tokens."""
        mean = size.mean()
        starved = (size < self.restart_threshold * mean).nonzero().squeeze(1)
        if self.frozen or not len(starved):
            return
        generator = torch.Generator().manual_seed(self.seed + int(self.steps))
        order = torch.randperm(tokens.shape[0], generator=generator)[: len(starved)]
        candidates = gathered(tokens[order.to(tokens.device)])
        # Seeded anew: processes that drew from unequal token counts would go on apart.
        generator.manual_seed(self.seed + int(self.steps))
        order = torch.randperm(candidates.shape[0], generator=generator)[: len(starved)]
        # Twice the threshold gives the newcomer time to be chosen before it is judged again.
        self._replace(
            starved[: len(order)],
            candidates[order.to(tokens.device)].to(self.codebook.dtype),
            2 * self.restart_threshold * mean,
        )

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        """Move prototypes, and all state that belongs to them, at once."""
        self.codebook[rows] = vectors

    def _lookup(self, indices: Tensor) -> Tensor:
        """:meth:`decode` for indices known to be valid."""
        vectors = self._vectors(indices)  # (..., D)
        # A single index has no batch axis to keep in front.
        channel_first = self.channel_first and indices.dim() > 0
        return rearrange(vectors, "b ... d -> b d ...") if channel_first else vectors

    def _vectors(self, indices: Tensor) -> Tensor:
        """Prototypes (..., D), zero where the index is -1."""
        return torch.where((indices >= 0)[..., None], self.codebook[indices.clamp_min(0)], 0.0)

    def _flatten(self, z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Latents as (N, D) and mask as (N,), after checking both."""
        vectors = vectors_last(z, mask, self.dim, self.channel_first)  # (..., D)
        mask = None if mask is None else mask.reshape(-1)  # (N,)
        return vectors.reshape(-1, self.dim), mask  # (N, D)

    def _restore(self, flat: Tensor, z: Tensor) -> Tensor:
        """(N, D) back to the layout and dtype of z."""
        vectors = self._indices_like(flat, z).to(z.dtype)  # (..., D)
        return rearrange(vectors, "b ... d -> b d ...") if self.channel_first else vectors

    def _indices_like(self, flat: Tensor, z: Tensor) -> Tensor:
        """(N,) or (N, D) back to the layout of z without its vector axis, D last."""
        axis = 1 if self.channel_first else z.dim() - 1
        return flat.reshape((*z.shape[:axis], *z.shape[axis + 1 :], *flat.shape[1:]))


@torch.no_grad()
def after_step_of(levels: Sequence[Codebook], outs: Sequence[Sequence[CodebookOutput]]) -> None:
    """:meth:`Codebook.after_step` of several levels: all of them move, or, on an error, none.

    Args:
        levels: The codebooks.
        outs: For each part of the batch one output for each of the levels.

    Raises:
        FloatingPointError: If the latents of a level hold NaN or infinity.
        TypeError: If no output is given.
    """
    batches = [level._checked([out[n] for out in outs]) for n, level in enumerate(levels)]
    for level, batch in zip(levels, batches, strict=True):
        level._step(batch)
