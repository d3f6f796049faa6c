"""Figures of a split: soft and argmax reconstruction, decomposition, usage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from models import VQVAE, IdentityCodebook
from softvq import DDCLCodebook, UtilizationTracker
from softvq.distributed import world_size

from .datasets import to_float
from .processes import rank, sum_over_processes

ImageSums = Callable[[Tensor, Tensor], dict[str, Tensor]]


def squared_error_sums(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Sums over images of the MSE and the PSNR of each image.

    Args:
        recon: (B, C, H, W) in [0, 1].
        images: (B, C, H, W) in [0, 1].

    Returns:
        ``mse`` and ``psnr``, float64 scalars; PSNR in dB for a range of 1, the mean over images
        is then the mean of the images' own PSNR.
    """
    mse = (recon - images).double().square().flatten(1).mean(dim=1)  # (B,)
    return {"mse": mse.sum(), "psnr": -10 * mse.clamp_min(1e-12).log10().sum()}


@torch.no_grad()
def evaluate_split(
    model: VQVAE,
    images: Tensor,
    *,
    batch_size: int = 256,
    image_sums: ImageSums = squared_error_sums,
    progress: Callable[[Iterable[Tensor]], Iterable[Tensor]] | None = None,
) -> dict[str, Any]:
    """Evaluate a model on uint8 images, soft and argmax side by side, shared out among processes.

    Args:
        model: Put into eval mode for the time of the call.
        images: uint8 (N, C, H, W).
        batch_size: Images at a time.
        image_sums: Sums of per-image figures of a batch; each comes back as ``<name>_soft`` and
            ``<name>_argmax``, divided by N.
        progress: Wraps the iterable of batches.

    Returns:
        The figures, as floats; argmax and usage ones are None for an identity codebook.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    tokenless = isinstance(model.codebook, IdentityCodebook)
    tracker = UtilizationTracker(model.codebook.codebook_size).to(device)
    sums: dict[str, float] = {}
    seconds = 0.0
    parts: Iterable[Tensor] = images[rank() :: world_size()].split(batch_size)
    for part in progress(parts) if progress else parts:
        batch = to_float(part.to(device))
        start = time.perf_counter()
        recon, code = model(batch)
        recons = {"soft": recon.clamp(0, 1)}
        if not tokenless:
            recons["argmax"] = model.decode_tokens(code.indices)
            tracker.update(code.indices)
        seconds += time.perf_counter() - start
        figures = {
            f"{name}_{mode}": value
            for mode, recon in recons.items()
            for name, value in image_sums(recon, batch).items()
        }
        figures |= {k: v.double() * len(batch) for k, v in code_figures(code).items()}
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    means = {name: value / len(images) for name, value in sum_over_processes(sums).items()}
    model.train(was_training)
    return {
        **finish_code_figures(means, tracker, tokenless),
        **({"mse_argmax": None, "psnr_argmax": None} if tokenless else {}),
        **temperature_figures(model),
        "images_per_second": len(images) / seconds,
    }


def code_figures(code: Any) -> dict[str, Tensor]:
    """What a codebook's output says, as means that may be averaged over equal batches."""
    return {
        **{f"{name}": value.detach() for name, value in code.losses.items()},
        "entropy": code.codes_per_token.log(),
    }


def finish_code_figures(
    means: dict[str, float], tracker: UtilizationTracker, tokenless: bool
) -> dict[str, Any]:
    """Means of :func:`code_figures`, with the entropy turned into codes, and the usage."""
    figures: dict[str, Any] = dict(means)
    codes = torch.tensor(figures.pop("entropy")).exp().item()
    usage = tracker.compute()
    used = {
        "utilization": usage.utilization,
        "dead_codes": len(usage.dead),
        "perplexity": usage.perplexity,
        "codes_per_token": codes,
    }
    return figures | (dict.fromkeys(used) if tokenless else used)


def temperature_figures(model: VQVAE) -> dict[str, float | None]:
    """Temperature and T / T_c; None for a codebook that has none."""
    codebook = model.codebook
    if not isinstance(codebook, DDCLCodebook):
        return {"temperature": None, "temperature_ratio": None}
    return {
        "temperature": codebook.temperature.item(),
        "temperature_ratio": codebook.temperature_ratio.item(),
    }
