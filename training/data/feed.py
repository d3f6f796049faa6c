"""ImageFeed: what a run draws from its training images, each draw a function of seed and step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from softvq._internal.distributed import world_size

from .datasets import augment, batches, to_float
from ..distributed import rank

SAMPLE_BATCH = 256


class ImageFeed:
    """Batches and samples of training images.

    Nothing is drawn from a generator that lives on, so that none has to be saved for a run to
    resume.

    Args:
        images: uint8 (N, C, H, W), on any device: CIFAR-10 is 150 MB, and no worker has to feed it.
        batch_size: Images of a batch, those of all processes together.
        seed: Of all draws.
        augment: Whether batches are flipped and shifted.
    """

    def __init__(self, images: Tensor, batch_size: int, seed: int, augment: bool) -> None:
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.steps_per_epoch = len(images) // batch_size

    def epoch(self, epoch: int, step: int) -> Iterator[Tensor]:
        """This process's share of the batches of an epoch, from a step of the run on.

        Args:
            epoch: From 0.
            step: Steps of the run that are done.
        """
        order = batches(len(self.images), self.batch_size, seeded(self.seed, epoch, 0))
        for number, indices in enumerate(order, start=epoch * self.steps_per_epoch):
            if number < step:
                continue
            # The whole batch is augmented, so that what an image becomes depends on no process.
            images = self.images[indices.to(self.images.device)]
            if self.augment:
                images = augment(images, seeded(self.seed, number, 1))
            images = images[rank() :: world_size()]
            yield to_float(images).contiguous(memory_format=torch.channels_last)

    def sample(self, count: int, step: int) -> Iterator[Tensor]:
        """Batches of images as they are, for statistics of the latents; alike in all processes.

        Args:
            count: Number of batches.
            step: Steps of the run that are done.
        """
        generator = seeded(self.seed, step, 2)
        size = min(len(self.images), SAMPLE_BATCH)
        picks = [torch.randperm(len(self.images), generator=generator)[:size] for _ in range(count)]
        return (to_float(self.images[pick.to(self.images.device)]) for pick in picks)


def seeded(seed: int, count: int, purpose: int) -> torch.Generator:
    """A CPU generator for one use."""
    return torch.Generator().manual_seed(draw_seed(seed, count, purpose))


def draw_seed(seed: int, count: int, purpose: int) -> int:
    """A seed for one use: 0 for order, 1 augmentation, 2 samples, 3 what the model draws."""
    return (seed * 1_000_003 + count) * 4 + purpose
