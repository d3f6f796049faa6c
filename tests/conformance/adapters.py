"""What a check needs to know of a codebook, and how softvq's answer it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from softvq import (
    Codebook,
    DDCLCodebook,
    DDCLEMCodebook,
    SoftCodebook,
    UtilizationTracker,
    VQCodebook,
    VQEMACodebook,
)

DIM, SIZE = 4, 9


class NotApplicableError(Exception):
    """The check makes no sense for this kind of quantiser."""


class NotOfferedError(Exception):
    """The check makes sense, but the library has no such function."""


class UnavailableError(Exception):
    """A package that the check needs is not installed."""


class Adapter:
    """One codebook under its own library's names; raises where the library has no such function.

    Attributes:
        name: Column of the table.
        call: How it is built, for the docs.
        size: Number of codes.
        three: Whether the call is to unpack to codes, indices and a loss.
        learns: Whether there are prototypes to learn.
    """

    name: str
    call: str
    size = SIZE
    three = True
    learns = True

    def build(self, spatial: int = 1, channel_first: bool = False) -> nn.Module:
        """A fresh module for latents with that many axes between batch and vector."""
        raise NotImplementedError

    def quantize(self, module: nn.Module, z: Tensor, mask: Tensor | None = None) -> Any:
        """What the library returns."""
        raise NotImplementedError

    def hard(self, module: nn.Module, z: Tensor) -> tuple[Tensor, Tensor]:
        """Codes that indices stand for, and the indices, of one call."""
        quantized, indices, _ = self.quantize(module, z)
        return quantized, indices

    def encode(self, module: nn.Module, z: Tensor) -> Tensor:
        """Indices, by the shortest way the library has."""
        return self.quantize(module, z)[1]

    def decode(self, module: nn.Module, indices: Tensor) -> Tensor:
        """Codes of indices."""
        raise NotImplementedError

    def after_step(self, module: nn.Module, *outs: Any) -> None:
        """What the library wants after the optimiser's step, besides nothing.

        Several outputs are those of a batch's parts, whose gradients were accumulated.
        """

    def prototypes(self, module: nn.Module) -> Tensor:
        """(K, D), detached."""
        raise NotImplementedError

    def place(self, prototypes: Tensor) -> nn.Module:
        """A module with given prototypes."""
        raise NotImplementedError

    def freeze(self, module: nn.Module) -> None:
        """Stop the prototypes from changing."""
        raise NotImplementedError

    def kmeans(self, latents: Tensor) -> None:
        """Place prototypes by k-means on (N, D) latents."""
        raise NotImplementedError

    def counts(self, module: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """(K,), how often each code was chosen over batches of latents and masks."""
        raise NotOfferedError("counts no codes")

    def smooth(self, module: nn.Module) -> Callable[..., Any]:
        """What has a derivative as a function of the latents."""
        raise NotImplementedError


class Ours(Adapter):
    """One of softvq's codebooks."""

    def __init__(self, kind: type[Codebook], name: str = "", **arguments: Any) -> None:
        self.kind = kind
        self.name = name or kind.__name__
        self.arguments = arguments
        given = "".join(f", {key}={json.dumps(value)}" for key, value in arguments.items())
        self.call = f"{kind.__name__}(dim, size{given})"

    def build(self, spatial: int = 1, channel_first: bool = False) -> nn.Module:
        torch.manual_seed(0)
        codebook = self.kind(DIM, SIZE, channel_first=channel_first, **self.arguments)
        start = torch.randn(200, DIM)
        codebook.initialize(start)
        return codebook

    def quantize(self, module: nn.Module, z: Tensor, mask: Tensor | None = None) -> Any:
        return module(z, mask)

    def hard(self, module: nn.Module, z: Tensor) -> tuple[Tensor, Tensor]:
        out = module(z, hard=True)
        return out.quantized, out.indices

    def encode(self, module: nn.Module, z: Tensor) -> Tensor:
        return module.encode(z)

    def decode(self, module: nn.Module, indices: Tensor) -> Tensor:
        return module.decode(indices)

    def after_step(self, module: nn.Module, *outs: Any) -> None:
        module.after_step(*outs)

    def prototypes(self, module: nn.Module) -> Tensor:
        return module.codebook.detach()

    def place(self, prototypes: Tensor) -> nn.Module:
        module = self.build()
        module.codebook.data.copy_(prototypes)
        return module

    def freeze(self, module: nn.Module) -> None:
        module.freeze()

    def kmeans(self, latents: Tensor) -> None:
        self.build().initialize(latents)

    def counts(self, module: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        tracker = UtilizationTracker(SIZE)
        for z, mask in batches:
            tracker.update(module(z, mask).indices)
        return tracker.compute().counts

    def smooth(self, module: nn.Module) -> Callable[..., Any]:
        if not module.straight_through:
            return lambda z: (module(z).quantized, module(z).loss)
        # The straight-through code is no function's derivative, and is not meant to be.
        if isinstance(module, SoftCodebook):
            return lambda z: module(z).loss
        return lambda z: module(z).losses["commitment_loss"]


OURS = (
    # The usage of a batch is not the mean over its parts' usages.
    Ours(DDCLCodebook, noise=0.0),
    Ours(DDCLCodebook, "DDCLCodebook, attention", noise=0.0, engine="attention"),
    Ours(DDCLEMCodebook),
    Ours(DDCLEMCodebook, "DDCLEMCodebook, balance", balance=0.5),
    Ours(VQCodebook),
    Ours(VQEMACodebook),
)
