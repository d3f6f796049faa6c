"""What each level of a model adds: prefixes, and levels replaced by their mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
    trackers = trackers_of(model)
    batches = list(images.split(batch_size))
    for part in progress(batches):
        tokens = model.split(model.tokens(to_float(part.to(device))))
        for tracker, own in zip(trackers, tokens, strict=True):
            tracker.update(own)
    means = [
        (tracker.counts.to(level.codebook) / tracker.counts.sum()) @ level.codebook
        for level, tracker in zip(model.levels, trackers, strict=True)
    ]
    count = len(model.levels)
    sums = [[0.0, 0.0, 0.0] for _ in range(count)]
    for part in progress(batches):
        batch = to_float(part.to(device))
        # Coded again: tokens kept from the first pass would grow with the number of images.
        codes = model.codes(model.tokens(batch))
        for number in range(count):
            prefix = model.decode_codes(codes[: number + 1], size_of(batch)).clamp(0, 1)
            without = [*codes]
            without[number] = means[number].expand_as(codes[number])
            errors = squared_error_sums(prefix, batch)
            decoded = model.decode_codes(without, size_of(batch)).clamp(0, 1)
            lost = squared_error_sums(decoded, batch)["psnr"]
            for place, value in enumerate((errors["mse"], errors["psnr"], lost)):
                sums[number][place] += float(value) / len(images)
    sizes = [own[0].numel() for own in tokens]
    pixels = images.shape[2] * images.shape[3]
    bits = 0.0
    rows = []
    for number, (mse, psnr, without_psnr) in enumerate(sums):
        bits += sizes[number] * math.log2(model.levels[number].codebook_size)
        rows.append(
            {
                "codebook_size": model.levels[number].codebook_size,
                "tokens_per_image": sizes[number],
                "prefix_bits_per_pixel": bits / pixels,
                "prefix_mse": mse,
                "prefix_psnr": psnr,
                "psnr_drop_without": sums[-1][1] - without_psnr,
            }
        )
    return rows
