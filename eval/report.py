"""The report of a run; docs/metrics.md defines every figure."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure
from tqdm import tqdm

from training.checkpoint import find_checkpoint, load_checkpoint, load_model
from training.config import TrainConfig
from training.datasets import load_splits
from training.evaluate import evaluate_split, squared_error_sums
from training.trainer import choose_device


def image_sums(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Sums over images of MSE, PSNR and SSIM.

    SSIM of Wang et al., 2004: Gaussian window of 11 pixels and sigma 1.5, range 1, mean over
    channels, borders cropped.

    Args:
        recon: (B, C, H, W) in [0, 1].
        images: (B, C, H, W) in [0, 1].

    Returns:
        ``mse``, ``psnr`` and ``ssim``, float64 scalars.
    """
    # Images of about 1e-8 contrast lose SSIM's variances in single precision.
    ssim = structural_similarity_index_measure(
        recon.double(), images.double(), data_range=1.0, reduction="none"
    )
    assert isinstance(ssim, Tensor)
    return {**squared_error_sums(recon, images), "ssim": ssim.sum()}


def evaluate_run(
    run: Path,
    *,
    data_dir: str | None = None,
    limit_test: int | None = None,
    device: str = "auto",
    batch_size: int = 256,
) -> dict[str, Any]:
    """Figures of a run on its test split, from the checkpoint alone.

    Args:
        run: Run folder (its best.pt) or checkpoint.
        data_dir: Folder of the data; where the training found it by default.
        limit_test: Use only the first N test images; all by default.
        device: As in train.py.
        batch_size: Images at a time.

    Returns:
        The figures, by the names of docs/metrics.md.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    path = find_checkpoint(run)
    state = load_checkpoint(path)
    model = load_model(state, str(path)).to(choose_device(device))
    config = TrainConfig.from_dict(state["config"])
    splits = load_splits(
        config.dataset,
        data_dir or config.data_dir,
        limit_train=1,
        limit_test=limit_test,
        image_size=config.image_size,
    )
    figures = evaluate_split(
        model,
        splits.test,
        batch_size=batch_size,
        image_sums=image_sums,
        progress=lambda parts: tqdm(list(parts), unit="batch", leave=False, disable=None),
    )
    height, width = splits.test.shape[2:]
    with torch.no_grad():
        sample = splits.test[:1].float().to(next(model.parameters()).device) / 255
        tokens = model.encode(sample)[0, 0].numel()
    return {
        "checkpoint": str(path),
        "quantizer": config.quantizer,
        "dataset": splits.name,
        "test_images": len(splits.test),
        "step": state["step"],
        "codebook_size": config.codebook_size,
        "codebook_dim": config.codebook_dim,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_image": tokens,
        **figures,
        **rates(figures, config.codebook_size, tokens, height * width),
        "versions": {name: version(name) for name in ("torch", "torchmetrics")},
    }


def rates(
    figures: dict[str, Any], codebook_size: int, tokens: int, pixels: int
) -> dict[str, float | None]:
    """Bits of the tokens, and how much of L_q is variance; None where there are no tokens.

    Example:
        >>> rates({"perplexity": 4.0, "variance": 1.0, "loss_q": 2.0}, 8, 64, 1024)
        ... # doctest: +NORMALIZE_WHITESPACE
        {'bits_per_token': 3.0, 'entropy_bits_per_token': 2.0, 'bits_per_pixel': 0.1875,
         'variance_share': 0.5}
    """
    if figures["perplexity"] is None:
        return dict.fromkeys(
            ("bits_per_token", "entropy_bits_per_token", "bits_per_pixel", "variance_share")
        )
    bits = math.log2(codebook_size)
    return {
        "bits_per_token": bits,
        "entropy_bits_per_token": math.log2(max(figures["perplexity"], 1.0)),
        "bits_per_pixel": bits * tokens / pixels,
        "variance_share": figures["variance"] / max(figures["loss_q"], 1e-30),
    }


# (label, key, format)
LINES = (
    ("bits per token (log2 K)", "bits_per_token", ".3f"),
    ("bits per token (entropy of use)", "entropy_bits_per_token", ".3f"),
    ("bits per pixel", "bits_per_pixel", ".4f"),
    ("utilization", "utilization", ".1%"),
    ("dead codes", "dead_codes", "d"),
    ("perplexity", "perplexity", ".1f"),
    ("codes per token", "codes_per_token", ".3f"),
    ("V / L_q", "variance_share", ".3f"),
    ("T / T_c", "temperature_ratio", ".5f"),
    ("parameters", "parameters", ",d"),
    ("images per second", "images_per_second", ".0f"),
)


def format_report(figures: dict[str, Any]) -> str:
    """The figures as text, soft and argmax side by side."""
    lines = [
        f"{figures['quantizer']}, K = {figures['codebook_size']}, D = {figures['codebook_dim']}, "
        f"{figures['tokens_per_image']} tokens per image, step {figures['step']}",
        f"{figures['checkpoint']} on {figures['test_images']} test images of {figures['dataset']}",
        "",
        f"{'':34}{'soft':>12}{'argmax':>12}",
    ]
    for label, key, form in (("MSE", "mse", ".5f"), ("PSNR (dB)", "psnr", ".2f"),
                             ("SSIM", "ssim", ".4f")):  # fmt: skip
        cells = (_cell(figures.get(f"{key}_{mode}"), form) for mode in ("soft", "argmax"))
        lines.append(f"{label:34}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append("")
    lines += [f"{label:34}{_cell(figures[key], form):>12}" for label, key, form in LINES]
    lines.append("")
    lines.append("A soft code is a continuous latent: compare argmax with argmax, at equal bits.")
    return "\n".join(lines)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
