"""The report of a run; docs/metrics.md defines every figure."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from training.datasets import to_float
from training.evaluate import evaluate_split, squared_error_sums
from training.run_log import width_of

from .levels import level_ablation
from .run import open_run

SSIM_WINDOW = 11


def image_sums(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Sums over images of MSE, PSNR and SSIM.

    Args:
        recon: (B, C, H, W) in [0, 1].
        images: (B, C, H, W) in [0, 1].

    Returns:
        ``mse``, ``psnr`` and ``ssim``, float64 scalars; no ``ssim`` of images that are smaller
        than its window.
    """
    sums = squared_error_sums(recon, images)
    if min(images.shape[2:]) >= SSIM_WINDOW:
        sums["ssim"] = structural_similarity(recon, images).sum()
    return sums


def structural_similarity(recon: Tensor, images: Tensor) -> Tensor:
    """SSIM of each image: Wang et al., 2004, https://doi.org/10.1109/TIP.2003.819861.

    Gaussian window of 11 pixels and sigma 1.5, range 1, K1 = 0.01, K2 = 0.03, mean over channels
    and over the places where the whole window lies in the image. By scikit-image: torchmetrics
    counts the borders too, and differs by about 1e-3.

    Args:
        recon: (B, C, H, W) in [0, 1], H and W at least 11.
        images: (B, C, H, W) in [0, 1].

    Returns:
        (B,), float64.

    Example:
        >>> structural_similarity(torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 16, 16)).tolist()
        [1.0, 1.0]
    """
    from skimage.metrics import structural_similarity as similarity

    # Single precision loses the variances of images of little contrast.
    pairs = zip(recon.double().cpu().numpy(), images.double().cpu().numpy(), strict=True)
    values = [
        similarity(
            a,
            b,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=0,
        )
        for a, b in pairs
    ]
    return torch.tensor(values, dtype=torch.float64)


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
    path, state, config, model, dataset, images = open_run(
        run, data_dir=data_dir, limit_test=limit_test, device=device
    )
    figures = evaluate_split(
        model,
        images,
        batch_size=batch_size,
        image_sums=image_sums,
        progress=lambda parts: tqdm(list(parts), unit="batch", leave=False, disable=None),
    )
    height, width = images.shape[2:]
    with torch.no_grad():
        sample = to_float(images[:1].to(next(model.parameters()).device))
        tokens = [part.numel() for part in model.split(model.tokens(sample))]
    if len(tokens) > 1:
        ablation = level_ablation(model, images, batch_size=batch_size)
        levels = zip(ablation, figures["levels"], strict=True)
        figures["levels"] = [added | measured for added, measured in levels]
    return {
        "checkpoint": str(path),
        "quantizer": config.quantizer,
        "dataset": dataset,
        "test_images": len(images),
        "step": state["step"],
        "codebook_size": [level.codebook_size for level in model.levels]
        if len(tokens) > 1
        else config.codebook_size,
        "codebook_dim": config.codebook_dim,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_image": sum(tokens),
        "ssim_soft": None,
        "ssim_argmax": None,
        **figures,
        **rates(figures, config.codebook_sizes, tokens, height * width),
        "versions": {
            "torch": str(torch.__version__),
            "scikit-image": version("scikit-image"),
        },
    }


def rates(
    figures: dict[str, Any], codebook_sizes: list[int], tokens: list[int], pixels: int
) -> dict[str, float | None]:
    """Bits of the tokens, and how much of L_q is variance; None where there are no tokens.

    Args:
        figures: Those of a split.
        codebook_sizes: K of each level.
        tokens: Tokens of an image on each level.
        pixels: Of an image.

    Example:
        >>> rates({"perplexity": 4.0, "variance": 1.0, "loss_q": 2.0}, [8], [64], 1024)
        ... # doctest: +NORMALIZE_WHITESPACE
        {'bits_per_token': 3.0, 'entropy_bits_per_token': 2.0, 'bits_per_pixel': 0.1875,
         'variance_share': 0.5}
    """
    if figures["perplexity"] is None:
        return dict.fromkeys(
            ("bits_per_token", "entropy_bits_per_token", "bits_per_pixel", "variance_share")
        )
    perplexities = [level["perplexity"] for level in figures.get("levels", [figures])]
    bits = sum(n * math.log2(size) for n, size in zip(tokens, codebook_sizes, strict=True))
    entropy = sum(n * math.log2(max(p, 1.0)) for n, p in zip(tokens, perplexities, strict=True))
    return {
        "bits_per_token": bits / sum(tokens),
        "entropy_bits_per_token": entropy / sum(tokens),
        "bits_per_pixel": bits / pixels,
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
    sizes = figures["codebook_size"]
    sizes = " + ".join(map(str, sizes)) if isinstance(sizes, list) else sizes
    lines = [
        f"{figures['quantizer']}, K = {sizes}, D = {figures['codebook_dim']}, "
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
    if "levels" in figures:
        lines += ["", *format_levels(figures["levels"])]
    lines.append("")
    lines.append("A soft code is a continuous latent: compare argmax with argmax, at equal bits.")
    return "\n".join(lines)


# (heading, key, format)
LEVEL_COLUMNS = (
    ("K", "codebook_size", "6d"),
    ("tokens", "tokens_per_image", "6d"),
    ("used", "utilization", "6.1%"),
    ("perpl.", "perplexity", "7.1f"),
    ("codes/token", "codes_per_token", "11.3f"),
    ("T/T_c", "temperature_ratio", "7.4f"),
    ("PSNR so far", "prefix_psnr", "11.2f"),
    ("bpp so far", "prefix_bits_per_pixel", "10.4f"),
    ("dB lost without", "psnr_drop_without", "15.2f"),
)


def format_levels(levels: list[dict[str, Any]]) -> list[str]:
    """A table: a line for each level, coarse first."""
    heads = [head.rjust(width_of(form)) for head, _, form in LEVEL_COLUMNS]
    lines = [" ".join(["level", *heads])]
    for number, level in enumerate(levels, start=1):
        cells = [_cell(level[key], form).rjust(width_of(form)) for _, key, form in LEVEL_COLUMNS]
        lines.append(" ".join([f"{number:5d}", *cells]))
    return lines


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
