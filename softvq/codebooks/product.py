"""ProductCodebook: a vector split among several codebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from .._internal.distributed import agreed
from ..initialize import with_masks
from .codebook import Codebook
from .composite import Composite
from .interface import in_layout, vectors_last, warn_of_forgotten_calls
from .outputs import CodebookOutput, StackOutput


class ProductCodebook(Composite):
    """Codebooks side by side: each codes its own part of the vector.

    G codebooks of K codes each tell K ** G vectors apart. Product quantisation (Jégou, Douze and
    Schmid, IEEE TPAMI 33, 2011); as a level of a :class:`softvq.CodebookStack` it is grouped
    residual quantisation (Yang et al., HiFi-Codec, 2023, https://arxiv.org/abs/2305.02765).

    The output is a :class:`softvq.StackOutput` whose levels are the groups. The terms of each are
    its share of the whole vector's, so that ``out.loss`` and ``out.losses`` are means over the D
    elements, as those of one codebook.

    Args:
        groups: The codebooks, each with ``channel_first=False``; D is the sum of their ``dim``.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Attributes:
        straight_through: Whether all groups are.
        exact: Whether training, too, outputs the codes themselves; a stack sets it.

    Raises:
        ValueError: If there is no group, one stands twice, or one has ``channel_first=True``.
        TypeError: If a group is no codebook.

    Example:
        >>> from softvq import DDCLCodebook
        >>> product = ProductCodebook([DDCLCodebook(4, 16) for _ in range(2)])
        >>> z = torch.randn(3, 10, 8)
        >>> product.initialize(z)
        >>> out = product(z)
        >>> tuple(out.quantized.shape), tuple(out.indices.shape)
        ((3, 10, 8), (3, 10, 2))
        >>> tuple(product.decode(product.encode(z)).shape)
        (3, 10, 8)
    """

    pools = (1,)

    def __init__(self, groups: Sequence[Codebook], *, channel_first: bool = False) -> None:
        super().__init__()
        for group in groups:
            if not isinstance(group, Codebook):
                raise TypeError(f"a group must be a codebook, got a {type(group).__name__}")
        if not groups or len(set(map(id, groups))) < len(groups):
            raise ValueError(
                f"a product needs at least one group, each a codebook of its own; got {len(groups)}"
            )
        if any(group.channel_first for group in groups):
            raise ValueError(
                "all groups need channel_first=False (give it to the product); got "
                f"{[group.channel_first for group in groups]}"
            )
        self.groups = nn.ModuleList(groups)
        self.channel_first = channel_first
        self.dim = sum(self._dims)

    def _parts(self) -> tuple[Codebook, ...]:
        return tuple(self.groups)  # type: ignore[arg-type]

    @property
    def _dims(self) -> list[int]:
        return [group.dim for group in self.codebooks]

    @property
    def straight_through(self) -> bool:  # noqa: D102
        return all(group.straight_through for group in self.codebooks)

    @property
    def exact(self) -> bool:  # noqa: D102
        return all(group.exact for group in self.codebooks)

    @exact.setter
    def exact(self, value: bool) -> None:
        for group in self.codebooks:
            group.exact = value

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> StackOutput:
        """Quantise latents.

        Args:
            z: (..., D), or (B, D, ...) with ``channel_first``; any floating dtype.
            mask: bool, z's shape without the vector axis, False for padding: what stands there,
                NaN included, changes nothing; its code is zero and its indices are -1.
            hard: Whether to output the nearest prototypes instead of the soft codes.

        Returns:
            ``indices`` are (..., G).

        Raises:
            ValueError: If a shape does not fit.
            TypeError: If a dtype does not fit.
        """
        parts = zip(self.codebooks, self._split(z, mask), strict=True)
        outs = [group(part, mask, hard=hard) for group, part in parts]
        shares = [_share(out, d / self.dim) for out, d in zip(outs, self._dims, strict=True)]
        return StackOutput(
            quantized=self.combine([out.quantized for out in outs]),
            indices=torch.stack([out.indices for out in outs], dim=-1),
            loss=torch.stack([out.loss for out in shares]).sum(),
            levels=tuple(shares),
        )

    @torch.no_grad()
    def encode(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Indices of the nearest prototypes of each group.

        Args:
            z: Latents, as in :meth:`forward`.
            mask: As in :meth:`forward`.

        Returns:
            int64 (..., G), or (B, ..., G) with ``channel_first``; -1 where masked.
        """
        if not self.training:
            warn_of_forgotten_calls(self.codebooks)
        parts = zip(self.codebooks, self._split(z, mask), strict=True)
        return torch.stack([group.encode(part, mask) for group, part in parts], dim=-1)

    def decode(self, indices: Tensor) -> Tensor:
        """Prototypes by index, those of all groups in one vector.

        Args:
            indices: Integers (..., G); -1 stands for padding.

        Returns:
            (..., D), or (B, D, ...) with ``channel_first``; zeros where the index is -1.

        Raises:
            ValueError: If the last axis is not G.
            IndexError: If an index lies outside [-1, K) of its group.
            TypeError: If the indices are not integers.
        """
        parts = zip(self.codebooks, self.indices_of_codebooks(indices), strict=True)
        return self.combine([group.decode(part) for group, part in parts])

    def indices_of_codebooks(self, indices: Tensor) -> list[Tensor]:  # type: ignore[override]
        """The indices of each group."""
        if not indices.dim() or indices.shape[-1] != len(self.groups):
            raise ValueError(
                f"indices must be (..., G) with G = {len(self.groups)} groups, got shape "
                f"{tuple(indices.shape)}"
            )
        return list(indices.unbind(-1))

    def combine(self, codes: Sequence[Tensor], shape: Sequence[int] | None = None) -> Tensor:
        """The groups' vectors (..., dim of each) as one in the product's layout."""
        return in_layout(torch.cat(list(codes), dim=-1), self.channel_first)

    @torch.no_grad()
    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor | None] | None = None,
        seed: int = 0,
        iterations: int = 10,
    ) -> None:
        """Place the prototypes of each group by k-means on its part of the latents.

        Args:
            latents: One tensor as :meth:`forward` takes it, or several batches of them.
            mask: As in :meth:`forward`, one for each tensor of latents.
            seed: Seed of the sampling; each group has another.
            iterations: Lloyd iterations.

        Raises:
            ValueError: If there are fewer latents than prototypes, or some are not finite.
        """
        with agreed(self.codebooks[0].steps.device):
            pairs = with_masks(latents, mask)
            split = [self._split(z, m) for z, m in pairs]
        masks = [m for _, m in pairs]
        with self._all_or_none():
            for number, group in enumerate(self.codebooks):
                own = [parts[number] for parts in split]
                group.initialize(own, mask=masks, seed=seed + number, iterations=iterations)

    def _split(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """The part (..., dim) of each group."""
        return vectors_last(z, mask, self.dim, self.channel_first).split(self._dims, dim=-1)


def _share(out: CodebookOutput, share: float) -> CodebookOutput:
    """The output with the terms of its part of a vector, as parts of the whole vector's."""
    losses = {name: share * term for name, term in out.losses.items()}
    return replace(out, loss=share * out.loss, losses=losses)
