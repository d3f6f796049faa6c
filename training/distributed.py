"""Training by several processes, started by torchrun; everything here is trivial for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from softvq._internal.distributed import world_size


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        # gloo can abort a process whose group goes while another still talks to it.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, from zero."""
    return dist.get_rank() if world_size() > 1 else 0


@contextmanager
def main_process_first() -> Iterator[None]:
    """Let the main process do something, such as a download, before the others do it."""
    if rank() > 0:
        dist.barrier()
    yield
    if rank() == 0 and world_size() > 1:
        dist.barrier()


def mean_over_processes(values: list[float], device: torch.device) -> list[float]:
    """Means of each value over all processes."""
    if world_size() == 1:
        return values
    # Not every accelerator has float64, and NCCL takes tensors of the accelerator only.
    total = torch.tensor(values, device=device)
    dist.all_reduce(total)
    means: list[float] = (total / world_size()).tolist()
    return means


def sum_over_processes(sums: dict[str, float]) -> dict[str, float]:
    """Sums by name over all processes, some of which may lack a name."""
    if world_size() == 1:
        return sums
    parts: list[dict[str, float]] = [{} for _ in range(world_size())]
    dist.all_gather_object(parts, sums)
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
