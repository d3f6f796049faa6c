"""The register of checks, and what they share.

A check asserts with a message that the table quotes; its row in the table is its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from adapters import DIM, Adapter, NotApplicableError
from torch import Tensor, nn

Check = Callable[[Adapter], None]
CHECKS: dict[str, Check] = {}


def check(row: str, *cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a check under a row; with cases, once for each, formatted into the row."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for case in cases:
            CHECKS[row.format(case)] = functools.partial(function, case=case)
        if not cases:
            CHECKS[row] = function
        return function

    return register


def latents(*shape: int, seed: int = 1) -> Tensor:
    """Normal latents, the vector axis last."""
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed))


def state(module: nn.Module) -> dict[str, bytes]:
    """The bytes of a module's state."""
    return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


def loss_of(adapter: Adapter, out: Any) -> Tensor:
    if not adapter.three:
        raise NotApplicableError("has no loss")
    return out[2]


def tensors(out: Any) -> list[Tensor]:
    """Codes, indices and, where there is one, the loss."""
    return [value for value in out if value is not None]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))


def training_step(
    adapter: Adapter, module: nn.Module, z: Tensor, mask: Tensor | None = None
) -> Any:
    """Output, gradient of the latents and of all parameters, and the state afterwards."""
    z = z.clone().requires_grad_()
    out = adapter.quantize(module, z, mask)
    total = out[0].square().sum()
    (total if out[2] is None else total + out[2]).backward()
    adapter.after_step(module, out)
    return out, z.grad, [p.grad for p in module.parameters()], state(module)
