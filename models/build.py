"""A model from a plain dict: what checkpoints hold and the command line fills."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
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
from .layers import ConvDecoder, ConvEncoder, DoublingDecoder, HalvingEncoder, NetworkShape
from .peers import PEERS, PeerStack, peer
from .tokenizer import ImageTokenizer
from .vqvae import VQVAE
from .vqvae2 import VQVAE2

CONTROLLERS: dict[str, Callable[[Schedule], Any]] = {
    "constant": ConstantTemperature,
    "critical": CriticalFraction,
    "codes": CodesPerToken,
}

# What a model is besides its codebooks, whose constructors have the other defaults.
DEFAULTS: dict[str, Any] = {
    "architecture": "vqvae",
    "in_channels": 3,
    "hidden_channels": 128,
    "residual_channels": 64,
    "residual_blocks": 2,
    "normalize_latents": True,
    "shared_scale": False,
    "quantizer": "ddcl-em",
    "codebook_size": 512,
    "codebook_dim": 64,
    "level_pools": None,
    "level_sizes": None,
    "level_dropout": 0.0,
    "temperature_mode": "codes",
    "temperature_start": 2.0,
    "temperature_end": None,
    "temperature_hold_steps": 0,
    "temperature_steps": 0,
    "seed": 0,
}
SHAPE = ("hidden_channels", "residual_channels", "residual_blocks")
NORM = ("normalize_latents", "shared_scale")


def build_model(config: Mapping[str, Any]) -> ImageTokenizer:
    """Build a model.

    Args:
        config: Any of the keys of :data:`DEFAULTS`, and keywords of the quantizer's constructor;
            the rest take their defaults in either.
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
    full = DEFAULTS | dict(config)
    for key, names in (("quantizer", QUANTIZERS), ("architecture", ARCHITECTURES)):
        if full[key] not in names:
            raise ValueError(f"unknown {key} {full[key]!r}; known: {sorted(names)}")
    known = {*DEFAULTS, *_keywords(full["quantizer"])} - {"dim", "temperature", "channel_first"}
    unknown = sorted(set(config) - known)
    if unknown:
        raise ValueError(f"unknown keys in the model's config: {unknown}; known: {sorted(known)}")
    return ARCHITECTURES[full["architecture"]](full)


def _vqvae(config: dict[str, Any]) -> VQVAE:
    shape = NetworkShape(**_some(config, SHAPE))
    channels = config["in_channels"], config["codebook_dim"]
    return VQVAE(
        ConvEncoder(*channels, shape),
        _codebook(config),
        ConvDecoder(*channels, shape),
        **_some(config, NORM),
    )


def _vqvae2(config: dict[str, Any]) -> VQVAE2:
    shape = NetworkShape(**_some(config, SHAPE))
    hidden, dim = config["hidden_channels"], config["codebook_dim"]
    if config["level_pools"] is not None:
        raise ValueError("a VQ-VAE-2 has its two levels by itself: level_pools must be None")
    top, bottom = _level_configs(config, 2, channel_first=True)
    return VQVAE2(
        ConvEncoder(config["in_channels"], hidden, shape),
        HalvingEncoder(hidden, dim, shape),
        _level(top),
        DoublingDecoder(hidden, dim, shape),
        nn.Conv2d(2 * hidden, dim, 1),
        _level(bottom),
        nn.ConvTranspose2d(dim, dim, 4, stride=2, padding=1),
        ConvDecoder(config["in_channels"], 2 * dim, shape),
        **_some(config, (*NORM, "level_dropout")),
    )


def _some(config: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: config[name] for name in names if name in config}


def _codebook(config: dict[str, Any]) -> Codebook | CodebookStack:
    pools = config["level_pools"]
    if pools is None:
        if config["level_sizes"] is not None or config["level_dropout"]:
            raise ValueError("level_sizes and level_dropout need level_pools: there is one level")
        return _level(config)
    levels = _level_configs(config, len(pools), channel_first=False)
    books = [_level(level) for level in levels]
    if config["quantizer"] in PEERS:
        if config["level_dropout"] or config["quantizer"] in ("fsq", "lfq"):
            raise ValueError(
                f"{config['quantizer']} has no levels, or no level_dropout, here: of other "
                "libraries' quantizers all but fsq and lfq have levels, and none has level_dropout"
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
    levels = [
        config | {"codebook_size": size, "seed": config["seed"] + n, "channel_first": channel_first}
        for n, size in enumerate(sizes)
    ]
    if getattr(QUANTIZERS[config["quantizer"]], "straight_through", False):
        # The levels after it code what a level leaves over: latents that were pulled onto the first
        # level's prototypes would leave nothing. The last level pulls them onto the whole code.
        # Prototypes that learn by the gradient of the soft code need the term in each level.
        levels[:-1] = [level | {"commitment": 0.0} for level in levels[:-1]]
    return levels


def _level(config: dict[str, Any]) -> Codebook:
    """A codebook with those of the config's values that its constructor takes."""
    keywords = _keywords(config["quantizer"])
    values = {"channel_first": True} | config | {"dim": config["codebook_dim"]}
    if "temperature" in keywords:
        values["temperature"] = _controller(config)
    return QUANTIZERS[config["quantizer"]](**_some(values, keywords))


def _keywords(quantizer: str) -> list[str]:
    return list(inspect.signature(QUANTIZERS[quantizer]).parameters)


def _controller(config: dict[str, Any]) -> Any:
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
    return CONTROLLERS[config["temperature_mode"]](schedule)


# The one table of quantizers: training/config/quantizers.py reads names and options from it.
QUANTIZERS: dict[str, Callable[..., Codebook]] = {
    "ddcl-em": DDCLEMCodebook,
    "ddcl": DDCLCodebook,
    "vq": VQCodebook,
    "vq-ema": VQEMACodebook,
    "none": IdentityCodebook,
    "vqp-ema": partial(peer, "vqp-ema"),
    "vqp-rotation": partial(peer, "vqp-rotation"),
    "vqp-diveq": partial(peer, "vqp-diveq"),
    "vqp-bridge": partial(peer, "vqp-bridge"),
    "diveq": partial(peer, "diveq"),
    "simvq": partial(peer, "simvq"),
    "fsq": partial(peer, "fsq"),
    "lfq": partial(peer, "lfq"),
}

ARCHITECTURES: dict[str, Callable[[dict[str, Any]], ImageTokenizer]] = {
    "vqvae": _vqvae,
    "vqvae2": _vqvae2,
}
