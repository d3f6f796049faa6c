"""Who teaches the encoder and the prototypes: gradients through the codebook, learning rates."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import ImageTokenizer
from softvq import Codebook, CodebookStack
from training.config import TrainConfig
from training.config.train_config import END_CODES

from .advice import STEP, flags, follow_latents, longer, schedule, slower
from .finding import Finding

# A token whose latent gets less than this of its code's gradient is counted as silent.
SILENT = 0.01
# Share of the tokens whose latents hear nothing of the decoder, or of the norm that arrives.
SILENT_SHARE, SEVERE_SILENT_SHARE = 0.9, 0.99
WEAK_RATIO, SEVERE_RATIO = 0.05, 0.01
# Encoder's over prototypes' learning rate: the source paper advises 0.01 to 0.1 and reports
# collapse at 1. Three times beyond its range is a warning.
EPSILON_HIGH, EPSILON_COLLAPSE = 0.3, 1.0
# What is advised beyond the default; a standard deviation that is none.
EPSILONS, NO_SCALE = (0.05, 0.1, 0.2, 0.3), 1e-3
# Of what Adam moves a coordinate of a prototype by in a step.
SEVERE_STEP = 1.0


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
        model: The model in eval mode; it is not changed.
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
        level.train()  # some pass no gradient in eval mode; what moves is the copy's
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append((args[0], output.quantized))
        for tensor in seen[-1]:
            tensor.retain_grad()

    for module in _codebooks(model):
        module.register_forward_hook(keep)
    F.mse_loss(model(images).recon, images).backward()
    return [_flow(latents, codes) for latents, codes in seen]


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


def check_dead_gradient(flow: GradientFlow, config: TrainConfig) -> Finding | None:
    """An encoder that the decoder does not teach.

    Args:
        flow: The flow through the codebook.
        config: The options of the training, for the advice.
    """
    if flow.ratio >= WEAK_RATIO and flow.silent < SILENT_SHARE:
        return None
    severe = flow.ratio < SEVERE_RATIO or flow.silent >= SEVERE_SILENT_SHARE
    advice = (
        "A straight-through codebook passes all of it, so the decoder itself does not look at "
        f"its code: train longer, {longer(config)}, or at another rate, {other_rate(config)}."
    )
    if config.quantizer.name == "ddcl":
        softer = _softer(config)
        advice = (
            f"Pass the gradient straight through, --quantizer ddcl-em, or stay softer: {softer}."
        )
    return Finding(
        "dead-gradient",
        "severe" if severe else "warning",
        f"The decoder's gradient reaches the latents with {flow.ratio:.2g} times the norm that it "
        f"has at their codes (straight through: 1), and {100 * flow.silent:.1f} % of the tokens "
        f"get less than {100 * SILENT:g} % of it.",
        advice,
    )


def _softer(config: TrainConfig) -> str:
    """A schedule that ends with more codes per token."""
    if config.quantizer.temperature_mode != "codes":
        return follow_latents(config)
    start, end = config.temperatures
    end = END_CODES if end < END_CODES else 1 + 2 * (end - 1)
    return schedule("codes", max(start, end), end, config)


def other_rate(config: TrainConfig) -> str:
    """Half of a rate above the default, twice one that is not."""
    lr = config.optimizer.lr
    return slower(config) if lr > TrainConfig().optimizer.lr else f"--lr {2 * lr:g}"


def check_epsilon(scale: float, config: TrainConfig) -> Finding | None:
    """Prototypes that learn by gradient, too slowly for their encoder or in leaps.

    Args:
        scale: RMS over channels of the latents' standard deviation.
        config: The options of the training.
    """
    soft, lr = config.quantizer.name == "ddcl", config.optimizer.lr
    if not soft and config.quantizer.name != "vq":
        return None
    epsilon, limit = config.timescale_ratio, EPSILON_HIGH if soft else EPSILON_COLLAPSE
    if config.quantizer.settings.get("pull"):
        limit = math.inf  # soft EM keeps prototypes up with any encoder
    leap = lr / epsilon / max(scale, 1e-30)
    pace = _pace(scale, limit, config)
    if leap >= STEP:
        return Finding(
            "epsilon",
            "severe" if leap >= SEVERE_STEP else "warning",
            f"Prototypes learn at {lr / epsilon:.3g} (--lr {lr:g} over epsilon {epsilon:g}): a "
            f"step of Adam moves a coordinate by {leap:.2g} of the latents' standard deviation "
            f"(limit {STEP:g}).",
            f"Slow them down: {pace}.",
        )
    if epsilon <= limit:
        return None
    reported = f", and from {EPSILON_COLLAPSE:g} on collapse has been reported" if soft else ""
    return Finding(
        "epsilon",
        "severe" if soft and epsilon >= EPSILON_COLLAPSE else "warning",
        f"The encoder learns at {epsilon:g} of the prototypes' rate; above {limit:g} it outruns "
        f"them{reported}.",
        f"Let prototypes be the faster ones: {pace}.",
    )


def _pace(scale: float, limit: float, config: TrainConfig) -> str:
    """An epsilon at which prototypes neither leap nor fall behind, or else a lower rate."""
    if scale < NO_SCALE and not config.model.normalize_latents:
        return "--normalize-latents, for the latents have shrunk to nothing"
    lr, default = config.optimizer.lr, config.replace(epsilon=None).timescale_ratio
    for epsilon in (default, *(e for e in EPSILONS if default < e <= limit)):
        if lr / epsilon < STEP * scale:
            return f"--epsilon {epsilon:g}"
    # Half of the step that is too large; at the default, for no ratio makes this rate small.
    rate = min(lr / 2, default * max(scale, NO_SCALE) * STEP / 2)
    return f"--lr {rate:.3g} {flags(config, epsilon=default)}".strip()
