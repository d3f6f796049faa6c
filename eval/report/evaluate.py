"""The report of a run; docs/metrics.md defines every figure."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.report.frechet import FrechetDistance
from eval.report.gap import GapMeter
from eval.report.judges import Judges, ReadyJudges
from eval.report.levels import level_ablation
from eval.report.metrics import METRICS, definitions, image_sums, with_perceptual
from eval.report.refit import refit_decoder
from eval.run import Run, open_run, splits_of
from models import ImageTokenizer
from training.data.feed import to_float
from training.metrics import Observer, evaluate_split, squared_error_sums
from training.run_log import finite
from training.weights import WeightsError

MODES = ("soft", "argmax")
PACKAGES = ("softvq", "torch", "scikit-image", "torchmetrics")


def evaluate_run(
    run: Path,
    *,
    data_dir: str | None = None,
    limit_test: int | None = None,
    device: str = "auto",
    batch_size: int = 256,
    refit_steps: int = 0,
    judges: Judges | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Figures of a run on its test split, from the checkpoint alone.

    Args:
        run: Run folder (its best.pt) or checkpoint.
        data_dir: Folder of the data; where the training found it by default.
        limit_test: Use only the first N test images; all by default.
        device: As in train.py.
        batch_size: Images at a time.
        refit_steps: Steps to refit a copy of the decoder to the tokens.
        judges: Networks to judge with; none by default. The figures name those that cannot be had.
        observers: Called with every batch of test images.

    Returns:
        The figures, by the names of docs/metrics.md.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    opened = open_run(run, data_dir=data_dir, limit_test=limit_test, device=device)
    model, images = opened.model, opened.test_images
    sample = to_float(images[:1].to(next(model.parameters()).device))
    ready = (judges or Judges()).prepare(sample)
    gap = GapMeter(model, _refit(opened, data_dir, refit_steps) if refit_steps else None)
    figures = evaluate_split(
        model,
        images,
        batch_size=batch_size,
        image_sums=with_perceptual(image_sums, ready.perceptual),
        decoders=gap.decoders,
        decoder_sums=with_perceptual(squared_error_sums, ready.perceptual),
        observers=[gap.observe, *map(_observer, ready.distances.values()), *observers],
        progress=_bar("test images", "batch"),
    )
    if len(model.levels) > 1:
        bar = _bar("levels", "batch")
        added = level_ablation(model, images, batch_size=batch_size, progress=bar)
        figures["levels"] = list(map(operator.or_, added, figures["levels"]))
    add_global_psnr(figures)
    return _judged(opened, figures, gap, ready) | {"refit_steps": refit_steps}


def _judged(
    opened: Run, figures: dict[str, Any], gap: GapMeter, ready: ReadyJudges
) -> dict[str, Any]:
    """The report: what was judged, the figures, and what they mean."""
    model, config, unavailable = opened.model, opened.config, [*ready.unavailable]
    lpips = None if ready.perceptual is None else ready.perceptual.definition
    height, width = opened.test_images.shape[2:]
    tokens = [rows * columns for rows, columns in model.grids(height, width)]
    sizes = [level.codebook_size for level in model.levels]
    tokenless = not model.has_tokens
    judged = {
        "checkpoint": str(opened.path),
        "quantizer": config.quantizer.name,
        "dataset": opened.dataset,
        "test_images": len(opened.test_images),
        "step": opened.state["step"],
        "codebook_size": None if tokenless else sizes if len(sizes) > 1 else sizes[0],
        "codebook_dim": config.model.codebook_dim,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_image": None if tokenless else sum(tokens),
        **dict.fromkeys(f"{name}_{mode}" for name in METRICS for mode in MODES),
        **{name: value for name, value in figures.items() if name not in gap.extra},
        **rates(figures, config.model.codebook_sizes, tokens, height * width),
        "gap": None if tokenless else gap.rows(figures, tokens),
        "gap_levels": gap.level_figures(),
        **_distances(ready.distances, len(opened.test_images), unavailable),
        "definitions": definitions(ready.weights, lpips),
        "weights": ready.weights,
        "unavailable": unavailable,
        "versions": {name: version(name) for name in PACKAGES},
    }
    # A diverged run has figures that JSON has no numbers for.
    found: dict[str, Any] = finite(judged)
    return found


class ImageErrors:
    """An observer that keeps the error of each image: four bytes of it.

    Example:
        >>> import torch
        >>> errors, recon = ImageErrors(), torch.tensor([0.0, 0.5]).view(2, 1, 1, 1)
        >>> errors(torch.zeros(2, 1, 1, 1), None, {"soft": recon})
        >>> errors.values().tolist()
        [0.0, 0.25]
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def __call__(self, images: Tensor, code: object, recons: Mapping[str, Tensor]) -> None:
        """Count a batch; see :data:`training.metrics.Observer`."""
        recon = recons.get("argmax", recons["soft"])
        self._parts.append((recon - images).square().flatten(1).mean(dim=1).float().cpu())

    def values(self) -> Tensor:
        """(N,), MSE of each image, of its tokens where it has any."""
        return torch.cat(self._parts)


def _refit(opened: Run, data_dir: str | None, steps: int) -> ImageTokenizer | None:
    """A copy with a decoder refit to the tokens of the training images; None without tokens."""
    if not opened.model.has_tokens:
        return None
    config = opened.config
    train = splits_of(config, data_dir, limit_train=config.data.limit_train, limit_test=1).train
    return refit_decoder(
        opened.model,
        train,
        steps=steps,
        batch_size=config.optimizer.batch_size,
        progress=_bar("refitting the decoder", "step"),
    )


def _bar(what: str, unit: str) -> Any:
    """A bar over the items of an iterable, on a terminal."""
    return lambda items: tqdm(list(items), desc=what, unit=unit, leave=False, disable=None)


def _observer(distance: FrechetDistance) -> Observer:
    """Soft and argmax reconstructions, counted by a Fréchet distance."""
    return lambda images, code, recons: distance.update(
        images, {mode: recons[mode] for mode in MODES if mode in recons}
    )


def _distances(
    distances: dict[str, FrechetDistance], images: int, unavailable: list[str]
) -> dict[str, dict[str, float]]:
    """Fréchet distances by name, each with the number of images; failures become lines."""
    figures = {}
    for name, distance in distances.items():
        try:
            figures[name] = distance.compute() | {"images": images}
        except WeightsError as error:
            unavailable.append(f"{name}: {error}")
    return figures


def add_global_psnr(figures: dict[str, Any]) -> None:
    """Add the PSNR of the mean MSE beside every MSE.

    Example:
        >>> figures = {"mse_soft": 0.01, "mse_argmax": None}
        >>> add_global_psnr(figures)
        >>> figures["psnr_global_soft"], figures["psnr_global_argmax"]
        (20.0, None)
    """
    for name in [name for name in figures if name.startswith("mse_")]:
        mse = figures[name]
        psnr = None if mse is None else -10 * math.log10(max(mse, 1e-12))
        figures[name.replace("mse_", "psnr_global_")] = psnr


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
