"""Devices, and training by several processes that torchrun started; trivial for one process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from .errors import UserError


def choose_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name: A device that PyTorch knows, such as ``cuda:0``, or ``auto`` for the fastest here.

    Raises:
        UserError: If it is unknown or not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).split("\n", 1)[0].split(". ", 1)[0]
        raise UserError(f"device {name!r} cannot be used here ({reason:.120}); try auto") from error
    return device


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


def world_size() -> int:
    """Number of processes that share the work; 1 without an initialised process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


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


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether a flag is set in at least one process; every process must call it."""
    return mean_over_processes([float(flag)], device)[0] > 0


def sum_over_processes(sums: dict[str, float]) -> dict[str, float]:
    """Sums by name over all processes, some of which may lack a name."""
    if world_size() == 1:
        return sums
    parts: list[dict[str, float]] = [{} for _ in range(world_size())]
    dist.all_gather_object(parts, sums)
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
