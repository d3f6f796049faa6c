"""What each level of a model adds: prefixes, and levels replaced by their mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from models import ImageTokenizer
from models.tokenizer import size_of
from training.data.feed import to_float
from training.metrics import squared_error_sums, trackers_of


@torch.no_grad()
def level_ablation(
    model: ImageTokenizer,
    images: Tensor,
    *,
    batch_size: int = 256,
    progress: Callable[[list[Tensor]], Iterable[Tensor]] = iter,
) -> list[dict[str, Any]]:
    """Quality of the tokens of every prefix of the levels, and without every level.

    A level is taken away by putting the mean of its codes over these images in the place of each.

    Args:
        model: In eval mode, of two levels or more.
        images: uint8 (N, C, H, W).
        batch_size: Images at a time.
        progress: Wraps the batches of each of two passes.

    Returns:
        For each level, coarse first: ``tokens_per_image``, ``prefix_bits_per_pixel`` (log2 K),
        ``prefix_mse`` and ``prefix_psnr`` (of it and the levels before), and
        ``psnr_drop_without``, in dB against all levels.
    """
    device = next(model.parameters()).device
    batches = list(images.split(batch_size))
    means = _mean_codes(model, (part.to(device) for part in progress(batches)))
    sums = torch.zeros(len(means), 3, dtype=torch.float64)
    for part in progress(batches):
        batch = to_float(part.to(device))
        # Coded again: tokens kept from the first pass would grow with the number of images.
        codes = model.codes(model.tokens(batch))

        def errors(given: list[Tensor], batch: Tensor = batch) -> dict[str, Tensor]:
            return squared_error_sums(model.decode_codes(given, size_of(batch)).clamp(0, 1), batch)

        for number, mean in enumerate(means):
            prefix = errors(codes[: number + 1])
            without = [*codes]
            without[number] = mean.expand_as(codes[number])
            row = prefix["mse"], prefix["psnr"], errors(without)["psnr"]
            sums[number] += torch.stack(row).cpu()
    return _rows(model, images, (sums / len(images)).T.tolist())


def _rows(model: ImageTokenizer, images: Tensor, means: list[list[float]]) -> list[dict[str, Any]]:
    """The levels' figures from MSE and PSNR of each prefix, and PSNR without each level."""
    mse, psnr, without_psnr = means
    height, width = images.shape[2:]
    tokens = [rows * columns for rows, columns in model.grids(height, width)]
    sizes = [level.codebook_size for level in model.levels]
    bits = accumulate(n * math.log2(size) for n, size in zip(tokens, sizes, strict=True))
    return [
        {
            "codebook_size": sizes[number],
            "tokens_per_image": tokens[number],
            "prefix_bits_per_pixel": so_far / (height * width),
            "prefix_mse": mse[number],
            "prefix_psnr": psnr[number],
            "psnr_drop_without": psnr[-1] - without_psnr[number],
        }
        for number, so_far in enumerate(bits)
    ]


def _mean_codes(model: ImageTokenizer, batches: Iterable[Tensor]) -> list[Tensor]:
    """For each level (D,), the mean of the codes of images."""
    trackers = trackers_of(model)
    for part in batches:
        for tracker, own in zip(trackers, model.split(model.tokens(to_float(part))), strict=True):
            tracker.update(own)
    return [
        (tracker.counts.to(level.codebook) / tracker.counts.sum()) @ level.codebook
        for level, tracker in zip(model.levels, trackers, strict=True)
    ]
