"""What codebooks return: CodebookOutput, and StackOutput of several.

Shapes: ``...`` is the layout of the latents without their vector axis, N the number of vectors,
D the vector size, K the codebook size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Triple:
    """Unpacks to ``quantized, indices, loss``."""

    quantized: Tensor
    indices: Tensor | list[Tensor]
    loss: Tensor
    levels: tuple[CodebookOutput, ...]
    codes_per_token: Tensor
    perplexity: Tensor

    def __iter__(self) -> Iterator[Any]:
        return iter((self.quantized, self.indices, self.loss))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, item: int) -> Any:
        return (self.quantized, self.indices, self.loss)[item]

    def __repr__(self) -> str:
        """Shapes and figures in one line."""
        indices = [self.indices] if isinstance(self.indices, Tensor) else self.indices
        shapes = ", ".join(str(tuple(part.shape)) for part in indices)
        figures = {"loss": self.loss, "perplexity": self.perplexity}
        figures["codes_per_token"] = self.codes_per_token
        shown = ", ".join(f"{name}={float(value.detach()):.4g}" for name, value in figures.items())
        quantized = tuple(self.quantized.shape)
        return f"{type(self).__name__}(quantized={quantized}, indices={shapes}, {shown})"

    def log_terms(self) -> dict[str, Tensor]:
        """What to log of a batch: means that may be averaged over batches of equal size.

        Returns:
            Detached scalars named ``"<level>/<name>"``, the first level being 0: each of the
            level's ``losses`` and the mean ``entropy`` of its assignments in nats, times the share
            of tokens that it saw, ``"<level>/weight"``.

        Example:
            >>> from softvq import VQEMACodebook
            >>> sorted(VQEMACodebook(4, 8)(torch.randn(5, 4)).log_terms())[:2]
            ['0/codebook_loss', '0/commitment_loss']
        """
        terms = {}
        for number, out in enumerate(self.levels):
            weight = (out.indices >= 0).float().mean()
            terms[f"{number}/weight"] = weight
            for name, value in {**out.losses, "entropy": out.codes_per_token.log()}.items():
                terms[f"{number}/{name}"] = value.detach() * weight
        return terms


@dataclass(frozen=True, eq=False, repr=False)
class CodebookOutput(Triple):
    """What a codebook returns; unpacks to ``quantized, indices, loss``.

    Attributes:
        quantized: The code of every latent, same shape and dtype as the latents given.
        indices: int64, the nearest prototype of every latent, the latents' shape without the
            vector axis; -1 where masked.
        loss: Scalar, the weighted sum of ``losses`` that the codebook trains with. Add it to the
            task's loss.
        losses: The named terms, unweighted scalars. Every codebook has ``loss_q``, ``loss_ols``
            and ``variance`` (``loss_q = loss_ols + variance``), as means over tokens *and* over
            the D elements of a vector, so that weights carry over between vector sizes.
        codes_per_token: Scalar, ``exp(mean entropy of the assignment)``: 1 when every assignment
            is hard, K when uniform.
        usage: (K,), the mean assignment of the tokens of this call. Detached.
        latents: (N, D), the detached latents, zero where masked: what
            :meth:`softvq.Codebook.after_step` learns from.

    Example:
        >>> import torch
        >>> from softvq import VQCodebook
        >>> quantized, indices, loss = VQCodebook(dim=4, codebook_size=8)(torch.randn(2, 5, 4))
        >>> tuple(quantized.shape), tuple(indices.shape), tuple(loss.shape)
        ((2, 5, 4), (2, 5), ())
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    losses: dict[str, Tensor]
    codes_per_token: Tensor
    usage: Tensor
    latents: Tensor

    @property
    def perplexity(self) -> Tensor:  # type: ignore[override]
        """Scalar, ``exp(entropy)`` of how often this call chose each code, in [1, K]."""
        counts = torch.bincount(self.indices.flatten() + 1, minlength=len(self.usage) + 1)[1:]
        return torch.special.entr(counts / counts.sum().clamp_min(1)).sum().exp()

    @property
    def levels(self) -> tuple[CodebookOutput, ...]:  # type: ignore[override]
        """Itself alone, so that one level reads like several."""
        return (self,)


@dataclass(frozen=True, eq=False, repr=False)
class StackOutput(Triple):
    """What a :class:`softvq.CodebookStack` returns; unpacks to ``quantized, indices, loss``.

    Attributes:
        quantized: The sum of all levels' codes, same shape and dtype as the latents given.
        indices: int64, a tensor for each level, coarse to fine as the stack is; -1 where masked or
            dropped. One tensor (..., L) where no level pools.
        loss: Scalar, the sum of the levels' losses.
        levels: The levels' own outputs, on what the levels before had left over.
    """

    quantized: Tensor
    indices: Tensor | list[Tensor]
    loss: Tensor
    levels: tuple[CodebookOutput, ...]

    @property
    def losses(self) -> dict[str, Tensor]:
        """Terms that all levels have, unweighted scalars, each the sum over levels."""
        names = [n for n in self.levels[0].losses if all(n in out.losses for out in self.levels)]
        return {n: torch.stack([out.losses[n] for out in self.levels]).sum() for n in names}

    @property
    def codes_per_token(self) -> Tensor:  # type: ignore[override]
        """Scalar, that of the level where it is largest."""
        return torch.stack([out.codes_per_token for out in self.levels]).amax()

    @property
    def perplexity(self) -> Tensor:  # type: ignore[override]
        """Scalar, that of the level where it is smallest."""
        return torch.stack([out.perplexity for out in self.levels]).amin()


# Pytree nodes, so that DDP, torch.export and torch.func see the tensors inside.
torch.export.register_dataclass(CodebookOutput, serialized_type_name="softvq.CodebookOutput")
torch.export.register_dataclass(StackOutput, serialized_type_name="softvq.StackOutput")
