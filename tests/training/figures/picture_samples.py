"""Small models, images and tokens to make pictures of."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from models import build_model
from training.figures import LevelSample

LEVELS = {
    "one": {},
    "residual": {"level_pools": [1, 1]},
    "pyramid": {"level_pools": [4, 2, 1], "level_sizes": [4, 8, 16]},
    "uneven pyramid": {"level_pools": [3, 1]},
    "vqvae2": {"architecture": "vqvae2"},
    "hard": {"quantizer": "vq-ema"},
    "peer": {"quantizer": "fsq"},
}


def model_of(**config):
    torch.manual_seed(0)
    small = {"hidden_channels": 8, "residual_channels": 8, "codebook_size": 16, "codebook_dim": 4}
    return build_model(small | config)


def images_of(count=20, channels=3, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (count, channels, size // 4, size // 4), generator=generator)
    return noise.byte().repeat_interleave(4, 2).repeat_interleave(4, 3)


def level_of(indices, codebook_size, side=4):
    generator = torch.Generator().manual_seed(0)
    return LevelSample(indices, torch.randn(codebook_size, 2, generator=generator), side)


def spread(total: int, count: int) -> list[int]:
    """``count`` of the numbers below ``total`` at equal distances, halves rounded up."""
    gap = Fraction(total - 1, max(1, count - 1))
    return [math.floor(number * gap + Fraction(1, 2)) for number in range(count)]
