"""The collectives that ``after_step`` and the tracker use; no ``forward`` ever does."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes that share the work; 1 without an initialised process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.no_grad()
def summed(tensor: Tensor) -> Tensor:
    """Sum of a tensor over all processes, as a new tensor.

    Example:
        >>> summed(torch.tensor([1, 2]))
        tensor([1, 2])
    """
    total = tensor.clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


@torch.no_grad()
def gathered(tensor: Tensor) -> Tensor:
    """Tensors of all processes, joined along the first axis; their sizes there may differ.

    Example:
        >>> gathered(torch.tensor([1, 2]))
        tensor([1, 2])
    """
    if world_size() == 1:
        return tensor
    sizes = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([tensor.shape[0]], device=tensor.device))
    longest = int(max(size.item() for size in sizes))
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(size.item())] for part, size in zip(parts, sizes, strict=True)])
