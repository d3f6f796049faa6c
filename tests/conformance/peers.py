"""Codebooks of vector-quantize-pytorch, each with the flags that its own documentation asks for."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from adapters import DIM, SIZE, Adapter, NotApplicableError, NotOfferedError
from torch import Tensor, nn

PACKAGE = "vector_quantize_pytorch"


class VectorQuantizePeer(Adapter):
    """``VectorQuantize`` with its defaults: moving averages and the rotation trick."""

    name = "VectorQuantize"
    call = "VectorQuantize(dim=dim, codebook_size=size)"

    def build(self, spatial: int = 1, channel_first: bool = False, **flags: Any) -> nn.Module:
        from vector_quantize_pytorch import VectorQuantize

        if channel_first:
            flags |= {2: {"accept_image_fmap": True}, 3: {"accept_3d_fmap": True}}.get(
                spatial, {"channel_last": False}
            )
        torch.manual_seed(0)
        module = VectorQuantize(dim=DIM, codebook_size=SIZE, **flags)
        # Its uniform start would leave most codes without a latent.
        if not flags.get("kmeans_init"):
            module.codebook = torch.randn(SIZE, DIM)
            module._codebook.embed_avg.copy_(module._codebook.embed)
        return module

    def quantize(self, module: nn.Module, z: Tensor, mask: Tensor | None = None) -> Any:
        return module(z, mask=mask)

    def decode(self, module: nn.Module, indices: Tensor) -> Tensor:
        return module.get_codes_from_indices(indices)

    def prototypes(self, module: nn.Module) -> Tensor:
        return module.codebook.detach()

    def place(self, prototypes: Tensor) -> nn.Module:
        module = self.build()
        module.codebook = prototypes
        return module

    def freeze(self, module: nn.Module) -> None:
        module.freeze_codebook = True

    def kmeans(self, latents: Tensor) -> None:
        from loguru import logger

        # It warns through a logger of its own.
        sink = logger.add(warnings.warn, format="{message}")
        try:
            self.build(kmeans_init=True)(latents[None])
        finally:
            logger.remove(sink)

    def smooth(self, module: nn.Module) -> Callable[..., Any]:
        # Moving averages would change the function from call to call.
        return lambda z: copy.deepcopy(module)(z, freeze_codebook=True)[2]


class SimVQPeer(Adapter):
    """``SimVQ``: frozen random codes under a learnt linear map."""

    name = "SimVQ"
    call = "SimVQ(dim=dim, codebook_size=size)"

    def build(self, spatial: int = 1, channel_first: bool = False, **flags: Any) -> nn.Module:
        from vector_quantize_pytorch import SimVQ

        torch.manual_seed(0)
        return SimVQ(dim=DIM, codebook_size=SIZE, channel_first=channel_first, **flags)

    def quantize(self, module: nn.Module, z: Tensor, mask: Tensor | None = None) -> Any:
        if mask is not None:
            raise NotOfferedError("takes no mask")
        return module(z)

    def decode(self, module: nn.Module, indices: Tensor) -> Tensor:
        return module.indices_to_codes(indices)

    def prototypes(self, module: nn.Module) -> Tensor:
        return module.codebook.detach()

    def place(self, prototypes: Tensor) -> nn.Module:
        return self.build(init_fn=lambda _: prototypes, codebook_transform=nn.Identity())

    def freeze(self, module: nn.Module) -> None:
        module.requires_grad_(False)

    def kmeans(self, latents: Tensor) -> None:
        raise NotApplicableError("has no k-means")

    def smooth(self, module: nn.Module) -> Callable[..., Any]:
        raise NotApplicableError("returns its two one-sided terms as one sum")


class FSQPeer(Adapter):
    """``FSQ``: rounding to a fixed grid, without prototypes or loss."""

    name = "FSQ"
    call = "FSQ(levels=[3] * dim)"
    size = 3**DIM
    three = False
    learns = False

    def build(self, spatial: int = 1, channel_first: bool = False) -> nn.Module:
        from vector_quantize_pytorch import FSQ

        torch.manual_seed(0)
        return FSQ(levels=[3] * DIM, channel_first=channel_first)

    def quantize(self, module: nn.Module, z: Tensor, mask: Tensor | None = None) -> Any:
        if mask is not None:
            raise NotApplicableError("treats every vector by itself, and has no loss")
        return (*module(z), None)

    def decode(self, module: nn.Module, indices: Tensor) -> Tensor:
        return module.indices_to_codes(indices)

    def place(self, prototypes: Tensor) -> nn.Module:
        raise NotApplicableError("has no prototypes")

    def kmeans(self, latents: Tensor) -> None:
        raise NotApplicableError("has no k-means")

    def smooth(self, module: nn.Module) -> Callable[..., Any]:
        raise NotApplicableError("has no loss")


PEERS: tuple[Adapter, ...] = (
    (VectorQuantizePeer(), SimVQPeer(), FSQPeer()) if find_spec(PACKAGE) else ()
)
