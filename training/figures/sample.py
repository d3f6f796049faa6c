"""What a model does with a bounded number of images: errors, and tokens of every level."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models import ImageTokenizer
from models.tokenizer import size_of

from ..data.feed import to_float

# Of the level with the most tokens, so that large images need a bounded memory too.
MAX_TOKENS = 2**17
# Even so many tokens or not: fewer images say nothing.
MIN_IMAGES = 12
# Pixels to have in the network at once.
BATCH_PIXELS = 2**18


class LevelSample(NamedTuple):
    """Tokens of one level, on the CPU.

    Attributes:
        indices: (B, h, w) int64, the tokens.
        prototypes: (K, D) float32.
        side: Pixels along the side of a token's cell, the square of the image in its place.
    """

    indices: Tensor
    prototypes: Tensor
    side: int

    @property
    def counts(self) -> Tensor:
        """(K,) int64, tokens of each code in these images."""
        return torch.bincount(self.indices.flatten(), minlength=len(self.prototypes))


class Sample(NamedTuple):
    """Images and what the model makes of them, on the CPU.

    Attributes:
        images: (B, C, H, W) uint8.
        errors: (B,) float64, MSE of each image's tokens; of the output of a model that has none.
        levels: Coarse first; none for a model without tokens.
    """

    images: Tensor
    errors: Tensor
    levels: tuple[LevelSample, ...]


def sample_codebook(model: ImageTokenizer, images: Tensor, *, max_images: int = 256) -> Sample:
    """Encode and decode a bounded number of images that lie evenly in a data set.

    Args:
        model: In any mode; evaluated in eval mode.
        images: uint8 (N, C, H, W), N at least 1.
        max_images: At most so many images are used, fewer where they have many tokens.

    Returns:
        A :class:`Sample`.

    Raises:
        ValueError: If there are no images.

    Example:
        >>> from models import build_model
        >>> model = build_model({"hidden_channels": 8, "residual_channels": 8, "codebook_size": 16})
        >>> sample = sample_codebook(model, torch.zeros(40, 3, 32, 32, dtype=torch.uint8))
        >>> tuple(sample.levels[0].indices.shape), sample.levels[0].side
        ((40, 8, 8), 4)
    """
    if not len(images):
        raise ValueError("pictures need at least one image, got none")
    height, width = size_of(images)
    most = max(rows * columns for rows, columns in model.grids(height, width))
    count = max(MIN_IMAGES, min(max_images, MAX_TOKENS // most))
    images = images[evenly(len(images), count)].cpu()
    device = next(model.parameters()).device
    errors: list[Tensor] = []
    parts: list[list[Tensor]] = []
    with model.evaluating():
        for part in images.split(max(1, BATCH_PIXELS // (height * width))):
            batch = to_float(part.to(device))
            output = model(batch, hard=model.has_tokens)
            square = (output.recon.float().clamp(0, 1) - batch).square()
            errors.append(square.flatten(1).mean(dim=1).cpu().double())
            # The grids are the images': a codebook sees all places of an image as one row.
            parts.append([out.indices.cpu() for out in output.code.levels])
    levels = []
    for number, level in enumerate(model.levels if model.has_tokens else ()):
        indices = torch.cat([own[number] for own in parts])
        prototypes = level.codebook.detach().float().cpu()
        levels.append(LevelSample(indices, prototypes, cell_side(model, number)))
    return Sample(images, torch.cat(errors), tuple(levels))


def evenly(total: int, count: int) -> Tensor:
    """At most ``count`` of the numbers 0 to ``total - 1``, ascending and evenly spaced.

    Example:
        >>> evenly(10, 4).tolist(), evenly(2, 4).tolist()
        ([0, 3, 6, 9], [0, 1])
    """
    steps = min(total, count) - 1
    if steps < 1:
        return torch.zeros(steps + 1, dtype=torch.int64)
    # Whole numbers: a half, which rounding may move to either side, always goes up.
    return (2 * torch.arange(steps + 1) * (total - 1) + steps) // (2 * steps)


def cell_side(model: ImageTokenizer, level: int) -> int:
    """Pixels along the side of the square of an image that a token stands in the place of."""
    # A grid is rounded up where blocks of tokens do not fill the image; this one is not.
    large = 5040 * model.stride
    return large // model.grids(large, large)[level][0]
