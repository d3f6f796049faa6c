"""A model from a plain dict: what checkpoints hold and the command line fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from softvq import (
    Codebook,
    CodesPerToken,
    ConstantTemperature,
    CriticalFraction,
    DDCLCodebook,
    Schedule,
    VQCodebook,
    VQEMACodebook,
)

from .identity import IdentityCodebook
from .layers import ConvDecoder, ConvEncoder
from .vqvae import VQVAE

CONTROLLERS: dict[str, Callable[[Schedule], Any]] = {
    "constant": ConstantTemperature,
    "critical": CriticalFraction,
    "codes": CodesPerToken,
}

DEFAULTS: dict[str, Any] = {
    "in_channels": 3,
    "hidden_channels": 128,
    "residual_channels": 64,
    "residual_blocks": 2,
    "normalize_latents": True,
    "quantizer": "ddcl",
    "codebook_size": 512,
    "codebook_dim": 64,
    "commitment": 0.25,
    "usage_weight": 0.0,
    "temperature_mode": "codes",
    "temperature_start": 2.0,
    "temperature_end": None,
    "temperature_hold_steps": 0,
    "temperature_steps": 0,
    "decay": 0.99,
    "restart_threshold": 0.0,
    "seed": 0,
}


def build_model(config: Mapping[str, Any]) -> VQVAE:
    """Build a VQ-VAE.

    Args:
        config: Any of the keys of :data:`DEFAULTS`; the rest take their values there.

    Returns:
        A model with fresh weights.

    Raises:
        ValueError: If a key or the name of a quantizer is unknown.

    Example:
        >>> build_model({"quantizer": "vq", "codebook_size": 64}).codebook.codebook_size
        64
    """
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ValueError(
            f"unknown keys in the model's config: {unknown}; known: {sorted(DEFAULTS)}"
        )
    full = DEFAULTS | dict(config)
    quantizer = full["quantizer"]
    if quantizer not in QUANTIZERS:
        raise ValueError(f"unknown quantizer {quantizer!r}; known: {sorted(QUANTIZERS)}")
    shape = (
        full["in_channels"],
        full["codebook_dim"],
        full["hidden_channels"],
        full["residual_channels"],
        full["residual_blocks"],
    )
    return VQVAE(
        ConvEncoder(*shape),
        QUANTIZERS[quantizer](full),
        ConvDecoder(*shape),
        normalize_latents=full["normalize_latents"],
    )


def _ddcl(config: dict[str, Any]) -> Codebook:
    schedule = Schedule(
        config["temperature_start"],
        config["temperature_end"],
        steps=config["temperature_steps"],
        hold=config["temperature_hold_steps"],
    )
    return DDCLCodebook(
        config["codebook_dim"],
        config["codebook_size"],
        temperature=CONTROLLERS[config["temperature_mode"]](schedule),
        commitment=config["commitment"],
        usage_weight=config["usage_weight"],
        restart_threshold=config["restart_threshold"],
        seed=config["seed"],
        channel_first=True,
    )


def _vq(kind: type[VQCodebook]) -> Callable[[dict[str, Any]], Codebook]:
    def build(config: dict[str, Any]) -> Codebook:
        return kind(
            config["codebook_dim"],
            config["codebook_size"],
            commitment=config["commitment"],
            decay=config["decay"],
            restart_threshold=config["restart_threshold"],
            seed=config["seed"],
            channel_first=True,
        )

    return build


QUANTIZERS: dict[str, Callable[[dict[str, Any]], Codebook]] = {
    "ddcl": _ddcl,
    "vq": _vq(VQCodebook),
    "vq-ema": _vq(VQEMACodebook),
    "none": lambda config: IdentityCodebook(config["codebook_dim"], channel_first=True),
}
