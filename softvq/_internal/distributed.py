"""The collectives of ``after_step``, ``initialize`` and the tracker; ``forward`` has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def agreed(device: torch.device) -> Iterator[None]:
    """What the processes check by themselves before a collective: all go on, or all raise.

    A process that raised alone would leave the others to wait for it until the deadline of their
    collective.

    Args:
        device: Where the process group takes tensors: that of the codebook.

    Raises:
        FloatingPointError: If another process raised one.
        RuntimeError: If another process raised another error.
    """
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    worst = 0 if own is None else 2 if isinstance(own, FloatingPointError) else 1
    if world_size() > 1:
        flag = torch.tensor([worst], device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        worst = int(flag)
    if own is not None:
        raise own
    if worst == 2:
        raise FloatingPointError(
            "the latents of another process hold NaN or infinity, or numbers whose squares are; "
            "no state has moved in any process. Lower the learning rate, or look for an overflow "
            "in the encoder (half precision?)"
        )
    if worst:
        raise RuntimeError(
            "another process could not use what it was given, and its own error says why; no "
            "state has moved in any process"
        )
