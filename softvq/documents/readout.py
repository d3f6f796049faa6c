"""DDCLReadout: a document's share of each prototype, instead of a CLS token or a plain mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..codebooks.outputs import CodebookOutput
from ..codebooks.soft import SoftCodebook
from .proportions import assignments, mean_token, shares


@dataclass(frozen=True, eq=False)
class ReadoutOutput:
    """What a :class:`DDCLReadout` makes of a batch of documents.

    Attributes:
        pooled: (B, D), tokens' dtype: the mean soft centroid of a document's real tokens, which is
            ``proportions @ codebook``. Zero for a document of padding only.
        proportions: (B, K), float32 or better: mean assignment of the real tokens, the document's
            share of each prototype. Not negative; sums to one, or to zero for a document of
            padding only.
        prototypes: (B, K, D), dtype of ``proportions``: the document's own mean of the tokens that
            are assigned to a prototype, the document as K vectors. Zero where its share is.
        code: The codebook's output: ``code.quantized`` (B, T, D) are the soft centroids of the
            tokens, ``code.indices`` (B, T) their nearest prototypes, ``code.losses`` has
            ``loss_q = loss_ols + variance``.
    """

    pooled: Tensor
    proportions: Tensor
    prototypes: Tensor
    code: CodebookOutput

    @property
    def loss(self) -> Tensor:
        """Scalar to add to the task's loss: the codebook's."""
        return self.code.loss


class TokenAssignment(NamedTuple):
    """A token as evidence for a prototype.

    Attributes:
        word: As it was given.
        position: Its place in the document, from 0.
        assignment: How much of the token belongs to the prototype, in [0, 1].
    """

    word: str
    position: int
    assignment: float


class PrototypeShare(NamedTuple):
    """A prototype's part in a document.

    Attributes:
        prototype: Its index.
        share: Mean assignment of the document's tokens to it; the shares of all sum to one.
        tokens: Those that are assigned to it most, the most first.
    """

    prototype: int
    share: float
    tokens: tuple[TokenAssignment, ...]


class DDCLReadout(nn.Module):
    """Reads a fixed number of values out of a sequence of any length, in one pass of O(T K D).

    Each token is assigned to the K prototypes of a codebook; the means of a document's assignments
    are its ``proportions``, and the mean of its soft centroids is ``pooled``. No query, no
    iteration, nothing that depends on the order of the tokens. After DDCL-Attention's first use
    (Cirrincione and Kumar, 2026, https://arxiv.org/abs/2604.03850), which does not say how tokens
    become one vector: the mean is our choice.

    ``pooled`` has the value and the gradient of the mean of ``code.quantized``. With a
    :class:`softvq.DDCLCodebook` that is the exact derivative, to tokens and prototypes. With a
    :class:`softvq.DDCLEMCodebook` the gradient of ``pooled`` passes straight through to the tokens,
    as if it were their mean, and none reaches the prototypes, which learn in :meth:`after_step`.
    ``proportions`` and ``prototypes`` have exact derivatives with either.

    The readout has no state but its codebook's: ``readout.codebook.save_pretrained(path)`` saves
    it, and ``DDCLReadout(SoftCodebook.from_pretrained(path))`` is an equal one.

    Args:
        codebook: Any soft codebook of the encoder's width, ``channel_first=False``.

    Raises:
        TypeError: If it is no soft codebook.
        ValueError: If it has ``channel_first=True``.

    Example:
        >>> from softvq import DDCLCodebook
        >>> _ = torch.manual_seed(0)
        >>> readout = DDCLReadout(DDCLCodebook(dim=8, codebook_size=4))
        >>> tokens, mask = torch.randn(3, 20, 8), torch.arange(20) < torch.tensor([[20], [7], [0]])
        >>> readout.initialize(tokens, mask=mask)
        >>> out = readout(tokens, mask)  # of Hugging Face encoders: attention_mask.bool()
        >>> out.loss.backward()
        >>> readout.after_step(out)
        >>> tuple(out.pooled.shape), [round(s, 4) for s in out.proportions.sum(dim=1).tolist()]
        ((3, 8), [1.0, 1.0, 0.0])
    """

    def __init__(self, codebook: SoftCodebook) -> None:
        super().__init__()
        if not isinstance(codebook, SoftCodebook):
            raise TypeError(
                "a readout needs a soft codebook, as DDCLCodebook or DDCLEMCodebook, whose tokens "
                f"belong to all prototypes in part; got {type(codebook).__name__}"
            )
        if codebook.channel_first:
            raise ValueError(
                "tokens are (B, T, D): the codebook needs channel_first=False, got True"
            )
        codebook.exact = True
        self.codebook = codebook

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> ReadoutOutput:
        """Read documents out.

        Args:
            tokens: (B, T, D), any floating dtype.
            mask: bool (B, T), False for padding: what stands there, NaN included, changes nothing.

        Returns:
            A :class:`ReadoutOutput`.

        Raises:
            ValueError: If a shape does not fit.
            TypeError: If a dtype does not fit.
        """
        proportions, prototypes = shares(self.codebook, tokens, mask)
        code = self.codebook(tokens, mask)
        with torch.autocast(tokens.device.type, enabled=False):
            pooled = proportions @ self.codebook.codebook.to(proportions.dtype)  # (B, D)
            mean = mean_token(tokens.to(proportions.dtype), mask)  # (B, D)
            # The mean follows the codebook's gradient rule (exact or straight-through).
            pooled = self.codebook._routed(pooled, mean)
        return ReadoutOutput(pooled.to(tokens.dtype), proportions, prototypes, code)

    @torch.no_grad()
    def after_step(self, *outs: ReadoutOutput) -> None:
        """Move the codebook's state; see :meth:`softvq.Codebook.after_step`.

        Args:
            outs: What ``forward`` returned for the step's batch, or for each of its parts.
        """
        self.codebook.after_step(*(out.code for out in outs))

    @torch.no_grad()
    def initialize(
        self,
        latents: Tensor | Iterable[Tensor],
        *,
        mask: Tensor | Iterable[Tensor | None] | None = None,
        seed: int = 0,
        iterations: int = 10,
    ) -> None:
        """Place the prototypes by k-means on tokens, and set the temperature.

        Args:
            latents: Tokens (B, T, D), or several batches of such; lengths may differ.
            mask: bool (B, T), one for each tensor of tokens, or None.
            seed: Seed of the sampling.
            iterations: Lloyd iterations.

        Raises:
            ValueError: If there are fewer tokens than prototypes, or some are not finite.
        """
        self.codebook.initialize(latents, mask=mask, seed=seed, iterations=iterations)

    @torch.no_grad()
    def explain(self, tokens: Tensor, words: Sequence[str], top: int = 5) -> list[PrototypeShare]:
        """What a document consists of: each prototype's share, and its most characteristic tokens.

        Args:
            tokens: (T, D), one document without padding.
            words: T strings, one for each token.
            top: Most tokens to name for a prototype, at least 1.

        Returns:
            All K prototypes, the largest share first.

        Raises:
            ValueError: If tokens are not (T, D) with T at least 1, there is not a word for each,
                or ``top`` is below 1.

        Example:
            >>> from softvq import DDCLCodebook
            >>> codebook = DDCLCodebook(dim=1, codebook_size=2)
            >>> _ = codebook.codebook.data.copy_(torch.tensor([[0.0], [10.0]]))
            >>> tokens = torch.tensor([[10.0], [0.0], [11.0]])
            >>> first, _ = DDCLReadout(codebook).explain(tokens, ["eggs", "and", "ham"], top=2)
            >>> first.prototype, round(first.share, 2), [token.word for token in first.tokens]
            (1, 0.67, ['eggs', 'ham'])
        """
        if tokens.dim() != 2 or not len(tokens):
            raise ValueError(
                "explain takes one document, (T, D) with at least one token and no padding, got "
                f"shape {tuple(tokens.shape)}"
            )
        if len(words) != len(tokens):
            raise ValueError(
                f"explain needs a word for each of the {len(tokens)} tokens, got {len(words)}"
            )
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        q = assignments(self.codebook, tokens[None]).squeeze(0)  # (T, K)
        share, order = q.mean(dim=0).sort(descending=True, stable=True)  # (K,)
        ranked = q.sort(dim=0, descending=True, stable=True)
        values, places = ranked.values[:top].mT.tolist(), ranked.indices[:top].mT.tolist()
        explained = []
        for part, k in zip(share.tolist(), order.tolist(), strict=True):
            pairs = zip(values[k], places[k], strict=True)
            tokens_of = tuple(TokenAssignment(words[place], place, value) for value, place in pairs)
            explained.append(PrototypeShare(k, part, tokens_of))
        return explained


# A pytree node, so that DDP, torch.export and torch.func see the tensors inside.
torch.export.register_dataclass(ReadoutOutput, serialized_type_name="softvq.ReadoutOutput")
