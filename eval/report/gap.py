"""What is lost between a soft code and its token, measured and bounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models import ImageTokenizer
from models.tokenizer import size_of
from softvq import CodebookOutput, SoftCodebook, StackOutput
from softvq.functional import soft_quantize, squared_distances
from training.metrics import Decoder

TOP = (8, 4, 2)
# What a row of the table has, where the metric was measured.
METRICS = ("mse", "psnr", "psnr_global", "lpips")
# Elements of a matrix of distances held at a time.
_BLOCK = 2**22


class GapMeter:
    """The same checkpoint decoded soft, from the k nearest prototypes, and from tokens.

    Args:
        model: In eval mode.
        refit: A copy whose decoder was refit to the tokens, or None.

    Attributes:
        decoders: For :func:`training.metrics.evaluate_split`.
    """

    def __init__(self, model: ImageTokenizer, refit: ImageTokenizer | None = None) -> None:
        self.model = model
        self.levels = [
            LevelGap(level) if isinstance(level, SoftCodebook) else None for level in model.levels
        ]
        smallest = min(level.codebook_size for level in model.levels)
        self.top = [k for k in TOP if k < smallest] if any(self.levels) else []
        self.decoders = {f"top_{k}": _top_decoder(model, k) for k in self.top}
        if refit is not None:
            self.decoders["refit"] = lambda images, tokens: refit.decode_tokens(
                tokens, size_of(images)
            )

    @property
    def extra(self) -> set[str]:
        """Names of the figures that these decoders add to those of a split."""
        return {f"{metric}_{name}" for metric in METRICS for name in self.decoders}

    def observe(
        self, images: Tensor, code: CodebookOutput | StackOutput, recons: Mapping[str, Tensor]
    ) -> None:
        """Count the tokens of a batch; an observer of :func:`training.metrics.evaluate_split`."""
        for gap, out in zip(self.levels, code.levels, strict=True):
            if gap is not None:
                gap.update(out)

    def rows(self, figures: Mapping[str, Any], tokens: list[int]) -> list[dict[str, Any]]:
        """The table: a row for each way to decode.

        Args:
            figures: Of :func:`training.metrics.evaluate_split` with these decoders.
            tokens: Tokens of an image on each level.

        Returns:
            Dicts with ``decode``, :data:`METRICS` (None where not measured), and bits per token:
            ``bits_log2_k`` and ``bits_entropy`` (of the counts) for tokens, ``bits_assignment``,
            the mean entropy of the (renormalised) assignment, for all: a mix of k prototypes is no
            k log2 K bits, for its weights are real numbers.
        """
        levels = figures.get("levels", [figures])

        def mean(values: Iterable[float]) -> float:
            return sum(n * v for n, v in zip(tokens, values, strict=True)) / sum(tokens)

        fixed = {
            "bits_log2_k": mean(math.log2(level.codebook_size) for level in self.model.levels),
            "bits_entropy": mean(math.log2(max(level["perplexity"], 1)) for level in levels),
            "bits_assignment": 0.0,
        }
        named: list[tuple[str, str, dict[str, float]]] = []
        if any(self.levels):
            soft = mean(math.log2(level["codes_per_token"]) for level in levels)
            named.append(("soft", "soft", {"bits_assignment": soft}))
        gaps = self.level_figures()
        for k in self.top:
            bits = mean(gap["top_k_bits"][str(k)] if gap else 0.0 for gap in gaps)
            named.append((f"top-{k}", f"top_{k}", {"bits_assignment": bits}))
        named.append(("argmax", "argmax", fixed))
        if "refit" in self.decoders:
            named.append(("argmax, decoder refit", "refit", fixed))
        return [
            {
                "decode": label,
                **{metric: figures.get(f"{metric}_{name}") for metric in METRICS},
                **dict.fromkeys(fixed),
                **bits,
            }
            for label, name, bits in named
        ]

    def level_figures(self) -> list[dict[str, Any] | None]:
        """:meth:`LevelGap.compute` of each level; None for hard ones."""
        return [None if gap is None else gap.compute() for gap in self.levels]


class LevelGap:
    """Sums over tokens of what a level loses by its tokens, with the bounds on it.

    Args:
        level: A soft codebook.
    """

    def __init__(self, level: SoftCodebook) -> None:
        self.level = level
        self.sums = torch.zeros(0)
        self.tokens = 0

    def update(self, out: CodebookOutput) -> None:
        """Count the tokens of a forward pass.

        Args:
            out: Of this level, with its soft codes.
        """
        level = self.level
        top = top_of(level, out, max(TOP))
        kept = out.indices.flatten() >= 0
        q, indices = top.q[kept], top.indices[kept]
        z = out.latents[kept]
        axis = 1 if level.channel_first else -1
        soft = out.quantized.movedim(axis, -1).reshape(-1, level.dim)[kept]
        prototypes = level.codebook[indices[:, 0]]
        codebook, heat = level.codebook.to(z.dtype), level.temperature.to(z.dtype)
        blocks = z.split(max(1, _BLOCK // len(codebook)))
        variance = torch.cat([soft_quantize(block, codebook, heat).variance for block in blocks])
        distance = (prototypes - soft).square().sum(dim=1)
        gap = (z - prototypes).square().sum(dim=1) - (z - soft).square().sum(dim=1)
        columns = [distance, variance / q[:, 0], gap, variance, q[:, 0]]
        for k in TOP:
            share = q[:, :k] / q[:, :k].sum(dim=1, keepdim=True)
            columns.append(-(share * share.clamp_min(1e-30).log2()).sum(dim=1))
        sums = torch.stack(columns).cpu().double().sum(dim=1)
        self.sums = sums if not self.tokens else self.sums + sums
        self.tokens += len(z)

    def compute(self) -> dict[str, Any]:
        """Means over tokens, distances over the D elements of a vector as all losses are.

        Returns:
            ``argmax_distance``, ``|p_argmax - zbar|^2``, bounded by ``argmax_distance_bound``,
            V / q_max; ``error_added``, ``d_min - L_OLS``, which ``variance`` bounds; ``largest_q``;
            ``top_k_bits`` by k: entropy of the renormalised mix.
        """
        means = (self.sums / max(self.tokens, 1)).tolist()
        names = ("argmax_distance", "argmax_distance_bound", "error_added", "variance")
        figures: dict[str, Any] = {
            name: value / self.level.dim for name, value in zip(names, means, strict=False)
        }
        figures["largest_q"] = means[4]
        figures["top_k_bits"] = dict(zip(map(str, TOP), means[5:], strict=True))
        return figures


def _top_decoder(model: ImageTokenizer, k: int) -> Decoder:
    def decode(images: Tensor, tokens: list[Tensor]) -> Tensor:
        with top_k_codes(model, k):
            recon: Tensor = model(images).recon.clamp(0, 1)
        return recon

    return decode


class TopAssignments(NamedTuple):
    """The k largest assignments of N latents, the largest first.

    Attributes:
        q: (N, k), assignments as they are: not renormalised.
        indices: (N, k) int64.
    """

    q: Tensor
    indices: Tensor


def top_assignments(
    z: Tensor, codebook: Tensor, temperature: Tensor | float, k: int
) -> TopAssignments:
    """The k largest of a Boltzmann assignment, a block of latents at a time.

    Args:
        z: (N, D) latents.
        codebook: (K, D) prototypes.
        temperature: T > 0.
        k: At most K are returned.

    Example:
        >>> codebook = torch.tensor([[0.0], [1.0], [9.0]])
        >>> top = top_assignments(torch.zeros(1, 1), codebook, 1.0, k=2)
        >>> top.indices.tolist(), [round(q, 3) for q in top.q[0].tolist()]
        ([[0, 1]], [0.731, 0.269])
    """
    k = min(k, len(codebook))
    parts = []
    for block in z.split(max(1, _BLOCK // len(codebook))):
        logits = -squared_distances(block, codebook) / temperature  # (n, K)
        top, indices = logits.topk(k, dim=1)
        parts.append(((top - logits.logsumexp(dim=1, keepdim=True)).exp(), indices))
    q, indices = (torch.cat(part) for part in zip(*parts, strict=True))
    return TopAssignments(q, indices)


@contextmanager
def top_k_codes(model: ImageTokenizer, k: int) -> Iterator[None]:
    """Within it, every soft codebook's output mixes its k nearest prototypes, renormalised.

    Later levels code what those mixes leave over, as they do of soft codes and of argmax codes.
    Codebooks without a temperature are not changed.

    Args:
        model: Its codebooks.
        k: Prototypes of a mix, at least 1; K or more is the soft code.

    Raises:
        ValueError: If k is less than 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")

    def mix(level: SoftCodebook, given: tuple[Any, ...], out: CodebookOutput) -> CodebookOutput:
        top = top_of(level, out, k)
        share = top.q / top.q.sum(dim=1, keepdim=True)
        codes = (share[..., None] * level.codebook[top.indices]).sum(dim=1)  # (N, D)
        codes = torch.where(out.indices.flatten()[:, None] >= 0, codes, 0.0)
        axis = 1 if level.channel_first else -1
        soft = out.quantized.movedim(axis, -1)  # (..., D)
        mixed = codes.view_as(soft).to(soft.dtype).movedim(-1, axis)
        return replace(out, quantized=mixed)

    soft = [level for level in model.levels if isinstance(level, SoftCodebook)]
    handles = [level.register_forward_hook(mix) for level in soft]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def top_of(level: SoftCodebook, out: CodebookOutput, k: int) -> TopAssignments:
    """:func:`top_assignments` of the latents that a level's output is of."""
    temperature = level.temperature.to(out.latents.dtype)
    return top_assignments(out.latents, level.codebook.to(out.latents.dtype), temperature, k)
