"""A model from a plain dict: what checkpoints hold and the command line fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from softvq import (
    Codebook,
    CodebookStack,
    CodesPerToken,
    ConstantTemperature,
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    VQCodebook,
    VQEMACodebook,
)

from .identity import IdentityCodebook
from .layers import ConvDecoder, ConvEncoder, DoublingDecoder, HalvingEncoder
from .peers import PEERS, PeerStack, peer
from .tokenizer import ImageTokenizer
from .vqvae import VQVAE
from .vqvae2 import VQVAE2

CONTROLLERS: dict[str, Callable[[Schedule], Any]] = {
    "constant": ConstantTemperature,
    "critical": CriticalFraction,
    "codes": CodesPerToken,
}

# Their prototypes learn without the commitment term.
STRAIGHT_THROUGH = ("ddcl-em", "vq", "vq-ema")

DEFAULTS: dict[str, Any] = {
    "architecture": "vqvae",
    "in_channels": 3,
    "hidden_channels": 128,
    "residual_channels": 64,
    "residual_blocks": 2,
    "normalize_latents": True,
    "shared_scale": False,
    "quantizer": "ddcl",
    "codebook_size": 512,
    "codebook_dim": 64,
    "level_pools": None,
    "level_sizes": None,
    "level_dropout": 0.0,
    "commitment": 0.25,
    "usage_weight": 0.0,
    "balance": 0.0,
    "temperature_mode": "codes",
    "temperature_start": 2.0,
    "temperature_end": None,
    "temperature_hold_steps": 0,
    "temperature_steps": 0,
    "decay": 0.99,
    "restart_threshold": 0.0,
    "seed": 0,
}


def build_model(config: Mapping[str, Any]) -> ImageTokenizer:
    """Build a model.

    Args:
        config: Any of the keys of :data:`DEFAULTS`; the rest take their values there.
            ``architecture`` is ``"vqvae"`` or ``"vqvae2"``. With ``level_pools``, a pooling factor
            for each level, a VQ-VAE quantises by a stack of codebooks. ``level_sizes``, the
            number of codes of each level, is ``codebook_size`` for all by default.

    Returns:
        A model with fresh weights.

    Raises:
        ValueError: If a key or a name is unknown, or the levels do not fit together.

    Example:
        >>> build_model({"quantizer": "vq", "codebook_size": 64}).levels[0].codebook_size
        64
        >>> len(build_model({"level_pools": [4, 2, 1]}).levels)
        3
    """
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ValueError(
            f"unknown keys in the model's config: {unknown}; known: {sorted(DEFAULTS)}"
        )
    full = DEFAULTS | dict(config)
    for key, known in (("quantizer", QUANTIZERS), ("architecture", ARCHITECTURES)):
        if full[key] not in known:
            raise ValueError(f"unknown {key} {full[key]!r}; known: {sorted(known)}")
    return ARCHITECTURES[full["architecture"]](full)


def _vqvae(config: dict[str, Any]) -> VQVAE:
    hidden, shape = config["hidden_channels"], _blocks(config)
    channels = config["in_channels"], config["codebook_dim"]
    return VQVAE(
        ConvEncoder(*channels, hidden, *shape),
        _codebook(config),
        ConvDecoder(*channels, hidden, *shape),
        normalize_latents=config["normalize_latents"],
        shared_scale=config["shared_scale"],
    )


def _vqvae2(config: dict[str, Any]) -> VQVAE2:
    hidden, dim, shape = config["hidden_channels"], config["codebook_dim"], _blocks(config)
    if config["level_pools"] is not None:
        raise ValueError("a VQ-VAE-2 has its two levels by itself: level_pools must be None")
    top, bottom = _level_configs(config, 2, channel_first=True)
    return VQVAE2(
        ConvEncoder(config["in_channels"], hidden, hidden, *shape),
        HalvingEncoder(hidden, dim, hidden, *shape),
        QUANTIZERS[config["quantizer"]](top),
        DoublingDecoder(hidden, dim, hidden, *shape),
        nn.Conv2d(2 * hidden, dim, 1),
        QUANTIZERS[config["quantizer"]](bottom),
        nn.ConvTranspose2d(dim, dim, 4, stride=2, padding=1),
        ConvDecoder(config["in_channels"], 2 * dim, hidden, *shape),
        normalize_latents=config["normalize_latents"],
        shared_scale=config["shared_scale"],
        level_dropout=config["level_dropout"],
    )


def _blocks(config: dict[str, Any]) -> tuple[int, int]:
    return config["residual_channels"], config["residual_blocks"]


def _codebook(config: dict[str, Any]) -> Codebook | CodebookStack:
    pools = config["level_pools"]
    if pools is None:
        if config["level_sizes"] is not None or config["level_dropout"]:
            raise ValueError("level_sizes and level_dropout need level_pools: there is one level")
        return QUANTIZERS[config["quantizer"]](config)
    levels = _level_configs(config, len(pools), channel_first=False)
    books = [QUANTIZERS[config["quantizer"]](level) for level in levels]
    if config["quantizer"] in PEERS:
        if config["level_dropout"] or config["quantizer"] in ("fsq", "lfq"):
            raise ValueError(
                f"{config['quantizer']} has no levels, or no level_dropout, here: of "
                "vector-quantize-pytorch's there are vqp-ema, vqp-rotation and simvq in levels"
            )
        return PeerStack(books, pools, channel_first=True)
    return CodebookStack(books, pools, level_dropout=config["level_dropout"], channel_first=True)


def _level_configs(config: dict[str, Any], count: int, channel_first: bool) -> list[dict[str, Any]]:
    """The config of each level: another size, another seed."""
    sizes = config["level_sizes"] or [config["codebook_size"]] * count
    if len(sizes) != count or config["quantizer"] == "none":
        raise ValueError(
            f"{count} levels need a size each, and a quantizer; got level_sizes {sizes} and "
            f"quantizer {config['quantizer']!r}"
        )
    # The levels after it code what a level leaves over: latents that were pulled onto the first
    # level's prototypes would leave nothing. The last level pulls them onto the whole code.
    early = 0.0 if config["quantizer"] in STRAIGHT_THROUGH else config["commitment"]
    return [
        config
        | {
            "codebook_size": size,
            "seed": config["seed"] + number,
            "channel_first": channel_first,
            "commitment": config["commitment"] if number == count - 1 else early,
        }
        for number, size in enumerate(sizes)
    ]


def _ddcl(kind: type[DDCLCodebook] | type[DDCLEMCodebook]) -> Callable[[dict[str, Any]], Codebook]:
    def build(config: dict[str, Any]) -> Codebook:
        # A level of few codes starts, and ends, at no more than it has.
        in_codes = config["temperature_mode"] == "codes"
        most = max(1.0, config["codebook_size"]) if in_codes else float("inf")
        end = config["temperature_end"]
        schedule = Schedule(
            min(config["temperature_start"], most),
            None if end is None else min(end, most),
            steps=config["temperature_steps"],
            hold=config["temperature_hold_steps"],
        )
        return kind(
            config["codebook_dim"],
            config["codebook_size"],
            temperature=CONTROLLERS[config["temperature_mode"]](schedule),
            usage_weight=config["usage_weight"],
            **({"balance": config["balance"]} if kind is DDCLEMCodebook else {}),
            **_shared(config),
        )

    return build


def _shared(config: dict[str, Any]) -> dict[str, Any]:
    """What all of softvq's own codebooks take; a stack's levels leave the layout to it."""
    names = ("commitment", "restart_threshold", "seed")
    return {name: config[name] for name in names} | {
        "channel_first": config.get("channel_first", True)
    }


def _vq(kind: type[VQCodebook] | type[VQEMACodebook]) -> Callable[[dict[str, Any]], Codebook]:
    def build(config: dict[str, Any]) -> Codebook:
        return kind(
            config["codebook_dim"],
            config["codebook_size"],
            decay=config["decay"],
            **_shared(config),
        )

    return build


def _peer(name: str) -> Callable[[dict[str, Any]], Codebook]:
    def build(config: dict[str, Any]) -> Codebook:
        size, dim = config["codebook_size"], config["codebook_dim"]
        return peer(name, dim, size, channel_first=config.get("channel_first", True))

    return build


QUANTIZERS: dict[str, Callable[[dict[str, Any]], Codebook]] = {
    "ddcl": _ddcl(DDCLCodebook),
    "ddcl-em": _ddcl(DDCLEMCodebook),
    "vq": _vq(VQCodebook),
    "vq-ema": _vq(VQEMACodebook),
    "none": lambda config: IdentityCodebook(config["codebook_dim"], channel_first=True),
    **{name: _peer(name) for name in PEERS},
}

ARCHITECTURES: dict[str, Callable[[dict[str, Any]], ImageTokenizer]] = {
    "vqvae": _vqvae,
    "vqvae2": _vqvae2,
}
