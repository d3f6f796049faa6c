"""An option of a run: a dataclass field with what the command line says and checks about it."""

from __future__ import annotations

import math
from dataclasses import Field, field, fields
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
    if config.shared_scale and not config.normalize_latents:
        raise UserError("--shared-scale does nothing with --no-normalize-latents: leave one out")
    for spec in fields(config):
        only = spec.metadata["only"]
        if spec.name in given and config.quantizer not in only:
            raise UserError(
                f"--{spec.name.replace('_', '-')} is for {' and '.join(only)}, not for "
                f"{config.quantizer}; leave it out"
            )
