"""Quantizers of other libraries behind softvq's interface, for comparisons.

They are vector-quantize-pytorch's, but for ``diveq``, which is its authors' own package. Each has
the settings that its documentation recommends, but for FSQ, whose levels are eight and four so that
its bits equal the others'. Unlike softvq's own codebooks they may move their state in ``forward``,
and start themselves on the first latents that they see.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from softvq import Codebook, CodebookOutput, CodebookStack, StackOutput
from softvq.functional import pool, unpool

from .code_bridge import CodeBridge

if TYPE_CHECKING:
    from typing_extensions import Self


class PeerCodebook(Codebook):
    """A quantizer of another library.

    Args:
        module: Takes (1, N, D) and returns codes, indices and, if it has one, a loss.
        dim: D, size of the vector axis.
        codebook_size: K, number of codes.
        lookup: Codes (..., D) of indices (...).
        channel_first: Latents are (B, D, ...) instead of (..., D).
    """

    straight_through = True
    encoder_gradient = "what its library defines"

    def __init__(
        self,
        module: nn.Module,
        dim: int,
        codebook_size: int,
        lookup: Callable[[Tensor], Tensor],
        *,
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, channel_first=channel_first)
        self.module = module
        self._codes_of = lookup

    @property
    def codebook(self) -> Tensor:  # type: ignore[override]
        """(K, D), all codes, detached."""
        with torch.no_grad():
            device = next((t.device for t in self.module.state_dict().values()), None)
            return self._codes_of(torch.arange(self.codebook_size, device=device)[None])[0].detach()

    def _quantize(
        self, latents: Tensor, codebook: Tensor, mask: Tensor | None, hard: bool
    ) -> CodebookOutput:
        kept = latents if mask is None else latents[mask]  # (M, D)
        codes, chosen, *rest = self.module(kept[None])  # (1, M, D), (1, M)
        quantized, indices = codes[0], chosen[0].long()
        distance = (kept.detach() - quantized.detach()).square().mean()
        counts = torch.bincount(indices, minlength=self.codebook_size)
        if mask is not None:
            quantized = torch.zeros_like(latents).masked_scatter(mask[:, None], quantized)
            indices = mask.long().masked_scatter(mask, indices)
        return CodebookOutput(
            quantized=quantized,
            indices=indices,
            loss=rest[0].sum() if rest else kept.new_zeros(()),
            losses={"loss_q": distance, "loss_ols": distance, "variance": distance * 0},
            codes_per_token=torch.ones_like(distance),
            usage=counts / counts.sum().clamp_min(1),
            latents=latents.detach(),
        )

    def _routed(self, quantized: Tensor, latents: Tensor) -> Tensor:
        """The library's own gradient, which may be rotated."""
        return quantized

    @torch.no_grad()
    def encode(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Indices, with the quantizer in eval mode."""
        training = self.module.training
        self.module.eval()
        indices = self(z, mask).indices
        self.module.train(training)
        return indices

    def freeze(self) -> None:
        """Stop the quantizer's state from changing: it stays in eval mode from now on."""
        self.module.requires_grad_(False).eval()
        self.frozen = True

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the codebook; a frozen quantizer stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.module.eval()
        return self

    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor | None] | None = None,
        seed: int = 0,
        iterations: int = 10,
    ) -> None:
        """Nothing: the library initialises itself on the first batch."""

    def _vectors(self, indices: Tensor) -> Tensor:
        # Flat: the library takes indices of several axes for an image's, channels first.
        flat = self._codes_of(indices.clamp_min(0).reshape(1, -1))[0]  # (N, D)
        vectors = flat.reshape(*indices.shape, self.dim)
        return torch.where((indices >= 0)[..., None], vectors, 0.0)


class PeerStack(CodebookStack):
    """Quantizers of vector-quantize-pytorch in a residual stack, as its ``ResidualVQ`` has them.

    Each level passes its gradient to the latents on its own, so that the decoder's arrives once for
    each level; a :class:`softvq.CodebookStack` passes it once. Arguments are those of that class,
    without ``level_dropout``.
    """

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> StackOutput:
        """Quantise level by level; ``hard`` changes nothing."""
        residual, mask = self._grid(z, mask)
        total, outs = torch.zeros_like(residual), []
        for level, factor in zip(self.codebooks, self.pools, strict=True):
            outs.append(level(*pool(residual, factor, mask)))
            code = unpool(outs[-1].quantized, factor, residual.shape[1:-1])
            residual, total = residual - code.detach(), total + code
        return self._output(total, outs, z, mask)


def peer(name: str, dim: int, codebook_size: int, channel_first: bool = True) -> PeerCodebook:
    """A quantizer by the name that ``train.py --quantizer`` has for it.

    Raises:
        ImportError: If its library is not installed.
        ValueError: If the name is unknown, or it has no such codebook size.
    """
    if name not in PEERS:
        raise ValueError(f"unknown peer {name!r}; known: {sorted(PEERS)}")
    package = "diveq" if name == "diveq" else "vector-quantize-pytorch"
    try:
        library = importlib.import_module(package.replace("-", "_"))
    except ImportError as error:
        raise ImportError(f"the quantizer {name} needs {package}: pip install {package}") from error
    module = PEERS[name](library, dim, codebook_size)
    lookup = getattr(module, "indices_to_codes", None) or module.get_codes_from_indices
    return PeerCodebook(module, dim, codebook_size, lookup, channel_first=channel_first)


def _vector_quantize(vqp: Any, dim: int, codebook_size: int, **options: Any) -> Any:
    return vqp.VectorQuantize(
        dim=dim, codebook_size=codebook_size, decay=0.8, commitment_weight=1.0, kmeans_init=True,
        threshold_ema_dead_code=2, **options,
    )  # fmt: skip


def _bridged(vqp: Any, dim: int, codebook_size: int) -> Any:
    bridge = CodeBridge(dim, codebook_size)
    module = _vector_quantize(vqp, dim, codebook_size, vq_bridge=bridge, rotation_trick=False)
    # The library's own lookup leaves the bridge out, which its forward pass does not.
    module.indices_to_codes = lambda indices: bridge(module._codebook.embed)[0][indices]
    return module


class _DiVeQ(nn.Module):
    """DiVeQ by its authors' package, with its defaults."""

    def __init__(self, library: Any, dim: int, codebook_size: int) -> None:
        super().__init__()
        self.quantizer = library.DIVEQ(codebook_size, dim, verbose=False)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(1, N, D) to (1, N, D) and (1, N)."""
        quantize = self.quantizer if self.training else self.quantizer.inference
        codes, indices, _ = quantize(z[0])
        return codes[None], indices[None]

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        """(...) to (..., D)."""
        return self.quantizer.codebook[indices]


def _lfq(vqp: Any, dim: int, codebook_size: int) -> Any:
    fsq_levels(codebook_size)  # a power of two as well
    return vqp.LFQ(dim=dim, codebook_size=codebook_size)


# Each called with its library, D and K.
PEERS: dict[str, Callable[[Any, int, int], Any]] = {
    "vqp-ema": functools.partial(_vector_quantize, rotation_trick=False),
    "vqp-rotation": functools.partial(_vector_quantize, rotation_trick=True),
    "vqp-diveq": functools.partial(_vector_quantize, directional_reparam=True),
    "vqp-bridge": _bridged,
    "diveq": _DiVeQ,
    "simvq": lambda vqp, dim, size: vqp.SimVQ(dim=dim, codebook_size=size),
    "fsq": lambda vqp, dim, size: vqp.FSQ(levels=fsq_levels(size), dim=dim),
    "lfq": _lfq,
}


def fsq_levels(codebook_size: int) -> list[int]:
    """Levels of eight and four that multiply to K, the fewest axes first.

    Raises:
        ValueError: If K is no power of two of at least 4.

    Example:
        >>> fsq_levels(512), fsq_levels(8192), fsq_levels(1024)
        ([8, 8, 8], [8, 8, 8, 4, 4], [8, 8, 4, 4])
    """
    bits = codebook_size.bit_length() - 1
    if codebook_size != 2**bits or bits < 2:
        raise ValueError(f"fsq and lfq need a power of two of at least 4, got K = {codebook_size}")
    fours = -bits % 3
    return [8] * ((bits - 2 * fours) // 3) + [4] * fours
