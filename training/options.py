"""An option of a run: a dataclass field with what the command line says and checks about it."""

from __future__ import annotations

import math
from dataclasses import Field, field, fields
from importlib.util import find_spec
from typing import Any

from .errors import UserError

OWN = ("ddcl", "vq", "vq-ema")
# Of vector-quantize-pytorch, for comparisons.
PEERS = ("vqp-ema", "vqp-rotation", "simvq", "fsq", "lfq")
# Their codes are a fixed lattice behind a projection, not points among the latents.
LATTICES = ("fsq", "lfq")
QUANTIZERS = (*OWN, "none", *PEERS)


def option(
    default: Any,
    help: str,  # noqa: A002
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    only: tuple[str, ...] = QUANTIZERS,
) -> Any:
    """A field with what the command line says and checks about it."""
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "choices": choices,
        "only": only,
    }
    return field(default=default, metadata=metadata)


def check_option(spec: Field[Any], value: Any) -> None:
    """Refuse a value outside a field's range or choices.

    Raises:
        UserError: With the field's name, the value, and what it must be.
    """
    rule = spec.metadata
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{spec.name} must be a finite number, got {value}")
    if rule["choices"] and value not in rule["choices"]:
        raise UserError(f"{spec.name} must be one of {', '.join(rule['choices'])}, got {value!r}")
    low, high, above = rule["minimum"], rule["maximum"], rule["above"]
    if low is not None and not value >= low:
        raise UserError(f"{spec.name} must be at least {low}, got {value}")
    if high is not None and not value <= high:
        raise UserError(f"{spec.name} must be at most {high}, got {value}")
    if above is not None and not value > above:
        raise UserError(f"{spec.name} must be more than {above}, got {value}")


def check_together(config: Any) -> None:
    """Refuse values that do not go together.

    Args:
        config: A :class:`training.config.TrainConfig`, each of whose values is in range.

    Raises:
        UserError: With the names, the values, and what to do.
    """
    stride = 8 if config.architecture == "vqvae2" else 4
    if config.image_size % stride:
        raise UserError(
            f"image_size must be a multiple of {stride} for {config.architecture}, "
            f"got {config.image_size}"
        )
    _check_levels(config)
    if config.shared_scale and not config.normalize_latents:
        raise UserError(
            "shared_scale is of the normalisation that normalize_latents false switches off: give "
            "--shared-scale or --no-normalize-latents, not both"
        )
    if config.lpips_weights and not config.perceptual_weight:
        raise UserError("lpips_weights does nothing without perceptual_weight: give both")
    if config.quantizer in PEERS and find_spec("vector_quantize_pytorch") is None:
        raise UserError(
            f"the quantizer {config.quantizer} needs vector-quantize-pytorch: "
            'pip install -e ".[peers]"'
        )
    if config.temperature_hold > config.temperature_until:
        raise UserError(
            "temperature_hold must not exceed temperature_until, got "
            f"{config.temperature_hold} and {config.temperature_until}"
        )
    if config.quantizer != "ddcl":
        return
    if config.recipe == "paper" and config.balance is not None:
        raise UserError(
            "balance does nothing with the recipe paper, whose prototypes learn by gradient: "
            "leave it out, or give usage_weight"
        )
    start, end = config.temperatures
    if config.temperature_mode == "codes" and min(start, end) < 1:
        raise UserError(
            "codes per token cannot fall below 1: give temperature_start and temperature_end "
            f"of 1 or more, got {start} and {end}"
        )
    most = max(config.codebook_sizes)
    if config.temperature_mode == "codes" and max(start, end) > most:
        raise UserError(
            f"a token cannot have more codes than there are: codebook_size is "
            f"{most}, temperature_start and temperature_end {start} and {end}"
        )


def _check_levels(config: Any) -> None:
    """Refuse levels that do not fit together, or options that would do nothing."""
    given = {"level_pool": config.level_pool, "level_sizes": config.level_sizes,
             "level_dropout": config.level_dropout or None}  # fmt: skip
    asked = [name for name, value in given.items() if value is not None]
    if config.level_count == 1 and asked:
        raise UserError(f"{', '.join(asked)}: for several levels only; give --levels, too")
    if config.level_count > 1 and config.quantizer in LATTICES:
        raise UserError(
            f"{config.quantizer} has one level only: of vector-quantize-pytorch's there are "
            "vqp-ema, vqp-rotation and simvq in levels"
        )
    if config.level_count > 1 and config.quantizer == "none":
        raise UserError("the quantizer none has no codebook, so no levels: leave levels out")
    two = config.levels in (None, 2) and config.level_pool is None
    if config.architecture == "vqvae2" and not two:
        raise UserError(
            "vqvae2 has two levels at an eighth and a quarter of the resolution: leave out "
            "levels and level_pool"
        )
    for name in ("level_pool", "level_sizes"):
        config.numbers(name)


def check_given(config: Any, given: dict[str, Any]) -> None:
    """Refuse options that would do nothing.

    Args:
        config: A :class:`training.config.TrainConfig`.
        given: Options that somebody chose, by field.

    Raises:
        UserError: If one is not for the quantizer, or without what it belongs to.
    """
    if "epsilon" in given and config.quantizer == "ddcl" and config.recipe == "tokens":
        raise UserError(
            "--epsilon is for --recipe paper: the recipe tokens moves prototypes by soft EM, which "
            "has no learning rate; leave it out"
        )
    if "lpips" in given and not config.perceptual_weight:
        raise UserError("--lpips does nothing without --perceptual-weight: give both")
    for spec in fields(config):
        only = spec.metadata["only"]
        if spec.name in given and config.quantizer not in only:
            raise UserError(
                f"--{spec.name.replace('_', '-')} is for {' and '.join(only)}, not for "
                f"{config.quantizer}; leave it out"
            )
