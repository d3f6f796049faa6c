"""Restarts: which latents replace the prototypes that too few latents choose."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.distributed import gathered


@torch.no_grad()
def newcomers(tokens: Tensor, count: int, seed: int) -> Tensor:
    """Latents drawn at random from the batch of all processes, the same in every process.

    Args:
        tokens: (M, D), the latents of this process; M may differ between processes.
        count: Number of latents to draw.
        seed: Seed of the drawing.

    Returns:
        (R, D), R the smaller of ``count`` and the number of latents of all processes.

    Example:
        >>> newcomers(torch.arange(6.0).reshape(3, 2), 2, seed=0).shape
        torch.Size([2, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(tokens.shape[0], generator=generator)[:count]
    candidates = gathered(tokens[order.to(tokens.device)])
    # Seeded anew: processes that drew from unequal token counts would go on apart.
    generator.manual_seed(seed)
    order = torch.randperm(candidates.shape[0], generator=generator)[:count]
    return candidates[order.to(tokens.device)]


def check_shares(**shares: float) -> None:
    """Refuse a share, by its argument's name, that does not lie in [0, 1)."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {share}")
