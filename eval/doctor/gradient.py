"""How much of the decoder's gradient reaches the encoder through the codebook."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import ImageTokenizer
from models.peers import PeerCodebook
from softvq import Codebook, CodebookStack

# A token whose latent gets less than this of its code's gradient is counted as silent.
SILENT = 0.01


class GradientFlow(NamedTuple):
    """Gradient of the reconstruction's error at the latents, against that at their codes.

    Straight through, the two are equal: what the encoder would get if the codebook were not there.

    Attributes:
        ratio: Norm at the latents over norm at the codes, of all tokens together.
        silent: Share of tokens with a ratio below :data:`SILENT`.
    """

    ratio: float
    silent: float


def gradient_flow(model: ImageTokenizer, images: Tensor) -> list[GradientFlow]:
    """Measure the flow through each codebook that stands by itself; a stack is one.

    Args:
        model: In eval mode; not changed.
        images: (B, C, H, W) in [0, 1], on the model's device.

    Returns:
        One for a codebook or a stack, two for a VQ-VAE-2, coarse first.

    Example:
        >>> from models import build_model
        >>> _ = torch.manual_seed(0)
        >>> model = build_model({"quantizer": "vq", "hidden_channels": 32}).eval()
        >>> [flow] = gradient_flow(model, torch.rand(2, 3, 32, 32))
        >>> round(flow.ratio, 3), flow.silent
        (1.0, 0.0)
    """
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    for level in model.levels:
        # Some of these pass no gradient at all in eval mode; what they move is the copy's.
        if isinstance(level, PeerCodebook):
            level.train()
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        latents, codes = args[0], output.quantized
        for tensor in (latents, codes):
            tensor.retain_grad()
        seen.append((module, latents, codes))

    hooks = [module.register_forward_hook(keep) for module in _codebooks(model)]
    F.mse_loss(model(images).recon, images).backward()
    for hook in hooks:
        hook.remove()
    return [_flow(latents, codes) for _, latents, codes in seen]


def _codebooks(module: nn.Module) -> list[nn.Module]:
    """Codebooks and stacks, not those inside of a stack."""
    if isinstance(module, (Codebook, CodebookStack)):
        return [module]
    return [found for child in module.children() for found in _codebooks(child)]


def _flow(latents: Tensor, codes: Tensor) -> GradientFlow:
    """Of latents and codes (B, D, h, w) after the backward pass."""
    at_latents, at_codes = (
        (torch.zeros_like(t) if t.grad is None else t.grad).double().norm(dim=1).flatten()
        for t in (latents, codes)
    )
    whole = float(at_codes.norm())
    if whole == 0:
        return GradientFlow(0.0, 1.0)  # the decoder does not look at its input
    silent = at_latents < SILENT * at_codes
    return GradientFlow(float(at_latents.norm()) / whole, float(silent.double().mean()))
