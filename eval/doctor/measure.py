"""What the checks are told about a model: measured on images, once, in eval mode.

M: latents that are kept, D: vector size, K: codes, C: channels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models import ImageTokenizer
from models.shared_scale_norm import SharedScaleNorm
from softvq import Codebook, CodebookOutput
from training.data.feed import to_float

# Latents of a level that are kept for the geometry.
KEPT_LATENTS = 2**16


class LevelMeasures(NamedTuple):
    """A level on the sample.

    Attributes:
        codebook: (K, D), the prototypes.
        latents: (M, D), what the level saw, thinned out evenly.
        counts: (K,), tokens whose nearest prototype each code was.
        loss_q: Mean of L_q over tokens and elements.
        variance: Mean of V, likewise.
        codes_per_token: ``exp`` of the mean entropy of the assignments.
    """

    codebook: Tensor
    latents: Tensor
    counts: Tensor
    loss_q: float
    variance: float
    codes_per_token: float


class NormMeasures(NamedTuple):
    """What a normalisation that pins the latents' scale lets through on the sample.

    Attributes:
        mean: (C,), of its output: 0 where its running mean is the data's.
        variance: (C,), likewise, with the part that ``eps`` takes: 1 where its running variance is
            the data's, and in a channel that is constant. Where all channels share one, their mean.
    """

    mean: Tensor
    variance: Tensor


class ModelMeasures(NamedTuple):
    """A model on the sample.

    Attributes:
        levels: Of each level, coarse first; none for a model without a bottleneck.
        norms: Of each normalisation of the latents, coarse first.
        mse_soft: Through the codebook's own output.
        mse_argmax: Through the tokens; None for a model without a bottleneck.
        mse_mean: Of the mean image of the sample in the place of each reconstruction.
        tokens_per_image: On each level.
    """

    levels: list[LevelMeasures]
    norms: list[NormMeasures]
    mse_soft: float
    mse_argmax: float | None
    mse_mean: float
    tokens_per_image: list[int]


class _LevelSums:
    """Sums of one level over the batches."""

    def __init__(self, level: Codebook) -> None:
        self.level = level
        self.latents: list[Tensor] = []
        self.counts = torch.zeros(level.codebook_size, dtype=torch.int64)
        self.weighted = torch.zeros(3, dtype=torch.float64)

    def add(self, out: CodebookOutput, share: float) -> None:
        """Count a batch, and keep a share of its latents."""
        indices = out.indices.flatten().cpu()
        self.latents.append(out.latents[:: max(1, math.floor(1 / share))].float().cpu())
        self.counts += torch.bincount(indices, minlength=len(self.counts))
        means = (out.losses["loss_q"], out.losses["variance"], out.codes_per_token.log())
        self.weighted += torch.stack(means).double().cpu() * len(indices)

    def measures(self) -> LevelMeasures:
        """The means."""
        loss_q, variance, entropy = (self.weighted / self.counts.sum()).tolist()
        latents = torch.cat(self.latents)[:KEPT_LATENTS]
        codebook = self.level.codebook.detach().float().cpu()
        return LevelMeasures(codebook, latents, self.counts, loss_q, variance, math.exp(entropy))


@torch.no_grad()
def measure(model: ImageTokenizer, images: Tensor, *, batch_size: int = 250) -> ModelMeasures:
    """Measure a model on images.

    Args:
        model: In eval mode; not changed.
        images: uint8 (N, C, H, W).
        batch_size: Images at a time.

    Example:
        >>> from models import build_model
        >>> model = build_model({"hidden_channels": 8, "codebook_size": 16}).eval()
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> measured = measure(model, images)
        >>> measured.tokens_per_image, int(measured.levels[0].counts.sum())
        ([64], 256)
    """
    device = next(model.parameters()).device
    grids = [height * width for height, width in model.grids(*images.shape[2:])]
    sums = [_LevelSums(level) for level in model.levels if level.has_tokens]
    mean = images.double().mean(dim=0) / 255
    errors = {"soft": 0.0, "argmax": 0.0, "mean": 0.0}

    def add(name: str, recon: Tensor, batch: Tensor) -> None:
        errors[name] += float((recon - batch).double().square().sum()) / images.numel()

    with _normalised(model) as norms:
        for part in images.split(batch_size):
            batch = to_float(part.to(device))
            recon, code = model(batch)
            for own, out, tokens in zip(sums, code.levels, grids, strict=False):
                own.add(out, min(1.0, KEPT_LATENTS / (tokens * len(images))))
            add("soft", recon.clamp(0, 1), batch)
            add("mean", mean.to(batch), batch)
        shifts = [_norm_measures(norm, *own) for norm, own in norms.items()]
    # After the hooks are off: the tokens of a VQ-VAE-2 see other latents.
    for part in images.split(batch_size) if sums else ():
        batch = to_float(part.to(device))
        add("argmax", model.reconstruct(batch, "argmax"), batch)
    return ModelMeasures(
        [own.measures() for own in sums],
        shifts,
        errors["soft"],
        errors["argmax"] if sums else None,
        errors["mean"],
        grids if sums else [],
    )


@contextmanager
def _normalised(model: ImageTokenizer) -> Iterator[dict[nn.BatchNorm2d, list[Tensor]]]:
    """Count, sum and sum of squares of each channel that leaves each normalisation."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    sums: dict[nn.BatchNorm2d, list[Tensor]] = {norm: [] for norm in norms}

    def add(norm: nn.BatchNorm2d, _: Any, output: Tensor) -> None:
        values = output.detach().double().cpu().transpose(0, 1).flatten(1)  # (C, B h w)
        new = [torch.tensor(values.shape[1]), values.sum(dim=1), values.square().sum(dim=1)]
        sums[norm] = list(map(operator.add, sums[norm], new)) if sums[norm] else new

    hooks = [norm.register_forward_hook(add) for norm in norms]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()


def _norm_measures(
    norm: nn.BatchNorm2d, count: Tensor, total: Tensor, squares: Tensor
) -> NormMeasures:
    """Mean and variance from sums of the output."""
    mean = total / count
    variance = (squares / count - mean.square()).clamp_min(0)
    if isinstance(norm, SharedScaleNorm):
        variance = variance.mean().expand(len(mean))
    assert norm.running_var is not None
    return NormMeasures(mean, variance + norm.eps / (norm.running_var.double().cpu() + norm.eps))
