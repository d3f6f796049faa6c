"""A decoder refit to tokens: how much of the gap is habit."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models import ImageTokenizer
from models.tokenizer import size_of
from training.data.feed import to_float


def refit_decoder(
    model: ImageTokenizer,
    images: Tensor,
    *,
    steps: int = 200,
    lr: float = 5e-4,
    batch_size: int = 128,
    seed: int = 0,
    progress: Any = None,
) -> ImageTokenizer:
    """A copy whose decoder has learned to decode the tokens, everything else as it was.

    It tells how much of the gap is the decoder's habit of soft codes, and how much is lost. Adam
    on the mean squared error of the argmax reconstruction, the rate falling as a half cosine.

    Args:
        model: In eval mode.
        images: uint8 (N, C, H, W), of the training split.
        steps: Batches; at least 1.
        lr: First learning rate.
        batch_size: Images of a batch, at most all.
        seed: Of the order of images.
        progress: Wraps the range of steps.

    Raises:
        ValueError: If there are no steps.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    device = next(copied.parameters()).device
    of_codes = {id(p) for level in copied.levels for p in level.parameters()}
    learned = [p for p in copied.parameters() if id(p) not in of_codes]
    # What decoding does not use gets no gradient, and Adam leaves it as it is.
    optimizer = torch.optim.Adam([p.requires_grad_(True) for p in learned], lr=lr)
    order, generator = torch.empty(0, dtype=torch.int64), torch.Generator().manual_seed(seed)
    size = min(batch_size, len(images))
    for step in (progress or iter)(range(steps)):
        if len(order) < size:
            order = torch.randperm(len(images), generator=generator)
        chosen, order = order[:size], order[size:]
        batch = to_float(images[chosen].to(device))
        with torch.no_grad():
            codes = copied.codes(copied.tokens(batch))
        loss = F.mse_loss(copied.decode_codes(codes, size_of(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.step()
    return copied.requires_grad_(False)
