"""SharedScaleNorm: latents with mean 0 and, over all channels together, variance 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SharedScaleNorm(nn.BatchNorm2d):
    """Batch normalisation with one variance for all channels, and nothing to train.

    Where each channel has a scale of its own, all weigh the same in the distance to a prototype,
    and an encoder that needs fewer of them can only repeat itself. With one scale it keeps the
    proportions that it gives them. experiments/tokens/README.md has what either does to soft and
    hard codebooks.

    State, momentum and modes are those of :class:`torch.nn.BatchNorm2d`; ``running_var`` holds the
    one variance, C times.

    Args:
        num_features: C, number of channels.

    Shape:
        (B, C, h, w), in and out.

    Example:
        >>> norm = SharedScaleNorm(2)
        >>> out = norm(torch.randn(4, 2, 8, 8) * torch.tensor([1.0, 3.0])[:, None, None])
        >>> round(float(out.var(correction=0)), 2), bool(out[:, 1].var() > 4 * out[:, 0].var())
        (1.0, True)
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features, affine=False)

    def forward(self, z: Tensor) -> Tensor:
        """Normalise by the batch's statistics in training, by the running ones in eval."""
        if not self.training:
            return super().forward(z)
        self._check_input_dim(z)
        # Half precision loses the mean of thousands of values.
        wide = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
        mean = wide.mean(dim=(0, 2, 3))  # (C,)
        centred = wide - mean[:, None, None]
        variance = centred.square().mean()
        self._track(mean.detach(), variance.detach(), len(z) * z.shape[2] * z.shape[3])
        return (centred * (variance + self.eps).rsqrt()).to(z.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:  # the plain mean of all batches
            momentum = 1 / float(self.num_batches_tracked)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype).expand(len(mean)), momentum)
