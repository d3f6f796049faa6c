"""Figures of a split: soft and argmax reconstruction, decomposition, usage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from models import ImageTokenizer
from models.tokenizer import size_of
from softvq import (
    Codebook,
    CodebookOutput,
    StackOutput,
    UtilizationTracker,
)
from softvq._internal.distributed import widest_dtype, world_size

from .data.datasets import to_float
from .distributed import rank, sum_over_processes

ImageSums = Callable[[Tensor, Tensor], dict[str, Tensor]]
# Images (B, C, H, W) and the tokens of each level to a reconstruction in [0, 1].
Decoder = Callable[[Tensor, list[Tensor]], Tensor]
# Images, what the codebooks returned, and the reconstructions by name.
Observer = Callable[[Tensor, CodebookOutput | StackOutput, Mapping[str, Tensor]], None]


def squared_error_sums(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Sums over images of the MSE and the PSNR of each image.

    Args:
        recon: (B, C, H, W) in [0, 1].
        images: (B, C, H, W) in [0, 1].

    Returns:
        ``mse`` and ``psnr``, float64 scalars; PSNR in dB for a range of 1, the mean over images
        is then the mean of the images' own PSNR.
    """
    mse = (recon - images).to(widest_dtype(images.device)).square().flatten(1).mean(dim=1)  # (B,)
    return {"mse": mse.sum(), "psnr": -10 * mse.clamp_min(1e-12).log10().sum()}


@torch.no_grad()
def evaluate_split(
    model: ImageTokenizer,
    images: Tensor,
    *,
    batch_size: int = 256,
    image_sums: ImageSums = squared_error_sums,
    decoders: Mapping[str, Decoder] | None = None,
    decoder_sums: ImageSums = squared_error_sums,
    observers: Iterable[Observer] = (),
    progress: Callable[[Iterable[Tensor]], Iterable[Tensor]] | None = None,
) -> dict[str, Any]:
    """Evaluate a model on uint8 images, soft and argmax side by side, shared out among processes.

    Args:
        model: Put into eval mode for the time of the call.
        images: uint8 (N, C, H, W).
        batch_size: Images at a time.
        image_sums: Sums of per-image figures of a batch; each comes back as ``<name>_soft`` and
            ``<name>_argmax``, divided by N.
        decoders: Further ways to decode a model that has tokens.
        decoder_sums: As ``image_sums``, of those; they come back as ``<name>_<decoder>``.
        observers: Called with every batch.
        progress: Wraps the iterable of batches.

    Returns:
        The figures, as floats; argmax and usage ones are None for an identity codebook. The usage
        is that of the tokens. With several levels, as :func:`finish_code_figures` says.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    tokenless = is_tokenless(model)
    trackers = trackers_of(model)
    sums: dict[str, float] = {}
    seconds = 0.0
    parts: Iterable[Tensor] = images[rank() :: world_size()].split(batch_size)
    for part in progress(parts) if progress else parts:
        batch = to_float(part.to(device))
        start = time.perf_counter()
        recon, code = model(batch)
        recons = {"soft": recon.clamp(0, 1)}
        if not tokenless:
            # Levels after the first code what the tokens, not the soft codes, have left over.
            tokens = code.indices if len(model.levels) == 1 else model.tokens(batch)
            recons["argmax"] = model.decode_tokens(tokens, size_of(batch))
            split = model.split(tokens)
            for tracker, own in zip(trackers, split, strict=True):
                tracker.update(own)
        seconds += time.perf_counter() - start
        figures = _named_sums(image_sums, recons, batch)
        if decoders and not tokenless:
            recons |= {name: decode(batch, split) for name, decode in decoders.items()}
            further = {name: recons[name] for name in decoders}
            figures |= _named_sums(decoder_sums, further, batch)
        for observe in observers:
            observe(batch, code, recons)
        figures |= {k: v * len(batch) for k, v in code_figures(code).items()}
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    means = {name: value / len(images) for name, value in sum_over_processes(sums).items()}
    model.train(was_training)
    return {
        **finish_code_figures(means, trackers, model),
        **({"mse_argmax": None, "psnr_argmax": None} if tokenless else {}),
        "images_per_second": len(images) / seconds,
    }


def _named_sums(sums: ImageSums, recons: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}_{mode}": value
        for mode, recon in recons.items()
        for name, value in sums(recon, images).items()
    }


def is_tokenless(model: ImageTokenizer) -> bool:
    """Whether the model has no bottleneck, so no tokens."""
    return not model.has_tokens


def trackers_of(model: ImageTokenizer) -> list[UtilizationTracker]:
    """A fresh tracker for each level, on the model's device."""
    device = next(model.parameters()).device
    return [UtilizationTracker(level.codebook_size).to(device) for level in model.levels]


def code_figures(code: CodebookOutput | StackOutput) -> dict[str, Tensor]:
    """What codebooks' outputs say, as means that may be averaged over equal batches.

    Returns:
        ``"<level>/<name>"``, scalars; :func:`finish_code_figures` takes their means. Each is
        weighted by the share of tokens that the level saw, ``"<level>/weight"``.
    """
    figures = {}
    for number, out in enumerate(code.levels):
        weight = (out.indices >= 0).float().mean()
        figures[f"{number}/weight"] = weight
        for name, value in {**out.losses, "entropy": out.codes_per_token.log()}.items():
            figures[f"{number}/{name}"] = value.detach() * weight
    return figures


def finish_code_figures(
    means: dict[str, float], trackers: list[UtilizationTracker], model: ImageTokenizer
) -> dict[str, Any]:
    """Means of :func:`code_figures`, entropies turned into codes, with usage and temperatures.

    Args:
        means: Those of :func:`code_figures`, and others, which are kept.
        trackers: One for each level, which has counted its indices.
        model: For the temperatures.

    Returns:
        The figures. Several levels have a list of dicts, ``levels``, coarse first, and are summed
        up by the sum of their losses and dead codes and by the worst of all else: the lowest
        utilization and perplexity, the highest temperatures and codes per token.
    """
    figures: dict[str, Any] = {k: v for k, v in means.items() if "/" not in k}
    levels = []
    for number, (level, tracker) in enumerate(zip(model.levels, trackers, strict=True)):
        prefix = f"{number}/"
        own: dict[str, Any] = {
            key.removeprefix(prefix): value
            for key, value in means.items()
            if key.startswith(prefix)
        }
        weight = own.pop("weight")
        own = {name: value / weight if weight else 0.0 for name, value in own.items()}
        own |= usage_figures(math.exp(own.pop("entropy")), tracker, is_tokenless(model))
        levels.append(own | temperature_figures(level))
    if len(levels) == 1:
        return figures | levels[0]
    return figures | summed_up(levels) | {"levels": levels}


def usage_figures(codes: float, tracker: UtilizationTracker, tokenless: bool) -> dict[str, Any]:
    """Usage since the tracker's last reset; None for an identity codebook."""
    usage = tracker.compute()
    figures = {
        "utilization": usage.utilization,
        "dead_codes": len(usage.dead),
        "perplexity": usage.perplexity,
        "codes_per_token": codes,
    }
    return dict.fromkeys(figures) if tokenless else figures


LOWEST = ("utilization", "perplexity")
HIGHEST = ("codes_per_token", "temperature", "temperature_ratio")


def summed_up(levels: list[dict[str, Any]]) -> dict[str, Any]:
    """One figure for all levels: the worst, or the sum; see :func:`finish_code_figures`.

    Example:
        >>> summed_up([{"loss_q": 1.0, "perplexity": 9.0}, {"loss_q": 2.0, "perplexity": 5.0}])
        {'loss_q': 3.0, 'perplexity': 5.0}
    """

    def one(name: str, values: list[Any]) -> Any:
        if any(value is None for value in values):
            return None
        return (min if name in LOWEST else max if name in HIGHEST else sum)(values)

    return {name: one(name, [level[name] for level in levels]) for name in levels[0]}


def temperature_figures(level: Codebook) -> dict[str, float | None]:
    """Temperature and T / T_c; None for a codebook that has none."""
    return level.temperature_info()
