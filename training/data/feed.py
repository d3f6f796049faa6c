"""ImageFeed: what a run draws from its training images, each draw a function of seed and step.

Shapes: N images, B of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

SAMPLE_BATCH = 256


def to_float(images: Tensor) -> Tensor:
    """Map uint8 to float32 in [0, 1], any shape.

    Example:
        >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images are {images.dtype}: expected torch.uint8, not yet scaled")
    return images.to(torch.float32) / 255


class ImageFeed:
    """Batches and samples of training images.

    Nothing is drawn from a generator that lives on, so that none has to be saved for a run to
    resume.

    Args:
        images: uint8 (N, C, H, W), on any device: CIFAR-10 is 150 MB, and no worker has to feed it.
        batch_size: Number of images in a batch, those of all processes together.
        seed: Seed of all draws.
        augment: Whether batches are flipped and shifted.
        share: Number of this process, from 0, and number of processes that share each batch.
    """

    def __init__(
        self,
        images: Tensor,
        batch_size: int,
        *,
        seed: int,
        augment: bool,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.rank, self.processes = share
        self.steps_per_epoch = len(images) // batch_size

    def epoch(self, epoch: int, step: int) -> Iterator[Tensor]:
        """This process's share of the batches of an epoch, from a step of the run on.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of steps of the run that are done.
        """
        order = batches(len(self.images), self.batch_size, self._generator(epoch, 0))
        for number, indices in enumerate(order, start=epoch * self.steps_per_epoch):
            if number < step:
                continue
            # The whole batch is augmented, so that what an image becomes depends on no process.
            images = self.images[indices.to(self.images.device)]
            if self.augment:
                images = augment(images, self._generator(number, 1))
            images = images[self.rank :: self.processes]
            yield to_float(images).contiguous(memory_format=torch.channels_last)

    def sample(self, count: int, step: int) -> Iterator[Tensor]:
        """Batches of images as they are, for statistics of the latents; alike in all processes.

        Args:
            count: Number of batches.
            step: Number of steps of the run that are done.
        """
        generator = self._generator(step, 2)
        size = min(len(self.images), SAMPLE_BATCH)
        picks = [torch.randperm(len(self.images), generator=generator)[:size] for _ in range(count)]
        return (to_float(self.images[pick.to(self.images.device)]) for pick in picks)

    def model_seed(self, step: int) -> int:
        """A seed for what the model itself draws in a step, another in each process."""
        return self._seed(step, 3) + self.rank * 0x9E3779B1

    def _generator(self, count: int, purpose: int) -> torch.Generator:
        """A CPU generator for one use: 0 for order, 1 for augmentation, 2 for samples."""
        return torch.Generator().manual_seed(self._seed(count, purpose))

    def _seed(self, count: int, purpose: int) -> int:
        return (self.seed * 1_000_003 + count) * 4 + purpose


def batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled indices (B,) of one epoch; the incomplete batch is kept only where it is alone.

    Example:
        >>> [len(batch) for batch in batches(7, 3, torch.Generator())]
        [3, 3]
        >>> [len(batch) for batch in batches(2, 3, torch.Generator())]
        [2]
    """
    if n < 1 or batch_size < 1:
        raise ValueError(f"n is {n} and batch_size is {batch_size}: both must be at least 1")
    kept = n if n < batch_size else n - n % batch_size
    return iter(torch.split(torch.randperm(n, generator=generator)[:kept], batch_size))


def augment(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift every image by up to ``pad`` pixels, borders reflected, and mirror half of them.

    Args:
        images: (B, C, H, W), any dtype, on any device.
        generator: On the CPU, so that all devices get the same result. Drawn from it: B flips in
            {0, 1}, then (2, B) row and column offsets in [0, 2 * pad] of the crop in the padded
            image. A crop is taken first, then mirrored.
        pad: Less than H and W.

    Returns:
        (B, C, H, W), same dtype and device.
    """
    batch, channels, height, width = images.shape
    if not 0 <= pad < min(height, width):
        raise ValueError(f"pad is {pad}: reflection needs 0 <= pad < {min(height, width)}")
    flips = torch.randint(0, 2, (batch, 1), generator=generator)
    offsets = torch.randint(0, 2 * pad + 1, (2, batch, 1), generator=generator) - pad
    rows = _reflect(torch.arange(height) + offsets[0], height)  # (B, H)
    cols = torch.arange(width)
    cols = torch.where(flips.bool(), cols.flip(0), cols)  # (B, W)
    cols = _reflect(cols + offsets[1], width)
    pixels = (rows[:, :, None] * width + cols[:, None, :]).to(images.device)  # (B, H, W)
    pixels = pixels.flatten(1)[:, None].expand(-1, channels, -1)  # (B, C, H * W)
    return images.flatten(2).gather(2, pixels).view(images.shape)  # (B, C, H, W)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Fold indices in (-size, 2 * size - 1) into [0, size), mirrored at the border pixels."""
    index = index.abs()
    return torch.where(index < size, index, 2 * (size - 1) - index)
